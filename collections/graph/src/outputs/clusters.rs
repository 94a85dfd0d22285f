//! Clusters (N01, N04, N12 to N14).

mod grpc;
mod inbound;
mod waypoints;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Index};
use sluice_envoy::cluster::{
    ClusterProfile, ClusterSettings, HboneSettings, IsServed, OutboundInputs, all_served, build_allow_any_dynamic_dns,
    build_black_hole, build_connect_originate, build_double_tunnel, build_inbound_passthrough, build_main_internal,
    build_outbound, build_passthrough, build_sds_external, build_sni_dnat, build_udp, uses_dns,
};
use sluice_envoy::endpoint::{AssignmentInputs, EndpointClient, Tier, build_assignment};
use sluice_envoy::listener::MtlsMode;
use sluice_model::{
    DestinationRule, Endpoint, Host, InterceptionMode, Layer, MeshConfig, OutboundPolicy, Protocol, Proxy, ProxyKey,
    ProxyType, Resource, ResourceKey, ResourceType, SPIFFE_SCHEME, Service, ServiceKey, Text, TlsMode, View,
};
use sluice_proto::envoy::config::cluster::v3::Cluster;

use super::endpoints::waypoints::{WaypointClients, WaypointOutputInputs};
use super::endpoints::{EndpointLookup, EndpointLookupInputs, tier_of};
use super::secrets::{ServableSecrets, ServedSecretLookup};
use super::{Outputs, derive_envoy_profiles, derive_passing_profiles};
use crate::content_names::profile_text;
use crate::options::GraphOptions;
use crate::outputs::layers::LayerFacts;
use crate::proxies::tiers::RareTiers;
use crate::proxies::workloads::{Workload, WorkloadName};
use crate::registry::endpoints::{FactLookup, FactsOfEndpoints, ServiceEndpoints};
use crate::registry::workloads::is_waypoint;
use crate::traffic::credentials::CredentialClient;
use crate::traffic::destinations::{DestinationInputs, Destinations};
use crate::traffic::gateways::reach::Reach;
use crate::views::Overlay;

/// The layer of clusters that depend only on the profile.
const FIXED: &str = "fixed";

/// A profile; for clusters with their endpoints, also the facts of the client.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct OutboundProfile {
    cluster: ClusterProfile,
    client: Option<EndpointClient>,
    /// For proxies with a server of TLS mode AUTO_PASSTHROUGH.
    passing: bool,
    /// For proxies that request the clusters of routes when they need them.
    on_demand: bool,
}

impl OutboundProfile {
    fn of(proxy: &Proxy, tier: Option<Tier>) -> Self {
        // These facts change only clusters that are not among the outbound clusters.
        let cluster = ClusterProfile {
            dns_proxy: None,
            no_hbone: false,
            receives_hbone: false,
            double_tunnel: false,
            ..ClusterProfile::of(proxy)
        };
        let client = tier.map(|tier| EndpointClient::of(proxy, tier));
        Self { cluster, client, passing: false, on_demand: proxy.on_demand_clusters }
    }

    /// The profile for the clusters that a router selects by server name.
    fn passing_through(proxy: &Proxy, tier: Option<Tier>) -> Self {
        let plain = Self::of(proxy, tier);
        // Listeners refer to these.
        Self { client: plain.client.map(EndpointClient::passing_through), passing: true, on_demand: false, ..plain }
    }
}

/// A profile, and the policy of the Sidecar for traffic to unknown hosts.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct FixedProfile {
    cluster: ClusterProfile,
    outbound: Option<OutboundPolicy>,
}

impl FixedProfile {
    fn of(proxy: &Proxy) -> Self {
        let outbound = proxy.sidecar.as_ref().and_then(|sidecar| sidecar.outbound.as_ref());
        Self { cluster: ClusterProfile::of(proxy), outbound: outbound.map(|outbound| outbound.policy) }
    }
}

