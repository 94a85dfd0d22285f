//! Functions of JSON, base64 and paths.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use crate::value::{Scope, Value};

use super::arguments::{Called, Table, exactly, text};

pub(super) const FUNCTIONS: Table = &[
    ("b64dec", b64dec),
    ("b64enc", |_, args| exactly::<1>(args).and_then(|[value]| Ok(Value::text(STANDARD.encode(text(value)?))))),
    ("base", |_, args| exactly::<1>(args).and_then(|[path]| Ok(Value::text(base(text(path)?))))),
    ("dir", |_, args| exactly::<1>(args).and_then(|[path]| Ok(Value::text(dir(text(path)?))))),
    ("fromJson", |_, args| exactly::<1>(args).and_then(|[value]| Ok(parse_json(text(value)?).unwrap_or(Value::Nil)))),
    ("mustFromJson", |_, args| exactly::<1>(args).and_then(|[value]| parse_json(text(value)?))),
    ("mustToJson", to_json),
    ("toJson", to_json),
    ("toPrettyJson", to_pretty_json),
    ("toRawJson", |_, args| exactly::<1>(args).map(|[value]| Value::text(value.to_json().to_string()))),
];

/// The value of a JSON text.
///
/// # Errors
/// The text is not JSON.
pub fn parse_json(source: &str) -> Called {
    let value: Json = serde_json::from_str(source).map_err(|error| error.to_string())?;
    Ok(Value::from_json(&value))
}

fn to_json(_: &Scope<'_>, args: &[Value]) -> Called {
    exactly::<1>(args).map(|[value]| Value::text(escaped(value.to_json().to_string())))
}

/// Go escapes the characters of HTML in JSON, and the line separators of JavaScript.
fn escaped(json: String) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 64);
    for character in json.chars() {
        match character {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            other => out.push(other),
        }
    }
    out
}

fn to_pretty_json(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value] = exactly(args)?;
    let json = serde_json::to_string_pretty(&value.to_json()).map_err(|error| error.to_string())?;
    Ok(Value::text(escaped(json)))
}

fn b64dec(_: &Scope<'_>, args: &[Value]) -> Called {
    let [value] = exactly(args)?;
    let decoded = STANDARD.decode(text(value)?).map_err(|error| error.to_string());
    // As in sprig, an error is the result.
    Ok(Value::text(decoded.map_or_else(|error| error, |bytes| String::from_utf8_lossy(&bytes).into_owned())))
}

fn base(path: &str) -> &str {
    let trimmed = path.trim_end_matches('/');
    match trimmed.rsplit('/').next() {
        Some(last) if !last.is_empty() => last,
        _ if path.is_empty() => ".",
        _ => "/",
    }
}

fn dir(path: &str) -> &str {
    match path.rsplit_once('/') {
        None => ".",
        Some((directory, _)) => match directory.trim_end_matches('/') {
            "" => "/",
            directory => directory,
        },
    }
}
