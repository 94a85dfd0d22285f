//! HTTPRoutes and GRPCRoutes as VirtualServices, one for each parent and host (G02).

use std::cell::RefCell;
use std::cmp::Reverse;

use serde::Serialize;
use sluice_engine::{Collection, Context};
use sluice_model::gateway_api::{GROUP, GroupKind, HttpRoute, HttpRule};
use sluice_model::{
    DirectResponse, Host, HttpDestination, HttpMatch, HttpMirror, HttpRoute as VirtualRoute, Kind, ObjectKey, Reject,
    RejectCause, RouteSemantics, Severity, StringMatch, Text, Timestamp, VirtualService,
};

use super::attachment::{AttachedListeners, AttachingRoute, ParentLookup, RouteParents};
use super::backends::{BackendIndex, BackendLookup, Referrer, ResolvedBackend};
use super::route_report::{RouteReport, RouteReports};
use crate::inputs::{ObjectCollections, RejectKey};
use crate::statuses::StatusProblem;

/// A route for one host of one parent: routes with the same parent and host are merged into one VirtualService.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct PlacedRoute {
    /// The parent and host: `GATEWAY/HOST`, or `NAMESPACE[/PORT]/HOST` for sidecars.
    pub(super) place: Text,
    /// Creation time of the route; older comes first.
    pub(super) created: Timestamp,
    /// The VirtualService of this route alone.
    pub(super) virtual_service: VirtualService,
}

/// A route for one host of one parent, by the route and a number.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct PlacedKey {
    kind: Kind,
    route: ObjectKey,
    number: usize,
}

/// The VirtualServices of a route, and its findings.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct BoundHttpRoute {
    placed: Vec<PlacedRoute>,
    /// Findings in its references: path and reason.
    problems: Vec<(Text, Text)>,
    report: RouteReport,
}

/// The findings in the routes of each kind.
pub(super) type RouteRejects<'s> = Vec<Collection<'s, RejectKey, Vec<Reject>>>;

/// Routes of requests, by parent and host, and findings in their references.
/// Key: `PlacedKey`. From: `http_routes`, `grpc_routes`, `gateway_api/listeners`, `services`, `inference_pools`,
/// `reference_grants`.
/// Changes when: the route does, a listener of a parent, or a grant in a namespace that it refers to; a Service or InferencePool
/// that it refers to is added or removed, or the endpoint picker of the pool changes. Size: routes × their parents × their hosts. Rejects: references to absent or
/// forbidden objects.
pub(super) fn derive_http_routes<'s>(
    objects: &ObjectCollections<'s>,
    parents: &RouteParents<'s>,
    backends: &BackendIndex<'_, 's>,
) -> (Collection<'s, PlacedKey, PlacedRoute>, RouteRejects<'s>, RouteReports<'s>) {
    let bind = |kind: Kind, routes: &Collection<'s, ObjectKey, HttpRoute>| {
        let name = kind.name();
        let bound = routes.derive(&format!("gateway_api/{name}"), |deps| {
            let binder = HttpRouteBinder {
                parents: ParentLookup::on(deps, parents),
                backends: BackendLookup::on(deps, backends),
                kind: GroupKind { group: GROUP.into(), kind: name.clone().into() },
            };
            move |cx, key, route| Some(binder.bind(cx, key, route))
        });
        let placed = bound.flat_map(&format!("gateway_api/{name}/placed"), move |key, bound| {
            let row = |(number, placed): (usize, &PlacedRoute)| {
                (PlacedKey { kind, route: key.clone(), number }, placed.clone())
            };
            bound.placed.iter().enumerate().map(row).collect::<Vec<_>>()
        });
        let rejects = bound
            .flat_map(&format!("gateway_api/{name}/rejects"), move |key, bound| rejects(kind, key, &bound.problems));
        (placed, rejects, bound.map(&format!("gateway_api/{name}/report"), |_, bound| bound.report.clone()))
    };
    let (http, http_rejects, http_reports) = bind(Kind::HTTPRoute, &objects.http_routes);
    let (grpc, grpc_rejects, grpc_reports) = bind(Kind::GRPCRoute, &objects.grpc_routes);
    let reports = vec![(Kind::HTTPRoute, http_reports), (Kind::GRPCRoute, grpc_reports)];
    (http.union("gateway_api/http", &[grpc]), vec![http_rejects, grpc_rejects], reports)
}

/// The findings of each object that has any.
pub(super) fn rejects(kind: Kind, key: &ObjectKey, problems: &[(Text, Text)]) -> Option<(RejectKey, Vec<Reject>)> {
    let reject = |(path, reason): &(Text, Text)| Reject {
        kind,
        object: key.clone(),
        field_path: path.clone(),
        reason: reason.clone(),
        severity: Severity::Error,
        cause: RejectCause::Other,
    };
    let key = RejectKey { kind, object: key.clone() };
    (!problems.is_empty()).then(|| (key, problems.iter().map(reject).collect()))
}