/// The clusters of the proxy's own ports, those that every proxy has, then those of services.
pub(crate) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let proxy = client.proxy;
    if proxy.proxy_type == ProxyType::Waypoint {
        // The clusters that every other proxy has would be unused.
        let mut layers = waypoints::layers(client);
        if let Some(reach) = client.reach {
            let profiles = client.tiers.iter().copied().map(Some).chain([None]);
            let profiles: Vec<Text> = profiles.map(|tier| profile_text(&OutboundProfile::of(proxy, tier))).collect();
            let credentials = client.credentials.map(CredentialClient::view);
            for view in credentials.iter().chain([reach]) {
                layers.extend(profiles.iter().map(|profile| Layer { view: view.clone(), profile: profile.clone() }));
            }
        }
        layers.extend(passing_layers(client));
        return layers;
    }
    if proxy.grpc {
        return grpc::layers(client);
    }
    let mut layers = Vec::new();
    // Without interception the sidecar would listen where the application does, unless a Sidecar declares other ports.
    let declares = proxy.sidecar.as_ref().is_some_and(|sidecar| sidecar.ingress);
    if proxy.proxy_type == ProxyType::Sidecar && (declares || proxy.interception_mode != InterceptionMode::None) {
        layers.push(client.inbound(&profile_text(&inbound::profile(proxy))));
    }
    let fixed = profile_text(&FixedProfile::of(proxy));
    layers.push(Layer { view: View::Workload(FIXED.into()), profile: fixed });
    let tiers = client.tiers.iter().copied().map(Some).chain([None]);
    let profiles: Vec<Text> = tiers.map(|tier| profile_text(&OutboundProfile::of(proxy, tier))).collect();
    let reach = client.reach.map(|view| Layer { view: view.clone(), profile: Text::default() });
    let mut plain = match reach {
        Some(reach) => vec![reach],
        None => client.outbound(&Text::default()),
    };
    if let Some(credentials) = client.credentials {
        plain.insert(0, Layer { view: credentials.view(), profile: Text::default() });
    }
    layers.extend(with_profiles(&plain, &profiles));
    layers.extend(passing_layers(client));
    layers
}

/// The layers of the clusters that a proxy with a server of TLS mode AUTO_PASSTHROUGH selects by server name.
fn passing_layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    if !client.auto_passthrough {
        return Vec::new();
    }
    let tiers = client.tiers.iter().copied().map(Some).chain([None]);
    let profiles = tiers.map(|tier| profile_text(&OutboundProfile::passing_through(client.proxy, tier)));
    with_profiles(&client.outbound(&Text::default()), &profiles.collect::<Vec<_>>())
}

/// Each layer with each profile.
fn with_profiles(layers: &[Layer], profiles: &[Text]) -> Vec<Layer> {
    let with = |layer: &Layer| {
        let of = |profile: &Text| Layer { profile: profile.clone(), ..layer.clone() };
        profiles.iter().map(of).collect::<Vec<_>>()
    };
    layers.iter().flat_map(with).collect()
}

/// Inputs of the derivation of clusters.
pub(crate) struct ClusterInputs<'a, 's> {
    /// Settings fixed at start-up.
    pub(crate) options: &'a GraphOptions,
    /// Settings of clusters: one record.
    pub(crate) settings: &'a Collection<'s, (), ClusterSettings>,
    /// The mesh config: one record.
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Which of them are clients of a rare tier.
    pub(crate) rare_tiers: &'a RareTiers<'s>,
    /// Routers and east-west gateways with a server of TLS mode AUTO_PASSTHROUGH.
    pub(crate) auto_passthrough: &'a Collection<'s, ProxyKey, ()>,
    /// The clusters that routers and waypoints send to, if they get only those.
    pub(crate) reach: [Option<&'a Reach<'s>>; 2],
    /// Every host that some service has.
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    /// The service and the DestinationRule of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// Endpoints of services, with what decides whether they accept mutual TLS.
    pub(crate) endpoints: EndpointLookupInputs<'a, 's>,
    /// Identities (SPIFFE) of each service.
    pub(crate) identities: &'a Collection<'s, ServiceKey, Vec<Text>>,
    /// Distinct workloads of connected proxies.
    pub(crate) workloads: &'a Collection<'s, WorkloadName, Workload>,
    /// Proxies whose clusters may need Secrets.
    pub(crate) credential_clients: &'a Collection<'s, ProxyKey, CredentialClient>,
    /// The Secrets that can be served.
    pub(crate) secrets: ServableSecrets<'s>,
    /// Inputs of the clusters of waypoints, and their clients, in ambient mode.
    pub(crate) waypoints: Option<(WaypointOutputInputs<'a, 's>, WaypointClients<'s>)>,
    /// The ports of hosts that UDPRoutes lead to, if UDPRoutes have effect.
    pub(crate) udp_backends: Option<&'a Collection<'s, Host, BTreeSet<u16>>>,
}

/// Settings of clusters and endpoint assignments.
/// Key: none, one record. From: `mesh_config`. Changes when: a setting of clusters does. Size: 1. Rejects: none.
pub(crate) fn derive_settings<'s>(
    mesh: &Collection<'s, (), MeshConfig>,
    options: &GraphOptions,
) -> Collection<'s, (), ClusterSettings> {
    let &GraphOptions { dual_stack, sends_hbone, prefers_hbone, clusters, .. } = options;
    let (sessions, compliance) = (options.sessions.clone(), options.security.compliance);
    mesh.map("cluster_settings", move |(), mesh| {
        ClusterSettings::new(mesh, dual_stack)
            .with_hbone(sends_hbone, prefers_hbone)
            .with_sessions(&sessions)
            .with_compliance(compliance)
            .with_switches(clusters)
    })
}

