//! Patches of listeners, listener filters and filter chains.

use prost_reflect::DynamicMessage;
use sluice_model::{ApplyTo, EnvoyPatch, PatchContext, PatchOperation, ProxyType};

use crate::cluster::merge_socket;
use crate::listener_match::{ListenerAddress, listener_match};
use crate::merge::{merge, merge_filter};
use crate::{PatchOutcome, dynamic, http_filter, network_filter, patched, patches_for, sequence, value};

/// `TrafficDirection.INBOUND`.
const INBOUND: i32 = 1;

/// Applies patches to a listener of a proxy of this type. All listeners of waypoints are inbound ones.
#[must_use]
pub fn patch_listener(encoded: &[u8], patches: &[EnvoyPatch], proxy_type: ProxyType) -> PatchOutcome {
    patched(ApplyTo::Listener, encoded, |listener| {
        let context = match (proxy_type, dynamic::enumeration(listener, "traffic_direction")) {
            (ProxyType::Router, _) => PatchContext::Gateway,
            (ProxyType::Waypoint, _) | (_, INBOUND) => PatchContext::SidecarInbound,
            _ => PatchContext::SidecarOutbound,
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
