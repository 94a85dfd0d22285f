//! VirtualServices (N18): names are resolved and invalid parts are reported.

use std::time::Duration;

use serde_json::Value;
use sluice_model::{
    AbortStatus, CorsPolicy, Destination, DirectResponse, DirectResponseBody, ExportTo, FaultAbort, FaultDelay,
    HeaderOperations, Headers, Host, HttpDestination, HttpFault, HttpMatch, HttpMirror, HttpRedirect, HttpRewrite,
    HttpRoute, L4Match, MESH_GATEWAY, NamedMatches, ObjectMeta, RedirectPort, RouteDestination, RouteSemantics,
    StringMatch, TcpRoute, Text, TlsMatch, TlsRoute, VirtualService,
};

use crate::encoding::decode_base64;
use crate::names::{resolve_gateway, resolve_host};
use crate::{Fields, Findings};

mod check;
mod retry;

pub(crate) use retry::parse_http_retry;

/// Resolves the names in a VirtualService.
#[derive(Clone, Copy)]
struct NameResolver<'a> {
    namespace: &'a str,
    domain: &'a str,
}

impl NameResolver<'_> {
    fn host(&self, name: &str) -> Host {
        Host::new(&resolve_host(name, self.namespace, self.domain))
    }

    fn gateways(&self, names: &[Text]) -> Vec<Text> {
        names.iter().map(|name| resolve_gateway(name, self.namespace)).collect()
    }
}

/// Parses the `spec` of a VirtualService; `None` if the object does not apply.
///
/// `domain` is the DNS domain that completes short hosts, such as `cluster.local`.
pub(crate) fn parse_virtual_service(
    meta: &ObjectMeta,
    spec: &Value,
    domain: &str,
    findings: &Findings,
) -> Option<VirtualService> {
    let fields = Fields::new(spec, "spec", findings)?;
    let names = NameResolver { namespace: &meta.namespace, domain };
    let written_hosts = fields.texts("hosts");
    let written_gateways = fields.texts("gateways");
    let gateways = match written_gateways.as_slice() {
        [] if written_hosts.is_empty() => Vec::new(),
        [] => vec![MESH_GATEWAY.into()],
        gateways => names.gateways(gateways),
    };
    let export_to = fields.texts("exportTo");
    let virtual_service = VirtualService {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        created: meta.created,
        hosts: written_hosts.iter().map(|host| names.host(host)).collect(),
        gateways,
        export_to: (!export_to.is_empty()).then(|| ExportTo::resolve(&export_to, &meta.namespace)),
        http: fields.list("http", |route| http_route(route, names)),
        tls: fields.list("tls", |route| TlsRoute {
            matches: route.list("match", |m| tls_match(m, names)),
            route: route.list("route", |d| route_destination(d, names)),
        }),
        tcp: fields.list("tcp", |route| TcpRoute {
            matches: route.list("match", |m| l4_match(m, names)),
            route: route.list("route", |d| route_destination(d, names)),
        }),
        semantics: RouteSemantics::Istio,
    };
    check::check(&fields, &virtual_service, &written_hosts, &written_gateways);
    drop(fields);
    (!findings.has_errors()).then_some(virtual_service)
}

fn http_route(fields: &Fields<'_>, names: NameResolver<'_>) -> HttpRoute {
    let delegate = fields.read("delegate", |delegate| {
        let namespace = delegate.text("namespace");
        let namespace = if namespace.is_empty() { names.namespace.into() } else { namespace };
        (namespace, delegate.text("name"))
    });
    HttpRoute {
        name: fields.text("name"),
        matches: fields.list("match", |m| http_match(m, names)),
        route: fields.list("route", |destination| HttpDestination {
            destination: required_destination(destination, names),
            weight: destination.integer("weight"),
            headers: destination.read("headers", headers),
        }),
        redirect: fields.read("redirect", redirect),
        direct_response: fields.read("directResponse", direct_response),
        delegate,
        rewrite: fields.read("rewrite", |rewrite| HttpRewrite {
            uri: rewrite.text("uri"),
            authority: rewrite.text("authority"),
            regex: rewrite.read("uriRegexRewrite", |regex| (regex.text("match"), regex.text("rewrite"))),
        }),
        timeout: fields.opt_timeout("timeout"),
        retries: fields.read("retries", parse_http_retry),
        fault: fields.read("fault", fault),
        mirror: fields.read("mirror", |d| destination(d, names)),
        mirror_percentage: fields.read("mirrorPercentage", |p| p.opt_decimal("value").unwrap_or_default()),
        mirror_percent: fields.opt_integer("mirrorPercent"),
        mirrors: fields.list("mirrors", |mirror| HttpMirror {
            destination: required_destination(mirror, names),
            percentage: mirror.read("percentage", |p| p.opt_decimal("value").unwrap_or_default()),
        }),
        cors: fields.read("corsPolicy", cors).map(Box::new),
        headers: fields.read("headers", headers),
        endpoint_picker: None,
    }
}

