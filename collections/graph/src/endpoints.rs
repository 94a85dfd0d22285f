//! Endpoints: the addresses behind services (S04 to S07, S09).

mod declared;
mod slices;

use std::collections::BTreeSet;

use sluice_engine::{Collection, Index};
use sluice_model::{Endpoint, Service, ServiceKey, Text};

use crate::services::DeclaredKey;

pub(crate) use declared::{derive_declared_endpoints, workload_port};
pub(crate) use slices::{AddressKey, ServiceSlice, Slices, derive_slice_endpoints};

/// Endpoints of ServiceEntries, and of WorkloadEntries that Services select.
#[derive(Clone)]
pub(crate) struct Declared<'s> {
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
    declared: &Declared<'s>,
) -> Collection<'s, ServiceKey, Vec<Endpoint>> {
    // Only what of a service changes its endpoints, so that no other edit of a service touches them.
    let locality = services.map("service_cluster_local", |_, service| service.cluster_local);
    locality.derive("endpoints", |deps| {
        let (slices, declared) = (deps.by(&slices.by_service), deps.by(&declared.by_service));
        move |cx, key, cluster_local| {
            let mut found: Vec<Endpoint> = Vec::new();
            // An address may be in several slices while it moves from one to another.
            let mut known: BTreeSet<(Text, Text, Text)> = BTreeSet::new();
            for (_, endpoints) in cx.by(&slices, key) {
                for endpoint in endpoints.iter() {
                    let address = endpoint.addresses.first().cloned().unwrap_or_default();
                    if known.insert((endpoint.cluster.clone(), address, port_id(endpoint))) {
                        found.push(Endpoint { cluster_local: *cluster_local, ..endpoint.clone() });
                    }
                }
            }
            // What is listed twice is meant twice: it gets twice the share.
            for (_, endpoints) in cx.by(&declared, key) {
                found.extend(endpoints.iter().map(|it| Endpoint { cluster_local: *cluster_local, ..it.clone() }));
            }
            found.sort();
            Some(found)
        }
    })
}

/// Two endpoints at one address are different if they back different ports, or listen on different ones.
fn port_id(endpoint: &Endpoint) -> Text {
    format!("{}/{}", endpoint.port_name, endpoint.port).into()
}

/// SPIFFE ids of the workloads behind a service, with those it declares; services without any are left out.
/// Key: `ServiceKey`. From: `services`, `endpoints`.
/// Changes when: the set of identities does, which endpoints coming and going seldom do.
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
