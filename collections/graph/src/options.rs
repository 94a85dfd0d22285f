//! Settings of the graph that are fixed at start-up.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use sluice_model::{MultiClusterApi, SessionLabels, Text, TunnelSwitches};

pub use sluice_envoy::cluster::ClusterSwitches;
pub use sluice_envoy::listener_settings::{ListenerSwitches, SecurityOptions};

/// Settings of the graph that are fixed at start-up.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct GraphOptions {
    /// Id of the cluster whose Istio objects are read: `Kubernetes`.
    pub cluster: Text,
    /// Namespace of the control plane, where ConfigMap `istio` is: `istio-system`.
    pub system_namespace: Text,
    /// DNS domain of Services: `cluster.local`.
    pub domain: Text,
    /// Revision of the control plane, empty or `default` for the default one.
    pub revision: Text,
    /// Addresses of both families are used (`ISTIO_DUAL_STACK`).
    pub dual_stack: bool,
    /// Namespace of the router that serves Ingresses (`K8S_INGRESS_NS`).
    pub ingress_namespace: Text,
    /// HTTPS of routers is also served over HTTP/3 (`PILOT_ENABLE_QUIC_LISTENERS`).
    pub http3: bool,
    /// A Gateway selects only routers of its own namespace (`PILOT_SCOPE_GATEWAY_TO_NAMESPACE`).
    pub scope_gateways: bool,
    /// A router of a managed Gateway of the Gateway API serves no Istio Gateway of another namespace
    /// (`PILOT_ENABLE_STRICT_GATEWAY_MERGING`).
    pub strict_gateway_merging: bool,
    /// Of the services of several namespaces with the host that a route of a Sidecar has as destination, the one of Kubernetes or the
    /// oldest is reached, else the first by namespace (`PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE`).
    pub reaches_best_service: bool,
    /// Routers get only the clusters that they send to (`PILOT_FILTER_GATEWAY_CLUSTER_CONFIG`).
    pub filter_gateway_clusters: bool,
    /// Switches that change listeners.
    pub listeners: ListenerSwitches,
    /// Switches that change clusters and endpoints.
    pub clusters: ClusterSwitches,
    /// Hosts of mirrored requests have the suffix `-shadow` (not `DISABLE_SHADOW_HOST_SUFFIX`).
    pub shadow_suffix: bool,
    /// Labels by which services enable persistent sessions.
    pub sessions: SessionLabels,
    /// A ServiceEntry's selector also selects pods (`PILOT_ENABLE_SERVICEENTRY_SELECT_PODS`).
    pub entries_select_pods: bool,
    /// A Service's selector also selects WorkloadEntries (`PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES`).
    pub services_select_entries: bool,
    /// Proxies send HBONE to workloads that accept it (`PILOT_ENABLE_AMBIENT` and `PILOT_ENABLE_SENDING_HBONE`).
    pub sends_hbone: bool,
    /// They prefer HBONE where the workload also accepts mutual TLS (`PILOT_PREFER_SENDING_HBONE`).
    pub prefers_hbone: bool,
    /// Hosts of ServiceEntries without addresses are allocated addresses, which are written to the status
    /// (`PILOT_ENABLE_IP_AUTOALLOCATE`). Otherwise a proxy that requests it gets addresses by hash of the host.
    pub allocates_addresses: bool,
    /// The pools of allocated addresses. Without pools, only the addresses in statuses are used.
    pub address_pools: Option<AddressPools>,
    /// Taints are removed from nodes whose CNI agent is ready (`PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS`), with these settings.
    pub untaint: Option<UntaintOptions>,
    /// Which side fetches JWKS (`PILOT_JWT_ENABLE_REMOTE_JWKS`): the control plane or the proxies.
    pub jwks_fetch: JwksFetch,
    /// Maximum number of key sets that the control plane fetches for the RequestAuthentications of one namespace.
    pub max_key_sets: usize,
    /// Limits on the EnvoyFilters of one namespace.
    pub patch_limits: PatchLimits,
    /// Other settings that change security policies.
    pub security: SecurityOptions,
    /// Node proxies and waypoints are served (`PILOT_ENABLE_AMBIENT`), with these settings.
    pub ambient: Option<AmbientOptions>,
    /// Conditions are written into the statuses of objects (`AMBIENT_ENABLE_STATUS`): those of ambient mode, and without
    /// it those of security policies with targets that only waypoints serve.
    pub writes_conditions: bool,
    /// Services of several clusters follow ServiceExports (`ENABLE_MCS_SERVICE_DISCOVERY`), with these settings.
    pub multi_cluster: Option<MultiClusterOptions>,
    /// API group and version of ServiceExports and ServiceImports.
    pub multi_cluster_api: MultiClusterApi,
    /// ServiceExports are created for Services (`ENABLE_MCS_AUTO_EXPORT`).
    pub exports_services: bool,
    /// Settings of the Gateway API.
    pub gateway_api: GatewayApiOptions,
    /// The clusters decide which service accounts may read Secrets (see
    /// [`wanted_secret_reviews`](crate::Handles::wanted_secret_reviews)). Otherwise
    /// every proxy may read those of its own namespace.
    pub reviews_secrets: bool,
    /// Proxies that support it get virtual hosts by VHDS, not in route tables (`SLUICE_VHDS`).
    pub virtual_hosts: bool,
    /// Proxies that support it get the clusters that only routes refer to on demand (`SLUICE_ON_DEMAND_CLUSTERS`).
    pub on_demand_clusters: bool,
    /// Proxies that support it get the endpoints of each locality as resources of their own, by LEDS (`SLUICE_LEDS`).
    pub endpoints_by_locality: bool,
}

