//! `docs/features.md`: each id that a comment cites is defined, and each proof exists.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, root};

#[derive(Debug)]
struct Feature {
    state: String,
    proofs: Vec<String>,
}

/// The rows `| id | capability | state | proof |` by id.
fn features() -> BTreeMap<String, Feature> {
    let text = std::fs::read_to_string(root().join("docs/features.md")).expect("read docs/features.md");
    let mut out = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, capability, state, proof] = cells.as_slice() else { continue };
        if !is_id(id) {
            continue;
        }
        assert!(!capability.is_empty(), "{id}: the capability is missing");
        let proofs = proof.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let before = out.insert((*id).to_owned(), Feature { state: (*state).to_owned(), proofs });
        assert!(before.is_none(), "{id} is defined twice");
    }
    assert!(out.len() > 50, "docs/features.md has its tables");
    out
}

fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 3 && bytes[0].is_ascii_uppercase() && bytes[1..].iter().all(u8::is_ascii_digit)
}

/// Ids in parentheses, such as `(C07)` or `(P17, X20)`.
fn cited(line: &str) -> Vec<&str> {
    let mut out = Vec::new();
    for part in line.split('(').skip(1) {
        let Some((inside, _)) = part.split_once(')') else { continue };
        let ids: Vec<&str> = inside.split(',').map(str::trim).collect();
        if ids.iter().all(|id| is_id(id)) {
            out.extend(ids);
        }
    }
    out
}

#[test]
fn cited_features_are_defined() {
    let features = features();
    let mut unknown = Vec::new();
    for file in files() {
        let name = file.display().to_string();
        let is_text = [".rs", ".md", ".toml", ".yaml", ".proto"].iter().any(|end| name.ends_with(end));
        let is_list = name == "tests/cases/differences.json";
        if !is_list && (!is_text || name.starts_with("tests/cases/")) || name == "tests/tidy/features.rs" {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&file)).expect("read a source file");
        for (number, line) in text.lines().enumerate() {
            let ids = cited(line).into_iter().filter(|id| !features.contains_key(*id));
            unknown.extend(ids.map(|id| format!("{name}:{}: {id}", number + 1)));
        }
    }
    assert!(unknown.is_empty(), "ids that docs/features.md does not define:\n{}", unknown.join("\n"));
}

/// The paths of all files as texts.
pub(super) fn file_names() -> BTreeSet<String> {
    files().iter().map(|file| file.display().to_string()).collect()
}

/// Whether a file of the repository has a function of that name.
pub(super) fn test_exists(files: &BTreeSet<String>, file: &str, function: &str) -> bool {
    let text = || std::fs::read_to_string(root().join(file)).expect("read a test file");
    files.contains(file) && text().contains(&format!("fn {function}("))
}

#[test]
fn states_have_proofs_that_exist() {
    let files = file_names();
    let mut findings = Vec::new();
    for (id, feature) in features() {
        match feature.state.as_str() {
            "done" if feature.proofs.is_empty() => findings.push(format!("{id}: done, and no proof")),
            "done" | "partial" | "absent" => {}
            other => findings.push(format!("{id}: state {other}; the states are done, partial, absent")),
        }
        for proof in feature.proofs {
            let exists = match proof.split_once("::") {
                Some((file, function)) => test_exists(&files, file, function),
                None => {
                    let directory = format!("{}/", proof.trim_end_matches('/'));
                    proof.starts_with("tests/cases/") && files.iter().any(|file| file.starts_with(&directory))
                }
            };
            if !exists {
                findings.push(format!("{id}: the proof {proof} does not exist"));
            }
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn citations_are_found() {
    assert_eq!(cited("/// A directory (C07), and (P17, X20)."), ["C07", "P17", "X20"]);
    assert!(cited("f(a, b) (HTTP) (C7)").is_empty());
}
