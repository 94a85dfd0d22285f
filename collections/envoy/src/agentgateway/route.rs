//! Routes of requests and of connections.

use sluice_model::gateway_api::{DeclaredRule, ExternalAuth, ExternalAuthProtocol, HttpRule};
use sluice_model::{
    CorsPolicy, Decimal, HeaderOperations, Headers, HttpMatch, HttpRedirect, HttpRetry, HttpRewrite, NamedMatches,
    ObjectKey, RedirectPort, ServiceKey, StringMatch, Text,
};
use sluice_proto::agentgateway::request_mirrors::Mirror;
use sluice_proto::agentgateway::resource::Kind;
use sluice_proto::agentgateway::traffic_policy_spec::{self, Kind as Traffic, external_auth};
use sluice_proto::agentgateway::{
    BackendPolicySpec, Cors, Header, HeaderMatch, HeaderModifier, MethodMatch, PathMatch, QueryMatch, RequestMirrors,
    RequestRedirect, Retry, Route, RouteBackend, RouteMatch, RouteName, TcpRoute, Timeout, TrafficPolicySpec,
    UrlRewrite, backend_policy_spec, header_match, path_match, query_match, request_redirect, url_rewrite,
};
use sluice_proto::istio::workload::NamespacedHostname;

use super::{AgentgatewayResource, BackendService, reference};
use crate::wire::duration;

/// Inputs of a rule for requests.
#[derive(Clone, Debug)]
pub struct HttpRuleInputs<'a> {
    /// Kind of the route: `HTTPRoute` or `GRPCRoute`.
    pub kind: &'a str,
    /// The route.
    pub route: &'a ObjectKey,
    /// Number of the rule in the route.
    pub number: usize,
    /// The rule.
    pub rule: &'a HttpRule,
    /// Hosts of the route.
    pub hostnames: &'a [Text],
    /// Its backends.
    pub backends: Vec<RouteBackendInputs<'a>>,
    /// Destinations of mirrored requests.
    pub mirrors: Vec<MirrorInputs>,
    /// The servers that decide about requests, in the order of the rule; `None` if one of them cannot be asked. Then requests
    /// fail: without the rule, another one could match them.
    pub external_auths: Option<Vec<BackendService>>,
}

/// A backend of a rule.
#[derive(Clone, Debug, Default)]
pub struct RouteBackendInputs<'a> {
    /// The service; `None` if there is none that requests may be sent to. Its share of the requests then fails.
    pub service: Option<BackendService>,
    /// Its share.
    pub weight: i32,
    /// Header changes for it.
    pub headers: Option<&'a Headers>,
}

/// A destination of mirrored requests.
#[derive(Clone, Debug, Default)]
pub struct MirrorInputs {
    /// The service.
    pub service: BackendService,
    /// Share of requests, in percent; `None` is all.
    pub percentage: Option<Decimal>,
}

/// Inputs of a rule for connections.
#[derive(Clone, Debug)]
pub struct L4RuleInputs<'a> {
    /// Kind of the route: `TCPRoute` or `TLSRoute`.
    pub kind: &'a str,
    /// The route.
    pub route: &'a ObjectKey,
    /// Creation time of the route, in seconds since the Unix epoch; 0 if it is unknown.
    pub created: i64,
    /// Number of the rule in the route.
    pub number: usize,
    /// Server names of the route.
    pub hostnames: &'a [Text],
    /// Its backends.
    pub backends: Vec<RouteBackendInputs<'a>>,
}

/// A route that is attached to no listener yet.
#[derive(Clone, Debug)]
pub struct RouteTemplate(UnattachedRoute);

#[derive(Clone, Debug)]
enum UnattachedRoute {
    Http(Route),
    L4(TcpRoute),
}

