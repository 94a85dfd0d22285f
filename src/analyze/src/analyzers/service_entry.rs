//! ServiceEntries: addresses and protocols (IST0134, IST0177).

use std::collections::{BTreeMap, BTreeSet};

use crate::codes::{CONFLICTING_SERVICE_ENTRIES, SERVICE_ENTRY_ADDRESSES_REQUIRED};
use crate::resource::SERVICE_ENTRY;
use crate::value::{at, items, number, text, texts};
use crate::{AnalyzedObject, MeshObjects, MessageList};

use super::hosts::scopes;

/// TCP ports of entries without an address, which all addresses have in common.
pub(crate) fn addresses<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let metadata = at(&mesh.mesh_config, "defaultConfig.proxyMetadata");
    let is_set = |name: &str| text(metadata, name) == "true";
    let allocates = is_set("ISTIO_META_DNS_CAPTURE")
        && (is_set("ISTIO_META_DNS_AUTO_ALLOCATE") || is_set("PILOT_ENABLE_IP_AUTOALLOCATE"));
    if allocates {
        return;
    }
    for entry in mesh.all(SERVICE_ENTRY) {
        if !items(entry.spec(), "addresses").is_empty() || !items(&entry.value, "status.addresses").is_empty() {
            continue;
        }
        for (n, port) in items(entry.spec(), "ports").iter().enumerate() {
            let protocol = text(port, "protocol");
            if protocol.is_empty() || protocol.eq_ignore_ascii_case("TCP") {
                let text = "a port with protocol TCP, or without a protocol, needs addresses: otherwise it takes traffic of all addresses";
                report.add(&SERVICE_ENTRY_ADDRESSES_REQUIRED, entry, format!("spec.ports[{n}]"), text);
            }
        }
    }
}

/// Entries that disagree about the protocol of a host's port.
pub(crate) fn protocols<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    type Port<'m> = (&'m str, i64, &'m str);
    let mut by_port: BTreeMap<Port<'m>, Vec<(&'m AnalyzedObject, String)>> = BTreeMap::new();
    for entry in mesh.all(SERVICE_ENTRY) {
        for scope in scopes(&texts(entry.spec(), "exportTo"), entry.namespace()) {
            for host in texts(entry.spec(), "hosts") {
                for port in items(entry.spec(), "ports") {
                    let Some(number) = number(port, "number") else { continue };
                    let protocol = text(port, "protocol").to_ascii_uppercase();
                    by_port.entry((host, number, scope)).or_default().push((entry, protocol));
                }
            }
        }
    }
    let mut reported = BTreeSet::new();
    for ((host, port, scope), entries) in &by_port {
        let everywhere = if *scope == "*" { None } else { by_port.get(&(*host, *port, "*")) };
        let entries: Vec<_> = entries.iter().chain(everywhere.into_iter().flatten()).collect();
        let protocols: BTreeSet<String> = entries.iter().map(|(_, protocol)| protocol.clone()).collect();
        if protocols.len() < 2 {
            continue;
        }
        let names: BTreeSet<String> = entries.iter().map(|(entry, _)| entry.full_name()).collect();
        for (entry, _) in entries {
            if reported.insert(entry.full_name()) {
                let text = format!(
                    "ServiceEntries {} define host {host} and port {port} with different protocols: {}",
                    super::join(&names),
                    super::join(&protocols)
                );
                report.add(&CONFLICTING_SERVICE_ENTRIES, entry, "spec.ports", text);
            }
        }
    }
}
