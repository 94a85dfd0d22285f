//! The statuses of routes (G05).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_engine::{Collection, Value as Record};
use sluice_model::gateway_api::{GROUP, GroupKind, HttpRoute, L4Route, ParentRef};
use sluice_model::{Kind, ObjectKey, ObjectMeta, StoredStatus, Text};

use super::super::attachment::{ParentResult, reference_text};
use super::super::classes::{AGENTGATEWAY_CONTROLLER, AGENTGATEWAY_WAYPOINT_CONTROLLER};
use super::super::route_report::{RouteReport, denied};
use super::StatusInputs;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusUpdate, merge};

/// The parts of a route that its status follows from.
trait Route: Record {
    fn parts(&self) -> RouteParts<'_>;
}

struct RouteParts<'a> {
    meta: &'a ObjectMeta,
    parents: &'a [ParentRef],
    status: &'a StoredStatus,
}

impl Route for HttpRoute {
    fn parts(&self) -> RouteParts<'_> {
        RouteParts { meta: &self.meta, parents: &self.parents, status: &self.status }
    }
}

impl Route for L4Route {
    fn parts(&self) -> RouteParts<'_> {
        RouteParts { meta: &self.meta, parents: &self.parents, status: &self.status }
    }
}

/// Statuses of routes that have to be written, by kind. A route without parents of our controllers has an empty list of them.
/// Key: `StatusKey`. From: the routes, their reports, `namespaces`, `own_revision`. Changes when: the route, its status, or
/// one of its parents or backends does. Size: routes that are not written yet. Rejects: none.
pub(super) fn derive_route_statuses<'s>(inputs: &StatusInputs<'_, 's>) -> Vec<Collection<'s, StatusKey, StatusUpdate>> {
    let objects = inputs.objects;
    inputs
        .routes
        .into_iter()
        .flatten()
        .map(|(kind, reports)| {
            let others = inputs.agentgateway.iter().flat_map(|of| &of.reports).flatten();
            let others = others.filter(|(of, _)| of == kind).map(|(_, reports)| reports).next();
            match kind {
                Kind::HTTPRoute => of_kind(inputs, *kind, &objects.http_routes, (reports, others)),
                Kind::GRPCRoute => of_kind(inputs, *kind, &objects.grpc_routes, (reports, others)),
                Kind::TLSRoute => of_kind(inputs, *kind, &objects.tls_routes, (reports, others)),
                Kind::UDPRoute => of_kind(inputs, *kind, &objects.udp_routes, (reports, others)),
                _ => of_kind(inputs, *kind, &objects.tcp_routes, (reports, others)),
            }
        })
        .collect()
}

fn of_kind<'s, R: Route>(
    inputs: &StatusInputs<'_, 's>,
    kind: Kind,
    routes: &Collection<'s, ObjectKey, R>,
    (reports, of_agentgateways): (
        &Collection<'s, ObjectKey, RouteReport>,
        Option<&Collection<'s, ObjectKey, RouteReport>>,
    ),
) -> Collection<'s, StatusKey, StatusUpdate> {
    let name = kind.name();
    let options = inputs.options.clone();
    let updates = routes.derive(&format!("gateway_api/{name}/statuses"), |deps| {
        let reports = deps.on(reports);
        let of_agentgateways = of_agentgateways.map(|reports| deps.on(reports));
        let revisions = inputs.revisions.on(deps);
        move |cx, key, route: &R| {
            let parts = route.parts();
            if !options.gateway_api.writes_statuses || !revisions.owns(cx, key, &parts.meta.labels) {
                return None;
            }
            let report = cx.get(&reports, key)?;
            let mut draft = StatusDraft::new(parts.status);
            let writer = ParentWriter {
                controller: &options.gateway_api.controller,
                of_waypoints: false,
                reports_waypoints: options.ambient.is_some(),
                report: &report,
            };
            writer.write(&parts, &mut draft);
            if let Some(report) = of_agentgateways.as_ref().and_then(|reports| cx.get(reports, key)) {
                let controllers = [(AGENTGATEWAY_CONTROLLER, false), (AGENTGATEWAY_WAYPOINT_CONTROLLER, true)];
                for (controller, of_waypoints) in controllers {
                    let writer = ParentWriter { controller, of_waypoints, reports_waypoints: false, report: &report };
                    writer.write(&parts, &mut draft);
                }
            }
            draft.finish()
        }
    });
    updates.flat_map(&format!("gateway_api/{name}/status_updates"), move |key, update| {
        [(StatusKey { kind, object: key.clone() }, update.clone())]
    })
}

