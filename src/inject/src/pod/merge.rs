//! Strategic merge of a partial pod into a pod, by the rules of Kubernetes.
//!
//! Objects are merged, null removes a field. Lists of structures with a merge key are merged by it, all other lists are
//! replaced. Merged lists have the elements of the patch in its order; the other elements keep theirs. The directive
//! `$patch: delete` removes an object or an element, `$patch: replace` replaces an object or a list.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::structure::{FieldKind, Structure};

/// Directives begin with this character.
const DIRECTIVE: char = '$';
const PATCH: &str = "$patch";

type Fields = Map<String, Json>;

/// Merges `patch`, a part of a structure, into `original`. The error says what is wrong with the patch.
pub(crate) fn merge(original: &mut Fields, patch: Fields, structure: &Structure) -> Result<(), String> {
    match patch.get(PATCH).and_then(Json::as_str) {
        Some("replace") => {
            original.clear();
            original.extend(patch.into_iter().filter(|(key, _)| !key.starts_with(DIRECTIVE)));
            return Ok(());
        }
        Some("delete") => {
            original.clear();
            return Ok(());
        }
        _ => {}
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Json::Array(items)), Json::Array(deleted)) = (original.get_mut(list), &value) {
                items.retain(|item| !deleted.contains(item));
            }
            continue;
        }
        if key.starts_with(DIRECTIVE) {
            continue;
        }
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let kind = structure.kind(&key);
        let merged = match (original.remove(&key), value) {
            (Some(Json::Object(mut known)), Json::Object(added)) => {
                merge(&mut known, added, structure_of(kind))?;
                Json::Object(known)
            }
            (Some(Json::Array(known)), Json::Array(added)) => Json::Array(merge_lists(known, added, kind)?),
            // What is new is taken as it is, with duplicates.
            (_, value) => without_directives(value),
        };
        original.insert(key, merged);
    }
    Ok(())
}

static UNKNOWN: Structure = Structure { name: "object", fields: &[] };

fn structure_of(kind: FieldKind) -> &'static Structure {
    match kind {
        FieldKind::Struct(structure) | FieldKind::Pointer(structure) => structure,
        _ => &UNKNOWN,
    }
}

fn merge_lists(known: Vec<Json>, added: Vec<Json>, kind: FieldKind) -> Result<Vec<Json>, String> {
    match kind {
        FieldKind::Keyed(structure, key) => merge_keyed(known, added, structure, key),
        FieldKind::TextSet => {
            let mut out = added.clone();
            out.extend(known.into_iter().filter(|item| !added.contains(item)));
            Ok(out)
        }
        _ => Ok(added.into_iter().map(without_directives).collect()),
    }
}

fn merge_keyed(mut known: Vec<Json>, added: Vec<Json>, structure: &Structure, key: &str) -> Result<Vec<Json>, String> {
    let directive = |item: &Json| item[PATCH].as_str().map(str::to_owned);
    let mut order: Vec<String> = known.iter().map(|item| key_text(&item[key])).collect();
    if added.iter().any(|item| directive(item).as_deref() == Some("replace") && item.get(key).is_none()) {
        let rest = added.into_iter().filter(|item| directive(item).is_none());
        return Ok(rest.map(without_directives).collect());
    }
    let mut patched: Vec<(String, Json)> = Vec::new();
    let mut patched_positions: HashMap<String, usize> = HashMap::new();
    let mut positions: HashMap<String, usize> = HashMap::new();
    for (index, item) in known.iter().enumerate() {
        positions.entry(key_text(&item[key])).or_insert(index);
    }
    for item in added {
        let Json::Object(mut fields) = item else {
            return Err(format!("expected an object in a list of {}", structure.name));
        };
        let Some(value) = fields.get(key) else {
            return Err(format!("map does not contain declared merge key: {key}"));
        };
        let name = key_text(value);
        if fields.get(PATCH).and_then(Json::as_str) == Some("delete") {
            known.retain(|item| key_text(&item[key]) != name);
            order.retain(|known| *known != name);
            positions = known.iter().enumerate().rev().map(|(index, item)| (key_text(&item[key]), index)).collect();
            continue;
        }
        if let Some((_, Json::Object(earlier))) = patched_positions.get(&name).map(|index| &mut patched[*index]) {
            merge(earlier, fields, structure)?;
            continue;
        }
        let merged = match positions.get(&name).map(|index| known[*index].take()) {
            Some(Json::Object(mut original)) => {
                merge(&mut original, fields, structure)?;
                original
            }
            _ => {
                fields.remove(PATCH);
                patched_positions.insert(name.clone(), patched.len());
                patched.push((name, without_directives(Json::Object(fields))));
                continue;
            }
        };
        patched_positions.insert(name.clone(), patched.len());
        patched.push((name, Json::Object(merged)));
    }
    Ok(interleave(known, patched, &order, key))
}

/// Puts elements that the patch does not name before the first patched element that follows them in the original order.
/// Others are at the end.
fn interleave(known: Vec<Json>, patched: Vec<(String, Json)>, order: &[String], key: &str) -> Vec<Json> {
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for (index, name) in order.iter().enumerate() {
        positions.entry(name).or_insert(index);
    }
    let mut kept = known.into_iter().filter(|item| !item.is_null()).peekable();
    let mut out = Vec::new();
    for (name, item) in patched {
        if let Some(position) = positions.get(name.as_str()) {
            while let Some(next) = kept
                .next_if(|next| positions.get(key_text(&next[key]).as_str()).is_some_and(|before| before < position))
            {
                out.push(next);
            }
        }
        out.push(item);
    }
    out.extend(kept);
    out
}

fn key_text(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A value without nulls and directives, at any depth.
pub(crate) fn without_directives(value: Json) -> Json {
    match value {
        Json::Object(fields) => {
            let kept = fields.into_iter().filter(|(key, value)| !value.is_null() && !key.starts_with(DIRECTIVE));
            Json::Object(kept.map(|(key, value)| (key, without_directives(value))).collect())
        }
        Json::Array(items) => Json::Array(items.into_iter().map(without_directives).collect()),
        other => other,
    }
}
