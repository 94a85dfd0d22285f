//! Open connections of the workloads of a ztunnel.

use std::collections::HashMap;

use serde_json::Value;

use super::Filter;
use super::args::ConnectionDirection;
use super::dump::ZtunnelDump;
use super::services::without_network;
use crate::answer_output::{list, text};

pub(super) const TITLES: [&str; 6] = ["WORKLOAD", "DIRECTION", "LOCAL", "REMOTE", "REMOTE TARGET", "PROTOCOL"];

pub(super) fn select<'d>(dump: &'d ZtunnelDump, filter: &Filter) -> Vec<&'d Value> {
    let is_selected = |state: &&Value| filter.is_in_namespace(&state["info"]) && filter.is_named(&state["info"]);
    let mut states: Vec<&Value> = dump.states.iter().filter(is_selected).collect();
    states.sort_by_key(|state| (text(&state["info"], "namespace"), text(&state["info"], "name")));
    states
}

pub(super) fn rows(dump: &ZtunnelDump, filter: &Filter) -> Vec<Vec<String>> {
    let names = if filter.raw { HashMap::new() } else { names(dump) };
    let named = |address: &str| with_name(address, &names);
    let mut rows = Vec::new();
    for state in select(dump, filter) {
        let (info, connections) = (&state["info"], &state["connections"]);
        let workload = format!("{}.{}", text(info, "name"), text(info, "namespace"));
        let mut add = |direction: &str, cells: [String; 3], connection: &Value| {
            let [local, remote, target] = cells;
            let protocol = text(connection, "protocol").to_owned();
            rows.push(vec![workload.clone(), direction.to_owned(), local, remote, target, protocol]);
        };
        if filter.direction != Some(ConnectionDirection::Outbound) {
            for it in list(connections, "inbound") {
                let target = text(it, "originalDst").to_owned();
                add("Inbound", [named(text(it, "actualDst")), named(text(it, "src")), target], it);
            }
        }
        if filter.direction != Some(ConnectionDirection::Inbound) {
            for it in list(connections, "outbound") {
                let cells = ["src", "actualDst", "originalDst"].map(|field| named(text(it, field)));
                add("Outbound", cells, it);
            }
        }
    }
    rows
}

/// Names by address: hosts of services, and `NAME.NAMESPACE` of workloads.
fn names(dump: &ZtunnelDump) -> HashMap<&str, String> {
    let mut names = HashMap::new();
    for workload in &dump.workloads {
        if let Some(address) = list(workload, "workloadIps").first().and_then(Value::as_str) {
            names.insert(address, format!("{}.{}", text(workload, "name"), text(workload, "namespace")));
        }
    }
    for service in &dump.services {
        if let Some(address) = list(service, "vips").first().and_then(Value::as_str) {
            names.insert(without_network(address), text(service, "hostname").to_owned());
        }
    }
    names
}

/// `IP:PORT` with the name of the address, if it has one.
fn with_name(address: &str, names: &HashMap<&str, String>) -> String {
    let parts = address.rsplit_once(':').map(|(host, port)| (host.trim_matches(['[', ']']), port));
    let named = parts.and_then(|(host, port)| names.get(host).map(|name| format!("{name}:{port}")));
    named.unwrap_or_else(|| address.to_owned())
}
