//! Matches of patches on listeners, filter chains and network filters.

use prost_reflect::DynamicMessage;
use sluice_model::{
    ApplyTo, EnvoyPatch, FilterChainMatch, FilterMatch, ListenerMatch, ObjectMatch, VIRTUAL_INBOUND, VIRTUAL_OUTBOUND,
};

use crate::dynamic;

/// Listeners whose filter chains match the ports, instead of the listener.
const VIRTUAL_LISTENERS: [&str; 2] = [VIRTUAL_INBOUND, VIRTUAL_OUTBOUND];

/// Name and port of a listener, which patches match.
#[derive(Clone, Debug)]
pub(crate) struct ListenerAddress {
    name: String,
    port: Option<u32>,
}

impl ListenerAddress {
    pub(crate) fn of(listener: &DynamicMessage) -> Self {
        let address = dynamic::message(listener, "address");
        let socket = address.and_then(|address| dynamic::message(address, "socket_address"));
        Self {
            name: dynamic::text(listener, "name").to_owned(),
            port: socket.map(|socket| dynamic::number(socket, "port_value")),
        }
    }

    fn is_virtual(&self) -> bool {
        VIRTUAL_LISTENERS.contains(&self.name.as_str())
    }

    /// Whether a patch matches the listener.
    pub(crate) fn matches(&self, patch: &EnvoyPatch) -> bool {
        let Some(ListenerMatch { port, name, .. }) = listener_match(patch) else { return true };
        if !name.is_empty() && *name.as_str() != *self.name {
            return false;
        }
        // The port is matched against the filter chains.
        if patch.apply_to != ApplyTo::Listener && self.is_virtual() {
            return true;
        }
        *port == 0 || self.port == Some(*port)
    }

    /// Whether a patch matches the listener and this filter chain.
    pub(crate) fn chain_matches(&self, chain: &DynamicMessage, patch: &EnvoyPatch) -> bool {
        if !self.matches(patch) {
            return false;
        }
        let Some(listener) = listener_match(patch) else { return true };
        let criteria = dynamic::message(chain, "filter_chain_match");
        let port = criteria
            .and_then(|criteria| dynamic::message(criteria, "destination_port"))
            .map(|port| dynamic::number(port, "value"));
        if self.is_virtual() && listener.port != 0 && port.unwrap_or_default() != listener.port {
            return false;
        }
        let Some(FilterChainMatch { name, sni, transport_protocol, application_protocols, destination_port, .. }) =
            &listener.chain
        else {
            return true;
        };
        let listed =
            |field: &str, text: &str| criteria.is_some_and(|criteria| dynamic::contains_text(criteria, field, text));
        let transport =
            |protocol: &str| criteria.is_some_and(|criteria| dynamic::text(criteria, "transport_protocol") == protocol);
        (name.is_empty() || *name.as_str() == *dynamic::text(chain, "name"))
            && (sni.is_empty() || listed("server_names", sni))
            && (transport_protocol.is_empty() || transport(transport_protocol))
            && (application_protocols.is_empty()
                || application_protocols.split(',').all(|protocol| listed("application_protocols", protocol)))
            && (*destination_port == 0 || port == Some(*destination_port))
    }
}

pub(crate) fn listener_match(patch: &EnvoyPatch) -> Option<&ListenerMatch> {
    match &patch.object {
        ObjectMatch::Listener(listener) => Some(listener),
        _ => None,
    }
}

/// The match of a patch on a network filter.
pub(crate) fn filter_match(patch: &EnvoyPatch) -> Option<&FilterMatch> {
    listener_match(patch)?.chain.as_ref()?.filter.as_ref()
}

/// Whether a patch matches the filter by name, or has no match on a filter.
pub(crate) fn filter_matches(filter: &DynamicMessage, patch: &EnvoyPatch) -> bool {
    filter_match(patch).is_none_or(|filter_match| *filter_match.name.as_str() == *dynamic::text(filter, "name"))
}
