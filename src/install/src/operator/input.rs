//! IstioOperator files, and settings of the command line.

use serde_json::{Map, Value as Json};
use sluice_parse::yaml::{Limits, parse_documents};

use crate::error::InstallError;
use crate::values::{parse_path, parse_scalar, set};

/// Paths below `spec` whose values on the command line are texts, whatever they look like.
const TEXT_PATHS: [&str; 6] = [
    "compatibilityVersion",
    "values.compatibilityVersion",
    "tag",
    "values.global.tag",
    "meshConfig.defaultConfig.proxyMetadata.",
    "values.meshConfig.defaultConfig.proxyMetadata.",
];

/// The document of a file, without nulls in place of maps.
pub(super) fn read_file(name: &str, text: &str) -> Result<Json, InstallError> {
    let mut documents = Vec::new();
    for document in parse_documents(text, &Limits::default()) {
        documents.push(document.map_err(|error| InstallError::input(name, error))?.value);
    }
    let [document] = documents.as_mut_slice() else {
        let reason = format!("the file has {} documents; it must contain one IstioOperator", documents.len());
        return Err(InstallError::input(name, reason));
    };
    let mut document = std::mem::take(document);
    let mut field = |field: &str| document.as_object_mut().and_then(|fields| fields.remove(field));
    let (kind, version) = (field("kind").unwrap_or_default(), field("apiVersion").unwrap_or_default());
    if kind != "IstioOperator" || version != "install.istio.io/v1alpha1" {
        let reason = format!("kind {kind} of {version} is not IstioOperator of \"install.istio.io/v1alpha1\"");
        return Err(InstallError::input(name, reason));
    }
    let (metadata, spec) = (field("metadata").unwrap_or_default(), field("spec").unwrap_or_default());
    // A status is what an operator wrote.
    field("status");
    if let Some(unknown) = document.as_object().and_then(|fields| fields.keys().next()) {
        return Err(InstallError::input(format!("{name}: {unknown}"), "this field is not known"));
    }
    let mut out = Map::new();
    for (key, value) in [("metadata", metadata), ("spec", spec)] {
        match value {
            Json::Null => {}
            Json::Object(_) => drop(out.insert(key.to_owned(), value)),
            _ => return Err(InstallError::input(format!("{name}: {key}"), "a map is expected")),
        }
    }
    Ok(Json::Object(out))
}

/// Applies `PATH=VALUE` to the spec.
pub(super) fn apply_setting(spec: &mut Json, setting: &str) -> Result<(), InstallError> {
    let fail = |reason: String| InstallError::input(format!("--set {setting}"), reason);
    let Some((path, value)) = setting.split_once('=') else { return Err(fail("PATH=VALUE is expected".to_owned())) };
    let path = path.trim().trim_start_matches("spec.");
    let is_text = TEXT_PATHS.iter().any(|text| path == *text || (text.ends_with('.') && path.starts_with(text)));
    let value = if is_text { Json::String(value.to_owned()) } else { parse_scalar(value.trim()) };
    let steps = parse_path(path).map_err(fail)?;
    set(spec, &steps, value).map_err(fail)
}
