//! Access to the arguments of functions.

use std::sync::Arc;

use crate::text::show;
use crate::value::{Dict, Value};

/// A table of functions.
pub type Table = &'static [(&'static str, crate::value::NativeFunction)];

/// What a function returns.
pub type Called = Result<Value, String>;

/// Exactly `N` arguments.
///
/// # Errors
/// There are more or fewer.
pub fn exactly<const N: usize>(args: &[Value]) -> Result<&[Value; N], String> {
    args.try_into().map_err(|_| format!("wrong number of args: want {N} got {}", args.len()))
}

/// At least one argument.
///
/// # Errors
/// There is none.
pub fn at_least_one(args: &[Value]) -> Result<(&Value, &[Value]), String> {
    args.split_first().ok_or_else(|| "wrong number of args: want at least 1 got 0".to_owned())
}

/// A text.
///
/// # Errors
/// It is another value.
pub fn text(value: &Value) -> Result<&str, String> {
    match value {
        Value::Text(text) => Ok(text),
        Value::Missing | Value::Nil => Err("invalid value; expected string".to_owned()),
        other => Err(format!("wrong type for value; expected string; got {}", other.type_name())),
    }
}

/// An integer.
///
/// # Errors
/// It is another value.
pub fn integer(value: &Value) -> Result<i64, String> {
    match value {
        Value::Integer(number) => Ok(*number),
        Value::Object(object) => object.integer().ok_or_else(|| expected("int", value)),
        other => Err(expected("int", other)),
    }
}

/// A list. Null is an empty one.
///
/// # Errors
/// It is another value.
pub fn list(value: &Value) -> Result<&[Value], String> {
    match value {
        Value::List(items) => Ok(&items[..]),
        Value::Missing | Value::Nil => Ok(&[]),
        other => Err(expected("list", other)),
    }
}

/// A map. Null is an empty one.
///
/// # Errors
/// It is another value.
pub fn dict(value: &Value) -> Result<Arc<Dict>, String> {
    match value {
        Value::Dict(dict) => Ok(dict.clone()),
        Value::Missing | Value::Nil => Ok(Arc::default()),
        other => Err(expected("map", other)),
    }
}

fn expected(kind: &str, value: &Value) -> String {
    format!("wrong type for value; expected {kind}; got {}", value.type_name())
}

/// A lenient conversion to a whole number, as the library `cast` does it: 0 for what is not a number.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "truncation is the conversion's meaning")]
pub fn to_integer(value: &Value) -> i64 {
    match value {
        Value::Integer(number) => *number,
        Value::Float(number) => *number as i64,
        Value::Bool(flag) => i64::from(*flag),
        Value::Text(text) => text.trim().parse().unwrap_or_default(),
        Value::Object(object) => object.integer().unwrap_or_default(),
        _ => 0,
    }
}

/// A lenient conversion to a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "precision loss is the conversion's meaning")]
#[must_use]
pub fn to_float(value: &Value) -> f64 {
    match value {
        Value::Float(number) => *number,
        Value::Text(text) => text.trim().parse().unwrap_or_default(),
        other => to_integer(other) as f64,
    }
}

/// A number of elements or characters.
#[must_use]
pub fn to_size(value: &Value) -> usize {
    usize::try_from(to_integer(value)).unwrap_or_default()
}

/// The texts of a list without its nulls, or the text of a single value.
#[must_use]
pub fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::List(items) => items.iter().filter(|item| !item.is_nil()).map(show).collect(),
        Value::Missing | Value::Nil => Vec::new(),
        other => vec![show(other)],
    }
}

/// What makes two values equal.
#[must_use]
pub fn content(value: &Value) -> (String, String) {
    (value.type_name(), value.to_json().to_string())
}

/// Whether two values have the same content.
#[must_use]
pub fn equal(left: &Value, right: &Value) -> bool {
    left.extent().bytes == right.extent().bytes && content(left) == content(right)
}

/// The texts of a variadic list of names.
///
/// # Errors
/// An argument is not a text.
pub fn names(args: &[Value]) -> Result<Vec<&str>, String> {
    args.iter().map(text).collect()
}
