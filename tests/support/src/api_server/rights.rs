//! The rights that manifests grant.

use std::collections::BTreeSet;

use serde_json::Value;
use sluice_parse::yaml::{self, Limits};

/// Namespace (empty is all), group, resource, verb.
pub type Right = (String, String, String, String);

/// The rights that the roles of a YAML text grant.
///
/// # Panics
/// The text does not parse.
#[must_use]
pub fn granted(text: &str) -> BTreeSet<Right> {
    let mut granted = BTreeSet::new();
    for document in yaml::parse_documents(text, &Limits::default()) {
        let object = document.expect("the manifest parses").value;
        let namespace = match object["kind"].as_str() {
            Some("ClusterRole") => "",
            Some("Role") => object["metadata"]["namespace"].as_str().expect("a namespace"),
            _ => continue,
        };
        granted.extend(rights_of(namespace, &object["rules"]));
    }
    granted
}

/// The rights that a YAML list of rules grants in a namespace (empty is all).
///
/// # Panics
/// The text does not parse.
#[must_use]
pub fn granted_by_rules(namespace: &str, text: &str) -> BTreeSet<Right> {
    rights_of(namespace, &yaml::parse_value(text, &Limits::default()).expect("the rules parse"))
}

fn rights_of(namespace: &str, rules: &Value) -> BTreeSet<Right> {
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in rules.as_array().expect("rules") {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                for verb in texts(rule, "verbs") {
                    rights.insert((namespace.to_owned(), group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    rights
}
