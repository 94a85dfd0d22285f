//! Pods as values of templates.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::structure::{FieldKind, Structure};
use sluice_template::{Extent, TemplateObject, Value};

/// A structure of a pod. Unset fields have zero values.
#[derive(Debug)]
struct Record {
    structure: &'static Structure,
    /// Whether it is an unset pointer.
    is_nil: bool,
    /// Fields that are set, by their name in JSON.
    fields: BTreeMap<String, Value>,
    extent: Extent,
}

/// The value of a structure.
pub(crate) fn record(json: &Json, structure: &'static Structure) -> Value {
    of_kind(json, FieldKind::Struct(structure))
}

fn of_kind(json: &Json, kind: FieldKind) -> Value {
    match (kind, json) {
        (_, Json::Null) => zero(kind),
        (FieldKind::Struct(structure) | FieldKind::Pointer(structure), Json::Object(fields)) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), of_kind(value, structure.kind(name))));
            let fields: BTreeMap<String, Value> = fields.collect();
            let mut extent = Extent::of_parts(fields.values());
            extent.bytes += fields.keys().map(String::len).sum::<usize>();
            Value::Object(Arc::new(Record { structure, is_nil: false, fields, extent }))
        }
        (FieldKind::List(structure) | FieldKind::Keyed(structure, _), Json::Array(items)) => {
            Value::list(items.iter().map(|item| of_kind(item, FieldKind::Struct(structure))).collect())
        }
        (FieldKind::TextMap | FieldKind::Quantities, Json::Object(fields)) => {
            Value::text_dict(fields.iter().map(|(key, value)| (key.clone(), text(value))))
        }
        (_, Json::Number(number)) => match number.as_i64() {
            Some(number) => Value::Integer(number),
            None => Value::Float(number.as_f64().unwrap_or_default()),
        },
        (_, json) => Value::from_json(json),
    }
}

fn text(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The value of an unset field.
fn zero(kind: FieldKind) -> Value {
    match kind {
        FieldKind::Text | FieldKind::Quantity => Value::text(""),
        FieldKind::Integer | FieldKind::IntOrString => Value::Integer(0),
        FieldKind::Bool => Value::Bool(false),
        FieldKind::OptionalText | FieldKind::OptionalInteger | FieldKind::OptionalBool | FieldKind::Any => Value::Nil,
        FieldKind::Texts | FieldKind::TextSet | FieldKind::List(_) | FieldKind::Keyed(..) => Value::list(Vec::new()),
        FieldKind::TextMap | FieldKind::Quantities => Value::text_dict([]),
        FieldKind::Struct(structure) => {
            let (fields, extent) = Default::default();
            Value::Object(Arc::new(Record { structure, is_nil: false, fields, extent }))
        }
        FieldKind::Pointer(structure) => {
            let (fields, extent) = Default::default();
            Value::Object(Arc::new(Record { structure, is_nil: true, fields, extent }))
        }
    }
}

impl TemplateObject for Record {
    fn type_name(&self) -> String {
        if self.is_nil { format!("*{}", self.structure.name) } else { self.structure.name.to_owned() }
    }

    /// Names in Go differ from those in JSON by case only.
    fn field(&self, name: &str) -> Result<Option<Value>, String> {
        if self.is_nil {
            return Err(format!("nil pointer evaluating *{}.{name}", self.structure.name));
        }
        if !name.starts_with(|c: char| c.is_ascii_uppercase()) {
            return Ok(None);
        }
        let known = self.structure.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        Ok(match known {
            Some((json_name, kind)) => Some(self.fields.get(*json_name).cloned().unwrap_or_else(|| zero(*kind))),
            None => {
                self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
            }
        })
    }

    fn is_nil(&self) -> bool {
        self.is_nil
    }

    fn extent(&self) -> Extent {
        self.extent
    }

    fn json(&self) -> Json {
        if self.is_nil {
            return Json::Null;
        }
        let fields: Map<String, Json> =
            self.fields.iter().map(|(name, value)| (name.clone(), value.to_json())).collect();
        Json::Object(fields)
    }
}
