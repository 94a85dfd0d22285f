//! Bind addresses of listeners.

use serde::Serialize;
use sluice_model::{Protocol, Text};

use crate::listener_settings::ListenerSettings;

/// Bind addresses of a listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct BindAddress {
    /// Addresses, the primary first; empty for the default.
    pub addresses: Vec<Text>,
    /// Whether the listener binds to a socket. Otherwise, it gets redirected traffic.
    pub to_port: bool,
}

impl BindAddress {
    /// The primary address; empty for the default.
    #[must_use]
    pub fn primary(&self) -> &str {
        self.addresses.first().map_or("", Text::as_str)
    }

    pub(crate) fn extra(&self) -> &[Text] {
        self.addresses.get(1..).unwrap_or(&[])
    }
}

/// Whether a listener may use the port: it is not used by the proxy itself, and not privileged for an unprivileged proxy.
///
/// `bind` is the declared address, empty for the default. The proxy's own ports conflict only with wildcard addresses.
#[must_use]
pub fn can_bind(
    settings: &ListenerSettings,
    to_port: bool,
    bind: &str,
    port: u32,
    protocol: Protocol,
    outbound: bool,
) -> bool {
    if to_port && (1..1024).contains(&port) && settings.profile.unprivileged {
        return false;
    }
    let wildcard = super::wildcards(settings.profile.families);
    let takes_wildcard =
        if bind.is_empty() { protocol.is_http() } else { wildcard.first().is_some_and(|address| *address == *bind) };
    if !takes_wildcard {
        return true;
    }
    let own = settings.profile.reserved_ports.iter().any(|reserved| u32::from(*reserved) == port);
    let redirected = [settings.mesh.proxy_listen_port, settings.mesh.proxy_inbound_listen_port];
    let taken = outbound && redirected.iter().any(|redirected| u32::from(*redirected) == port);
    !own && !taken
}
