//! Statuses of the objects of the Gateway API (G05).
//!
//! - `classes.rs`, `gateways.rs`, `listener_sets.rs`, `routes.rs`, `backend_tls_policies.rs`, `backend_traffic_policies.rs`,
//!   `backends.rs`, `inference_pools.rs`: one file for each kind.
//! - `instances.rs`: the Services that serve a Gateway, and their addresses.
//! - `listeners.rs`: listeners, in the statuses of Gateways and ListenerSets.
//! - `attached_routes.rs`: the number of routes of each listener.
//! - `ancestors.rs`: what a policy concerns.
//! - `validation.rs`: whether the certificate of a backend can be verified.

mod ancestors;
mod attached_routes;
mod backend_tls_policies;
mod backend_traffic_policies;
mod backends;
mod classes;
mod gateways;
mod inference_pools;
mod instances;
mod listener_sets;
mod listeners;
mod routes;
mod validation;

use sluice_engine::{Collection, Index};
use sluice_model::{Host, ObjectKey, Service, ServiceKey};

use super::agentgateway::Agentgateway;
use super::backend_gateways::GatewaysOfBackends;
use super::credentials::CredentialIndex;
use super::grants::GrantIndex;
use super::inference_pools::PoolRoutes;
use super::listener_report::ListenerReport;
use super::listeners::{ListenerKey, ListenerRow, ParentKey};
use super::parameters::ParameterIndex;
use super::policies::{TargetObjects, TlsPolicyIndex};
use super::revisions::Revisions;
use super::route_report::RouteReports;
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::endpoints::ServiceEndpoints;
use crate::statuses::{StatusKey, StatusUpdate};
use instances::InstancePorts;

/// What statuses are derived from.
pub(super) struct StatusInputs<'a, 's> {
    /// The objects.
    pub(super) objects: &'a ObjectCollections<'s>,
    /// All listeners.
    pub(super) rows: &'a Collection<'s, ListenerKey, ListenerRow>,
    /// The states of routes.
    pub(super) routes: [&'a RouteReports<'s>; 2],
    /// What is known about Gateways of agentgateways.
    pub(super) agentgateway: Option<&'a Agentgateway<'s>>,
    /// The Gateways of the routes that refer to each backend.
    pub(super) gateways_of_backends: &'a GatewaysOfBackends<'s>,
    /// Services.
    pub(super) services: &'a Collection<'s, ServiceKey, Service>,
    /// Services by host.
    pub(super) by_host: &'a Index<'s, Host, ServiceKey, ()>,
    /// Their endpoints.
    pub(super) endpoints: &'a ServiceEndpoints<'s>,
    /// ReferenceGrants.
    pub(super) grants: &'a GrantIndex<'s>,
    /// Certificates.
    pub(super) credentials: &'a CredentialIndex<'s>,
    /// ConfigMaps with parameters of Gateways.
    pub(super) parameters: &'a ParameterIndex<'s>,
    /// Objects that can be targets of policies.
    pub(super) targets: &'a TargetObjects<'s>,
    /// BackendTLSPolicies by target.
    pub(super) tls_by_target: &'a TlsPolicyIndex<'s>,
    /// The routes to each InferencePool.
    pub(super) pool_routes: &'a PoolRoutes<'s>,
    /// The revision of this control plane, and its tags.
    pub(super) revisions: &'a Revisions<'s>,
    /// Settings.
    pub(super) options: &'a GraphOptions,
}

/// The collections that statuses of Gateways and ListenerSets look up.
struct Reports<'s> {
    by_gateway: Index<'s, ObjectKey, ListenerKey, ListenerReport>,
    by_parent: Index<'s, ParentKey, ListenerKey, ListenerReport>,
    attached_routes: Collection<'s, ListenerKey, u32>,
    instance_ports: InstancePorts<'s>,
}

/// Statuses that differ from what they should be.
pub(super) fn derive_status_updates<'s>(inputs: &StatusInputs<'_, 's>) -> Collection<'s, StatusKey, StatusUpdate> {
    let reports = Reports {
        by_gateway: inputs
            .rows
            .index("gateway_api/listener_reports", |_, row| [(row.gateway.clone(), row.report.clone())]),
        by_parent: inputs
            .rows
            .index("gateway_api/reports-by-parent", |key, row| [(key.parent.clone(), row.report.clone())]),
        attached_routes: attached_routes::count_attached_routes(
            inputs.routes.into_iter().chain(inputs.agentgateway.iter().flat_map(|of| &of.reports)),
        ),
        instance_ports: instances::derive_instance_ports(inputs.endpoints),
    };
    let mut updates = routes::derive_route_statuses(inputs);
    updates.push(gateways::derive_gateway_statuses(inputs, &reports));
    updates.push(listener_sets::derive_listener_set_statuses(inputs, &reports));
    let gateways = inputs.gateways_of_backends;
    updates.push(backend_tls_policies::derive_policy_statuses(inputs, gateways));
    updates.push(backend_traffic_policies::derive_policy_statuses(inputs));
    updates.push(backends::derive_backend_statuses(inputs, gateways));
    updates.push(inference_pools::derive_pool_statuses(inputs));
    classes::derive_class_statuses(inputs).union("status_updates", &updates)
}
