//! Services of ztunnel.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Filter;
use super::dump::ZtunnelDump;
use crate::answer_output::{list, text};

pub(super) const TITLES: [&str; 5] = ["NAMESPACE", "SERVICE NAME", "SERVICE VIP", "WAYPOINT", "ENDPOINTS"];

pub(super) fn select<'d>(dump: &'d ZtunnelDump, filter: &Filter) -> Vec<&'d Value> {
    let mut services: Vec<&Value> = dump.services.iter().filter(|it| filter.is_in_namespace(it)).collect();
    services.sort_by_key(|it| (text(it, "namespace"), text(it, "name"), text(it, "hostname")));
    services
}

pub(super) fn rows(dump: &ZtunnelDump, filter: &Filter) -> Vec<Vec<String>> {
    let healthy: BTreeSet<&str> =
        dump.workloads.iter().filter(|it| text(it, "status") == "Healthy").map(|it| text(it, "uid")).collect();
    let row = |it: &Value| {
        let cell = |field: &str| text(it, field).to_owned();
        let addresses: Vec<&str> = list(it, "vips").iter().filter_map(Value::as_str).map(without_network).collect();
        let endpoints: Vec<&Value> = match &it["endpoints"] {
            Value::Object(endpoints) => endpoints.iter().map(|(_, endpoint)| endpoint).collect(),
            Value::Array(endpoints) => endpoints.iter().collect(),
            _ => Vec::new(),
        };
        let up = endpoints.iter().filter(|endpoint| healthy.contains(text(endpoint, "workloadUid"))).count();
        let endpoints = format!("{up}/{}", endpoints.len());
        vec![cell("namespace"), cell("name"), addresses.join(","), dump.waypoint(it), endpoints]
    };
    select(dump, filter).into_iter().map(row).collect()
}

/// The address of `NETWORK/ADDRESS`.
pub(super) fn without_network(address: &str) -> &str {
    address.split_once('/').map_or("", |(_, address)| address)
}
