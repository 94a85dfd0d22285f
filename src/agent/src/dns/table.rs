//! The names that are known, and by which other names they go.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use prost::Message as _;
use serde_json::Value;
use sluice_proto::istio::networking::nds::v1::NameTable;
use sluice_proto::istio::networking::nds::v1::name_table::NameInfo;
use tracing::info;

/// The newest table; names are in lower case and without the dot at the end.
#[derive(Clone)]
pub(crate) struct Names(Arc<Inner>);

struct Inner {
    namespace: String,
    /// The proxy's domain without its namespace, such as `svc.cluster.local`.
    domain: String,
    search: Option<String>,
    known: RwLock<Option<Arc<Known>>>,
}

/// One table.
struct Known {
    hosts: BTreeMap<String, Vec<IpAddr>>,
    table: NameTable,
}

/// What is known of a name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Found {
    /// No table has come yet.
    Unready,
    /// It is none of the mesh's.
    Unknown,
    /// Its addresses, and the name they are found by if it is another.
    Known { alias_of: Option<String>, addresses: Vec<IpAddr> },
}

impl Names {
    /// `search` is what clients add to short names first.
    pub(crate) fn new(namespace: &str, domain: &str, search: Option<&str>) -> Self {
        let domain = domain.trim_end_matches('.');
        let domain = domain.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('.')).unwrap_or(domain);
        Self(Arc::new(Inner {
            namespace: namespace.to_owned(),
            domain: domain.to_ascii_lowercase(),
            search: search.map(|search| search.trim_end_matches('.').to_ascii_lowercase()),
            known: RwLock::default(),
        }))
    }

    /// Takes a table that the control plane sent.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn update(&self, message: &[u8]) -> Result<(), String> {
        let table =
            NameTable::decode(message).map_err(|error| format!("the table of names cannot be read: {error}"))?;
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
        info!(target: "dns", hosts = hosts.len(), "names are known");
        *self.0.known.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Known { hosts, table }));
        Ok(())
    }

    /// The names that a host goes by here: services of the cluster also by shorter ones, as far as they are ours.
    fn names_of(&self, host: &str, info: &NameInfo) -> Vec<String> {
        let Inner { namespace, domain, .. } = &*self.0;
        let host = host.trim_end_matches('.');
        let mut names = vec![host.to_owned()];
        // Names of another cluster may be those of another service here.
        if info.registry != "Kubernetes" || domain.is_empty() || !host.to_ascii_lowercase().ends_with(domain.as_str()) {
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

    /// Whether a table has come.
    pub(crate) fn is_known(&self) -> bool {
        self.known().is_some()
    }

    fn known(&self) -> Option<Arc<Known>> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is known of a name, in lower case and without the dot at the end.
    pub(super) fn find(&self, name: &str) -> Found {
        let Some(known) = self.known() else { return Found::Unready };
        if let Some(addresses) = known.find(name) {
            return Found::Known { alias_of: None, addresses };
        }
        // Clients try short names with what they add first: it is answered at once, not after as many attempts.
        let search = self.0.search.as_deref();
        let short = search.and_then(|search| name.strip_suffix(search)?.strip_suffix('.'));
        match short.and_then(|short| Some((short, known.find(short)?))) {
            Some((short, addresses)) => Found::Known { alias_of: Some(short.to_owned()), addresses },
            None => Found::Unknown,
        }
    }

    /// The table with the names as they are answered, as JSON.
    pub(crate) fn dump(&self) -> Option<Value> {
        let known = self.known()?;
        let mut table = known.table.clone();
        for (name, addresses) in &known.hosts {
            table.table.entry(name.clone()).or_insert_with(|| NameInfo {
                ips: addresses.iter().map(ToString::to_string).collect(),
                registry: "Kubernetes".to_owned(),
                ..NameInfo::default()
            });
        }
        sluice_proto::json::encode(&table).ok()
    }
}

impl Known {
    /// By the name, or the nearest wildcard above it.
    fn find(&self, name: &str) -> Option<Vec<IpAddr>> {
        if let Some(addresses) = self.hosts.get(name) {
            return Some(addresses.clone());
        }
        let mut rest = name;
        while let Some((_, above)) = rest.split_once('.') {
            if let Some(addresses) = self.hosts.get(&format!("*.{above}")) {
                return Some(addresses.clone());
            }
            rest = above;
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

    /// Names of a proxy in `shop` whose clients add `shop.svc.cluster.local` to short names.
    pub(crate) fn names() -> Names {
        let names = Names::new("shop", "shop.svc.cluster.local", Some("shop.svc.cluster.local"));
        let table = NameTable {
            table: [
                ("tea.shop.svc.cluster.local".to_owned(), info("tea", "shop", &["10.0.0.1", "fd00::1"])),
                ("pot.store.svc.cluster.local".to_owned(), info("pot", "store", &["10.0.0.2"])),
                ("cup.far.svc.other".to_owned(), info("cup", "far", &["10.0.0.3"])),
                ("*.Example.com".to_owned(), info("", "", &["10.0.0.4"])),
                ("empty.com".to_owned(), info("", "", &[])),
            ]
            .into(),
        };
        assert_eq!(names.find("tea"), Found::Unready);
        names.update(&table.encode_to_vec()).expect("a table");
        names
    }

    fn addresses(name: &str) -> Option<String> {
        match names().find(name) {
            Found::Known { alias_of: None, addresses } => Some(addresses[0].to_string()),
            Found::Known { alias_of: Some(other), addresses } => Some(format!("{other} {}", addresses[0])),
            Found::Unknown | Found::Unready => None,
        }
    }

    #[test]
    fn services_are_known_by_their_shorter_names() {
        for name in ["tea.shop.svc.cluster.local", "tea.shop.svc", "tea.shop", "tea"] {
            assert_eq!(addresses(name).as_deref(), Some("10.0.0.1"), "{name}");
        }
        assert_eq!(addresses("pot.store").as_deref(), Some("10.0.0.2"));
        assert_eq!(addresses("pot"), None, "another namespace");
        assert_eq!(addresses("cup.far"), None, "another cluster");
        assert_eq!(addresses("cup.far.svc.other").as_deref(), Some("10.0.0.3"));
    }

    #[test]
    fn wildcards_cover_what_is_below_them() {
        assert_eq!(addresses("a.example.com").as_deref(), Some("10.0.0.4"));
        assert_eq!(addresses("a.b.example.com").as_deref(), Some("10.0.0.4"));
        assert_eq!(addresses("example.com"), None);
        assert_eq!(addresses("empty.com"), None);
    }

    #[test]
    fn what_clients_add_is_taken_off() {
        assert_eq!(addresses("a.example.com.shop.svc.cluster.local").as_deref(), Some("a.example.com 10.0.0.4"));
        assert_eq!(addresses("unknown.com.shop.svc.cluster.local"), None);
    }

    #[test]
    fn what_is_no_table_is_refused_and_the_old_one_stays() {
        let names = names();
        assert!(names.update(b"\xff\xff\xff").is_err());
        assert!(names.is_known());
        assert_eq!(names.dump().expect("a table")["table"]["tea"]["ips"][0], "10.0.0.1");
    }
}
