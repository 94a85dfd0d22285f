//! Structure-aware mutation of JSON values.

use serde_json::{Map, Value, json};

use crate::rng::FuzzRng;
use crate::seeds::Seeds;

/// Largest nesting of a mutated value, which sources accept.
const MAX_DEPTH: usize = 90;

/// A value with more values than that in it is not mutated again: each mutation can multiply them.
const MAX_VALUES: usize = 20_000;

/// A step of a path: a field or an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    Item(usize),
}

/// The path from the root to a value.
pub(crate) type Path = Vec<Step>;

/// The number of values in a value, itself included.
fn count(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// The path of the value at `index` of [`paths`], without a list of the others.
fn path_at(mut value: &Value, mut index: usize) -> Path {
    let mut path = Path::new();
    while index > 0 {
        index -= 1;
        let mut skip = |inner: &Value| {
            let values = count(inner);
            let is_here = index < values;
            index -= if is_here { 0 } else { values };
            is_here
        };
        let next = match value {
            Value::Object(fields) => {
                fields.iter().find(|(_, inner)| skip(inner)).map(|(name, inner)| (Step::Field(name.clone()), inner))
            }
            Value::Array(items) => {
                items.iter().enumerate().find(|(_, inner)| skip(inner)).map(|(at, inner)| (Step::Item(at), inner))
            }
            _ => None,
        };
        let Some((step, inner)) = next else { break };
        path.push(step);
        value = inner;
    }
    path
}

/// The paths of all values in a value, the root first.
pub(crate) fn paths(value: &Value) -> Vec<Path> {
    fn walk(value: &Value, path: &mut Path, out: &mut Vec<Path>) {
        out.push(path.clone());
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    path.push(Step::Field(name.clone()));
                    walk(value, path, out);
                    path.pop();
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    path.push(Step::Item(index));
                    walk(value, path, out);
                    path.pop();
                }
            }
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk(value, &mut Vec::new(), &mut out);
    out
}

pub(crate) fn at<'v>(value: &'v mut Value, path: &[Step]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, step| match (value, step) {
        (Value::Object(fields), Step::Field(name)) => fields.get_mut(name),
        (Value::Array(items), Step::Item(index)) => items.get_mut(*index),
        _ => None,
    })
}

/// Removes the value at `path`.
pub(crate) fn remove(value: &mut Value, path: &[Step]) -> Option<Value> {
    let (last, parent) = path.split_last()?;
    match (at(value, parent)?, last) {
        (Value::Object(fields), Step::Field(name)) => fields.remove(name),
        (Value::Array(items), Step::Item(index)) => (*index < items.len()).then(|| items.remove(*index)),
        _ => None,
    }
}

/// Changes `value` in `times` places below `root`. The type of the root does not change.
pub fn mutate(value: &mut Value, root: &str, seeds: &Seeds, rng: &mut FuzzRng, times: usize) {
    for _ in 0..times {
        let Some(target) = value.pointer_mut(root) else { return };
        let values = count(target);
        if values > MAX_VALUES {
            return;
        }
        let path = if values > 1 { path_at(target, 1 + rng.below(values - 1)) } else { Path::new() };
        change(target, &path, seeds, rng);
    }
}

fn change(root: &mut Value, path: &Path, seeds: &Seeds, rng: &mut FuzzRng) {
    match rng.below(16) {
        0 | 1 => drop(remove(root, path)),
        2 => duplicate(root, path, rng),
        3 => replace(root, path, |value| *value = retyped(value, rng)),
        4 | 5 => {
            let name = field_name(path);
            if let Some(value) = known_value(&name, seeds, rng) {
                replace(root, path, |old| *old = value);
            }
        }
        6 => {
            let names: Vec<&String> = seeds.values.keys().collect();
            let value = rng.choose(&names).and_then(|name| known_value(name, seeds, rng));
            replace(root, path, |old| *old = value.unwrap_or_default());
        }
        7 | 8 => insert(root, path, seeds, rng),
        9 | 10 => replace(root, path, |value| *value = extreme(value, rng)),
        11 => replace(root, path, |value| *value = Value::String(odd_text(value, rng))),
        12 => {
            let word = if rng.once_in(3) { "SOMETIMES".to_owned() } else { any_word(&seeds.words, rng) };
            replace(root, path, |value| *value = Value::String(word));
        }
        13 => nest(root, path, rng),
        14 => replace(root, path, |value| edit_text(value, rng)),
        _ => replace_by_copy(root, path, rng),
    }
}

