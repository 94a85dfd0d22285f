//! Failures as YAML files that can be replayed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sluice_parse::yaml::{Limits, parse_documents};

use crate::mesh::EpochChange;
use crate::seeds::{CaseMesh, Seed};
use crate::violation::Violation;

/// Separates the initial objects from those of the failing change.
const THEN: &str = "# then:";
const CLUSTER: &str = "# cluster: ";
const NODE: &str = "# node: ";
const DELETED: &str = "# deleted:";

/// Writes a failure. Returns the path of the file.
///
/// # Errors
/// The directory cannot be written.
pub fn write(dir: &Path, name: &str, finding: &Violation, mesh: &CaseMesh, change: &EpochChange) -> Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let mut text = String::new();
    for line in finding.signature.lines().chain(finding.message.lines()) {
        let _ = writeln!(text, "# {line}");
    }
    put(&mut text, &mesh.objects, &mesh.nodes);
    let _ = writeln!(text, "---\n{THEN}");
    put(&mut text, &change.objects, &change.nodes);
    if !change.deletes.is_empty() {
        let _ = writeln!(text, "---\n{DELETED}");
        put(&mut text, &change.deletes, &[]);
    }
    let path = dir.join(format!("{name}.yaml"));
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// Reads a file of [`write()`].
///
/// # Errors
/// The file cannot be read, or is a finding of the target `xds`, which has sessions instead of objects.
pub fn read(path: &Path) -> Result<(CaseMesh, EpochChange)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let (before, then) = text.split_once(&format!("---\n{THEN}")).unwrap_or(("", &text));
    let (then, deleted) = then.split_once(&format!("---\n{DELETED}")).unwrap_or((then, ""));
    let (objects, nodes) = take(before);
    let mesh = CaseMesh { name: path.display().to_string(), objects, nodes };
    let (objects, nodes) = take(then);
    ensure!(
        !objects.iter().any(|seed| seed.object.get("steps").is_some()),
        "{} has xDS sessions: repeat them with --seed and --turns",
        path.display()
    );
    Ok((mesh, EpochChange { objects, nodes, deletes: take(deleted).0 }))
}

fn put(text: &mut String, objects: &[Seed], nodes: &[Value]) {
    for node in nodes {
        let _ = writeln!(text, "{NODE}{node}");
    }
    for seed in objects {
        let _ = writeln!(text, "---\n{CLUSTER}{}", seed.cluster);
        yaml(text, &seed.rendered(), 0, false);
    }
}

fn take(text: &str) -> (Vec<Seed>, Vec<Value>) {
    let (mut objects, mut nodes) = (Vec::new(), Vec::new());
    for part in text.split("\n---\n") {
        let line = |start: &str| part.lines().find_map(|line| line.strip_prefix(start).map(ToOwned::to_owned));
        nodes.extend(part.lines().filter_map(|line| serde_json::from_str(line.strip_prefix(NODE)?).ok()));
        let cluster: sluice_model::Text = line(CLUSTER).unwrap_or_else(|| "Kubernetes".to_owned()).into();
        let documents = parse_documents(part, &Limits::default());
        objects.extend(documents.into_iter().flatten().map(|document| Seed::new(cluster.clone(), document.value)));
    }
    (objects, nodes)
}

/// Writes a value as block YAML with every text in quotes, so that it is read back unchanged.
pub(crate) fn yaml(out: &mut String, value: &Value, indent: usize, inline: bool) {
    let pad = |n: usize| " ".repeat(n);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (n, (name, value)) in fields.iter().enumerate() {
                let lead = if n == 0 && inline { String::new() } else { pad(indent) };
                let _ = write!(out, "{lead}{}:", Value::String(name.clone()));
                put_value(out, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (n, item) in items.iter().enumerate() {
                let lead = if n == 0 && inline { String::new() } else { pad(indent) };
                let _ = write!(out, "{lead}- ");
                yaml(out, item, indent + 2, true);
            }
        }
        scalar => {
            let lead = if inline { String::new() } else { pad(indent) };
            let _ = writeln!(out, "{lead}{scalar}");
        }
    }
}

fn put_value(out: &mut String, value: &Value, indent: usize) {
    let nested = matches!(value, Value::Object(fields) if !fields.is_empty())
        || matches!(value, Value::Array(items) if !items.is_empty());
    if nested {
        out.push('\n');
        yaml(out, value, indent + 2, false);
    } else {
        let _ = writeln!(out, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_written_failure_is_read_back_unchanged() {
        let seed = |object: Value| Seed { cluster: "west".into(), object };
        let objects = vec![
            seed(json!({ "kind": "A", "spec": { "a": [[1, 2], [], { "b": "x: \n- y", "c": {} }], "d": null } })),
            seed(json!({ "kind": "B", "n": -0.5, "t": "\u{0}\u{202e}💥", "yes": "no" })),
        ];
        let mesh = CaseMesh { objects: objects.clone(), nodes: vec![json!({ "id": "n" })], ..CaseMesh::default() };
        let change = EpochChange { objects, nodes: Vec::new(), deletes: vec![seed(json!({ "kind": "C" }))] };
        let dir = tempfile::tempdir().expect("a directory");
        let finding = Violation { signature: "s".into(), message: "m\nn".into() };
        let path = write(dir.path(), "one", &finding, &mesh, &change).expect("written");
        let (back, changed) = read(&path).expect("read");
        assert_eq!((back.objects, back.nodes), (mesh.objects, mesh.nodes));
        assert_eq!((changed.objects, changed.deletes), (change.objects, change.deletes));
    }
}