/// Clusters; for routers with a server of TLS mode AUTO_PASSTHROUGH also those they select by server name.
/// Key: layer and name. From: `hosts`, `services`, `destination_rules`, `peer_authentications`, `identities`,
/// `mesh_config`, `workloads`, `proxies` (their profiles); `endpoints` of DNS services only; `reach/hosts` where
/// routers get only the clusters they send to; `credential_clients` and `secrets` (their names) for rules with credentials.
/// Changes when: a service does, or a rule or policy for it, its identities, or a setting of clusters; a Secret of a rule is
/// created or deleted; not when endpoints do.
/// Size: ports of services × (1 + subsets) × profiles, plus the differences of special views and of proxies that are not
/// served the Secret of a rule, plus ports of workloads.
/// Rejects: none.
pub(crate) fn derive_clusters<'s>(inputs: &ClusterInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    if let Some((waypoints, clients)) = &inputs.waypoints {
        let credentials = (inputs.credential_clients, &inputs.secrets);
        outputs.resources.extend(waypoints::derive_waypoints(waypoints, clients, credentials));
    }
    let aliases = inputs.mesh.map("trust_domain_aliases", |(), mesh| mesh.trust_domain_aliases.clone());
    outputs.resources.extend([
        derive_fixed(inputs, inputs.settings),
        derive_outbound(inputs, inputs.settings, &aliases),
        grpc::derive_grpc(inputs, &aliases),
        inbound::derive_inbound(inputs, inputs.settings),
    ]);
}

fn derive_fixed<'s>(
    inputs: &ClusterInputs<'_, 's>,
    settings: &Collection<'s, (), ClusterSettings>,
) -> Collection<'s, ResourceKey, Resource> {
    let profiles = derive_envoy_profiles(inputs.proxies, "cluster_profiles", FixedProfile::of);
    let outbound = inputs.mesh.map("outbound_policy", |(), mesh| mesh.outbound_policy);
    let switches = inputs.options.clusters;
    let hbone = inputs.mesh.map("hbone_settings", move |(), mesh| HboneSettings::new(mesh, switches));
    let receives = inputs.options.sidecars_receive_hbone();
    profiles.derive_many("clusters/fixed", |deps| {
        let (settings, outbound, hbone) = (deps.on(settings), deps.on(&outbound), deps.on(&hbone));
        move |cx, fixed, ()| {
            let Some(settings) = cx.get(&settings, &()) else { return Vec::new() };
            let profile = &fixed.cluster;
            let outbound = fixed.outbound.or_else(|| cx.get(&outbound, &()).map(|policy| *policy));
            let mut clusters = vec![build_black_hole(&settings)];
            if profile.proxy_type == ProxyType::Sidecar {
                clusters.push(build_passthrough(&settings, profile));
                clusters.push(build_inbound_passthrough(&settings, profile));
                if outbound == Some(OutboundPolicy::AllowAnyDynamicDns) {
                    clusters.push(build_allow_any_dynamic_dns(&settings, profile));
                }
            }
            let sends = settings.sends_hbone && !profile.no_hbone && profile.proxy_type != ProxyType::Waypoint;
            if sends && let Some(hbone) = cx.get(&hbone, &()) {
                clusters.push(build_connect_originate(&settings, &hbone));
                if profile.double_tunnel {
                    clusters.extend(build_double_tunnel(&settings, &hbone));
                }
            }
            if receives && profile.receives_hbone {
                clusters.push(build_main_internal(&settings, profile));
            }
            if profile.credential_socket {
                clusters.push(build_sds_external(&settings));
            }
            let layer = Layer { view: View::Workload(FIXED.into()), profile: profile_text(fixed) };
            clusters.iter().map(|cluster| row(&layer, cluster)).collect()
        }
    })
}

