//! The name table of the control plane, and the shorter names of its hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use prost::{DecodeError, Message as _};
use serde_json::Value;
use sluice_proto::istio::networking::nds::v1::NameTable;
use sluice_proto::istio::networking::nds::v1::name_table::NameInfo;
use tracing::info;

/// The latest name table. Names are in lower case and without trailing dot. Clones share the table.
#[derive(Clone)]
pub(crate) struct NameTableStore(Arc<Inner>);

struct Inner {
    namespace: String,
    /// The proxy's domain without its namespace, such as `svc.cluster.local`.
    domain: String,
    search: Option<String>,
    hosts: RwLock<Option<Arc<HostTable>>>,
}

/// One name table.
struct HostTable {
    hosts: BTreeMap<String, Vec<IpAddr>>,
    table: NameTable,
}

/// The result of a lookup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum HostLookup {
    /// No name table has arrived yet.
    NoTable,
    /// The name is not in the table.
    Unknown,
    /// The addresses, and the name in the table if it differs.
    Resolved { alias_of: Option<String>, addresses: Vec<IpAddr> },
}

impl NameTableStore {
    /// `search` is the first search domain, which clients append to short names.
    pub(crate) fn new(namespace: &str, domain: &str, search: Option<&str>) -> Self {
        let domain = domain.trim_end_matches('.');
        let domain = domain.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('.')).unwrap_or(domain);
        Self(Arc::new(Inner {
            namespace: namespace.to_owned(),
            domain: domain.to_ascii_lowercase(),
            search: search.map(|search| search.trim_end_matches('.').to_ascii_lowercase()),
            hosts: RwLock::default(),
        }))
    }

    /// Replaces the table by an encoded `NameTable`.
    ///
    /// # Errors
    /// The message is malformed.
    pub(crate) fn update(&self, message: &[u8]) -> Result<(), DecodeError> {
        let table = NameTable::decode(message)?;
        let mut hosts = BTreeMap::new();
        for (host, info) in &table.table {
            let addresses: Vec<IpAddr> = info.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
            if addresses.is_empty() {
                continue;
            }
            for name in self.names_of(host, info) {
                hosts.insert(name.to_ascii_lowercase(), addresses.clone());
            }
        }
        info!(target: "dns", hosts = hosts.len(), "name table updated");
        *self.0.hosts.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(HostTable { hosts, table }));
        Ok(())
    }

    /// The names of a host: a service of this cluster has shorter names too.
    fn names_of(&self, host: &str, info: &NameInfo) -> Vec<String> {
        let Inner { namespace, domain, .. } = &*self.0;
        let host = host.trim_end_matches('.');
        let mut names = vec![host.to_owned()];
        // A short name from another cluster may belong to another service here.
        let is_below =
            host.to_ascii_lowercase().strip_suffix(domain.as_str()).is_some_and(|service| service.ends_with('.'));
        if info.registry != "Kubernetes" || domain.is_empty() || !is_below {
            return names;
        }
        let short = format!("{}.{}", info.shortname, info.namespace);
        let first = domain.split('.').next().unwrap_or_default();
        names.push(format!("{short}.{first}"));
        names.push(short);
        if *namespace == info.namespace {
            names.push(info.shortname.clone());
        }
        names.extend(info.alt_hosts.iter().map(|name| name.trim_end_matches('.').to_owned()));
        names
    }

    /// Whether a table has arrived.
    pub(crate) fn has_table(&self) -> bool {
        self.latest().is_some()
    }

    fn latest(&self) -> Option<Arc<HostTable>> {
        self.0.hosts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks up a name, in lower case and without trailing dot.
    pub(super) fn lookup(&self, name: &str) -> HostLookup {
        let Some(table) = self.latest() else { return HostLookup::NoTable };
        if let Some(addresses) = table.addresses(name) {
            return HostLookup::Resolved { alias_of: None, addresses };
        }
        // Clients append search domains first. The name without the search domain is resolved at once, which saves further
        // requests.
        let search = self.0.search.as_deref();
        let short = search.and_then(|search| name.strip_suffix(search)?.strip_suffix('.'));
        match short.and_then(|short| Some((short, table.addresses(short)?))) {
            Some((short, addresses)) => HostLookup::Resolved { alias_of: Some(short.to_owned()), addresses },
            None => HostLookup::Unknown,
        }
    }

    /// The table with all names that are resolved, as JSON.
    pub(crate) fn dump(&self) -> Option<Value> {
        let latest = self.latest()?;
        let mut table = latest.table.clone();
        for (name, addresses) in &latest.hosts {
            table.table.entry(name.clone()).or_insert_with(|| NameInfo {
                ips: addresses.iter().map(ToString::to_string).collect(),
                registry: "Kubernetes".to_owned(),
                ..NameInfo::default()
            });
        }
        sluice_proto::json::encode(&table).ok()
    }
}

