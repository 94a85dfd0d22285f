//! Endpoint assignments (S07, N16, N17).

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index};
use sluice_envoy::cluster::{ClusterSettings, uses_eds};
use sluice_envoy::endpoint::{AssignmentInputs, Backend, EndpointClient, Tier, build_assignment, tier};
use sluice_envoy::listener::MtlsMode;
use sluice_envoy::name::{outbound_cluster, sni_cluster};
use sluice_model::{
    Endpoint, Host, Layer, MeshConfig, NetworkGateway, ObjectKey, PeerAuthentication, Protocol, Proxy, ProxyKey,
    ProxyType, Resource, ResourceKey, ResourceType, Service, ServiceKey, Text, TlsMode, View,
};

use super::{Outputs, derive_passing_profiles, derive_profiles};
use crate::content_names::profile_text;
use crate::options::GraphOptions;
use crate::outputs::layers::LayerFacts;
use crate::proxies::peer_authentications::{PeerLookup, PeerPolicies};
use crate::proxies::tiers::RareTiers;
use crate::traffic::destinations::{DestinationInputs, Destinations, HostDestinations};
use crate::views::Overlay;

/// The layers of all tiers: each service is in the layers of the tier that it needs.
pub(crate) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let plain = || client.tiers.iter().map(|tier| EndpointClient::of(client.proxy, *tier));
    let passing = plain().filter(|_| client.auto_passthrough).map(EndpointClient::passing_through);
    let profiles: Vec<Text> = plain().chain(passing).map(|profile| profile_text(&profile)).collect();
    let outbound = client.outbound(&Text::default()).into_iter();
    outbound
        .flat_map(|layer| profiles.iter().map(move |profile| Layer { profile: profile.clone(), ..layer.clone() }))
        .collect()
}

/// Inputs of the derivation of endpoint assignments.
pub(crate) struct EndpointInputs<'a, 's> {
    /// Settings fixed at start-up.
    pub(crate) options: &'a GraphOptions,
    /// The mesh config: one record.
    pub(crate) mesh: &'a Collection<'s, (), MeshConfig>,
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Which of them are clients of a rare tier.
    pub(crate) rare_tiers: &'a RareTiers<'s>,
    /// Routers with a server of TLS mode AUTO_PASSTHROUGH.
    pub(crate) auto_passthrough: &'a Collection<'s, ProxyKey, ()>,
    /// Every host that some service has.
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    /// The service and the DestinationRule of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// Endpoints of services, with what decides whether they accept mutual TLS.
    pub(crate) endpoints: EndpointLookupInputs<'a, 's>,
}