struct HttpRouteBinder {
    parents: ParentLookup,
    backends: BackendLookup,
    kind: GroupKind,
}

impl HttpRouteBinder {
    fn bind(&self, cx: &Context, key: &ObjectKey, route: &HttpRoute) -> BoundHttpRoute {
        let problems = RefCell::new(Vec::new());
        let note = |path: String, reason: &str| problems.borrow_mut().push((Text::from(path), Text::from(reason)));
        let attaching = AttachingRoute {
            kind: &self.kind,
            key,
            parents: &route.parents,
            hostnames: &route.hostnames,
            is_for_mesh: true,
        };
        let attachments =
            self.parents.attach(cx, &attaching, |place, reason| note(format!("spec.parentRefs[{place}]"), reason));
        let convert = |is_mesh: bool| {
            if !attachments.concerns(is_mesh) {
                return (Vec::new(), None);
            }
            let is_attached = attachments.attached.iter().any(|attached| attached.is_mesh() == is_mesh);
            let by = Referrer { kind: &self.kind, key, is_mesh };
            self.convert(cx, by, route, &|path, reason| {
                // Nothing is sent to the backends of a route that is not attached.
                if is_attached {
                    note(path, reason);
                }
            })
        };
        let ((of_mesh, mesh_problem), (of_gateways, gateway_problem)) = (convert(true), convert(false));
        let mut placed = Vec::new();
        for attached in &attachments.attached {
            let routes = if attached.is_mesh() { &of_mesh } else { &of_gateways };
            if !routes.is_empty() {
                place(route, attached, routes, &mut placed);
            }
        }
        let report = RouteReport::new(attachments, mesh_problem, gateway_problem);
        let mut problems = problems.into_inner();
        problems.sort();
        problems.dedup();
        BoundHttpRoute { placed, problems, report }
    }

    /// The routes of all rules, each with one match at most, and the last problem.
    fn convert(
        &self,
        cx: &Context,
        by: Referrer<'_>,
        route: &HttpRoute,
        note: &dyn Fn(String, &str),
    ) -> (Vec<VirtualRoute>, Option<StatusProblem>) {
        let (mut routes, mut problem) = (Vec::new(), None);
        for (n, rule) in route.rules.iter().enumerate() {
            let action = match self.action(cx, by, n, rule, note) {
                Ok((action, found)) => {
                    problem = found.or(problem);
                    action
                }
                Err(found) => return (Vec::new(), Some(found)),
            };
            if rule.matches.is_empty() {
                routes.push(action.clone());
            }
            for condition in &rule.matches {
                routes.push(VirtualRoute { matches: vec![condition.clone()], ..action.clone() });
            }
        }
        routes.sort_by_key(precedence);
        (routes, problem)
    }

    /// The action of a rule, and the problem with its backends.
    ///
    /// # Errors
    /// The route is omitted because of it.
    fn action(
        &self,
        cx: &Context,
        by: Referrer<'_>,
        n: usize,
        rule: &HttpRule,
        note: &dyn Fn(String, &str),
    ) -> Result<(VirtualRoute, Option<StatusProblem>), StatusProblem> {
        let mut action = rule.action.clone();
        if let Some(kind) = &rule.unsupported_filter {
            return Err(unsupported_filter(kind));
        }
        if !rule.declared.external_auths.is_empty() {
            note(
                format!("spec.rules[{n}].filters"),
                "filter `ExternalAuth` is not supported by Envoy; the route does not apply",
            );
            return Err(unsupported_filter("ExternalAuth"));
        }
        let mut of_mirrors = None;
        for mirror in &rule.mirrors {
            let ResolvedBackend { destination, problem, .. } = self.backends.resolve(cx, by, &mirror.backend);
            let Some(problem) = problem else {
                action.mirrors.push(HttpMirror { destination, percentage: mirror.percentage });
                continue;
            };
            if let Some(finding) = problem.finding {
                note(format!("spec.rules[{n}].filters"), finding);
            }
            // A request that cannot be mirrored is only routed, as in the reference.
            if *self.kind.kind == *"GRPCRoute" {
                return Err(problem.status);
            }
            of_mirrors = Some(problem.status);
        }
        let weights = rule.backends.iter().map(|backend| i64::from(backend.backend.weight)).sum::<i64>();
        if weights == 0 && action.redirect.is_none() {
            action.direct_response = Some(DirectResponse { status: 500, body: None });
            return Ok((action, of_mirrors));
        }
        let counted = rule.backends.iter().enumerate().filter(|(_, to)| to.backend.weight != 0);
        let only = counted.clone().count() == 1;
        let mut of_backends = None;
        for (m, to) in counted {
            let ResolvedBackend { destination, picker, problem } = self.backends.resolve(cx, by, &to.backend);
            if let Some(problem) = problem {
                if let Some(finding) = problem.finding {
                    note(format!("spec.rules[{n}].backendRefs[{m}]"), finding);
                }
                if problem.omits_route() {
                    return Err(problem.status);
                }
                of_backends = Some(problem.status);
            }
            if let Some(kind) = &to.unsupported_filter {
                return Err(unsupported_filter(kind));
            }
            // GRPCRoutes do not call endpoint pickers, as in the reference.
            if *self.kind.kind == *"HTTPRoute" {
                action.endpoint_picker = picker.or(action.endpoint_picker);
            }
            let weight = if only { 0 } else { to.backend.weight };
            action.route.push(HttpDestination { destination, weight, headers: to.headers.clone() });
        }
        Ok((action, StatusProblem::joined(of_backends, of_mirrors)))
    }
}

