//! Services with so many endpoints that a change of one must not read all of them (S07).
//!
//! Their endpoints are in chunks of neighbouring addresses. The endpoints of other services are one list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Deps, Index, IndexDep};
use sluice_model::{Endpoint, Host, ObjectKey, Resolution, Service, ServiceKey, Text};

use super::DeclaredEndpoints;
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::{DeclaredKey, imported_host, service_host};

/// A service with more endpoints is large: addresses × ports.
const MAX_LISTED_ENDPOINTS: usize = 256;
/// Slices with fewer endpoints do not count, so that small services need no memory for this.
const MIN_COUNTED_ENDPOINTS: usize = 16;
/// Number of addresses in a chunk, on average.
const ADDRESSES_PER_CHUNK: u64 = 64;

/// The fields of a service that change how its endpoints are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct EndpointFacts {
    /// Only proxies of its own cluster may use an endpoint.
    pub(crate) cluster_local: bool,
    /// Only proxies of its own node may use an endpoint.
    pub(crate) node_local: bool,
    /// The addresses of its endpoints are in no other resource than endpoint assignments.
    pub(crate) balanced: bool,
}

impl EndpointFacts {
    /// The facts of a service.
    pub(crate) fn of(service: &Service) -> Self {
        Self {
            cluster_local: service.cluster_local,
            node_local: service.node_local,
            balanced: service.resolution == Resolution::ClientSideLb,
        }
    }
}

/// The endpoints of a large service; of a service with node-local traffic, those on one node.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct EndpointGroup {
    /// The service.
    pub service: ServiceKey,
    /// The node.
    pub node: Option<Text>,
}

/// Key of a chunk of endpoints: its group, and the address it starts with, except for the first.
pub type EndpointChunkKey = (EndpointGroup, Option<Text>);

/// The hosts at which the endpoints of a slice are reached.
#[derive(Clone)]
pub(super) struct SliceHosts {
    domain: Text,
    has_imports: bool,
}

impl SliceHosts {
    pub(super) fn new(options: &GraphOptions) -> Self {
        let has_imports = options.multi_cluster.is_some_and(|multi_cluster| multi_cluster.imported_hosts);
        Self { domain: options.domain.clone(), has_imports }
    }

    /// The Service of a slice, and its import.
    pub(super) fn services(&self, service: &str, namespace: &Text) -> impl Iterator<Item = ServiceKey> + use<> {
        let own = service_host(service, namespace, &self.domain);
        let imported = self.has_imports.then(|| imported_host(service, namespace));
        let namespace = namespace.clone();
        [Some(own), imported].into_iter().flatten().map(move |host| ServiceKey { namespace: namespace.clone(), host })
    }
}

/// The endpoints that a slice has at an address.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct AddressInSlice {
    group: EndpointGroup,
    address: Text,
    slice: ObjectKey,
}

/// Large services.
/// Key: `ServiceKey`. From: `services`, `endpoint_slices`, `declared_endpoints`.
/// Changes when: the number of addresses in slices exceeds a limit or no longer does, or a service with node-local
/// traffic is added or removed. A service is not large if objects other than slices declare endpoints of it; with endpoints
/// by locality, neither if its host has other services.
/// Size: such services. Rejects: none.
pub(crate) fn derive_large_services<'s>(
    objects: &ObjectCollections<'s>,
    services: &Collection<'s, ServiceKey, EndpointFacts>,
    services_by_host: &Index<'s, Host, ServiceKey, ()>,
    declared: &DeclaredEndpoints<'s>,
    options: &GraphOptions,
) -> Collection<'s, ServiceKey, EndpointFacts> {
    let (hosts, by_locality) = (SliceHosts::new(options), options.endpoints_by_locality);
    let sizes = objects.endpoint_slices.index("large_services/sizes", move |key, slice| {
        let addresses: usize = slice.endpoints.iter().map(|endpoint| endpoint.addresses.len()).sum();
        let size = addresses * slice.ports.len();
        let counts = size >= MIN_COUNTED_ENDPOINTS && !slice.service.is_empty();
        let services = counts.then(|| hosts.services(&slice.service, &key.namespace)).into_iter().flatten();
        services.map(|service| (service, size)).collect::<Vec<_>>()
    });
    let counted = sizes.distinct("large_services/counted").derive("large_services/counted-large", |deps| {
        let (sizes, facts) = (deps.by(&sizes), deps.on(services));
        let rule = LargeServiceRule::on(deps, declared, services_by_host, by_locality);
        move |cx, key, ()| {
            let facts = cx.get(&facts, key).filter(|facts| !facts.node_local)?;
            let size: usize = cx.by(&sizes, key).iter().map(|(_, size)| **size).sum();
            let large = size > MAX_LISTED_ENDPOINTS && rule.can_be_large(cx, key, &facts);
            large.then_some(*facts)
        }
    });
    let node_local = services.filter("large_services/node-local", |_, facts| facts.node_local);
    let node_local = node_local.derive("large_services/node-local-large", |deps| {
        let rule = LargeServiceRule::on(deps, declared, services_by_host, by_locality);
        move |cx, key, facts| rule.can_be_large(cx, key, facts).then_some(*facts)
    });
    counted.union("large_services", &[&node_local])
}