fn derive_outbound<'s>(
    inputs: &ClusterInputs<'_, 's>,
    settings: &Collection<'s, (), ClusterSettings>,
    aliases: &Collection<'s, (), Vec<Text>>,
) -> Collection<'s, ResourceKey, Resource> {
    let of_tier = |name: &str, tier: Option<Tier>| {
        let clients = tier.map_or(inputs.proxies, |tier| inputs.rare_tiers.clients(inputs.proxies, tier));
        let plain = derive_envoy_profiles(clients, name, move |proxy| OutboundProfile::of(proxy, tier));
        let passing = derive_passing_profiles(
            inputs.proxies,
            inputs.auto_passthrough,
            &format!("{name}/passing"),
            move |proxy| OutboundProfile::passing_through(proxy, tier),
        );
        plain.union(&format!("{name}/all"), &[passing])
    };
    let plain = of_tier("outbound_cluster_profiles", None);
    let by_tier = Tier::ALL.map(|tier| {
        let name = format!("outbound_cluster_profiles/{tier:?}").to_lowercase();
        of_tier(&name, Some(tier))
    });
    let endpoints = inputs.endpoints.endpoints;
    let port_mtls = derive_ports(endpoints, "port_mtls", |endpoint| endpoint.tls_mode == TlsMode::Istio);
    let port_hbone = derive_ports(endpoints, "port_hbone", |endpoint| endpoint.hbone && !is_waypoint(endpoint));
    let credential_clients = derive_credential_profiles(inputs);
    inputs.hosts.derive_many("clusters/outbound", |deps| {
        let destinations = Destinations::on(deps, &inputs.destinations);
        let facts = ServiceFacts {
            identities: ServiceIdentities { of: deps.on(inputs.identities), aliases: deps.on(aliases) },
            port_mtls: port_mtls.on(deps),
            port_hbone: port_hbone.on(deps),
            endpoints: EndpointLookup::on(deps, &inputs.endpoints),
        };
        let settings = deps.on(settings);
        let credential_clients = deps.by(&credential_clients);
        let served = ServedSecretLookup::on(deps, &inputs.secrets);
        let reach: Vec<_> = inputs.reach.into_iter().flatten().map(|reach| deps.by(&reach.by_host)).collect();
        let plain = deps.on(&plain);
        let by_tier = by_tier.each_ref().map(|profiles| deps.on(profiles));
        let udp_backends = inputs.udp_backends.map(|ports| deps.on(ports));
        move |cx, host, ()| {
            let Some(settings) = cx.get(&settings, &()) else { return Vec::new() };
            let udp_ports = udp_backends.as_ref().and_then(|ports| cx.get(ports, host));
            let destinations = destinations.get(cx, host);
            // Only the clusters of services that Envoy resolves by DNS contain endpoints, and depend on the client.
            let profiles = match tier_of(&settings, &destinations, uses_dns) {
                Some(tier) => by_tier.get(tier as usize).map_or_else(Vec::new, |profiles| cx.all(profiles)),
                None => cx.all(&plain),
            };
            let mut rows = Vec::new();
            for (profile, _) in &profiles {
                let text = profile_text(profile);
                let write = |view: &View, is_selected: &dyn Fn(&Text) -> bool, is_served: IsServed<'_>| {
                    let found = destinations.seen_from(view).filter(|(service, _)| is_selected(&service.namespace));
                    let Some((service, rule)) = found else { return BTreeMap::new() };
                    let service = ServiceView {
                        service: &service,
                        rule: rule.as_ref(),
                        root: destinations.root_namespace(),
                        udp_ports: udp_ports.as_deref(),
                        is_served,
                    };
                    let clusters = facts.clusters(cx, &settings, profile, service);
                    clusters.iter().map(|cluster| (cluster.name.clone(), encoded(cluster))).collect()
                };
                let kind = profile.cluster.proxy_type;
                // Waypoints get only the clusters they send to, and those that they select by server name.
                let mut seen = match kind {
                    ProxyType::Waypoint if !profile.passing => Vec::new(),
                    _ => Overlay::rows(destinations.special_views(), |view| write(view, &|_| true, &all_served)),
                };
                let without_secrets = |reach: Option<&View>, is_selected: &dyn Fn(&Text) -> bool| {
                    if profile.passing || !destinations.name_credentials() {
                        return Vec::new();
                    }
                    let clients = cx.by(&credential_clients, &(profile.cluster.clone(), reach.cloned())).into_iter();
                    let differing = clients.flat_map(|((_, client), _)| {
                        let is_served = |name: &str| served.is_served(cx, &client.access, name);
                        let below: BTreeMap<String, Resource> = write(&client.sees_as, is_selected, &all_served);
                        let own = write(&client.sees_as, is_selected, &is_served);
                        let differing = own.into_iter().filter(|(name, cluster)| below.get(name) != Some(cluster));
                        differing.map(|(name, cluster)| (client.view(), name, cluster)).collect::<Vec<_>>()
                    });
                    differing.collect()
                };
                seen.extend(without_secrets(None, &|_| true));
                let limited = matches!(kind, ProxyType::Router | ProxyType::Waypoint) && !profile.passing;
                let clients = reach.iter().filter(|_| limited).flat_map(|reach| cx.by(reach, host));
                let clients = clients.filter(|((client, _), _)| client.is_waypoint == (kind == ProxyType::Waypoint));
                for ((client, _), namespaces) in clients.collect::<Vec<_>>() {
                    let is_selected = |namespace: &Text| namespaces.is_empty() || namespaces.contains(namespace);
                    let clusters: BTreeMap<String, Resource> = write(&client.sees_as(), &is_selected, &all_served);
                    seen.extend(without_secrets(Some(&client.view()), &is_selected));
                    seen.extend(clusters.into_iter().map(|(name, cluster)| (client.view(), name, cluster)));
                }
                rows.extend(seen.into_iter().map(|(view, name, resource)| {
                    let layer = Layer { view, profile: text.clone() };
                    (ResourceKey { resource_type: ResourceType::Cluster, layer, name: name.into() }, resource)
                }));
            }
            rows
        }
    })
}

