//! The statuses of AuthorizationPolicies: whether a waypoint or ztunnel enforces them (G07, A07).

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Index, IndexDep};
use sluice_envoy::ztunnel::{PolicyAcceptance, policy_acceptance};
use sluice_model::gateway_api::{GROUP, GatewayClass, WAYPOINT_CLASS};
use sluice_model::{
    AuthorizationPolicy, Kind, KubernetesService, NETWORKING_GROUP, ObjectKey, ServiceEntry, ServiceKey, ServiceSource,
    StoredStatus, TargetRef, Text, Waypoint,
};

use super::ambient::Ambient;
use super::gateway_api::classes::MESH_CONTROLLER;
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::statuses::{ConditionUpdate, StatusCondition, StatusDraft, StatusKey};

/// The condition of a policy that waypoints enforce.
const WAYPOINT_ACCEPTED: &str = "WaypointAccepted";

/// The condition of a policy that ztunnel enforces.
const ZTUNNEL_ACCEPTED: &str = "ZtunnelAccepted";

/// The targets of a policy, what ztunnel enforces of it, and its status.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PolicyWithStatus {
    targets: Vec<TargetRef>,
    ztunnel: Option<PolicyAcceptance>,
    status: StoredStatus,
}

impl PolicyWithStatus {
    /// The policy, if its status is written.
    pub(crate) fn of(policy: &AuthorizationPolicy, options: &GraphOptions) -> Option<Self> {
        let ambient = options.ambient.filter(|switches| switches.writes_conditions)?;
        Some(Self {
            targets: policy.attachment.targets.clone(),
            ztunnel: policy_acceptance(policy, ambient.dry_run_policies),
            status: policy.status.clone(),
        })
    }
}

/// The object that declares a service: its kind, namespace and name.
type Declaration = (ServiceSource, Text, Text);

/// The state of a target: whether a waypoint enforces the policy for it, with a reason and a message.
struct TargetState {
    is_bound: bool,
    reason: &'static str,
    message: String,
}

impl TargetState {
    fn bound(to: &str) -> Self {
        Self { is_bound: true, reason: "Accepted", message: format!("bound to {to}") }
    }

    fn unbound(reason: &'static str, message: impl Into<String>) -> Self {
        Self { is_bound: false, reason, message: message.into() }
    }
}

/// Conditions of AuthorizationPolicies that have to be written, in ambient mode.
/// Key: `StatusKey`. From: `authorization_policies`, `waypoints`, `ambient_services`, `kubernetes_services` and `service_entries`
/// (the targets), `gateway_classes`, `root_namespace`. Changes when: targets or status of the policy do, or a target begins or
/// stops to use a waypoint. Size: policies that are not written yet. Rejects: none.
pub(crate) fn derive_policy_statuses<'s>(
    policies: &Collection<'s, ObjectKey, PolicyWithStatus>,
    objects: &ObjectCollections<'s>,
    root_namespace: &Collection<'s, (), Text>,
    ambient: Option<&Ambient<'s>>,
    options: &GraphOptions,
) -> Collection<'s, StatusKey, ConditionUpdate> {
    let Some(ambient) = ambient else {
        return policies.flat_map("policy_condition_updates", |_, _| None);
    };
    let served: Index<'s, Declaration, ServiceKey, Option<ObjectKey>> =
        ambient.services.index("policy_statuses/services", |_, service| {
            let object = &service.object;
            let waypoint = service.waypoints.waypoint.clone();
            [((service.source, object.namespace.clone(), object.name.clone()), waypoint)]
        });
    let cluster = options.cluster.clone();
    let updates = policies.derive("policy_statuses", |deps| {
        let lookups = TargetLookups {
            root: deps.on(root_namespace),
            waypoints: deps.on(&ambient.waypoints),
            classes: deps.on(&objects.gateway_classes),
            services: deps.on(&objects.kubernetes_services),
            entries: deps.on(&objects.service_entries),
            served: deps.by(&served),
        };
        move |cx, key, policy: &PolicyWithStatus| {
            if key.cluster != cluster {
                return None;
            }
            let states = policy.targets.iter().map(|target| (target, lookups.state(cx, key, target)));
            let states: Vec<_> = states.collect();
            let of_waypoint = (!states.is_empty()).then(|| flattened(key, &states));
            let of_ztunnel = policy.ztunnel.as_ref().map(|acceptance| StatusCondition {
                is_met: acceptance.is_accepted,
                ..StatusCondition::met(ZTUNNEL_ACCEPTED, acceptance.reason, acceptance.message.as_str())
            });
            let mut draft = StatusDraft::new(&policy.status);
            for (kind, condition) in [(WAYPOINT_ACCEPTED, of_waypoint), (ZTUNNEL_ACCEPTED, of_ztunnel)] {
                match condition {
                    Some(condition) => draft.set_istio_conditions(&[condition]),
                    None => draft.remove_condition(kind),
                }
            }
            draft.finish_conditions()
        }
    });
    updates.flat_map("policy_condition_updates", |key, update| {
        [(StatusKey { kind: Kind::AuthorizationPolicy, object: key.clone() }, update.clone())]
    })
}

