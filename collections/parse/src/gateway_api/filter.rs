//! Filters of routes and backends (G02).

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_model::gateway_api::{ExternalAuth, ExternalAuthProtocol, Mirror};
use sluice_model::{
    CorsPolicy, Decimal, HeaderOperations, Headers, HttpRedirect, HttpRewrite, RedirectPort, StringMatch, Text,
};

use super::reference::opt_port;
use super::route::{backend, check_hostname};
use crate::Fields;

/// The combined result of the filters of a rule.
#[derive(Default)]
pub(super) struct Filters {
    pub(super) headers: Option<Headers>,
    pub(super) redirect: Option<HttpRedirect>,
    pub(super) rewrite: Option<HttpRewrite>,
    pub(super) cors: Option<CorsPolicy>,
    /// Origins that CORS allows, as they are declared.
    pub(super) allow_origins: Vec<Text>,
    pub(super) mirrors: Vec<Mirror>,
    pub(super) external_auths: Vec<ExternalAuth>,
    /// Type of a filter that is not supported: the last one.
    pub(super) unsupported: Option<Text>,
}

/// Reads the filters of an HTTPRoute rule.
pub(super) fn http_filters(fields: &Fields<'_>) -> Filters {
    let mut filters = Filters::default();
    for filter in fields.objects("filters") {
        match filter.text("type").as_str() {
            "RequestRedirect" => filters.redirect = filter.read("requestRedirect", redirect),
            "URLRewrite" => filters.rewrite = filter.read("urlRewrite", rewrite).flatten(),
            "CORS" => {
                let (cors, origins) = filter.read("cors", cors).unzip();
                (filters.cors, filters.allow_origins) = (cors, origins.unwrap_or_default());
            }
            "ExternalAuth" => match filter.read("externalAuth", external_auth) {
                Some(auth) => filters.external_auths.push(auth),
                // Requests must not bypass it.
                None => unsupported(&filter, "ExternalAuth", &mut filters),
            },
            kind => grpc_filter(&filter, kind, &mut filters),
        }
    }
    filters
}

/// Reads the filters of a GRPCRoute rule.
pub(super) fn grpc_filters(fields: &Fields<'_>) -> Filters {
    let mut filters = Filters::default();
    for filter in fields.objects("filters") {
        grpc_filter(&filter, &filter.text("type"), &mut filters);
    }
    filters
}

/// Reads the filters of a backend, which support only header changes.
pub(super) fn backend_filters(fields: &Fields<'_>) -> Filters {
    let mut filters = Filters::default();
    for filter in fields.objects("filters") {
        let kind = filter.text("type");
        if !header_filter(&filter, &kind, &mut filters.headers) {
            unsupported(&filter, &kind, &mut filters);
        }
    }
    filters
}

fn grpc_filter(filter: &Fields<'_>, kind: &str, filters: &mut Filters) {
    if header_filter(filter, kind, &mut filters.headers) {
        return;
    }
    match kind {
        "RequestMirror" => filters.mirrors.extend(filter.read("requestMirror", mirror)),
        _ => unsupported(filter, kind, filters),
    }
}

/// Refuses an unknown filter. Requests must not bypass it: it may restrict access.
fn unsupported(filter: &Fields<'_>, kind: &str, filters: &mut Filters) {
    filter.ignore_rest();
    filter.refuse("type", format!("filter `{kind}` is not supported here; the route does not apply"));
    filters.unsupported = Some(kind.into());
}

fn header_filter(filter: &Fields<'_>, kind: &str, headers: &mut Option<Headers>) -> bool {
    match kind {
        "RequestHeaderModifier" => {
            if let Some(operations) = filter.read("requestHeaderModifier", header_operations) {
                headers.get_or_insert_default().request = operations;
            }
        }
        "ResponseHeaderModifier" => {
            if let Some(operations) = filter.read("responseHeaderModifier", header_operations) {
                headers.get_or_insert_default().response = operations;
            }
        }
        _ => return false,
    }
    true
}