fn http_match(fields: &Fields<'_>, names: NameResolver<'_>) -> HttpMatch {
    HttpMatch {
        name: fields.text("name"),
        uri: string_match(fields, "uri"),
        ignore_uri_case: fields.bool("ignoreUriCase"),
        scheme: string_match(fields, "scheme"),
        method: string_match(fields, "method"),
        authority: string_match(fields, "authority"),
        headers: named_matches(fields, "headers"),
        without_headers: named_matches(fields, "withoutHeaders"),
        query_params: named_matches(fields, "queryParams"),
        port: fields.integer("port"),
        source_labels: fields.labels("sourceLabels"),
        source_namespace: fields.text("sourceNamespace"),
        gateways: matched_gateways(fields, names),
        stat_prefix: fields.text("statPrefix"),
    }
}

fn matched_gateways(fields: &Fields<'_>, names: NameResolver<'_>) -> Vec<Text> {
    let gateways = fields.texts("gateways");
    check::check_gateways(fields, "gateways", &gateways);
    names.gateways(&gateways)
}

fn string_match(fields: &Fields<'_>, name: &'static str) -> Option<StringMatch> {
    read_string_match(&fields.object(name)?)
}

fn read_string_match(fields: &Fields<'_>) -> Option<StringMatch> {
    let exact = fields.opt_text("exact").map(StringMatch::Exact);
    let prefix = fields.opt_text("prefix").map(StringMatch::Prefix);
    let regex = fields.opt_text("regex").map(StringMatch::Regex);
    if [&exact, &prefix, &regex].into_iter().flatten().count() > 1 {
        fields.reject("", "`exact`, `prefix` and `regex` are mutually exclusive");
    }
    exact.or(prefix).or(regex)
}

fn named_matches(fields: &Fields<'_>, name: &'static str) -> NamedMatches {
    let entries = fields.entries(name).map(|(key, value, path)| {
        let matched = match value {
            Value::Null if name == "headers" => {
                fields.findings().refuse(&path, "`exact`, `prefix` or `regex` is required");
                None
            }
            Value::Null => None,
            value => Fields::new(value, path, fields.findings()).and_then(|fields| read_string_match(&fields)),
        };
        (key, matched)
    });
    entries.collect()
}

fn destination(fields: &Fields<'_>, names: NameResolver<'_>) -> Destination {
    let host = fields.text("host");
    if host.is_empty() {
        fields.reject("host", "the host of the destination is required");
    }
    Destination {
        host: names.host(&host),
        subset: fields.text("subset"),
        port: fields.read("port", |port| port.integer("number")),
    }
}

fn required_destination(fields: &Fields<'_>, names: NameResolver<'_>) -> Destination {
    if !fields.has("destination") {
        fields.refuse("destination", "`destination` is required");
    }
    fields.read("destination", |d| destination(d, names)).unwrap_or_default()
}

fn route_destination(fields: &Fields<'_>, names: NameResolver<'_>) -> RouteDestination {
    RouteDestination { destination: required_destination(fields, names), weight: fields.integer("weight") }
}

fn headers(fields: &Fields<'_>) -> Headers {
    let operations = |operations: &Fields<'_>| HeaderOperations {
        set: operations.text_map("set"),
        add: operations.text_map("add"),
        remove: operations.texts("remove"),
    };
    Headers {
        request: fields.read("request", operations).unwrap_or_default(),
        response: fields.read("response", operations).unwrap_or_default(),
    }
}

