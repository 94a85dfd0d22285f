//! Validation of objects by the rules of admission, for `sluicectl validate` and for the validating webhook.

use serde_json::Value;
use sluice_model::{Kind, MeshConfig, Reject, RejectCause, Severity, Text};

use crate::fields::one_of;
use crate::findings::MAX_FINDINGS;
use crate::yaml::{Chunk, Document, Limits, Position, SyntaxError, find_positions, split_documents};
use crate::{Finding, Findings, ObjectError, merge_mesh_config, parse_mesh_networks, parse_object};

/// All findings of an object. Admission refuses the object if one of them [is a refusal](Severity::is_refusal).
///
/// # Errors
/// The value is not an object of a known kind.
pub fn validate_object(object: &Value) -> Result<Vec<Reject>, ObjectError> {
    let mut named = None;
    // The API server completes `generateName` after admission.
    if let (None, Some(prefix)) = (object.pointer("/metadata/name"), object.pointer("/metadata/generateName")) {
        let name = format!("{}0", prefix.as_str().unwrap_or_default());
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("name".to_owned(), Value::String(name));
        }
        named = Some(object);
    }
    // No rule depends on the cluster or on the DNS domain that completes short hosts.
    let parsed = parse_object(&Text::default(), "cluster.local", named.as_ref().unwrap_or(object))?;
    Ok(parsed.rejects)
}

/// A finding with its position in a text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// Position of the field, or of the nearest field around it.
    pub position: Position,
    /// Kind of the object, empty if the document does not parse.
    pub kind: String,
    /// Namespace of the object, empty if it names none.
    pub namespace: String,
    /// Name of the object, empty if it has none.
    pub name: String,
    /// Field path.
    pub field_path: Text,
    /// What is wrong and what is accepted, a lower-case fragment.
    pub reason: Text,
    /// Whether admission refuses the object for it, and whether the object applies where it is stored.
    pub severity: Severity,
    /// Whether the schema of the object does not have the field. Admission only warns of an unknown field.
    pub is_unknown_field: bool,
}

/// The result of [`validate_text`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Validation {
    /// Number of objects that were validated.
    pub objects: usize,
    /// Number of objects of other kinds, such as Deployments, which have no rules here.
    pub skipped: usize,
    /// Findings in the order of the text.
    pub problems: Vec<Problem>,
}

/// Validates every object of a YAML or JSON text, and the items of lists. A document without `kind` and `apiVersion` is
/// validated as a `MeshConfig`, or as `MeshNetworks` if it has the field `networks`.
#[must_use]
pub fn validate_text(text: &str) -> Validation {
    validate_text_with(text, &|_| None)
}

/// Findings of rules that are not those of admission. `None` if the rules are not about the object.
pub type FurtherRules<'r> = &'r dyn Fn(&Value) -> Option<Vec<Finding>>;

/// As [`validate_text`], with further rules for objects of any kind.
#[must_use]
pub fn validate_text_with(text: &str, rules: FurtherRules<'_>) -> Validation {
    let mut validation = Validation::default();
    for chunk in split_documents(text) {
        match chunk.parse(&Limits::default()) {
            Ok(documents) => {
                for (n, document) in documents.iter().enumerate() {
                    add_problems(chunk, document, n < MAX_LOCATED_DOCUMENTS, rules, &mut validation);
                }
            }
            Err(error) => validation.problems.push(syntax_problem(error)),
        }
    }
    validation.problems.sort_by_key(|problem| problem.position);
    validation
}

/// Maximum number of documents between two `---` lines whose findings are located: each search reads the text again. Findings
/// of further documents have the position of their document.
const MAX_LOCATED_DOCUMENTS: usize = 20;

/// Validates the objects of a document of this chunk.
fn add_problems(
    chunk: Chunk<'_>,
    document: &Document,
    locate: bool,
    rules: FurtherRules<'_>,
    validation: &mut Validation,
) {
    let mut found = Vec::new();
    validate_document(&document.value, "", rules, validation, &mut found);
    if found.is_empty() {
        return;
    }
    let paths: Vec<&str> = found.iter().map(|(_, finding)| finding.field_path.as_str()).collect();
    let before = chunk.line - 1;
    let begin = Position { line: document.line - before, column: 1 };
    let positions = if locate { find_positions(chunk.text, begin.line, &paths) } else { vec![begin; paths.len()] };
    validation.problems.extend(found.iter().zip(positions).map(|((object, finding), at)| {
        let ObjectName { kind, namespace, name } = object.clone();
        let Finding { field_path, reason, severity, .. } = finding.clone();
        Problem {
            position: Position { line: at.line + before, ..at },
            kind,
            namespace,
            name,
            field_path,
            reason,
            severity,
            is_unknown_field: finding.is_unknown_field(),
        }
    }));
}

