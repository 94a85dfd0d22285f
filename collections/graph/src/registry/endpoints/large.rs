//! Services with so many endpoints that a change of one must not read all of them (S07).
//!
//! Their endpoints are in chunks of neighbouring addresses. The endpoints of other services are one list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Deps, Index, IndexDep};
use sluice_model::{Endpoint, Host, ObjectKey, Resolution, Service, ServiceKey, Text};

use super::DeclaredEndpoints;
use super::selected::{SelectedKey, SelectedWorkloads};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::{DeclaredKey, imported_host, service_host};
use crate::registry::workloads::WorkloadInstanceKey;

/// A service with more endpoints is large: addresses × ports.
const MAX_LISTED_ENDPOINTS: usize = 256;
/// Slices, and chunks of selected workloads, with fewer endpoints do not count, so that small services need no memory for this.
const MIN_COUNTED_ENDPOINTS: usize = 16;
/// Number of addresses in a chunk, on average; also of selected workloads that are counted together.
const NAMES_PER_CHUNK: u64 = 64;

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

/// Where the endpoints of a large service come from.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) enum EndpointSource {
    /// A slice.
    Slice(ObjectKey),
    /// A workload that a declaration of the service selects.
    Selected(SelectedKey),
}

/// The endpoints that a large service has at an address from one source.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct LargeEndpointKey {
    group: EndpointGroup,
    address: Text,
    source: EndpointSource,
}

/// Large services.
/// Key: `ServiceKey`. From: `services`, `endpoint_slices`, `selected_endpoints`, `declared_endpoints`.
/// Changes when: the number of addresses in slices and of selected workloads exceeds a limit or no longer does, or a service
/// with node-local traffic is added or removed. A service is not large if a ServiceEntry lists endpoints of it; with
/// endpoints by locality, neither if its host has other services.
/// Size: such services. Rejects: none.
pub(crate) fn derive_large_services<'s>(
    objects: &ObjectCollections<'s>,
    services: &Collection<'s, ServiceKey, EndpointFacts>,
    services_by_host: &Index<'s, Host, ServiceKey, ()>,
    (declared, selected): (&DeclaredEndpoints<'s>, &SelectedWorkloads<'s>),
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
    let selected_sizes = index_selected_sizes(selected);
    let counted = sizes.distinct("large_services/counted");
    let counted = counted.union("large_services/all-counted", &[selected_sizes.distinct("large_services/selected")]);
    let counted = counted.derive("large_services/counted-large", |deps| {
        let (sizes, selected, facts) = (deps.by(&sizes), deps.by(&selected_sizes), deps.on(services));
        let rule = LargeServiceRule::on(deps, declared, services_by_host, by_locality);
        move |cx, key, ()| {
            let facts = cx.get(&facts, key).filter(|facts| !facts.node_local)?;
            let in_slices: usize = cx.by(&sizes, key).iter().map(|(_, size)| **size).sum();
            let size = in_slices + cx.by(&selected, key).iter().map(|(_, size)| **size).sum::<usize>();
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

/// The numbers of endpoints of selected workloads, by service and chunk of workloads: a change of a workload counts those of
/// its chunk.
fn index_selected_sizes<'s>(
    selected: &SelectedWorkloads<'s>,
) -> Index<'s, ServiceKey, (ServiceKey, Option<WorkloadInstanceKey>), usize> {
    let sizes = selected.endpoints.group_chunks(
        "selected_endpoints/sizes",
        |(declared, instance)| (declared.service(), instance.clone()),
        |instance| starts_chunk(&instance.object.name),
        |_, records| {
            let size = records.iter().map(|(_, selected)| selected.len()).sum::<usize>();
            Some(size).filter(|size| *size >= MIN_COUNTED_ENDPOINTS)
        },
    );
    sizes.index("selected_endpoints/sizes-by-service", |(service, _), size| [(service.clone(), *size)])
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

    /// Whether no ServiceEntry lists endpoints of a service, and they are in no other resource than endpoint assignments.
    fn can_be_large(&self, cx: &Context, key: &ServiceKey, facts: &EndpointFacts) -> bool {
        let is_alone = |by_host| cx.by(by_host, &key.host).len() == 1;
        facts.balanced && cx.by(&self.declared, key).is_empty() && self.by_host.as_ref().is_none_or(is_alone)
    }
}

/// The endpoints of slices of large services, by address.
/// Key: `LargeEndpointKey`. From: `slice_endpoints`, `large_services`.
/// Changes when: as `slice_endpoints`. Size: addresses of large services in slices. Rejects: none.
pub(super) fn derive_large_endpoints_of_slices<'s, S: sluice_engine::Value>(
    slices: &Collection<'s, ObjectKey, S>,
    large: impl Fn(&S) -> (&BTreeMap<ServiceKey, EndpointFacts>, &Arc<[Endpoint]>) + 'static,
) -> Collection<'s, LargeEndpointKey, Vec<Endpoint>> {
    slices.flat_map("large_endpoints/of-slices", move |key, slice| {
        let mut found: BTreeMap<LargeEndpointKey, Vec<Endpoint>> = BTreeMap::new();
        let (services, endpoints) = large(slice);
        for (service, facts) in services {
            add_large(service, *facts, EndpointSource::Slice(key.clone()), endpoints.iter(), &mut found);
        }
        found
    })
}

