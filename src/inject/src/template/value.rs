//! Values of templates, with the distinctions of Go's types that templates can observe.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map, Number, Value as Json};

/// A value of a template.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// The result of a look-up of a missing key in a map: "no value".
    Missing,
    /// An explicit null.
    Nil,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
    List(Arc<List>),
    Dict(Arc<Dict>),
    Object(Arc<dyn TemplateObject>),
}

/// How large a value is. Values share parts, so the text of a value can be much longer than the memory that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    /// Nesting.
    pub(crate) depth: usize,
    /// Approximate number of bytes of its text.
    pub(crate) bytes: usize,
}

/// What an element of a list or map takes besides its value.
const ELEMENT_BYTES: usize = 8;

impl Extent {
    /// The extent of a value with these parts.
    pub(crate) fn of_parts<'v>(parts: impl Iterator<Item = &'v Value>) -> Self {
        let mut out = Self { depth: 1, bytes: ELEMENT_BYTES };
        for part in parts.map(Value::extent) {
            out.depth = out.depth.max(part.depth + 1);
            out.bytes = out.bytes.saturating_add(part.bytes + ELEMENT_BYTES);
        }
        out
    }
}

/// A list.
#[derive(Debug)]
pub(crate) struct List {
    items: Vec<Value>,
    extent: Extent,
}

impl Deref for List {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

/// A map with text keys.
#[derive(Debug, Default)]
pub(crate) struct Dict {
    /// Whether all values are texts: the value of a missing key is then the empty text.
    pub(crate) of_texts: bool,
    pub(crate) entries: BTreeMap<String, Value>,
    extent: Extent,
}

/// A structure: its fields have fixed names, and zero values where they are unset.
pub(crate) trait TemplateObject: fmt::Debug + Send + Sync {
    /// The name of the type, as Go prints it in errors.
    fn type_name(&self) -> String;
    /// The value of a field, or the result of a method without arguments. `None` if the type has neither.
    fn field(&self, name: &str) -> Result<Option<Value>, String>;
    /// Whether it is a null pointer.
    fn is_nil(&self) -> bool {
        false
    }
    /// The number, if it is a named integer.
    fn integer(&self) -> Option<i64> {
        None
    }
    /// How large it is.
    fn extent(&self) -> Extent;
    /// The JSON form.
    fn json(&self) -> Json;
    /// How it is printed.
    fn text(&self) -> String {
        self.json().to_string()
    }
    /// The protobuf message, if it is one.
    fn message(&self) -> Option<&prost_reflect::DynamicMessage> {
        None
    }
}

/// Settings that functions can read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    /// The environment of the injector.
    pub(crate) environment: &'a BTreeMap<String, String>,
}