fn any_word(words: &[String], rng: &mut FuzzRng) -> String {
    rng.choose(words).cloned().unwrap_or_default()
}

fn replace(root: &mut Value, path: &Path, change: impl FnOnce(&mut Value)) {
    if let Some(value) = at(root, path) {
        change(value);
    }
}

fn field_name(path: &Path) -> String {
    let name = path.iter().rev().find_map(|step| match step {
        Step::Field(name) => Some(name.clone()),
        Step::Item(_) => None,
    });
    name.unwrap_or_default()
}

/// A value that an object has in a field of that name, or an element of it.
fn known_value(name: &str, seeds: &Seeds, rng: &mut FuzzRng) -> Option<Value> {
    let value = rng.choose(seeds.values.get(name)?)?.clone();
    match value {
        Value::Array(items) if rng.once_in(2) => rng.choose(&items).cloned(),
        value => Some(value),
    }
}

fn duplicate(root: &mut Value, path: &Path, rng: &mut FuzzRng) {
    let Some((last, parent)) = path.split_last() else { return };
    let times = if rng.once_in(12) { 200 } else { 1 };
    match (at(root, parent), last) {
        (Some(Value::Array(items)), Step::Item(index)) => {
            if let Some(item) = items.get(*index).cloned() {
                let to = rng.below(items.len() + 1);
                items.splice(to..to, std::iter::repeat_n(item, times));
            }
        }
        (Some(Value::Object(fields)), Step::Field(name)) => {
            if let Some(value) = fields.get(name).cloned() {
                for n in 0..times {
                    fields.insert(format!("{name}{n}"), value.clone());
                }
            }
        }
        _ => {}
    }
}

fn retyped(value: &Value, rng: &mut FuzzRng) -> Value {
    match rng.below(8) {
        0 => Value::Null,
        1 => Value::Bool(rng.once_in(2)),
        2 => json!(rng.below(70_000)),
        3 => Value::String(value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)),
        4 => json!([value]),
        5 => json!({ "value": value }),
        6 => json!({}),
        _ => json!([]),
    }
}

/// Inserts a field that objects have beside the one at `path`, or any field.
fn insert(root: &mut Value, path: &Path, seeds: &Seeds, rng: &mut FuzzRng) {
    let name = field_name(path);
    let sibling = seeds.values.get(&name).and_then(|values| rng.choose(values)).cloned();
    let mut fields: Map<String, Value> = match sibling {
        Some(Value::Object(fields)) => fields,
        Some(Value::Array(items)) => match rng.choose(&items) {
            Some(Value::Object(fields)) => fields.clone(),
            _ => Map::new(),
        },
        _ => Map::new(),
    };
    if fields.is_empty() || rng.once_in(5) {
        let names: Vec<&String> = seeds.values.keys().collect();
        if let Some(name) = rng.choose(&names)
            && let Some(value) = known_value(name, seeds, rng)
        {
            fields = Map::from_iter([((*name).clone(), value)]);
        }
    }
    let chosen = rng.below(fields.len());
    let Some((name, value)) = fields.into_iter().nth(chosen) else { return };
    match at(root, path) {
        Some(Value::Object(into)) => drop(into.insert(name, value)),
        Some(Value::Array(into)) => into.push(value),
        _ => {}
    }
}

fn extreme(value: &Value, rng: &mut FuzzRng) -> Value {
    let numbers = [
        json!(0),
        json!(-1),
        json!(1),
        json!(101),
        json!(65_535),
        json!(65_536),
        json!(i32::MAX),
        json!(i32::MIN),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e308),
        json!(-0.0),
        json!(0.000_000_1),
        json!(99.999),
    ];
    let texts = [
        "0s",
        "-1s",
        "1ns",
        "999us",
        "87600000h",
        "9223372036s",
        "2562047h47m16.854775807s",
        "1e10s",
        "0",
        "-0",
        "65536",
        "18446744073709551616",
        "NaN",
        "0.0.0.0/0",
        "::/0",
        "255.255.255.255/33",
        "fe80::1%eth0",
        "unix://",
        "*",
        "~/*",
        "./*",
        "*/*",
        "/",
        ".",
        "*.",
        "*.*",
        "%",
        "%REQ(",
        "{",
        "(",
        "(?P<",
        "[[:alpha:]",
        "a{1000}{1000}",
        "",
    ];
    match value {
        Value::String(_) if !rng.once_in(4) => json!(rng.choose(&texts)),
        _ => rng.choose(&numbers).cloned().unwrap_or_default(),
    }
}

