//! VirtualServices with routes to a service.

use serde::Serialize;
use sluice_model::{
    Destination, HttpMatch, HttpRoute, Kind, MESH_GATEWAY, NamedMatches, ObjectKey, RouteSemantics, Service,
    StringMatch, Text, VirtualService,
};

use super::MeshFacts;
use super::destination_rules::RuleDescription;
use crate::answers::objects::ObjectVersion;

/// A VirtualService that routes to the service, or that is about its host.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RouteDescription {
    object: ObjectVersion,
    /// The kind of the objects that it was generated from, if it is not a VirtualService.
    #[serde(skip_serializing_if = "Option::is_none")]
    generated_from: Option<&'static str>,
    hosts: Vec<String>,
    gateways: Vec<Text>,
    /// Another VirtualService of the same host that has precedence for clients of the service's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadowed_by: Option<String>,
    routes: Vec<OneRoute>,
}

/// A route.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OneRoute {
    /// `http[0]`.
    field: String,
    /// Conditions, of which one must match; empty is everything.
    matches: Vec<String>,
    /// Faults, redirects and other actions.
    actions: Vec<&'static str>,
    destinations: Vec<OneDestination>,
    /// Whether it can reach the pods.
    reaches: bool,
}

/// A destination of a route.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OneDestination {
    host: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    subset: Text,
    weight: i32,
    /// Whether it is the service, in a subset of the pods.
    reaches: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'static str>,
}

impl RouteDescription {
    /// The Gateways that it is bound to, as `NAMESPACE/NAME`.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &Text> {
        self.gateways.iter().filter(|gateway| gateway.as_str() != MESH_GATEWAY)
    }

    pub(super) fn reaches(&self) -> bool {
        self.routes.iter().any(|route| route.reaches)
    }

    pub(super) fn object_text(&self) -> &str {
        &self.object.object
    }
}

/// The VirtualServices of a service: those of its host for sidecars, and those with routes to it.
pub(super) fn describe(
    facts: &MeshFacts<'_>,
    service: &Service,
    namespace: &str,
    rule: Option<&RuleDescription>,
) -> Vec<RouteDescription> {
    let mut all = facts.collection::<VirtualService>("virtual_services/merged");
    sluice_graph::sort_by_precedence(&mut all, namespace);
    let applies = |vs: &VirtualService| {
        vs.is_mesh()
            && vs.hosts.contains(&service.host)
            && vs.export_to.as_ref().is_none_or(|export_to| export_to.allows(namespace))
    };
    let first = all.iter().find(|(_, vs)| applies(vs)).map(|(key, _)| key.clone());
    let concerned = all.iter().filter(|(_, vs)| applies(vs) || routes_to(vs, service));
    concerned.map(|(key, vs)| one(facts, key, vs, service, rule, first.as_ref().filter(|_| applies(vs)))).collect()
}

fn routes_to(vs: &VirtualService, service: &Service) -> bool {
    destinations(vs).any(|destination| destination.host == service.host)
}

fn destinations(vs: &VirtualService) -> impl Iterator<Item = &Destination> {
    let http = vs.http.iter().flat_map(|route| &route.route).map(|to| &to.destination);
    let tls = vs.tls.iter().flat_map(|route| &route.route).map(|to| &to.destination);
    let tcp = vs.tcp.iter().flat_map(|route| &route.route).map(|to| &to.destination);
    http.chain(tls).chain(tcp)
}

fn one(
    facts: &MeshFacts<'_>,
    key: &ObjectKey,
    vs: &VirtualService,
    service: &Service,
    rule: Option<&RuleDescription>,
    first: Option<&ObjectKey>,
) -> RouteDescription {
    let to = |destination: &Destination, weight: i32| one_destination(destination, weight, service, rule);
    let http = vs.http.iter().enumerate().map(|(at, route)| {
        let matches = route.matches.iter().map(match_text).collect();
        let destinations = route.route.iter().map(|it| to(&it.destination, it.weight)).collect();
        route_of(format!("http[{at}]"), matches, actions(route), destinations)
    });
    let tls = vs.tls.iter().enumerate().map(|(at, route)| {
        let names = route.matches.iter().map(|it| format!("server name {}", texts(&it.sni_hosts))).collect();
        let destinations = route.route.iter().map(|it| to(&it.destination, it.weight)).collect();
        route_of(format!("tls[{at}]"), names, Vec::new(), destinations)
    });
    let tcp = vs.tcp.iter().enumerate().map(|(at, route)| {
        let ports = route.matches.iter().filter(|it| it.port > 0).map(|it| format!("port {}", it.port)).collect();
        let destinations = route.route.iter().map(|it| to(&it.destination, it.weight)).collect();
        route_of(format!("tcp[{at}]"), ports, Vec::new(), destinations)
    });
    RouteDescription {
        object: facts.object(Kind::VirtualService, key),
        generated_from: match vs.semantics {
            RouteSemantics::Istio => None,
            RouteSemantics::Ingress => Some("Ingress"),
            RouteSemantics::GatewayApi => Some("Gateway API"),
        },
        hosts: vs.hosts.iter().map(ToString::to_string).collect(),
        gateways: vs.gateways.clone(),
        shadowed_by: first.filter(|first| *first != key).map(|first| facts.object(Kind::VirtualService, first).object),
        routes: http.chain(tls).chain(tcp).collect(),
    }
}

