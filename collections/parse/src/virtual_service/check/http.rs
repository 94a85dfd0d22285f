//! Validation of HTTP routes.

use sluice_model::{
    AbortStatus, CLAIM_PREFIX, CorsPolicy, Decimal, DirectResponse, DirectResponseBody, HeaderOperations, Headers,
    HttpFault, HttpMatch, HttpRedirect, HttpRewrite, HttpRoute, RedirectPort, StringMatch, VirtualService, claim_path,
};

use super::{At, check_destination, check_weights};
use crate::admission::{check_labels, is_port};
use crate::fields::one_of;
use crate::header::{is_header_name, is_header_value};
use crate::names::is_any_case_label;

const KIBIBYTE: usize = 1 << 10;
/// Maximum length of a regular expression: the compiled form of a longer one may exceed Envoy's limit.
const MAX_REGEX_BYTES: usize = 1024;
const PSEUDO_HEADERS: [&str; 5] = [":method", ":scheme", ":authority", ":path", ":status"];
const CORS_METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*"];

pub(super) fn check_http(at: &At<'_, '_>, route: &HttpRoute, vs: &VirtualService) {
    check_conflicts(at, route, vs.is_delegate());
    for (n, matched) in route.matches.iter().enumerate() {
        check_match(&at.element("match", n), matched, vs);
    }
    if let Some(headers) = &route.headers {
        check_headers(&at.field("headers"), headers);
    }
    if let Some(cors) = &route.cors {
        check_cors(&at.field("corsPolicy"), cors);
    }
    if let Some(fault) = &route.fault {
        check_fault(&at.field("fault"), fault);
    }
    check_mirrors(at, route);
    if let Some(redirect) = &route.redirect {
        check_redirect(&at.field("redirect"), redirect, route);
    }
    if let Some(response) = &route.direct_response {
        check_direct_response(&at.field("directResponse"), response);
    }
    if let Some(rewrite) = &route.rewrite {
        check_rewrite(&at.field("rewrite"), rewrite);
    }
    check_authority(at, route);
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
            at.reject("delegate", "a delegate must not delegate to another VirtualService");
        }
        if route.redirect.is_some() || !route.route.is_empty() {
            at.reject("delegate", "`delegate` and `route` or `redirect` are mutually exclusive");
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
        [] => at.reject("", "`route`, `redirect` or `directResponse` is required"),
        [first, second, ..] => at.reject(second, format!("`{second}` and `{first}` are mutually exclusive")),
        [_] => {}
    }
    if route.redirect.is_some() || route.direct_response.is_some() {
        if route.fault.is_some() {
            at.reject("fault", "this field is not supported with `redirect` or `directResponse`");
        }
        if route.rewrite.is_some() {
            at.reject("rewrite", "this field is not supported with `redirect` or `directResponse`");
        }
    }
    if route.mirror.is_some() && !route.mirrors.is_empty() {
        at.reject("mirrors", "`mirrors` and `mirror` are mutually exclusive");
    }
}

fn check_match(at: &At<'_, '_>, matched: &HttpMatch, vs: &VirtualService) {
    for (field, headers) in [("headers", &matched.headers), ("withoutHeaders", &matched.without_headers)] {
        for (name, value) in headers {
            let path = format!("{field}[{name}]");
            let claim = claim_path(name).is_some();
            if name.is_empty() {
                at.reject(field, "the name of a header is required");
            } else if !claim && !PSEUDO_HEADERS.contains(&name.as_str()) && !is_header_name(name) {
                at.refuse(&path, format!("`{name}` is not a valid header name"));
            }
            if name.to_ascii_lowercase().starts_with(CLAIM_PREFIX) && vs.is_mesh() {
                at.reject(field, "a match on token claims is supported only at gateways");
            }
            // `*` alone means that the header is present. Admission accepts it only in `withoutHeaders`.
            if !matches!(value, Some(StringMatch::Regex(regex)) if regex.as_str() == "*") {
                check_string(at, &path, value.as_ref());
            } else if field == "headers" {
                at.refuse(&path, "`*` is not a regular expression");
            }
        }
    }
    for (name, value) in &matched.query_params {
        let path = format!("queryParams[{name}]");
        if !matches!(value, Some(StringMatch::Regex(regex)) if regex.as_str() == "*") {
            check_string(at, &path, value.as_ref());
        } else {
            at.refuse(&path, "`*` is not a regular expression");
        }
    }
    if let Some(StringMatch::Regex(regex)) = &matched.uri {
        check_regex(at, "uri", regex);
    }
    check_string(at, "scheme", matched.scheme.as_ref());
    check_string(at, "method", matched.method.as_ref());
    check_string(at, "authority", matched.authority.as_ref());
    if matched.port > 65535 {
        at.reject("port", format!("expected a port from 1 to 65535, found {}", matched.port));
    }
    if !matched.source_namespace.is_empty() && !is_any_case_label(&matched.source_namespace) {
        at.reject(
            "sourceNamespace",
            format!("`{}` is not a namespace: expected a DNS label", matched.source_namespace),
        );
    }
    check_labels(at.fields, &at.of("sourceLabels"), &matched.source_labels);
}

