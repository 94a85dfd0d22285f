//! Places in lists.

use prost_reflect::DynamicMessage;
use sluice_model::{EnvoyPatch, PatchOperation};

use crate::value;

/// Applies a patch that adds to a list, takes from it or exchanges an element. `finds` tells whether an element is the one
/// that is looked for; `None` if the patch looks for none in particular. Says whether it did anything.
pub(crate) fn apply(
    list: &mut Vec<DynamicMessage>,
    patch: &EnvoyPatch,
    finds: Option<impl Fn(&DynamicMessage) -> bool>,
) -> bool {
    let place = || finds.as_ref().and_then(|finds| list.iter().position(finds));
    let at = match (patch.operation, &finds) {
        (PatchOperation::Add, _) | (PatchOperation::InsertAfter, None) => list.len(),
        (PatchOperation::InsertFirst, _) | (PatchOperation::InsertBefore, None) => 0,
        (PatchOperation::InsertBefore, Some(_)) => match place() {
            Some(place) => place,
            None => return false,
        },
        (PatchOperation::InsertAfter, Some(_)) => match place() {
            Some(place) => place + 1,
            None => return false,
        },
        (PatchOperation::Replace, Some(_)) => {
            let (Some(place), Some(value)) = (place(), value(patch)) else { return false };
            list[place] = value;
            return true;
        }
        (PatchOperation::Remove, Some(finds)) => {
            let before = list.len();
            list.retain(|element| !finds(element));
            return list.len() != before;
        }
        _ => return false,
    };
    let Some(value) = value(patch) else { return false };
    list.insert(at, value);
    true
}
