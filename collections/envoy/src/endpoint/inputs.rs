//! Inputs of an assignment.

use sluice_model::{DestinationRule, Endpoint, NetworkGateway, Service, ServicePort};

use super::client::EndpointClient;
use crate::cluster::ClusterSettings;

/// An endpoint with its mutual TLS setting.
#[derive(Clone, Copy, Debug)]
pub struct Backend<'a> {
    /// The endpoint.
    pub endpoint: &'a Endpoint,
    /// Whether PeerAuthentication disables mutual TLS for its port.
    pub refuses_mtls: bool,
}

/// Inputs of an assignment.
#[derive(Clone, Copy)]
pub struct AssignmentInputs<'a> {
    /// Settings of the mesh.
    pub settings: &'a ClusterSettings,
    /// The client.
    pub client: &'a EndpointClient,
    /// The service.
    pub service: &'a Service,
    /// One of its ports.
    pub port: &'a ServicePort,
    /// Subset of the rule; empty for all endpoints.
    pub subset: &'a str,
    /// The DestinationRule for the client.
    pub rule: Option<&'a DestinationRule>,
    /// Endpoints of the service, of all ports.
    pub backends: &'a [Backend<'a>],
    /// Network gateways, in order.
    pub gateways: &'a [NetworkGateway],
    /// Whether addresses may be host names, which the proxy resolves.
    pub by_name: bool,
}