fn redirect(fields: &Fields<'_>) -> HttpRedirect {
    let derived =
        [("FROM_PROTOCOL_DEFAULT", RedirectPort::FromProtocol), ("FROM_REQUEST_PORT", RedirectPort::FromRequest)];
    let port = match fields.opt_integer("port") {
        Some(port) => {
            if fields.has("derivePort") {
                fields.refuse("derivePort", "`derivePort` and `port` are mutually exclusive");
            }
            RedirectPort::Port(port)
        }
        None => fields.choice("derivePort", &derived).unwrap_or_default(),
    };
    HttpRedirect {
        uri: fields.text("uri"),
        authority: fields.text("authority"),
        port,
        scheme: fields.text("scheme"),
        code: fields.integer("redirectCode"),
        prefix_rewrite: fields.text("prefixRewrite"),
    }
}

fn direct_response(fields: &Fields<'_>) -> DirectResponse {
    let body = fields.object("body").and_then(|body| match body.opt_text("string") {
        Some(text) => Some(DirectResponseBody::Text(text)),
        None => {
            let bytes = decode_base64(&body.opt_text("bytes")?);
            if bytes.is_none() {
                body.reject("bytes", "expected base64");
            }
            bytes.map(DirectResponseBody::Bytes)
        }
    });
    DirectResponse { status: fields.integer("status"), body }
}

fn fault(fields: &Fields<'_>) -> HttpFault {
    let delay = fields.read("delay", |delay| FaultDelay {
        fixed: delay.opt_timeout("fixedDelay").or_else(|| {
            if delay.has("exponentialDelay") {
                delay.refuse("exponentialDelay", "`exponentialDelay` is not supported; use `fixedDelay`");
            }
            None::<Duration>
        }),
        percentage: delay.read("percentage", |p| p.opt_decimal("value").unwrap_or_default()),
        percent: delay.integer("percent"),
    });
    let abort = fields.read("abort", |abort| {
        let http = abort.opt_integer("httpStatus").map(AbortStatus::Http);
        let grpc = abort.opt_text("grpcStatus").and_then(|name| {
            let code = GRPC_STATUS.iter().position(|known| *known == name.as_str());
            if code.is_none() {
                abort.reject("grpcStatus", format!("`{name}` is not a gRPC status such as `UNAVAILABLE`"));
            }
            code.and_then(|code| u32::try_from(code).ok()).map(AbortStatus::Grpc)
        });
        if abort.has("http2Error") {
            abort.reject("http2Error", "`http2Error` is not supported; use `httpStatus`");
        }
        FaultAbort {
            status: http.or(grpc),
            percentage: abort.read("percentage", |p| p.opt_decimal("value").unwrap_or_default()),
        }
    });
    HttpFault { delay, abort }
}

/// Names of the gRPC status codes, by number.
const GRPC_STATUS: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

fn cors(fields: &Fields<'_>) -> CorsPolicy {
    let old = fields.texts("allowOrigin");
    let allow_origins = if fields.has("allowOrigins") {
        fields.objects("allowOrigins").iter().filter_map(read_string_match).collect()
    } else {
        old.into_iter().map(StringMatch::Exact).collect()
    };
    let unmatched = [("UNSPECIFIED", false), ("FORWARD", false), ("IGNORE", true)];
    CorsPolicy {
        allow_origins,
        allow_methods: fields.texts("allowMethods"),
        allow_headers: fields.texts("allowHeaders"),
        expose_headers: fields.texts("exposeHeaders"),
        max_age: fields.opt_timeout("maxAge"),
        allow_credentials: fields.opt_bool("allowCredentials"),
        ignore_unmatched_preflights: fields.choice("unmatchedPreflights", &unmatched).unwrap_or_default(),
    }
}

fn tls_match(fields: &Fields<'_>, names: NameResolver<'_>) -> TlsMatch {
    TlsMatch {
        sni_hosts: fields.texts("sniHosts"),
        destination_subnets: fields.texts("destinationSubnets"),
        port: fields.integer("port"),
        source_labels: fields.labels("sourceLabels"),
        gateways: matched_gateways(fields, names),
        source_namespace: fields.text("sourceNamespace"),
    }
}

fn l4_match(fields: &Fields<'_>, names: NameResolver<'_>) -> L4Match {
    L4Match {
        destination_subnets: fields.texts("destinationSubnets"),
        port: fields.integer("port"),
        source_subnet: fields.text("sourceSubnet"),
        source_labels: fields.labels("sourceLabels"),
        gateways: matched_gateways(fields, names),
        source_namespace: fields.text("sourceNamespace"),
    }
}

#[cfg(test)]
mod tests;
