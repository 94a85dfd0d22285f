//! ServiceEntry (S09).

use std::collections::BTreeSet;
use std::net::IpAddr;

use sluice_model::{Host, Object, Protocol, Resolution, ServiceEntry, ServiceEntryPort, Text};

use crate::workload_entry::{check_workload, workload_address};
use crate::{Fields, Findings, Item, is_wildcard_domain, protocol};

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
        workload_selector: selector.map(|selector| selector.text_map("labels")),
        export_to: fields.texts("exportTo"),
        subject_alt_names: fields.texts("subjectAltNames"),
        allocated_addresses: allocated(item, findings),
    };
    check(&fields, &entry);
    drop(fields);
    (!findings.has_errors()).then_some(Object::ServiceEntry(entry))
}

fn protocol_of(port: &Fields<'_>) -> Protocol {
    let word = port.text("protocol");
    let protocol = protocol::named(&word);
    if protocol == Protocol::Unsupported && !word.is_empty() {
        port.reject("protocol", format!("{word} is not a known protocol"));
    }
    protocol
}

/// `status.addresses`, written by whoever allocates them.
fn allocated(item: &Item<'_>, findings: &Findings) -> Vec<(Host, Text)> {
    let Some(status) = item.object.get("status").and_then(|status| Fields::new(status, "status", findings)) else {
        return Vec::new();
    };
    let addresses = status.list("addresses", |address| (Host::new(&address.text("host")), address.text("value")));
    status.ignore_rest();
    addresses.into_iter().filter(|(_, value)| value.parse::<IpAddr>().is_ok()).collect()
}

/// What the reference refuses at admission, and so what a source that knows no admission must refuse.
fn check(fields: &Fields<'_>, entry: &ServiceEntry) {
    if entry.hosts.is_empty() {
        fields.reject("hosts", "at least one host is needed");
    }
    for host in entry.hosts.iter().filter(|host| host.as_str() == "*" || !is_wildcard_domain(host.as_str())) {
        fields.reject("hosts", format!("`{host}` is not a host a ServiceEntry can have"));
    }
    if entry.workload_selector.is_some() && !entry.endpoints.is_empty() {
        fields.reject("workloadSelector", "endpoints and workloadSelector exclude each other");
    }
    let mut cidr = false;
    for address in &entry.addresses {
        let block = address.contains('/');
        cidr |= block;
        let valid = if block { address.parse::<ipnet::IpNet>().is_ok() } else { address.parse::<IpAddr>().is_ok() };
        if !valid {
            fields.reject("addresses", format!("{address} is neither an address nor a block of addresses"));
        }
    }
    if cidr && !matches!(entry.resolution, Resolution::Passthrough | Resolution::ClientSideLb) {
        fields.reject("addresses", "a block of addresses needs resolution NONE or STATIC");
    }
    check_ports(fields, entry);
    check_endpoints(fields, entry);
}

fn check_ports(fields: &Fields<'_>, entry: &ServiceEntry) {
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for port in &entry.ports {
        if port.number == 0 {
            fields.reject("ports", "a port number is 1 to 65535");
        }
        if port.name.is_empty() {
            fields.reject("ports", "a port needs a name");
        }
        if !names.insert(&port.name) || !numbers.insert(port.number) {
            fields.reject("ports", format!("port {} {} is there twice", port.number, port.name));
        }
    }
}

fn check_endpoints(fields: &Fields<'_>, entry: &ServiceEntry) {
    let dns = matches!(entry.resolution, Resolution::DnsLb | Resolution::DnsRoundRobinLb);
    match entry.resolution {
        Resolution::Passthrough | Resolution::DynamicDns if !entry.endpoints.is_empty() => {
            fields.reject("endpoints", "this resolution has no endpoints");
        }
        Resolution::DnsRoundRobinLb if entry.endpoints.len() > 1 => {
            fields.reject("endpoints", "resolution DNS_ROUND_ROBIN has one endpoint at most");
        }
        _ => {}
    }
    if dns && entry.endpoints.is_empty() && entry.workload_selector.is_none() {
        for host in entry.hosts.iter().filter(|host| host.is_wildcard()) {
            fields.reject("hosts", format!("{host} cannot be resolved, so endpoints are needed"));
        }
    }
    for (i, endpoint) in entry.endpoints.iter().enumerate() {
        let path = format!("endpoints[{i}].address");
        if entry.resolution == Resolution::ClientSideLb
            && !endpoint.address.is_empty()
            && !endpoint.address.starts_with("unix://")
            && endpoint.address.parse::<IpAddr>().is_err()
        {
            fields.reject(&path, format!("{} is not an IP address, which STATIC needs", endpoint.address));
        }
        check_workload(fields, &path, endpoint);
    }
}
