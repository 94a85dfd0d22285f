//! Insertions, removals and replacements in lists.

use prost_reflect::DynamicMessage;
use sluice_model::{EnvoyPatch, PatchOperation};

use crate::value;

/// Applies a patch that inserts, removes or replaces elements of a list. `is_match` returns whether the patch matches
/// an element; `None` if the patch has no match on elements. Returns whether the list changed.
pub(crate) fn apply(
    list: &mut Vec<DynamicMessage>,
    patch: &EnvoyPatch,
    is_match: Option<impl Fn(&DynamicMessage) -> bool>,
) -> bool {
    let position = || is_match.as_ref().and_then(|is_match| list.iter().position(is_match));
    let at = match (patch.operation, &is_match) {
        (PatchOperation::Add, _) | (PatchOperation::InsertAfter, None) => list.len(),
        (PatchOperation::InsertFirst, _) | (PatchOperation::InsertBefore, None) => 0,
        (PatchOperation::InsertBefore, Some(_)) => match position() {
            Some(position) => position,
            None => return false,
        },
        (PatchOperation::InsertAfter, Some(_)) => match position() {
            Some(position) => position + 1,
            None => return false,
        },
        (PatchOperation::Replace, Some(_)) => {
            let (Some(position), Some(value)) = (position(), value(patch)) else { return false };
            list[position] = value;
            return true;
        }
        (PatchOperation::Remove, Some(is_match)) => {
            let before = list.len();
            list.retain(|element| !is_match(element));
            return list.len() != before;
        }
        _ => return false,
    };
    let Some(value) = value(patch) else { return false };
    list.insert(at, value);
    true
}