impl RouteTemplate {
    /// The route of a listener, by the name and the key of that listener. With a service it is only for requests to that one.
    #[must_use]
    pub fn attach(&self, section: &str, listener_key: &str, service: Option<&ServiceKey>) -> AgentgatewayResource {
        let key = |key: &str| {
            let suffixes = [Some(section).filter(|section| !section.is_empty()), service.map(|of| of.host.as_str())];
            suffixes.into_iter().flatten().fold(key.to_owned(), |key, suffix| format!("{key}.{suffix}"))
        };
        let listener_key = listener_key.to_owned();
        let service_key = service.map(|service| NamespacedHostname {
            namespace: service.namespace.to_string(),
            hostname: service.host.to_string(),
        });
        AgentgatewayResource::new(match &self.0 {
            UnattachedRoute::Http(route) => {
                Kind::Route(Route { key: key(&route.key), listener_key, service_key, ..route.clone() })
            }
            UnattachedRoute::L4(route) => {
                Kind::TcpRoute(TcpRoute { key: key(&route.key), listener_key, service_key, ..route.clone() })
            }
        })
    }
}

/// The routes of a rule for requests. A rule of an HTTPRoute has one for each match, by which the proxy orders them.
#[must_use]
pub fn build_http_rule(inputs: &HttpRuleInputs<'_>) -> Vec<RouteTemplate> {
    let HttpRuleInputs { kind, route, number, rule, .. } = inputs;
    let key = format!("{}/{}.{number}", route.namespace, route.name);
    let base = Route {
        name: Some(name(kind, route, &rule.declared.name)),
        hostnames: texts(inputs.hostnames),
        backends: inputs.backends.iter().filter(|_| inputs.external_auths.is_some()).map(backend).collect(),
        traffic_policies: traffic_policies(inputs),
        ..Route::default()
    };
    let template = |key: String, matches: Vec<RouteMatch>| {
        RouteTemplate(UnattachedRoute::Http(Route { key, matches, ..base.clone() }))
    };
    if *kind == "GRPCRoute" {
        let mut matches: Vec<RouteMatch> = rule.matches.iter().map(route_match).collect();
        // The proxy needs a match.
        if matches.is_empty() {
            let every = path_match::Kind::PathPrefix("/".to_owned());
            matches.push(RouteMatch { path: Some(PathMatch { kind: Some(every) }), ..RouteMatch::default() });
        }
        return vec![template(key, matches)];
    }
    if rule.matches.is_empty() {
        return vec![template(format!("{key}.0"), Vec::new())];
    }
    let matches = rule.matches.iter().enumerate();
    matches.map(|(n, condition)| template(format!("{key}.{n}"), vec![route_match(condition)])).collect()
}

/// The route of a rule for connections. Of two routes of a listener the proxy takes the first by key, so the key begins with the
/// creation time.
#[must_use]
pub fn build_l4_rule(inputs: &L4RuleInputs<'_>) -> RouteTemplate {
    let L4RuleInputs { kind, route, created, number, .. } = inputs;
    let key = format!("{}/{}.{number}", route.namespace, route.name);
    RouteTemplate(UnattachedRoute::L4(TcpRoute {
        key: if *created == 0 { key } else { format!("{created:010}/{key}") },
        name: Some(name(kind, route, "")),
        hostnames: texts(inputs.hostnames),
        backends: inputs.backends.iter().map(backend).collect(),
        ..TcpRoute::default()
    }))
}

fn name(kind: &str, route: &ObjectKey, rule: &str) -> RouteName {
    RouteName {
        kind: kind.to_owned(),
        name: route.name.to_string(),
        namespace: route.namespace.to_string(),
        rule_name: (!rule.is_empty()).then(|| rule.to_owned()),
    }
}

