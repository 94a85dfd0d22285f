//! The rights that manifests grant.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

/// Namespace (empty is all), group, resource, verb.
pub type Right = (String, String, String, String);

/// The rights that the roles of a file grant.
///
/// # Panics
/// The file cannot be read, or is not a file of roles.
#[must_use]
pub fn granted(file: &Path) -> BTreeSet<Right> {
    let text = std::fs::read_to_string(file).expect("the manifest is there");
    let mut granted = BTreeSet::new();
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    for document in sluice_parse::yaml::parse_documents(&text, &sluice_parse::yaml::Limits::default()) {
        let object = document.expect("the manifest parses").value;
        let namespace = match object["kind"].as_str() {
            Some("ClusterRole") => String::new(),
            Some("Role") => object["metadata"]["namespace"].as_str().expect("a namespace").to_owned(),
            _ => continue,
        };
        for rule in object["rules"].as_array().expect("rules") {
            for group in texts(rule, "apiGroups") {
                for resource in texts(rule, "resources") {
                    for verb in texts(rule, "verbs") {
                        granted.insert((namespace.clone(), group.clone(), resource.clone(), verb));
                    }
                }
            }
        }
    }
    granted
}