fn check_string(at: &At<'_, '_>, name: &str, value: Option<&StringMatch>) {
    match value {
        Some(StringMatch::Prefix(prefix)) if prefix.is_empty() => {
            at.reject(name, "an empty prefix is not supported: it matches every request")
        }
        Some(StringMatch::Regex(regex)) => check_regex(at, name, regex),
        _ => {}
    }
}

fn check_regex(at: &At<'_, '_>, name: &str, pattern: &str) {
    if pattern.is_empty() {
        at.reject(name, "a regular expression must not be empty");
    } else if let Err(error) = at.fields.findings().patterns().check(pattern) {
        at.reject(name, error.to_string());
    } else if pattern.len() > MAX_REGEX_BYTES {
        at.refuse(name, format!("a regular expression must have at most {MAX_REGEX_BYTES} bytes"));
    }
}

fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case(":authority") || name.eq_ignore_ascii_case("host")
}

fn check_headers(at: &At<'_, '_>, headers: &Headers) {
    let internal = |name: &str| name.starts_with(':') || name.eq_ignore_ascii_case("host");
    let check = |field: &str, operations: &HeaderOperations, may_set_authority: bool| {
        for (operation, values) in [("set", &operations.set), ("add", &operations.add)] {
            for (name, value) in values {
                if name.is_empty() || (internal(name) && !(may_set_authority && is_authority(name))) {
                    at.reject(field, format!("header `{name}` must not be changed"));
                }
                if let Err(reason) = is_header_value(value) {
                    at.refuse(&format!("{field}.{operation}[{name}]"), reason);
                }
            }
        }
        for (n, name) in operations.remove.iter().enumerate() {
            if name.is_empty() || internal(name) {
                at.reject(&format!("{field}.remove[{n}]"), format!("header `{name}` must not be removed"));
            }
        }
    };
    check("request", &headers.request, true);
    check("response", &headers.response, false);
}

/// Checks that the authority is rewritten in only one of three ways.
fn check_authority(at: &At<'_, '_>, route: &HttpRoute) {
    let rewritten = route.rewrite.as_ref().is_some_and(|rewrite| !rewrite.authority.is_empty());
    let request = route.headers.as_ref().map(|headers| &headers.request);
    let values = request.into_iter().flat_map(|request| request.set.iter().chain(&request.add));
    let set = values.filter(|(name, value)| is_authority(name) && !value.is_empty()).count();
    if set + usize::from(rewritten) > 1 {
        at.refuse("headers.request", "the authority is rewritten in more than one way");
    }
}

fn check_cors(at: &At<'_, '_>, cors: &CorsPolicy) {
    for (n, origin) in cors.allow_origins.iter().enumerate() {
        let at = at.element("allowOrigins", n);
        match origin {
            StringMatch::Exact(text) if text.is_empty() => at.refuse("", "an origin must not be empty"),
            origin => check_string(&at, "", Some(origin)),
        }
    }
    for (n, method) in cors.allow_methods.iter().enumerate() {
        if !CORS_METHODS.contains(&method.as_str()) {
            at.refuse(
                &format!("allowMethods[{n}]"),
                format!("`{method}` is not an HTTP method; expected {}", one_of(CORS_METHODS.into_iter())),
            );
        }
    }
    for (field, names) in [("allowHeaders", &cors.allow_headers), ("exposeHeaders", &cors.expose_headers)] {
        for (n, name) in names.iter().enumerate() {
            if name.as_str() != "*" && !is_header_name(name) {
                at.refuse(&format!("{field}[{n}]"), format!("`{name}` is not a valid header name"));
            }
        }
    }
    if cors.max_age.is_some_and(|age| age.subsec_nanos() > 0) {
        at.reject("maxAge", "a duration must be a whole number of seconds");
    }
}