/// The endpoints of selected workloads of large services, by address.
/// Key: `LargeEndpointKey`. From: `selected_endpoints`, `large_services`.
/// Changes when: as `selected_endpoints`. Size: addresses of large services at selected workloads. Rejects: none.
fn derive_large_endpoints_of_selected<'s>(
    selected: &SelectedWorkloads<'s>,
    large: &Collection<'s, ServiceKey, EndpointFacts>,
) -> Collection<'s, LargeEndpointKey, Vec<Endpoint>> {
    selected.endpoints.derive_many("large_endpoints/of-selected", |deps| {
        let large = deps.on(large);
        move |cx, key, selected| {
            let service = key.0.service();
            let Some(facts) = cx.get(&large, &service) else { return Vec::new() };
            let mut found = BTreeMap::new();
            add_large(&service, *facts, EndpointSource::Selected(key.clone()), selected.repeated(), &mut found);
            found.into_iter().collect()
        }
    })
}

/// Adds the endpoints of a source to those of a large service.
fn add_large<'a>(
    service: &ServiceKey,
    facts: EndpointFacts,
    source: EndpointSource,
    endpoints: impl Iterator<Item = &'a Endpoint>,
    found: &mut BTreeMap<LargeEndpointKey, Vec<Endpoint>>,
) {
    for endpoint in endpoints {
        let node = facts.node_local.then(|| endpoint.node.clone());
        let key = LargeEndpointKey {
            group: EndpointGroup { service: service.clone(), node },
            address: first_address(endpoint).clone(),
            source: source.clone(),
        };
        let cluster_local = endpoint.cluster_local || facts.cluster_local;
        found.entry(key).or_default().push(Endpoint { cluster_local, ..endpoint.clone() });
    }
}

/// The endpoints of large services, in chunks.
/// Key: `EndpointChunkKey`. From: `slice_endpoints`, `selected_endpoints`, `large_services`.
/// Changes when: an address of the chunk becomes ready or leaves; its labels, locality, identity or network change. A
/// chunk is split or merged when the address it starts with is added or removed.
/// Size: addresses of large services / 64. Rejects: none.
pub(crate) fn derive_chunks<'s>(
    of_slices: &Collection<'s, LargeEndpointKey, Vec<Endpoint>>,
    selected: &SelectedWorkloads<'s>,
    large: &Collection<'s, ServiceKey, EndpointFacts>,
) -> Collection<'s, EndpointChunkKey, Arc<[Endpoint]>> {
    let of_selected = derive_large_endpoints_of_selected(selected, large);
    of_slices.union_disjoint("large_endpoints", &[of_selected]).group_chunks(
        "endpoint_chunks",
        |key| (key.group.clone(), key.address.clone()),
        |address| starts_chunk(address),
        |_, records| {
            let of = |is_slice: bool| {
                let own =
                    records.iter().filter(move |(key, _)| matches!(key.source, EndpointSource::Slice(_)) == is_slice);
                own.flat_map(|(_, endpoints)| endpoints.iter())
            };
            let mut found = merge_slices(of(true));
            found.extend(of(false).cloned());
            found.sort();
            Some(found.into())
        },
    )
}

/// Whether a chunk starts at this name, as one of 64 does.
fn starts_chunk(name: &str) -> bool {
    rapidhash::v3::rapidhash_v3(name.as_bytes()).is_multiple_of(NAMES_PER_CHUNK)
}

/// The endpoints of several slices. An address may be in several slices while it moves from one to another: the first counts.
pub(super) fn merge_slices<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Vec<Endpoint> {
    let mut known = BTreeSet::new();
    let mut found = Vec::with_capacity(endpoints.size_hint().0);
    for endpoint in endpoints {
        let Endpoint { cluster, addresses, port_name, port, .. } = endpoint;
        if known.insert((addresses.first(), cluster, port_name, port)) {
            found.push(endpoint.clone());
        }
    }
    found
}

/// The first address of an endpoint, which its place in the order begins with.
fn first_address(endpoint: &Endpoint) -> &Text {
    static NONE: std::sync::LazyLock<Text> = std::sync::LazyLock::new(Text::default);
    endpoint.addresses.first().unwrap_or(&NONE)
}