/// Which taint is removed from nodes, and when.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct UntaintOptions {
    /// Key of the taint (`PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME`).
    pub taint: Text,
    /// Namespace of the pods of the CNI agent.
    pub cni_namespace: Text,
}

/// Which side fetches JWKS: the control plane or the proxies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub enum JwksFetch {
    /// The control plane.
    #[default]
    ControlPlane,
    /// Proxies, where the JWKS server is a service of the mesh; else the control plane.
    Hybrid,
    /// Proxies.
    Proxy,
}

impl GraphOptions {
    /// Whether sidecars receive HBONE if their metadata say so.
    pub(crate) fn sidecars_receive_hbone(&self) -> bool {
        self.ambient.is_some_and(|ambient| !ambient.deaf_sidecars)
    }
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
            strict_gateway_merging: true,
            reaches_best_service: true,
            filter_gateway_clusters: false,
            listeners: ListenerSwitches::default(),
            clusters: ClusterSwitches::default(),
            shadow_suffix: false,
            sessions: SessionLabels::default(),
            entries_select_pods: true,
            services_select_entries: true,
            sends_hbone: false,
            prefers_hbone: false,
            allocates_addresses: true,
            address_pools: None,
            untaint: None,
            jwks_fetch: JwksFetch::default(),
            max_key_sets: 100,
            patch_limits: PatchLimits::default(),
            security: SecurityOptions::default(),
            ambient: None,
            writes_conditions: false,
            multi_cluster: None,
            multi_cluster_api: MultiClusterApi::default(),
            exports_services: false,
            gateway_api: GatewayApiOptions::default(),
            reviews_secrets: false,
            virtual_hosts: false,
            on_demand_clusters: false,
            endpoints_by_locality: false,
        }
    }
}

impl GraphOptions {
    /// The options with the settings of tunnels where listeners, clusters and endpoints are built.
    #[must_use]
    pub(crate) fn with_tunnels(&self) -> Self {
        let mut options = self.clone();
        let tunnels = self.ambient.map(|ambient| ambient.tunnels).unwrap_or_default();
        options.listeners.tunnels = tunnels;
        options.clusters.tunnels = tunnels;
        options
    }
}

