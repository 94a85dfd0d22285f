//! Patches of listeners, listener filters and filter chains.

use prost_reflect::DynamicMessage;
use sluice_model::{ApplyTo, EnvoyPatch, FilterChainMatch, ListenerMatch, ObjectMatch, PatchContext, PatchOperation};

use crate::cluster::merge_socket;
use crate::merge::{merge, merge_filter};
use crate::{PatchOutcome, dynamic, http_filter, network_filter, patched, patches_for, sequence, value};

/// `TrafficDirection.INBOUND`.
const INBOUND: i32 = 1;
/// Listeners whose filter chains match the ports, instead of the listener.
const VIRTUAL_LISTENERS: [&str; 2] = ["virtualInbound", "virtualOutbound"];

/// Applies patches to a listener. `gateway`: whether the proxy is a gateway.
#[must_use]
pub fn patch_listener(encoded: &[u8], patches: &[EnvoyPatch], gateway: bool) -> PatchOutcome {
    patched(ApplyTo::Listener, encoded, |listener| {
        let context = match (gateway, dynamic::enumeration(listener, "traffic_direction")) {
            (true, _) => PatchContext::Gateway,
            (false, INBOUND) => PatchContext::SidecarInbound,
            (false, _) => PatchContext::SidecarOutbound,
        };
        let mut changed = context == PatchContext::SidecarInbound && http_filter::patch_routes(listener, patches);
        for patch in patches_for(patches, ApplyTo::Listener, context) {
            if !ListenerAddress::of(listener).matches(patch) {
                continue;
            }
            if patch.operation == PatchOperation::Remove {
                return None;
            }
            if let Some(over) = value(patch).filter(|_| patch.operation.is_merge()) {
                merge(patch.operation, listener, &over);
                changed = true;
            }
        }
        changed |= patch_listener_filters(listener, patches, context);
        changed |= patch_chains(listener, patches, context);
        Some(changed)
    })
}

/// Name and port of a listener, which patches match.
#[derive(Clone, Debug)]
pub(crate) struct ListenerAddress {
    name: String,
    port: Option<u32>,
}

impl ListenerAddress {
    fn of(listener: &DynamicMessage) -> Self {
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

    fn matches(&self, patch: &EnvoyPatch) -> bool {
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

fn patch_listener_filters(listener: &mut DynamicMessage, patches: &[EnvoyPatch], context: PatchContext) -> bool {
    let address = ListenerAddress::of(listener);
    let mut patches =
        patches_for(patches, ApplyTo::ListenerFilter, context).filter(|patch| address.matches(patch)).peekable();
    if patches.peek().is_none() {
        return false;
    }
    let mut filters = dynamic::take_messages(listener, "listener_filters");
    let mut changed = false;
    for patch in patches {
        let name = listener_match(patch).map(|listener| &listener.listener_filter).filter(|name| !name.is_empty());
        let is_match = name.map(|name| move |filter: &DynamicMessage| *dynamic::text(filter, "name") == *name.as_str());
        if patch.operation != PatchOperation::Merge {
            changed |= sequence::apply(&mut filters, patch, is_match);
        } else if let (Some(is_match), Some(over)) = (is_match, value(patch)) {
            for filter in filters.iter_mut().filter(|filter| is_match(filter)) {
                changed |= merge_filter(filter, &over, false);
            }
        }
    }
    dynamic::put_messages(listener, "listener_filters", filters);
    changed
}

fn patch_chains(listener: &mut DynamicMessage, patches: &[EnvoyPatch], context: PatchContext) -> bool {
    let address = ListenerAddress::of(listener);
    let mut changed = false;
    let mut chains = dynamic::take_messages(listener, "filter_chains");
    chains.retain_mut(|chain| {
        let outcome = patch_chain(&address, chain, patches, context);
        changed |= outcome != Some(false);
        outcome.is_some()
    });
    let default = dynamic::message_mut(listener, "default_filter_chain");
    let outcome = default.map(|chain| patch_chain(&address, chain, patches, context));
    changed |= outcome.is_some_and(|outcome| outcome != Some(false));
    if outcome == Some(None) {
        listener.clear_field_by_name("default_filter_chain");
    }
    let adds =
        patches_for(patches, ApplyTo::FilterChain, context).filter(|patch| patch.operation == PatchOperation::Add);
    for chain in adds.filter(|patch| address.matches(patch)).filter_map(value) {
        // A filter chain without filters is invalid.
        if !dynamic::list(&chain, "filters").is_empty() {
            chains.push(chain);
            changed = true;
        }
    }
    dynamic::put_messages(listener, "filter_chains", chains);
    changed
}

/// Patches a filter chain. Returns whether it changed; `None` if it is removed.
fn patch_chain(
    address: &ListenerAddress,
    chain: &mut DynamicMessage,
    patches: &[EnvoyPatch],
    context: PatchContext,
) -> Option<bool> {
    let mut changed = false;
    for patch in patches_for(patches, ApplyTo::FilterChain, context) {
        if !address.chain_matches(chain, patch) {
            continue;
        }
        if patch.operation == PatchOperation::Remove {
            return None;
        }
        if let Some(over) = value(patch).filter(|_| patch.operation.is_merge()) {
            merge_chain(patch.operation, chain, &over);
            changed = true;
        }
    }
    Some(network_filter::patch_filters(address, chain, patches, context) | changed)
}

/// A value with a transport socket of the same name is merged into the socket of the chain and nowhere else.
fn merge_chain(operation: PatchOperation, chain: &mut DynamicMessage, over: &DynamicMessage) {
    if let (Some(own), Some(socket)) =
        (dynamic::message_mut(chain, "transport_socket"), dynamic::message(over, "transport_socket"))
        && dynamic::text(own, "name") == dynamic::text(socket, "name")
    {
        merge_socket(own, socket);
        return;
    }
    merge(operation, chain, over);
}
