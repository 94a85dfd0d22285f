//! What makes a VirtualService invalid.

use std::collections::BTreeSet;
use std::net::IpAddr;

use regex::Regex;
use sluice_model::{
    AbortStatus, Body, Decimal, Destination, HeaderOperations, Headers, Host, HttpFault, HttpMatch, HttpRoute,
    MESH_GATEWAY, RedirectPort, StringMatch, Text, VirtualService,
};

use crate::fields::Fields;
use crate::names::{is_dns_label, is_wildcard_domain};

const MEBIBYTE: usize = 1 << 20;

/// Notes everything wrong in a VirtualService that its types do not already forbid.
pub(super) fn check(fields: &Fields<'_>, vs: &VirtualService, hosts: &[Text], gateways: &[Text]) {
    if vs.is_delegate() {
        check_delegate(fields, vs, gateways);
    }
    check_gateways(fields, "gateways", gateways);
    check_hosts(fields, vs, hosts);
    if vs.http.is_empty() && vs.tls.is_empty() && vs.tcp.is_empty() {
        fields.reject("", "http, tcp or tls is needed");
    }
    for (n, route) in vs.http.iter().enumerate() {
        check_http(&At { fields, path: format!("http[{n}]") }, route, vs);
    }
    for (n, route) in vs.tls.iter().enumerate() {
        let at = At { fields, path: format!("tls[{n}]") };
        if route.matches.is_empty() {
            at.reject("match", "a TLS route needs a match");
        }
        for (m, matched) in route.matches.iter().enumerate() {
            let at = at.element("match", m);
            if matched.sni_hosts.is_empty() {
                at.reject("sniHosts", "a TLS match needs a server name");
            }
            for name in &matched.sni_hosts {
                let name = Host::new(name);
                if !vs.hosts.iter().any(|host| host.contains(&name)) {
                    at.reject("sniHosts", format!("`{name}` is not within the hosts of the VirtualService"));
                }
            }
            check_subnets(&at, &matched.destination_subnets);
        }
        check_weights(&at, route.route.iter().map(|d| (&d.destination, d.weight)));
        if route.route.is_empty() {
            at.reject("route", "a TLS route needs a destination");
        }
    }
    for (n, route) in vs.tcp.iter().enumerate() {
        let at = At { fields, path: format!("tcp[{n}]") };
        for (m, matched) in route.matches.iter().enumerate() {
            check_subnets(&at.element("match", m), &matched.destination_subnets);
        }
        check_weights(&at, route.route.iter().map(|d| (&d.destination, d.weight)));
        if route.route.is_empty() {
            at.reject("route", "a TCP route needs a destination");
        }
    }
}

/// A place within the spec.
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

    fn warn(&self, name: &str, reason: impl Into<Text>) {
        self.fields.warn(&self.of(name), reason);
    }

    fn of(&self, name: &str) -> String {
        if name.is_empty() { self.path.clone() } else { format!("{}.{name}", self.path) }
    }
}

fn check_delegate(fields: &Fields<'_>, vs: &VirtualService, gateways: &[Text]) {
    if !gateways.is_empty() {
        fields.reject("gateways", "a delegate, which has no hosts, cannot have gateways");
    }
    if !vs.tls.is_empty() {
        fields.reject("tls", "a delegate, which has no hosts, cannot have TLS routes");
    }
    if !vs.tcp.is_empty() {
        fields.reject("tcp", "a delegate, which has no hosts, cannot have TCP routes");
    }
}

fn check_gateways(fields: &Fields<'_>, name: &str, gateways: &[Text]) {
    for gateway in gateways {
        let valid = match gateway.split_once('/') {
            Some((namespace, gateway)) => (namespace == "." || is_dns_label(namespace)) && is_dns_label(gateway),
            None => is_wildcard_domain(gateway) && !gateway.starts_with('*'),
        };
        if !valid {
            fields.reject(name, format!("`{gateway}` is no gateway name; namespace/name is expected"));
        }
    }
}