/// Writes the list of parents of a route.
struct ParentWriter<'a> {
    controller: &'a str,
    /// Its Gateways are those of agentgateways that are waypoints.
    of_waypoints: bool,
    /// In ambient mode, a condition says whether the parent has a waypoint.
    reports_waypoints: bool,
    report: &'a RouteReport,
}

impl ParentWriter<'_> {
    /// Writes the entries of the controller. Those of other controllers stay as they are.
    fn write(&self, route: &RouteParts<'_>, draft: &mut StatusDraft<'_>) {
        let present: Vec<Value> = draft.get("parents").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut wanted: BTreeMap<String, Value> = BTreeMap::new();
        for (place, parent) in route.parents.iter().enumerate() {
            let is_of_parent =
                |result: &&ParentResult| result.reference == place && result.of_waypoint == self.of_waypoints;
            let results: Vec<&ParentResult> = self.report.results.iter().filter(is_of_parent).collect();
            if results.is_empty() {
                continue;
            }
            let text = reference_text(parent);
            let old = present.iter().find(|old| self.is_ours(old) && present_text(old, route) == text);
            let conditions = self.conditions(&results);
            let entry = json!({
                "parentRef": reference(parent),
                "controllerName": self.controller,
                "conditions": merge(old.and_then(|old| old.get("conditions")), draft.generation(), &conditions),
            });
            wanted.insert(text, entry);
        }
        let mut parents = Vec::new();
        // Entries of other controllers stay as they are, and the order stays.
        for old in present {
            if !self.is_ours(&old) {
                parents.push(old);
            } else if let Some(entry) = wanted.remove(&present_text(&old, route)) {
                parents.push(entry);
            }
        }
        parents.extend(wanted.into_values().rev());
        draft.set("parents", Some(Value::Array(parents)));
    }

    fn is_ours(&self, entry: &Value) -> bool {
        entry["controllerName"] == self.controller
    }

    /// The conditions of a reference with the results of its listeners: it is accepted if one of them accepts the route.
    fn conditions(&self, results: &[&ParentResult]) -> Vec<StatusCondition> {
        let attached = results.iter().filter(|result| result.denied.is_none()).count();
        let message = match attached {
            0 | 1 => "Route was valid".to_owned(),
            count => format!("Route was valid, bound to {count} parents"),
        };
        let denied = denied(results);
        let is_mesh = results.iter().any(|result| result.is_mesh);
        let problem = if is_mesh { &self.report.mesh_problem } else { &self.report.gateway_problem };
        let resolved = StatusCondition::met("ResolvedRefs", "ResolvedRefs", "All references resolved");
        let mut conditions = vec![
            StatusCondition::met("Accepted", "Accepted", message).unless(denied.as_ref()),
            resolved.unless(problem.as_ref()),
        ];
        if self.reports_waypoints {
            let message = results.iter().find_map(|result| result.waypoint).unwrap_or("All waypoints resolved");
            conditions.push(StatusCondition::met("ResolvedWaypoints", "ResolvedWaypoints", message));
        }
        conditions
    }
}

/// A reference to a parent, as it is written.
fn reference(parent: &ParentRef) -> Value {
    let ParentRef { kind: GroupKind { group, kind }, namespace, has_namespace, name, section, port } = parent;
    let mut reference = json!({"group": group.as_str(), "kind": kind.as_str(), "name": name.as_str()});
    if *has_namespace {
        reference["namespace"] = namespace.as_str().into();
    }
    if !section.is_empty() {
        reference["sectionName"] = section.as_str().into();
    }
    if *port != 0 {
        reference["port"] = (*port).into();
    }
    reference
}

/// The reference of an entry of the present status, as text.
fn present_text(entry: &Value, route: &RouteParts<'_>) -> String {
    let reference = &entry["parentRef"];
    let text = |field: &str, default: &str| Text::from(reference[field].as_str().unwrap_or(default));
    reference_text(&ParentRef {
        kind: GroupKind { group: text("group", GROUP), kind: text("kind", "Gateway") },
        namespace: text("namespace", &route.meta.namespace),
        has_namespace: false,
        name: text("name", ""),
        section: text("sectionName", ""),
        port: reference["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or_default(),
    })
}
