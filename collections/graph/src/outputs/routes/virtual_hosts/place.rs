//! The route tables that are written at once: all, or those of one egress listener of a Sidecar.

use std::sync::Arc;

use sluice_model::{Host, Protocol, Service, ServicePort, Text, VirtualService};

use super::{Client, HTTP_PROXY_TABLE, visible_service};
use crate::traffic::sidecars::{EgressListener, EgressScope};
use crate::traffic::virtual_services::is_visible;

/// Which tables, and what is found in them.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// All tables of a client without a Sidecar.
    Everywhere,
    /// Those of one listener.
    Listener { scope: &'a EgressScope, listener: &'a EgressListener, at: usize },
}

impl<'a> Place<'a> {
    /// All of a client's.
    pub(super) fn all(client: &'a Client) -> Vec<Self> {
        let Some(scope) = client.scope.as_deref() else { return vec![Self::Everywhere] };
        let listeners = scope.listeners.iter().enumerate();
        listeners.map(|(at, listener)| Self::Listener { scope, listener, at }).collect()
    }

    /// The service a client means by the host of these services.
    pub(super) fn service(self, services: &[Arc<Service>], namespace: &str) -> Option<Arc<Service>> {
        match self {
            Self::Everywhere => visible_service(services, namespace),
            Self::Listener { listener, .. } => listener.service(services, namespace),
        }
    }

    /// Whether a VirtualService applies.
    pub(super) fn follows(self, virtual_service: &VirtualService, namespace: &str) -> bool {
        match self {
            Self::Everywhere => is_visible(virtual_service, namespace),
            Self::Listener { listener, .. } => listener.imports_route(virtual_service, namespace),
        }
    }

    /// Whether a name that stands for the service may be used.
    pub(super) fn has_alias(self, service: &Service, alias: &Host) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Listener { listener, .. } => listener.imports_alias(service, alias),
        }
    }

    /// Whether the table of a port is one of these.
    pub(super) fn has_table(self, port: u16) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Listener { scope, listener, at } => {
                scope.listener_for(port) == Some(at) && listener.shared_table().is_none()
            }
        }
    }

    /// The table that has the hosts of all ports, if there is one.
    pub(super) fn common_table(self, http_proxy: bool) -> Option<Text> {
        let of_proxy = || http_proxy.then(|| HTTP_PROXY_TABLE.into());
        match self {
            Self::Everywhere => of_proxy(),
            Self::Listener { listener, .. } if listener.port.is_none() => of_proxy(),
            Self::Listener { listener, .. } => listener.shared_table(),
        }
    }

    /// Whether requests to a port of a service have a table of their own, as what is sniffed has.
    pub(super) fn is_sniffed(self, port: &ServicePort) -> bool {
        let declared = match self {
            Self::Everywhere => None,
            Self::Listener { listener, .. } => listener.port.as_ref().map(|port| port.protocol),
        };
        declared.unwrap_or(port.protocol) == Protocol::Unsupported
    }
}
