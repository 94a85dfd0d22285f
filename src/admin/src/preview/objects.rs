//! The objects of a preview: read as the source of the cluster would read them once they are applied.

use serde::Serialize;
use serde_json::{Map, Value};
use sluice_engine::InputsSnapshot;
use sluice_graph::Inputs;
use sluice_model::{Kind, Object, ObjectKey, ParsedObject, Reject, Severity};
use sluice_parse::{KindInfo, ObjectError, ObjectId, Problem, identify, list_items, parse_object, validate_text, yaml};
use sluice_sources::MeshOverride;
use sluice_sources::files::FILE_CREATION_TIME;

use super::PreviewQuestion;
use super::live_fields::keep_live_fields;
use crate::PreviewOptions;
use crate::answers::object_text;

/// An object of the preview, and what happens to it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ObjectChange {
    /// `KIND/NAMESPACE/NAME`.
    object: String,
    /// Line of its document in the body.
    line: usize,
    /// What happens to it.
    change: Effect,
    /// Why it has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The input with its record, and the key, unless it has no effect.
    #[serde(skip)]
    row: Option<(&'static str, ObjectKey)>,
}

/// What happens to an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Effect {
    Created,
    Changed,
    Deleted,
    /// It is there already with the same content, or is not there to be deleted.
    Unchanged,
    /// Admission refuses it.
    Refused,
    /// The control plane does not read it.
    Ignored,
}

/// A finding about an object.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Serialize)]
pub(crate) struct PreviewFinding {
    /// `KIND/NAMESPACE/NAME`.
    object: String,
    field: String,
    message: String,
    /// `error` if admission refuses the object, `warning` otherwise.
    severity: &'static str,
    /// Line and column in the body; absent if the object is not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
}

fn severity_text(severity: Severity) -> &'static str {
    if severity.is_refusal() { "error" } else { "warning" }
}

impl PreviewFinding {
    fn of_problem(problem: Problem) -> Self {
        let at = problem.position;
        Self {
            object: match problem.kind.as_str() {
                "" => String::new(),
                kind => object_text(kind, &problem.namespace, &problem.name),
            },
            field: problem.field_path.to_string(),
            message: problem.reason.to_string(),
            severity: severity_text(problem.severity),
            line: Some(at.line),
            column: Some(at.column),
        }
    }

    pub(super) fn of_reject(reject: &Reject) -> Self {
        Self {
            object: object_text(&reject.kind.name(), &reject.object.namespace, &reject.object.name),
            field: reject.field_path.to_string(),
            message: reject.reason.to_string(),
            severity: severity_text(reject.severity),
            line: None,
            column: None,
        }
    }

    /// Whether both say the same. A position and a default namespace may be missing.
    fn is_like(&self, other: &Self) -> bool {
        let name = |finding: &Self| finding.object.rsplit('/').next().map(str::to_owned);
        (&self.field, &self.message) == (&other.field, &other.message) && name(self) == name(other)
    }
}

/// The objects of the body.
pub(super) struct PreviewedObjects {
    pub(super) changes: Vec<ObjectChange>,
    pub(super) findings: Vec<PreviewFinding>,
    parsed: Vec<ParsedObject>,
}

impl PreviewedObjects {
    /// Reads the body. Parts that are not objects are findings.
    pub(super) fn read(question: &PreviewQuestion, mut reader: ObjectReader<'_>) -> Self {
        let mut read = Self { changes: Vec::new(), findings: Vec::new(), parsed: Vec::new() };
        if !question.delete {
            read.findings.extend(validate_text(&question.text).problems.into_iter().map(PreviewFinding::of_problem));
        }
        for document in yaml::parse_documents(&question.text, &yaml::Limits::default()) {
            match document {
                Ok(document) => {
                    for object in list_items(document.value).into_iter().filter(|object| !object.is_null()) {
                        read.add(reader.read(object, document.line));
                    }
                }
                // Validation reports it too.
                Err(error) if question.delete => read.findings.push(PreviewFinding {
                    object: String::new(),
                    field: String::new(),
                    message: error.reason.to_string(),
                    severity: "error",
                    line: Some(error.line),
                    column: Some(error.column),
                }),
                Err(_) => {}
            }
        }
        read
    }