/// Endpoint assignments of every cluster that gets its endpoints by EDS, for sidecars and for gateways; for routers
/// with a server of TLS mode AUTO_PASSTHROUGH also those of the clusters they select by server name.
/// Key: layer and name. From: `hosts`, `services`, `endpoints`, `destination_rules`, `peer_authentications`,
/// `network_gateways`, `mesh_config`, `proxies` (the facts that endpoints depend on).
/// Changes when: an endpoint of the service is added, removed or changed, or a rule or policy for it.
/// Size: ports of services × (1 + subsets) × distinct clients of the service's tier. Rejects: none.
pub(crate) fn derive_endpoint_assignments<'s>(inputs: &EndpointInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    let &GraphOptions { dual_stack, sends_hbone, prefers_hbone, .. } = inputs.options;
    let sessions = inputs.options.sessions.clone();
    let settings = inputs.mesh.map("endpoint_settings", move |(), mesh| {
        ClusterSettings::new(mesh, dual_stack).with_hbone(sends_hbone, prefers_hbone).with_sessions(&sessions)
    });
    let clients = Tier::ALL.map(|tier| {
        let name = format!("endpoint_clients/{tier:?}").to_lowercase();
        let plain = derive_profiles(inputs.rare_tiers.clients(inputs.proxies, tier), &name, move |proxy| {
            EndpointClient::of(proxy, tier)
        });
        let passing = derive_passing_profiles(
            inputs.proxies,
            inputs.auto_passthrough,
            &format!("{name}/passing"),
            move |proxy| EndpointClient::of(proxy, tier).passing_through(),
        );
        plain.union(&format!("{name}/all"), &[passing])
    });
    let assignments = inputs.hosts.derive_many("endpoint_assignments", |deps| {
        let destinations = Destinations::on(deps, &inputs.destinations);
        let endpoints = EndpointLookup::on(deps, &inputs.endpoints);
        let settings = deps.on(&settings);
        let clients = clients.each_ref().map(|clients| deps.on(clients));
        move |cx, host, ()| {
            let Some(settings) = cx.get(&settings, &()) else { return Vec::new() };
            let destinations = destinations.get(cx, host);
            let has_eds = |service: &Service| uses_eds(service, ProxyType::Router, None);
            let Some(tier) = tier_of(&settings, &destinations, has_eds) else { return Vec::new() };
            let Some(clients) = clients.get(tier as usize) else { return Vec::new() };
            let gateways = endpoints.gateways(cx, false);
            let mut known: BTreeMap<ServiceKey, Vec<ServiceEndpoint>> = BTreeMap::new();
            let mut rows = Vec::new();
            for (client, _) in cx.all(clients) {
                let text = profile_text(&client);
                let seen = Overlay::rows(destinations.special_views(), |view| {
                    let Some((service, rule)) = destinations.seen_from(view) else { return BTreeMap::new() };
                    if !has_eds(&service) || (client.only_mtls && service.mesh_external) {
                        return BTreeMap::new();
                    }
                    let found = known
                        .entry(service.key())
                        .or_insert_with_key(|key| endpoints.of_service(cx, key, destinations.root_namespace()));
                    let backends: Vec<Backend<'_>> = found.iter().map(ServiceEndpoint::backend).collect();
                    let subsets = rule.iter().flat_map(|rule| &rule.subsets).map(|subset| subset.name.as_str());
                    let subsets: Vec<&str> = std::iter::once("").chain(subsets).collect();
                    let mut assignments = BTreeMap::new();
                    for port in service.ports.iter().filter(|port| port.protocol != Protocol::Udp) {
                        for subset in &subsets {
                            let policy = rule.as_ref().and_then(|rule| rule.policy(subset, port.port));
                            if policy.is_some_and(|policy| policy.is_passthrough()) {
                                continue;
                            }
                            let cluster = if client.only_mtls { sni_cluster } else { outbound_cluster };
                            let name = cluster(u32::from(port.port), subset, service.host.as_str());
                            let assignment = build_assignment(
                                &AssignmentInputs {
                                    settings: &settings,
                                    client: &client,
                                    service: &service,
                                    port,
                                    subset,
                                    rule: rule.as_ref(),
                                    backends: &backends,
                                    gateways: &gateways,
                                    by_name: false,
                                },
                                &name,
                            );
                            let bytes = sluice_proto::wire::encode(&assignment);
                            assignments.insert(name, Resource::Encoded(bytes.into()));
                        }
                    }
                    assignments
                });
                rows.extend(seen.into_iter().map(|(view, name, resource)| row(view, &text, &name, resource)));
            }
            rows
        }
    });
    outputs.resources.push(assignments);
}

fn row(view: View, profile: &Text, name: &str, resource: Resource) -> (ResourceKey, Resource) {
    let layer = Layer { view, profile: profile.clone() };
    (ResourceKey { resource_type: ResourceType::Endpoint, layer, name: name.into() }, resource)
}

/// The tier of clients that a host's services need in any view; `None` if no service `counts`.
///
/// All views have the same tier, so that the resources of a view can be compared with those of the view below.
pub(super) fn tier_of(
    settings: &ClusterSettings,
    destinations: &HostDestinations,
    counts: impl Fn(&Service) -> bool,
) -> Option<Tier> {
    let views = destinations.special_views().chain([View::Base]);
    views
        .filter_map(|view| destinations.seen_from(&view))
        .filter(|(service, _)| counts(service))
        .flat_map(|(service, rule)| {
            let subsets: Vec<Text> = rule.iter().flat_map(|rule| &rule.subsets).map(|s| s.name.clone()).collect();
            let service = service.clone();
            let all: Vec<Tier> = service
                .ports
                .iter()
                .flat_map(|port| {
                    let subsets = std::iter::once("").chain(subsets.iter().map(|name| name.as_str()));
                    subsets.map(|subset| tier(settings, &service, port.port, subset, rule.as_ref())).collect::<Vec<_>>()
                })
                .collect();
            all
        })
        .max()
}

