//! The route tables that are written together: all, or those of one egress listener of a Sidecar.

use std::sync::Arc;

use sluice_envoy::name::HTTP_PROXY_ROUTES;
use sluice_model::{Host, Protocol, Service, ServicePort, Text, VirtualService};

use super::RouteScope;
use crate::registry::services::HostServices;
use crate::traffic::sidecars::{EgressListener, EgressScope};
use crate::traffic::virtual_services::is_visible;

/// Which tables are written, and which hosts are in them.
#[derive(Clone, Copy)]
pub(super) enum TableScope<'a> {
    /// All tables of a client without a Sidecar.
    Everywhere,
    /// The tables of one listener.
    Listener { scope: &'a EgressScope, listener: &'a EgressListener, at: usize },
}

impl<'a> TableScope<'a> {
    /// All scopes of a client.
    pub(super) fn all(client: &'a RouteScope) -> Vec<Self> {
        let Some(scope) = client.scope.as_deref() else { return vec![Self::Everywhere] };
        let listeners = scope.listeners.iter().enumerate();
        listeners.map(|(at, listener)| Self::Listener { scope, listener, at }).collect()
    }

    /// The service that a client reaches at the host of these services.
    pub(super) fn service(self, services: &HostServices, namespace: &str) -> Option<Arc<Service>> {
        match self {
            Self::Everywhere => services.visible_to(namespace).cloned(),
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

    /// Whether an alias of the service may be used.
    pub(super) fn has_alias(self, service: &Service, alias: &Host) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Listener { listener, .. } => listener.imports_alias(service, alias),
        }
    }

    /// Whether the table of a port is among these.
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
        let of_proxy = || http_proxy.then(|| HTTP_PROXY_ROUTES.into());
        match self {
            Self::Everywhere => of_proxy(),
            Self::Listener { listener, .. } if listener.port.is_none() => of_proxy(),
            Self::Listener { listener, .. } => listener.shared_table(),
        }
    }

    /// Whether the port of a service has a table of its own, because its protocol is detected.
    pub(super) fn is_sniffed(self, port: &ServicePort) -> bool {
        let declared = match self {
            Self::Everywhere => None,
            Self::Listener { listener, .. } => listener.port.as_ref().map(|port| port.protocol),
        };
        declared.unwrap_or(port.protocol) == Protocol::Unsupported
    }
}
