//! The statuses of security policies: whether a waypoint or ztunnel enforces them (G07, A07).

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Index, IndexDep};
use sluice_envoy::ztunnel::{PolicyAcceptance, policy_acceptance};
use sluice_model::gateway_api::{GROUP, GatewayClass, WAYPOINT_CLASS};
use sluice_model::{
    AuthorizationPolicy, Kind, KubernetesService, NETWORKING_GROUP, ObjectKey, RequestAuthentication, ServiceEntry,
    ServiceKey, ServiceSource, StoredStatus, TargetRef, Text, Waypoint,
};

use super::ambient::Ambient;
use super::gateway_api::classes::MESH_CONTROLLER;
use crate::inputs::discovery::{Discovery, discovered};
use crate::inputs::{ObjectCollections, RawInputs};
use crate::options::GraphOptions;
use crate::statuses::{ConditionUpdate, StatusCondition, StatusDraft, StatusKey};

/// The condition of a policy that waypoints enforce.
const WAYPOINT_ACCEPTED: &str = "WaypointAccepted";

/// The condition of a policy that ztunnel enforces.
const ZTUNNEL_ACCEPTED: &str = "ZtunnelAccepted";

/// The targets of a policy, what ztunnel enforces of it, and its status. Without ambient mode, only the targets that
/// waypoints serve.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PolicyWithStatus {
    targets: Vec<TargetRef>,
    ztunnel: Option<PolicyAcceptance>,
    status: StoredStatus,
}

impl PolicyWithStatus {
    /// The AuthorizationPolicy, if its conditions are written or may have to be removed.
    fn of_authorization(policy: &AuthorizationPolicy, options: &GraphOptions) -> Option<Self> {
        let Some(ambient) = options.ambient else {
            return Self::with_targets(&policy.attachment.targets, &policy.status, options);
        };
        options.writes_conditions.then(|| Self {
            targets: policy.attachment.targets.clone(),
            ztunnel: policy_acceptance(policy, ambient.dry_run_policies),
            status: policy.status.clone(),
        })
    }

    /// As [`Self::of_authorization`], for a RequestAuthentication. ztunnel knows none.
    fn of_requests(policy: &RequestAuthentication, options: &GraphOptions) -> Option<Self> {
        Self::with_targets(&policy.attachment.targets, &policy.status, options)
    }

    fn with_targets(targets: &[TargetRef], status: &StoredStatus, options: &GraphOptions) -> Option<Self> {
        // Objects of files and of other sources of configuration have no generation, and no status that can be written.
        let is_written = options.writes_conditions && (options.ambient.is_some() || status.generation > 0);
        if !is_written {
            return None;
        }
        let is_read = |target: &&TargetRef| options.ambient.is_some() || is_served_by_waypoints(target);
        let targets: Vec<TargetRef> = targets.iter().filter(is_read).cloned().collect();
        let is_needed = !targets.is_empty() || status.json.contains(WAYPOINT_ACCEPTED);
        is_needed.then(|| Self { targets, ztunnel: None, status: status.clone() })
    }

    /// The update that sets these conditions, by type, and removes those that are `None`.
    fn update(
        &self,
        conditions: impl IntoIterator<Item = (&'static str, Option<StatusCondition>)>,
    ) -> Option<ConditionUpdate> {
        let mut draft = StatusDraft::new(&self.status);
        for (kind, condition) in conditions {
            match condition {
                Some(condition) => draft.set_istio_conditions(&[condition]),
                None => draft.remove_condition(kind),
            }
        }
        draft.finish_conditions()
    }

    /// The condition of a policy without ambient mode, if it has targets that only waypoints serve.
    fn unserved(&self, policy: &ObjectKey) -> Option<StatusCondition> {
        let shown_target = |target: &TargetRef| match target.is_kind(GROUP, "GatewayClass") {
            true => format!("{} {}", target.kind, target.name),
            false => format!("{} {}", target.kind, shown(&object_of(policy, target))),
        };
        let targets: Vec<String> = self.targets.iter().map(shown_target).collect();
        (!targets.is_empty()).then(|| {
            let message = format!(
                "no waypoint enforces the policy for {}: ambient mode is off (PILOT_ENABLE_AMBIENT)",
                targets.join(", ")
            );
            StatusCondition::not_met(WAYPOINT_ACCEPTED, "AncestorNotBound", message)
        })
    }
}

/// Whether only waypoints enforce a policy for the target.
fn is_served_by_waypoints(target: &TargetRef) -> bool {
    let kinds = [("", "Service"), (NETWORKING_GROUP, "ServiceEntry"), (GROUP, "GatewayClass")];
    kinds.iter().any(|(group, kind)| target.is_kind(group, kind))
}

/// Policies whose conditions are written or may have to be removed.
pub(crate) struct PoliciesWithStatus<'s> {
    authorization: Collection<'s, ObjectKey, PolicyWithStatus>,
    requests: Collection<'s, ObjectKey, PolicyWithStatus>,
}

