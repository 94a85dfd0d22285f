//! What derives from what: the collections of the mesh.
//!
//! [`build`] is the table of contents. Everything here is a pure function of the inputs: no files, no environment, no
//! clock, no task. Rooms below know no dataflow; this is the only room that joins.
//!
//! - `inputs.rs`: what sources write; one collection a kind, keyed by object.
//! - `mesh_config.rs`, `namespaces.rs`, `networks.rs`: settings everything else reads.
//! - `allocation.rs`: addresses for ServiceEntries that declare none.
//! - `services.rs`, `workloads.rs`, `endpoints.rs`, `proxies.rs`: the registry.
//! - `ambient.rs`: workloads, services and policies of node proxies.
//! - `sidecars.rs`: what of the mesh the proxies of a Sidecar see.
//! - `gateway_api.rs`: Gateways and routes of the Gateway API as what everything else reads.
//! - `attached.rs`: what Telemetries and extensions attach to proxies.
//! - `secrets.rs`: who may have which certificates and keys; `pull_secrets.rs`: who may pull which images.
//! - `views.rs`: for whose eyes something is written, and what of it differs from what everyone sees.
//! - `outputs/`: encoded resources, a file a type. `scopes.rs`: which layers of them a proxy gets.

mod allocation;
mod ambient;
mod attached;
mod content;
pub mod destination_rules;
mod destinations;
mod endpoints;
mod envoy_filters;
mod gateway_api;
pub mod gateways;
mod ingresses;
mod inputs;
mod mesh_config;
mod namespaces;
mod network_gateways;
mod networks;
mod outputs;
pub mod peer_authentications;
mod policies;
mod proxies;
mod pull_secrets;
mod rejects;
pub mod router_routes;
mod scopes;
pub mod secrets;
mod services;
pub mod sidecar_routes;
pub mod sidecars;
mod tiers;
mod views;
pub mod virtual_hosts;
pub mod virtual_services;
mod workloads;

use std::time::Duration;

use sluice_engine::{Builder, Collection, Index, Published};
use sluice_envoy::endpoint::Tier;
use sluice_model::{
    DestinationRule, Endpoint, Gateway, Host, Jwks, JwksKey, Labels, MeshConfig, MeshNetworks, Namespace,
    NetworkGateway, Node, ObjectKey, PeerAuthentication, Pod, Proxy, ProxyConfigResource, ProxyKey, Reject, Resource,
    ResourceKey, Scope, SecretReader, Segment, SegmentKey, Service, ServiceKey, SessionLabels, Text, VirtualService,
};

pub use allocation::{AddressPools, AddressUpdate};
pub use ambient::AmbientOptions;
pub use gateway_api::{GatewayApiOptions, GatewayController};
pub use inputs::{Inputs, Objects, RejectKey};
pub use networks::NetworkRules;
pub use proxies::{ServiceTarget, Workload, WorkloadName, WorkloadSidecar};
pub use scopes::{Client, profile_text};
pub use services::{HostServices, Hosts};
pub use sluice_envoy::listener::ListenerSwitches;
pub use views::{Overlay, namespace_views};

use ambient::{Ambient, AmbientInputs};
use attached::AttachedTo;
use serde::Serialize;
pub use sluice_envoy::security::SecurityOptions;

use destination_rules::RulePolicy;
use envoy_filters::Patches;
use gateways::reach::{Reach, ReachInputs, derive_reach};
use gateways::routers::{RouterInputs, Routers};
use proxies::TargetInputs;
use pull_secrets::PullAccess;
use secrets::Secrets;
use sidecars::{HostInputs, SidecarHeads, Sidecars};
use tiers::RareTiers;

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