    fn add(&mut self, (change, parsed): (ObjectChange, Option<ParsedObject>)) {
        self.changes.push(change);
        self.parsed.extend(parsed);
    }

    /// The objects that have an effect.
    pub(super) fn take_parsed(&mut self) -> Vec<ParsedObject> {
        std::mem::take(&mut self.parsed)
    }

    /// Adds a finding of the graph, unless validation has it.
    pub(super) fn add_finding(&mut self, finding: PreviewFinding) {
        if !self.findings.iter().any(|known| known.is_like(&finding)) {
            self.findings.push(finding);
        }
    }

    /// Sets what happens to each object, by the inputs before and after.
    pub(super) fn add_effects(&mut self, before: &InputsSnapshot, after: &InputsSnapshot) {
        for change in &mut self.changes {
            let Some((collection, key)) = &change.row else { continue };
            let value = |of: &InputsSnapshot| of.find(collection, key).map(|(value, _)| value);
            change.change = match (value(before), value(after)) {
                (None, Some(_)) => Effect::Created,
                (Some(_), None) => Effect::Deleted,
                (before, after) if before == after => Effect::Unchanged,
                _ => Effect::Changed,
            };
        }
    }
}

/// Reads objects as the source of the cluster does.
pub(super) struct ObjectReader<'a> {
    options: &'a PreviewOptions,
    live: &'a InputsSnapshot,
    inputs: &'a Inputs,
    /// The mesh settings, with the ConfigMaps of earlier documents.
    mesh: MeshOverride,
    delete: bool,
}

impl<'a> ObjectReader<'a> {
    /// Reads objects that are applied, or deleted, to these inputs and these mesh settings.
    pub(super) fn new(
        options: &'a PreviewOptions,
        live: &'a InputsSnapshot,
        inputs: &'a Inputs,
        mesh: MeshOverride,
        delete: bool,
    ) -> Self {
        Self { options, live, inputs, mesh, delete }
    }

    /// An object of a document, and its value if it has an effect.
    fn read(&mut self, mut object: Value, line: usize) -> (ObjectChange, Option<ParsedObject>) {
        let stated = stated_name(&object);
        let ignored = |object: String, reason: String| {
            let change = ObjectChange { object, line, change: Effect::Ignored, reason: Some(reason), row: None };
            (change, None)
        };
        let options = self.options;
        let cluster = &options.cluster;
        let ObjectId { info, key } = match identify(&cluster.id, &object) {
            Ok(id) => id,
            Err(ObjectError::UnknownKind { .. }) => {
                return ignored(stated, "the control plane does not read this kind".to_owned());
            }
            Err(error) => return ignored(stated, error.to_string()),
        };
        let name = object_text(&info.kind.name(), &key.namespace, &key.name);
        if let Some(reason) = self.unread(info, &object) {
            return ignored(name, reason);
        }
        let row = Inputs::collection(info.kind).map(|collection| (collection, key.clone()));
        let change = |change, reason, row| ObjectChange { object: name.clone(), line, change, reason, row };
        let deleted = ParsedObject { kind: info.kind, key: key.clone(), object: None, rejects: Vec::new() };
        if self.delete {
            let (row, parsed) = match info.kind {
                Kind::ConfigMap => match self.config_map(deleted) {
                    Some((row, parsed)) => (Some(row), parsed),
                    None => return ignored(name, self.unused_config_map()),
                },
                _ => (row, deleted),
            };
            return (change(Effect::Deleted, None, row), Some(parsed));
        }
        let has_status = object.get("status").is_some_and(|status| !status.is_null());
        self.fill_in(&mut object, info, &key);
        let mut parsed = match parse_object(&cluster.id, &cluster.domain, &object) {
            Ok(parsed) => parsed,
            Err(error) => return ignored(name, error.to_string()),
        };
        if info.kind == Kind::ConfigMap {
            // Admission does not check ConfigMaps: an invalid one is stored, and the last valid settings stay.
            return match self.config_map(parsed) {
                Some((row, parsed)) => (change(Effect::Changed, None, Some(row)), Some(parsed)),
                None => ignored(name, self.unused_config_map()),
            };
        }
        if !self.options.from_files && parsed.rejects.iter().any(|reject| reject.severity.is_refusal()) {
            let reason = "admission refuses it: see the findings".to_owned();
            return (change(Effect::Refused, Some(reason), None), None);
        }
        if let Some(value) = &mut parsed.object {
            keep_live_fields(value, has_status, &key, self.live, self.inputs);
        }
        (change(Effect::Changed, None, row), Some(parsed))
    }