impl HostTable {
    /// The addresses of the name, or of the nearest wildcard that covers it.
    fn addresses(&self, name: &str) -> Option<Vec<IpAddr>> {
        if let Some(addresses) = self.hosts.get(name) {
            return Some(addresses.clone());
        }
        let mut rest = name;
        while let Some((_, parent)) = rest.split_once('.') {
            if let Some(addresses) = self.hosts.get(&format!("*.{parent}")) {
                return Some(addresses.clone());
            }
            rest = parent;
        }
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn info(short: &str, namespace: &str, ips: &[&str]) -> NameInfo {
        NameInfo {
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
            registry: if short.is_empty() { "External" } else { "Kubernetes" }.to_owned(),
            shortname: short.to_owned(),
            namespace: namespace.to_owned(),
            ..NameInfo::default()
        }
    }

    /// The names of a proxy in `shop`, with search domain `shop.svc.cluster.local`.
    pub(crate) fn names() -> NameTableStore {
        let names = NameTableStore::new("shop", "shop.svc.cluster.local", Some("shop.svc.cluster.local"));
        let table = NameTable {
            table: [
                ("tea.shop.svc.cluster.local".to_owned(), info("tea", "shop", &["10.0.0.1", "fd00::1"])),
                ("pot.store.svc.cluster.local".to_owned(), info("pot", "store", &["10.0.0.2"])),
                ("cup.far.svc.other".to_owned(), info("cup", "far", &["10.0.0.3"])),
                ("jug.far.anothersvc.cluster.local".to_owned(), info("jug", "far", &["10.0.0.5"])),
                ("*.Example.com".to_owned(), info("", "", &["10.0.0.4"])),
                ("empty.com".to_owned(), info("", "", &[])),
            ]
            .into(),
        };
        assert_eq!(names.lookup("tea"), HostLookup::NoTable);
        names.update(&table.encode_to_vec()).expect("a table");
        names
    }

    fn addresses(name: &str) -> Option<String> {
        match names().lookup(name) {
            HostLookup::Resolved { alias_of: None, addresses } => Some(addresses[0].to_string()),
            HostLookup::Resolved { alias_of: Some(other), addresses } => Some(format!("{other} {}", addresses[0])),
            HostLookup::Unknown | HostLookup::NoTable => None,
        }
    }

    #[test]
    fn services_have_shorter_names() {
        for name in ["tea.shop.svc.cluster.local", "tea.shop.svc", "tea.shop", "tea"] {
            assert_eq!(addresses(name).as_deref(), Some("10.0.0.1"), "{name}");
        }
        assert_eq!(addresses("pot.store").as_deref(), Some("10.0.0.2"));
        assert_eq!(addresses("pot"), None, "another namespace");
        assert_eq!(addresses("cup.far"), None, "another cluster");
        assert_eq!(addresses("cup.far.svc.other").as_deref(), Some("10.0.0.3"));
        assert_eq!(addresses("jug.far"), None, "another domain that ends with the same letters");
    }

    #[test]
    fn wildcards_cover_subdomains() {
        assert_eq!(addresses("a.example.com").as_deref(), Some("10.0.0.4"));
        assert_eq!(addresses("a.b.example.com").as_deref(), Some("10.0.0.4"));
        assert_eq!(addresses("example.com"), None);
        assert_eq!(addresses("empty.com"), None);
    }

    #[test]
    fn search_domain_is_removed() {
        assert_eq!(addresses("a.example.com.shop.svc.cluster.local").as_deref(), Some("a.example.com 10.0.0.4"));
        assert_eq!(addresses("unknown.com.shop.svc.cluster.local"), None);
    }

    #[test]
    fn malformed_table_is_rejected_and_the_old_one_stays() {
        let names = names();
        assert!(names.update(b"\xff\xff\xff").is_err());
        assert!(names.has_table());
        assert_eq!(names.dump().expect("a table")["table"]["tea"]["ips"][0], "10.0.0.1");
    }
}
