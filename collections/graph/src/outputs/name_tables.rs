//! Name tables (X22), assembled from the entries of services.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::name_table::{NameInputs, build_names};
use sluice_model::{
    ClientLocation, Endpoint, Host, IpFamilies, Layer, Proxy, ProxyKey, ProxyType, Resolution, Resource, ResourceType,
    Segment, SegmentKey, Service, ServiceKey, ServiceSource, Text, View,
};

use super::{Outputs, derive_profiles};
use crate::content_names::profile_text;
use crate::outputs::layers::LayerFacts;
use crate::outputs::routes::virtual_hosts::{RouteProfile, addresses_for};
use crate::traffic::destinations::{DestinationInputs, Destinations};
use crate::views::Overlay;

/// The layer of the table itself, which every proxy has, also one without names.
const TABLE: &str = "table";

/// The facts of a proxy that change its name table.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct NameProfile {
    cluster: Text,
    network: Text,
    ip_families: IpFamilies,
    auto_allocated: bool,
    proxy_type: ProxyType,
}

impl NameProfile {
    fn of(proxy: &Proxy) -> Self {
        if proxy.proxy_type != ProxyType::Sidecar {
            return Self {
                cluster: Text::default(),
                network: Text::default(),
                ip_families: IpFamilies::V4,
                auto_allocated: false,
                proxy_type: proxy.proxy_type,
            };
        }
        let ClientLocation { cluster, network } = proxy.shared_location();
        Self {
            cluster,
            network,
            ip_families: proxy.ip_families,
            auto_allocated: proxy.uses_allocated_addresses(),
            proxy_type: proxy.proxy_type,
        }
    }

    /// Whether a service without addresses is reached at its endpoints. For a client without IPv4, the cluster's DNS
    /// resolves headless Services of Kubernetes, as in the reference.
    fn takes_endpoints(&self, service: &Service) -> bool {
        let is_left = service.source == ServiceSource::Kubernetes && self.ip_families == IpFamilies::V6;
        service.resolution == Resolution::Passthrough && !is_left
    }

    /// The addresses at which a client reaches a service; for a ServiceEntry all its addresses.
    fn addresses(&self, service: &Service, dual_stack: bool) -> Vec<Text> {
        let declared = service.addresses.values().next().filter(|_| service.source == ServiceSource::ServiceEntry);
        if let Some(declared) = declared {
            return declared.clone();
        }
        let profile = RouteProfile {
            cluster: self.cluster.clone(),
            ip_families: self.ip_families,
            auto_allocated: self.auto_allocated,
            ..RouteProfile::default()
        };
        addresses_for(service, &profile, dual_stack)
    }
}

/// A sidecar gets the names of the services it reaches; other proxies get an empty table.
pub(crate) fn layers(client: &LayerFacts<'_>) -> Vec<Layer> {
    let profile = profile_text(&NameProfile::of(client.proxy));
    let mut layers = match client.proxy.proxy_type {
        ProxyType::Sidecar => client.outbound(&profile),
        ProxyType::Router | ProxyType::Waypoint => Vec::new(),
        ProxyType::Ztunnel | ProxyType::Agentgateway => return Vec::new(),
    };
    layers.push(table(profile));
    layers
}

fn table(profile: Text) -> Layer {
    Layer { view: View::Workload(TABLE.into()), profile }
}

/// Inputs of the derivation of name tables.
pub(crate) struct NameTableInputs<'a, 's> {
    /// Addresses of both families are used.
    pub(crate) dual_stack: bool,
    /// Connected proxies.
    pub(crate) proxies: &'a Collection<'s, ProxyKey, Proxy>,
    /// Every host that some service has.
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    /// The service of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// Endpoints of every service, sorted.
    pub(crate) endpoints: &'a Collection<'s, ServiceKey, Vec<Endpoint>>,
}

/// Entries of name tables, and the table itself for each profile.
/// Key: `SegmentKey`: the table has no name, an entry has the name of its host. From: `hosts`, `services`, `proxies`
/// (their profiles); `endpoints` of headless services only.
/// Changes when: a service is added, removed or gets another address; an endpoint of a headless service does.
/// Size: services × profiles, plus pods with separate names, plus the entries that differ in special namespaces.
/// Rejects: none.
pub(crate) fn derive_name_tables<'s>(inputs: &NameTableInputs<'_, 's>, outputs: &mut Outputs<'s>) {
    let profiles = derive_profiles(inputs.proxies, "name_table_profiles", NameProfile::of);
    let tables: Collection<'s, SegmentKey, Segment> = profiles.flat_map("name_tables", |profile, ()| {
        [(segment(table(profile_text(profile)), Text::default()), Resource::Encoded(bytes::Bytes::new()))]
    });
    let dual_stack = inputs.dual_stack;
    let entries = inputs.hosts.derive_many("name_tables/entries", |deps| {
        let destinations = Destinations::on(deps, &inputs.destinations);
        let (endpoints, profiles) = (deps.on(inputs.endpoints), deps.on(&profiles));
        move |cx, host, ()| {
            let destinations = destinations.get(cx, host);
            let mut rows = Vec::new();
            for (profile, _) in cx.all(&profiles) {
                if profile.proxy_type != ProxyType::Sidecar {
                    continue;
                }
                let text = profile_text(&profile);
                let seen = Overlay::rows(destinations.special_views(), |view| {
                    // A service that is only the destination of a route has no name.
                    let seen = destinations.seen_from(view).filter(|_| destinations.is_named_in(view));
                    let Some((service, _)) = seen else { return BTreeMap::new() };
                    let addresses = profile.addresses(&service, dual_stack);
                    // Endpoints are looked up only if the entry has their addresses.
                    let by_endpoint = addresses.is_empty() && profile.takes_endpoints(&service);
                    let endpoints = if by_endpoint { cx.get(&endpoints, &service.key()) } else { None };
                    if addresses.is_empty() && !by_endpoint {
                        return BTreeMap::new();
                    }
                    let names = build_names(&NameInputs {
                        service: &service,
                        addresses: &addresses,
                        endpoints: endpoints.as_ref().map_or(&[][..], |endpoints| endpoints.as_slice()),
                        cluster: &profile.cluster,
                        network: &profile.network,
                    });
                    names.into_iter().map(|(name, bytes)| (name, Resource::Encoded(bytes))).collect()
                });
                rows.extend(
                    seen.into_iter()
                        .map(|(view, name, resource)| (segment(Layer { view, profile: text.clone() }, name), resource)),
                );
            }
            rows
        }
    });
    outputs.segments.extend([tables, entries]);
}

fn segment(layer: Layer, segment: Text) -> SegmentKey {
    SegmentKey { resource_type: ResourceType::NameTable, layer, name: Text::default(), segment }
}
