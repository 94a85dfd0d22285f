//! ServiceEntry (S09).

mod check;

use sluice_model::{Host, Object, Protocol, Resolution, ServiceEntry, ServiceEntryPort, Text};

use crate::admission::{check_export_to, check_selector};
use crate::workload_entry::workload_address;
use crate::{Fields, Findings, Item, protocol};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let resolutions = [
        ("NONE", Resolution::Passthrough),
        ("STATIC", Resolution::ClientSideLb),
        ("DNS", Resolution::DnsLb),
        ("DNS_ROUND_ROBIN", Resolution::DnsRoundRobinLb),
        ("DYNAMIC_DNS", Resolution::DynamicDns),
    ];
    let locations = [("MESH_EXTERNAL", true), ("MESH_INTERNAL", false)];
    let selector = fields.object("workloadSelector");
    let entry = ServiceEntry {
        meta: item.meta(findings),
        hosts: fields.texts("hosts").iter().map(|host| Host::new(host)).collect(),
        addresses: fields.texts("addresses"),
        ports: fields.list("ports", |port| ServiceEntryPort {
            number: port.integer("number"),
            name: port.text("name"),
            protocol: protocol_of(port),
            target_port: port.integer("targetPort"),
        }),
        mesh_external: fields.choice("location", &locations).unwrap_or(true),
        resolution: fields.choice("resolution", &resolutions).unwrap_or(Resolution::Passthrough),
        endpoints: fields.list("endpoints", workload_address),
        workload_selector: selector.map(|selector| {
            let labels = selector.labels("labels");
            check_selector(&selector, "labels", &labels);
            labels
        }),
        export_to: fields.texts("exportTo"),
        subject_alt_names: fields.texts("subjectAltNames"),
        allocated_addresses: allocated(item, findings),
        conditions: item.conditions(),
    };
    check::check(&fields, &entry);
    check_export_to(&fields, &entry.export_to, &entry.meta.namespace, true);
    drop(fields);
    (!findings.has_errors()).then_some(Object::ServiceEntry(entry))
}

fn protocol_of(port: &Fields<'_>) -> Protocol {
    let word = port.text("protocol");
    let protocol = protocol::named(&word);
    if protocol == Protocol::Unsupported && !word.is_empty() {
        port.reject("protocol", protocol::unknown(&word));
    }
    protocol
}

/// `status.addresses`, written by the controller that allocates addresses.
fn allocated(item: &Item<'_>, findings: &Findings) -> Vec<(Host, Text)> {
    let Some(status) = item.object.get("status").and_then(|status| Fields::new(status, "status", findings)) else {
        return Vec::new();
    };
    let addresses = status.list("addresses", |address| (Host::new(&address.text("host")), address.text("value")));
    status.ignore_rest();
    addresses
}
