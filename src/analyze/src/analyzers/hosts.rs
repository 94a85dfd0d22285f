//! Hosts of Services and ServiceEntries, by the namespaces that see them.

use std::collections::HashMap;

use sluice_model::Host;

use crate::resource::{SERVICE, SERVICE_ENTRY};
use crate::value::{items, map, number, texts};
use crate::{AnalyzedObject, MeshObjects};

const ALL: &str = "*";
const DOMAIN: &str = ".svc.cluster.local";

/// The full name of a host: a short name is a Service of the namespace.
pub(crate) fn full_host(namespace: &str, host: &str) -> String {
    if host.starts_with('*') || host.contains('.') { host.to_owned() } else { format!("{host}.{namespace}{DOMAIN}") }
}

/// Namespace and name of the Service that a host names. Other hosts are names of their own in the namespace.
pub(crate) fn short_name<'h>(namespace: &'h str, host: &'h str) -> (&'h str, &'h str) {
    let service = host.strip_suffix(DOMAIN).and_then(|host| host.rsplit_once('.'));
    service.map_or((namespace, host), |(name, namespace)| (namespace, name))
}

/// The namespaces of an `exportTo`; `.` is the own one, and `*` alone is all of them.
pub(crate) fn scopes<'s>(export_to: &[&'s str], namespace: &'s str) -> Vec<&'s str> {
    if export_to.is_empty() || export_to.contains(&ALL) {
        return vec![ALL];
    }
    let mut scopes: Vec<_> = export_to.iter().map(|scope| if *scope == "." { namespace } else { *scope }).collect();
    scopes.sort_unstable();
    scopes.dedup();
    scopes
}

/// Whether some host matches both, each of which may be a wildcard.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    Host::new(one).overlaps(&Host::new(other))
}

/// A Service or a ServiceEntry that has a host.
#[derive(Clone, Copy)]
pub(crate) struct HostOwner<'m>(&'m AnalyzedObject);

impl<'m> HostOwner<'m> {
    pub(crate) fn ports(self) -> Vec<i64> {
        let field = if self.0.kind() == SERVICE { "port" } else { "number" };
        items(self.0.spec(), "ports").iter().filter_map(|port| number(port, field)).collect()
    }

    /// The selector of a ServiceEntry. That of a Service is not part of subsets.
    pub(crate) fn workload_selector(self) -> crate::selector::Labels<'m> {
        if self.0.kind() == SERVICE { Default::default() } else { map(self.0.spec(), "workloadSelector.labels") }
    }
}

/// Hosts by the namespace that sees them and the full name.
pub(crate) struct Hosts<'m> {
    by_scope: HashMap<(&'m str, String), HostOwner<'m>>,
    /// Scope, suffix after the star, and the owner.
    wildcards: Vec<(&'m str, &'m str, HostOwner<'m>)>,
}

impl<'m> Hosts<'m> {
    pub(crate) fn new(mesh: &'m MeshObjects<'m>) -> Self {
        let mut hosts = Self { by_scope: HashMap::new(), wildcards: Vec::new() };
        for entry in mesh.all(SERVICE_ENTRY) {
            for scope in scopes(&texts(entry.spec(), "exportTo"), entry.namespace()) {
                for host in texts(entry.spec(), "hosts") {
                    hosts.add(scope, host, entry);
                }
            }
        }
        for service in mesh.all(SERVICE) {
            let export_to = service.annotation("networking.istio.io/exportTo").unwrap_or_default();
            let export_to: Vec<&str> = export_to.split(',').map(str::trim).filter(|scope| !scope.is_empty()).collect();
            for scope in scopes(&export_to, service.namespace()) {
                hosts.add(scope, service.name(), service);
            }
        }
        hosts
    }

    fn add(&mut self, scope: &'m str, host: &'m str, owner: &'m AnalyzedObject) {
        self.by_scope.insert((scope, full_host(owner.namespace(), host)), HostOwner(owner));
        if let Some(suffix) = host.strip_prefix('*') {
            self.wildcards.push((scope, suffix, HostOwner(owner)));
        }
    }

    /// What a host in an object of a namespace refers to.
    pub(crate) fn find(&self, namespace: &str, export_to: &[&str], host: &str) -> Option<HostOwner<'m>> {
        let full = full_host(namespace, host);
        let own = if export_to.is_empty() { vec![namespace] } else { scopes(export_to, namespace) };
        let by_scope: &HashMap<(&str, String), HostOwner<'m>> = &self.by_scope;
        let exact = std::iter::once(ALL).chain(own).find_map(|scope| by_scope.get(&(scope, full.clone())).copied());
        exact.or_else(|| {
            let host = host.trim_start_matches('*');
            let visible = |scope: &str| scope == ALL || scope == namespace;
            let found = self.wildcards.iter().find(|(scope, suffix, _)| visible(scope) && host.ends_with(suffix));
            found.map(|(.., owner)| *owner)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_overlap_through_wildcards() {
        assert!(overlap("*.example.com", "a.example.com"));
        assert!(overlap("a.example.com", "*.example.com"));
        assert!(overlap("*", "*.example.com"));
        assert!(!overlap("*.example.com", "example.com"));
        assert!(!overlap("*.a.com", "*.b.com"));
    }

    #[test]
    fn host_of_a_service_names_namespace_and_name() {
        assert_eq!(short_name("shop", "web"), ("shop", "web"));
        assert_eq!(short_name("shop", "web.other.svc.cluster.local"), ("other", "web"));
        assert_eq!(short_name("shop", "web.other"), ("shop", "web.other"));
    }
}
