//! The filter that RBAC rules are built for, and how parts of rules are handled that it does not support.

use envoy_types::pb::envoy::config::rbac::v3::rbac::Action;
use sluice_model::ProxyType;

use super::Inexpressible;
use crate::listener_settings::ListenerSettings;

/// The filter that rules are built for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Purpose {
    /// Action of the filter.
    pub(super) action: Action,
    /// Whether it is a network filter.
    pub(super) tcp: bool,
    /// Whether a gRPC server without an Envoy has the filter.
    pub(super) grpc: bool,
    /// Whether the identity of the peer is in the filter state: mutual TLS is terminated in another listener.
    pub(super) peer_in_filter_state: bool,
}

impl Purpose {
    /// A filter with this action for the proxies of these settings.
    pub(super) fn of(settings: &ListenerSettings, action: Action, tcp: bool) -> Self {
        let peer_in_filter_state = settings.in_tunnel || settings.profile.proxy_type == ProxyType::Waypoint;
        Self { action, tcp, grpc: settings.profile.grpc, peer_in_filter_state }
    }

    /// An error for a network filter, which has no HTTP attributes.
    pub(super) fn needs_http(self) -> Result<(), Inexpressible> {
        if self.tcp { Err("the attribute is supported only for HTTP".into()) } else { Ok(()) }
    }

    /// An error for a header that gRPC libraries do not let rules match: they reject the whole listener (gRFC A41).
    pub(super) fn needs_header(self, name: &str) -> Result<(), Inexpressible> {
        let name = name.to_ascii_lowercase();
        let is_reserved = self.grpc && (name == ":scheme" || name.starts_with("grpc-"));
        if is_reserved { Err(format!("gRPC does not support the header `{name}`").into()) } else { Ok(()) }
    }

    /// Handles a part that cannot be expressed: an ALLOW rule with it matches nothing, and in a DENY rule any request may
    /// match it (`None`). Neither allows more requests than the policy.
    pub(super) fn tolerate<T>(self, result: Result<T, Inexpressible>) -> Result<Option<T>, Inexpressible> {
        match (result, self.action) {
            (Ok(fit), _) => Ok(Some(fit)),
            (Err(unfit), Action::Allow) => Err(unfit),
            (Err(_), _) => Ok(None),
        }
    }
}
