//! Values of templates, with the distinctions of Go's types that templates can observe.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Map, Number, Value as Json};

use super::limits::ExecutionLimits;

/// A value of a template.
#[derive(Clone, Debug)]
pub enum Value {
    /// The result of a look-up of a missing key in a map: "no value".
    Missing,
    /// An explicit null.
    Nil,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Text(Arc<str>),
    /// A list.
    List(Arc<List>),
    /// A map.
    Dict(Arc<Dict>),
    /// A structure or a named type.
    Object(Arc<dyn TemplateObject>),
}

/// How large a value is. Values share parts, so the text of a value can be much longer than the memory that it takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// Nesting.
    pub depth: usize,
    /// Approximate number of bytes of its text.
    pub bytes: usize,
}

/// What an element of a list or map takes besides its value.
const ELEMENT_BYTES: usize = 8;

impl Extent {
    /// The extent of a value with these parts.
    #[must_use]
    pub fn of_parts<'v>(parts: impl Iterator<Item = &'v Value>) -> Self {
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
pub struct List {
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
pub struct Dict {
    /// Whether all values are texts: the value of a missing key is then the empty text.
    pub of_texts: bool,
    /// The values by key.
    pub entries: BTreeMap<String, Value>,
    extent: Extent,
}

/// A structure: its fields have fixed names, and zero values where they are unset.
pub trait TemplateObject: fmt::Debug + Send + Sync {
    /// The name of the type, as Go prints it in errors.
    fn type_name(&self) -> String;
    /// The value of a field, or the result of a method without arguments. `None` if the type has neither.
    ///
    /// # Errors
    /// The field of a null pointer is read.
    fn field(&self, name: &str) -> Result<Option<Value>, String>;
    /// The result of a method with arguments. `None` if the type has no such method.
    ///
    /// # Errors
    /// The method fails, or has other parameters.
    fn call(&self, name: &str, arguments: &[Value]) -> Result<Option<Value>, String> {
        let _ = (name, arguments);
        Ok(None)
    }
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
    /// Whether it is a pointer to a structure.
    fn is_pointer(&self) -> bool {
        false
    }
    /// What functions of the program read it as.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// What functions can read besides their arguments, and the limits of an execution.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The environment variables.
    pub environment: &'a BTreeMap<String, String>,
    /// The objects of a cluster. Without it, there are none.
    pub lookup: Option<&'a dyn Lookup>,
    /// The value of a missing key.
    pub missing_keys: MissingKeys,
    /// The limits.
    pub limits: ExecutionLimits,
}

impl<'a> Scope<'a> {
    /// A scope with environment variables, without a cluster, and with Go's default for missing keys.
    #[must_use]
    pub fn new(environment: &'a BTreeMap<String, String>) -> Self {
        Self { environment, lookup: None, missing_keys: MissingKeys::default(), limits: ExecutionLimits::default() }
    }
}

/// The value of a missing key in a map: Go's option `missingkey`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum MissingKeys {
    /// No value. Its fields have no value either.
    #[default]
    NoValue,
    /// Null. Its fields are an error.
    Null,
}

/// The objects of a cluster.
pub trait Lookup: fmt::Debug {
    /// An object, or a list of objects if `name` is empty. Null if there is none.
    fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Json;
}

/// A function of templates. The error is a lower-case fragment.
pub type NativeFunction = fn(&Scope<'_>, &[Value]) -> Result<Value, String>;

/// What the name of a function stands for.
#[derive(Clone, Copy, Debug)]
pub enum Function {
    /// A function of its arguments.
    Native(NativeFunction),
    /// `include NAME DATA`: the text of a defined template.
    Include,
    /// `tpl TEMPLATE DATA`: the text of a template that is an argument.
    Tpl,
}

/// Looks up a function by name.
pub type FindFunction = fn(&str) -> Option<Function>;

impl Value {
    /// A text.
    #[must_use]
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    /// A list.
    #[must_use]
    pub fn list(items: Vec<Self>) -> Self {
        let extent = Extent::of_parts(items.iter());
        Self::List(Arc::new(List { items, extent }))
    }

    /// A map.
    #[must_use]
    pub fn dict(entries: BTreeMap<String, Self>) -> Self {
        Self::dict_of(false, entries)
    }

    /// A map; `of_texts` says whether all its values are texts.
    #[must_use]
    pub fn dict_of(of_texts: bool, entries: BTreeMap<String, Self>) -> Self {
        let mut extent = Extent::of_parts(entries.values());
        extent.bytes = extent.bytes.saturating_add(entries.keys().map(String::len).sum());
        Self::Dict(Arc::new(Dict { of_texts, entries, extent }))
    }

    /// A map whose values are all texts.
    #[must_use]
    pub fn text_dict(entries: impl IntoIterator<Item = (String, String)>) -> Self {
        Self::dict_of(true, entries.into_iter().map(|(key, text)| (key, Self::text(text))).collect())
    }

    /// The value that Go's decoder of JSON makes: all numbers are floating-point numbers.
    #[must_use]
    pub fn from_json(json: &Json) -> Self {
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

    /// The JSON form. Whole numbers are integers.
    #[must_use]
    pub fn to_json(&self) -> Json {
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
    #[must_use]
    pub fn is_true(&self) -> bool {
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
    #[must_use]
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Missing | Self::Nil)
    }

    /// The name of the type in errors.
    #[must_use]
    pub fn type_name(&self) -> String {
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
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<Self> {
        let Self::Dict(dict) = self else { return None };
        Some(match dict.entries.get(key) {
            Some(value) => value.clone(),
            None if dict.of_texts => Self::text(""),
            None => Self::Missing,
        })
    }

    /// How large the value is.
    #[must_use]
    pub fn extent(&self) -> Extent {
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
pub struct NamedFields {
    /// The name of the type, as Go prints it in errors.
    pub type_name: &'static str,
    /// The values of the fields.
    pub fields: BTreeMap<&'static str, Value>,
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
