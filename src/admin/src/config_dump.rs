//! `config_dump`: the resources that a proxy was sent, in the format of Envoy's dump (O08).

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use sluice_auth::Viewer;
use sluice_model::{ResourceType, lb_endpoint};
use sluice_xds_protocol::ResolvedResource;

use crate::answer::{self, Parameters};
use crate::{AdminState, proxies};

/// Prefix of the types of the parts of Envoy's dump.
const ADMIN: &str = "type.googleapis.com/envoy.admin.v3.";

pub(crate) async fn serve(
    State(state): State<Arc<AdminState>>,
    Extension(viewer): Extension<Viewer>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let Some(proxy) = parameters.get("proxyID") else { return answer::missing_proxy_id() };
    let Some(held) = state.status.config_dump(proxy, &viewer) else { return answer::not_connected() };
    let Some(types) = parameters.get("types").filter(|types| !types.is_empty()) else {
        let configs = sections(&held, parameters.contains_key("include_eds"));
        return answer::json(&json!({"configs": configs}), &parameters);
    };
    let mut configs = Vec::new();
    for text in types.split(',') {
        let Some(kind) = proxies::resource_type(text) else {
            return answer::fail(StatusCode::BAD_REQUEST, &format!("type {text:?} is unknown"));
        };
        configs.extend(held.get(&kind).into_iter().flatten().map(|resource| to_json(kind, resource)));
    }
    answer::json(&json!({"configs": configs}), &parameters)
}

/// `edsz`: the dump of endpoints only.
pub(crate) async fn endpoints(
    state: State<Arc<AdminState>>,
    viewer: Extension<Viewer>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    serve(state, viewer, of_type(parameters, "eds")).await
}

/// `ecdsz`: the dump of extensions only.
pub(crate) async fn extensions(
    state: State<Arc<AdminState>>,
    viewer: Extension<Viewer>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    serve(state, viewer, of_type(parameters, "ecds")).await
}

fn of_type(mut parameters: Parameters, kind: &str) -> Query<Parameters> {
    parameters.insert("types".to_owned(), kind.to_owned());
    Query(parameters)
}

/// The parts of a proxy's dump, in JSON with their types.
pub(crate) fn parts(state: &AdminState, proxy: &str, viewer: &Viewer) -> Option<Vec<Value>> {
    state.status.config_dump(proxy, viewer).map(|held| sections(&held, false))
}

/// The name table of a proxy, whether or not it subscribes to it.
pub(crate) async fn name_table(
    State(state): State<Arc<AdminState>>,
    Extension(viewer): Extension<Viewer>,
    Query(parameters): Query<Parameters>,
) -> Response<Body> {
    let Some(proxy) = parameters.get("proxyID") else { return answer::missing_proxy_id() };
    let Some(key) = state.status.find(proxy, &viewer) else { return answer::not_connected() };
    let tables = state.status.current(&key, ResourceType::NameTable);
    let tables: Vec<Value> = tables.iter().map(|resource| to_json(ResourceType::NameTable, resource)).collect();
    answer::json(&json!({"configs": tables}), &parameters)
}

