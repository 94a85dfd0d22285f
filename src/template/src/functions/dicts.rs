//! Functions of maps, and of types.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::value::{Dict, Scope, Value};

use super::arguments::{Called, Table, at_least_one, dict, equal, exactly, names, text};

pub(super) const FUNCTIONS: Table = &[
    ("deepCopy", |_, args| exactly::<1>(args).map(|[value]| value.clone())),
    ("deepEqual", |_, args| exactly::<2>(args).map(|[left, right]| Value::Bool(equal(left, right)))),
    ("dict", new),
    ("dig", dig),
    ("get", get),
    ("hasKey", |_, args| {
        exactly::<2>(args).and_then(|[value, key]| Ok(Value::Bool(dict(value)?.entries.contains_key(text(key)?))))
    }),
    ("keys", keys),
    ("kindIs", |_, args| exactly::<2>(args).and_then(|[name, value]| Ok(Value::Bool(kind(value) == text(name)?)))),
    ("kindOf", |_, args| exactly::<1>(args).map(|[value]| Value::text(kind(value)))),
    ("merge", |_, args| merge(args, false)),
    ("mergeOverwrite", |_, args| merge(args, true)),
    ("omit", omit),
    ("pick", pick),
    ("pluck", pluck),
    ("set", set),
    ("typeIs", |_, args| {
        exactly::<2>(args).and_then(|[name, value]| Ok(Value::Bool(value.type_name() == text(name)?)))
    }),
    ("typeOf", |_, args| exactly::<1>(args).map(|[value]| Value::text(value.type_name()))),
    ("unset", unset),
    ("values", |_, args| {
        exactly::<1>(args).and_then(|[value]| Ok(Value::list(dict(value)?.entries.values().cloned().collect())))
    }),
];

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Missing | Value::Nil => "invalid",
        Value::Bool(_) => "bool",
        Value::Integer(_) => "int64",
        Value::Float(_) => "float64",
        Value::Text(_) => "string",
        Value::List(_) => "slice",
        Value::Dict(_) => "map",
        Value::Object(object) if object.is_pointer() => "ptr",
        Value::Object(_) => "struct",
    }
}

fn new(_: &Scope<'_>, args: &[Value]) -> Called {
    let mut entries = BTreeMap::new();
    for pair in args.chunks(2) {
        let key = crate::text::show(&pair[0]);
        entries.insert(key, pair.get(1).cloned().unwrap_or_else(|| Value::text("")));
    }
    Ok(Value::dict(entries))
}

fn get(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value, key] = exactly(args)?;
    Ok(dict(value)?.entries.get(text(key)?).cloned().unwrap_or_else(|| Value::text("")))
}

fn changed(value: &Value, change: impl FnOnce(&mut BTreeMap<String, Value>)) -> Called {
    let dict = dict(value)?;
    let mut entries = dict.entries.clone();
    change(&mut entries);
    let of_texts = dict.of_texts && entries.values().all(|value| matches!(value, Value::Text(_)));
    Ok(Value::dict_of(of_texts, entries))
}

fn set(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value, key, entry] = exactly(args)?;
    let key = text(key)?.to_owned();
    changed(value, |entries| {
        entries.insert(key, entry.clone());
    })
}

fn unset(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value, key] = exactly(args)?;
    let key = text(key)?;
    changed(value, |entries| {
        entries.remove(key);
    })
}

fn keys(_: &Scope<'_>, args: &[Value]) -> Called {
    let mut out = Vec::new();
    for value in args {
        out.extend(dict(value)?.entries.keys().map(|key| Value::text(key.as_str())));
    }
    Ok(Value::list(out))
}

fn omit(_: &Scope<'_>, args: &[Value]) -> Called {
    let (value, omitted) = at_least_one(args)?;
    let omitted = names(omitted)?;
    changed(value, |entries| entries.retain(|key, _| !omitted.contains(&key.as_str())))
}

fn pick(_: &Scope<'_>, args: &[Value]) -> Called {
    let (value, keys) = at_least_one(args)?;
    let keys = names(keys)?;
    changed(value, |entries| entries.retain(|key, _| keys.contains(&key.as_str())))
}

fn pluck(_: &Scope<'_>, args: &[Value]) -> Called {
    let (key, dicts) = at_least_one(args)?;
    let mut out = Vec::new();
    for value in dicts {
        out.extend(dict(value)?.entries.get(text(key)?).cloned());
    }
    Ok(Value::list(out))
}

/// `dig KEY... DEFAULT MAP`
fn dig(_: &Scope<'_>, args: &[Value]) -> Called {
    let [keys @ .., default, value] = args else {
        return Err(format!("wrong number of args: want at least 3 got {}", args.len()));
    };
    let mut value = value.clone();
    for key in names(keys)? {
        match dict(&value)?.entries.get(key) {
            Some(next) => value = next.clone(),
            None => return Ok(default.clone()),
        }
    }
    Ok(value)
}

fn merge(args: &[Value], overwrites: bool) -> Called {
    let (first, others) = at_least_one(args)?;
    let mut out = dict(first)?;
    for other in others {
        let other = dict(other)?;
        out = merged(&out, &other, overwrites);
    }
    Ok(Value::Dict(out))
}

/// The entries of both. Inner maps are merged. Another value of `added` replaces one of `known` with `overwrites`, also if it is
/// empty, and otherwise only an empty one. Their nesting is bounded as that of all values.
fn merged(known: &Dict, added: &Dict, overwrites: bool) -> Arc<Dict> {
    let mut entries = known.entries.clone();
    for (key, value) in &added.entries {
        let replaces = match (entries.get(key), value) {
            (Some(Value::Dict(known)), Value::Dict(added)) => {
                let inner = Value::Dict(merged(known, added, overwrites));
                entries.insert(key.clone(), inner);
                false
            }
            _ if overwrites => true,
            (Some(known), value) => !known.is_true() && !value.is_nil(),
            (None, value) => !value.is_nil(),
        };
        if replaces {
            entries.insert(key.clone(), value.clone());
        }
    }
    match Value::dict_of(known.of_texts && added.of_texts, entries) {
        Value::Dict(dict) => dict,
        _ => Arc::default(),
    }
}
