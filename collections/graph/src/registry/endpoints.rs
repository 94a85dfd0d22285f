//! Endpoints: the addresses of services (S04 to S07, S09).

mod declared;
mod slices;

use std::collections::BTreeSet;

use sluice_engine::{Collection, Index};
use sluice_model::{Endpoint, Service, ServiceKey, Text};

use crate::registry::services::DeclaredKey;

pub(crate) use declared::{derive_declared_endpoints, workload_port};
pub(crate) use slices::{AddressKey, ServiceSlice, Slices, derive_slice_endpoints};

/// Endpoints of ServiceEntries, and of WorkloadEntries that Services select.
#[derive(Clone)]
pub(crate) struct DeclaredEndpoints<'s> {
    /// By declaration.
    pub(crate) endpoints: Collection<'s, DeclaredKey, Vec<Endpoint>>,
    /// By service.
    pub(crate) by_service: Index<'s, ServiceKey, DeclaredKey, Vec<Endpoint>>,
}

/// Endpoints of every service, sorted.
/// Key: `ServiceKey`. From: `services`, `slice_endpoints`, `declared_endpoints`.
/// Changes when: an address becomes ready or leaves; its labels, locality, identity or network change.
/// Size: that of `services`; the lists hold ready pods × ports. A service without endpoints has an empty list.
/// Rejects: none.
pub(crate) fn derive_endpoints<'s>(
    services: &Collection<'s, ServiceKey, Service>,
    slices: &Slices<'s>,
    declared: &DeclaredEndpoints<'s>,
) -> Collection<'s, ServiceKey, Vec<Endpoint>> {
    // Only the fields of a service that change its endpoints, so that no other edit of a service recomputes them.
    let locality = services.map("service_cluster_local", |_, service| service.cluster_local);
    locality.derive("endpoints", |deps| {
        let (slices, declared) = (deps.by(&slices.by_service), deps.by(&declared.by_service));
        move |cx, key, cluster_local| {
            let (slices, declared) = (cx.by(&slices, key), cx.by(&declared, key));
            let count = slices.iter().map(|(_, it)| it.len()).chain(declared.iter().map(|(_, it)| it.len())).sum();
            let mut found: Vec<Endpoint> = Vec::with_capacity(count);
            // An address may be in several slices while it moves from one to another.
            let mut known = BTreeSet::new();
            for endpoint in slices.iter().flat_map(|(_, endpoints)| endpoints.iter()) {
                let Endpoint { cluster, addresses, port_name, port, .. } = endpoint;
                if known.insert((addresses.first(), cluster, port_name, port)) {
                    found.push(Endpoint { cluster_local: *cluster_local, ..endpoint.clone() });
                }
            }
            // An endpoint that a ServiceEntry lists twice is kept twice: it gets twice the share of requests.
            for (_, endpoints) in declared {
                found.extend(endpoints.iter().map(|it| Endpoint { cluster_local: *cluster_local, ..it.clone() }));
            }
            found.sort();
            Some(found)
        }
    })
}

/// SPIFFE ids of the workloads of a service, and those that it declares; services without any are omitted.
/// Key: `ServiceKey`. From: `services`, `endpoints`.
/// Changes when: the set of identities does; added or removed endpoints seldom change it.
/// Size: services with workloads that have an identity. Rejects: none.
pub(crate) fn derive_identities<'s>(
    services: &Collection<'s, ServiceKey, Service>,
    endpoints: &Collection<'s, ServiceKey, Vec<Endpoint>>,
) -> Collection<'s, ServiceKey, Vec<Text>> {
    let accounts = endpoints.map("service_accounts", |_, endpoints| {
        let accounts = endpoints.iter().map(|endpoint| &endpoint.service_account).filter(|account| !account.is_empty());
        accounts.cloned().collect::<BTreeSet<Text>>()
    });
    let declared = services.map("service_alt_names", |_, service| service.subject_alt_names.clone());
    declared.join("identities", &accounts, |_, declared, accounts| {
        let all: BTreeSet<Text> = declared.iter().chain(accounts).cloned().collect();
        (!all.is_empty()).then(|| all.into_iter().collect::<Vec<Text>>())
    })
}
