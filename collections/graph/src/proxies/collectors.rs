//! Services that extension providers of the mesh config and token issuers name by host.

use sluice_engine::{Context, IndexDep};
use sluice_envoy::listener_settings::Collector;
use sluice_envoy::name;
use sluice_model::{Host, ProviderService, ServiceKey};

/// Name of the collection with the services of extension providers: one record.
pub const COLLECTORS: &str = "listeners/collectors";

/// The service and cluster of a host in configuration. A host in several namespaces needs a namespace before it:
/// `namespace/host`.
pub(crate) fn find_collector(
    cx: &Context,
    by_host: IndexDep<Host, ServiceKey, ()>,
    service: &ProviderService,
) -> Option<Collector> {
    let (namespace, host) = match service.service.split_once('/') {
        Some((namespace, host)) => (Some(namespace), host),
        None => (None, service.service.as_str()),
    };
    let host = Host::new(host);
    let mut declared = cx.by(&by_host, &host);
    declared.retain(|(key, _)| namespace.is_none_or(|namespace| *key.namespace == *namespace));
    let [_] = declared.as_slice() else { return None };
    let cluster = name::outbound_cluster(service.port, "", host.as_str()).into();
    Some(Collector { host: host.0, cluster })
}