fn check_fault(at: &At<'_, '_>, fault: &HttpFault) {
    if fault.delay.is_none() && fault.abort.is_none() {
        at.reject("", "`delay` or `abort` is required");
    }
    if let Some(delay) = &fault.delay {
        check_share(at, "delay.percentage", delay.percentage);
    }
    if let Some(abort) = &fault.abort {
        check_share(at, "abort.percentage", abort.percentage);
        match abort.status {
            Some(AbortStatus::Http(status)) if !(200..600).contains(&status) => {
                at.reject("abort.httpStatus", format!("expected an HTTP status from 200 to 599, found {status}"));
            }
            None => at.warn("abort", "the abort has no status, so it has no effect"),
            _ => {}
        }
    }
}

/// Checks a percentage of requests: 0, or at least one in a million.
fn check_share(at: &At<'_, '_>, name: &str, percentage: Option<Decimal>) {
    check_percentage(at, name, percentage);
    let least = Decimal::from_f64(0.0001);
    if percentage.is_some_and(|percentage| percentage > Decimal::default() && percentage < least) {
        at.refuse(name, "expected 0 or a percentage of at least 0.0001");
    }
}

fn check_percentage(at: &At<'_, '_>, name: &str, percentage: Option<Decimal>) {
    let range = Decimal::default()..=Decimal::from_f64(100.0);
    if percentage.is_some_and(|percentage| !range.contains(&percentage)) {
        at.reject(name, "expected a percentage from 0 to 100");
    }
}

fn check_mirrors(at: &At<'_, '_>, route: &HttpRoute) {
    match route.mirror_percent {
        Some(percent) if percent > 100 => {
            at.reject("mirrorPercent", format!("expected a percentage from 0 to 100, found {percent}"))
        }
        Some(_) => at.warn("mirrorPercent", "deprecated: use `mirrorPercentage`"),
        None => {}
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
}

fn check_redirect(at: &At<'_, '_>, redirect: &HttpRedirect, route: &HttpRoute) {
    if !redirect.uri.is_empty() && !redirect.prefix_rewrite.is_empty() {
        at.reject("", "`uri` and `prefixRewrite` are mutually exclusive");
    }
    let other = |uri: &StringMatch| !matches!(uri, StringMatch::Prefix(_));
    if !redirect.prefix_rewrite.is_empty() && route.matches.iter().any(|m| m.uri.as_ref().is_some_and(other)) {
        at.refuse("prefixRewrite", "`prefixRewrite` requires that every match has a URI prefix");
    }
    let empty = [&redirect.uri, &redirect.prefix_rewrite, &redirect.authority, &redirect.scheme];
    if empty.iter().all(|text| text.is_empty()) && redirect.port == RedirectPort::FromProtocol {
        at.reject(
            "",
            "at least one of `uri`, `prefixRewrite`, `authority`, `scheme`, `port` and `derivePort` is required",
        );
    }
    if redirect.code != 0 && !(300..400).contains(&redirect.code) {
        at.reject("redirectCode", format!("expected 301, 302, 303, 307 or 308, found {}", redirect.code));
    }
    if !matches!(redirect.scheme.as_str(), "" | "http" | "https") {
        at.reject("scheme", format!("expected `http` or `https`, found `{}`", redirect.scheme));
    }
    if let RedirectPort::Port(port) = redirect.port
        && port != 0
        && !is_port(port)
    {
        at.refuse("port", format!("expected a port from 1 to 65535, found {port}"));
    }
}

fn check_direct_response(at: &At<'_, '_>, response: &DirectResponse) {
    let size = match &response.body {
        Some(DirectResponseBody::Text(text)) => text.len(),
        Some(DirectResponseBody::Bytes(bytes)) => bytes.len(),
        None => 0,
    };
    if size > KIBIBYTE * KIBIBYTE {
        at.reject("body", "a body must have at most 1 MiB");
    } else if size > 100 * KIBIBYTE {
        at.warn("body", "a body above 100 KiB increases the memory of the control plane and of every proxy");
    }
    if !(200..600).contains(&response.status) {
        at.reject("status", format!("expected an HTTP status from 200 to 599, found {}", response.status));
    }
}

fn check_rewrite(at: &At<'_, '_>, rewrite: &HttpRewrite) {
    if !rewrite.uri.is_empty() && rewrite.regex.is_some() {
        at.reject("", "`uri` and `uriRegexRewrite` are mutually exclusive");
    }
    if rewrite.uri.is_empty() && rewrite.regex.is_none() && rewrite.authority.is_empty() {
        at.reject("", "`uri`, `uriRegexRewrite` or `authority` is required");
    }
    if let Some((pattern, to)) = &rewrite.regex {
        check_regex(at, "uriRegexRewrite.match", pattern);
        if to.is_empty() {
            at.refuse("uriRegexRewrite.rewrite", "`rewrite` is required: the replacement of the match");
        }
    }
}
