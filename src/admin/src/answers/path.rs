//! Paths of fields in the JSON of a resource: `virtualHosts[web.shop:80].routes[0].route.cluster`.

use std::fmt;

use serde_json::Value;

/// A step of a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum PathStep {
    /// A field of a message, or a key of a map.
    Field(String),
    /// An element of a list: its number, its `name`, or for a virtual host one of its `domains`.
    Element(String),
}

/// The path of a field; empty for the whole resource.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct FieldPath(pub(crate) Vec<PathStep>);

/// A text that is not a path.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum PathError {
    /// A `[` without its `]`.
    #[error("path {0:?}: ']' is missing")]
    Unclosed(String),
    /// Two dots in a row, `[]`, or a text after `]`.
    #[error(
        "path {0:?}: a field name is missing at character {1}; a path has the form virtualHosts[NAME].routes[0].route"
    )]
    Empty(String, usize),
}

impl FieldPath {
    /// Reads a path. Names of fields may be written in snake case.
    pub(crate) fn parse(text: &str) -> Result<Self, PathError> {
        let mut steps = Vec::new();
        let mut rest = text.trim();
        let whole = rest;
        while !rest.is_empty() {
            let at = whole.len() - rest.len();
            let empty = || PathError::Empty(whole.to_owned(), at);
            if let Some(element) = rest.strip_prefix('[') {
                let (element, after) = element.split_once(']').ok_or_else(|| PathError::Unclosed(whole.to_owned()))?;
                let element = element.trim_matches('"');
                if element.is_empty() || !(after.is_empty() || after.starts_with(['.', '['])) {
                    return Err(empty());
                }
                steps.push(PathStep::Element(element.to_owned()));
                rest = after.strip_prefix('.').unwrap_or(after);
                if rest.is_empty() && after == "." {
                    return Err(empty());
                }
                continue;
            }
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (field, after) = rest.split_at(end);
            if field.is_empty() || after == "." {
                return Err(empty());
            }
            steps.push(PathStep::Field(camel_case(field)));
            rest = after.strip_prefix('.').unwrap_or(after);
        }
        Ok(Self(steps))
    }

    /// The value at the path.
    pub(crate) fn get<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(value, |value, step| match step {
            PathStep::Field(name) => value.get(name),
            PathStep::Element(element) => find_element(value, element),
        })
    }

    /// The same path with the names of elements where it has their numbers or domains, as [`difference`](super::difference)
    /// writes them.
    pub(crate) fn canonical(&self, value: &Value) -> Self {
        let mut canonical = Self::default();
        let mut value = Some(value);
        for step in &self.0 {
            let inner = value.and_then(|value| Self(vec![step.clone()]).get(value));
            let step = match (step, value, inner) {
                (PathStep::Element(_), Some(Value::Array(elements)), Some(inner)) => {
                    let at = elements.iter().position(|element| std::ptr::eq(element, inner)).unwrap_or_default();
                    PathStep::Element(element_name(inner, at))
                }
                _ => step.clone(),
            };
            canonical.0.push(step);
            value = inner;
        }
        canonical
    }

    /// The longest part of the path that the value has, with the names that follow it.
    pub(crate) fn known_prefix(&self, value: &Value) -> (Self, Vec<String>) {
        let mut known = Self::default();
        for step in &self.0 {
            let mut longer = known.clone();
            longer.0.push(step.clone());
            if longer.get(value).is_none() {
                break;
            }
            known = longer;
        }
        let names = match known.get(value) {
            Some(Value::Object(fields)) => fields.keys().cloned().collect(),
            Some(Value::Array(elements)) => {
                elements.iter().enumerate().map(|(at, element)| element_name(element, at)).collect()
            }
            _ => Vec::new(),
        };
        (known, names)
    }

    /// Whether one of the paths is the beginning of the other.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(one, other)| one == other)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Field(name) if at == 0 => f.write_str(name)?,
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::Element(element) => write!(f, "[{element}]")?,
            }
        }
        Ok(())
    }
}

