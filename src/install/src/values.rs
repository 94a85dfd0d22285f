//! Values as trees of JSON: merging, and `--set`.

use serde_json::{Map, Value as Json};

/// Puts `over` on top of `values`. Maps are merged, and other values replaced.
pub(crate) fn merge(values: &mut Json, over: &Json) {
    match (values, over) {
        (Json::Object(values), Json::Object(over)) => {
            for (name, value) in over {
                merge(values.entry(name).or_insert(Json::Null), value);
            }
        }
        (values, over) => *values = over.clone(),
    }
}

/// The values of a user with the defaults of a chart, as helm combines them: a null removes a default.
pub(crate) fn with_defaults(user: &Json, defaults: &Json) -> Json {
    let (Json::Object(user), Json::Object(defaults)) = (user, defaults) else {
        return if user.is_null() { defaults.clone() } else { user.clone() };
    };
    let mut out = Map::new();
    for (name, value) in user {
        match defaults.get(name) {
            Some(_) if value.is_null() => {}
            // As in helm, a table of the defaults is kept from another value.
            Some(default) if default.is_object() == value.is_object() && default.is_object() => {
                out.insert(name.clone(), with_defaults(value, default));
            }
            _ => drop(out.insert(name.clone(), value.clone())),
        }
    }
    for (name, default) in defaults {
        if !user.contains_key(name) {
            out.insert(name.clone(), default.clone());
        }
    }
    Json::Object(out)
}

/// A part of a path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PathStep {
    /// A key of a map.
    Key(String),
    /// `[3]`: an element of a list.
    Index(usize),
    /// `[name:istiod]`: the element of a list whose field has this value. Without a field, the element that has the value.
    Element(String, String),
}

/// The parts of a path such as `spec.template.spec.containers.[name:discovery].args.[0]`. A dot in a key is written `\.`.
///
/// # Errors
/// A bracket is not closed, or a part is empty.
pub(crate) fn parse_path(path: &str) -> Result<Vec<PathStep>, String> {
    let mut steps = Vec::new();
    let mut rest = path;
    loop {
        if let Some(inner) = rest.strip_prefix('[') {
            let Some((element, after)) = inner.split_once(']') else {
                return Err(format!("the bracket of [{inner} is not closed"));
            };
            steps.push(match (element.parse(), element.split_once(':')) {
                (Ok(index), _) => PathStep::Index(index),
                (_, Some((field, value))) => PathStep::Element(field.to_owned(), value.to_owned()),
                _ => return Err(format!("[{element}] is neither an index nor [FIELD:VALUE]")),
            });
            rest = after;
        } else {
            let mut key = String::new();
            let mut characters = rest.char_indices().peekable();
            let mut end = rest.len();
            while let Some((index, character)) = characters.next() {
                match character {
                    '\\' if characters.peek().is_some_and(|(_, next)| *next == '.') => {
                        key.push('.');
                        characters.next();
                    }
                    '.' | '[' => {
                        end = index;
                        break;
                    }
                    other => key.push(other),
                }
            }
            if key.is_empty() {
                return Err("a part of the path is empty".to_owned());
            }
            steps.push(PathStep::Key(key));
            rest = &rest[end..];
        }
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(steps),
            None if rest.starts_with('[') => {}
            None => return Err(format!("a dot is expected before {rest:?}")),
        }
    }
}

/// Sets the value at a path. Maps and lists that are missing are added; an index behind the end of a list appends.
///
/// # Errors
/// The path leads through a value that is neither a map nor a list, or to an element that does not exist.
pub(crate) fn set(target: &mut Json, steps: &[PathStep], value: Json) -> Result<(), String> {
    let Some((step, rest)) = steps.split_first() else {
        *target = value;
        return Ok(());
    };
    match step {
        PathStep::Key(key) => {
            if target.is_null() {
                *target = Json::Object(Map::new());
            }
            let Some(fields) = target.as_object_mut() else { return Err(format!("{key}: the value above is no map")) };
            set(fields.entry(key).or_insert(Json::Null), rest, value)
        }
        PathStep::Index(index) => {
            if target.is_null() {
                *target = Json::Array(Vec::new());
            }
            let Some(items) = target.as_array_mut() else { return Err(format!("[{index}]: the value is no list")) };
            let index = (*index).min(items.len());
            if index == items.len() {
                items.push(Json::Null);
            }
            set(&mut items[index], rest, value)
        }
        PathStep::Element(field, wanted) => {
            let missing = || format!("[{field}:{wanted}]: the list has no such element");
            let items = target.as_array_mut().ok_or_else(missing)?;
            let index = find(items, field, wanted).ok_or_else(missing)?;
            set(&mut items[index], rest, value)
        }
    }
}