/// The parts of a dump in Envoy's order.
fn sections(held: &BTreeMap<ResourceType, Vec<ResolvedResource>>, with_endpoints: bool) -> Vec<Value> {
    let all = |kind: ResourceType, form: &dyn Fn(&ResolvedResource, Value) -> Value| -> Vec<Value> {
        held.get(&kind).into_iter().flatten().map(|resource| form(resource, to_json(kind, resource))).collect()
    };
    let simple = |field: &'static str| {
        move |resource: &ResolvedResource, value: Value| {
            let mut part = json!({"versionInfo": resource.version.to_string()});
            if let Some(part) = part.as_object_mut() {
                part.insert(field.to_owned(), value);
            }
            part
        }
    };
    let hosts = parts_of_wholes(ResourceType::VirtualHost, held);
    let table = |resource: &ResolvedResource, mut value: Value| {
        // The format of Envoy for a table with virtual hosts by VHDS.
        if value.get("vhds").is_some() {
            value["virtualHosts"] = hosts.get(resource.name.as_str()).cloned().unwrap_or_default().into();
        }
        simple("routeConfig")(resource, value)
    };
    let listener = |resource: &ResolvedResource, value: Value| {
        let state = json!({"versionInfo": resource.version.to_string(), "listener": value});
        json!({"name": resource.name, "activeState": state})
    };
    let section = |name: &str, field: &str, parts: Vec<Value>| {
        let mut section = json!({"@type": format!("{ADMIN}{name}")});
        if let Some(section) = section.as_object_mut().filter(|_| !parts.is_empty()) {
            section.insert(field.to_owned(), parts.into());
        }
        section
    };
    let mut sections = vec![
        section("BootstrapConfigDump", "", Vec::new()),
        section("ClustersConfigDump", "dynamicActiveClusters", all(ResourceType::Cluster, &simple("cluster"))),
    ];
    if with_endpoints {
        let endpoints = parts_of_wholes(ResourceType::LbEndpoint, held);
        let assignment = |resource: &ResolvedResource, mut value: Value| {
            // The format of Envoy for endpoints by LEDS.
            for locality in value["endpoints"].as_array_mut().into_iter().flatten() {
                let endpoints = endpoints_of(locality, &endpoints);
                if let (Some(endpoints), Some(fields)) = (endpoints, locality.as_object_mut()) {
                    fields.remove("ledsClusterLocalityConfig");
                    fields.insert("lbEndpoints".to_owned(), endpoints.into());
                }
            }
            simple("endpointConfig")(resource, value)
        };
        let assignments = all(ResourceType::Endpoint, &assignment);
        sections.push(section("EndpointsConfigDump", "dynamicEndpointConfigs", assignments));
    }
    sections.extend([
        section("ListenersConfigDump", "dynamicListeners", all(ResourceType::Listener, &listener)),
        section("ScopedRoutesConfigDump", "", Vec::new()),
        section("RoutesConfigDump", "dynamicRouteConfigs", all(ResourceType::Route, &table)),
        section("SecretsConfigDump", "dynamicActiveSecrets", all(ResourceType::Secret, &simple("secret"))),
        section("EcdsConfigDump", "ecdsFilters", all(ResourceType::ExtensionConfig, &simple("ecdsFilter"))),
    ]);
    sections
}

/// The resources of a type as JSON, by the name of the whole that they are part of: virtual hosts by table (VHDS), endpoints by collection
/// (LEDS).
fn parts_of_wholes(
    kind: ResourceType,
    held: &BTreeMap<ResourceType, Vec<ResolvedResource>>,
) -> BTreeMap<&str, Vec<Value>> {
    let mut parts: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for part in held.get(&kind).into_iter().flatten() {
        let Some((whole, _)) = part.name.rsplit_once('/') else { continue };
        let mut value = to_json(kind, part);
        if let Some(fields) = value.as_object_mut() {
            fields.remove("@type");
        }
        parts.entry(whole).or_default().push(value);
    }
    parts
}

/// The endpoints of a locality of an assignment that uses LEDS.
fn endpoints_of(locality: &Value, endpoints: &BTreeMap<&str, Vec<Value>>) -> Option<Vec<Value>> {
    let name = locality["ledsClusterLocalityConfig"]["ledsCollectionName"].as_str()?;
    Some(endpoints.get(name.strip_suffix(lb_endpoint::ALL)?).cloned().unwrap_or_default())
}

/// A resource as JSON, with redacted secrets.
fn to_json(kind: ResourceType, resource: &ResolvedResource) -> Value {
    message_json(kind, &resource.bytes())
}

/// A message of this type as JSON, with redacted secrets.
pub(crate) fn message_json(kind: ResourceType, bytes: &[u8]) -> Value {
    let mut value = sluice_proto::json::encode_any(kind.type_url(), bytes);
    let is_secret = matches!(kind, ResourceType::Secret | ResourceType::ExtensionConfig | ResourceType::Agentgateway);
    // An EnvoyFilter may add keys to any resource. Names of files stay there, as in Envoy's own form of these resources.
    redact(&mut value, if is_secret { hide } else { hide_content });
    // Other resources of this type also have a key, which is their name.
    if let Some(key) =
        value.pointer_mut("/policy/backend/backendTls/key").filter(|_| kind == ResourceType::Agentgateway)
    {
        hide(key);
    }
    value
}

