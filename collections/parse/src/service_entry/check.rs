//! What makes a ServiceEntry invalid.

use std::collections::BTreeSet;
use std::net::IpAddr;

use sluice_model::{Protocol, Resolution, ServiceEntry};

use crate::admission::is_subnet;
use crate::workload_entry::check_workload;
use crate::{Fields, is_admitted_host, is_any_case_label, is_fqdn, is_wildcard_domain};

/// Label that says through which waypoint a service is reached.
const USE_WAYPOINT: &str = "istio.io/use-waypoint";

/// Most of this is refused at admission only, and so by a source that knows no admission.
pub(super) fn check(fields: &Fields<'_>, entry: &ServiceEntry) {
    check_hosts(fields, entry);
    if entry.workload_selector.is_some() {
        if !entry.endpoints.is_empty() {
            fields.reject("workloadSelector", "endpoints and workloadSelector exclude each other");
        }
        if entry.resolution == Resolution::Passthrough {
            fields.warn("workloadSelector", "resolution NONE selects no workloads");
        }
    }
    for (n, address) in entry.addresses.iter().enumerate().filter(|(_, address)| !is_subnet(address)) {
        let reason = format!("{address} is neither an address nor a block of addresses");
        fields.reject(&format!("addresses[{n}]"), reason);
    }
    let block = entry.addresses.iter().any(|address| address.contains('/'));
    if block && !matches!(entry.resolution, Resolution::Passthrough | Resolution::ClientSideLb) {
        fields.reject("addresses", "a block of addresses needs resolution NONE or STATIC");
    }
    check_ports(fields, entry);
    check_endpoints(fields, entry);
    if entry.resolution == Resolution::DynamicDns {
        check_dynamic(fields, entry);
    }
}

fn check_hosts(fields: &Fields<'_>, entry: &ServiceEntry) {
    if entry.hosts.is_empty() {
        fields.reject("hosts", "at least one host is needed");
    }
    for (n, host) in entry.hosts.iter().enumerate() {
        let (path, host) = (format!("hosts[{n}]"), host.as_str());
        let reason = || format!("`{host}` is not a host a ServiceEntry can have");
        if host == "*" || !(is_wildcard_domain(host) || is_admitted_host(host)) {
            fields.reject(&path, reason());
        } else if !is_admitted_host(host) {
            fields.refuse(&path, reason());
        }
        let partial = host.len() > 1 && host.contains('*') && !host.starts_with("*.");
        if partial && entry.resolution != Resolution::DynamicDns {
            fields.warn(&path, "`*` stands for whole labels: write `*.` and the rest");
        }
    }
    // Streams of TCP say nothing of the host, so that one address cannot serve two.
    let told_apart = |protocol: Protocol| protocol.is_http() || protocol.is_tls();
    if entry.resolution != Resolution::Passthrough
        && entry.hosts.len() > 1
        && let Some(n) = entry.ports.iter().position(|port| !told_apart(port.protocol))
    {
        fields.refuse(&format!("ports[{n}].protocol"), "several hosts are told apart only by HTTP and TLS");
    }
}

fn check_ports(fields: &Fields<'_>, entry: &ServiceEntry) {
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (n, port) in entry.ports.iter().enumerate() {
        let path = |field: &str| format!("ports[{n}].{field}");
        if port.number == 0 {
            fields.reject(&path("number"), "a port number is 1 to 65535");
        }
        if port.name.is_empty() {
            fields.reject(&path("name"), "a port needs a name");
        } else if !is_any_case_label(&port.name) {
            fields.refuse(&path("name"), format!("`{}` is no name of a port", port.name));
        }
        if !names.insert(&port.name) {
            fields.reject(&path("name"), format!("port {} is there twice", port.name));
        }
        if !numbers.insert(port.number) {
            fields.reject(&path("number"), format!("port {} is there twice", port.number));
        }
    }
}

fn check_endpoints(fields: &Fields<'_>, entry: &ServiceEntry) {
    let dns = matches!(entry.resolution, Resolution::DnsLb | Resolution::DnsRoundRobinLb);
    let is_static = entry.resolution == Resolution::ClientSideLb;
    match entry.resolution {
        Resolution::Passthrough | Resolution::DynamicDns if !entry.endpoints.is_empty() => {
            fields.reject("endpoints", "this resolution has no endpoints");
        }
        Resolution::DnsRoundRobinLb if entry.endpoints.len() > 1 => {
            fields.reject("endpoints", "resolution DNS_ROUND_ROBIN has one endpoint at most");
        }
        _ => {}
    }
    if dns && entry.endpoints.is_empty() {
        for (n, host) in entry.hosts.iter().enumerate() {
            let path = format!("hosts[{n}]");
            if host.is_wildcard() && entry.workload_selector.is_none() {
                fields.reject(&path, format!("{host} cannot be resolved, so endpoints are needed"));
            } else if !is_fqdn(host.as_str()) {
                fields.refuse(&path, format!("{host} cannot be resolved, so endpoints are needed"));
            }
        }
    }
    for (n, endpoint) in entry.endpoints.iter().enumerate() {
        let path = format!("endpoints[{n}].address");
        let address = endpoint.address.as_str();
        let is_socket = address.starts_with("unix://");
        let is_address = address.parse::<IpAddr>().is_ok();
        if is_static && !address.is_empty() && !is_socket && !is_address {
            fields.reject(&path, format!("{address} is not an IP address, which STATIC needs"));
        } else if dns && !is_address && !is_fqdn(address) {
            fields.refuse(&path, format!("`{address}` is neither a host nor an address"));
        }
        check_workload(fields, &path, endpoint);
        if is_static || dns {
            let known = |name: &str| entry.ports.iter().any(|port| port.name.as_str() == name);
            for name in endpoint.ports.keys().filter(|name| !known(name)) {
                fields.refuse(&format!("endpoints[{n}].ports[{name}]"), "no port of the ServiceEntry has this name");
            }
        }
        if is_static && is_socket && entry.ports.len() != 1 {
            fields.refuse(&path, "a socket serves exactly one port");
        }
    }
}

/// Destinations that are resolved when a client asks for them: told by HTTP or TLS alone.
fn check_dynamic(fields: &Fields<'_>, entry: &ServiceEntry) {
    for (n, host) in entry.hosts.iter().enumerate().filter(|(_, host)| !host.is_wildcard()) {
        fields.refuse(&format!("hosts[{n}]"), format!("{host} is no wildcard, which DYNAMIC_DNS needs"));
    }
    if !entry.addresses.is_empty() {
        fields.refuse("addresses", "DYNAMIC_DNS has no addresses");
    }
    for (n, port) in entry.ports.iter().enumerate() {
        if !matches!(port.protocol, Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::Tls) {
            fields.refuse(&format!("ports[{n}].protocol"), "DYNAMIC_DNS takes HTTP, HTTP2, GRPC and TLS");
        }
    }
    let waypoint = entry.meta.labels.get(USE_WAYPOINT).filter(|name| !name.is_empty());
    if !entry.mesh_external && waypoint.is_some_and(|name| !name.eq_ignore_ascii_case("none")) {
        fields.refuse("location", "DYNAMIC_DNS through a waypoint is for MESH_EXTERNAL only");
    }
}