/// A function of templates. The error is a lower-case fragment.
pub(crate) type Function = fn(&Scope<'_>, &[Value]) -> Result<Value, String>;

/// Looks up a function by name.
pub(crate) type FindFunction = fn(&str) -> Option<Function>;

impl Value {
    pub(crate) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn list(items: Vec<Self>) -> Self {
        let extent = Extent::of_parts(items.iter());
        Self::List(Arc::new(List { items, extent }))
    }

    pub(crate) fn dict(entries: BTreeMap<String, Self>) -> Self {
        Self::dict_of(false, entries)
    }

    /// A map; `of_texts` says whether all its values are texts.
    pub(crate) fn dict_of(of_texts: bool, entries: BTreeMap<String, Self>) -> Self {
        let mut extent = Extent::of_parts(entries.values());
        extent.bytes = extent.bytes.saturating_add(entries.keys().map(String::len).sum());
        Self::Dict(Arc::new(Dict { of_texts, entries, extent }))
    }

    /// A map whose values are all texts.
    pub(crate) fn text_dict(entries: impl IntoIterator<Item = (String, String)>) -> Self {
        Self::dict_of(true, entries.into_iter().map(|(key, text)| (key, Self::text(text))).collect())
    }

    /// The value that Go's decoder of JSON makes: all numbers are floating-point numbers.
    pub(crate) fn from_json(json: &Json) -> Self {
        match json {
            Json::Null => Self::Nil,
            Json::Bool(flag) => Self::Bool(*flag),
            Json::Number(number) => Self::Float(number.as_f64().unwrap_or_default()),
            Json::String(text) => Self::text(text.as_str()),
            Json::Array(items) => Self::list(items.iter().map(Self::from_json).collect()),
            Json::Object(fields) => {
                Self::dict(fields.iter().map(|(key, value)| (key.clone(), Self::from_json(value))).collect())
            }
        }
    }

    pub(crate) fn to_json(&self) -> Json {
        match self {
            Self::Missing | Self::Nil => Json::Null,
            Self::Bool(flag) => Json::Bool(*flag),
            Self::Integer(number) => Json::from(*number),
            Self::Float(number) => json_number(*number),
            Self::Text(text) => Json::String(text.to_string()),
            Self::List(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Self::Dict(dict) => {
                let fields: Map<String, Json> =
                    dict.entries.iter().map(|(key, value)| (key.clone(), value.to_json())).collect();
                Json::Object(fields)
            }
            Self::Object(object) => object.json(),
        }
    }

    /// Whether a condition with this value holds. An empty value does not.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Missing | Self::Nil => false,
            Self::Bool(flag) => *flag,
            Self::Integer(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            Self::Object(object) => object.integer().map_or_else(|| !object.is_nil(), |number| number != 0),
        }
    }

    /// Whether it is null or missing.
    pub(crate) fn is_nil(&self) -> bool {
        matches!(self, Self::Missing | Self::Nil)
    }

    /// The name of the type in errors.
    pub(crate) fn type_name(&self) -> String {
        match self {
            Self::Missing | Self::Nil => "nil".to_owned(),
            Self::Bool(_) => "bool".to_owned(),
            Self::Integer(_) => "int64".to_owned(),
            Self::Float(_) => "float64".to_owned(),
            Self::Text(_) => "string".to_owned(),
            Self::List(_) => "[]interface {}".to_owned(),
            Self::Dict(dict) if dict.of_texts => "map[string]string".to_owned(),
            Self::Dict(_) => "map[string]interface {}".to_owned(),
            Self::Object(object) => object.type_name(),
        }
    }

    /// The value of a key of a map: a zero value if it is missing.
    pub(crate) fn entry(&self, key: &str) -> Option<Self> {
        let Self::Dict(dict) = self else { return None };
        Some(match dict.entries.get(key) {
            Some(value) => value.clone(),
            None if dict.of_texts => Self::text(""),
            None => Self::Missing,
        })
    }

    /// How large the value is.
    pub(crate) fn extent(&self) -> Extent {
        match self {
            Self::Text(text) => Extent { depth: 0, bytes: text.len() },
            Self::List(list) => list.extent,
            Self::Dict(dict) => dict.extent,
            Self::Object(object) => object.extent(),
            _ => Extent { depth: 0, bytes: ELEMENT_BYTES },
        }
    }
}

/// Whole numbers become integers, as Go prints them.
fn json_number(number: f64) -> Json {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "whole numbers of this size are exact")]
    if number.fract() == 0.0 && number.abs() <= EXACT {
        return Json::from(number as i64);
    }
    Number::from_f64(number).map_or(Json::Null, Json::Number)
}

/// A structure with named fields that are all set.
#[derive(Debug)]
pub(crate) struct NamedFields {
    pub(crate) type_name: &'static str,
    pub(crate) fields: BTreeMap<&'static str, Value>,
}

impl TemplateObject for NamedFields {
    fn type_name(&self) -> String {
        self.type_name.to_owned()
    }

    fn field(&self, name: &str) -> Result<Option<Value>, String> {
        Ok(self.fields.get(name).cloned())
    }

    fn extent(&self) -> Extent {
        Extent::of_parts(self.fields.values())
    }

    fn json(&self) -> Json {
        Json::Object(self.fields.iter().map(|(name, value)| ((*name).to_owned(), value.to_json())).collect())
    }
}
