//! The statuses of InferencePools (G09).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_model::gateway_api::{Gateway, GatewayClass, InferencePool};
use sluice_model::{Kind, KubernetesService, NETWORKING_GROUP, ObjectKey, Text};

use super::super::classes::find_controller;
use super::super::inference_pools::{PoolRouteDenial, PoolRouteKey};
use super::super::revisions::RevisionLookup;
use super::StatusInputs;
use crate::options::GraphOptions;
use crate::statuses::{StatusCondition, StatusDraft, StatusKey, StatusUpdate, merge};

/// Statuses of InferencePools that have to be written. Their parents are the Gateways that a route to the pool refers to.
/// Key: `StatusKey`. From: `inference_pools`, `gateway_api/pool_routes`, `kubernetes_services` (that of the picker),
/// `kubernetes_gateways` and `gateway_classes` (of the parents in the status), `namespaces`, `own_revision`. Changes when: the pool,
/// its status or one of these does. Size: pools that are not written yet. Rejects: none.
pub(super) fn derive_pool_statuses<'s>(inputs: &StatusInputs<'_, 's>) -> Collection<'s, StatusKey, StatusUpdate> {
    let (objects, options) = (inputs.objects, inputs.options.clone());
    let updates = objects.inference_pools.derive("gateway_api/inference_pool_statuses", |deps| {
        let lookups = PoolLookups {
            routes: deps.by(inputs.pool_routes),
            services: deps.on(&objects.kubernetes_services),
            gateways: deps.on(&objects.kubernetes_gateways),
            classes: deps.on(&objects.gateway_classes),
            revisions: inputs.revisions.on(deps),
        };
        move |cx, key, pool| {
            let is_ours = options.gateway_api.writes_statuses && lookups.revisions.owns(cx, key, &pool.meta.labels);
            is_ours.then(|| lookups.update(cx, key, pool, &options)).flatten()
        }
    });
    updates.flat_map("gateway_api/inference_pool_status_updates", |key, update| {
        [(StatusKey { kind: Kind::InferencePool, object: key.clone() }, update.clone())]
    })
}

struct PoolLookups {
    routes: IndexDep<ObjectKey, PoolRouteKey, PoolRouteDenial>,
    services: Dep<ObjectKey, KubernetesService>,
    gateways: Dep<ObjectKey, Gateway>,
    classes: Dep<ObjectKey, GatewayClass>,
    revisions: RevisionLookup,
}

impl PoolLookups {
    fn update(
        &self,
        cx: &Context,
        key: &ObjectKey,
        pool: &InferencePool,
        options: &GraphOptions,
    ) -> Option<StatusUpdate> {
        let mut draft = StatusDraft::new(&pool.status);
        let present: Vec<Value> = draft.get("parents").and_then(Value::as_array).cloned().unwrap_or_default();
        let picker = self.picker_condition(cx, key, pool);
        let mut wanted: BTreeMap<ObjectKey, Value> = BTreeMap::new();
        for (gateway, accepted) in self.accepted(cx, key) {
            let old = present.iter().find(|old| parent_of(old, key) == gateway);
            let conditions = [accepted, picker.clone()];
            let conditions = merge(old.and_then(|old| old.get("conditions")), draft.generation(), &conditions);
            // The reference also writes Istio's group here.
            let reference = json!({
                "group": NETWORKING_GROUP, "kind": "Gateway", "namespace": gateway.namespace.as_str(),
                "name": gateway.name.as_str(),
            });
            wanted.insert(gateway, json!({"parentRef": reference, "conditions": conditions}));
        }
        let mut parents = Vec::new();
        for old in present {
            let gateway = parent_of(&old, key);
            if let Some(entry) = wanted.remove(&gateway) {
                parents.push(entry);
            } else if !self.is_ours(cx, &gateway, options) && !is_placeholder(&old) {
                parents.push(old);
            }
        }
        parents.extend(wanted.into_values());
        if draft.get("parents").is_none() && parents.is_empty() {
            return None;
        }
        draft.set("parents", Some(Value::Array(parents)));
        draft.finish()
    }

    /// The Gateways of the pool: whether one of the routes to it is accepted by the Gateway.
    fn accepted(&self, cx: &Context, pool: &ObjectKey) -> BTreeMap<ObjectKey, StatusCondition> {
        let mut found: BTreeMap<ObjectKey, StatusCondition> = BTreeMap::new();
        for (PoolRouteKey { gateway, route, .. }, denial) in cx.by(&self.routes, pool) {
            let condition = match &*denial {
                None => {
                    let message = "Referenced by an HTTPRoute accepted by the parentRef Gateway";
                    StatusCondition::met("Accepted", "Accepted", message)
                }
                Some(reason) => {
                    let message = format!(
                        "Referenced HTTPRoute {}/{} not accepted by Gateway {}/{}: {reason}",
                        route.namespace, route.name, gateway.namespace, gateway.name
                    );
                    StatusCondition::not_met("Accepted", "HTTPRouteNotAccepted", message)
                }
            };
            if found.get(&gateway).is_none_or(|known| !known.is_met && condition.is_met) {
                found.insert(gateway, condition);
            }
        }
        found
    }

    fn picker_condition(&self, cx: &Context, key: &ObjectKey, pool: &InferencePool) -> StatusCondition {
        let (kind, name) = (&pool.picker.kind, &pool.picker.name);
        let invalid = |message: String| StatusCondition::not_met("ResolvedRefs", "InvalidExtensionRef", message);
        let service = ObjectKey { name: name.clone(), ..key.clone() };
        if *kind != *"Service" {
            invalid(format!("Unsupported ExtensionRef kind {kind}"))
        } else if cx.get(&self.services, &service).is_none() {
            invalid(format!("Referenced ExtensionRef not found {name}"))
        } else {
            StatusCondition::met("ResolvedRefs", "ResolvedRefs", "Referenced ExtensionRef resolved successfully")
        }
    }

    /// Whether a parent in the status is a Gateway of our controllers.
    fn is_ours(&self, cx: &Context, gateway: &ObjectKey, options: &GraphOptions) -> bool {
        cx.get(&self.gateways, gateway).is_some_and(|found| {
            find_controller(cx, &self.classes, &gateway.cluster, &found.class, &options.gateway_api).is_some()
        })
    }
}

/// The Gateway that an entry of the present status names.
fn parent_of(entry: &Value, pool: &ObjectKey) -> ObjectKey {
    let text = |field: &str| entry["parentRef"][field].as_str().filter(|text| !text.is_empty());
    let namespace = text("namespace").map_or_else(|| pool.namespace.clone(), Text::from);
    ObjectKey::new(pool.cluster.clone(), namespace, text("name").unwrap_or_default())
}

/// Whether an entry is the one with which the API server creates a status.
fn is_placeholder(entry: &Value) -> bool {
    entry["parentRef"]["kind"] == "Status" && entry["parentRef"]["name"] == "default"
}