fn route_of(
    field: String,
    matches: Vec<String>,
    actions: Vec<&'static str>,
    destinations: Vec<OneDestination>,
) -> OneRoute {
    let reaches = destinations.iter().any(|to| to.reaches);
    OneRoute { field, matches, actions, destinations, reaches }
}

fn one_destination(
    destination: &Destination,
    weight: i32,
    service: &Service,
    rule: Option<&RuleDescription>,
) -> OneDestination {
    let is_service = destination.host == service.host;
    let subset = &destination.subset;
    let problem = match rule {
        _ if !is_service || subset.is_empty() => None,
        Some(rule) if rule.matches(subset) => None,
        Some(rule) if rule.declares(subset) => Some("non-matching subset"),
        Some(_) => Some("unknown subset"),
        None => Some("no DestinationRule"),
    };
    OneDestination {
        host: destination.host.to_string(),
        subset: subset.clone(),
        weight,
        reaches: is_service && problem.is_none(),
        problem,
    }
}

fn actions(route: &HttpRoute) -> Vec<&'static str> {
    let all = [
        ("fault injection", route.fault.is_some()),
        ("redirect", route.redirect.is_some()),
        ("direct response", route.direct_response.is_some()),
        ("rewrite", route.rewrite.is_some()),
        ("timeout", route.timeout.is_some()),
        ("retries", route.retries.is_some()),
        ("mirror", route.mirror.is_some() || !route.mirrors.is_empty()),
        ("CORS policy", route.cors.is_some()),
        ("header changes", route.headers.is_some()),
    ];
    all.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect()
}

fn texts(texts: &[Text]) -> String {
    texts.iter().map(Text::as_str).collect::<Vec<_>>().join(", ")
}

/// A condition as text: `/menu* when headers are end-user=jason`.
fn match_text(condition: &HttpMatch) -> String {
    let mut parts = Vec::new();
    if let Some(uri) = &condition.uri {
        parts.push(string_match(uri));
        if condition.ignore_uri_case {
            parts.push("uncased".to_owned());
        }
    }
    let named = [("method", &condition.method), ("authority", &condition.authority), ("scheme", &condition.scheme)];
    for (name, value) in named {
        parts.extend(value.as_ref().map(|value| format!("{name} {}", string_match(value))));
    }
    for (name, of) in [
        ("when headers are", &condition.headers),
        ("when headers are not", &condition.without_headers),
        ("when query parameters are", &condition.query_params),
    ] {
        if !of.is_empty() {
            parts.push(format!("{name} {}", named_matches(of)));
        }
    }
    if condition.port > 0 {
        parts.push(format!("port {}", condition.port));
    }
    if !condition.source_namespace.is_empty() {
        parts.push(format!("from namespace {}", condition.source_namespace));
    }
    if !condition.source_labels.is_empty() {
        let labels: Vec<String> = condition.source_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        parts.push(format!("from workloads with {}", labels.join(",")));
    }
    parts.join(" ")
}

fn named_matches(of: &NamedMatches) -> String {
    let one = |(name, value): (&Text, &Option<StringMatch>)| match value {
        Some(value) => format!("{name}={}", string_match(value)),
        None => name.to_string(),
    };
    of.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn string_match(value: &StringMatch) -> String {
    match value {
        StringMatch::Exact(text) => text.to_string(),
        StringMatch::Prefix(text) => format!("{text}*"),
        StringMatch::Regex(text) => format!("regex:{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_written_as_by_istioctl() {
        let condition = HttpMatch {
            uri: Some(StringMatch::Prefix("/menu".into())),
            headers: [("end-user".into(), Some(StringMatch::Exact("jason".into()))), ("x".into(), None)].into(),
            ..HttpMatch::default()
        };
        assert_eq!(match_text(&condition), "/menu* when headers are end-user=jason; x");
        let method = HttpMatch { method: Some(StringMatch::Exact("GET".into())), port: 80, ..HttpMatch::default() };
        assert_eq!(match_text(&method), "method GET port 80");
    }
}
