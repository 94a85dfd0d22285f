//! Patches of the network filters of a filter chain.

use prost_reflect::DynamicMessage;
use sluice_model::{ApplyTo, EnvoyPatch, HTTP_CONNECTION_MANAGER, PatchContext, PatchOperation};

use crate::http_filter::patch_http_filters;
use crate::listener_match::{ListenerAddress, filter_match, filter_matches};
use crate::merge::merge_filter;
use crate::{dynamic, patches_for, sequence, value};

/// Applies insertions, removals and replacements in the order of the patches, then merges, then patches of HTTP
/// filters.
pub(crate) fn patch_filters(
    listener: &ListenerAddress,
    chain: &mut DynamicMessage,
    patches: &[EnvoyPatch],
    context: PatchContext,
) -> bool {
    let mut filters = dynamic::take_messages(chain, "filters");
    let mut changed = false;
    let matching =
        patches_for(patches, ApplyTo::NetworkFilter, context).filter(|patch| listener.chain_matches(chain, patch));
    for patch in matching.clone() {
        let is_match = filter_match(patch).map(|_| |filter: &DynamicMessage| filter_matches(filter, patch));
        changed |= sequence::apply(&mut filters, patch, is_match);
    }
    let merges = matching.filter(|patch| patch.operation == PatchOperation::Merge);
    for filter in &mut filters {
        for patch in merges.clone() {
            if filter_matches(filter, patch)
                && let Some(over) = value(patch)
            {
                changed |= merge_filter(filter, &over, true);
            }
        }
        if dynamic::text(filter, "name") == HTTP_CONNECTION_MANAGER {
            changed |= patch_http_filters(listener, chain, filter, patches, context);
        }
    }
    dynamic::put_messages(chain, "filters", filters);
    changed
}
