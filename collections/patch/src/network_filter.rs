//! Network filters of a filter chain.

use prost_reflect::DynamicMessage;
use sluice_model::{ApplyTo, EnvoyPatch, FilterMatch, PatchContext, PatchOperation};

use crate::http_filter::{HTTP_CONNECTION_MANAGER, patch_http_filters};
use crate::listener::{Place, listener_match};
use crate::merge::merge_filter;
use crate::{dynamic, of, sequence, value};

/// The network filter that a patch looks for.
pub(crate) fn filter_match(patch: &EnvoyPatch) -> Option<&FilterMatch> {
    listener_match(patch)?.chain.as_ref()?.filter.as_ref()
}

/// Whether it is the one a patch looks for, or the patch looks for none in particular.
pub(crate) fn matches(filter: &DynamicMessage, patch: &EnvoyPatch) -> bool {
    filter_match(patch).is_none_or(|wanted| *wanted.name.as_str() == *dynamic::text(filter, "name"))
}

/// First all that come, go and change places, then what is merged into each, then HTTP filters.
pub(crate) fn patch_filters(
    place: &Place,
    chain: &mut DynamicMessage,
    patches: &[EnvoyPatch],
    context: PatchContext,
) -> bool {
    let mut filters = dynamic::take_messages(chain, "filters");
    let mut changed = false;
    let found = of(patches, ApplyTo::NetworkFilter, context).filter(|patch| place.chain_matches(chain, patch));
    for patch in found.clone() {
        let finds = filter_match(patch).map(|_| |filter: &DynamicMessage| matches(filter, patch));
        changed |= sequence::apply(&mut filters, patch, finds);
    }
    let merges = found.filter(|patch| patch.operation == PatchOperation::Merge);
    for filter in &mut filters {
        for patch in merges.clone() {
            if matches(filter, patch)
                && let Some(over) = value(patch)
            {
                changed |= merge_filter(filter, &over, true);
            }
        }
        if dynamic::text(filter, "name") == HTTP_CONNECTION_MANAGER {
            changed |= patch_http_filters(place, chain, filter, patches, context);
        }
    }
    dynamic::put_messages(chain, "filters", filters);
    changed
}
