//! Endpoints: the addresses of services (S04 to S07, S09).

mod declared;
mod exports;
mod facts;
mod large;
mod selected;
mod slices;

use std::collections::BTreeSet;

use sluice_engine::{Collection, Index};
use sluice_model::{Endpoint, Service, ServiceKey, Text};

use crate::registry::services::DeclaredKey;
use exports::ExportLookup;
use large::merge_slices;
use selected::selected_endpoints;

pub(crate) use declared::derive_declared_endpoints;
pub(crate) use facts::{FactLookup, FactsOfEndpoints, ServiceEndpoints};
pub use large::{EndpointChunkKey, EndpointGroup};
pub(crate) use large::{EndpointFacts, derive_chunks, derive_large_services};
pub(crate) use selected::{SelectedKey, SelectedWorkloads, derive_selected_workloads, workload_port};
pub(crate) use slices::{AddressKey, ServiceSlice, Slices, derive_slice_endpoints};

/// Endpoints that ServiceEntries list.
#[derive(Clone)]
pub(crate) struct DeclaredEndpoints<'s> {
    /// By declaration.
    pub(crate) endpoints: Collection<'s, DeclaredKey, Vec<Endpoint>>,
    /// By service.
    pub(crate) by_service: Index<'s, ServiceKey, DeclaredKey, Vec<Endpoint>>,
}

/// The fields of each service that change how its endpoints are kept: no other edit of a service recomputes them.
/// Key: `ServiceKey`. From: `services`. Changes when: one of these fields does. Size: services. Rejects: none.
pub(crate) fn derive_facts<'s>(
    services: &Collection<'s, ServiceKey, Service>,
) -> Collection<'s, ServiceKey, EndpointFacts> {
    services.map("endpoint_facts", |_, service| EndpointFacts::of(service))
}

/// Endpoints of every service that is not large, sorted.
/// Key: `ServiceKey`. From: `services`, `slice_endpoints`, `selected_endpoints`, `declared_endpoints`,
/// `large_services`.
/// Changes when: an address becomes ready or leaves; its labels, locality, identity or network change.
/// Size: that of `services`; the lists hold ready pods × ports. A service without endpoints has an empty list. Large
/// services are absent: their endpoints are in `endpoint_chunks`.
/// Rejects: none.
pub(crate) fn derive_endpoints<'s>(
    facts: &Collection<'s, ServiceKey, EndpointFacts>,
    large: &Collection<'s, ServiceKey, EndpointFacts>,
    slices: &Slices<'s>,
    (declared, selected): (&DeclaredEndpoints<'s>, &SelectedWorkloads<'s>),
) -> Collection<'s, ServiceKey, Vec<Endpoint>> {
    facts.derive("endpoints", |deps| {
        let (slices, selected) = (deps.by(&slices.by_service), deps.by(&selected.by_service));
        let (declared, large) = (deps.by(&declared.by_service), deps.on(large));
        move |cx, key, facts| {
            if cx.get(&large, key).is_some() {
                return None;
            }
            let (slices, declared, selected) = (cx.by(&slices, key), cx.by(&declared, key), cx.by(&selected, key));
            let mut found = merge_slices(slices.iter().flat_map(|(_, endpoints)| endpoints.iter()));
            found.extend(selected_endpoints(selected.iter().map(|((declared, _), selected)| (declared, &**selected))));
            // An endpoint that a ServiceEntry lists twice is kept twice: it gets twice the share of requests.
            found.extend(declared.iter().flat_map(|(_, endpoints)| endpoints.iter().cloned()));
            for endpoint in &mut found {
                endpoint.cluster_local |= facts.cluster_local;
            }
            found.sort();
            // The table of a small service is kept as it is.
            found.shrink_to_fit();
            Some(found)
        }
    })
}

/// SPIFFE ids of the workloads of a service, and those that it declares; services without any are omitted.
/// Key: `ServiceKey`. From: `services`, `endpoints`, `endpoint_chunks`.
/// Changes when: the set of identities does; added or removed endpoints seldom change it.
/// Size: services with workloads that have an identity. Rejects: none.
pub(crate) fn derive_identities<'s>(
    services: &Collection<'s, ServiceKey, Service>,
    endpoints: &ServiceEndpoints<'s>,
) -> Collection<'s, ServiceKey, Vec<Text>> {
    let add = |all: &mut BTreeSet<Text>, more: &BTreeSet<Text>| all.extend(more.iter().cloned());
    let accounts = endpoints.facts("service_accounts", accounts, add, Some);
    let declared = services.map("service_alt_names", |_, service| service.subject_alt_names.clone());
    declared.derive("identities", |deps| {
        let accounts = accounts.on(deps);
        move |cx, key, declared| {
            // A large service without endpoints has none.
            let accounts = accounts.get(cx, key).unwrap_or_default();
            let all: BTreeSet<Text> = declared.iter().chain(accounts.iter()).cloned().collect();
            (!all.is_empty()).then(|| all.into_iter().collect::<Vec<Text>>())
        }
    })
}

fn accounts(endpoints: &[Endpoint]) -> BTreeSet<Text> {
    let accounts = endpoints.iter().map(|endpoint| &endpoint.service_account).filter(|account| !account.is_empty());
    accounts.cloned().collect()
}
