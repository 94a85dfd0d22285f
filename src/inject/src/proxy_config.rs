//! The proxy configuration of a pod, from the general to the specific: defaults, `defaultConfig` of the mesh config,
//! ProxyConfig resource of the root namespace, of the pod's namespace, annotation, ProxyConfig resource of the workload.
//!
//! It is a protobuf message, because templates read any field, and the pod receives all fields that are set.

use std::sync::LazyLock;

use prost_reflect::{DynamicMessage, MessageDescriptor, ReflectMessage, Value as Proto};
use serde_json::{Value as Json, json};
use sluice_model::ProxyConfigResource;
use sluice_parse::default_proxy_config;
use sluice_parse::yaml::{Limits, parse_value};
use sluice_proto::json::{decode_dynamic, encode_dynamic};

/// Full name of the message.
const MESSAGE: &str = "istio.mesh.v1alpha1.ProxyConfig";
const METADATA: &str = "proxy_metadata";
const HEADERS: &str = "proxy_headers";
/// Headers that keep their setting if a later configuration has other headers.
const KEPT_HEADERS: [&str; 5] =
    ["forwarded_client_cert", "request_id", "attempt_count", "server", "envoy_debug_headers"];
/// Fields that pods do not receive while they have their default.
const LEFT_OUT: [&str; 14] = [
    "config_path",
    "binary_path",
    "control_plane_auth_policy",
    "service_cluster",
    "drain_duration",
    "termination_drain_duration",
    "discovery_address",
    "envoy_metrics_service",
    "envoy_access_log_service",
    "tracing",
    "proxy_admin_port",
    "stat_name_length",
    "status_port",
    "concurrency",
];

static DEFAULTS: LazyLock<Option<DynamicMessage>> = LazyLock::new(|| {
    let descriptor = descriptor(MESSAGE)?;
    decode_dynamic(&descriptor, &default_proxy_config()).ok().map(|decoded| decoded.message)
});

/// The descriptor of a message that the pool always has.
pub(crate) fn descriptor(name: &str) -> Option<MessageDescriptor> {
    sluice_proto::pool().get_message_by_name(name)
}

/// The configuration of a proxy that nothing configures.
pub(crate) fn defaults() -> DynamicMessage {
    let empty = || DynamicMessage::new(descriptor(MESSAGE).expect("the pool has ProxyConfig"));
    DEFAULTS.clone().unwrap_or_else(empty)
}

/// The proxy configuration in the YAML text of an annotation.
pub(crate) fn parse(yaml: &str) -> Result<Json, String> {
    let value = parse_value(yaml, &Limits::default()).map_err(|error| error.to_string())?;
    let value = if value.is_null() { json!({}) } else { value };
    decode(&value)?;
    Ok(value)
}

fn decode(value: &Json) -> Result<DynamicMessage, String> {
    let descriptor = descriptor(MESSAGE).ok_or("the message type is unknown")?;
    decode_dynamic(&descriptor, value).map(|decoded| decoded.message).map_err(|error| error.to_string())
}

/// Applies a JSON object: every field that is present replaces that of `base`, also with its zero value.
pub(crate) fn apply(base: &mut DynamicMessage, value: &Json) -> Result<(), String> {
    let decoded = decode(value)?;
    let before = base.clone();
    for name in value.as_object().into_iter().flat_map(|fields| fields.keys()) {
        let descriptor = base.descriptor();
        let field = descriptor.get_field_by_json_name(name).or_else(|| descriptor.get_field_by_name(name));
        let Some(field) = field else { continue };
        if decoded.has_field(&field) {
            base.set_field(&field, decoded.get_field(&field).into_owned());
        } else {
            base.clear_field(&field);
        }
    }
    keep(base, &before);
    Ok(())
}

/// The proxy configuration of these JSON objects without defaults, from the general to the specific. A field that is present
/// replaces the earlier one, and `proxyMetadata` is joined.
///
/// # Errors
/// An object does not decode: the field and the reason.
pub fn merge_proxy_configs<'a>(layers: impl IntoIterator<Item = &'a Json>) -> Result<Json, String> {
    let mut merged = DynamicMessage::new(descriptor(MESSAGE).ok_or("the message type is unknown")?);
    for layer in layers {
        apply(&mut merged, layer)?;
    }
    Ok(encode_dynamic(&merged))
}

/// Applies the fields that `overlay` sets.
fn merge(base: &mut DynamicMessage, overlay: &DynamicMessage) {
    let before = base.clone();
    for (field, value) in overlay.fields() {
        base.set_field(&field, value.clone());
    }
    keep(base, &before);
}

/// `proxyMetadata` is joined, and some headers keep their setting.
fn keep(merged: &mut DynamicMessage, before: &DynamicMessage) {
    if let (Some(earlier), Some(later)) = (before.get_field_by_name(METADATA), merged.get_field_by_name(METADATA))
        && let (Proto::Map(earlier), Proto::Map(later)) = (earlier.into_owned(), later.into_owned())
    {
        let mut joined = earlier;
        joined.extend(later);
        merged.set_field_by_name(METADATA, Proto::Map(joined));
    }
    if before.has_field_by_name(HEADERS)
        && merged.has_field_by_name(HEADERS)
        && let (Some(earlier), Some(later)) = (before.get_field_by_name(HEADERS), merged.get_field_by_name(HEADERS))
        && let (Proto::Message(earlier), Proto::Message(mut later)) = (earlier.into_owned(), later.into_owned())
    {
        for name in KEPT_HEADERS {
            if !later.has_field_by_name(name)
                && earlier.has_field_by_name(name)
                && let Some(header) = earlier.get_field_by_name(name)
            {
                later.set_field_by_name(name, header.into_owned());
            }
        }
        merged.set_field_by_name(HEADERS, Proto::Message(later));
    }
}