/// The collections that outputs are made of. Cloning is cheap; each output says in its doc which of them it reads.
#[derive(Clone)]
pub struct Spine<'s> {
    /// What the process was told.
    pub options: GraphOptions,
    /// Parsed objects, as far as `discoverySelectors` lets them exist.
    pub objects: Objects<'s>,
    /// The mesh config: one record.
    pub mesh: Collection<'s, (), MeshConfig>,
    /// Services, merged over clusters.
    pub services: Collection<'s, ServiceKey, Service>,
    /// Services of each host.
    pub services_by_host: Index<'s, Host, ServiceKey, ()>,
    /// Every host that some service has.
    pub hosts: Collection<'s, Host, ()>,
    /// Endpoints of every service, sorted; empty if it has none.
    pub endpoints: Collection<'s, ServiceKey, Vec<Endpoint>>,
    /// Identities (SPIFFE) behind every service that has any, sorted, without the mesh's aliases.
    pub identities: Collection<'s, ServiceKey, Vec<Text>>,
    /// Connected proxies, with the locality of their node where they send none.
    pub proxies: Collection<'s, ProxyKey, Proxy>,
    /// Tiers of clients that are written only where a service needs them.
    pub(crate) rare_tiers: RareTiers<'s>,
    /// Which workload each proxy is.
    pub workload_names: Collection<'s, ProxyKey, WorkloadName>,
    /// Distinct workloads of connected proxies: what their inbound sides depend on.
    pub workloads: Collection<'s, WorkloadName, Workload>,
    /// What Telemetries and extensions attach to proxies, and what listeners of each are written from.
    pub(crate) attached: AttachedTo<'s>,
    /// Combinations of selected labels in use, with their namespace: each is a `View::Selected`.
    pub selections: Collection<'s, (Text, Labels), ()>,
    /// VirtualServices with their delegates and with `export_to` resolved.
    pub virtual_services: Collection<'s, ObjectKey, VirtualService>,
    /// VirtualServices of sidecars by host as written, wildcards included.
    pub virtual_services_by_host: Index<'s, Host, ObjectKey, ()>,
    /// Sidecars in use, and what each host is to them.
    pub sidecars: Sidecars<'s>,
    /// DestinationRules by host as declared, wildcards included.
    pub destination_rules_by_host: Index<'s, Host, ObjectKey, DestinationRule>,
    /// Ways from one network to another, by address: one record.
    pub network_gateways: Collection<'s, (), Vec<NetworkGateway>>,
    /// The same with IP addresses instead of names.
    pub resolved_network_gateways: Collection<'s, (), Vec<NetworkGateway>>,
    /// What of the mesh config decides which DestinationRules apply: one record.
    pub rule_policy: Collection<'s, (), RulePolicy>,
    /// Connected routers, and what they listen for.
    pub routers: Routers<'s>,
    /// What they send to, if they get the clusters of that only.
    pub(crate) reach: Option<Reach<'s>>,
    /// PeerAuthentications by namespace.
    pub peer_authentications_by_namespace: Index<'s, Text, ObjectKey, PeerAuthentication>,
    /// Patches of EnvoyFilters, by where they apply.
    pub(crate) patches: Patches<'s>,
    /// Namespace whose policies are for the whole mesh: one record.
    pub root_namespace: Collection<'s, (), Text>,
    /// Keys of token issuers that were fetched.
    pub jwks: Collection<'s, JwksKey, Jwks>,
    /// Roots that workloads are to trust: one record, or none.
    pub trust_bundle: Collection<'s, (), Vec<Text>>,
    /// What node proxies are told, in ambient mode.
    pub(crate) ambient: Option<Ambient<'s>>,
    /// Who may have which secrets.
    pub secrets: Secrets<'s>,
    /// Who may have which credentials for images of extensions.
    pub(crate) pulls: Collection<'s, ProxyKey, PullAccess>,
}

impl<'s> Spine<'s> {
    /// The proxies that services may tell apart as clients of a tier.
    pub(crate) fn clients(&self, tier: Tier) -> &Collection<'s, ProxyKey, Proxy> {
        self.rare_tiers.clients(&self.proxies, tier)
    }
}

