//! WorkloadEntry (S09, S14).

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_model::{Object, Text, UNIX_PREFIX, WorkloadAddress, WorkloadEntry, is_true};

use crate::admission::{check_labels, is_port};
use crate::{Fields, Findings, Item, is_any_case_label, is_fqdn};

const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let mut workload = workload_address(&fields);
    let address = workload.address.as_str();
    if !address.is_empty()
        && !address.starts_with(UNIX_PREFIX)
        && address.parse::<IpAddr>().is_err()
        && !is_fqdn(address)
    {
        fields.refuse("address", format!("`{address}` is not a host name, an IP address or `unix://PATH`"));
    }
    workload.labels.extend(meta.labels.iter().map(|(name, value)| (name.clone(), value.clone())));
    check_workload(&fields, "address", &workload);
    let checked = meta.annotations.get(HEALTH_CHECKED).is_some_and(|word| is_true(word));
    let healthy = !checked || condition(item, "Healthy");
    drop(fields);
    (!findings.has_errors()).then_some(Object::WorkloadEntry(WorkloadEntry {
        meta,
        workload,
        healthy,
        conditions: item.conditions(),
    }))
}

/// Reads the spec of a WorkloadEntry or an endpoint of a ServiceEntry.
pub(crate) fn workload_address(fields: &Fields<'_>) -> WorkloadAddress {
    let workload = WorkloadAddress {
        address: fields.text("address"),
        ports: ports(fields),
        labels: fields.labels("labels"),
        network: fields.text("network"),
        locality: fields.text("locality"),
        weight: fields.integer("weight"),
        service_account: fields.text("serviceAccount"),
    };
    check_labels(fields, "labels", &workload.labels);
    for name in workload.ports.keys().filter(|name| !is_any_case_label(name)) {
        fields.refuse(&format!("ports[{name}]"), format!("`{name}` is not a valid port name: expected a DNS label"));
    }
    for (name, text, most) in [
        ("address", &workload.address, 256),
        ("network", &workload.network, 2048),
        ("locality", &workload.locality, 2048),
        ("serviceAccount", &workload.service_account, 253),
    ] {
        if text.chars().count() > most {
            fields.refuse(name, format!("the value must have at most {most} characters"));
        }
    }
    workload
}

fn ports(fields: &Fields<'_>) -> BTreeMap<Text, u32> {
    let ports = fields.entries("ports").filter_map(|(name, value, path)| {
        let port = value.as_u64().and_then(|port| u32::try_from(port).ok()).filter(|port| is_port(*port));
        if port.is_none() {
            fields.findings().error(&path, "expected a port from 1 to 65535");
        }
        Some((name, port?))
    });
    ports.collect()
}

/// Checks the address of a workload. Findings are recorded at `path` below `fields`.
pub(crate) fn check_workload(fields: &Fields<'_>, path: &str, workload: &WorkloadAddress) {
    if workload.address.is_empty() && workload.network.is_empty() {
        fields.reject(path, "`address` or `network` is required");
    } else if workload.address.is_empty() {
        fields.warn(path, "a workload without an address is reachable only through the gateways of its network");
    }
    check_socket(fields, path, workload);
}

/// Checks an address that is a Unix domain socket.
pub(crate) fn check_socket(fields: &Fields<'_>, path: &str, workload: &WorkloadAddress) {
    if let Some(socket) = workload.address.strip_prefix(UNIX_PREFIX) {
        if !socket.starts_with('/') && !socket.starts_with('@') {
            fields.reject(path, "the path of a Unix domain socket must be absolute");
        } else if socket.starts_with('/') && socket.ends_with('/') {
            fields.refuse(path, "the path of a Unix domain socket must not be a directory");
        }
        if !workload.ports.is_empty() {
            fields.reject(path, "`ports` is not supported with a Unix domain socket");
        }
    }
}

/// Whether the status has the condition `name` with status `True`.
fn condition(item: &Item<'_>, name: &str) -> bool {
    let conditions = item.object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == name && condition["status"] == "True")
}
