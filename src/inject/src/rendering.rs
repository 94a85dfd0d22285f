//! Renders the templates that a pod selects, and merges them into it (W04).

use std::collections::BTreeMap;
use std::sync::Arc;

use prost_reflect::DynamicMessage;
use serde_json::{Map, Value as Json, json};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_template::{NamedFields, Scope, Value, quoted};

use crate::annotations::{NATIVE_SIDECAR, PROXY_IMAGE_TYPE, TEMPLATES};
use crate::config::{InjectionConfig, Values};
use crate::mesh::Mesh;
use crate::message::message_value;
use crate::pod::{OBJECT_META, POD, POD_SPEC, PROXY, containers, find, merge, meta_text, name_of, normalize, record};
use crate::proxy_config::text_at;
use crate::workload::WorkloadMeta;

/// What templates render a pod from.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) config: &'a InjectionConfig,
    pub(crate) values: &'a Values,
    pub(crate) mesh: &'a Mesh,
    pub(crate) proxy_config: &'a DynamicMessage,
    pub(crate) workload: &'a WorkloadMeta,
    pub(crate) namespace: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) native_sidecars: bool,
    /// User and group of the proxy.
    pub(crate) ids: (i64, i64),
    pub(crate) compliance_policy: &'a str,
    pub(crate) environment: &'a BTreeMap<String, String>,
}

/// A pod with its templates.
pub(crate) struct Rendered {
    /// The pod, merged with the templates.
    pub(crate) merged: Json,
    /// What the templates add.
    pub(crate) template: Json,
}

/// Renders the templates of `pod`. They read `bare`, the pod before an earlier injection.
pub(crate) fn render(pod: &Json, bare: &Json, inputs: Inputs<'_>) -> Result<Rendered, String> {
    let data = data(bare, inputs);
    let scope = Scope::new(inputs.environment);
    let mut rendered = Rendered { merged: pod.clone(), template: json!({"metadata": {}, "spec": {}}) };
    for name in inputs.config.template_names(meta_text(pod, "annotations", TEMPLATES)) {
        let Some(template) = inputs.config.templates.get(&name) else {
            let known: Vec<&str> = inputs.config.templates.keys().map(String::as_str).collect();
            return Err(format!("requested template {} not found; have {}", quoted(&name), known.join(", ")));
        };
        let text = template.execute(&data, &scope).map_err(|failure| failure.to_string())?;
        let patch = parse_overlay(&text)
            .and_then(|patch| overlay(&mut rendered.template, patch.clone()).map(|()| patch))
            .map_err(|error| format!("failed applying injection overlay: {error}"))?;
        if is_native(&rendered.merged, inputs.native_sidecars)
            && find(containers(&rendered.template, "initContainers"), PROXY).is_some()
        {
            move_to_init_containers(&mut rendered.merged);
        }
        overlay(&mut rendered.merged, patch).map_err(|error| {
            format!("failed parsing generated injected YAML (check Istio sidecar injector configuration): {error}")
        })?;
    }
    Ok(rendered)
}

fn is_native(pod: &Json, by_default: bool) -> bool {
    match meta_text(pod, "annotations", NATIVE_SIDECAR) {
        Some("true") => true,
        Some("false") => false,
        _ => by_default,
    }
}

/// A container of the pod that changes the proxy has to be where the template puts the proxy.
fn move_to_init_containers(pod: &mut Json) {
    let Some(spec) = pod.get_mut("spec").and_then(Json::as_object_mut) else { return };
    let Some(Json::Array(items)) = spec.get_mut("containers") else { return };
    let Some(index) = items.iter().position(|item| name_of(item) == PROXY) else { return };
    let proxy = items.remove(index);
    let init = spec.entry("initContainers").or_insert_with(|| json!([]));
    if init.is_null() {
        *init = json!([]);
    }
    if let Json::Array(init) = init {
        init.push(proxy);
    }
}

/// Parses rendered YAML.
fn parse_overlay(text: &str) -> Result<Map<String, Json>, String> {
    let limits = Limits { allows_duplicate_keys: true, ..Limits::default() };
    match parse_value(text, &limits) {
        Ok(Json::Object(patch)) => Ok(patch),
        Ok(Json::Null) => Ok(Map::new()),
        Ok(_) | Err(_) => Err("strategic merge: invalid JSON document".to_owned()),
    }
}

/// Merges rendered fields into a pod.
fn overlay(pod: &mut Json, patch: Map<String, Json>) -> Result<(), String> {
    if let Some(fields) = pod.as_object_mut() {
        merge(fields, patch, &POD).map_err(|error| format!("strategic merge: {error}"))?;
    }
    normalize(pod).map_err(|error| format!("unmarshal patched pod: {error}"))
}

/// The data of a template.
fn data(bare: &Json, inputs: Inputs<'_>) -> Value {
    let annotated = meta_text(bare, "annotations", PROXY_IMAGE_TYPE);
    let image_type = text_at(inputs.proxy_config, &["image", "image_type"]).unwrap_or_default();
    let fields = |type_name, fields: Vec<(&'static str, Value)>| {
        Value::Object(Arc::new(NamedFields { type_name, fields: fields.into_iter().collect() }))
    };
    let text = |text: &str| Value::text(text);
    let workload = inputs.workload;
    fields(
        "*inject.SidecarTemplateData",
        vec![
            (
                "TypeMeta",
                fields(
                    "v1.TypeMeta",
                    vec![("Kind", text(&workload.kind)), ("APIVersion", text(&workload.api_version))],
                ),
            ),
            (
                "DeploymentMeta",
                fields(
                    "types.NamespacedName",
                    vec![("Namespace", text(inputs.namespace)), ("Name", text(&workload.name))],
                ),
            ),
            ("ObjectMeta", record(&bare["metadata"], &OBJECT_META)),
            ("Spec", record(&bare["spec"], &POD_SPEC)),
            ("ProxyConfig", message_value(inputs.proxy_config)),
            ("MeshConfig", message_value(&inputs.mesh.message)),
            ("Values", inputs.values.value.clone()),
            ("Revision", text(inputs.revision)),
            ("NativeSidecars", Value::Bool(inputs.native_sidecars)),
            ("ProxyImage", Value::text(inputs.values.proxy_image(&image_type, annotated))),
            ("ProxyInitImage", Value::text(inputs.values.init_image(annotated))),
            ("ProxyUID", Value::Integer(inputs.ids.0)),
            ("ProxyGID", Value::Integer(inputs.ids.1)),
            ("InboundTrafficPolicyMode", text(inputs.mesh.inbound_policy())),
            ("CompliancePolicy", text(inputs.compliance_policy)),
        ],
    )
}
