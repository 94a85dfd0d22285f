//! Routes at the listeners of agentgateways.

use std::cell::RefCell;

use serde::Serialize;
use sluice_engine::{Collection, Context, Deps};
use sluice_envoy::agentgateway::{
    BackendService, HttpRuleInputs, L4RuleInputs, MirrorInputs, RouteBackendInputs, RouteTemplate, build_http_rule,
    build_l4_rule, listener_key,
};
use sluice_model::gateway_api::{BackendRef, GROUP, GroupKind, HttpRoute, HttpRule, L4Route, ParentRef};
use sluice_model::{Kind, ObjectKey, Reject, Text};

use super::super::attachment::{AttachingRoute, Attachments, ParentLookup, RouteParents};
use super::super::backends::{BackendIndex, BackendLookup, Referrer};
use super::super::http_routes::rejects;
use super::super::route_report::{RouteReport, RouteReports};
use super::{AgentgatewayInputs, Derived, ResourceOrigin};
use crate::inputs::RejectKey;
use crate::statuses::StatusProblem;

/// The resources of a route, its findings and its state.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct BoundRoute {
    resources: Vec<Derived>,
    /// Findings in its references: path and reason.
    problems: Vec<(Text, Text)>,
    report: RouteReport,
}

/// The resources, reports and findings of all routes.
type DerivedRoutes<'s> =
    (Vec<Collection<'s, ResourceOrigin, Derived>>, [RouteReports<'s>; 2], Vec<Collection<'s, RejectKey, Vec<Reject>>>);

/// Routes at the listeners of agentgateways, one resource for each match of a rule and each listener, and findings in their
/// references.
/// Key: route and number. From: `http_routes`, `grpc_routes`, `tls_routes`, `tcp_routes`, `agentgateway/bound_listeners`,
/// `kubernetes_services`, `services`, `reference_grants`.
/// Changes when: the route does, a listener of a parent, or a grant in a namespace that it refers to; a Service that it refers to is
/// added or removed. Size: matches of routes × their listeners. Rejects: references to absent or forbidden objects.
pub(super) fn derive_routes<'s>(inputs: &AgentgatewayInputs<'_, 's>, parents: &RouteParents<'s>) -> DerivedRoutes<'s> {
    let objects = inputs.objects;
    let mut routes = RouteOutputs { resources: Vec::new(), rejects: Vec::new() };
    let http = |kind: Kind, of: &Collection<'s, ObjectKey, HttpRoute>| {
        of.derive(&format!("agentgateway/{kind}"), |deps| {
            let binder = RouteBinder::on(deps, kind, parents, inputs.backends);
            move |cx, key, route| {
                Some(binder.bind(cx, key, (&route.parents, &route.hostnames), |note| binder.http(cx, key, route, note)))
            }
        })
    };
    let l4 = |kind: Kind, of: &Collection<'s, ObjectKey, L4Route>| {
        of.derive(&format!("agentgateway/{kind}"), |deps| {
            let binder = RouteBinder::on(deps, kind, parents, inputs.backends);
            move |cx, key, route| {
                Some(binder.bind(cx, key, (&route.parents, &route.hostnames), |note| binder.l4(cx, key, route, note)))
            }
        })
    };
    let reports = [
        vec![
            routes.add(Kind::HTTPRoute, &http(Kind::HTTPRoute, &objects.http_routes)),
            routes.add(Kind::GRPCRoute, &http(Kind::GRPCRoute, &objects.grpc_routes)),
        ],
        vec![
            routes.add(Kind::TLSRoute, &l4(Kind::TLSRoute, &objects.tls_routes)),
            routes.add(Kind::TCPRoute, &l4(Kind::TCPRoute, &objects.tcp_routes)),
        ],
    ];
    (routes.resources, reports, routes.rejects)
}

/// The collections of all kinds of routes.
struct RouteOutputs<'s> {
    resources: Vec<Collection<'s, ResourceOrigin, Derived>>,
    rejects: Vec<Collection<'s, RejectKey, Vec<Reject>>>,
}