/// A group of proxies whose clusters may need Secrets, with their profile without a client.
type CredentialProfile = (ClusterProfile, CredentialClient);

/// Groups of proxies whose clusters may need Secrets, by their profile and the view of the clusters they are limited to.
fn derive_credential_profiles<'s>(
    inputs: &ClusterInputs<'_, 's>,
) -> Index<'s, (ClusterProfile, Option<View>), CredentialProfile, ()> {
    let of_proxies = inputs.credential_clients.derive("credential_clients/with-profiles", |deps| {
        let proxies = deps.on(inputs.proxies);
        move |cx, key, client: &CredentialClient| {
            let profile = OutboundProfile::of(&*cx.get(&proxies, key)?, None);
            Some((profile.cluster, client.clone()))
        }
    });
    let by_content = of_proxies.index("credential_clients/by-content", |_, pair| [(pair.clone(), ())]);
    let distinct: Collection<'s, CredentialProfile, ()> = by_content.distinct("credential_clients/distinct");
    distinct.index("credential_clients/by-profile", |(profile, client): &CredentialProfile, ()| {
        [((profile.clone(), client.reach.clone()), ())]
    })
}

/// Names of the ports of each service whose endpoints are all `so`. Services without such ports are absent.
fn derive_ports<'s>(
    endpoints: &ServiceEndpoints<'s>,
    name: &str,
    so: fn(&Endpoint) -> bool,
) -> FactsOfEndpoints<'s, Vec<Text>> {
    let of = move |endpoints: &[Endpoint]| {
        let mut ports: BTreeMap<Text, bool> = BTreeMap::new();
        for endpoint in endpoints {
            match ports.get_mut(&endpoint.port_name) {
                Some(all) => *all &= so(endpoint),
                None => drop(ports.insert(endpoint.port_name.clone(), so(endpoint))),
            }
        }
        ports
    };
    let add = |ports: &mut BTreeMap<Text, bool>, more: &BTreeMap<Text, bool>| {
        more.iter().for_each(|(port, so)| *ports.entry(port.clone()).or_insert(true) &= so);
    };
    endpoints.facts(name, of, add, |ports| {
        let ports: Vec<Text> = ports.into_iter().filter(|(_, so)| *so).map(|(name, _)| name).collect();
        (!ports.is_empty()).then_some(ports)
    })
}

/// A service and its rule in one view.
#[derive(Clone, Copy)]
struct ServiceView<'a> {
    service: &'a Service,
    rule: Option<&'a DestinationRule>,
    root: &'a Text,
    /// Its UDP ports with routes of gateways.
    udp_ports: Option<&'a BTreeSet<u16>>,
    is_served: IsServed<'a>,
}

