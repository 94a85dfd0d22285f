//! Service ports that contribute to an outbound listener.

use std::sync::Arc;

use sluice_model::{DestinationRule, Labels, Service, ServicePort, Text, VirtualService};

use super::tcp_filters::Destinations;

/// A service port that contributes to an outbound listener.
#[derive(Clone, Copy, Debug)]
pub struct OutboundPort<'a> {
    /// The service.
    pub service: &'a Service,
    /// The port of the listener: that of the service or one that a Sidecar declares.
    pub listen: &'a ServicePort,
    /// The DestinationRule of the service for this client.
    pub rule: Option<&'a Arc<DestinationRule>>,
    /// VirtualServices of gateway `mesh` with TCP or TLS routes for its host, in order of precedence.
    pub virtual_services: &'a [Arc<VirtualService>],
    /// Their destinations.
    pub destinations: &'a Destinations,
    /// Namespace and labels of the client.
    pub client: &'a ListenerClient,
}

/// Properties of the client that route matches depend on.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, serde::Serialize)]
pub struct ListenerClient {
    /// Its namespace.
    pub namespace: Text,
    /// Its labels.
    pub labels: Labels,
}
