//! Validates values against the JSON Schema of a chart.
//!
//! Only the keywords that the charts use are known. A schema with another keyword is an error, so that none is ignored.

use serde_json::Value as Json;

/// Keywords without an effect on validation.
const ANNOTATIONS: [&str; 5] = ["$schema", "title", "description", "definitions", "default"];

/// What is wrong with values: a line for each finding, with the path of the value.
pub(crate) fn validate(schema: &Json, values: &Json) -> Vec<String> {
    let mut findings = Vec::new();
    Validation { root: schema, findings: &mut findings }.check(schema, values, "");
    findings
}

struct Validation<'s, 'f> {
    root: &'s Json,
    findings: &'f mut Vec<String>,
}

impl<'s> Validation<'s, '_> {
    fn report(&mut self, path: &str, reason: &str) {
        let path = if path.is_empty() { "values" } else { path };
        self.findings.push(format!("{path}: {reason}"));
    }

    fn check(&mut self, schema: &'s Json, value: &Json, path: &str) {
        let keywords = match schema {
            Json::Bool(true) => return,
            Json::Bool(false) => return self.report(path, "this value is not known"),
            Json::Object(keywords) => keywords,
            _ => return self.report(path, "the schema is malformed"),
        };
        for (keyword, argument) in keywords {
            match keyword.as_str() {
                "$ref" => {
                    let pointer = argument.as_str().and_then(|text| text.strip_prefix('#'));
                    match pointer.and_then(|pointer| self.root.pointer(pointer)) {
                        Some(schema) => self.check(schema, value, path),
                        None => self.report(path, &format!("the schema refers to {argument}, which does not exist")),
                    }
                }
                "type" => self.check_type(argument, value, path),
                "enum" => {
                    if !argument.as_array().is_some_and(|permitted| permitted.contains(value)) {
                        self.report(path, &format!("{value} is not one of {argument}"));
                    }
                }
                "required" => {
                    for name in argument.as_array().into_iter().flatten().filter_map(Json::as_str) {
                        if value.as_object().is_some_and(|fields| !fields.contains_key(name)) {
                            self.report(&child(path, name), "this value is required");
                        }
                    }
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(argument, item, &format!("{path}[{index}]"));
                    }
                }
                "properties" => {
                    for (name, schema) in argument.as_object().into_iter().flatten() {
                        if let Some(field) = value.get(name) {
                            self.check(schema, field, &child(path, name));
                        }
                    }
                }
                "additionalProperties" => {
                    let known = keywords.get("properties");
                    for (name, field) in value.as_object().into_iter().flatten() {
                        if known.is_none_or(|known| known.get(name).is_none()) {
                            self.check(argument, field, &child(path, name));
                        }
                    }
                }
                other if ANNOTATIONS.contains(&other) => {}
                other => self.report(path, &format!("the schema has the unsupported keyword {other}")),
            }
        }
    }

    fn check_type(&mut self, types: &Json, value: &Json, path: &str) {
        let own = match value {
            Json::Null => "null",
            Json::Bool(_) => "boolean",
            Json::Number(_) => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        };
        let is_whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
        let is_own = |name: &Json| name == own || (name == "integer" && is_whole);
        let is_permitted = types.as_array().map_or_else(|| is_own(types), |types| types.iter().any(is_own));
        if !is_permitted {
            let expected = types.to_string().replace(['"', '[', ']'], "").replace(',', " or ");
            self.report(path, &format!("{own} where {expected} is expected"));
        }
    }
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn findings_name_the_path() {
        let schema = json!({
            "type": "object",
            "properties": {
                "count": {"type": ["integer", "null"]},
                "mode": {"enum": ["a", "b"]},
                "list": {"type": "array", "items": {"$ref": "#/definitions/entry"}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "additionalProperties": false,
            "definitions": {"entry": {"type": "object", "properties": {"port": {"type": "number"}}, "required": ["port"]}},
        });
        let valid = json!({"count": 1.0, "mode": "a", "list": [{"port": 1}], "labels": {"x": "y"}});
        assert_eq!(validate(&schema, &valid), Vec::<String>::new());
        let invalid = json!({"count": 1.5, "mode": "c", "list": [{}, {"port": "x"}], "labels": {"x": 1}, "coutn": 1});
        let mut findings = validate(&schema, &invalid);
        findings.sort();
        let expected = [
            "count: number where integer or null is expected",
            "coutn: this value is not known",
            "labels.x: number where string is expected",
            "list[0].port: this value is required",
            "list[1].port: string where number is expected",
            "mode: \"c\" is not one of [\"a\",\"b\"]",
        ];
        assert_eq!(findings, expected);
    }

    #[test]
    fn unsupported_keyword_is_reported() {
        let findings = validate(&json!({"pattern": "x"}), &json!("y"));
        assert_eq!(findings, ["values: the schema has the unsupported keyword pattern"]);
    }
}
