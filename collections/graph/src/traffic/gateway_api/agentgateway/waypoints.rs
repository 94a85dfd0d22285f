//! The waypoints of Services, which serve the routes of these.

use sluice_engine::Collection;
use sluice_model::ObjectKey;

use super::AgentgatewayInputs;
use crate::traffic::ambient::waypoints::named_waypoints;

/// The waypoints that each Service names: the first one, and the one that gets a share of its traffic. They need not be ready, so that
/// a waypoint has its routes when its first connection arrives.
/// Key: the Service. From: `kubernetes_services`, `namespaces`, `kubernetes_gateways`. Changes when: the labels of the Service or its
/// namespace that concern waypoints do; a Gateway that it names is created or deleted. Size: Services with a waypoint. Rejects: none.
pub(super) fn derive_waypoints_of_services<'s>(
    inputs: &AgentgatewayInputs<'_, 's>,
) -> Collection<'s, ObjectKey, Vec<ObjectKey>> {
    let objects = inputs.objects;
    let gateways = objects.kubernetes_gateways.map("agentgateway/gateway_names", |_, _| ());
    let namespaces = objects
        .namespaces
        .map("agentgateway/namespace_marks", |_, namespace| (namespace.labels.clone(), namespace.annotations.clone()));
    let services = objects.kubernetes_services.map("agentgateway/service_marks", |_, service| {
        (service.meta.labels.clone(), service.meta.annotations.clone())
    });
    services.derive("agentgateway/waypoints_of_services", |deps| {
        let (namespaces, gateways) = (deps.on(&namespaces), deps.on(&gateways));
        move |cx, key, own| {
            let namespace = ObjectKey::new(key.cluster.clone(), "", key.namespace.clone());
            let of_namespace = cx.get(&namespaces, &namespace);
            let mut named = named_waypoints(key, own, of_namespace.as_deref());
            let first = named.first()?;
            // Without its first waypoint, a Service has none.
            cx.get(&gateways, first)?;
            named.retain(|waypoint| cx.get(&gateways, waypoint).is_some());
            Some(named)
        }
    })
}