struct TargetLookups {
    root: Dep<(), Text>,
    waypoints: Dep<ObjectKey, Waypoint>,
    classes: Dep<ObjectKey, GatewayClass>,
    services: Dep<ObjectKey, KubernetesService>,
    entries: Dep<ObjectKey, ServiceEntry>,
    served: IndexDep<Declaration, ServiceKey, Option<ObjectKey>>,
}

impl TargetLookups {
    fn state(&self, cx: &Context, policy: &ObjectKey, target: &TargetRef) -> TargetState {
        let object = object_of(policy, target);
        if target.is_kind(GROUP, "GatewayClass") {
            self.state_of_class(cx, policy, target)
        } else if target.is_kind(GROUP, "Gateway") {
            match cx.get(&self.waypoints, &object) {
                Some(_) => TargetState::bound(&shown(&object)),
                None => TargetState::unbound("TargetNotFound", "not bound"),
            }
        } else if target.is_kind("", "Service") {
            let exists = cx.get(&self.services, &object).is_some();
            self.state_of_service(cx, ServiceSource::Kubernetes, "Service", &object, exists)
        } else if target.is_kind(NETWORKING_GROUP, "ServiceEntry") {
            let exists = cx.get(&self.entries, &object).is_some();
            self.state_of_service(cx, ServiceSource::ServiceEntry, "ServiceEntry", &object, exists)
        } else {
            TargetState::unbound("unknown", "not bound")
        }
    }

    fn state_of_class(&self, cx: &Context, policy: &ObjectKey, target: &TargetRef) -> TargetState {
        let root = cx.get(&self.root, &()).map(|root| (*root).clone()).unwrap_or_default();
        if object_of(policy, target).namespace != root {
            let message =
                format!("AuthorizationPolicy must be in the root namespace `{root}` when referencing a GatewayClass");
            return TargetState::unbound("Invalid", message);
        }
        match cx.get(&self.classes, &ObjectKey::new(policy.cluster.clone(), "", target.name.clone())) {
            None => TargetState::unbound("TargetNotFound", "not bound"),
            Some(class) if *class.controller != *MESH_CONTROLLER => {
                let message = format!("GatewayClass must use controller name `{MESH_CONTROLLER}` for waypoints");
                TargetState::unbound("Invalid", message)
            }
            // As in Istio, policies apply to this class only. Istio writes that one of another class is accepted.
            Some(_) if *target.name != *WAYPOINT_CLASS => {
                let message = format!(
                    "no waypoint enforces a policy for GatewayClass `{}`: only `{WAYPOINT_CLASS}` is supported",
                    target.name
                );
                TargetState::unbound("Invalid", message)
            }
            Some(_) => TargetState::bound(&target.name),
        }
    }

    fn state_of_service(
        &self,
        cx: &Context,
        source: ServiceSource,
        kind: &str,
        object: &ObjectKey,
        exists: bool,
    ) -> TargetState {
        let shown_object = shown(object);
        if !exists {
            return TargetState::unbound("TargetNotFound", format!("{kind} {shown_object} was not found"));
        }
        let found = cx.by(&self.served, &(source, object.namespace.clone(), object.name.clone()));
        match found.iter().find_map(|(_, waypoint)| waypoint.as_ref().as_ref()) {
            Some(waypoint) => TargetState::bound(&shown(waypoint)),
            None => {
                let message = format!("{kind} {shown_object} is not bound to a waypoint");
                TargetState::unbound("AncestorNotBound", message)
            }
        }
    }
}

/// The object that a target of a policy names.
fn object_of(policy: &ObjectKey, target: &TargetRef) -> ObjectKey {
    let namespace = if target.namespace.is_empty() { policy.namespace.clone() } else { target.namespace.clone() };
    ObjectKey::new(policy.cluster.clone(), namespace, target.name.clone())
}

fn shown(object: &ObjectKey) -> String {
    format!("{}/{}", object.namespace, object.name)
}

/// The condition of a policy: that of its only target, or one for all.
fn flattened(policy: &ObjectKey, states: &[(&TargetRef, TargetState)]) -> StatusCondition {
    let condition = |is_met: bool, reason: &'static str, message: &str| StatusCondition {
        is_met,
        ..StatusCondition::met(WAYPOINT_ACCEPTED, reason, message)
    };
    if let [(_, only)] = states {
        return condition(only.is_bound, only.reason, &only.message);
    }
    let is_bound = states.iter().any(|(_, state)| state.is_bound);
    let unbound = states.iter().filter(|(_, state)| !state.is_bound).map(|(target, _)| {
        let group = if target.group.is_empty() { "core" } else { &target.group };
        format!("{}.{group}:{}", target.kind, shown(&object_of(policy, target)))
    });
    let unbound: Vec<String> = unbound.collect();
    let message =
        if unbound.is_empty() { String::new() } else { format!("Invalid targetRefs: {}", unbound.join(", ")) };
    let reason = match (is_bound, unbound.is_empty()) {
        (true, true) => "Accepted",
        (true, false) => "PartiallyInvalid",
        (false, _) => "Invalid",
    };
    condition(is_bound, reason, &message)
}
