//! WorkloadEntry (S09, S14).

use std::collections::BTreeMap;

use sluice_model::{Object, Text, WorkloadAddress, WorkloadEntry};

use crate::{Fields, Findings, Item};

const HEALTH_CHECKED: &str = "proxy.istio.io/health-checks-enabled";

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let mut workload = workload_address(&fields);
    workload.labels.extend(meta.labels.clone());
    check_workload(&fields, "address", &workload);
    let checked = meta.annotations.get(HEALTH_CHECKED).is_some_and(|word| is_true(word));
    let healthy = !checked || condition(item, "Healthy");
    drop(fields);
    (!findings.has_errors()).then_some(Object::WorkloadEntry(WorkloadEntry { meta, workload, healthy }))
}

/// A WorkloadEntry's spec, on its own or in a ServiceEntry.
pub(crate) fn workload_address(fields: &Fields<'_>) -> WorkloadAddress {
    WorkloadAddress {
        address: fields.text("address"),
        ports: ports(fields),
        labels: fields.text_map("labels"),
        network: fields.text("network"),
        locality: fields.text("locality"),
        weight: fields.integer("weight"),
        service_account: fields.text("serviceAccount"),
    }
}

fn ports(fields: &Fields<'_>) -> BTreeMap<Text, u32> {
    let ports = fields.entries("ports").into_iter().filter_map(|(name, value, path)| {
        let port = value.as_u64().and_then(|port| u32::try_from(port).ok()).filter(|port| (1..=65535).contains(port));
        if port.is_none() {
            fields.reject("ports", format!("{path} is no port number"));
        }
        Some((name, port?))
    });
    ports.collect()
}

/// What is wrong with an address, noted at `path` within `fields`.
pub(crate) fn check_workload(fields: &Fields<'_>, path: &str, workload: &WorkloadAddress) {
    if workload.address.is_empty() && workload.network.is_empty() {
        fields.reject(path, "an address or a network is needed");
    }
    if let Some(socket) = workload.address.strip_prefix("unix://") {
        if !socket.starts_with('/') && !socket.starts_with('@') {
            fields.reject(path, "the path of a socket is absolute");
        }
        if !workload.ports.is_empty() {
            fields.reject(path, "a socket has no ports");
        }
    }
}

fn is_true(word: &str) -> bool {
    matches!(word, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// Whether the status has that condition, and it is true.
fn condition(item: &Item<'_>, name: &str) -> bool {
    let conditions = item.object.pointer("/status/conditions").and_then(|conditions| conditions.as_array());
    let text = |value: &serde_json::Value, name: &str| value.get(name).and_then(|v| v.as_str()).map(str::to_owned);
    conditions.into_iter().flatten().any(|condition| {
        text(condition, "type").as_deref() == Some(name) && text(condition, "status").as_deref() == Some("True")
    })
}