fn header_operations(fields: &Fields<'_>) -> HeaderOperations {
    HeaderOperations {
        set: header_values(fields, "set"),
        add: header_values(fields, "add"),
        remove: fields.texts("remove"),
    }
}

/// Values by lower-case name. The first of two entries with the same name is used.
fn header_values(fields: &Fields<'_>, name: &'static str) -> BTreeMap<Text, Text> {
    let mut values = BTreeMap::new();
    for header in fields.objects(name) {
        let value = header.text("value");
        if value.bytes().any(|byte| byte != b'\t' && (byte < b' ' || byte == 0x7f)) {
            header.reject("value", "a header value must not contain control characters");
        }
        let name = header.text("name");
        if name.is_empty() {
            header.reject("name", "the name of a header is required");
        }
        values.entry(Text::from(name.to_ascii_lowercase())).or_insert(value);
    }
    values
}

fn redirect(fields: &Fields<'_>) -> HttpRedirect {
    let scheme = fields.opt_text("scheme");
    let port = match (opt_port(fields, "port"), &scheme) {
        (Some(port), _) => RedirectPort::Port(port.into()),
        (None, Some(_)) => RedirectPort::FromProtocol,
        (None, None) => RedirectPort::FromRequest,
    };
    let (uri, prefix_rewrite) = match fields.read("path", path_modifier) {
        Some(PathModifier::Full(path)) => (path, Text::default()),
        Some(PathModifier::Prefix(path)) => (Text::default(), path),
        None => (Text::default(), Text::default()),
    };
    let redirect = HttpRedirect {
        uri,
        authority: fields.text("hostname"),
        port,
        scheme: scheme.unwrap_or_default(),
        code: fields.integer("statusCode"),
        prefix_rewrite,
    };
    check_hostname(fields, "hostname", &redirect.authority);
    if !matches!(redirect.scheme.as_str(), "" | "http" | "https") {
        fields.refuse("scheme", format!("expected `http` or `https`, found `{}`", redirect.scheme));
    }
    if !matches!(redirect.code, 0 | 301 | 302 | 303 | 307 | 308) {
        fields.reject("statusCode", format!("expected 301, 302, 303, 307 or 308, found {}", redirect.code));
    }
    redirect
}

enum PathModifier {
    Full(Text),
    Prefix(Text),
}

fn path_modifier(fields: &Fields<'_>) -> PathModifier {
    let kinds = [("ReplaceFullPath", true), ("ReplacePrefixMatch", false)];
    let full = fields.choice("type", &kinds);
    if full.is_none() {
        fields.reject("type", "`type` is required: `ReplaceFullPath` or `ReplacePrefixMatch`");
    }
    let (name, other) = match full {
        Some(true) => ("replaceFullPath", "replacePrefixMatch"),
        _ => ("replacePrefixMatch", "replaceFullPath"),
    };
    if !fields.has(name) {
        fields.reject(name, "the type requires this field");
    }
    if fields.has(other) {
        fields.refuse(other, "this field does not belong to the type");
    }
    let path = fields.text(name);
    if full == Some(true) { PathModifier::Full(path) } else { PathModifier::Prefix(path) }
}

fn rewrite(fields: &Fields<'_>) -> Option<HttpRewrite> {
    let (uri, regex) = match fields.read("path", path_modifier) {
        Some(PathModifier::Full(path)) => (Text::default(), Some(("/.*".into(), path))),
        Some(PathModifier::Prefix(path)) => {
            let path = path.strip_suffix('/').unwrap_or(&path);
            // An empty replacement removes the prefix.
            (if path.is_empty() { "/" } else { path }.into(), None)
        }
        None => (Text::default(), None),
    };
    let authority = fields.text("hostname");
    check_hostname(fields, "hostname", &authority);
    let changes = !uri.is_empty() || regex.is_some() || !authority.is_empty();
    changes.then_some(HttpRewrite { uri, authority, regex })
}

