//! The configuration of a control plane in the ConfigMaps of its cluster.

use serde_json::{Value, json};
use sluice_parse::yaml::{Limits, parse_value};

use crate::connect::QueryError;
use crate::connect::kubernetes::KubeconfigCluster;
use crate::inject_args::ControlPlaneArgs;

/// ConfigMap with the mesh config of the revision without a name.
pub(crate) const MESH_CONFIG_MAP: &str = "istio";
/// ConfigMap with the configuration of its injector.
pub(crate) const INJECTOR_CONFIG_MAP: &str = "istio-sidecar-injector";

/// The name of a ConfigMap of a revision. `base` is that of the revision without a name.
pub(crate) fn config_map_name(base: &str, target: &ControlPlaneArgs) -> String {
    match target.named_revision() {
        None => base.to_owned(),
        Some(revision) => format!("{base}-{revision}"),
    }
}

/// A ConfigMap. `flags` are those that replace it.
///
/// # Errors
/// It does not exist, or the API server does not answer.
pub(crate) async fn config_map(
    cluster: &KubeconfigCluster,
    namespace: &str,
    name: &str,
    flags: &str,
) -> Result<Value, QueryError> {
    let found = cluster.find(&format!("/api/v1/namespaces/{namespace}/configmaps/{name}")).await?;
    found.ok_or_else(|| {
        let hint = format!("--istioNamespace and --revision name another control plane, {flags}");
        QueryError::Cluster(format!("namespace {namespace:?} has no ConfigMap {name:?}; {hint}"))
    })
}

/// A text of a ConfigMap.
///
/// # Errors
/// The ConfigMap does not have it.
pub(crate) fn data_of(config_map: &Value, name: &str, key: &str) -> Result<String, QueryError> {
    let text = config_map["data"][key].as_str().map(str::to_owned);
    text.ok_or_else(|| QueryError::Cluster(format!("ConfigMap {name}: data.{key} is missing")))
}

/// The object in a YAML text; an empty one for an empty text.
///
/// # Errors
/// The text is not YAML, or no object. The message begins with `what`.
pub(crate) fn yaml_object(what: &str, text: &str) -> Result<Value, QueryError> {
    let value = parse_value(text, &Limits::default());
    match value.map_err(|error| QueryError::Invalid(format!("{what}: {error}")))? {
        Value::Null => Ok(json!({})),
        value @ Value::Object(_) => Ok(value),
        _ => Err(QueryError::Invalid(format!("{what}: an object is expected"))),
    }
}
