//! Conditions of Services, ServiceEntries and WorkloadEntries: their waypoint (A07) and their visibility (S11).

use serde::Serialize;
use serde_json::Value;
use sluice_engine::{Collection, Index};
use sluice_model::{
    AmbientService, Kind, ObjectKey, ServiceEntry, ServiceKey, ServiceSource, ServiceWaypoints, Text, Visibility,
    WaypointProblem, WaypointProblemKind,
};

use super::waypoints::{WaypointReads, Waypoints};
use super::{AmbientInputs, namespace_labels};
use crate::options::GraphOptions;
use crate::registry::services::visibility;
use crate::statuses::{ConditionUpdate, StatusCondition, StatusKey, condition_list, put};

/// Whether the waypoint that an object refers to is used.
const WAYPOINT_BOUND: &str = "istio.io/WaypointBound";
/// A ServiceEntry has no effect without a waypoint.
const WAYPOINT_MISSING: &str = "istio.io/WaypointMissing";
/// The visibility that the mesh config gives a ServiceEntry.
const VISIBILITY_APPLIED: &str = "istio.io/VisibilityApplied";
/// The reason of a condition about a waypoint that is used.
const WAYPOINT_ACCEPTED: &str = "WaypointAccepted";
/// All of these; of no other writer.
const OWN_CONDITIONS: [&str; 3] = [WAYPOINT_BOUND, WAYPOINT_MISSING, VISIBILITY_APPLIED];

/// The wanted conditions of an object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum WantedConditions {
    /// Exactly these.
    These(Vec<StatusCondition>),
    /// Those that it has: as in the reference, for a ServiceEntry that no client sees.
    Present,
}

/// Conditions that have to be written. Reasons and messages are those of the reference
/// (`pilot/pkg/model/service.go`, `GetConditions`).
/// Key: `StatusKey`. From: `kubernetes_services`, `service_entries`, `workload_entries`, `ambient_services`, `waypoints`,
/// `namespaces`, `mesh_config`. Changes when: the waypoint or visibility of an object does, or its status.
/// Size: objects that are not written yet; none once all are written. Rejects: none.
pub(super) fn derive_condition_updates<'s>(
    inputs: &AmbientInputs<'_, 's>,
    services: &Collection<'s, ServiceKey, AmbientService>,
    waypoints: &Waypoints<'s>,
    options: &GraphOptions,
) -> Collection<'s, StatusKey, ConditionUpdate> {
    let objects = inputs.objects;
    let of_services = services.flat_map("wanted_conditions/services", |_, service| {
        let is_service = service.source == ServiceSource::Kubernetes;
        let bound = is_service.then(|| waypoint_bound(&service.waypoints)).flatten();
        bound.map(|bound| (key(Kind::Service, &service.object), WantedConditions::These(vec![bound])))
    });
    let of_entries = derive_entry_conditions(inputs, services, options);
    let cluster = options.cluster.clone();
    let of_workloads = objects.workload_entries.derive("workload_entry_conditions", |deps| {
        let waypoints = WaypointReads::on(deps, waypoints);
        move |cx, key, entry| {
            if key.cluster != cluster {
                return None;
            }
            let found = waypoints.of_workload(cx, key, &entry.workload.labels);
            let attached = found.waypoint.as_ref().map(|waypoint| accepted(&waypoint.key, ""));
            let bound = attached.or_else(|| found.problem.as_ref().map(refused))?;
            Some(WantedConditions::These(vec![bound]))
        }
    });
    let of_workloads = of_workloads.flat_map("wanted_conditions/workload_entries", |object, wanted| {
        [(key(Kind::WorkloadEntry, object), wanted.clone())]
    });
    let wanted = of_services.union_disjoint("wanted_conditions", &[of_entries, of_workloads]);

    // Objects of other clusters are written by the control planes of these.
    let cluster = options.cluster.clone();
    let stored = move |kind: Kind, object: &ObjectKey, conditions: &Text| {
        (object.cluster == cluster && !conditions.is_empty()).then(|| (key(kind, object), conditions.clone()))
    };
    let of = stored.clone();
    let of_entries = objects.service_entries.flat_map("stored_conditions/service_entries", move |object, entry| {
        of(Kind::ServiceEntry, object, &entry.conditions)
    });
    let of = stored.clone();
    let of_workloads = objects.workload_entries.flat_map("stored_conditions/workload_entries", move |object, entry| {
        of(Kind::WorkloadEntry, object, &entry.conditions)
    });
    let of_services = objects.kubernetes_services.flat_map("stored_conditions/services", move |object, service| {
        stored(Kind::Service, object, &service.conditions)
    });
    let stored = of_services.union_disjoint("stored_conditions", &[of_entries, of_workloads]);

    let changes = wanted.derive("ambient_condition_updates/wanted", |deps| {
        let stored = deps.on(&stored);
        move |cx, key, wanted| {
            let present = cx.get(&stored, key).map(|present| (*present).clone()).unwrap_or_default();
            match wanted {
                WantedConditions::These(wanted) => update(&present, wanted),
                WantedConditions::Present => None,
            }
        }
    });
    let removals = stored.derive("ambient_condition_updates/removed", |deps| {
        let wanted = deps.on(&wanted);
        move |cx, key, present| cx.get(&wanted, key).is_none().then(|| update(present, &[])).flatten()
    });
    changes.union_disjoint("ambient_condition_updates", &[removals])
}