/// Removes the value at a path. It is no error if there is none.
///
/// # Errors
/// The path is empty.
pub(crate) fn remove(target: &mut Json, steps: &[PathStep]) -> Result<(), String> {
    match steps {
        [] => Err("the path is empty".to_owned()),
        [PathStep::Key(key)] => {
            target.as_object_mut().map(|fields| fields.remove(key));
            Ok(())
        }
        [PathStep::Index(index)] => {
            if let Some(items) = target.as_array_mut().filter(|items| *index < items.len()) {
                items.remove(*index);
            }
            Ok(())
        }
        [PathStep::Element(field, wanted)] => {
            if let Some(items) = target.as_array_mut()
                && let Some(index) = find(items, field, wanted)
            {
                items.remove(index);
            }
            Ok(())
        }
        [step, rest @ ..] => {
            let inner = match step {
                PathStep::Key(key) => target.get_mut(key),
                PathStep::Index(index) => target.get_mut(index),
                PathStep::Element(field, wanted) => target.as_array_mut().and_then(|items| {
                    let index = find(items, field, wanted)?;
                    items.get_mut(index)
                }),
            };
            inner.map_or(Ok(()), |inner| remove(inner, rest))
        }
    }
}

/// The element whose field has a value. In a list of texts, the field is empty.
fn find(items: &[Json], field: &str, wanted: &str) -> Option<usize> {
    let is_wanted = |value: &Json| match value {
        Json::String(text) => text == wanted,
        other => *other == parse_scalar(wanted),
    };
    items.iter().position(|item| match field {
        "" => is_wanted(item),
        field => item.get(field).is_some_and(is_wanted),
    })
}

/// The value of a text on the command line: a boolean, a number, null, or the text itself.
pub(crate) fn parse_scalar(text: &str) -> Json {
    match text {
        "true" => Json::Bool(true),
        "false" => Json::Bool(false),
        "null" => Json::Null,
        // Leading zeros are those of a text.
        text if text.len() > 1 && text.starts_with('0') && !text.starts_with("0.") => Json::String(text.to_owned()),
        text => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => number.into(),
            _ => Json::String(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn null_removes_a_default_and_stays_without_one() {
        let defaults = json!({"a": {"b": 1, "c": 2}, "d": [1], "e": {}});
        let user = json!({"a": {"b": null, "x": null}, "d": [], "f": {"g": 1}});
        let expected = json!({"a": {"c": 2, "x": null}, "d": [], "e": {}, "f": {"g": 1}});
        assert_eq!(with_defaults(&user, &defaults), expected);
    }

    #[test]
    fn values_are_set_and_removed_by_path() {
        let mut values = json!({"list": [{"name": "a", "args": ["x", "y"]}]});
        let path = |text: &str| parse_path(text).expect(text);
        for (text, value) in [
            ("list.[name:a].args.[5]", json!("z")),
            ("list[0].port", json!(1)),
            (r"labels.istio\.io/rev", json!("r")),
            ("new.[0].name", json!("b")),
        ] {
            set(&mut values, &path(text), value).expect(text);
        }
        remove(&mut values, &path("list.[name:a].args.[:y]")).expect("an element");
        remove(&mut values, &path("nothing.[0].here")).expect("nothing to remove");
        let list = json!([{"name": "a", "args": ["x", "z"], "port": 1}]);
        assert_eq!(values, json!({"list": list, "labels": {"istio.io/rev": "r"}, "new": [{"name": "b"}]}));
        let refused = set(&mut values, &path("list.[name:c].x"), json!(1)).expect_err("no such element");
        assert_eq!(refused, "[name:c]: the list has no such element");
        assert!(set(&mut values, &path("list.[0].port.x"), json!(1)).is_err());
    }

    #[test]
    fn malformed_paths_are_refused() {
        for text in ["", "a..b", "a.[0", "a.[x]", "[0]x"] {
            parse_path(text).expect_err(text);
        }
    }

    #[test]
    fn scalars_of_the_command_line_have_types() {
        let cases = [("true", json!(true)), ("3", json!(3)), ("0.5", json!(0.5)), ("1.2.3", json!("1.2.3"))];
        for (text, value) in cases.into_iter().chain([("007", json!("007")), ("", json!("")), ("inf", json!("inf"))]) {
            assert_eq!(parse_scalar(text), value, "{text}");
        }
    }
}
