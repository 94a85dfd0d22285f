//! Validation of ServiceEntries.

use std::collections::BTreeSet;
use std::net::IpAddr;

use sluice_model::{Protocol, Resolution, ServiceEntry, UNIX_PREFIX, label};

use crate::admission::is_subnet;
use crate::workload_entry::check_workload;
use crate::{Fields, is_admitted_host, is_any_case_label, is_fqdn, is_wildcard_domain};

/// Checks a ServiceEntry after it is parsed.
pub(super) fn check(fields: &Fields<'_>, entry: &ServiceEntry) {
    check_hosts(fields, entry);
    if entry.workload_selector.is_some() {
        if !entry.endpoints.is_empty() {
            fields.reject("workloadSelector", "`endpoints` and `workloadSelector` are mutually exclusive");
        }
        if entry.resolution == Resolution::Passthrough {
            fields.warn("workloadSelector", "`workloadSelector` has no effect with resolution NONE");
        }
    }
    for (n, address) in entry.addresses.iter().enumerate().filter(|(_, address)| !is_subnet(address)) {
        let reason = format!("`{address}` is not an IP address or a CIDR block");
        fields.reject(&format!("addresses[{n}]"), reason);
    }
    let block = entry.addresses.iter().any(|address| address.contains('/'));
    if block && !matches!(entry.resolution, Resolution::Passthrough | Resolution::ClientSideLb) {
        fields.reject("addresses", "a CIDR block requires resolution NONE or STATIC");
    }
    check_ports(fields, entry);
    check_endpoints(fields, entry);
    if entry.resolution == Resolution::DynamicDns {
        check_dynamic(fields, entry);
    }
}

fn check_hosts(fields: &Fields<'_>, entry: &ServiceEntry) {
    if entry.hosts.is_empty() {
        fields.reject("hosts", "at least one host is required");
    }
    for (n, host) in entry.hosts.iter().enumerate() {
        let (path, host) = (format!("hosts[{n}]"), host.as_str());
        let reason = || {
            format!(
                "`{host}` is not a valid host of a ServiceEntry: expected a DNS name or a wildcard such as `*.example.com`"
            )
        };
        if host == "*" || !(is_wildcard_domain(host) || is_admitted_host(host)) {
            fields.reject(&path, reason());
        } else if !is_admitted_host(host) {
            fields.refuse(&path, reason());
        }
        let partial = host.len() > 1 && host.contains('*') && !host.starts_with("*.");
        if partial && entry.resolution != Resolution::DynamicDns {
            fields.warn(&path, "`*` replaces whole labels only: use the form `*.example.com`");
        }
    }
    // A TCP stream does not contain a host name, so one address cannot serve two hosts.
    let has_host_name = |protocol: Protocol| protocol.is_http() || protocol.is_tls();
    if entry.resolution != Resolution::Passthrough
        && entry.hosts.len() > 1
        && let Some(n) = entry.ports.iter().position(|port| !has_host_name(port.protocol))
    {
        fields.refuse(
            &format!("ports[{n}].protocol"),
            "several hosts require protocol HTTP, HTTPS, HTTP2, GRPC or TLS: other protocols have no host name",
        );
    }
}

fn check_ports(fields: &Fields<'_>, entry: &ServiceEntry) {
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (n, port) in entry.ports.iter().enumerate() {
        let path = |field: &str| format!("ports[{n}].{field}");
        if port.number == 0 {
            fields.reject(&path("number"), "expected a port from 1 to 65535");
        }
        if port.name.is_empty() {
            fields.reject(&path("name"), "the name of a port is required");
        } else if !is_any_case_label(&port.name) {
            fields.refuse(&path("name"), format!("`{}` is not a valid port name: expected a DNS label", port.name));
        }
        if !names.insert(&port.name) {
            fields.reject(&path("name"), format!("port {} is listed twice", port.name));
        }
        if !numbers.insert(port.number) {
            fields.reject(&path("number"), format!("port {} is listed twice", port.number));
        }
    }
}

fn check_endpoints(fields: &Fields<'_>, entry: &ServiceEntry) {
    let dns = entry.resolution.is_dns();
    let is_static = entry.resolution == Resolution::ClientSideLb;
    match entry.resolution {
        Resolution::Passthrough | Resolution::DynamicDns if !entry.endpoints.is_empty() => {
            fields.reject("endpoints", "`endpoints` is not supported for this resolution");
        }
        Resolution::DnsRoundRobinLb if entry.endpoints.len() > 1 => {
            fields.reject("endpoints", "resolution DNS_ROUND_ROBIN supports at most one endpoint");
        }
        _ => {}
    }
    if dns && entry.endpoints.is_empty() {
        for (n, host) in entry.hosts.iter().enumerate() {
            let path = format!("hosts[{n}]");
            if host.is_wildcard() && entry.workload_selector.is_none() {
                fields
                    .reject(&path, format!("`{host}` is not a DNS name that can be resolved: `endpoints` is required"));
            } else if !is_fqdn(host.as_str()) {
                fields
                    .refuse(&path, format!("`{host}` is not a DNS name that can be resolved: `endpoints` is required"));
            }
        }
    }
    let names: BTreeSet<&str> = entry.ports.iter().map(|port| port.name.as_str()).collect();
    for (n, endpoint) in entry.endpoints.iter().enumerate() {
        let path = format!("endpoints[{n}].address");
        let address = endpoint.address.as_str();
        let is_socket = address.starts_with(UNIX_PREFIX);
        let is_address = address.parse::<IpAddr>().is_ok();
        if is_static && !address.is_empty() && !is_socket && !is_address {
            fields.reject(&path, format!("`{address}` is not an IP address: resolution STATIC requires one"));
        } else if dns && !is_address && !is_fqdn(address) {
            fields.refuse(&path, format!("`{address}` is not a host name or an IP address"));
        }
        check_workload(fields, &path, endpoint);
        if is_static || dns {
            for name in endpoint.ports.keys().filter(|name| !names.contains(name.as_str())) {
                fields.refuse(&format!("endpoints[{n}].ports[{name}]"), "the ServiceEntry has no port with this name");
            }
        }
        if is_static && is_socket && entry.ports.len() != 1 {
            fields.refuse(&path, "a Unix domain socket requires exactly one port");
        }
    }
}

/// Checks a ServiceEntry with resolution DYNAMIC_DNS, whose hosts are resolved per request by their HTTP or TLS name.
fn check_dynamic(fields: &Fields<'_>, entry: &ServiceEntry) {
    for (n, host) in entry.hosts.iter().enumerate().filter(|(_, host)| !host.is_wildcard()) {
        fields
            .refuse(&format!("hosts[{n}]"), format!("`{host}` is not a wildcard: resolution DYNAMIC_DNS requires one"));
    }
    if !entry.addresses.is_empty() {
        fields.refuse("addresses", "`addresses` is not supported for resolution DYNAMIC_DNS");
    }
    for (n, port) in entry.ports.iter().enumerate() {
        if !matches!(port.protocol, Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::Tls) {
            fields.refuse(
                &format!("ports[{n}].protocol"),
                "resolution DYNAMIC_DNS supports protocols HTTP, HTTP2, GRPC and TLS",
            );
        }
    }
    let waypoint = entry.meta.labels.get(label::USE_WAYPOINT).filter(|name| !name.is_empty());
    if !entry.mesh_external && waypoint.is_some_and(|name| !name.eq_ignore_ascii_case("none")) {
        fields.refuse("location", "resolution DYNAMIC_DNS with a waypoint requires location MESH_EXTERNAL");
    }
}