/// An endpoint, and whether it refuses mutual TLS by policy.
pub(super) struct ServiceEndpoint {
    endpoints: Arc<Vec<Endpoint>>,
    at: usize,
    refuses_mtls: bool,
}

impl ServiceEndpoint {
    pub(super) fn backend(&self) -> Backend<'_> {
        Backend { endpoint: &self.endpoints[self.at], refuses_mtls: self.refuses_mtls }
    }
}

/// Inputs of [`EndpointLookup`].
#[derive(Clone, Copy)]
pub(crate) struct EndpointLookupInputs<'a, 's> {
    /// Endpoints of every service, sorted.
    pub(crate) endpoints: &'a Collection<'s, ServiceKey, Vec<Endpoint>>,
    /// Gateways between networks, by address or host name: one record.
    pub(crate) network_gateways: &'a Collection<'s, (), Vec<NetworkGateway>>,
    /// The same with IP addresses instead of host names: one record.
    pub(crate) resolved_network_gateways: &'a Collection<'s, (), Vec<NetworkGateway>>,
    /// PeerAuthentications by namespace.
    pub(crate) peer_authentications_by_namespace: &'a Index<'s, Text, ObjectKey, PeerAuthentication>,
}

/// Looks up the endpoints of a service, inside a `derive` over hosts.
#[derive(Clone, Copy)]
pub(super) struct EndpointLookup {
    endpoints: Dep<ServiceKey, Vec<Endpoint>>,
    gateways: Dep<(), Vec<NetworkGateway>>,
    resolved_gateways: Dep<(), Vec<NetworkGateway>>,
    pub(super) policies: PeerLookup,
}

impl EndpointLookup {
    /// Declares the look-up.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, inputs: &EndpointLookupInputs<'_, 's>) -> Self {
        Self {
            endpoints: deps.on(inputs.endpoints),
            gateways: deps.on(inputs.network_gateways),
            resolved_gateways: deps.on(inputs.resolved_network_gateways),
            policies: PeerLookup::on(deps, inputs.peer_authentications_by_namespace),
        }
    }

    /// Gateways between networks: by IP address, unless the proxy resolves host names itself.
    pub(super) fn gateways(&self, cx: &Context, by_name: bool) -> Vec<NetworkGateway> {
        let gateways = if by_name { &self.gateways } else { &self.resolved_gateways };
        cx.get(gateways, &()).map(|all| (*all).clone()).unwrap_or_default()
    }

    /// The endpoints of all ports of a service.
    pub(super) fn of_service(&self, cx: &Context, service: &ServiceKey, root: &Text) -> Vec<ServiceEndpoint> {
        let Some(endpoints) = cx.get(&self.endpoints, service) else { return Vec::new() };
        let mut policies: BTreeMap<Text, PeerPolicies> = BTreeMap::new();
        let mut refuses = |endpoint: &Endpoint| {
            if endpoint.tls_mode != TlsMode::Istio {
                return true;
            }
            let policies = policies
                .entry(endpoint.namespace.clone())
                .or_insert_with_key(|namespace| self.policies.get(cx, namespace, root));
            let mode = if policies.is_uniform() {
                policies.of_namespace()
            } else {
                policies.of_workload(&endpoint.labels).mode(endpoint.port)
            };
            mode == MtlsMode::Disable
        };
        let found = endpoints.iter().map(&mut refuses).enumerate().collect::<Vec<_>>();
        found
            .into_iter()
            .map(|(at, refuses_mtls)| ServiceEndpoint { endpoints: endpoints.clone(), at, refuses_mtls })
            .collect()
    }
}
