//! Whether objects would be admitted: for a tool that reads files and for a hook that is asked by the API server.

use serde_json::Value;
use sluice_model::{Kind, MeshConfig, Reject, Severity, Text};

use crate::yaml::{Limits, Position, SyntaxError, find_position, parse_documents};
use crate::{Finding, Findings, ObjectError, lay_mesh_config, parse_mesh_networks, parse_object};

/// Everything there is to say of an object: it is admitted unless a reject [is a refusal](Severity::is_refusal).
///
/// # Errors
/// It is no object of a known kind.
pub fn validate_object(object: &Value) -> Result<Vec<Reject>, ObjectError> {
    let mut named = None;
    // Only the API server knows the name yet.
    if let (None, Some(prefix)) = (object.pointer("/metadata/name"), object.pointer("/metadata/generateName")) {
        let name = format!("{}0", prefix.as_str().unwrap_or_default());
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("name".to_owned(), Value::String(name));
        }
        named = Some(object);
    }
    // Which cluster it is does not matter, nor do names of hosts depend on more than that they are completed.
    let parsed = parse_object(&Text::default(), "cluster.local", named.as_ref().unwrap_or(object))?;
    Ok(parsed.rejects)
}

/// Something wrong at a place of a text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// Where.
    pub position: Position,
    /// Kind of the object, empty if it is not known.
    pub kind: String,
    /// Namespace of the object, empty if it says none.
    pub namespace: String,
    /// Name of the object, empty if it has none.
    pub name: String,
    /// Path of the field.
    pub field_path: Text,
    /// Why, a lower-case fragment.
    pub reason: Text,
    /// Whether the object is refused for it.
    pub severity: Severity,
}

/// What a text holds, and what is wrong in it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Validation {
    /// Objects that were looked at.
    pub objects: usize,
    /// Objects of kinds nothing is known of, such as Deployments.
    pub skipped: usize,
    /// In order of the text.
    pub problems: Vec<Problem>,
}

/// Looks at every object of a YAML or JSON text: lists are looked into, and a document that is no object is read as a
/// mesh config, or as networks, if it looks like one.
#[must_use]
pub fn validate_text(text: &str) -> Validation {
    let mut validation = Validation::default();
    for document in parse_documents(text, &Limits::default()) {
        match document {
            Ok(document) => {
                let mut found = Vec::new();
                look(&document.value, "", &mut validation, &mut found);
                validation.problems.extend(found.into_iter().map(
                    |(object, Finding { field_path, reason, severity })| {
                        let position = find_position(text, document.line, &field_path);
                        let Described { kind, namespace, name } = object;
                        Problem { position, kind, namespace, name, field_path, reason, severity }
                    },
                ));
            }
            Err(error) => validation.problems.push(unreadable(error)),
        }
    }
    validation.problems.sort_by_key(|problem| problem.position);
    validation
}

fn unreadable(SyntaxError { line, column, reason }: SyntaxError) -> Problem {
    Problem {
        position: Position { line, column: column.max(1) },
        kind: String::new(),
        namespace: String::new(),
        name: String::new(),
        field_path: Text::default(),
        reason: reason.into(),
        severity: Severity::Error,
    }
}

/// An object as it calls itself.
#[derive(Clone, Default)]
struct Described {
    kind: String,
    namespace: String,
    name: String,
}

impl Described {
    fn of(object: &Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { kind: text("/kind"), namespace: text("/metadata/namespace"), name: text("/metadata/name") }
    }
}

fn look(object: &Value, path: &str, validation: &mut Validation, found: &mut Vec<(Described, Finding)>) {
    let described = Described::of(object);
    if let (true, Some(items)) = (described.kind.ends_with("List"), object.get("items").and_then(Value::as_array)) {
        for (n, item) in items.iter().enumerate() {
            look(item, &format!("{path}items[{n}]."), validation, found);
        }
        return;
    }
    let mut note = |severity, field: &str, reason: String| {
        let field_path = format!("{path}{field}").trim_end_matches('.').into();
        found.push((described.clone(), Finding { field_path, reason: reason.into(), severity }));
    };
    if object.get("kind").is_none() && object.get("apiVersion").is_none() {
        let findings = mesh_findings(object);
        validation.objects += 1;
        findings
            .into_iter()
            .for_each(|finding| note(finding.severity, &finding.field_path, finding.reason.to_string()));
        return;
    }
    match validate_object(object) {
        Ok(rejects) => {
            validation.objects += 1;
            rejects.into_iter().for_each(|reject| note(reject.severity, &reject.field_path, reject.reason.to_string()));
        }
        Err(ObjectError::UnknownKind { api_version, kind }) => {
            let group = api_version.split('/').next().unwrap_or_default();
            match kind.as_str() {
                "IstioOperator" => {
                    validation.skipped += 1;
                    note(Severity::Warning, "kind", "there is no operator: nothing reads this".to_owned());
                }
                _ if group.ends_with(".istio.io") => {
                    validation.objects += 1;
                    note(Severity::Error, "kind", format!("there is no kind {kind} in {api_version}"));
                }
                _ => validation.skipped += 1,
            }
        }
        Err(error) => {
            validation.objects += 1;
            let field = match &error {
                ObjectError::Missing(field) => field,
                _ => "",
            };
            note(Severity::Error, field, error.to_string());
        }
    }
}

/// What is wrong with a document that is a mesh config, or networks, on its own.
fn mesh_findings(value: &Value) -> Vec<Finding> {
    let findings = Findings::default();
    let fields: Vec<&String> = value.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
    if fields.iter().any(|name| name.as_str() == "networks") {
        let _ = parse_mesh_networks(value, "", &findings);
        return findings.into_vec();
    }
    let _ = lay_mesh_config(MeshConfig::default(), value, "", &findings);
    let found = findings.into_vec();
    let unknown =
        |name: &&&String| found.iter().any(|f| f.field_path.as_str() == name.as_str() && f.reason == "unknown field");
    if fields.iter().filter(unknown).count() == fields.len() {
        let reason = "this is neither an object, with apiVersion and kind, nor a mesh config".into();
        return vec![Finding { field_path: Text::default(), reason, severity: Severity::Error }];
    }
    found
}

/// The kinds whose rules are known.
#[must_use]
pub fn validated_kinds() -> Vec<Kind> {
    let known = crate::KINDS.iter().filter(|info| info.group.ends_with(".istio.io") && info.parse.is_some());
    known.map(|info| info.kind).collect()
}
