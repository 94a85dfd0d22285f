//! A dump of the configuration of a proxy: Envoy's own, or the control plane's in the same format.

use serde_json::{Map, Value, json};
use sluice_proto::json::{decode_any, encode_any};

/// Replaces texts and bytes of private keys.
const REDACTED: &str = "[redacted]";
/// Fields whose content is secret.
const SECRET_FIELDS: [&str; 5] = ["privateKey", "password", "sessionTicketKeys", "genericSecret", "pkcs12"];
/// Fields of a data source that hold content. Others name a file or a variable.
const CONTENT_FIELDS: [&str; 2] = ["inlineBytes", "inlineString"];
/// Fields with free keys: no names of fields of messages are below them.
const FREE_FIELDS: [&str; 3] = ["filterMetadata", "metadata", "filter_metadata"];

/// The sections of a dump, with the field names of JSON (`dynamicListeners`), and without private keys.
pub(crate) struct ConfigDump {
    pub(crate) sections: Vec<Value>,
}

impl ConfigDump {
    /// Reads a dump.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let dump: Value = serde_json::from_slice(text).map_err(|error| format!("is no JSON: {error}"))?;
        let Some(sections) = dump["configs"].as_array() else {
            return Err("is no dump of Envoy's configuration: field configs is missing".to_owned());
        };
        let mut sections: Vec<Value> = sections.iter().map(normalized).collect();
        sections.iter_mut().for_each(redact);
        Ok(Self { sections })
    }

    /// A section by the name of its message, such as `ClustersConfigDump`.
    pub(crate) fn section(&self, name: &str) -> Option<&Value> {
        let is_it = |section: &&Value| section["@type"].as_str().is_some_and(|it| it.rsplit('.').next() == Some(name));
        self.sections.iter().find(is_it)
    }

    /// Elements of lists of a section.
    fn elements<'d>(&'d self, section: &str, lists: &'d [&'d str]) -> impl Iterator<Item = &'d Value> {
        let section = self.section(section);
        let of = move |list: &&str| section.and_then(|section| section[*list].as_array()).into_iter().flatten();
        lists.iter().flat_map(of)
    }

    /// All clusters in use.
    pub(crate) fn clusters(&self) -> Vec<&Value> {
        resources(self.elements("ClustersConfigDump", &["dynamicActiveClusters", "staticClusters"]), "cluster")
    }

    /// Clusters of the control plane.
    pub(crate) fn dynamic_clusters(&self) -> Vec<&Value> {
        resources(self.elements("ClustersConfigDump", &["dynamicActiveClusters"]), "cluster")
    }

    /// All listeners in use.
    pub(crate) fn listeners(&self) -> Vec<&Value> {
        let mut listeners = self.dynamic_listeners();
        listeners.extend(resources(self.elements("ListenersConfigDump", &["staticListeners"]), "listener"));
        listeners
    }

    /// Listeners of the control plane.
    pub(crate) fn dynamic_listeners(&self) -> Vec<&Value> {
        let dynamic = self.elements("ListenersConfigDump", &["dynamicListeners"]);
        resources(dynamic.map(|listener| &listener["activeState"]), "listener")
    }

    /// All route tables in use.
    pub(crate) fn routes(&self) -> Vec<&Value> {
        resources(self.elements("RoutesConfigDump", &["dynamicRouteConfigs", "staticRouteConfigs"]), "routeConfig")
    }

    /// Route tables of the control plane.
    pub(crate) fn dynamic_routes(&self) -> Vec<&Value> {
        resources(self.elements("RoutesConfigDump", &["dynamicRouteConfigs"]), "routeConfig")
    }

    /// All endpoints in use, by cluster.
    pub(crate) fn load_assignments(&self) -> Vec<&Value> {
        const LISTS: &[&str] = &["dynamicEndpointConfigs", "staticEndpointConfigs"];
        resources(self.elements("EndpointsConfigDump", LISTS), "endpointConfig")
    }

    /// Extension configurations.
    pub(crate) fn extensions(&self) -> Vec<&Value> {
        resources(self.elements("EcdsConfigDump", &["ecdsFilters"]), "ecdsFilter")
    }

    /// Secrets with their state.
    pub(crate) fn secrets(&self) -> Vec<(&'static str, &Value)> {
        let of = |list: &'static [&'static str], state| {
            self.elements("SecretsConfigDump", list).map(move |secret| (state, secret))
        };
        of(&["dynamicActiveSecrets", "staticSecrets"], "ACTIVE")
            .chain(of(&["dynamicWarmingSecrets"], "WARMING"))
            .collect()
    }
}

/// A field of each element that has it.
fn resources<'d>(elements: impl Iterator<Item = &'d Value>, field: &str) -> Vec<&'d Value> {
    elements.map(|element| &element[field]).filter(|resource| resource.is_object()).collect()
}