impl<'s> RouteOutputs<'s> {
    /// Adds the resources and findings of a kind, and returns its reports.
    fn add(
        &mut self,
        kind: Kind,
        bound: &Collection<'s, ObjectKey, BoundRoute>,
    ) -> (Kind, Collection<'s, ObjectKey, RouteReport>) {
        self.resources.push(bound.flat_map(&format!("agentgateway/{kind}/resources"), move |route, bound| {
            let row = |(number, made): (usize, &Derived)| {
                (ResourceOrigin::Route { kind, route: route.clone(), number }, made.clone())
            };
            bound.resources.iter().enumerate().map(row).collect::<Vec<_>>()
        }));
        let rejects = move |route: &ObjectKey, bound: &BoundRoute| rejects(kind, route, &bound.problems);
        self.rejects.push(bound.flat_map(&format!("agentgateway/{kind}/rejects"), rejects));
        (kind, bound.map(&format!("agentgateway/{kind}/report"), |_, bound| bound.report.clone()))
    }
}

struct RouteBinder {
    parents: ParentLookup,
    backends: BackendLookup,
    kind: GroupKind,
}

/// Takes a finding: path and reason.
type Note<'a> = &'a dyn Fn(String, &str);

impl RouteBinder {
    fn on<'s>(deps: &mut Deps<'s>, kind: Kind, parents: &RouteParents<'s>, backends: &BackendIndex<'_, 's>) -> Self {
        Self {
            parents: ParentLookup::on(deps, parents),
            backends: BackendLookup::on(deps, backends),
            kind: GroupKind { group: GROUP.into(), kind: kind.name().into() },
        }
    }

    /// Attaches a route to listeners. `convert` returns its rules and the last problem of its backends.
    fn bind(
        &self,
        cx: &Context,
        key: &ObjectKey,
        (parents, hostnames): (&[ParentRef], &[Text]),
        convert: impl Fn(Note<'_>) -> (Vec<RouteTemplate>, Option<StatusProblem>),
    ) -> BoundRoute {
        let problems = RefCell::new(Vec::new());
        let note = |path: String, reason: &str| problems.borrow_mut().push((Text::from(path), Text::from(reason)));
        let attaching = AttachingRoute { kind: &self.kind, key, parents, hostnames, is_for_mesh: true };
        let attachments =
            self.parents.attach(cx, &attaching, |place, reason| note(format!("spec.parentRefs[{place}]"), reason));
        if attachments.results.is_empty() {
            return BoundRoute::default();
        }
        // Nothing is sent to the backends of a route that is not attached.
        let is_attached = !attachments.attached.is_empty();
        let (rules, problem) = convert(&|path, reason| {
            if is_attached {
                note(path, reason);
            }
        });
        let resources = attach(&attachments, &rules);
        let report = RouteReport::new(attachments, None, problem);
        let mut problems = problems.into_inner();
        problems.sort();
        problems.dedup();
        BoundRoute { resources, problems, report }
    }

    /// The service of a backend; `None` if requests cannot be sent to it, with the problem.
    fn service(
        &self,
        cx: &Context,
        key: &ObjectKey,
        backend: &BackendRef,
        path: impl FnOnce() -> String,
        note: Note<'_>,
    ) -> (Option<BackendService>, Option<StatusProblem>) {
        let by = Referrer { kind: &self.kind, key, is_mesh: false };
        match self.backends.resolve_service(cx, by, backend) {
            Ok(service) => (Some(service), None),
            Err(problem) => {
                if let Some(finding) = problem.finding {
                    note(path(), finding);
                }
                (None, Some(problem.status))
            }
        }
    }

    fn http(
        &self,
        cx: &Context,
        key: &ObjectKey,
        route: &HttpRoute,
        note: Note<'_>,
    ) -> (Vec<RouteTemplate>, Option<StatusProblem>) {
        let (mut templates, mut last) = (Vec::new(), None);
        for (number, rule) in route.rules.iter().enumerate() {
            // Requests must not bypass a filter: it may restrict access.
            if let Some(kind) = &rule.unsupported_filter {
                return (Vec::new(), Some(unsupported_filter(kind)));
            }
            let (backends, of_backends) = self.http_backends(cx, key, (number, rule), note);
            let mut external_auths = Some(Vec::new());
            for auth in &rule.declared.external_auths {
                let path = || format!("spec.rules[{number}].filters");
                let (service, problem) = self.service(cx, key, &auth.backend, path, note);
                last = problem.or(last);
                external_auths = external_auths.zip(service).map(|(mut auths, service)| {
                    auths.push(service);
                    auths
                });
            }
            let mut mirrors = Vec::new();
            for mirror in &rule.mirrors {
                let path = || format!("spec.rules[{number}].filters");
                let (service, problem) = self.service(cx, key, &mirror.backend, path, note);
                last = problem.or(last);
                mirrors.extend(service.map(|service| MirrorInputs { service, percentage: mirror.percentage }));
            }
            last = of_backends.or(last);
            templates.extend(build_http_rule(&HttpRuleInputs {
                kind: &self.kind.kind,
                route: key,
                number,
                rule,
                hostnames: &route.hostnames,
                backends,
                mirrors,
                external_auths,
            }));
        }
        (templates, last)
    }

    /// The backends of a rule; none if one of them has a filter that is not supported.
    fn http_backends<'r>(
        &self,
        cx: &Context,
        key: &ObjectKey,
        (number, rule): (usize, &'r HttpRule),
        note: Note<'_>,
    ) -> (Vec<RouteBackendInputs<'r>>, Option<StatusProblem>) {
        let (mut backends, mut last) = (Vec::new(), None);
        for (m, to) in rule.backends.iter().enumerate() {
            if let Some(kind) = &to.unsupported_filter {
                return (Vec::new(), Some(unsupported_filter(kind)));
            }
            let path = || format!("spec.rules[{number}].backendRefs[{m}]");
            let (service, problem) = self.service(cx, key, &to.backend, path, note);
            last = problem.or(last);
            backends.push(RouteBackendInputs { service, weight: to.backend.weight, headers: to.headers.as_ref() });
        }
        (backends, last)
    }

    fn l4(
        &self,
        cx: &Context,
        key: &ObjectKey,
        route: &L4Route,
        note: Note<'_>,
    ) -> (Vec<RouteTemplate>, Option<StatusProblem>) {
        let (mut templates, mut last) = (Vec::new(), None);
        for (number, rule) in route.rules.iter().enumerate() {
            let mut backends = Vec::new();
            for (m, backend) in rule.iter().enumerate() {
                let path = || format!("spec.rules[{number}].backendRefs[{m}]");
                let (service, problem) = self.service(cx, key, backend, path, note);
                last = problem.or(last);
                backends.push(RouteBackendInputs { service, weight: backend.weight, headers: None });
            }
            templates.push(build_l4_rule(&L4RuleInputs {
                kind: &self.kind.kind,
                route: key,
                created: route.meta.created,
                number,
                hostnames: &route.hostnames,
                backends,
            }));
        }
        (templates, last)
    }
}

/// The resources of a route at each listener that it is attached to.
fn attach(attachments: &Attachments, rules: &[RouteTemplate]) -> Vec<Derived> {
    let mut resources = Vec::new();
    for attached in &attachments.attached {
        let (Some(gateway), Some(listener)) = (&attached.agentgateway, &attached.listener) else { continue };
        let set = listener.parent.is_set.then_some(&listener.parent.object);
        let of_listener = listener_key(gateway, set, &listener.section);
        let service = attached.service.as_ref();
        let route =
            |rule: &RouteTemplate| Derived::new(gateway, false, rule.attach(&listener.section, &of_listener, service));
        resources.extend(rules.iter().map(route));
    }
    resources
}

/// The problem of a filter of this type.
fn unsupported_filter(kind: &Text) -> StatusProblem {
    StatusProblem::new("IncompatibleFilters", format!("unsupported filter type \"{kind}\""))
}