/// Fields with secrets, wherever they are.
const SECRET_FIELDS: &[&str] = &[
    "accessToken",
    "authPassword",
    "genericSecret",
    "ISTIO_META_WASM_IMAGE_PULL_SECRET",
    "jsonKey",
    "password",
    "pkcs12",
    "privateKey",
    "secretAccessKey",
    "sessionTicketKeys",
    "sessionToken",
];
/// Fields of a data source.
const DATA_FIELDS: &[&str] = &["filename", "inlineBytes", "inlineString", "environmentVariable"];
const REDACTED: &str = "[redacted]";

/// Redacts the fields with secrets. The result is still a valid message.
fn redact(value: &mut Value, hide: fn(&mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if SECRET_FIELDS.contains(&name.as_str()) { hide(field) } else { redact(field, hide) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, hide)),
        _ => {}
    }
}

/// Redacts data sources with content and texts. Data sources that name a file or a variable stay.
fn hide_content(value: &mut Value) {
    match value {
        Value::Object(fields) if fields.contains_key("inlineBytes") || fields.contains_key("inlineString") => {
            *value = json!({"inlineString": REDACTED});
        }
        Value::Object(fields) if is_data_source(fields) => {}
        Value::Object(fields) => fields.values_mut().for_each(hide_content),
        Value::Array(items) => items.iter_mut().for_each(hide_content),
        Value::String(text) => *text = REDACTED.into(),
        _ => {}
    }
}

fn is_data_source(fields: &Map<String, Value>) -> bool {
    fields.keys().any(|name| DATA_FIELDS.contains(&name.as_str()))
}

/// Redacts every data source and every other value.
fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) if is_data_source(fields) => *value = json!({"inlineString": REDACTED}),
        Value::Object(fields) => fields.values_mut().for_each(hide),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::String(text) => *text = REDACTED.into(),
        other => *other = Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_values_are_redacted_at_all_levels() {
        let mut value = json!({
            "name": "a",
            "tlsCertificate": {"certificateChain": {"inlineBytes": "QQ=="}, "privateKey": {"inlineBytes": "Qg=="}},
            "sessionTicketKeys": {"keys": [{"inlineString": "b"}, {"filename": "c"}]},
            "genericSecret": {"secret": {"inlineString": "d"}, "secrets": {"x": {"environmentVariable": "e"}, "y": "f", "z": 7}},
        });
        redact(&mut value, hide);
        let hidden = json!({"inlineString": "[redacted]"});
        let expect = json!({
            "name": "a",
            "tlsCertificate": {"certificateChain": {"inlineBytes": "QQ=="}, "privateKey": hidden},
            "sessionTicketKeys": {"keys": [hidden, hidden]},
            "genericSecret": {"secret": hidden, "secrets": {"x": hidden, "y": "[redacted]", "z": null}},
        });
        assert_eq!(value, expect);
    }

    #[test]
    fn content_of_secrets_is_redacted_in_other_resources() {
        let mut value = json!({
            "commonTlsContext": {
                "tlsCertificates": [
                    {"certificateChain": {"inlineString": "a"}, "privateKey": {"inlineString": "b"}},
                    {"privateKey": {"filename": "c"}, "password": {"inlineBytes": "ZA==", "watchedDirectory": {"path": "e"}}},
                ],
            },
            "sessionTicketKeys": {"keys": [{"inlineBytes": "Zg=="}, {"filename": "g"}]},
            "googleGrpc": {"callCredentials": [{"accessToken": "h"}]},
        });
        redact(&mut value, hide_content);
        let hidden = json!({"inlineString": "[redacted]"});
        let expect = json!({
            "commonTlsContext": {
                "tlsCertificates": [
                    {"certificateChain": {"inlineString": "a"}, "privateKey": hidden},
                    {"privateKey": {"filename": "c"}, "password": hidden},
                ],
            },
            "sessionTicketKeys": {"keys": [hidden, {"filename": "g"}]},
            "googleGrpc": {"callCredentials": [{"accessToken": "[redacted]"}]},
        });
        assert_eq!(value, expect);
    }
}
