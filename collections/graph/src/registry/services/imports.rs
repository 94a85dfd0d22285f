//! Hosts of ServiceImports: Services that clients reach in all clusters that export them (S22).

use sluice_engine::Collection;
use sluice_model::{CLUSTER_SET_DOMAIN, Host, Kind, ObjectKey, Service, ServiceImport, ServiceKey, Text};

use super::kubernetes::service_host;
use super::{DeclaredKey, by_service, merge};
use crate::options::GraphOptions;

/// The host of the import of a Kubernetes Service.
pub(crate) fn imported_host(name: &str, namespace: &str) -> Host {
    service_host(name, namespace, CLUSTER_SET_DOMAIN)
}

/// An import is the Service of its name, of any cluster, with another host and the addresses of the import. It declares
/// nothing without addresses, or without such a Service.
pub(super) fn derive<'s>(
    imports: &Collection<'s, ObjectKey, ServiceImport>,
    services: &Collection<'s, DeclaredKey, Service>,
    options: &GraphOptions,
) -> Collection<'s, DeclaredKey, Service> {
    let has_hosts = options.multi_cluster.is_some_and(|multi_cluster| multi_cluster.imported_hosts);
    let imports = imports.filter("service_imports/used", move |_, import| has_hosts && !import.ips.is_empty());
    let services = by_service("services/imported", services);
    let (domain, cluster) = (options.domain.clone(), options.cluster.clone());
    imports.derive_many("declared_services/imports", |deps| {
        let services = deps.by(&services);
        move |cx, key, import| {
            let of =
                ServiceKey { namespace: key.namespace.clone(), host: service_host(&key.name, &key.namespace, &domain) };
            let rows = cx.by(&services, &of);
            let rows: Vec<_> = rows.iter().map(|(key, service)| (key, service.as_ref())).collect();
            let service = merge::merge(&cluster, &rows).map(|service| declare(service, key, &import.ips));
            let service = service.into_iter();
            service
                .map(|service| {
                    let host = service.host.clone();
                    (DeclaredKey { kind: Kind::ServiceImport, object: key.clone(), host }, service)
                })
                .collect::<Vec<_>>()
        }
    })
}

fn declare(service: Service, key: &ObjectKey, ips: &[Text]) -> Service {
    Service {
        host: imported_host(&key.name, &key.namespace),
        cluster: key.cluster.clone(),
        addresses: [(key.cluster.clone(), ips.to_vec())].into(),
        // Settings of the mesh and of the host in the domain of the cluster do not apply.
        cluster_local: false,
        ..service
    }
}