    /// What sources would commit for a ConfigMap, with the input and the key of its record. `None` if nothing is derived from it.
    fn config_map(&mut self, parsed: ParsedObject) -> Option<((&'static str, ObjectKey), ParsedObject)> {
        if self.mesh.is_config_map(&parsed.key) {
            let combined = self.mesh.combine(parsed);
            return Some(((Inputs::collection(Kind::ConfigMap)?, combined.key.clone()), combined));
        }
        let now = match parsed.object {
            Some(Object::Roots(_)) => Some(Inputs::ROOT_BUNDLES),
            Some(Object::GatewayParameters(_)) => Some(Inputs::GATEWAY_PARAMETERS),
            _ => None,
        };
        let known = [Inputs::ROOT_BUNDLES, Inputs::GATEWAY_PARAMETERS];
        let before = || known.into_iter().find(|input| self.live.find(input, &parsed.key).is_some());
        now.or_else(before).map(|input| ((input, parsed.key.clone()), parsed))
    }

    fn unused_config_map(&self) -> String {
        let mesh = self.mesh.key();
        format!("nothing is derived from it: the mesh config is in ConfigMap {}/{}", mesh.namespace, mesh.name)
    }

    /// The reason why the control plane does not read the object.
    fn unread(&self, info: &KindInfo, object: &Value) -> Option<String> {
        let cluster = &self.options.cluster;
        if !cluster.reads(info.kind) {
            return Some("the control plane is configured not to read this kind".to_owned());
        }
        if !cluster.reads_revision_of(info, object) {
            return Some(format!("it is for another revision than {:?}", cluster.revision.as_str()));
        }
        (Inputs::collection(info.kind).is_none()).then(|| "nothing is derived from this kind".to_owned())
    }

    /// Adds the metadata that the object has once it is applied: that of the live object, or that of a new one.
    fn fill_in(&self, object: &mut Value, info: &KindInfo, key: &ObjectKey) {
        let collection = Inputs::collection(info.kind).unwrap_or_default();
        let (live, origin) = self.live.find(collection, key).unzip();
        let created = live.as_ref().and_then(|live| live.pointer("/meta/created").or_else(|| live.get("created")));
        let created = created.and_then(Value::as_i64).and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
        let created = match (created, self.options.from_files) {
            (Some(created), _) => created.to_string(),
            (None, true) => FILE_CREATION_TIME.to_owned(),
            (None, false) => jiff::Timestamp::now().to_string(),
        };
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        let fill = |metadata: &mut Map<String, Value>, name: &str, value: String| {
            let field = metadata.entry(name).or_insert(Value::Null);
            if field.is_null() {
                *field = value.into();
            }
        };
        fill(metadata, "creationTimestamp", created);
        if info.is_custom() {
            let version =
                origin.flatten().filter(|_| !self.options.from_files).map(|origin| origin.version.to_string());
            fill(metadata, "resourceVersion", version.unwrap_or_else(|| "1".to_owned()));
        }
    }
}

/// Kind and name as the document states them.
fn stated_name(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    object_text(text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
}