fn check_hosts(fields: &Fields<'_>, vs: &VirtualService, written: &[Text]) {
    // Bound to a gateway by server name, a host may be the name of a cluster.
    let by_sni = vs.tls.iter().any(|route| route.matches.iter().any(|m| !m.sni_hosts.is_empty()));
    let only_gateways = !vs.gateways.is_empty() && !vs.is_mesh();
    let mut valid = true;
    for (n, host) in written.iter().enumerate() {
        let cluster_name = only_gateways && by_sni && host.starts_with("outbound_");
        if !is_wildcard_domain(host) && !cluster_name && host.parse::<IpAddr>().is_err() {
            fields.reject(&format!("hosts[{n}]"), format!("`{host}` is no host"));
            valid = false;
        } else if **host == *"*" && vs.is_mesh() {
            fields.reject(&format!("hosts[{n}]"), format!("the host `*` is not allowed on gateway `{MESH_GATEWAY}`"));
            valid = false;
        }
    }
    if valid {
        let hosts: Vec<Host> = written.iter().map(|host| Host::new(host)).collect();
        for (n, host) in hosts.iter().enumerate() {
            if let Some(earlier) = hosts.iter().take(n).find(|earlier| earlier.overlaps(host)) {
                fields.reject(&format!("hosts[{n}]"), format!("`{host}` overlaps host `{earlier}`"));
            }
        }
    }
}

fn check_http(at: &At<'_, '_>, route: &HttpRoute, vs: &VirtualService) {
    check_conflicts(at, route, vs.is_delegate());
    for (n, matched) in route.matches.iter().enumerate() {
        check_match(&at.element("match", n), matched, vs);
    }
    if let Some(headers) = &route.headers {
        check_headers(&at.field("headers"), headers);
    }
    if let Some(cors) = &route.cors {
        let at = at.field("corsPolicy");
        for (n, origin) in cors.allow_origins.iter().enumerate() {
            check_string(&at.element("allowOrigins", n), "", Some(origin));
        }
        if cors.max_age.is_some_and(|age| age.subsec_nanos() > 0) {
            at.reject("maxAge", "only whole seconds are possible");
        }
    }
    if let Some(fault) = &route.fault {
        check_fault(&at.field("fault"), fault);
    }
    if route.mirror_percent.is_some_and(|percent| percent > 100) {
        at.reject("mirrorPercent", "more than 100");
    }
    check_percentage(at, "mirrorPercentage", route.mirror_percentage);
    if let Some(mirror) = &route.mirror {
        check_destination(&at.field("mirror"), mirror);
    }
    for (n, mirror) in route.mirrors.iter().enumerate() {
        let at = at.element("mirrors", n);
        check_percentage(&at, "percentage", mirror.percentage);
        check_destination(&at.field("destination"), &mirror.destination);
    }
    if let Some(redirect) = &route.redirect {
        let at = at.field("redirect");
        if !redirect.uri.is_empty() && !redirect.prefix_rewrite.is_empty() {
            at.reject("", "only one of uri and prefixRewrite can be set");
        }
        let empty = [&redirect.uri, &redirect.prefix_rewrite, &redirect.authority, &redirect.scheme];
        if empty.iter().all(|text| text.is_empty()) && redirect.port == RedirectPort::FromProtocol {
            at.reject("", "uri, prefixRewrite, authority, scheme or a port is needed");
        }
        if redirect.code != 0 && !(300..400).contains(&redirect.code) {
            at.reject("redirectCode", format!("{} is no status of a redirect", redirect.code));
        }
        if !matches!(redirect.scheme.as_str(), "" | "http" | "https") {
            at.reject("scheme", format!("`{}` is neither http nor https", redirect.scheme));
        }
    }
    if let Some(response) = &route.direct_response {
        let at = at.field("directResponse");
        let size = match &response.body {
            Some(Body::Text(text)) => text.len(),
            Some(Body::Bytes(bytes)) => bytes.len(),
            None => 0,
        };
        if size > MEBIBYTE {
            at.reject("body", "a body cannot be larger than 1 MiB");
        }
        if !(200..600).contains(&response.status) {
            at.reject("status", format!("{} is no HTTP status of an answer", response.status));
        }
    }
    if let Some(rewrite) = &route.rewrite {
        let at = at.field("rewrite");
        if !rewrite.uri.is_empty() && rewrite.regex.is_some() {
            at.reject("", "only one of uri and uriRegexRewrite can be set");
        }
        if rewrite.uri.is_empty() && rewrite.regex.is_none() && rewrite.authority.is_empty() {
            at.reject("", "uri, uriRegexRewrite or authority is needed");
        }
        if let Some((pattern, _)) = &rewrite.regex {
            check_regex(&at, "uriRegexRewrite.match", pattern);
        }
    }
    for (n, destination) in route.route.iter().enumerate() {
        if let Some(headers) = &destination.headers {
            check_headers(&at.element("route", n).field("headers"), headers);
        }
    }
    check_weights(at, route.route.iter().map(|d| (&d.destination, d.weight)));
}