/// Conditions of ServiceEntries.
/// Key: `StatusKey`. From: `service_entries`, `ambient_services`, `namespaces`, `mesh_config`.
/// Changes when: the waypoint or visibility of the entry does. Size: ServiceEntries with such conditions. Rejects: none.
fn derive_entry_conditions<'s>(
    inputs: &AmbientInputs<'_, 's>,
    services: &Collection<'s, ServiceKey, AmbientService>,
    options: &GraphOptions,
) -> Collection<'s, StatusKey, WantedConditions> {
    let objects = inputs.objects;
    let policies = inputs.mesh.map("entry_conditions/policy", |(), mesh| mesh.service_entry_visibility.clone());
    let by_entry: Index<'s, ObjectKey, ServiceKey, ServiceWaypoints> =
        services.index("entry_conditions/services", |_, service| {
            let is_entry = service.source == ServiceSource::ServiceEntry;
            is_entry.then(|| (service.object.clone(), service.waypoints.clone()))
        });
    let cluster = options.cluster.clone();
    let conditions = objects.service_entries.derive("entry_conditions", |deps| {
        let (policies, namespaces) = (deps.on(&policies), deps.on(&objects.namespaces));
        let by_entry = deps.by(&by_entry);
        move |cx, key, entry| {
            if key.cluster != cluster {
                return None;
            }
            let policy = cx.get(&policies, &()).and_then(|policy| (*policy).clone());
            let mut wanted = Vec::new();
            if let Some(policy) = &policy {
                match visibility(Some(policy), &namespace_labels(cx, &namespaces, key)) {
                    Visibility::None => return Some(WantedConditions::Present),
                    decided => wanted.push(visible(decided)),
                }
            }
            // The waypoint is that of the object, so it is the same for all its hosts.
            if let Some((_, waypoints)) = cx.by(&by_entry, key).first() {
                wanted.extend(waypoint_bound(waypoints));
                wanted.extend(waypoint_missing(entry, waypoints));
            }
            (!wanted.is_empty()).then_some(WantedConditions::These(wanted))
        }
    });
    conditions.flat_map("wanted_conditions/service_entries", |object, wanted| {
        [(key(Kind::ServiceEntry, object), wanted.clone())]
    })
}

fn key(kind: Kind, object: &ObjectKey) -> StatusKey {
    StatusKey { kind, object: object.clone() }
}

fn visible(visibility: Visibility) -> StatusCondition {
    let (reason, message) = if visibility == Visibility::Namespace {
        (
            "Namespace",
            "ServiceEntry is visible only within its own namespace (NAMESPACE), per mesh serviceEntryVisibility.",
        )
    } else {
        ("Public", "ServiceEntry is visible to the entire mesh (PUBLIC).")
    };
    StatusCondition::met(VISIBILITY_APPLIED, reason, message)
}

