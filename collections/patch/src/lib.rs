//! Patches of EnvoyFilters on encoded resources (T06), by reflection over the descriptor pool.
//!
//! Everything is a pure function: an encoded resource and the patches that apply to its proxy, in order, give the resource
//! as it becomes. Patches that find nothing leave it as it is, to the byte.
//!
//! - `merge.rs`: how a value is laid over a message, and inside an `Any`.
//! - `dynamic.rs`: fields of messages whose type is known at run time only.
//! - `sequence.rs`: places in lists.
//! - `cluster.rs`, `listener.rs`, `network_filter.rs`, `http_filter.rs`, `route.rs`: a part each, with what finds it.

mod cluster;
mod dynamic;
mod http_filter;
mod listener;
mod merge;
mod network_filter;
mod route;
mod sequence;

use bytes::Bytes;
use prost::Message;
use prost_reflect::DynamicMessage;
use sluice_model::{ApplyTo, EnvoyPatch, PatchContext, PatchOperation, Text};
use sluice_proto::{pool, wire};

pub use cluster::patch_cluster;
pub use listener::patch_listener;
pub use route::{RouteTableContext, patch_route_table, patch_virtual_host};

/// What patches make of a resource.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PatchOutcome {
    /// None of them changes it.
    Unchanged,
    /// It becomes this.
    Changed(Bytes),
    /// It is gone.
    Removed,
}

/// Whole resources that patches add, with their names; of several with one name the first.
#[must_use]
pub fn added(patches: &[EnvoyPatch], apply_to: ApplyTo) -> Vec<(Text, Bytes)> {
    let mut found: Vec<(Text, Bytes)> = Vec::new();
    let adds = patches.iter().filter(|patch| patch.apply_to == apply_to && patch.operation == PatchOperation::Add);
    for patch in adds {
        let Some(value) = value(patch) else { continue };
        let name = Text::from(dynamic::text(&value, "name"));
        if !name.is_empty() && found.iter().all(|(known, _)| *known != name) {
            found.push((name, patch.value.0.clone()));
        }
    }
    found
}

/// The patches of one part in a context.
fn of(
    patches: &[EnvoyPatch],
    apply_to: ApplyTo,
    context: PatchContext,
) -> impl Iterator<Item = &EnvoyPatch> + Clone + '_ {
    patches.iter().filter(move |patch| patch.apply_to == apply_to && patch.context.covers(context))
}

/// The message a patch carries.
fn value(patch: &EnvoyPatch) -> Option<DynamicMessage> {
    decode(patch.apply_to.message_name(), &patch.value.0)
}

fn decode(name: &str, bytes: &[u8]) -> Option<DynamicMessage> {
    DynamicMessage::decode(pool().get_message_by_name(name)?, bytes).ok()
}

fn encode(name: &str, message: &DynamicMessage) -> Bytes {
    wire::sort_maps(name, message.encode_to_vec()).into()
}

/// Runs `change` on the decoded message; `change` says whether it did anything, or `None` that the message is gone.
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
            // What was merged may have been there already, only written in another order.
            let same = decode(name, encoded).is_some_and(|before| encode(name, &before) == bytes);
            if same { PatchOutcome::Unchanged } else { PatchOutcome::Changed(bytes) }
        }
    }
}

#[cfg(test)]
mod tests;