/// Limits on the patches of the EnvoyFilters of one namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PatchLimits {
    /// Patches.
    pub max_patches: usize,
    /// Bytes of their encoded values.
    pub max_bytes: usize,
    /// Bytes of the values of patches that name no resource, each of which may be copied into every resource.
    pub max_repeated_bytes: usize,
    /// Bytes of the values, each times the parts of the configuration that its patch may match.
    pub max_copied_bytes: usize,
    /// Patches, each times the parts that it may match.
    pub max_patched_parts: usize,
}

impl Default for PatchLimits {
    fn default() -> Self {
        Self {
            max_patches: 1000,
            max_bytes: 4 << 20,
            max_repeated_bytes: 256 << 10,
            max_copied_bytes: 1 << 30,
            max_patched_parts: 1_000_000,
        }
    }
}

/// The pools of allocated addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct AddressPools {
    /// IPv4 addresses; the first address of the prefix is not allocated.
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

/// Settings of ambient mode.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct AmbientOptions {
    /// A workload with a waypoint accepts connections only from the waypoint's instances, unless a policy allows others
    /// (`PILOT_AUTO_ALLOW_WAYPOINT_POLICY`).
    pub allows_waypoints: bool,
    /// Dry-run policies are sent too (`AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY`).
    pub dry_run_policies: bool,
    /// Gateways never send through waypoints (`ENABLE_INGRESS_WAYPOINT_ROUTING=false`).
    pub direct_gateways: bool,
    /// Sidecars do not receive HBONE, whatever their metadata say (`PILOT_ENABLE_SIDECAR_LISTENING_HBONE=false`).
    pub deaf_sidecars: bool,
    /// Tunnels between networks. With several networks, workloads and services of remote clusters are part of the mesh.
    pub tunnels: TunnelSwitches,
}

/// Settings of Multi-Cluster Services.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct MultiClusterOptions {
    /// ServiceImports declare hosts in `clusterset.local` (`ENABLE_MCS_HOST`).
    pub imported_hosts: bool,
    /// Hosts of Services in the domain of the cluster reach endpoints of the cluster of the client only
    /// (`ENABLE_MCS_CLUSTER_LOCAL`).
    pub cluster_local: bool,
}

/// Settings of the Gateway API.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct GatewayApiOptions {
    /// Controller of the Gateways that routers serve (`PILOT_GATEWAY_API_CONTROLLER_NAME`).
    pub controller: Text,
    /// Their class, which need not exist (`PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME`).
    pub default_class: Text,
    /// A Gateway may name the Service of routers that are deployed manually (`ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT`).
    pub manual_deployment: bool,
    /// Gateways of other clusters are read (`PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API`).
    pub remote: bool,
    /// Waypoints are served (`PILOT_ENABLE_AMBIENT`).
    pub waypoints: bool,
    /// Gateways between the networks of ambient meshes are served (`AMBIENT_ENABLE_MULTI_NETWORK`).
    pub east_west: bool,
    /// Experimental kinds have effect (`PILOT_ENABLE_ALPHA_GATEWAY_API`).
    pub experimental: bool,
    /// InferencePools have effect (`ENABLE_GATEWAY_API_INFERENCE_EXTENSION`).
    pub inference: bool,
    /// Gateways of the class `istio-agentgateway` are served (`PILOT_ENABLE_AGENTGATEWAY`).
    pub agentgateway: bool,
    /// GatewayClasses are created (`PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER`).
    pub creates_classes: bool,
    /// Statuses are written (`PILOT_ENABLE_GATEWAY_API_STATUS`).
    pub writes_statuses: bool,
    /// Proxies are deployed for Gateways (`PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER`).
    pub deploys: bool,
    /// Deployed objects have the labels and annotations of their Gateway, unless `spec.infrastructure` has others
    /// (`PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS`).
    pub copies_labels: bool,
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
            inference: false,
            agentgateway: false,
            creates_classes: true,
            writes_statuses: true,
            deploys: true,
            copies_labels: true,
        }
    }
}
