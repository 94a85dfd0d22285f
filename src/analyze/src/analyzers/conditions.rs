//! Negative conditions in statuses (IST0171).

use serde_json::Value;

use crate::codes::NEGATIVE_CONDITION;
use crate::resource::{
    AUTHORIZATION_POLICY, GRPC_ROUTE, HTTP_ROUTE, KUBERNETES_GATEWAY, SERVICE, SERVICE_ENTRY, WORKLOAD_ENTRY,
};
use crate::value::{items, text};
use crate::{AnalyzedObject, GroupKind, MeshObjects, MessageList};

const WAYPOINT: &[&str] = &["istio.io/WaypointBound"];
const POLICY: &[&str] = &["ZtunnelAccepted", "WaypointAccepted"];
const GATEWAY: &[&str] = &["Accepted", "Programmed", "ResolvedRefs"];

/// The types of conditions that are expected to be true, by kind.
const EXPECTED: &[(GroupKind<'static>, &[&str])] = &[
    (SERVICE, WAYPOINT),
    (SERVICE_ENTRY, WAYPOINT),
    (WORKLOAD_ENTRY, WAYPOINT),
    (AUTHORIZATION_POLICY, POLICY),
    (KUBERNETES_GATEWAY, GATEWAY),
    (HTTP_ROUTE, GATEWAY),
    (GRPC_ROUTE, GATEWAY),
];

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for (kind, types) in EXPECTED {
        for resource in mesh.all(*kind) {
            check(resource, "status".to_owned(), items(&resource.value, "status.conditions"), types, report);
            for (n, parent) in items(&resource.value, "status.parents").iter().enumerate() {
                check(resource, format!("status.parents[{n}]"), items(parent, "conditions"), types, report);
            }
        }
    }
}

fn check<'m>(
    resource: &'m AnalyzedObject,
    path: String,
    conditions: &[Value],
    types: &[&str],
    report: &mut MessageList<'m>,
) {
    for (n, condition) in conditions.iter().enumerate() {
        let (name, reason) = (text(condition, "type"), text(condition, "reason"));
        let is_negative = types.contains(&name) && text(condition, "status") == "False";
        let is_partly_invalid = types == POLICY && name == "WaypointAccepted" && reason == "PartiallyInvalid";
        if is_negative || is_partly_invalid {
            let text = format!("condition {name} is negative: {reason}: {}", text(condition, "message"));
            report.add(&NEGATIVE_CONDITION, resource, format!("{path}.conditions[{n}]"), text);
        }
    }
}
