//! Workloads of ztunnel.

use serde_json::Value;

use super::Filter;
use super::dump::ZtunnelDump;
use crate::answer_output::{joined, list, text};

pub(super) const TITLES: [&str; 6] = ["NAMESPACE", "POD NAME", "ADDRESS", "NODE", "WAYPOINT", "PROTOCOL"];

pub(super) fn select<'d>(dump: &'d ZtunnelDump, filter: &Filter) -> Vec<&'d Value> {
    let is_selected = |workload: &&Value| {
        let has_address = |address: &String| list(workload, "workloadIps").iter().any(|ip| *ip == address.as_str());
        let is_on = |node: &String| node.eq_ignore_ascii_case(text(workload, "node"));
        filter.is_in_namespace(workload)
            && filter.is_named(workload)
            && filter.address.as_ref().is_none_or(has_address)
            && filter.node.as_ref().is_none_or(is_on)
    };
    let mut workloads: Vec<&Value> = dump.workloads.iter().filter(is_selected).collect();
    let name = |it: &Value| format!("{}.{}", text(it, "namespace"), text(it, "name"));
    workloads.sort_by_cached_key(|it| (name(it), text(it, "node").to_owned()));
    workloads
}

pub(super) fn rows(dump: &ZtunnelDump, filter: &Filter) -> Vec<Vec<String>> {
    let row = |it: &Value| {
        let cell = |field: &str| text(it, field).to_owned();
        let address = Some(joined(it, "workloadIps", ",")).filter(|address| !address.is_empty());
        let address = address.unwrap_or_else(|| cell("hostname"));
        vec![cell("namespace"), cell("name"), address, cell("node"), dump.waypoint(it), cell("protocol")]
    };
    select(dump, filter).into_iter().map(row).collect()
}
