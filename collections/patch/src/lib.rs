//! EnvoyFilter patches of encoded resources (T06), by reflection over the descriptor pool.
//!
//! Everything is a pure function of an encoded resource and the patches that apply to its proxy, in order. A resource
//! that no patch matches stays the same, byte for byte.
//!
//! - `merge.rs`: merging a value into a message, also inside an `Any`.
//! - `dynamic.rs`: fields of messages whose type is known at run time only.
//! - `sequence.rs`: insertions and removals in lists.
//! - `listener_match.rs`: matches on listeners, filter chains and network filters.
//! - `cluster.rs`, `listener.rs`, `network_filter.rs`, `http_filter.rs`, `route.rs`: one part of the configuration
//!   each, with its match.

mod cluster;
mod dynamic;
mod http_filter;
mod listener;
mod listener_match;
mod merge;
mod network_filter;
mod route;
mod sequence;

use bytes::Bytes;
use prost::Message;
use prost_reflect::DynamicMessage;
use sluice_model::{ApplyTo, EnvoyPatch, PatchContext, PatchOperation, ProxyType, Text};
use sluice_proto::{pool, wire};

pub use cluster::patch_cluster;
pub use listener::patch_listener;
pub use route::{RouteTableContext, patch_route_table, patch_virtual_host};

/// The result of patching a resource.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PatchOutcome {
    /// No patch changes the resource.
    Unchanged,
    /// The patched resource.
    Changed(Bytes),
    /// A patch removes the resource.
    Removed,
}

/// Whole resources that patches add to proxies of a type, with their names. If several have the same name, the first one
/// is used. To waypoints, only patches of inbound traffic add clusters, as in Istio.
#[must_use]
pub fn added_resources(patches: &[EnvoyPatch], apply_to: ApplyTo, proxy_type: ProxyType) -> Vec<(Text, Bytes)> {
    let mut added: Vec<(Text, Bytes)> = Vec::new();
    let inbound_only = proxy_type == ProxyType::Waypoint && apply_to == ApplyTo::Cluster;
    let adds = patches.iter().filter(|patch| {
        patch.apply_to == apply_to
            && patch.operation == PatchOperation::Add
            && (!inbound_only || patch.context == PatchContext::SidecarInbound)
    });
    for patch in adds {
        let Some(value) = value(patch) else { continue };
        let name = Text::from(dynamic::text(&value, "name"));
        if !name.is_empty() && added.iter().all(|(known, _)| *known != name) {
            added.push((name, patch.value.0.clone()));
        }
    }
    added
}

/// The patches of one part that apply in a context.
fn patches_for(
    patches: &[EnvoyPatch],
    apply_to: ApplyTo,
    context: PatchContext,
) -> impl Iterator<Item = &EnvoyPatch> + Clone + '_ {
    patches.iter().filter(move |patch| patch.apply_to == apply_to && patch.context.covers(context))
}

/// The value of a patch, decoded.
fn value(patch: &EnvoyPatch) -> Option<DynamicMessage> {
    decode(patch.apply_to.message_name(), &patch.value.0)
}

fn decode(name: &str, bytes: &[u8]) -> Option<DynamicMessage> {
    DynamicMessage::decode(pool().get_message_by_name(name)?, bytes).ok()
}

fn encode(name: &str, message: &DynamicMessage) -> Bytes {
    wire::sort_maps(name, message.encode_to_vec()).into()
}

/// Applies `change` to the decoded message. `change` returns whether it changed the message, or `None` to remove it.
fn patched(
    apply_to: ApplyTo,
    encoded: &[u8],
    change: impl FnOnce(&mut DynamicMessage) -> Option<bool>,
) -> PatchOutcome {
    let name = apply_to.message_name();
    let Some(mut message) = decode(name, encoded) else { return PatchOutcome::Unchanged };
    match change(&mut message) {
        None => PatchOutcome::Removed,
        Some(false) => PatchOutcome::Unchanged,
        Some(true) => {
            let bytes = encode(name, &message);
            // A merge may only reorder fields, which is no change.
            let same = decode(name, encoded).is_some_and(|before| encode(name, &before) == bytes);
            if same { PatchOutcome::Unchanged } else { PatchOutcome::Changed(bytes) }
        }
    }
}

#[cfg(test)]
mod tests;