fn waypoint_bound(waypoints: &ServiceWaypoints) -> Option<StatusCondition> {
    let Some(waypoint) = &waypoints.waypoint else { return waypoints.problem.as_ref().map(refused) };
    let mut more = String::new();
    if waypoints.for_ingress {
        more.push_str(". Ingress traffic will traverse the waypoint");
    } else if waypoints.has_ingress_label {
        more.push_str(
            ". Ingress traffic is not using the waypoint, set the istio.io/ingress-use-waypoint label to true if desired.",
        );
    }
    if let Some(problem) = &waypoints.problem {
        more.push_str(". Canary waypoint not attached: ");
        more.push_str(&refusal(problem).1);
    }
    Some(accepted(waypoint, &more))
}

fn accepted(waypoint: &ObjectKey, more: &str) -> StatusCondition {
    let ObjectKey { namespace, name, .. } = waypoint;
    let message = format!("Successfully attached to waypoint {namespace}/{name}{more}");
    StatusCondition::met(WAYPOINT_BOUND, WAYPOINT_ACCEPTED, message)
}

fn refused(problem: &WaypointProblem) -> StatusCondition {
    let (reason, message) = refusal(problem);
    StatusCondition::not_met(WAYPOINT_BOUND, reason, message)
}

/// The reason and the message of a problem.
fn refusal(problem: &WaypointProblem) -> (&'static str, String) {
    let waypoint = &problem.waypoint;
    let no_traffic = |traffic: &str| {
        format!("attempting to bind to traffic type \"{traffic}\" which the waypoint \"{waypoint}\" does not support")
    };
    match problem.kind {
        WaypointProblemKind::NotReady => ("WaypointIsNotReady", format!("waypoint \"{waypoint}\" is not ready")),
        WaypointProblemKind::AttachmentDenied => (
            "AttachmentDenied",
            format!("we are not permitted to attach to waypoint \"{waypoint}\" (missing allowedRoutes?)"),
        ),
        WaypointProblemKind::NoServiceTraffic => ("UnsupportedTrafficType", no_traffic("service")),
        WaypointProblemKind::NoWorkloadTraffic => ("UnsupportedTrafficType", no_traffic("workload")),
        WaypointProblemKind::OtherNamespace => (
            "CrossNamespaceWaypointForbidden",
            format!(
                "cannot bind to waypoint \"{waypoint}\" in another namespace: cross-namespace waypoint binding is not \
                 permitted for a ServiceEntry with NAMESPACE visibility"
            ),
        ),
        WaypointProblemKind::InvalidShare => (
            "CanaryInvalidWeight",
            format!("canary waypoint \"{waypoint}\" has an invalid weight; must be an integer in [0,100]"),
        ),
        WaypointProblemKind::SameAsPrimary => {
            ("CanarySameAsPrimary", format!("canary waypoint \"{waypoint}\" must differ from the primary waypoint"))
        }
    }
}

/// That a ServiceEntry needs a waypoint, if it has none.
fn waypoint_missing(entry: &ServiceEntry, waypoints: &ServiceWaypoints) -> Option<StatusCondition> {
    if waypoints.waypoint.is_some() {
        return None;
    }
    if entry.races_connects() {
        let message = "ServiceEntry has a non-default connect strategy but no waypoint bound. A waypoint is required for \
                       connect strategies to take effect for ambient clients.";
        return Some(StatusCondition::met(WAYPOINT_MISSING, "NoWaypointForRacingConnectStrategy", message));
    }
    let message = "ServiceEntry will not apply until it is bound to a valid waypoint.";
    let is_wildcard = entry.hosts.iter().any(sluice_model::Host::is_wildcard);
    is_wildcard.then(|| StatusCondition::met(WAYPOINT_MISSING, "NoWaypointForWildcardService", message))
}

/// The present conditions with the wanted ones, without those that are no longer wanted; `None` if nothing changes.
fn update(present: &Text, wanted: &[StatusCondition]) -> Option<ConditionUpdate> {
    let type_of = |condition: &Value| condition["type"].as_str().unwrap_or_default().to_owned();
    let is_wanted = |kind: &str| wanted.iter().any(|condition| condition.kind == kind);
    let is_removed = |kind: &str| OWN_CONDITIONS.contains(&kind) && !is_wanted(kind);
    let mut list = condition_list(present);
    list.retain(|condition| !is_removed(&type_of(condition)));
    for condition in wanted {
        put(&mut list, condition.to_json(), &["reason", "message"]);
    }
    ConditionUpdate::new(present, list)
}