/// The ends of the graph that the process holds.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Where sources write.
    pub inputs: Inputs,
    /// Whole resources; each key is in one of the collections.
    pub resources: Vec<Published<ResourceKey, Resource>>,
    /// Segments of assembled resources; each key is in one of the collections.
    pub segments: Vec<Published<SegmentKey, Segment>>,
    /// What each proxy gets.
    pub scopes: Published<ProxyKey, Scope>,
    /// Host names to be resolved into [`Inputs::resolved_names`].
    pub gateway_names: Published<Text, ()>,
    /// Everything that is wrong with configuration, by object.
    pub rejects: Published<RejectKey, Vec<Reject>>,
    /// Statuses of ServiceEntries to be written.
    pub address_updates: Published<ObjectKey, AddressUpdate>,
    /// Keys of token issuers that have to be fetched, and the time each may take.
    pub wanted_jwks: Published<JwksKey, Duration>,
    /// Keys of token issuers that were fetched.
    pub jwks: Published<JwksKey, Jwks>,
    /// Who is to be asked about whether he may read Secrets, into [`Inputs::secret_reviews`].
    pub wanted_secret_reviews: Published<SecretReader, ()>,
    /// For debug endpoints: the mesh config.
    pub mesh: Published<(), MeshConfig>,
    /// For debug endpoints: the networks.
    pub networks: Published<(), MeshNetworks>,
    /// For debug endpoints: services.
    pub services: Published<ServiceKey, Service>,
    /// For debug endpoints: endpoints.
    pub endpoints: Published<ServiceKey, Vec<Endpoint>>,
    /// For debug endpoints: proxies.
    pub proxies: Published<ProxyKey, Proxy>,
    /// For debug endpoints: what services each proxy is part of.
    pub service_targets: Published<ProxyKey, Vec<ServiceTarget>>,
    /// For debug endpoints: VirtualServices.
    pub virtual_services: Published<ObjectKey, VirtualService>,
    /// For debug endpoints: DestinationRules.
    pub destination_rules: Published<ObjectKey, DestinationRule>,
    /// For debug endpoints: Gateways.
    pub gateways: Published<ObjectKey, Gateway>,
    /// For injection: ProxyConfig resources.
    pub proxy_configs: Published<ObjectKey, ProxyConfigResource>,
    /// For debug endpoints: pods.
    pub pods: Published<ObjectKey, Pod>,
    /// For debug endpoints: nodes.
    pub nodes: Published<ObjectKey, Node>,
    /// For debug endpoints: namespaces.
    pub namespaces: Published<ObjectKey, Namespace>,
}

