//! Validation of VirtualServices.

mod http;
mod unreachable;

use std::net::IpAddr;

use sluice_model::{Destination, Host, L4Match, Labels, MESH_GATEWAY, Severity, Text, TlsMatch, VirtualService};

use crate::Fields;
use crate::admission::{check_export_to, check_labels, is_port, is_subnet};
use crate::host_index::HostIndex;
use crate::names::{is_admitted_host, is_any_case_label, is_dns_label, is_fqdn, is_wildcard_domain};

/// Checks a VirtualService after it is parsed.
pub(super) fn check(fields: &Fields<'_>, vs: &VirtualService, hosts: &[Text], gateways: &[Text]) {
    if vs.is_delegate() {
        check_delegate(fields, vs, gateways);
    }
    check_gateways(fields, "gateways", gateways);
    check_hosts(fields, vs, hosts);
    check_export_to(fields, &fields.texts("exportTo"), &vs.namespace, false);
    if vs.http.is_empty() && vs.tls.is_empty() && vs.tcp.is_empty() {
        fields.reject("", "`http`, `tcp` or `tls` is required");
    }
    for (n, route) in vs.http.iter().enumerate() {
        http::check_http(&At { fields, path: format!("http[{n}]") }, route, vs);
    }
    let served: HostIndex = vs.hosts.iter().collect();
    for (n, route) in vs.tls.iter().enumerate() {
        let at = At { fields, path: format!("tls[{n}]") };
        if route.matches.is_empty() {
            at.reject("match", "`match` is required in a TLS route");
        }
        for (m, matched) in route.matches.iter().enumerate() {
            check_tls_match(&at.element("match", m), matched, &served);
        }
        check_weights(&at, route.route.iter().map(|d| (&d.destination, d.weight)));
        if route.route.is_empty() {
            at.reject("route", "`route` is required in a TLS route");
        }
    }
    for (n, route) in vs.tcp.iter().enumerate() {
        let at = At { fields, path: format!("tcp[{n}]") };
        for (m, matched) in route.matches.iter().enumerate() {
            check_tcp_match(&at.element("match", m), matched);
        }
        check_weights(&at, route.route.iter().map(|d| (&d.destination, d.weight)));
        if route.route.is_empty() {
            at.reject("route", "`route` is required in a TCP route");
        }
    }
    unreachable::check(fields, vs);
}

/// A field of the spec, by its path.
struct At<'a, 'b> {
    fields: &'a Fields<'b>,
    path: String,
}

impl<'a, 'b> At<'a, 'b> {
    fn element(&self, name: &str, index: usize) -> At<'a, 'b> {
        At { fields: self.fields, path: format!("{}.{name}[{index}]", self.path) }
    }

    fn field(&self, name: &str) -> At<'a, 'b> {
        At { fields: self.fields, path: format!("{}.{name}", self.path) }
    }

    fn reject(&self, name: &str, reason: impl Into<Text>) {
        self.fields.reject(&self.of(name), reason);
    }

    fn refuse(&self, name: &str, reason: impl Into<Text>) {
        self.fields.refuse(&self.of(name), reason);
    }

    fn warn(&self, name: &str, reason: impl Into<Text>) {
        self.fields.warn(&self.of(name), reason);
    }

    fn of(&self, name: &str) -> String {
        if name.is_empty() { self.path.clone() } else { format!("{}.{name}", self.path) }
    }
}

fn check_delegate(fields: &Fields<'_>, vs: &VirtualService, gateways: &[Text]) {
    if !gateways.is_empty() {
        fields.reject("gateways", "a VirtualService without hosts is a delegate: `gateways` is not supported");
    }
    if !vs.tls.is_empty() {
        fields.reject("tls", "a VirtualService without hosts is a delegate: `tls` is not supported");
    }
    if !vs.tcp.is_empty() {
        fields.reject("tcp", "a VirtualService without hosts is a delegate: `tcp` is not supported");
    }
}

/// Checks the gateway names of a VirtualService or of one of its matches, as they are written.
pub(super) fn check_gateways(fields: &Fields<'_>, name: &str, gateways: &[Text]) {
    for (n, gateway) in gateways.iter().enumerate() {
        let path = format!("{name}[{n}]");
        let (applies, admitted) = match gateway.split_once('/') {
            Some((namespace, gateway)) => {
                let applies = (namespace == "." || is_dns_label(namespace)) && is_dns_label(gateway);
                (applies, is_any_case_label(namespace) && is_any_case_label(gateway))
            }
            None => (is_wildcard_domain(gateway) && !gateway.starts_with('*'), is_fqdn(gateway)),
        };
        if !applies && !admitted {
            fields.reject(&path, format!("`{gateway}` is not a gateway name: expected `NAME` or `NAMESPACE/NAME`"));
        } else if !admitted {
            fields.refuse(&path, format!("`{gateway}` is not a gateway name: expected `NAME` or `NAMESPACE/NAME`"));
        }
        let mut parts = gateway.split('.');
        if let (false, Some(name), Some(namespace)) = (gateway.contains('/'), parts.next(), parts.next()) {
            fields.warn(&path, format!("`{gateway}` is a deprecated form of a gateway name: use `{namespace}/{name}`"));
        }
    }
}