fn check_conflicts(at: &At<'_, '_>, route: &HttpRoute, in_delegate: bool) {
    if route.delegate.is_some() {
        if in_delegate {
            at.reject("delegate", "a delegate cannot delegate");
        }
        if route.redirect.is_some() || !route.route.is_empty() {
            at.reject("delegate", "a route that delegates has no route or redirect of its own");
        }
        return;
    }
    let actions = [
        ("redirect", route.redirect.is_some()),
        ("directResponse", route.direct_response.is_some()),
        ("route", !route.route.is_empty()),
    ];
    let set: Vec<&str> = actions.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    match set.as_slice() {
        [] => at.reject("", "route, redirect or directResponse is needed"),
        [first, second, ..] => at.reject(second, format!("cannot be set beside {first}")),
        [_] => {}
    }
    if route.redirect.is_some() || route.direct_response.is_some() {
        if route.fault.is_some() {
            at.reject("fault", "cannot be set beside redirect or directResponse");
        }
        if route.rewrite.is_some() {
            at.reject("rewrite", "cannot be set beside redirect or directResponse");
        }
    }
    if route.mirror.is_some() && !route.mirrors.is_empty() {
        at.reject("mirrors", "cannot be set beside mirror");
    }
}

fn check_match(at: &At<'_, '_>, matched: &HttpMatch, vs: &VirtualService) {
    for (field, headers) in [("headers", &matched.headers), ("withoutHeaders", &matched.without_headers)] {
        for (name, value) in headers {
            if name.is_empty() {
                at.reject(field, "a header needs a name");
            }
            let claims = name.to_ascii_lowercase().starts_with("@request.auth.claims");
            if claims && vs.is_mesh() {
                at.reject(field, "claims of a token can only be matched at gateways");
            }
            // `*` alone is the sign for a header that is present.
            if !matches!(value, Some(StringMatch::Regex(regex)) if regex.as_str() == "*") {
                check_string(at, &format!("{field}[{name}]"), value.as_ref());
            }
        }
    }
    for (name, value) in &matched.query_params {
        if !matches!(value, Some(StringMatch::Regex(regex)) if regex.as_str() == "*") {
            check_string(at, &format!("queryParams[{name}]"), value.as_ref());
        }
    }
    if let Some(StringMatch::Regex(regex)) = &matched.uri {
        check_regex(at, "uri", regex);
    }
    check_string(at, "scheme", matched.scheme.as_ref());
    check_string(at, "method", matched.method.as_ref());
    check_string(at, "authority", matched.authority.as_ref());
    if matched.port > 65535 {
        at.reject("port", format!("{} is no port", matched.port));
    }
    if !matched.source_namespace.is_empty() && !is_dns_label(&matched.source_namespace) {
        at.reject("sourceNamespace", format!("`{}` is no namespace", matched.source_namespace));
    }
}

