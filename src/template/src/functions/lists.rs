//! Functions of lists.

use std::collections::HashSet;

use crate::text::show;
use crate::value::{Scope, Value};

use super::arguments::{Called, Table, at_least_one, content, equal, exactly, list, texts, to_integer, to_size};

/// Maximum length of a list that a function builds.
const MAX_LIST: usize = 100_000;

pub(super) const FUNCTIONS: Table = &[
    ("append", append),
    ("chunk", chunk),
    ("compact", |_, args| on_list(args, |items| items.iter().filter(|item| item.is_true()).cloned().collect())),
    ("concat", concat),
    ("first", |_, args| exactly::<1>(args).and_then(|[value]| Ok(list(value)?.first().cloned().unwrap_or(Value::Nil)))),
    ("has", has),
    ("initial", |_, args| on_list(args, |items| items[..items.len().saturating_sub(1)].to_vec())),
    ("last", |_, args| exactly::<1>(args).and_then(|[value]| Ok(list(value)?.last().cloned().unwrap_or(Value::Nil)))),
    ("list", |_, args| Ok(Value::list(args.to_vec()))),
    ("prepend", prepend),
    ("push", append),
    ("rest", |_, args| on_list(args, |items| items.iter().skip(1).cloned().collect())),
    ("reverse", |_, args| on_list(args, |items| items.iter().rev().cloned().collect())),
    ("sortAlpha", sort_alpha),
    ("tuple", |_, args| Ok(Value::list(args.to_vec()))),
    ("uniq", uniq),
    ("until", until),
    ("untilStep", until_step),
    ("without", without),
];

fn on_list(args: &[Value], function: impl Fn(&[Value]) -> Vec<Value>) -> Called {
    let [value] = exactly(args)?;
    Ok(Value::list(function(list(value)?)))
}

fn bounded(items: Vec<Value>) -> Called {
    if items.len() > MAX_LIST {
        return Err(format!("a list of {} elements exceeds the limit of {MAX_LIST}", items.len()));
    }
    Ok(Value::list(items))
}

fn append(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value, item] = exactly(args)?;
    let mut items = list(value)?.to_vec();
    items.push(item.clone());
    bounded(items)
}

fn prepend(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value, item] = exactly(args)?;
    let mut items = vec![item.clone()];
    items.extend_from_slice(list(value)?);
    bounded(items)
}

fn concat(_: &Scope<'_>, args: &[Value]) -> Called {
    let mut items = Vec::new();
    for value in args {
        items.extend_from_slice(list(value)?);
    }
    bounded(items)
}

fn chunk(_: &Scope<'_>, args: &[Value]) -> Called {
    let [size, value] = exactly(args)?;
    let chunks = list(value)?.chunks(to_size(size).max(1));
    Ok(Value::list(chunks.map(|chunk| Value::list(chunk.to_vec())).collect()))
}

fn has(_: &Scope<'_>, args: &[Value]) -> Called {
    let [item, value] = exactly(args)?;
    Ok(Value::Bool(list(value)?.iter().any(|other| equal(item, other))))
}

fn uniq(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value] = exactly(args)?;
    let mut known = HashSet::new();
    let first = list(value)?.iter().filter(|item| known.insert(content(item)));
    Ok(Value::list(first.cloned().collect()))
}

fn without(_: &Scope<'_>, args: &[Value]) -> Called {
    let (value, omitted) = at_least_one(args)?;
    let omitted: HashSet<_> = omitted.iter().map(content).collect();
    let kept = list(value)?.iter().filter(|item| !omitted.contains(&content(item)));
    Ok(Value::list(kept.cloned().collect()))
}

fn sort_alpha(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value] = exactly(args)?;
    let mut items = match value {
        Value::List(_) => texts(value),
        other => vec![show(other)],
    };
    items.sort();
    Ok(Value::list(items.into_iter().map(Value::text).collect()))
}

fn until(_: &Scope<'_>, args: &[Value]) -> Called {
    let [count] = exactly(args)?;
    let count = to_integer(count);
    steps(0, count, if count < 0 { -1 } else { 1 })
}

fn until_step(_: &Scope<'_>, args: &[Value]) -> Called {
    let [start, stop, step] = exactly(args)?;
    steps(to_integer(start), to_integer(stop), to_integer(step))
}

fn steps(start: i64, stop: i64, step: i64) -> Called {
    let mut items = Vec::new();
    let mut number = start;
    while step != 0 && (if step > 0 { number < stop } else { number > stop }) {
        if items.len() >= MAX_LIST {
            return Err(format!("a list of more than {MAX_LIST} elements"));
        }
        items.push(Value::Integer(number));
        let Some(next) = number.checked_add(step) else { break };
        number = next;
    }
    Ok(Value::list(items))
}