/// A section in canonical JSON. Envoy writes `dynamic_listeners` where the control plane writes `dynamicListeners`. What has fields
/// or types that are not known here keeps them, with converted names.
fn normalized(section: &Value) -> Value {
    match decode_any(section) {
        Ok(decoded) if decoded.unknown.is_empty() && decoded.more_unknown == 0 => {
            let (type_url, bytes) = decoded.message;
            encode_any(&type_url, &bytes)
        }
        _ => with_json_names(section),
    }
}

fn with_json_names(value: &Value) -> Value {
    match value {
        Value::Array(elements) => elements.iter().map(with_json_names).collect(),
        Value::Object(fields) => {
            let renamed = fields.iter().map(|(name, field)| {
                let field = if FREE_FIELDS.contains(&name.as_str()) { field.clone() } else { with_json_names(field) };
                (json_name(name), field)
            });
            Value::Object(renamed.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// `dynamic_listeners` as `dynamicListeners`. Keys of maps, such as names of filters, are not changed.
fn json_name(name: &str) -> String {
    let is_field =
        name.contains('_') && name.bytes().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'_');
    if !is_field {
        return name.to_owned();
    }
    let mut parts = name.split('_');
    let mut renamed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut characters = part.chars();
        renamed.extend(characters.next().map(|first| first.to_ascii_uppercase()));
        renamed.push_str(characters.as_str());
    }
    renamed
}

/// Removes private keys and passwords of messages of Envoy.
pub(crate) fn redact(value: &mut Value) {
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(redact),
        Value::Object(fields) => {
            for (name, field) in fields {
                if SECRET_FIELDS.contains(&json_name(name).as_str()) { redact_content(field) } else { redact(field) }
            }
        }
        _ => {}
    }
}

/// Removes the content of data sources at any depth. File names stay.
fn redact_content(value: &mut Value) {
    match value {
        Value::Array(elements) => elements.iter_mut().for_each(redact_content),
        Value::Object(fields) => {
            for (name, field) in fields {
                match CONTENT_FIELDS.contains(&json_name(name).as_str()) {
                    true => *field = json!(REDACTED),
                    false => redact_content(field),
                }
            }
        }
        // A key where a data source is expected.
        Value::String(text) if text.contains("PRIVATE KEY") => REDACTED.clone_into(text),
        _ => {}
    }
}

/// The object that made a resource, from its metadata: `NAME.NAMESPACE`.
pub(crate) fn origin(resource: &Value) -> String {
    let Some(path) = resource["metadata"]["filterMetadata"]["istio"]["config"].as_str() else { return String::new() };
    if !path.starts_with("/apis/networking.istio.io/") {
        return "<unknown>".to_owned();
    }
    match path.split('/').collect::<Vec<_>>()[..] {
        [_, _, _, _, _, namespace, _, name] => format!("{name}.{namespace}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_of_envoy_become_those_of_json() {
        let envoy = json!({"configs": [{
            "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
            "dynamic_active_clusters": [{"version_info": "1", "cluster": {
                "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
                "name": "a", "connect_timeout": "10s",
            }}],
        }]});
        let dump = ConfigDump::parse(envoy.to_string().as_bytes()).expect("a dump");
        let expected = json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "a", "connectTimeout": "10s",
        });
        assert_eq!(dump.dynamic_clusters(), [&expected]);
    }

    #[test]
    fn fields_that_are_not_known_stay() {
        let envoy = json!({"configs": [{
            "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
            "dynamic_active_clusters": [{"cluster": {
                "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
                "name": "a", "field_of_tomorrow": {"typed_config": {"@type": "type.googleapis.com/a.B", "is_new": true}},
                "metadata": {"filter_metadata": {"a_b": {"c_d": 1}}},
            }}],
        }]});
        let dump = ConfigDump::parse(envoy.to_string().as_bytes()).expect("a dump");
        let cluster = dump.clusters()[0];
        assert_eq!(cluster["fieldOfTomorrow"]["typedConfig"]["isNew"], true);
        assert_eq!(cluster["metadata"]["filter_metadata"]["a_b"]["c_d"], 1, "keys of metadata are no fields");
    }

    #[test]
    fn private_keys_are_removed_also_where_the_message_is_not_known() {
        let secret = |kind: &str| {
            json!({"configs": [{
                "@type": format!("type.googleapis.com/envoy.admin.v3.{kind}"),
                "dynamic_active_secrets": [{"name": "default", "secret": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
                    "name": "default",
                    "tls_certificate": {
                        "certificate_chain": {"inline_bytes": "Y2VydA=="},
                        "private_key": {"inline_bytes": "c2VjcmV0"},
                        "password": {"filename": "/etc/password"},
                    },
                }}],
            }]})
        };
        for kind in ["SecretsConfigDump", "SecretsConfigDumpOfTomorrow"] {
            let dump = ConfigDump::parse(secret(kind).to_string().as_bytes()).expect("a dump");
            let text = json!(dump.sections).to_string();
            assert!(!text.contains("c2VjcmV0"), "{text}");
            assert!(text.contains("Y2VydA==") && text.contains("/etc/password"), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_dump_is_refused() {
        for text in ["", "[]", "{\"configs\": 1}", "---"] {
            assert!(ConfigDump::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
