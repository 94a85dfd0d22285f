//! Functions that helm adds to those of Go, and those of sprig that only charts use.

use serde_json::{Value as Json, json};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_template::functions::arguments::{Called, Table, exactly, text};
use sluice_template::functions::{self, in_table, to_yaml};
use sluice_template::{Function, Scope, Value};

const FUNCTIONS: Table = &[
    ("fromJson", |_, args| parsed(args, Json::is_object, parse_json)),
    ("fromJsonArray", |_, args| parsed(args, Json::is_array, parse_json)),
    ("fromYaml", |_, args| parsed(args, Json::is_object, parse_yaml)),
    ("fromYamlArray", |_, args| parsed(args, Json::is_array, parse_yaml)),
    ("lookup", lookup),
    ("required", required),
    ("sha256sum", |_, args| exactly::<1>(args).and_then(|[source]| Ok(Value::text(sha256(text(source)?))))),
    ("toYaml", |_, args| {
        exactly::<1>(args).and_then(|[value]| Ok(Value::text(to_yaml(&value.to_json())?.trim_end_matches('\n'))))
    }),
];

/// Looks up a function.
pub(super) fn find(name: &str) -> Option<Function> {
    match name {
        "include" => Some(Function::Include),
        "tpl" => Some(Function::Tpl),
        name => in_table(FUNCTIONS, name).map(Function::Native).or_else(|| functions::find(name)),
    }
}

/// The SHA-256 digest of a text, in hexadecimal digits.
fn sha256(source: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, source.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_json(source: &str) -> Result<Json, String> {
    serde_json::from_str(source).map_err(|error| error.to_string())
}

fn parse_yaml(source: &str) -> Result<Json, String> {
    parse_value(source, &Limits { allows_duplicate_keys: true, ..Limits::default() }).map_err(|error| error.to_string())
}

/// The value of a text. As in helm, an error is a value: a map with the key `Error`, or a list with the reason.
fn parsed(args: &[Value], is_expected: fn(&Json) -> bool, parse: fn(&str) -> Result<Json, String>) -> Called {
    let [source] = exactly(args)?;
    let is_list = is_expected(&json!([]));
    let value = match parse(text(source)?) {
        Ok(Json::Null) if is_list => json!([]),
        Ok(Json::Null) => json!({}),
        Ok(value) if is_expected(&value) => value,
        Ok(_) if is_list => json!(["the text is not a list"]),
        Ok(_) => json!({"Error": "the text is not a map"}),
        Err(reason) if is_list => json!([reason]),
        Err(reason) => json!({"Error": reason}),
    };
    Ok(Value::from_json(&value))
}

/// `lookup VERSION KIND NAMESPACE NAME`: an object of the cluster, or an empty map.
fn lookup(scope: &Scope<'_>, args: &[Value]) -> Called {
    let [version, kind, namespace, name] = exactly(args)?;
    let found = scope.lookup.map_or(Ok(Json::Null), |lookup| {
        Ok::<_, String>(lookup.get(text(version)?, text(kind)?, text(namespace)?, text(name)?))
    })?;
    Ok(Value::from_json(if found.is_null() { &EMPTY } else { &found }))
}

/// An empty map.
static EMPTY: std::sync::LazyLock<Json> = std::sync::LazyLock::new(|| json!({}));

/// `required MESSAGE VALUE`
fn required(_: &Scope<'_>, args: &[Value]) -> Called {
    let [message, value] = exactly(args)?;
    let is_missing = value.is_nil() || matches!(value, Value::Text(text) if text.is_empty());
    if is_missing { Err(text(message)?.to_owned()) } else { Ok(value.clone()) }
}