/// Whether a name is that of a cluster, as AUTO_PASSTHROUGH gateways use it for SNI: `outbound_.80_.subset_.host`.
fn is_cluster_name(name: &str) -> bool {
    let parts: Vec<&str> = name.split('_').collect();
    let has = |part: Option<&&str>, of: fn(char) -> bool| part.is_some_and(|part| part.chars().any(of));
    parts.first() == Some(&"outbound")
        && has(parts.get(1), |c| c.is_ascii_digit())
        && has(parts.get(3), |c| c.is_ascii_alphabetic())
}

fn check_hosts(fields: &Fields<'_>, vs: &VirtualService, written: &[Text]) {
    // In a route that matches SNI at a gateway, a host may be the name of a cluster.
    let by_sni = vs.tls.iter().any(|route| route.matches.iter().any(|m| !m.sni_hosts.is_empty()));
    let only_gateways = !vs.gateways.is_empty() && !vs.is_mesh();
    let mut valid = true;
    for (n, host) in written.iter().enumerate() {
        let path = format!("hosts[{n}]");
        let cluster_name = only_gateways && by_sni && host.starts_with("outbound_");
        let is_address = host.parse::<IpAddr>().is_ok();
        if !is_wildcard_domain(host) && !cluster_name && !is_address && !is_admitted_host(host) {
            fields.reject(&path, format!("`{host}` is not a valid host"));
            valid = false;
        } else if **host == *"*" && vs.is_mesh() {
            fields.reject(&path, format!("host `*` is not supported for gateway `{MESH_GATEWAY}`"));
            valid = false;
        } else if !(is_admitted_host(host) || is_address || cluster_name && is_cluster_name(host)) {
            fields.refuse(&path, format!("`{host}` is not a valid host"));
        }
    }
    if valid {
        let hosts: Vec<Host> = written.iter().map(|host| Host::new(host)).collect();
        let mut index = HostIndex::default();
        for (n, host) in hosts.iter().enumerate() {
            if index.overlaps(host) {
                // The name is only needed for a finding that is kept.
                let earlier: &[Host] = if fields.findings().keeps(Severity::Error) { &hosts[..n] } else { &[] };
                let earlier = earlier.iter().find(|earlier| earlier.overlaps(host));
                let earlier = earlier.map(Host::as_str).unwrap_or_default();
                fields.reject(&format!("hosts[{n}]"), format!("`{host}` overlaps host `{earlier}`"));
            }
            index.insert(host);
        }
    }
}

fn check_tls_match(at: &At<'_, '_>, matched: &TlsMatch, served: &HostIndex) {
    if matched.sni_hosts.is_empty() {
        at.reject("sniHosts", "`sniHosts` is required in a TLS match");
    }
    for (n, written) in matched.sni_hosts.iter().enumerate() {
        let path = format!("sniHosts[{n}]");
        if written.parse::<IpAddr>().is_ok() {
            at.warn(&path, "an IP address is not a valid SNI: most clients do not send it");
        }
        let name = Host::new(written);
        if !served.contains(&name) {
            at.reject(&path, format!("`{name}` does not match a host of the VirtualService"));
        } else if !is_admitted_host(written) && written.parse::<IpAddr>().is_err() && !is_cluster_name(written) {
            at.refuse(&path, format!("`{written}` is not a valid server name"));
        }
    }
    check_l4(at, &matched.destination_subnets, matched.port, &matched.source_labels);
}

fn check_tcp_match(at: &At<'_, '_>, matched: &L4Match) {
    check_l4(at, &matched.destination_subnets, matched.port, &matched.source_labels);
}

fn check_l4(at: &At<'_, '_>, subnets: &[Text], port: u32, source_labels: &Labels) {
    for (n, subnet) in subnets.iter().enumerate() {
        if !is_subnet(subnet) {
            at.reject(&format!("destinationSubnets[{n}]"), format!("`{subnet}` is not an IP address or a CIDR block"));
        }
    }
    if port != 0 && !is_port(port) {
        at.refuse("port", format!("expected a port from 1 to 65535, found {port}"));
    }
    check_labels(at.fields, &at.of("sourceLabels"), source_labels);
}

fn check_destination(at: &At<'_, '_>, destination: &Destination) {
    let host = destination.host.as_str();
    // The parser has reported an empty host.
    if !host.is_empty() && (host == "*" || !(is_wildcard_domain(host) || is_admitted_host(host))) {
        at.reject("host", format!("`{host}` is not a valid host"));
    } else if !host.is_empty() && !is_admitted_host(host) {
        at.refuse("host", format!("`{host}` is not a valid host"));
    }
    if !destination.subset.is_empty() && !is_any_case_label(&destination.subset) {
        at.refuse("subset", format!("`{}` is not a valid subset name: expected a DNS label", destination.subset));
    }
    if destination.port.is_some_and(|port| !is_port(port)) {
        at.reject("port.number", "expected a port from 1 to 65535");
    }
}

fn check_weights<'d>(at: &At<'_, '_>, destinations: impl Iterator<Item = (&'d Destination, i32)>) {
    let (mut count, mut total) = (0, 0i64);
    for (n, (destination, weight)) in destinations.enumerate() {
        check_destination(&at.element("route", n).field("destination"), destination);
        if weight < 0 {
            at.element("route", n).reject("weight", "expected an integer of at least 0");
        }
        count += 1;
        total += i64::from(weight);
    }
    if count > 1 && total == 0 {
        at.reject("route", "at least one weight must be above 0");
    }
}
