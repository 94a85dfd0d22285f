//! Checks that a type name which other files can use has one meaning in the workspace.

use std::collections::BTreeMap;

use super::{files, root};

/// Largest number of types with one name.
const MAX_DEFINITIONS: usize = 2;

/// Nouns of protocols and of Rust with the same meaning everywhere.
const SHARED: [&str; 14] = [
    "Args",
    "Command",
    "CommandLine",
    "Config",
    "Error",
    "Metrics",
    "Options",
    "Outcome",
    "Problem",
    "Reject",
    "Request",
    "Response",
    "Settings",
    "State",
];

#[test]
fn a_type_name_has_one_meaning() {
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files().into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let text = std::fs::read_to_string(root().join(&file)).expect("read a source file");
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = defined(line) {
                let place = format!("{}:{}", file.display(), number + 1);
                definitions.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    definitions.retain(|name, places| places.len() > MAX_DEFINITIONS && !SHARED.contains(&name.as_str()));
    assert!(definitions.is_empty(), "{definitions:#?}");
}

/// The name of a type that a line defines for more than its own module.
fn defined(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(restricted) => restricted.split_once(')')?.1,
        None => rest,
    };
    let rest = rest.trim_start();
    let name = ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|word| rest.strip_prefix(word))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn definitions_are_found() {
    assert_eq!(defined("    pub(in crate::xds) struct Client<'a> {"), Some("Client"));
    assert_eq!(defined("pub type Rows = Vec<Row>;"), Some("Rows"));
    assert_eq!(defined("struct Local;"), None);
    assert_eq!(defined("pub fn struct_of() {}"), None);
}
