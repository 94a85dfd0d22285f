//! Which address a listener binds to, and whether it may.

use serde::Serialize;
use sluice_model::{Protocol, Text};

use super::settings::Settings;

/// Where a listener listens.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Bind {
    /// Addresses, the primary first; empty is not decided.
    pub addresses: Vec<Text>,
    /// A real socket, not one traffic is redirected to.
    pub to_port: bool,
}

impl Bind {
    /// The primary address, empty if not decided.
    #[must_use]
    pub fn primary(&self) -> &str {
        self.addresses.first().map_or("", Text::as_str)
    }

    pub(crate) fn extra(&self) -> &[Text] {
        self.addresses.get(1..).unwrap_or(&[])
    }
}

/// Whether a listener may use the port: it is not one of the proxy's own, and not privileged where that is forbidden.
///
/// `bind` is the address asked for, empty if not decided; own ports matter only where a wildcard address is meant.
#[must_use]
pub fn can_bind(settings: &Settings, to_port: bool, bind: &str, port: u32, protocol: Protocol, outbound: bool) -> bool {
    if to_port && (1..1024).contains(&port) && settings.facts.unprivileged {
        return false;
    }
    let wildcard = super::wildcards(settings.facts.families);
    let takes_wildcard =
        if bind.is_empty() { protocol.is_http() } else { wildcard.first().is_some_and(|address| *address == *bind) };
    if !takes_wildcard {
        return true;
    }
    let own = settings.facts.reserved_ports.iter().any(|reserved| u32::from(*reserved) == port);
    let redirected = [settings.mesh.proxy_listen_port, settings.mesh.proxy_inbound_listen_port];
    let taken = outbound && redirected.iter().any(|redirected| u32::from(*redirected) == port);
    !own && !taken
}
