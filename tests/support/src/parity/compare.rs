//! Compares two dumps of one proxy and type, and describes the differences briefly.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::canonical::{name_of, sorted_text};

/// The result for one proxy and type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Resources expected.
    pub golden: usize,
    /// Resources exactly equal.
    pub equal: usize,
    /// Names of those that differ, with the first differing paths.
    pub differing: BTreeMap<String, Vec<String>>,
    /// Names of expected resources that are missing.
    pub missing: Vec<String>,
    /// Names of unexpected resources.
    pub extra: Vec<String>,
    /// A remark, if only one of the two dumps has an answer.
    pub note: Option<String>,
}

impl Comparison {
    /// The number of expected and of unexpected resources.
    pub fn total(&self) -> usize {
        self.golden + self.extra.len()
    }
}

/// Compares dumps in canonical form; `None` for a type that was never answered. Lists at most `limit` paths for each
/// resource.
pub fn compare(golden: Option<&[Value]>, actual: Option<&[Value]>, limit: usize) -> Comparison {
    let mut out = Comparison::default();
    if golden.is_none() != actual.is_none() {
        let describe = |dump: Option<&[Value]>| if dump.is_none() { "not answered" } else { "answered" };
        out.note = Some(format!("golden was {}, actual was {}", describe(golden), describe(actual)));
    }
    let (golden, actual) = (index(golden.unwrap_or_default()), index(actual.unwrap_or_default()));
    out.golden = golden.len();
    for (name, expected) in &golden {
        match actual.get(name) {
            None => out.missing.push(name.clone()),
            Some(actual) if equal(expected, actual) => out.equal += 1,
            Some(actual) => {
                let mut paths = Paths { lines: Vec::new(), limit };
                paths.diff(expected, actual, "$");
                out.differing.insert(name.clone(), paths.lines);
            }
        }
    }
    out.extra = actual.keys().filter(|name| !golden.contains_key(*name)).cloned().collect();
    out
}

/// Resources by name. The second resource of one name has the key `name#2`.
fn index(dump: &[Value]) -> BTreeMap<String, &Value> {
    let mut out = BTreeMap::new();
    for resource in dump {
        let name = name_of(resource);
        let mut key = name.clone();
        let mut count = 1;
        while out.contains_key(&key) {
            count += 1;
            key = format!("{name}#{count}");
        }
        out.insert(key, resource);
    }
    out
}

/// Equality of JSON values. `1` and `1.0` are equal.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(name, x)| y.get(name).is_some_and(|y| equal(x, y)))
        }
        _ => a == b,
    }
}

struct Paths {
    lines: Vec<String>,
    limit: usize,
}

impl Paths {
    fn add(&mut self, path: &str, what: &str) {
        if self.lines.len() < self.limit {
            self.lines.push(format!("{path}: {what}"));
        }
    }

    fn diff(&mut self, golden: &Value, actual: &Value, path: &str) {
        if self.lines.len() >= self.limit || equal(golden, actual) {
            return;
        }
        match (golden, actual) {
            (Value::Object(a), Value::Object(b)) => {
                let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
                for name in names {
                    let path = format!("{path}.{name}");
                    match (a.get(name), b.get(name)) {
                        (Some(a), Some(b)) => self.diff(a, b, &path),
                        (Some(a), None) => self.add(&path, &format!("missing {}", short(a))),
                        (None, Some(b)) => self.add(&path, &format!("extra {}", short(b))),
                        (None, None) => {}
                    }
                }
            }
            (Value::Array(a), Value::Array(b)) => match (labels(a), labels(b)) {
                (Some(of_a), Some(of_b)) => self.diff_labelled((a, &of_a), (b, &of_b), path),
                _ => {
                    if a.len() != b.len() {
                        self.add(path, &format!("{} elements, golden has {}", b.len(), a.len()));
                    }
                    for (index, (a, b)) in a.iter().zip(b).enumerate() {
                        self.diff(a, b, &format!("{path}[{index}]"));
                    }
                }
            },
            _ => self.add(path, &format!("{}, golden has {}", short(actual), short(golden))),
        }
    }

    /// Compares lists whose elements have labels, so that one inserted element does not make all later ones differ.
    fn diff_labelled(&mut self, golden: (&[Value], &[String]), actual: (&[Value], &[String]), path: &str) {
        for (index, (label, expected)) in golden.1.iter().zip(golden.0).enumerate() {
            match actual.1.iter().position(|other| other == label) {
                Some(at) => self.diff(expected, &actual.0[at], &format!("{path}[{label}]")),
                None => self.add(&format!("{path}[{label}]"), &format!("missing (golden index {index})")),
            }
        }
        for label in actual.1.iter().filter(|label| !golden.1.contains(label)) {
            self.add(&format!("{path}[{label}]"), "extra");
        }
        let common_golden: Vec<&String> = golden.1.iter().filter(|label| actual.1.contains(label)).collect();
        let common_actual: Vec<&String> = actual.1.iter().filter(|label| golden.1.contains(label)).collect();
        if common_golden != common_actual {
            self.add(path, &format!("order {common_actual:?}, golden has {common_golden:?}"));
        }
    }
}

/// A label for each element; `None` if an element has none or two are equal.
fn labels(elements: &[Value]) -> Option<Vec<String>> {
    let labels: Vec<String> = elements.iter().map(label).collect::<Option<_>>()?;
    let distinct: BTreeSet<&String> = labels.iter().collect();
    (distinct.len() == labels.len()).then_some(labels)
}

fn label(element: &Value) -> Option<String> {
    for key in ["name", "@type", "clusterName"] {
        if let Some(text) = element[key].as_str() {
            return Some(text.to_owned());
        }
    }
    if element["endpoint"].is_object() {
        return Some(sorted_text(&element["endpoint"]["address"]));
    }
    if element["header"].is_object() {
        return element["header"]["key"].as_str().map(ToOwned::to_owned);
    }
    element.get("locality").map(|locality| format!("[{},{}]", sorted_text(locality), element["priority"]))
}

fn short(value: &Value) -> String {
    let text = sorted_text(value);
    match text.char_indices().nth(157) {
        Some((at, _)) if text.chars().count() > 160 => format!("{}...", &text[..at]),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn comparison_has_counts_and_paths() {
        let golden =
            [json!({"name": "a", "x": 1}), json!({"name": "b", "f": [{"name": "p"}, {"name": "q", "y": true}]})];
        let actual = [
            json!({"name": "a", "x": 1.0}),
            json!({"name": "b", "f": [{"name": "new"}, {"name": "p"}, {"name": "q", "y": false}]}),
            json!({"name": "c"}),
        ];
        let actual = compare(Some(&golden), Some(&actual), 5);
        assert_eq!((actual.golden, actual.equal, actual.total()), (2, 1, 3));
        assert_eq!(actual.differing["b"], ["$.f[q].y: false, golden has true", "$.f[new]: extra"]);
        assert_eq!((actual.missing, actual.extra), (vec![], vec!["c".to_owned()]));
    }

    #[test]
    fn type_without_an_answer_is_noted() {
        let actual = compare(Some(&[]), None, 5);
        assert_eq!(actual.note.as_deref(), Some("golden was answered, actual was not answered"));
        assert_eq!((actual.equal, actual.total()), (0, 0));
    }
}