/// The element of a list, or the value of a key that contains dots.
fn find_element<'a>(value: &'a Value, element: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields.get(element),
        Value::Array(elements) => {
            let named = elements.iter().find(|value| name(value) == Some(element));
            let has_domain = |value: &&Value| {
                value["domains"].as_array().is_some_and(|domains| domains.iter().any(|domain| domain == element))
            };
            let by_number = || elements.get(element.parse::<usize>().ok()?);
            named.or_else(|| elements.iter().find(has_domain)).or_else(by_number)
        }
        _ => None,
    }
}

/// The name of an element of a list.
pub(crate) fn name(value: &Value) -> Option<&str> {
    value.get("name").and_then(Value::as_str).filter(|name| !name.is_empty() && !name.contains([']', '[']))
}

/// The step to an element: its name, or its number if it has none.
pub(crate) fn element_name(value: &Value, at: usize) -> String {
    name(value).map_or_else(|| at.to_string(), str::to_owned)
}

/// A field name in the form of JSON: `virtual_hosts` is `virtualHosts`. Names that contain other characters are keys of maps.
fn camel_case(name: &str) -> String {
    if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
        return name.to_owned();
    }
    let mut camel = String::with_capacity(name.len());
    let mut upper = false;
    for c in name.chars() {
        match c {
            '_' => upper = !camel.is_empty(),
            c if std::mem::take(&mut upper) => camel.push(c.to_ascii_uppercase()),
            c => camel.push(c),
        }
    }
    camel
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_found_by_name_domain_and_number() {
        let table = json!({"virtualHosts": [
            {"name": "a:80", "domains": ["a", "a.shop"], "routes": [{"route": {"cluster": "x"}}]},
            {"name": "b:80", "routes": [{"name": "one", "match": {"prefix": "/"}}]},
        ], "typedPerFilterConfig": {"istio.stats": 1}});
        let get = |path: &str| FieldPath::parse(path).expect("a path").get(&table).cloned();
        assert_eq!(get("virtualHosts[a:80].routes[0].route.cluster"), Some(json!("x")));
        assert_eq!(get("virtual_hosts[a.shop].routes[0].route.cluster"), Some(json!("x")));
        assert_eq!(get("virtualHosts[1].routes[one].match"), Some(json!({"prefix": "/"})));
        assert_eq!(get("typed_per_filter_config[istio.stats]"), Some(json!(1)));
        assert_eq!(get(""), Some(table.clone()));
        assert_eq!(get("virtualHosts[c]"), None);
        let by_domain = FieldPath::parse("virtualHosts[a.shop].routes[0]").expect("a path");
        assert_eq!(by_domain.canonical(&table).to_string(), "virtualHosts[a:80].routes[0]");
        let path = FieldPath::parse("virtualHosts[b:80].rout").expect("a path");
        let (known, names) = path.known_prefix(&table);
        assert_eq!((known.to_string().as_str(), names), ("virtualHosts[b:80]", vec!["name".into(), "routes".into()]));
    }

    #[test]
    fn malformed_paths_are_named() {
        assert_eq!(FieldPath::parse("a[b"), Err(PathError::Unclosed("a[b".into())));
        for (text, at) in [("a..b", 2), (".a", 0), ("a[]", 1), ("a[b]c", 1), ("a.", 0), ("a[b].", 1)] {
            assert_eq!(FieldPath::parse(text), Err(PathError::Empty(text.into(), at)), "{text}");
        }
    }

    #[test]
    fn paths_are_printed_as_they_are_written() {
        for text in ["", "a", "a.b[c:80].d[0]", "a[0][b]"] {
            assert_eq!(FieldPath::parse(text).expect("a path").to_string(), text);
        }
        let path = |text: &str| FieldPath::parse(text).expect("a path");
        assert!(
            path("a.b").overlaps(&path("a.b.c"))
                && path("a.b.c").overlaps(&path("a.b"))
                && path("").overlaps(&path("x"))
        );
        assert!(!path("a.b").overlaps(&path("a.c")));
    }
}