/// Inputs of the clusters of a service besides the service and the rule.
#[derive(Clone, Copy)]
struct ServiceFacts {
    identities: ServiceIdentities,
    port_mtls: FactLookup<Vec<Text>>,
    port_hbone: FactLookup<Vec<Text>>,
    endpoints: EndpointLookup,
}

impl ServiceFacts {
    fn clusters(
        &self,
        cx: &Context,
        settings: &ClusterSettings,
        profile: &OutboundProfile,
        view: ServiceView<'_>,
    ) -> Vec<Cluster> {
        let ServiceView { service, rule, root, udp_ports, is_served } = view;
        let udp_ports = udp_ports.filter(|_| profile.cluster.proxy_type == ProxyType::Router && !profile.passing);
        let key = service.key();
        let identities = self.identities.get(cx, &key);
        let takes_mtls = self.endpoints.policies.get(cx, &service.namespace, root).of_namespace() != MtlsMode::Disable;
        let is_passthrough = service.resolution == sluice_model::Resolution::Passthrough
            || rule.is_some_and(DestinationRule::uses_passthrough);
        let port_mtls = if is_passthrough { self.port_mtls.get(cx, &key) } else { None };
        let port_hbone = if settings.sends_hbone { self.port_hbone.get(cx, &key) } else { None };
        let (backends, gateways) = match &profile.client {
            Some(_) if uses_dns(service) => {
                let found = self.endpoints.of_service(cx, &key, root).unwrap_or_default();
                (found, self.endpoints.gateways(cx, true))
            }
            _ => Default::default(),
        };
        let backends = backends.backends();
        let client = profile.client.clone().unwrap_or_default();
        let mut clusters = Vec::new();
        for port in &service.ports {
            let load = |subset: &str| {
                let inputs = AssignmentInputs {
                    settings,
                    client: &client,
                    service,
                    port,
                    subset,
                    rule,
                    backends: &backends,
                    gateways: &gateways,
                    by_name: true,
                };
                Some(build_assignment(&inputs, ""))
            };
            let inputs = OutboundInputs {
                settings,
                profile: &profile.cluster,
                service,
                port,
                rule,
                takes_mtls,
                all_endpoints_mtls: port_mtls.as_ref().is_some_and(|ports| ports.contains(&port.name)),
                all_endpoints_hbone: port_hbone.as_ref().is_some_and(|ports| ports.contains(&port.name)),
                identities: &identities,
                dns_load: &load,
                is_served,
            };
            if port.protocol == Protocol::Udp && udp_ports.is_some_and(|ports| ports.contains(&port.port)) {
                clusters.extend(build_udp(&inputs));
            }
            let build = if profile.passing { build_sni_dnat } else { build_outbound };
            clusters.extend(build(&inputs));
        }
        clusters
    }
}

/// Looks up the identities of services.
#[derive(Clone, Copy)]
struct ServiceIdentities {
    of: Dep<ServiceKey, Vec<Text>>,
    aliases: Dep<(), Vec<Text>>,
}

impl ServiceIdentities {
    /// Identities of a service, in each of the mesh's trust domains.
    fn get(&self, cx: &Context, service: &ServiceKey) -> Vec<Text> {
        let Some(identities) = cx.get(&self.of, service) else { return Vec::new() };
        let aliases = cx.get(&self.aliases, &()).map(|aliases| (*aliases).clone()).unwrap_or_default();
        let mut all: BTreeSet<Text> = identities.iter().cloned().collect();
        for identity in identities.iter() {
            // Only an identity of the usual form has aliases in other trust domains: spiffe://domain/ns/…/sa/….
            let Some((_, path)) = identity.strip_prefix(SPIFFE_SCHEME).and_then(|rest| rest.split_once('/')) else {
                continue;
            };
            if path.starts_with("ns/") {
                all.extend(aliases.iter().map(|alias| Text::from(format!("{SPIFFE_SCHEME}{alias}/{path}"))));
            }
        }
        all.into_iter().collect()
    }
}

fn encoded(cluster: &Cluster) -> Resource {
    Resource::Encoded(sluice_proto::wire::encode(cluster).into())
}

fn row(layer: &Layer, cluster: &Cluster) -> (ResourceKey, Resource) {
    let key =
        ResourceKey { resource_type: ResourceType::Cluster, layer: layer.clone(), name: cluster.name.as_str().into() };
    (key, encoded(cluster))
}