/// The problem of a filter of this type. Requests must not bypass it: it may restrict access.
fn unsupported_filter(kind: &str) -> StatusProblem {
    StatusProblem::new("InvalidFilter", format!("unsupported filter type \"{kind}\""))
}

/// Adds the VirtualServices of a route for the hosts of a parent.
fn place(route: &HttpRoute, attached: &AttachedListeners, routes: &[VirtualRoute], placed: &mut Vec<PlacedRoute>) {
    let any = [Text::from("*")];
    let (place, hosts): (String, Vec<Text>) = if attached.is_mesh() {
        let port = if attached.port == 0 { String::new() } else { format!("/{}", attached.port) };
        (format!("{}{port}", route.meta.namespace), attached.hosts.iter().map(|host| host.0.clone()).collect())
    } else {
        let hostnames = if route.hostnames.is_empty() { &any[..] } else { &route.hostnames };
        (attached.gateway.to_string(), hostnames.to_vec())
    };
    let http = if attached.is_mesh() && attached.port != 0 { on_port(routes, attached.port) } else { routes.to_vec() };
    for host in hosts.iter().filter(|host| attached.gets(host)) {
        placed.push(PlacedRoute {
            place: format!("{place}/{host}").into(),
            created: route.meta.created,
            virtual_service: VirtualService {
                namespace: route.meta.namespace.clone(),
                name: route.meta.name.clone(),
                created: route.meta.created,
                hosts: vec![Host::new(host)],
                gateways: vec![attached.gateway.clone()],
                http: http.clone(),
                semantics: RouteSemantics::GatewayApi,
                ..VirtualService::default()
            },
        });
    }
}

/// The routes, for requests to one port only.
fn on_port(routes: &[VirtualRoute], port: u16) -> Vec<VirtualRoute> {
    let mut routes = routes.to_vec();
    for route in &mut routes {
        if route.matches.is_empty() {
            route.matches.push(HttpMatch::default());
        }
        for condition in &mut route.matches {
            condition.port = port.into();
        }
    }
    routes
}

/// The precedence of a route among others of its host: the more specific comes first, in any declared order.
pub(super) fn precedence(route: &VirtualRoute) -> impl Ord + use<> {
    let condition = route.matches.first();
    let uri = condition.and_then(|condition| condition.uri.as_ref());
    let (rank, length) = match uri {
        Some(StringMatch::Exact(path)) => (3, path.len()),
        Some(StringMatch::Prefix(path)) => (2, path.len()),
        Some(StringMatch::Regex(expression)) => (1, expression.len()),
        None => (0, 0),
    };
    let method = condition.is_some_and(|condition| condition.method.is_some());
    let headers = condition.map_or(0, |condition| condition.headers.len());
    let params = condition.map_or(0, |condition| condition.query_params.len());
    (condition.is_none(), Reverse((rank, length, method, headers, params)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_special_condition_comes_first() {
        let route = |name: &str, condition: Option<HttpMatch>| VirtualRoute {
            name: name.into(),
            matches: condition.into_iter().collect(),
            ..VirtualRoute::default()
        };
        let at = |uri: StringMatch| HttpMatch { uri: Some(uri), ..HttpMatch::default() };
        let with_header = |uri: StringMatch| HttpMatch { headers: [("a".into(), None)].into(), ..at(uri) };
        let with_method = |uri: StringMatch| HttpMatch { method: Some(StringMatch::Exact("GET".into())), ..at(uri) };
        let mut routes = [
            route("any", None),
            route("regex", Some(at(StringMatch::Regex("/a/long/expression.*".into())))),
            route("prefix", Some(at(StringMatch::Prefix("/a".into())))),
            route("header", Some(with_header(StringMatch::Prefix("/a".into())))),
            route("method", Some(with_method(StringMatch::Prefix("/a".into())))),
            route("longer", Some(at(StringMatch::Prefix("/a/b".into())))),
            route("exact", Some(at(StringMatch::Exact("/".into())))),
        ];
        routes.sort_by_key(precedence);
        let names: Vec<&str> = routes.iter().map(|route| route.name.as_str()).collect();
        assert_eq!(names, ["exact", "longer", "method", "header", "prefix", "regex", "any"]);
    }
}
