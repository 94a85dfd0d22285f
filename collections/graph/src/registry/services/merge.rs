//! Merges the declarations of one service (S23).

use sluice_model::{Service, ServiceSource};

use super::DeclaredKey;

/// The service that the declarations of one namespace and host make.
///
/// Kubernetes Services have precedence over ServiceEntries, and the config cluster has precedence over other clusters.
/// Of several ServiceEntries the oldest counts. Addresses and identities of other clusters are added. Another
/// ServiceEntry adds its ports and addresses if all its other fields are equal.
pub(super) fn merge(config_cluster: &str, rows: &[(&DeclaredKey, &Service)]) -> Option<Service> {
    let mut rows: Vec<_> = rows.to_vec();
    rows.sort_by_key(|(key, service)| {
        let kubernetes = service.source == ServiceSource::Kubernetes;
        let remote = *key.object.cluster != *config_cluster;
        (!kubernetes, kubernetes && remote, if kubernetes { 0 } else { service.created }, &key.object)
    });
    let mut rows = rows.into_iter().map(|(_, service)| service);
    let mut merged = rows.next()?.clone();
    for other in rows {
        match (merged.source, other.source) {
            (ServiceSource::Kubernetes, ServiceSource::Kubernetes) => add_cluster(&mut merged, other),
            (ServiceSource::ServiceEntry, ServiceSource::ServiceEntry) if are_mergeable(&merged, other) => {
                add_entry(&mut merged, other);
            }
            (ServiceSource::Kubernetes, ServiceSource::ServiceEntry) => set_covering_entry(&mut merged, other),
            _ => {}
        }
    }
    Some(merged)
}

fn add_cluster(merged: &mut Service, other: &Service) {
    for (into, from) in
        [(&mut merged.addresses, &other.addresses), (&mut merged.external_addresses, &other.external_addresses)]
    {
        let new: Vec<_> = from.iter().filter(|(cluster, _)| !into.contains_key(cluster)).collect();
        into.extend(new.into_iter().map(|(cluster, addresses)| (cluster.clone(), addresses.clone())));
    }
    merged.subject_alt_names.extend(other.subject_alt_names.iter().cloned());
    merged.subject_alt_names.sort();
    merged.subject_alt_names.dedup();
}

/// Sets the ServiceEntry that replaces the Service in routes: these are built from the youngest declaration.
fn set_covering_entry(merged: &mut Service, other: &Service) {
    let age = |service: &Service| (service.created, service.name.clone());
    let youngest = merged.covered_by.as_deref().map_or_else(|| age(merged), age);
    if age(other) > youngest {
        merged.covered_by = Some(Box::new(other.clone()));
    }
}

/// Whether two services of one host are merged: their resolution, labels, selector and visibility are equal.
fn are_mergeable(a: &Service, b: &Service) -> bool {
    a.resolution == b.resolution && a.labels == b.labels && a.selector == b.selector && a.export_to == b.export_to
}

fn add_entry(merged: &mut Service, other: &Service) {
    for port in &other.ports {
        if merged.port(port.port).is_none() {
            merged.ports.push(port.clone());
        }
    }
    for (cluster, addresses) in &other.addresses {
        let mut all = merged.addresses.get(cluster).cloned().unwrap_or_default();
        let known = all.len();
        all.extend(addresses.iter().filter(|address| !all.contains(address)).cloned().collect::<Vec<_>>());
        if all.len() > known {
            merged.addresses.insert(cluster.clone(), all);
        }
    }
}
