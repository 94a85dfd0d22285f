//! The documents of a file, with the proxy in their pod templates.

use serde_json::Value;
use sluice_inject::ObjectInjection;
use sluice_install::to_yaml;
use sluice_parse::yaml::{Chunk, Limits, split_documents};

use super::configuration::Configuration;

/// The result for a file.
#[derive(Debug, Default)]
pub(super) struct InjectedFile {
    /// The documents, each with a line `---` behind it, as istioctl writes them.
    pub(super) text: String,
    /// Workloads that are not injected, and why.
    pub(super) warnings: Vec<String>,
}

/// A file that is not injected.
#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentError {
    /// A document is no YAML, or no object.
    #[error("line {line}: {reason}")]
    Invalid { line: usize, reason: String },
    /// The webhook would deny the pods.
    #[error("line {line}: {object}: {reason}")]
    Denied { line: usize, object: String, reason: String },
}

/// Injects the objects of all documents. A document without workloads stays as it is written.
pub(super) fn inject(
    text: &str,
    namespace: &str,
    configuration: &Configuration,
) -> Result<InjectedFile, DocumentError> {
    let mut injected = InjectedFile::default();
    for chunk in split_documents(text) {
        add_chunk(&chunk, namespace, configuration, &mut injected)?;
    }
    Ok(injected)
}

fn add_chunk(
    chunk: &Chunk<'_>,
    namespace: &str,
    configuration: &Configuration,
    injected: &mut InjectedFile,
) -> Result<(), DocumentError> {
    let documents = chunk.parse(&Limits::default());
    let documents = documents.map_err(|error| DocumentError::Invalid { line: error.line, reason: error.reason })?;
    let mut is_changed = false;
    let mut results = Vec::new();
    for document in documents {
        let line = document.line;
        let mut object = document.value;
        is_changed |= inject_object(&mut object, line, namespace, configuration, &mut injected.warnings)?;
        results.push((line, object));
    }
    if !is_changed {
        let text = chunk.text.strip_prefix("---").map_or(chunk.text, |rest| rest.trim_start_matches([' ', '\t']));
        push_document(text.trim_start_matches(['\r', '\n']), &mut injected.text);
        return Ok(());
    }
    for (line, object) in results {
        let yaml = to_yaml(&object).map_err(|reason| DocumentError::Invalid { line, reason })?;
        push_document(&yaml, &mut injected.text);
    }
    Ok(())
}

fn push_document(document: &str, text: &mut String) {
    text.push_str(document);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str("---\n");
}

/// Injects an object, or the items of a list. Returns whether anything is changed.
fn inject_object(
    object: &mut Value,
    line: usize,
    namespace: &str,
    configuration: &Configuration,
    warnings: &mut Vec<String>,
) -> Result<bool, DocumentError> {
    if let Some(items) = items_of_list(object) {
        let mut is_changed = false;
        for item in items {
            is_changed |= inject_object(item, line, namespace, configuration, warnings)?;
        }
        return Ok(is_changed);
    }
    let name = name_of(object);
    let skipped = |reason: &str| format!("===> Skipping injection because {name} has {reason}");
    match configuration.inject(object, namespace) {
        Ok(ObjectInjection::NoPods) => {}
        Ok(ObjectInjection::HostNetwork) => warnings.push(skipped("host networking enabled")),
        Ok(ObjectInjection::Disabled) => warnings.push(skipped("sidecar injection disabled")),
        Ok(ObjectInjection::Injected(injected)) => {
            *object = injected;
            return Ok(true);
        }
        Err(reason) => return Err(DocumentError::Denied { line, object: name, reason }),
    }
    Ok(false)
}

/// The items of a `List`, or of a typed list such as `PodList`, with the kind of which they are.
fn items_of_list(object: &mut Value) -> Option<&mut Vec<Value>> {
    let item_kind = object["kind"].as_str()?.strip_suffix("List")?.to_owned();
    let api_version = object["apiVersion"].clone();
    let items = object.get_mut("items")?.as_array_mut()?;
    if !item_kind.is_empty() {
        for fields in items.iter_mut().filter_map(Value::as_object_mut) {
            fields.entry("kind").or_insert_with(|| item_kind.as_str().into());
            fields.entry("apiVersion").or_insert_with(|| api_version.clone());
        }
    }
    Some(items)
}

/// `Deployment "shop/cart"`, as istioctl names objects.
fn name_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
    let name = text(if metadata["name"].is_null() { &metadata["generateName"] } else { &metadata["name"] });
    match text(&metadata["namespace"]).as_str() {
        "" => format!("{kind} {name:?}"),
        namespace => format!("{kind} \"{namespace}/{name}\""),
    }
}
