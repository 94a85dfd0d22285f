//! The fields in which two values differ.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::path::{FieldPath, PathStep, element_name, name};

/// The paths at which the values differ, in order, as long as possible. Elements of lists are compared by their names, if all
/// have different ones, else by their numbers.
pub(crate) fn difference(one: &Value, other: &Value) -> Vec<FieldPath> {
    let mut found = Vec::new();
    compare(one, other, &mut FieldPath::default(), &mut found);
    found
}

fn compare(one: &Value, other: &Value, at: &mut FieldPath, found: &mut Vec<FieldPath>) {
    match (one, other) {
        _ if one == other => {}
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                step(PathStep::Field(name.clone()), one.get(name), other.get(name), at, found);
            }
        }
        (Value::Array(one), Value::Array(other)) => match (by_name(one), by_name(other)) {
            (Some(one_named), Some(other_named)) => {
                let before = found.len();
                let names: BTreeSet<&str> = one_named.keys().chain(other_named.keys()).copied().collect();
                for name in names {
                    let element = PathStep::Element(name.to_owned());
                    step(element, one_named.get(name).copied(), other_named.get(name).copied(), at, found);
                }
                if found.len() == before {
                    // Only the order differs.
                    found.push(at.clone());
                }
            }
            _ if one.len() == other.len() => {
                for (number, (one, other)) in one.iter().zip(other).enumerate() {
                    step(PathStep::Element(element_name(one, number)), Some(one), Some(other), at, found);
                }
            }
            _ => found.push(at.clone()),
        },
        _ => found.push(at.clone()),
    }
}

fn step(step: PathStep, one: Option<&Value>, other: Option<&Value>, at: &mut FieldPath, found: &mut Vec<FieldPath>) {
    at.0.push(step);
    match (one, other) {
        (Some(one), Some(other)) => compare(one, other, at, found),
        (None, None) => {}
        _ => found.push(at.clone()),
    }
    at.0.pop();
}

/// The elements by name, if all have different names.
fn by_name(elements: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    let named: BTreeMap<&str, &Value> =
        elements.iter().map(|element| Some((name(element)?, element))).collect::<Option<_>>()?;
    (named.len() == elements.len()).then_some(named)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_named_by_the_longest_paths() {
        let paths = |one: &Value, other: &Value| -> Vec<String> {
            difference(one, other).iter().map(ToString::to_string).collect()
        };
        let one = json!({"a": 1, "b": {"c": 2, "d": 3}, "l": [1, 2], "n": [{"name": "x", "v": 1}, {"name": "y"}]});
        let other =
            json!({"a": 1, "b": {"c": 4}, "l": [1, 5], "n": [{"name": "y"}, {"name": "x", "v": 2}, {"name": "z"}]});
        assert_eq!(paths(&one, &other), ["b.c", "b.d", "l[1]", "n[x].v", "n[z]"]);
        assert!(paths(&one, &one).is_empty());
        assert_eq!(paths(&json!({"l": [1]}), &json!({"l": [1, 2]})), ["l"]);
        let (ordered, reversed) = (json!([{"name": "x"}, {"name": "y"}]), json!([{"name": "y"}, {"name": "x"}]));
        assert_eq!(paths(&json!({"l": ordered}), &json!({"l": reversed})), ["l"], "only the order differs");
    }
}