/// Looks up which services can be large, inside a `derive`.
struct LargeServiceRule {
    declared: IndexDep<ServiceKey, DeclaredKey, Vec<Endpoint>>,
    /// The services of each host, if large services must be the only ones: endpoints by locality are resources of their own, whose
    /// names do not tell the services of a host apart.
    by_host: Option<IndexDep<Host, ServiceKey, ()>>,
}

impl LargeServiceRule {
    fn on<'s>(
        deps: &mut Deps<'s>,
        declared: &DeclaredEndpoints<'s>,
        services_by_host: &Index<'s, Host, ServiceKey, ()>,
        by_locality: bool,
    ) -> Self {
        Self { declared: deps.by(&declared.by_service), by_host: by_locality.then(|| deps.by(services_by_host)) }
    }

    /// Whether all endpoints of a service are in slices, and in no other resource than endpoint assignments.
    fn can_be_large(&self, cx: &Context, key: &ServiceKey, facts: &EndpointFacts) -> bool {
        let is_alone = |by_host| cx.by(by_host, &key.host).len() == 1;
        facts.balanced && cx.by(&self.declared, key).is_empty() && self.by_host.as_ref().is_none_or(is_alone)
    }
}

/// The endpoints of slices of large services, in chunks.
/// Key: `EndpointChunkKey`. From: `slice_endpoints`, `large_services`.
/// Changes when: an address of the chunk becomes ready or leaves; its labels, locality, identity or network change. A
/// chunk is split or merged when the address it starts with is added or removed.
/// Size: addresses of large services / 64. Rejects: none.
pub(crate) fn derive_chunks<'s, S: sluice_engine::Value>(
    slices: &Collection<'s, ObjectKey, S>,
    large: impl Fn(&S) -> (&BTreeMap<ServiceKey, EndpointFacts>, &Arc<[Endpoint]>) + 'static,
) -> Collection<'s, EndpointChunkKey, Arc<[Endpoint]>> {
    let by_address = slices.flat_map("large_endpoints", move |key, slice| {
        let mut found: BTreeMap<AddressInSlice, Vec<Endpoint>> = BTreeMap::new();
        let (services, endpoints) = large(slice);
        for (service, facts) in services {
            for endpoint in endpoints.iter() {
                let node = facts.node_local.then(|| endpoint.node.clone());
                let key = AddressInSlice {
                    group: EndpointGroup { service: service.clone(), node },
                    address: first_address(endpoint).clone(),
                    slice: key.clone(),
                };
                let cluster_local = endpoint.cluster_local || facts.cluster_local;
                let endpoint = Endpoint { cluster_local, ..endpoint.clone() };
                found.entry(key).or_default().push(endpoint);
            }
        }
        found
    });
    by_address.group_chunks(
        "endpoint_chunks",
        |key| (key.group.clone(), key.address.clone()),
        |address| rapidhash::v3::rapidhash_v3(address.as_bytes()).is_multiple_of(ADDRESSES_PER_CHUNK),
        |_, records| Some(merge_slices(records.iter().flat_map(|(_, endpoints)| endpoints.iter())).into()),
    )
}

/// The endpoints of several slices in order, sorted. An address may be in several slices while it moves from one to
/// another: the first counts.
pub(crate) fn merge_slices<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Vec<Endpoint> {
    let mut known = BTreeSet::new();
    let mut found = Vec::with_capacity(endpoints.size_hint().0);
    for endpoint in endpoints {
        let Endpoint { cluster, addresses, port_name, port, .. } = endpoint;
        if known.insert((addresses.first(), cluster, port_name, port)) {
            found.push(endpoint.clone());
        }
    }
    found.sort();
    // The table of a small service is kept as it is.
    found.shrink_to_fit();
    found
}

/// The first address of an endpoint, which its place in the order begins with.
fn first_address(endpoint: &Endpoint) -> &Text {
    static NONE: std::sync::LazyLock<Text> = std::sync::LazyLock::new(Text::default);
    endpoint.addresses.first().unwrap_or(&NONE)
}
