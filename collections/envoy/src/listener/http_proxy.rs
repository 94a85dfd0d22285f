//! The HTTP proxy listener (N05).

use envoy_types::pb::envoy::config::listener::v3::Listener;

use super::address::localhosts;
use super::bind::BindAddress;
use super::outbound::{ListenerKey, proxy_listener};
use crate::listener_settings::ListenerSettings;

/// The HTTP proxy listener on the loopback address; `None` if neither the mesh nor the proxy configures one.
#[must_use]
pub fn build_http_proxy(settings: &ListenerSettings) -> Option<Listener> {
    let port = match settings.profile.http_proxy_port {
        0 => settings.mesh.proxy_http_port,
        own => own,
    };
    if port == 0 {
        return None;
    }
    let bind = BindAddress { addresses: localhosts(settings.profile.families), to_port: true };
    Some(proxy_listener(settings, &ListenerKey { bind, port }))
}
