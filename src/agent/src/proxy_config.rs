//! The ProxyConfig: Istio's defaults, below the mesh config's, below `PROXY_CONFIG`, below the pod's annotation (C18).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use sluice_parse::yaml::{Limits, parse_value};
use sluice_proto::google::protobuf::Duration as ProtoDuration;
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;

/// One text a ProxyConfig may come from.
pub(crate) struct Layer<'t> {
    /// What to call it in messages.
    pub(crate) source: &'t str,
    /// YAML or JSON.
    pub(crate) text: &'t str,
    /// The field of the text that holds the ProxyConfig, if not the text itself.
    pub(crate) field: Option<&'t str>,
}

/// Lays the texts over the defaults, the last on top. Unknown fields are warned of.
///
/// # Errors
/// A text is no YAML, or a field has a value that does not fit; the message has its source and path.
pub(crate) fn lay(layers: &[Layer<'_>], warnings: &mut Vec<String>) -> Result<ProxyConfig> {
    let mut all = defaults();
    for Layer { source, text, field } in layers {
        let value = parse_value(text, &Limits::default()).with_context(|| format!("read {source}"))?;
        let value = match field {
            Some(field) => value.get(field).cloned().unwrap_or_default(),
            None => value,
        };
        if value.is_null() {
            continue;
        }
        let decoded = sluice_proto::json::decode::<ProxyConfig>(&value).with_context(|| format!("read {source}"))?;
        warnings.extend(decoded.unknown.iter().map(|path| format!("{source}: {path}: unknown field")));
        // As it is canonical, a field has one spelling only.
        let canonical = sluice_proto::json::encode(&decoded.message).context("read a ProxyConfig")?;
        let (Value::Object(canonical), Value::Object(given)) = (canonical, value) else {
            bail!("{source}: not an object");
        };
        // Zero is not canonical, but may be meant: `controlPlaneAuthPolicy: NONE` is.
        for (name, value) in given {
            let camel = camel(&name);
            if !canonical.contains_key(&camel) && !decoded.unknown.contains(&name) && !value.is_null() {
                lay_field(&mut all, camel, value);
            }
        }
        for (name, value) in canonical {
            lay_field(&mut all, name, value);
        }
    }
    Ok(sluice_proto::json::decode(&Value::Object(all)).context("join the ProxyConfigs")?.message)
}

/// `name_of_a_field` as `nameOfAField`.
fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| {
        let mut letters = word.chars();
        let head: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
        all + &head + letters.as_str()
    })
}

fn lay_field(all: &mut Map<String, Value>, name: String, value: Value) {
    match name.as_str() {
        // Entries add up.
        "proxyMetadata" | "runtimeValues" => {
            if let (Some(Value::Object(below)), Value::Object(above)) = (all.get_mut(&name), &value) {
                below.extend(above.clone());
                return;
            }
        }
        // One of two.
        "serviceCluster" => drop(all.remove("tracingServiceName")),
        "tracingServiceName" => drop(all.remove("serviceCluster")),
        _ => {}
    }
    all.insert(name, value);
}

/// C19.
fn defaults() -> Map<String, Value> {
    let defaults = json!({
        "configPath": "./etc/istio/proxy",
        "binaryPath": "/usr/local/bin/envoy",
        "serviceCluster": "istio-proxy",
        "drainDuration": "45s",
        "terminationDrainDuration": "5s",
        "proxyAdminPort": 15000,
        "controlPlaneAuthPolicy": "MUTUAL_TLS",
        "discoveryAddress": "istiod.istio-system.svc:15012",
        "statNameLength": 189,
        "statusPort": 15020,
    });
    match defaults {
        Value::Object(defaults) => defaults,
        _ => Map::new(),
    }
}

/// A duration of a message; negative ones are none.
pub(crate) fn to_duration(duration: Option<&ProtoDuration>) -> Option<Duration> {
    let duration = duration?;
    let seconds = u64::try_from(duration.seconds).ok()?;
    Some(Duration::new(seconds, u32::try_from(duration.nanos).ok()?))
}

/// What of it becomes node metadata: `ISTIO_META_x` of `proxyMetadata`.
pub(crate) fn metadata(config: &ProxyConfig) -> BTreeMap<&str, &str> {
    let own = config.proxy_metadata.iter();
    own.filter_map(|(name, value)| Some((name.strip_prefix("ISTIO_META_")?, value.as_str()))).collect()
}

#[cfg(test)]
mod tests {
    use sluice_proto::istio::mesh::v1alpha1::proxy_config::ClusterName;

    use super::*;

    fn lay_all(layers: &[(&str, Option<&str>)]) -> (Result<ProxyConfig>, Vec<String>) {
        let mut warnings = Vec::new();
        let layers: Vec<_> = layers.iter().map(|(text, field)| Layer { source: "TEST", text, field: *field }).collect();
        (lay(&layers, &mut warnings), warnings)
    }

    #[test]
    fn nothing_gives_the_defaults() {
        let config = lay_all(&[]).0.expect("defaults");
        assert_eq!(config.discovery_address, "istiod.istio-system.svc:15012");
        assert_eq!((config.proxy_admin_port, config.status_port, config.stat_name_length), (15000, 15020, 189));
        assert_eq!(to_duration(config.drain_duration.as_ref()), Some(Duration::from_secs(45)));
        assert_eq!(to_duration(config.termination_drain_duration.as_ref()), Some(Duration::from_secs(5)));
    }

    #[test]
    fn the_last_layer_wins_and_metadata_adds_up() {
        let mesh =
            "defaultConfig:\n  discoveryAddress: mesh:1\n  drainDuration: 1m\n  proxyMetadata: {ISTIO_META_A: a}\n";
        let own = r#"{"drain_duration": "2s", "tracingServiceName": "CANONICAL_NAME_ONLY",
                      "proxyMetadata": {"ISTIO_META_B": "b", "OTHER": "c"}}"#;
        let (config, warnings) = lay_all(&[(mesh, Some("defaultConfig")), (own, None)]);
        let config = config.expect("a ProxyConfig");
        assert_eq!(config.discovery_address, "mesh:1");
        assert_eq!(to_duration(config.drain_duration.as_ref()), Some(Duration::from_secs(2)));
        assert_eq!(config.cluster_name, Some(ClusterName::TracingServiceName(1)));
        assert_eq!(metadata(&config), BTreeMap::from([("A", "a"), ("B", "b")]));
        assert_eq!(warnings, Vec::<String>::new());
    }

    #[test]
    fn zero_can_be_asked_for() {
        let (config, _) = lay_all(&[("{statusPort: 7, extraStatTags: [a]}", None), ("{status_port: 0}", None)]);
        assert_eq!(config.expect("a ProxyConfig").status_port, 0);
        let (config, _) = lay_all(&[("{controlPlaneAuthPolicy: NONE}", None)]);
        assert_eq!(config.expect("a ProxyConfig").control_plane_auth_policy, 0);
    }

    #[test]
    fn unknown_fields_are_warned_of_and_wrong_ones_refused_with_their_path() {
        let (config, warnings) = lay_all(&[("{statusPort: 1, statusPorts: 2}", None)]);
        assert_eq!(config.expect("a ProxyConfig").status_port, 1);
        assert_eq!(warnings, ["TEST: statusPorts: unknown field"]);
        let error = format!("{:#}", lay_all(&[("{drainDuration: soon}", None)]).0.expect_err("no duration"));
        assert!(error.contains("TEST") && error.contains("drainDuration"), "{error}");
    }
}
