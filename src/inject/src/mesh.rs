//! The mesh config as templates see it.

use std::collections::BTreeSet;

use prost_reflect::{DynamicMessage, ReflectMessage, Value as Proto};
use serde_json::{Value as Json, json};
use sluice_proto::json::{decode_dynamic, encode_dynamic};

use crate::proxy_config::{self, descriptor};

const MESSAGE: &str = "istio.mesh.v1alpha1.MeshConfig";

/// The mesh config with its defaults.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    /// The whole message.
    pub(crate) message: DynamicMessage,
    /// `defaultConfig`.
    pub(crate) default_config: DynamicMessage,
    /// `rootNamespace`.
    pub(crate) root_namespace: String,
}

/// The mesh config of these layers with its defaults as JSON, for `/debug/mesh`.
///
/// # Errors
/// A layer does not decode: the field and the reason.
pub fn mesh_config(layers: &[Json]) -> Result<Json, String> {
    Mesh::new(layers).map(|mesh| encode_dynamic(&mesh.message))
}

/// The default mesh config, as far as templates use it.
fn defaults() -> Json {
    json!({
        "enableTracing": true,
        "protocolDetectionTimeout": "0s",
        "ingressService": "istio-ingressgateway",
        "ingressControllerMode": "STRICT",
        "ingressClass": "istio",
        "trustDomain": "cluster.local",
        "enableAutoMtls": true,
        "outboundTrafficPolicy": {"mode": "ALLOW_ANY"},
        "inboundTrafficPolicy": {"mode": "PASSTHROUGH"},
        "localityLbSetting": {"enabled": true},
        "rootNamespace": "istio-system",
        "proxyListenPort": 15001,
        "proxyInboundListenPort": 15006,
        "connectTimeout": "10s",
        "defaultServiceExportTo": ["*"],
        "defaultVirtualServiceExportTo": ["*"],
        "defaultDestinationRuleExportTo": ["*"],
        "dnsRefreshRate": "60s",
        "enablePrometheusMerge": true,
        "defaultProviders": {},
        "extensionProviders": [
            {"name": "prometheus", "prometheus": {}},
            {"name": "stackdriver", "stackdriver": {}},
            {"name": "envoy", "envoyFileAccessLog": {"path": "/dev/stdout"}},
        ],
    })
}

impl Mesh {
    /// The defaults with the fields of each layer, in order: a field that is present replaces the earlier one. `defaultConfig`
    /// and `defaultProviders` are merged, providers replace those of the same name, aliases are joined.
    pub(crate) fn new(layers: &[Json]) -> Result<Self, String> {
        let mut default_config = proxy_config::defaults();
        let mut merged = defaults();
        for layer in layers {
            if let Some(config) = layer.get("defaultConfig").filter(|config| !config.is_null()) {
                proxy_config::apply(&mut default_config, config).map_err(|error| format!("defaultConfig: {error}"))?;
            }
            for (name, value) in layer.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
                add_field(&mut merged, name, value);
            }
        }
        let descriptor = descriptor(MESSAGE).ok_or("the message type is unknown")?;
        let decoded = decode_dynamic(&descriptor, &merged).map_err(|error| error.to_string())?;
        let mut message = decoded.message;
        message.set_field_by_name("default_config", Proto::Message(default_config.clone()));
        let root_namespace = proxy_config::text_at(&message, &["root_namespace"]).unwrap_or_default();
        Ok(Self { message, default_config, root_namespace })
    }

    /// `statusPort` of `defaultConfig`.
    pub(crate) fn status_port(&self) -> i32 {
        proxy_config::integer(&self.default_config, "status_port")
    }

    /// Whether metrics of the application are merged into those of the proxy.
    pub(crate) fn merges_metrics(&self) -> bool {
        proxy_config::flag(&self.message, "enable_prometheus_merge").unwrap_or(true)
    }

    /// How inbound traffic reaches the application.
    pub(crate) fn inbound_policy(&self) -> &'static str {
        let policy = self.message.get_field_by_name("inbound_traffic_policy");
        let mode = policy.and_then(|policy| {
            let message = policy.as_message()?;
            let number = message.get_field_by_name("mode")?.as_enum_number()?;
            let descriptor = message.descriptor();
            let field = descriptor.get_field_by_name("mode")?;
            let kind = field.kind();
            Some(kind.as_enum()?.get_value(number)?.name().to_owned())
        });
        if mode.as_deref() == Some("LOCALHOST") { "localhost" } else { "passthrough" }
    }
}

fn add_field(merged: &mut Json, name: &str, value: &Json) {
    match name {
        "defaultConfig" => {}
        "defaultProviders" => {
            for (signal, providers) in value.as_object().into_iter().flatten() {
                merged[name][signal] = providers.clone();
            }
        }
        "extensionProviders" => {
            for provider in value.as_array().into_iter().flatten() {
                add_provider(&mut merged[name], provider);
            }
        }
        "trustDomainAliases" => {
            let known = merged[name].as_array().into_iter().flatten();
            let aliases: BTreeSet<&str> =
                known.chain(value.as_array().into_iter().flatten()).filter_map(Json::as_str).collect();
            let aliases = json!(aliases);
            merged[name] = aliases;
        }
        _ => merged[name] = value.clone(),
    }
}

fn add_provider(providers: &mut Json, provider: &Json) {
    let Json::Array(providers) = providers else { return };
    match providers.iter_mut().find(|known| known["name"] == provider["name"]) {
        Some(known) => *known = provider.clone(),
        None => providers.push(provider.clone()),
    }
}
