//! Agentgateways (X31): proxies that serve Gateways of the classes `istio-agentgateway` and `istio-agentgateway-waypoint`. They read resources of their own instead of
//! Envoy's, with the same rules for attachment, references and statuses.
//!
//! - `listeners.rs`: the ports of Gateways, and their listeners.
//! - `routes.rs`: routes.
//! - `policies.rs`: TLS with backends, and the endpoint pickers of InferencePools.
//! - `waypoints.rs`: the waypoints of Services.
//! - `clients.rs`: connected agentgateways, and which resources each of them gets.

mod clients;
mod listeners;
mod policies;
mod routes;
mod waypoints;

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::agentgateway::AgentgatewayResource;
use sluice_model::gateway_api::{Gateway, GatewayClass};
use sluice_model::{
    Kind, Layer, ObjectKey, Proxy, ProxyKey, Reject, Resource, ResourceKey, ResourceType, RootCertificates, Scope,
    Text, View,
};

use super::attachment::RouteParents;
use super::backends::BackendIndex;
use super::classes::find_controller;
use super::grants::GrantIndex;
use super::listeners::{ListenerKey, ListenerRow, deployed_account, derive_agentgateway_listeners, is_managed};
use super::policies::{TargetObjects, TlsPolicyIndex};
use super::route_report::RouteReports;
use crate::inputs::{ObjectCollections, RejectKey};
use crate::options::GraphOptions;

/// What agentgateways are sent, and what is reported about it.
pub(crate) struct Agentgateway<'s> {
    /// Binds, listeners, routes and policies.
    pub(crate) resources: Collection<'s, ResourceKey, Resource>,
    /// The service account of the proxies of each Gateway.
    pub(crate) accounts: GatewayAccounts<'s>,
    /// The states of routes at the listeners of agentgateways.
    pub(super) reports: [RouteReports<'s>; 2],
    /// Findings in references, by object.
    pub(super) rejects: Vec<Collection<'s, RejectKey, Vec<Reject>>>,
}

/// The Gateways that agentgateways serve, with the service account of their proxies: empty if that is unknown, because the proxies
/// are deployed separately.
pub(crate) type GatewayAccounts<'s> = Collection<'s, ObjectKey, Text>;

/// What the resources are derived from.
pub(super) struct AgentgatewayInputs<'a, 's> {
    pub(super) objects: &'a ObjectCollections<'s>,
    pub(super) rows: &'a Collection<'s, ListenerKey, ListenerRow>,
    pub(super) parents: &'a RouteParents<'s>,
    pub(super) backends: &'a BackendIndex<'a, 's>,
    pub(super) bundles: &'a Collection<'s, ObjectKey, RootCertificates>,
    pub(super) targets: &'a TargetObjects<'s>,
    pub(super) tls_by_target: &'a TlsPolicyIndex<'s>,
    pub(super) grants: &'a GrantIndex<'s>,
    pub(super) options: &'a GraphOptions,
}

/// The object that a resource is derived from.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum ResourceOrigin {
    Bind { gateway: ObjectKey, port: u16 },
    Listener { listener: ListenerKey, with_key: bool },
    Route { kind: Kind, route: ObjectKey, number: usize },
    Policy { policy: ObjectKey, number: usize },
    Pool { pool: ObjectKey, number: usize },
}

/// A resource with its key.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Derived {
    key: ResourceKey,
    resource: Resource,
}

impl Derived {
    /// A resource for the proxies of a Gateway.
    fn new(gateway: &ObjectKey, with_keys: bool, made: AgentgatewayResource) -> Self {
        Self::in_layer(gateway_layer(gateway, with_keys), made)
    }

    /// A resource for all agentgateways.
    fn for_all(made: AgentgatewayResource) -> Self {
        Self::in_layer(Layer::default(), made)
    }

    fn in_layer(layer: Layer, made: AgentgatewayResource) -> Self {
        let key = ResourceKey { resource_type: ResourceType::Agentgateway, layer, name: made.name };
        Self { key, resource: Resource::Encoded(made.bytes) }
    }
}

/// The layer of the resources of a Gateway, or of those of them with private keys.
fn gateway_layer(gateway: &ObjectKey, with_keys: bool) -> Layer {
    let ObjectKey { cluster, namespace, name } = gateway;
    let profile = if with_keys { "keys".into() } else { Text::default() };
    Layer { view: View::Workload(format!("agentgateway:{cluster}/{namespace}/{name}").into()), profile }
}

/// Derives everything about Gateways of agentgateways.
pub(super) fn derive_agentgateway<'s>(inputs: &AgentgatewayInputs<'_, 's>) -> Agentgateway<'s> {
    let accounts = derive_accounts(inputs.objects, inputs.options);
    let bound = derive_agentgateway_listeners(inputs.rows);
    let waypoints = waypoints::derive_waypoints_of_services(inputs);
    let parents = inputs.parents.of_agentgateways(&bound, &waypoints);
    let binds = listeners::derive_binds(&bound);
    let (routes, reports, rejects) = routes::derive_routes(inputs, &parents);
    let mut others = vec![
        listeners::derive_listeners(&bound, &inputs.objects.secrets, inputs.bundles),
        policies::derive_backend_tls(inputs, &accounts),
        policies::derive_pool_policies(inputs),
    ];
    others.extend(routes);
    let all = binds.union("agentgateway/resources-by-origin", &others);
    let by_name = all.index("agentgateway/resources-by-name", |_, made| [(made.key.clone(), made.resource.clone())]);
    Agentgateway { resources: derive_resources(&by_name), accounts, reports, rejects }
}

/// The resources of agentgateways. Objects whose resources would have one name exclude each other: the first one counts.
/// Key: `ResourceKey`. From: `agentgateway/binds`, `agentgateway/listeners`, the routes and policies of agentgateways. Changes
/// when: one of these does. Size: listeners, rules of routes × listeners, policies × (1 + Gateways with a certificate). Rejects: none.
fn derive_resources<'s>(
    by_name: &sluice_engine::Index<'s, ResourceKey, ResourceOrigin, Resource>,
) -> Collection<'s, ResourceKey, Resource> {
    by_name.group("agentgateway/resources", |_, rows| rows.first().map(|(_, resource)| (*resource).clone()))
}

/// The Gateways that agentgateways serve.
/// Key: the Gateway. From: `kubernetes_gateways`, `gateway_classes`. Changes when: the class or the service account of the Gateway
/// does. Size: Gateways of agentgateways. Rejects: none.
fn derive_accounts<'s>(objects: &ObjectCollections<'s>, options: &GraphOptions) -> GatewayAccounts<'s> {
    let options = options.clone();
    objects.kubernetes_gateways.derive("agentgateway/accounts", |deps| {
        let classes = deps.on::<ObjectKey, GatewayClass>(&objects.gateway_classes);
        move |cx, key, gateway: &Gateway| {
            let controller = find_controller(cx, &classes, &key.cluster, &gateway.class, &options.gateway_api)?;
            controller.is_agentgateway().then(|| match is_managed(gateway, &options) {
                true => deployed_account(gateway, controller),
                false => Text::default(),
            })
        }
    })
}

impl<'s> Agentgateway<'s> {
    /// The scopes of connected agentgateways. `addresses` are the layers of addresses.
    pub(crate) fn derive_scopes(
        &self,
        proxies: &Collection<'s, ProxyKey, Proxy>,
        addresses: &[Layer],
        options: &GraphOptions,
    ) -> Collection<'s, ProxyKey, Scope> {
        clients::derive_scopes(proxies, &self.accounts, addresses, options)
    }
}