impl<'s> PoliciesWithStatus<'s> {
    /// Takes the statuses from the raw policies: a status changes no derivation but its own.
    pub(crate) fn take(raw: &mut RawInputs<'s>, options: &GraphOptions) -> Self {
        let settings = options.clone();
        let authorization =
            raw.authorization_policies.filter_map("raw_policies_with_status/authorization", move |_, policy| {
                PolicyWithStatus::of_authorization(policy, &settings)
            });
        raw.authorization_policies = raw.authorization_policies.map("raw_authorization_policies/rules", |_, policy| {
            AuthorizationPolicy { status: StoredStatus::default(), ..policy.clone() }
        });
        let settings = options.clone();
        let requests = raw.request_authentications.filter_map("raw_policies_with_status/requests", move |_, policy| {
            PolicyWithStatus::of_requests(policy, &settings)
        });
        // Those that are read without a status are not copied.
        let unchanged = raw
            .request_authentications
            .filter("raw_request_authentications/without-status", |_, policy| policy.status == StoredStatus::default());
        let others = raw.request_authentications.filter_map("raw_request_authentications/with-status", |_, policy| {
            let has_status = policy.status != StoredStatus::default();
            has_status.then(|| RequestAuthentication { status: StoredStatus::default(), ..policy.clone() })
        });
        raw.request_authentications = unchanged.union_disjoint("raw_request_authentications/rules", &[others]);
        Self { authorization, requests }
    }

    /// Those in the namespaces that are read.
    pub(crate) fn discovered(&self, discovery: &Discovery<'s>) -> Self {
        Self {
            authorization: discovered("policies_with_status/authorization", &self.authorization, discovery),
            requests: discovered("policies_with_status/requests", &self.requests, discovery),
        }
    }

    fn by_kind(&self) -> [(Kind, &Collection<'s, ObjectKey, PolicyWithStatus>); 2] {
        [(Kind::AuthorizationPolicy, &self.authorization), (Kind::RequestAuthentication, &self.requests)]
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

/// Conditions of policies that have to be written or removed.
/// Key: `StatusKey`. From: `authorization_policies`, `request_authentications`; in ambient mode also `waypoints`,
/// `ambient_services`, `kubernetes_services` and `service_entries` (the targets), `gateway_classes`, `root_namespace`.
/// Changes when: targets or status of the policy do, or, in ambient mode, a target begins or stops to use a waypoint.
/// Size: policies that are not written yet. Rejects: none.
pub(crate) fn derive_policy_statuses<'s>(
    policies: &PoliciesWithStatus<'s>,
    objects: &ObjectCollections<'s>,
    root_namespace: &Collection<'s, (), Text>,
    ambient: Option<&Ambient<'s>>,
    options: &GraphOptions,
) -> Collection<'s, StatusKey, ConditionUpdate> {
    let [authorization, requests] = match ambient {
        Some(ambient) => derive_ambient_statuses(policies, objects, root_namespace, ambient, options),
        None => derive_unserved_statuses(policies, options),
    };
    authorization.union_disjoint("policy_condition_updates", &[requests])
}

/// The conditions without ambient mode, which no other object decides.
fn derive_unserved_statuses<'s>(
    policies: &PoliciesWithStatus<'s>,
    options: &GraphOptions,
) -> [Collection<'s, StatusKey, ConditionUpdate>; 2] {
    policies.by_kind().map(|(kind, policies)| {
        let cluster = options.cluster.clone();
        policies.flat_map(&format!("policy_statuses/{kind}"), move |key, policy| {
            let is_own = key.cluster == cluster;
            let update = is_own.then(|| policy.update([(WAYPOINT_ACCEPTED, policy.unserved(key))])).flatten();
            update.map(|update| (StatusKey { kind, object: key.clone() }, update))
        })
    })
}

