//! The functions that Go's templates always have.

use std::cmp::Ordering;

use crate::text::{show, sprintf};
use crate::value::{Scope, Value};

use super::arguments::{Called, Table, at_least_one, exactly, integer, text};

pub(super) const FUNCTIONS: Table = &[
    ("eq", eq),
    ("ge", |_, args| compare(args, |order| order != Ordering::Less)),
    ("gt", |_, args| compare(args, |order| order == Ordering::Greater)),
    ("html", |_, args| Ok(Value::text(escape_html(&joined(args))))),
    ("index", index),
    ("js", |_, args| Ok(Value::text(escape_js(&joined(args))))),
    ("le", |_, args| compare(args, |order| order != Ordering::Greater)),
    ("len", len),
    ("lt", |_, args| compare(args, |order| order == Ordering::Less)),
    ("ne", ne),
    ("not", |_, args| exactly::<1>(args).map(|[value]| Value::Bool(!value.is_true()))),
    ("print", |_, args| Ok(Value::text(sprint(args)))),
    ("printf", printf),
    ("println", println),
    ("slice", slice),
    ("urlquery", |_, args| Ok(Value::text(escape_query(&joined(args))))),
];

/// Kinds of values that can be compared.
#[derive(Clone, Copy, PartialEq)]
enum BasicKind {
    Bool,
    Integer,
    Float,
    Text,
}

fn kind(value: &Value) -> Option<BasicKind> {
    match value {
        Value::Bool(_) => Some(BasicKind::Bool),
        Value::Integer(_) => Some(BasicKind::Integer),
        Value::Float(_) => Some(BasicKind::Float),
        Value::Text(_) => Some(BasicKind::Text),
        Value::Object(object) if object.integer().is_some() => Some(BasicKind::Integer),
        _ => None,
    }
}

fn equal(left: &Value, right: &Value) -> Result<bool, String> {
    if left.is_nil() || right.is_nil() {
        return Ok(left.is_nil() && right.is_nil());
    }
    match (kind(left), kind(right)) {
        (None, None) => match (left, right) {
            (Value::Object(left), Value::Object(right)) if left.is_nil() || right.is_nil() => {
                Ok(left.is_nil() == right.is_nil())
            }
            _ => Err(format!("non-comparable types {left}: {}, {right}: {}", left.type_name(), right.type_name())),
        },
        (left_kind, right_kind) if left_kind != right_kind => Err("incompatible types for comparison".to_owned()),
        _ => Ok(order(left, right)? == Some(Ordering::Equal)),
    }
}

fn order(left: &Value, right: &Value) -> Result<Option<Ordering>, String> {
    Ok(match (left, right) {
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        (Value::Float(left), Value::Float(right)) => left.partial_cmp(right),
        (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
        (left, right) => Some(integer(left)?.cmp(&integer(right)?)),
    })
}

fn eq(_: &Scope<'_>, args: &[Value]) -> Called {
    let (first, others) = at_least_one(args)?;
    if others.is_empty() {
        return Err("missing argument for comparison".to_owned());
    }
    for other in others {
        if equal(first, other)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn ne(_: &Scope<'_>, args: &[Value]) -> Called {
    let [left, right] = exactly(args)?;
    Ok(Value::Bool(!equal(left, right)?))
}

fn compare(args: &[Value], holds: fn(Ordering) -> bool) -> Called {
    let [left, right] = exactly(args)?;
    match (kind(left), kind(right)) {
        (Some(BasicKind::Bool) | None, _) | (_, Some(BasicKind::Bool) | None) => {
            Err("invalid type for comparison".to_owned())
        }
        (left_kind, right_kind) if left_kind != right_kind => Err("incompatible types for comparison".to_owned()),
        _ => Ok(Value::Bool(order(left, right)?.is_some_and(holds))),
    }
}

fn index(_: &Scope<'_>, args: &[Value]) -> Called {
    let (first, indexes) = at_least_one(args)?;
    let mut value = first.clone();
    for key in indexes {
        value = match &value {
            Value::Missing | Value::Nil => return Err("index of untyped nil".to_owned()),
            Value::Dict(_) => value.entry(text(key)?).unwrap_or(Value::Missing),
            Value::List(items) => at(items.len(), key).map(|index| items[index].clone())?,
            Value::Text(text) => at(text.len(), key).map(|index| Value::Integer(i64::from(text.as_bytes()[index])))?,
            other => return Err(format!("can't index item of type {}", other.type_name())),
        };
    }
    Ok(value)
}

fn at(length: usize, key: &Value) -> Result<usize, String> {
    let number = match key {
        Value::Integer(number) => *number,
        Value::Missing | Value::Nil => return Err("cannot index slice/array with nil".to_owned()),
        other => return Err(format!("cannot index slice/array with type {}", other.type_name())),
    };
    let index = usize::try_from(number).ok().filter(|index| *index < length);
    index.ok_or_else(|| format!("index out of range: {number}"))
}

fn len(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value] = exactly(args)?;
    let length = match value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.len(),
        Value::Dict(dict) => dict.entries.len(),
        Value::Missing | Value::Nil => return Err("len of nil pointer".to_owned()),
        other => return Err(format!("len of type {}", other.type_name())),
    };
    Ok(Value::Integer(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn slice(_: &Scope<'_>, args: &[Value]) -> Called {
    let (value, bounds) = at_least_one(args)?;
    let length = match value {
        Value::Text(text) => text.len(),
        Value::List(items) => items.len(),
        other => return Err(format!("can't slice item of type {}", other.type_name())),
    };
    let bound = |index: usize, default: usize| match bounds.get(index) {
        None => Ok(default),
        Some(bound) => at(length + 1, bound),
    };
    let (start, end) = (bound(0, 0)?, bound(1, length)?);
    if start > end {
        return Err(format!("invalid slice index: {start} > {end}"));
    }
    match value {
        Value::List(items) => Ok(Value::list(items[start..end].to_vec())),
        Value::Text(text) => {
            text.get(start..end).map(Value::text).ok_or_else(|| "the slice splits a character".to_owned())
        }
        _ => Ok(Value::Nil),
    }
}

/// `fmt.Sprint`: spaces only between operands that are both not texts.
fn sprint(args: &[Value]) -> String {
    let mut out = String::new();
    let mut after_text = true;
    for (index, value) in args.iter().enumerate() {
        let is_text = matches!(value, Value::Text(_));
        if index > 0 && !is_text && !after_text {
            out.push(' ');
        }
        out.push_str(&show(value));
        after_text = is_text;
    }
    out
}

fn joined(args: &[Value]) -> String {
    sprint(args)
}

fn printf(_: &Scope<'_>, args: &[Value]) -> Called {
    let (format, values) = at_least_one(args)?;
    Ok(Value::text(sprintf(text(format)?, values)))
}

fn println(_: &Scope<'_>, args: &[Value]) -> Called {
    let parts: Vec<String> = args.iter().map(show).collect();
    Ok(Value::text(parts.join(" ") + "\n"))
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\0' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

fn escape_js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '\'' | '"' => out.extend(['\\', character]),
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", u32::from(character))),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            other => out.push(other),
        }
    }
    out
}

fn escape_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}