/// The pod that a configuration is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) root_namespace: &'a str,
    pub(crate) namespace: &'a str,
    /// Labels of the pod.
    pub(crate) labels: &'a Json,
    /// Annotation `proxy.istio.io/config`.
    pub(crate) annotation: Option<&'a str>,
}

/// The configuration of a pod. An annotation that does not parse has no effect.
pub(crate) fn effective(
    mesh_default: &DynamicMessage,
    resources: &[&ProxyConfigResource],
    target: Target<'_>,
) -> DynamicMessage {
    let mut oldest_first = resources.to_vec();
    oldest_first.sort_by_key(|resource| (&resource.created, &resource.name, &resource.namespace));
    let of_namespace = |namespace: &str| {
        let mut found = oldest_first.iter().filter(|resource| resource.namespace.as_str() == namespace);
        found.find(|resource| resource.selector.is_none()).copied()
    };
    let mut config = defaults();
    merge(&mut config, mesh_default);
    if !target.root_namespace.is_empty() {
        apply_resource(&mut config, of_namespace(target.root_namespace));
    }
    if target.namespace != target.root_namespace {
        apply_resource(&mut config, of_namespace(target.namespace));
    }
    if let Some(annotated) = target.annotation.and_then(|yaml| parse(yaml).ok()).and_then(|value| decode(&value).ok()) {
        merge(&mut config, &annotated);
    }
    let selects = |resource: &ProxyConfigResource| {
        resource.selector.as_ref().is_some_and(|selector| {
            !selector.is_empty()
                && selector.iter().all(|(key, value)| target.labels[key.as_str()].as_str() == Some(value.as_str()))
        })
    };
    let of_workload =
        oldest_first.iter().find(|resource| resource.namespace.as_str() == target.namespace && selects(resource));
    apply_resource(&mut config, of_workload.copied());
    config
}

fn apply_resource(config: &mut DynamicMessage, resource: Option<&ProxyConfigResource>) {
    let Some(resource) = resource else { return };
    let mut value = json!({});
    if let Some(concurrency) = resource.concurrency {
        value["concurrency"] = json!(concurrency);
    }
    if !resource.environment.is_empty() {
        let environment = resource.environment.iter().map(|(key, value)| (key.to_string(), json!(value.as_str())));
        value["proxyMetadata"] = Json::Object(environment.collect());
    }
    if !resource.image_type.is_empty() {
        value["image"] = json!({"imageType": resource.image_type.as_str()});
    }
    if let Ok(overlay) = decode(&value) {
        merge(config, &overlay);
    }
}

/// The JSON of a message. Of a ProxyConfig, fields with default values are left out.
pub(crate) fn without_defaults(message: &DynamicMessage) -> Json {
    if message.descriptor().full_name() != MESSAGE {
        return encode_dynamic(message);
    }
    let defaults = defaults();
    let mut kept = message.clone();
    for name in LEFT_OUT {
        let is_default = kept.get_field_by_name(name) == defaults.get_field_by_name(name);
        if is_default && kept.has_field_by_name(name) == defaults.has_field_by_name(name) {
            kept.clear_field_by_name(name);
        }
    }
    encode_dynamic(&kept)
}

/// A text at a path of fields of the message, such as the kind of the image.
pub(crate) fn text_at(message: &DynamicMessage, path: &[&str]) -> Option<String> {
    let (name, rest) = path.split_first()?;
    if !message.has_field_by_name(name) {
        return None;
    }
    match (message.get_field_by_name(name)?.as_ref(), rest) {
        (Proto::String(text), []) => Some(text.clone()),
        (Proto::Message(inner), rest) => text_at(inner, rest),
        _ => None,
    }
}

/// A number of the message.
pub(crate) fn integer(message: &DynamicMessage, name: &str) -> i32 {
    message.get_field_by_name(name).and_then(|value| value.as_i32()).unwrap_or_default()
}

/// Whether an optional flag of the message is set and true.
pub(crate) fn flag(message: &DynamicMessage, name: &str) -> Option<bool> {
    if !message.has_field_by_name(name) {
        return None;
    }
    match message.get_field_by_name(name)?.as_ref() {
        Proto::Bool(flag) => Some(*flag),
        Proto::Message(wrapper) => {
            Some(wrapper.get_field_by_name("value").and_then(|value| value.as_bool()) == Some(true))
        }
        _ => None,
    }
}

/// Whether traffic is intercepted with TPROXY.
pub(crate) fn is_tproxy(message: &DynamicMessage) -> bool {
    message.get_field_by_name("interception_mode").and_then(|mode| mode.as_enum_number()) == Some(1)
}