fn derive_ambient_statuses<'s>(
    policies: &PoliciesWithStatus<'s>,
    objects: &ObjectCollections<'s>,
    root_namespace: &Collection<'s, (), Text>,
    ambient: &Ambient<'s>,
    options: &GraphOptions,
) -> [Collection<'s, StatusKey, ConditionUpdate>; 2] {
    let served: Index<'s, Declaration, ServiceKey, Option<ObjectKey>> =
        ambient.services.index("policy_statuses/services", |_, service| {
            let object = &service.object;
            let waypoint = service.waypoints.waypoint.clone();
            [((service.source, object.namespace.clone(), object.name.clone()), waypoint)]
        });
    policies.by_kind().map(|(kind, policies)| {
        let cluster = options.cluster.clone();
        policies.derive_many(&format!("policy_statuses/{kind}"), |deps| {
            let lookups = TargetLookups {
                kind,
                root: deps.on(root_namespace),
                waypoints: deps.on(&ambient.waypoints),
                classes: deps.on(&objects.gateway_classes),
                services: deps.on(&objects.kubernetes_services),
                entries: deps.on(&objects.service_entries),
                served: deps.by(&served),
            };
            move |cx, key: &ObjectKey, policy: &PolicyWithStatus| {
                if key.cluster != cluster {
                    return Vec::new();
                }
                let states = policy.targets.iter();
                let states = states.filter_map(|target| Some((target, lookups.state(cx, key, target)?)));
                let states: Vec<_> = states.collect();
                let of_waypoint = (!states.is_empty()).then(|| flattened(key, &states));
                let of_ztunnel = policy.ztunnel.as_ref().map(|acceptance| StatusCondition {
                    is_met: acceptance.is_accepted,
                    ..StatusCondition::met(ZTUNNEL_ACCEPTED, acceptance.reason, acceptance.message.as_str())
                });
                let update = policy.update([(WAYPOINT_ACCEPTED, of_waypoint), (ZTUNNEL_ACCEPTED, of_ztunnel)]);
                update.map(|update| (StatusKey { kind, object: key.clone() }, update)).into_iter().collect()
            }
        })
    })
}

struct TargetLookups {
    /// Kind of the policies.
    kind: Kind,
    root: Dep<(), Text>,
    waypoints: Dep<ObjectKey, Waypoint>,
    classes: Dep<ObjectKey, GatewayClass>,
    services: Dep<ObjectKey, KubernetesService>,
    entries: Dep<ObjectKey, ServiceEntry>,
    served: IndexDep<Declaration, ServiceKey, Option<ObjectKey>>,
}

impl TargetLookups {
    /// The state of a target; `None` if the condition does not tell it.
    fn state(&self, cx: &Context, policy: &ObjectKey, target: &TargetRef) -> Option<TargetState> {
        let object = object_of(policy, target);
        Some(if target.is_kind(GROUP, "GatewayClass") {
            self.state_of_class(cx, policy, target)
        } else if target.is_kind(GROUP, "Gateway") {
            match cx.get(&self.waypoints, &object) {
                Some(_) => TargetState::bound(&shown(&object)),
                // As in Istio, which writes no condition of a RequestAuthentication. Gateways that are no waypoints
                // enforce both kinds.
                None if self.kind == Kind::AuthorizationPolicy => TargetState::unbound("TargetNotFound", "not bound"),
                None => return None,
            }
        } else if target.is_kind("", "Service") {
            let exists = cx.get(&self.services, &object).is_some();
            self.state_of_service(cx, ServiceSource::Kubernetes, "Service", &object, exists)
        } else if target.is_kind(NETWORKING_GROUP, "ServiceEntry") {
            let exists = cx.get(&self.entries, &object).is_some();
            self.state_of_service(cx, ServiceSource::ServiceEntry, "ServiceEntry", &object, exists)
        } else {
            TargetState::unbound("unknown", "not bound")
        })
    }

    fn state_of_class(&self, cx: &Context, policy: &ObjectKey, target: &TargetRef) -> TargetState {
        let root = cx.get(&self.root, &()).map(|root| (*root).clone()).unwrap_or_default();
        if object_of(policy, target).namespace != root {
            let message =
                format!("{} must be in the root namespace `{root}` when referencing a GatewayClass", self.kind);
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