fn syntax_problem(SyntaxError { line, column, reason }: SyntaxError) -> Problem {
    Problem {
        position: Position { line, column: column.max(1) },
        kind: String::new(),
        namespace: String::new(),
        name: String::new(),
        field_path: Text::default(),
        reason: reason.into(),
        severity: Severity::Error,
        is_unknown_field: false,
    }
}

/// Kind, namespace and name as the object states them.
#[derive(Clone, Default)]
struct ObjectName {
    kind: String,
    namespace: String,
    name: String,
}

impl ObjectName {
    fn of(object: &Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { kind: text("/kind"), namespace: text("/metadata/namespace"), name: text("/metadata/name") }
    }
}

fn validate_document(
    object: &Value,
    path: &str,
    rules: FurtherRules<'_>,
    validation: &mut Validation,
    found: &mut Vec<(ObjectName, Finding)>,
) {
    let described = ObjectName::of(object);
    if let (true, Some(items)) = (described.kind.ends_with("List"), object.get("items").and_then(Value::as_array)) {
        for (n, item) in items.iter().enumerate() {
            validate_document(item, &format!("{path}items[{n}]."), rules, validation, found);
        }
        return;
    }
    let mut note = |severity, field: &str, reason: String| {
        let field_path = format!("{path}{field}").trim_end_matches('.').into();
        found.push((
            described.clone(),
            Finding { field_path, reason: reason.into(), severity, cause: RejectCause::Other },
        ));
    };
    if object.get("kind").is_none() && object.get("apiVersion").is_none() {
        let findings = mesh_findings(object);
        validation.objects += 1;
        findings
            .into_iter()
            .for_each(|finding| note(finding.severity, &finding.field_path, finding.reason.to_string()));
        return;
    }
    let further = rules(object);
    let has_further_rules = further.is_some();
    for finding in further.into_iter().flatten() {
        note(finding.severity, &finding.field_path, finding.reason.to_string());
    }
    match validate_object(object) {
        Ok(rejects) => {
            validation.objects += 1;
            rejects.into_iter().for_each(|reject| note(reject.severity, &reject.field_path, reject.reason.to_string()));
        }
        Err(ObjectError::UnknownKind { api_version, kind }) => {
            let group = api_version.split('/').next().unwrap_or_default();
            if has_further_rules {
                validation.objects += 1;
            } else if group.ends_with(".istio.io") && kind != "IstioOperator" {
                validation.objects += 1;
                note(Severity::Error, "kind", unknown_kind(&api_version, &kind));
            } else {
                validation.skipped += 1;
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

/// The message for an Istio kind or version that does not exist: it lists the versions of the kind, if there are any.
fn unknown_kind(api_version: &str, kind: &str) -> String {
    let group = api_version.split('/').next().unwrap_or_default();
    match crate::KINDS.iter().find(|info| info.name == kind && info.is_istio()) {
        Some(info) => {
            let versions: Vec<String> =
                info.versions.iter().map(|version| format!("{}/{version}", info.group)).collect();
            format!("`{kind}` has no version `{api_version}`; expected {}", one_of(versions.iter().map(String::as_str)))
        }
        None => {
            let kinds = crate::KINDS.iter().filter(|info| info.group == group).map(|info| info.name);
            format!("unknown kind `{kind}`; kinds of {group} are {}", kinds.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Findings of a document that is a `MeshConfig` or `MeshNetworks` by itself.
fn mesh_findings(value: &Value) -> Vec<Finding> {
    let findings = Findings::default();
    let fields: Vec<&String> = value.as_object().into_iter().flat_map(|fields| fields.keys()).collect();
    if fields.iter().any(|name| name.as_str() == "networks") {
        let _ = parse_mesh_networks(value, "", &findings);
        return findings.into_vec();
    }
    let _ = merge_mesh_config(MeshConfig::default(), value, "", &findings);
    let warnings = findings.warning_count();
    let found = findings.into_vec();
    let unknown =
        |name: &&&String| found.iter().any(|f| f.field_path.as_str() == name.as_str() && f.is_unknown_field());
    // Not all findings are kept.
    if fields.iter().filter(unknown).count() == fields.len().min(MAX_FINDINGS) && warnings >= fields.len() {
        let reason = "expected an object with `apiVersion` and `kind`, a MeshConfig or MeshNetworks".into();
        return vec![Finding {
            field_path: Text::default(),
            reason,
            severity: Severity::Error,
            cause: RejectCause::Other,
        }];
    }
    found
}

/// Istio kinds that are validated.
#[must_use]
pub fn validated_kinds() -> Vec<Kind> {
    let validated = crate::KINDS.iter().filter(|info| info.is_istio() && info.parse.is_some());
    validated.map(|info| info.kind).collect()
}