fn odd_text(value: &Value, rng: &mut FuzzRng) -> String {
    let odd = [
        "\u{0}", "\u{7f}", "\n", "\r\n", "\t", "é", "ß", "İ", "💥", "\u{202e}", "\u{feff}", "\u{ff0e}", "\u{e000}",
        "a\u{301}", "١", "\"", "\\", "'", "%", "/", "..", "|", "~", "_.", " ",
    ];
    let mut text = value.as_str().unwrap_or_default().to_owned();
    if rng.once_in(4) {
        let length = rng.choose(&[63, 64, 253, 254, 256, 5_000, 60_000]).copied().unwrap_or_default();
        let of = rng.choose(&["a", "a.", "*", "é", "/"]).copied().unwrap_or_default();
        return of.repeat(length);
    }
    let positions: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let (Some(position), Some(odd)) = (rng.choose(&positions), rng.choose(&odd)) else { return text };
    text.insert_str(*position, odd);
    text
}

fn edit_text(value: &mut Value, rng: &mut FuzzRng) {
    let Some(text) = value.as_str() else { return };
    let chars: Vec<char> = text.chars().collect();
    let cut: String = chars.iter().take(rng.below(chars.len() + 1)).collect();
    let edited = match rng.below(8) {
        0 => cut,
        1 => text.to_uppercase(),
        2 => format!("*.{text}"),
        3 => format!("{text}."),
        4 => format!("{text}/{text}"),
        5 => text.split('.').next().unwrap_or_default().to_owned(),
        6 => chars.iter().rev().collect(),
        _ => format!("{text}{text}"),
    };
    *value = Value::String(edited);
}

/// Wraps a value into several levels of objects or lists.
fn nest(root: &mut Value, path: &Path, rng: &mut FuzzRng) {
    let name = field_name(path);
    let levels = rng.choose(&[1, 2, 8, 60]).copied().unwrap_or_default();
    let list = rng.once_in(2);
    let room = MAX_DEPTH.saturating_sub(path.len() + 20);
    if let Some(value) = at(root, path) {
        let depth = depth(value);
        for _ in 0..levels.min(room.saturating_sub(depth)) {
            let inner = value.take();
            *value = if list { json!([inner]) } else { Value::Object(Map::from_iter([(name.clone(), inner)])) };
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or_default(),
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

/// Replaces the value by another value of the same object.
fn replace_by_copy(root: &mut Value, path: &Path, rng: &mut FuzzRng) {
    let other = path_at(root, rng.below(count(root)));
    let copied = at(root, &other).map(|value| value.clone());
    if let Some(copied) = copied
        && depth(&copied) + path.len() < MAX_DEPTH
        && copied.to_string().len() < 20_000
    {
        replace(root, path, |value| *value = copied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_by_its_index() {
        let value = json!({ "a": [1, { "b": {} }, []], "c": "x", "d": { "e": [[], [2]] } });
        let all = paths(&value);
        assert_eq!(all.len(), count(&value));
        for (index, path) in all.iter().enumerate() {
            assert_eq!(path_at(&value, index), *path);
        }
    }

    #[test]
    fn mutations_do_not_multiply_values_without_end() {
        let mut value = json!({ "items": [] });
        for turn in 0..20_000 {
            let mut rng = FuzzRng::new(1, turn);
            if let Some(items) = value["items"].as_array_mut() {
                items.push(json!([turn]));
            }
            mutate(&mut value, "", &Seeds::default(), &mut rng, 1);
        }
        assert!(count(&value) <= MAX_VALUES * 201, "{} values", count(&value));
    }

    #[test]
    fn a_turn_is_reproducible_and_turns_differ() {
        let seed =
            json!({ "spec": { "hosts": ["a", "b"], "http": [{ "timeout": "1s", "retries": { "attempts": 3 } }] } });
        let run = |turn| {
            let mut value = seed.clone();
            mutate(&mut value, "/spec", &Seeds::default(), &mut FuzzRng::new(7, turn), 3);
            value
        };
        assert_eq!(run(1), run(1));
        let distinct: std::collections::BTreeSet<String> = (0..200).map(|turn| run(turn).to_string()).collect();
        assert!(distinct.len() > 100, "{} of 200 differ", distinct.len());
        assert!((0..2000).all(|turn| depth(&run(turn)) <= MAX_DEPTH), "nesting is bounded");
    }
}