fn texts(texts: &[Text]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn backend(inputs: &RouteBackendInputs<'_>) -> RouteBackend {
    use backend_policy_spec::Kind;
    let headers = inputs.headers.map(header_modifiers);
    let [request, response] = headers.unwrap_or_default();
    let policies = [request.map(Kind::RequestHeaderModifier), response.map(Kind::ResponseHeaderModifier)];
    RouteBackend {
        backend: inputs.service.as_ref().map(reference),
        weight: inputs.weight,
        backend_policies: policies.into_iter().flatten().map(|kind| BackendPolicySpec { kind: Some(kind) }).collect(),
    }
}

fn route_match(condition: &HttpMatch) -> RouteMatch {
    let path = condition.uri.as_ref().map(|uri| match uri {
        StringMatch::Exact(path) => path_match::Kind::Exact(path.to_string()),
        StringMatch::Regex(expression) => path_match::Kind::Regex(expression.to_string()),
        // The prefix ends at a segment of the path, with or without the slash.
        StringMatch::Prefix(path) if path.len() > 1 => {
            path_match::Kind::PathPrefix(path.strip_suffix('/').unwrap_or(path).to_owned())
        }
        StringMatch::Prefix(path) => path_match::Kind::PathPrefix(path.to_string()),
    });
    let header = |(name, value): (String, MatchValue)| HeaderMatch {
        name,
        value: Some(match value {
            MatchValue::Exact(text) => header_match::Value::Exact(text),
            MatchValue::Regex(expression) => header_match::Value::Regex(expression),
        }),
    };
    let parameter = |(name, value): (String, MatchValue)| QueryMatch {
        name,
        value: Some(match value {
            MatchValue::Exact(text) => query_match::Value::Exact(text),
            MatchValue::Regex(expression) => query_match::Value::Regex(expression),
        }),
    };
    let method = condition.method.as_ref().and_then(|method| match method {
        StringMatch::Exact(method) => Some(MethodMatch { exact: method.to_string() }),
        StringMatch::Prefix(_) | StringMatch::Regex(_) => None,
    });
    RouteMatch {
        path: path.map(|kind| PathMatch { kind: Some(kind) }),
        headers: values(&condition.headers).map(header).collect(),
        method,
        query_params: values(&condition.query_params).map(parameter).collect(),
    }
}

/// The value of a header or query parameter that matches.
enum MatchValue {
    Exact(String),
    Regex(String),
}

fn values(matches: &NamedMatches) -> impl Iterator<Item = (String, MatchValue)> {
    matches.iter().map(|(name, value)| {
        let value = match value {
            Some(StringMatch::Exact(text)) => MatchValue::Exact(text.to_string()),
            Some(StringMatch::Prefix(text)) => MatchValue::Regex(format!("{}.*", StringMatch::escape_regex(text))),
            Some(StringMatch::Regex(expression)) => MatchValue::Regex(expression.to_string()),
            None => MatchValue::Regex(".*".to_owned()),
        };
        (name.to_string(), value)
    })
}

/// What is done with the requests of a rule, besides sending them to backends.
fn traffic_policies(inputs: &HttpRuleInputs<'_>) -> Vec<TrafficPolicySpec> {
    let HttpRule { action, declared, .. } = inputs.rule;
    let [request, response] = action.headers.as_ref().map(header_modifiers).unwrap_or_default();
    let auths = declared.external_auths.iter().zip(inputs.external_auths.iter().flatten());
    let auths = auths.map(|(auth, server)| Traffic::ExtAuthz(external_auth(auth, server)));
    let redirect = action.redirect.as_ref().filter(|_| inputs.external_auths.is_some());
    let policies = [
        redirect.map(|redirect| Traffic::RequestRedirect(request_redirect(redirect))),
        action.rewrite.as_ref().map(|rewrite| Traffic::UrlRewrite(url_rewrite(rewrite))),
        action.cors.as_ref().map(|policy| Traffic::Cors(cors(policy, declared))),
        request.map(Traffic::RequestHeaderModifier),
        response.map(Traffic::ResponseHeaderModifier),
        mirrors(&inputs.mirrors),
        timeout(declared),
        action.retries.as_ref().and_then(|retries| retry(retries, declared)),
    ];
    policies.into_iter().flatten().chain(auths).map(|kind| TrafficPolicySpec { kind: Some(kind) }).collect()
}

fn external_auth(auth: &ExternalAuth, server: &BackendService) -> traffic_policy_spec::ExternalAuth {
    use external_auth::{BodyOptions, GrpcProtocol, HttpProtocol, Protocol};
    let mut include_request_headers = texts(&auth.request_headers);
    let protocol = match &auth.protocol {
        ExternalAuthProtocol::Grpc => Protocol::Grpc(GrpcProtocol {}),
        ExternalAuthProtocol::Http { path, response_headers } => {
            let always = ["Authorization", ":authority"].map(str::to_owned);
            include_request_headers.splice(0..0, always);
            let slash = if path.starts_with('/') { "" } else { "/" };
            // The expression has strings of JSON.
            let literal = serde_json::Value::from(format!("{slash}{path}"));
            Protocol::Http(HttpProtocol {
                path: (!path.is_empty()).then(|| format!("{literal} + request.path")),
                include_response_headers: texts(response_headers),
            })
        }
    };
    traffic_policy_spec::ExternalAuth {
        target: Some(reference(server)),
        include_request_headers,
        include_request_body: (auth.max_body_bytes > 0)
            .then(|| BodyOptions { max_request_bytes: auth.max_body_bytes.into() }),
        protocol: Some(protocol),
    }
}

/// Changes of request and response headers; `None` where there is none.
fn header_modifiers(headers: &Headers) -> [Option<HeaderModifier>; 2] {
    [&headers.request, &headers.response].map(|operations| {
        let HeaderOperations { set, add, remove } = operations;
        let header = |(name, value): (&Text, &Text)| Header { name: name.to_string(), value: value.to_string() };
        (*operations != HeaderOperations::default()).then(|| HeaderModifier {
            add: add.iter().map(header).collect(),
            set: set.iter().map(header).collect(),
            remove: texts(remove),
        })
    })
}

fn request_redirect(redirect: &HttpRedirect) -> RequestRedirect {
    let path = if !redirect.uri.is_empty() {
        Some(request_redirect::Path::Full(without_slash(&redirect.uri)))
    } else if redirect.prefix_rewrite.is_empty() {
        None
    } else {
        Some(request_redirect::Path::Prefix(without_slash(&redirect.prefix_rewrite)))
    };
    RequestRedirect {
        scheme: redirect.scheme.to_string(),
        host: redirect.authority.to_string(),
        port: if let RedirectPort::Port(port) = redirect.port { port } else { 0 },
        status: redirect.code,
        path,
    }
}

fn url_rewrite(rewrite: &HttpRewrite) -> UrlRewrite {
    let path = match &rewrite.regex {
        Some((_, path)) => Some(url_rewrite::Path::Full(without_slash(path))),
        None if rewrite.uri.is_empty() => None,
        None => Some(url_rewrite::Path::Prefix(without_slash(&rewrite.uri))),
    };
    UrlRewrite { host: rewrite.authority.to_string(), path }
}

/// A path without the slash at its end: the proxy adds one where it is needed.
fn without_slash(path: &str) -> String {
    path.strip_suffix('/').unwrap_or(path).to_owned()
}

fn cors(policy: &CorsPolicy, declared: &DeclaredRule) -> Cors {
    Cors {
        allow_credentials: policy.allow_credentials.unwrap_or_default(),
        allow_headers: texts(&policy.allow_headers),
        allow_methods: texts(&policy.allow_methods),
        allow_origins: texts(&declared.allow_origins),
        expose_headers: texts(&policy.expose_headers),
        max_age: Some(duration(policy.max_age.unwrap_or_default())),
    }
}

fn mirrors(mirrors: &[MirrorInputs]) -> Option<Traffic> {
    let mirrors: Vec<Mirror> = mirrors
        .iter()
        .map(|mirror| Mirror {
            backend: Some(reference(&mirror.service)),
            percentage: mirror.percentage.map_or(100.0, Decimal::to_f64),
        })
        .filter(|mirror| mirror.percentage > 0.0)
        .collect();
    (!mirrors.is_empty()).then_some(Traffic::RequestMirror(RequestMirrors { mirrors }))
}

fn timeout(declared: &DeclaredRule) -> Option<Traffic> {
    let timeout = Timeout {
        request: declared.request_timeout.map(duration),
        backend_request: declared.backend_request_timeout.map(duration),
    };
    (timeout != Timeout::default()).then_some(Traffic::Timeout(timeout))
}

/// The retries of a rule; `None` if it excludes them. A number that is unset is the default of the proxy.
fn retry(retries: &HttpRetry, declared: &DeclaredRule) -> Option<Traffic> {
    let attempts = declared.retry_attempts.unwrap_or_default();
    (declared.retry_attempts != Some(0)).then(|| {
        Traffic::Retry(Retry {
            retry_status_codes: declared.retry_codes.iter().filter_map(|code| i32::try_from(*code).ok()).collect(),
            attempts,
            backoff: retries.backoff.map(duration),
        })
    })
}
