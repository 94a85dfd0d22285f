//! Settings of the graph that are fixed at start-up.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::Serialize;
use sluice_model::{SessionLabels, Text};

pub use sluice_envoy::listener::ListenerSwitches;
pub use sluice_envoy::security::SecurityOptions;

/// What the process was told and never changes while it runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GraphOptions {
    /// Id of the cluster whose Istio objects count: `Kubernetes`.
    pub cluster: Text,
    /// Namespace of the control plane, where ConfigMap `istio` is: `istio-system`.
    pub system_namespace: Text,
    /// DNS domain of Services: `cluster.local`.
    pub domain: Text,
    /// Revision of the control plane, empty or `default` for the default one.
    pub revision: Text,
    /// Addresses of both families are used (`ISTIO_DUAL_STACK`).
    pub dual_stack: bool,
    /// Namespace of the router that Ingresses are for (`K8S_INGRESS_NS`).
    pub ingress_namespace: Text,
    /// HTTPS of routers is served over HTTP/3 too (`PILOT_ENABLE_QUIC_LISTENERS`).
    pub http3: bool,
    /// A Gateway is for routers of its own namespace only (`PILOT_SCOPE_GATEWAY_TO_NAMESPACE`).
    pub scope_gateways: bool,
    /// Routers get the clusters of what they send to only (`PILOT_FILTER_GATEWAY_CLUSTER_CONFIG`).
    pub filter_gateway_clusters: bool,
    /// Switches that change listeners.
    pub listeners: ListenerSwitches,
    /// How services ask for persistent sessions.
    pub sessions: SessionLabels,
    /// A ServiceEntry's selector selects pods too (`PILOT_ENABLE_SERVICEENTRY_SELECT_PODS`).
    pub entries_select_pods: bool,
    /// A Service's selector selects WorkloadEntries too (`PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES`).
    pub services_select_entries: bool,
    /// Proxies send HBONE to where it is taken (`PILOT_ENABLE_AMBIENT` and `PILOT_ENABLE_SENDING_HBONE`).
    pub sends_hbone: bool,
    /// They do so even where mutual TLS is taken as well (`PILOT_PREFER_SENDING_HBONE`).
    pub prefers_hbone: bool,
    /// Hosts of ServiceEntries without addresses get some that are written to their status
    /// (`PILOT_ENABLE_IP_AUTOALLOCATE`); else proxies that ask for them get some by hash of the name.
    pub allocates_addresses: bool,
    /// Where hosts of ServiceEntries without addresses get theirs; without pools only what statuses say is used.
    pub address_pools: Option<AddressPools>,
    /// Who fetches keys of token issuers (`PILOT_JWT_ENABLE_REMOTE_JWKS`).
    pub jwks_fetch: JwksFetch,
    /// What else changes security policies.
    pub security: SecurityOptions,
    /// Node proxies and waypoints are served (`PILOT_ENABLE_AMBIENT`), with these switches.
    pub ambient: Option<AmbientOptions>,
    /// How the Gateway API is read.
    pub gateway_api: GatewayApiOptions,
    /// Clusters say whose proxies may read Secrets (see [`Handles::wanted_secret_reviews`]); else everybody may read those
    /// of his own namespace.
    pub reviews_secrets: bool,
    /// Proxies that take them get virtual hosts one by one, not in route tables (`SLUICE_VHDS`).
    pub virtual_hosts: bool,
}

/// Who fetches keys of token issuers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub enum JwksFetch {
    /// The control plane.
    #[default]
    ControlPlane,
    /// Proxies, where their server is a service of the mesh; else the control plane.
    Hybrid,
    /// Proxies.
    Proxy,
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self {
            cluster: "Kubernetes".into(),
            system_namespace: "istio-system".into(),
            domain: "cluster.local".into(),
            revision: Text::default(),
            dual_stack: false,
            ingress_namespace: "istio-system".into(),
            http3: false,
            scope_gateways: false,
            filter_gateway_clusters: false,
            listeners: ListenerSwitches::default(),
            sessions: SessionLabels::default(),
            entries_select_pods: true,
            services_select_entries: true,
            sends_hbone: false,
            prefers_hbone: false,
            allocates_addresses: true,
            address_pools: None,
            jwks_fetch: JwksFetch::default(),
            security: SecurityOptions::default(),
            ambient: None,
            gateway_api: GatewayApiOptions::default(),
            reviews_secrets: false,
            virtual_hosts: false,
        }
    }
}

/// Where allocated addresses come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AddressPools {
    /// IPv4 addresses; the first one of the prefix stays free.
    pub v4: Ipv4Net,
    /// IPv6 addresses.
    pub v6: Ipv6Net,
}

impl Default for AddressPools {
    /// `240.240.0.0/16` and `2001:2::/48`.
    fn default() -> Self {
        let v4 = Ipv4Net::new_assert(Ipv4Addr::new(240, 240, 0, 0), 16);
        Self { v4, v6: Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48) }
    }
}

/// Switches of ambient mode.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AmbientOptions {
    /// Workloads behind a waypoint let only its instances pass, unless a policy says otherwise
    /// (`PILOT_AUTO_ALLOW_WAYPOINT_POLICY`).
    pub allows_waypoints: bool,
    /// Policies that are only evaluated are sent too (`AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY`).
    pub dry_run_policies: bool,
}

/// What the process was told of the Gateway API.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayApiOptions {
    /// Controller of the Gateways that routers serve (`PILOT_GATEWAY_API_CONTROLLER_NAME`).
    pub controller: Text,
    /// Their class, which need not be there (`PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME`).
    pub default_class: Text,
    /// A Gateway may name the Service of routers somebody else runs (`ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT`).
    pub manual_deployment: bool,
    /// Gateways of other clusters are known (`PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API`).
    pub remote: bool,
    /// Waypoints are served (`PILOT_ENABLE_AMBIENT`).
    pub waypoints: bool,
    /// Gateways between the networks of ambient meshes are served (`AMBIENT_ENABLE_MULTI_NETWORK`).
    pub east_west: bool,
    /// Experimental kinds count (`PILOT_ENABLE_ALPHA_GATEWAY_API`).
    pub experimental: bool,
}

impl Default for GatewayApiOptions {
    fn default() -> Self {
        Self {
            controller: "istio.io/gateway-controller".into(),
            default_class: "istio".into(),
            manual_deployment: true,
            remote: true,
            waypoints: false,
            east_west: false,
            experimental: false,
        }
    }
}
