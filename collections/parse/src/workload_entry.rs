//! WorkloadEntry (S09, S14).

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluice_model::{Object, Text, WorkloadAddress, WorkloadEntry, is_true};

use crate::admission::{check_labels, is_port};
use crate::{Fields, Findings, Item, is_any_case_label, is_fqdn};

const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let mut workload = workload_address(&fields);
    let address = workload.address.as_str();
    if !address.is_empty() && !address.starts_with("unix://") && address.parse::<IpAddr>().is_err() && !is_fqdn(address)
    {
        fields.refuse("address", format!("`{address}` is neither a host nor an address"));
    }
    workload.labels.extend(meta.labels.iter().map(|(name, value)| (name.clone(), value.clone())));
    check_workload(&fields, "address", &workload);
    let checked = meta.annotations.get(HEALTH_CHECKED).is_some_and(|word| is_true(word));
    let healthy = !checked || condition(item, "Healthy");
    drop(fields);
    (!findings.has_errors()).then_some(Object::WorkloadEntry(WorkloadEntry { meta, workload, healthy }))
}

/// A WorkloadEntry's spec, on its own or in a ServiceEntry.
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
        fields.refuse(&format!("ports[{name}]"), format!("`{name}` is no name of a port"));
    }
    for (name, text, most) in [
        ("address", &workload.address, 256),
        ("network", &workload.network, 2048),
        ("locality", &workload.locality, 2048),
        ("serviceAccount", &workload.service_account, 253),
    ] {
        if text.chars().count() > most {
            fields.refuse(name, format!("{most} characters at most"));
        }
    }
    workload
}

fn ports(fields: &Fields<'_>) -> BTreeMap<Text, u32> {
    let ports = fields.entries("ports").into_iter().filter_map(|(name, value, path)| {
        let port = value.as_u64().and_then(|port| u32::try_from(port).ok()).filter(|port| is_port(*port));
        if port.is_none() {
            fields.findings().error(&path, "a port number is 1 to 65535");
        }
        Some((name, port?))
    });
    ports.collect()
}

/// What is wrong with an address, noted at `path` within `fields`.
pub(crate) fn check_workload(fields: &Fields<'_>, path: &str, workload: &WorkloadAddress) {
    if workload.address.is_empty() && workload.network.is_empty() {
        fields.reject(path, "an address or a network is needed");
    } else if workload.address.is_empty() {
        fields.warn(path, "without an address it is reached through the gateways of its network only");
    }
    check_socket(fields, path, workload);
}

/// What is wrong with an address that is a socket.
pub(crate) fn check_socket(fields: &Fields<'_>, path: &str, workload: &WorkloadAddress) {
    if let Some(socket) = workload.address.strip_prefix("unix://") {
        if !socket.starts_with('/') && !socket.starts_with('@') {
            fields.reject(path, "the path of a socket is absolute");
        } else if socket.starts_with('/') && socket.ends_with('/') {
            fields.refuse(path, "the path of a socket is no directory");
        }
        if !workload.ports.is_empty() {
            fields.reject(path, "a socket has no ports");
        }
    }
}

/// Whether the status has that condition, and it is true.
fn condition(item: &Item<'_>, name: &str) -> bool {
    let conditions = item.object.pointer("/status/conditions").and_then(|conditions| conditions.as_array());
    let text = |value: &serde_json::Value, name: &str| value.get(name).and_then(|v| v.as_str()).map(str::to_owned);
    conditions.into_iter().flatten().any(|condition| {
        text(condition, "type").as_deref() == Some(name) && text(condition, "status").as_deref() == Some("True")
    })
}