/// Builds the graph: every collection in order.
pub fn build(builder: &mut Builder, options: &GraphOptions) -> Handles {
    builder.dataflow("mesh", |graph| {
        let (inputs, raw) = inputs::declare(graph);
        let one = graph.fixed("one", [((), ())]);
        let settings = mesh_config::derive_mesh_settings(&one, &raw.mesh_settings, options);
        let mesh = mesh_config::derive_mesh_config(&settings);
        let mesh_networks = mesh_config::derive_mesh_networks(&settings);
        let discovery = namespaces::derive_discovery(&mesh, &raw.namespaces, options);
        let objects = raw.discovered(&discovery);
        let networks = networks::derive_networks(&mesh_networks, &raw.namespaces, options);

        let allocations = allocation::derive_allocations(&objects, &one, options);
        let address_updates = allocation::derive_address_updates(&objects, &allocations, options);
        let declared = services::derive_declared_services(&objects, &mesh, &allocations, options);
        let services = services::derive_services(&declared, options);
        let services_by_host = services::index_by_host(&services);
        let hosts = services_by_host.distinct("hosts");

        let instances = workloads::derive_workload_instances(&objects, &mesh, &networks, options);
        let slices = endpoints::derive_slice_endpoints(&objects, &mesh, &networks, options);
        let entries = endpoints::derive_declared_endpoints(&objects, &declared, &instances, &mesh, &networks, options);
        let endpoints = endpoints::derive_endpoints(&services, &slices, &entries);
        let identities = endpoints::derive_identities(&services, &endpoints);

        let sidecar_heads = SidecarHeads::new(&objects.sidecars, &mesh);
        let proxies = proxies::derive_proxies(&raw.proxies, &objects, &sidecar_heads, options);
        let registry = TargetInputs {
            objects: &objects,
            declared: &declared,
            instances: &instances,
            slices: &slices,
            endpoints: &entries,
        };
        let targets = proxies::derive_service_targets(&proxies, &registry, options);
        let root_namespace = mesh_config::derive_root_namespace(&mesh);
        let labels = proxies::derive_selected_labels(&objects, &root_namespace);
        let proxy_workloads = proxies::derive_proxy_workloads(&proxies, &targets, &labels);
        let workload_names = proxies::derive_workload_names(&proxy_workloads);
        let workloads = proxies::derive_workloads(&proxy_workloads);
        let selections = scopes::derive_selections(&proxies, &labels);
        let ingresses = ingresses::derive_ingresses(&objects, &mesh, options);
        let bundles = namespaces::discovered("root_bundles", &raw.root_bundles, &discovery);
        let gateway_api = gateway_api::derive_gateway_api(&objects, &services_by_host, &bundles, options);
        let gateways = objects.gateways.union("gateways/all", &[ingresses.gateways, gateway_api.gateways]);
        let generated_routes = [ingresses.virtual_services, gateway_api.virtual_services];
        let declared_routes = objects.virtual_services.union("virtual_services/all", &generated_routes);
        let all_rules = objects.destination_rules.union("destination_rules/all", &[gateway_api.destination_rules]);
        let virtual_services = virtual_services::derive_merged_virtual_services(&declared_routes, &mesh);
        let virtual_services_by_host = virtual_services::index_by_host(&virtual_services);
        let host_inputs = HostInputs {
            services: &services,
            services_by_host: &services_by_host,
            hosts: &hosts,
            virtual_services: &virtual_services,
            routed: &virtual_services_by_host,
        };
        let sidecars = sidecars::derive_sidecars(&one, &proxies, &labels, &objects.sidecars, &host_inputs);

        let routers = crate::gateways::routers::derive_routers(
            &RouterInputs {
                proxies: &proxies,
                workload_names: &workload_names,
                workloads: &workloads,
                services: &services,
                gateways: &gateways,
            },
            options,
        );

        let network_gateways = network_gateways::derive_network_gateways(&objects, &mesh_networks, options);
        let gateway_names = network_gateways::derive_gateway_names(&network_gateways);
        let resolved_network_gateways =
            network_gateways::derive_resolved_gateways(&network_gateways, &raw.resolved_names);
        let rare_tiers = RareTiers::new(&services, &all_rules, &mesh, &proxies);
        let destination_rules_by_host = destination_rules::index_by_host(&all_rules);
        let rule_policy = destination_rules::derive_rule_policy(&mesh);
        let peer_authentications_by_namespace = peer_authentications::index_by_namespace(&objects.peer_authentications);
        let wanted_jwks = policies::derive_wanted_jwks(&objects, &services_by_host, options);

        let ambient = options.ambient.map(|switches| {
            let inputs = AmbientInputs {
                objects: &objects,
                mesh: &mesh,
                networks: &networks,
                discovery: &discovery,
                declared: &declared,
            };
            ambient::derive_ambient(&inputs, switches, options)
        });

        let secrets = Secrets::new(&raw, &objects, bundles, &mesh, &proxies, &routers, options);
        let attached = attached::derive_attached(&objects, &mesh, &proxies);
        let pulls = pull_secrets::derive_pull_access(&proxies, &attached.extensions, &attached.root, options);
        let patches = envoy_filters::derive_patches(&objects, &mesh, &proxies);
        let reach_inputs = ReachInputs {
            objects: &objects,
            mesh: &mesh,
            proxies: &proxies,
            routers: &routers,
            selected: &labels,
            patches: &patches,
            virtual_services: &virtual_services,
        };
        let reach = options.filter_gateway_clusters.then(|| derive_reach(&reach_inputs, options));
        let spine = Spine {
            options: options.clone(),
            objects,
            mesh,
            services,
            services_by_host,
            hosts,
            endpoints,
            identities,
            proxies,
            rare_tiers,
            workload_names,
            workloads,
            attached,
            selections,
            virtual_services,
            virtual_services_by_host,
            sidecars,
            destination_rules_by_host,
            network_gateways,
            resolved_network_gateways,
            rule_policy,
            routers,
            reach,
            peer_authentications_by_namespace,
            patches,
            root_namespace,
            jwks: raw.jwks,
            trust_bundle: raw.trust_bundle,
            ambient,
            secrets,
            pulls,
        };
        let outputs = outputs::derive_outputs(graph, &spine, &labels);
        let scopes = scopes::derive_scopes(&spine, &labels);
        let mut found = gateway_api.rejects;
        found.push(raw.cluster_rejects);
        let rejects = rejects::derive_rejects(&raw.rejects, &found);
        Handles {
            inputs,
            resources: outputs.resources.iter().map(Collection::publish).collect(),
            segments: outputs.segments.iter().map(Collection::publish).collect(),
            scopes: scopes.publish(),
            gateway_names: gateway_names.publish(),
            rejects: rejects.publish(),
            address_updates: address_updates.publish(),
            wanted_jwks: wanted_jwks.publish(),
            jwks: spine.jwks.publish(),
            wanted_secret_reviews: spine.secrets.wanted_reviews.publish(),
            mesh: spine.mesh.publish(),
            networks: mesh_networks.publish(),
            services: spine.services.publish(),
            endpoints: spine.endpoints.publish(),
            proxies: spine.proxies.publish(),
            service_targets: targets.publish(),
            virtual_services: spine.objects.virtual_services.publish(),
            destination_rules: spine.objects.destination_rules.publish(),
            gateways: spine.objects.gateways.publish(),
            proxy_configs: spine.objects.proxy_configs.publish(),
            pods: spine.objects.pods.publish(),
            nodes: spine.objects.nodes.publish(),
            namespaces: spine.objects.namespaces.publish(),
        }
    })
}

#[cfg(test)]
mod tests;