fn mirror(fields: &Fields<'_>) -> Mirror {
    let fraction = fields.read("fraction", |fraction| {
        let whole: i32 = fraction.opt_integer("denominator").unwrap_or(100);
        if whole < 1 {
            fraction.reject("denominator", "expected an integer of at least 1");
        }
        Decimal::from_f64(100.0 * f64::from(fraction.integer::<i32>("numerator")) / f64::from(whole.max(1)))
    });
    let percent = fields.opt_integer::<i32>("percent");
    if fraction.is_some() && percent.is_some() {
        fields.refuse("percent", "`percent` and `fraction` are mutually exclusive");
    }
    if percent.is_some_and(|percent| !(0..=100).contains(&percent)) {
        fields.reject("percent", "expected a percentage from 0 to 100");
    }
    if !fields.has("backendRef") {
        fields.reject("backendRef", "`backendRef` is required");
    }
    Mirror {
        backend: fields.read("backendRef", backend).unwrap_or_default(),
        percentage: fraction.or(percent.map(|percent| Decimal::from_f64(percent.into()))),
    }
}

/// A server that decides about requests. If it is not readable, no server is found, and requests are denied.
fn external_auth(fields: &Fields<'_>) -> ExternalAuth {
    if !fields.has("backendRef") {
        fields.reject("backendRef", "`backendRef` is required");
    }
    let is_http = fields.choice("protocol", &[("HTTP", true), ("GRPC", false)]);
    if is_http.is_none() {
        fields.reject("protocol", "`protocol` is required: `HTTP` or `GRPC`");
    }
    let (config, other) = if is_http == Some(true) { ("http", "grpc") } else { ("grpc", "http") };
    if fields.has(other) {
        fields.refuse(other, "this field does not belong to the protocol");
    }
    let mut request_headers = Vec::new();
    let (mut path, mut response_headers) = (Text::default(), Vec::new());
    if let Some(config) = fields.object(config) {
        request_headers = config.texts("allowedHeaders");
        if is_http == Some(true) {
            (path, response_headers) = (config.text("path"), config.texts("allowedResponseHeaders"));
        }
    }
    ExternalAuth {
        backend: fields.read("backendRef", backend).unwrap_or_default(),
        protocol: match is_http {
            Some(true) => ExternalAuthProtocol::Http { path, response_headers },
            _ => ExternalAuthProtocol::Grpc,
        },
        request_headers,
        max_body_bytes: fields.read("forwardBody", |body| body.integer("maxSize")).unwrap_or_default(),
    }
}

/// A CORS policy, and its origins as they are declared.
fn cors(fields: &Fields<'_>) -> (CorsPolicy, Vec<Text>) {
    let origins = fields.texts("allowOrigins");
    let max_age: i64 = fields.opt_integer("maxAge").unwrap_or(5);
    let policy = CorsPolicy {
        allow_origins: origins.iter().filter_map(|origin| self::origin(origin)).collect(),
        allow_methods: fields.texts("allowMethods"),
        allow_headers: fields.texts("allowHeaders"),
        expose_headers: fields.texts("exposeHeaders"),
        max_age: u64::try_from(max_age).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs),
        allow_credentials: fields.opt_bool("allowCredentials").filter(|allowed| *allowed),
        ignore_unmatched_preflights: true,
    };
    (policy, origins)
}

/// The match for a CORS origin, in which `*` stands for any characters; `None` for an empty one.
fn origin(origin: &str) -> Option<StringMatch> {
    if origin.is_empty() {
        return None;
    }
    if origin == "*" {
        return Some(StringMatch::Regex(r"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s?#]+$".into()));
    }
    let Some((before, after)) = origin.split_once('*') else { return Some(StringMatch::Exact(origin.into())) };
    if after.is_empty() {
        return Some(StringMatch::Prefix(before.into()));
    }
    let parts: Vec<String> = origin.split('*').map(StringMatch::escape_regex).collect();
    Some(StringMatch::Regex(format!("^{}$", parts.join(".*")).into()))
}