fn check_string(at: &At<'_, '_>, name: &str, value: Option<&StringMatch>) {
    match value {
        Some(StringMatch::Prefix(prefix)) if prefix.is_empty() => at.reject(name, "an empty prefix matches everything"),
        Some(StringMatch::Regex(regex)) => check_regex(at, name, regex),
        _ => {}
    }
}

fn check_regex(at: &At<'_, '_>, name: &str, pattern: &str) {
    if pattern.is_empty() {
        at.reject(name, "an empty regular expression");
    } else if let Err(error) = Regex::new(pattern) {
        // The last line says what is wrong; those before it point at the place.
        let text = error.to_string();
        at.reject(name, text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned());
    }
}

fn check_headers(at: &At<'_, '_>, headers: &Headers) {
    let internal = |name: &str| name.starts_with(':') || name.eq_ignore_ascii_case("host");
    let authority = |name: &str| name.eq_ignore_ascii_case(":authority") || name.eq_ignore_ascii_case("host");
    let check = |field: &str, operations: &HeaderOperations, may_set_authority: bool| {
        for name in operations.set.keys().chain(operations.add.keys()) {
            if name.is_empty() || (internal(name) && !(may_set_authority && authority(name))) {
                at.reject(field, format!("header `{name}` cannot be set"));
            }
        }
        for name in &operations.remove {
            if name.is_empty() || internal(name) {
                at.reject(field, format!("header `{name}` cannot be removed"));
            }
        }
    };
    check("request", &headers.request, true);
    check("response", &headers.response, false);
}

fn check_fault(at: &At<'_, '_>, fault: &HttpFault) {
    if fault.delay.is_none() && fault.abort.is_none() {
        at.reject("", "a delay or an abort is needed");
    }
    if let Some(delay) = &fault.delay {
        check_percentage(at, "delay.percentage", delay.percentage);
    }
    if let Some(abort) = &fault.abort {
        check_percentage(at, "abort.percentage", abort.percentage);
        match abort.status {
            Some(AbortStatus::Http(status)) if !(200..600).contains(&status) => {
                at.reject("abort.httpStatus", format!("{status} is no HTTP status of an answer"));
            }
            None => at.warn("abort", "without a status nothing is aborted"),
            _ => {}
        }
    }
}

fn check_percentage(at: &At<'_, '_>, name: &str, percentage: Option<Decimal>) {
    let range = Decimal::default()..=Decimal::from_f64(100.0);
    if percentage.is_some_and(|percentage| !range.contains(&percentage)) {
        at.reject(name, "a percentage is between 0 and 100");
    }
}

fn check_destination(at: &At<'_, '_>, destination: &Destination) {
    let host = destination.host.as_str();
    // An empty host was noted when it was read.
    if !host.is_empty() && (host == "*" || !is_wildcard_domain(host)) {
        at.reject("host", format!("`{host}` is no host"));
    }
    if destination.port.is_some_and(|port| !(1..=65535).contains(&port)) {
        at.reject("port.number", "no port");
    }
}

fn check_weights<'d>(at: &At<'_, '_>, destinations: impl Iterator<Item = (&'d Destination, i32)>) {
    let (mut count, mut total) = (0, 0i64);
    for (n, (destination, weight)) in destinations.enumerate() {
        check_destination(&at.element("route", n).field("destination"), destination);
        if weight < 0 {
            at.element("route", n).reject("weight", "a weight cannot be negative");
        }
        count += 1;
        total += i64::from(weight);
    }
    if count > 1 && total == 0 {
        at.reject("route", "all weights are zero");
    }
}

fn check_subnets(at: &At<'_, '_>, subnets: &[Text]) {
    for subnet in subnets.iter().collect::<BTreeSet<_>>() {
        if subnet.parse::<ipnet::IpNet>().is_err() && subnet.parse::<IpAddr>().is_err() {
            at.reject("destinationSubnets", format!("`{subnet}` is no subnet"));
        }
    }
}
