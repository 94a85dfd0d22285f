//! Services that providers of the mesh config, and issuers of tokens, name by host.

use sluice_engine::{Context, IndexDep};
use sluice_envoy::listener::Collector;
use sluice_envoy::name;
use sluice_model::{Host, ProviderService, ServiceKey};

/// Where a service that configuration names is found; a host of several namespaces is none until it is said whose.
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
