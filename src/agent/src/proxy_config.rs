//! The ProxyConfig, merged from Istio's defaults, the mesh config, `PROXY_CONFIG` and the pod's annotation; later ones take
//! precedence (C18).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use sluice_parse::default_proxy_config;
use sluice_parse::yaml::{Limits, parse_value};
use sluice_proto::google::protobuf::Duration as ProtoDuration;
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;

/// A source of ProxyConfig fields.
pub(crate) struct ProxyConfigSource<'t> {
    /// Its name in messages.
    pub(crate) name: &'t str,
    /// YAML or JSON.
    pub(crate) text: &'t str,
    /// The field of the text that holds the ProxyConfig, if it is not the whole text.
    pub(crate) field: Option<&'t str>,
}

/// Merges the sources into the defaults; the last one takes precedence. Unknown fields give warnings.
///
/// # Errors
/// A text is not YAML, or a field has an invalid value; the message names the source and the field path.
pub(crate) fn merge(sources: &[ProxyConfigSource<'_>], warnings: &mut Vec<String>) -> Result<ProxyConfig> {
    let mut merged = match default_proxy_config() {
        Value::Object(defaults) => defaults,
        _ => Map::new(),
    };
    for ProxyConfigSource { name, text, field } in sources {
        let value = parse_value(text, &Limits::default()).with_context(|| format!("parse {name}"))?;
        let value = match field {
            Some(field) => value.get(field).cloned().unwrap_or_default(),
            None => value,
        };
        if value.is_null() {
            continue;
        }
        let decoded = sluice_proto::json::decode::<ProxyConfig>(&value).with_context(|| format!("parse {name}"))?;
        warnings.extend(decoded.unknown.iter().map(|path| format!("{name}: {path}: unknown field, it is ignored")));
        if decoded.more_unknown > 0 {
            warnings.push(format!("{name}: {} more unknown fields are ignored", decoded.more_unknown));
        }
        // In the canonical form a field has one spelling.
        let canonical = sluice_proto::json::encode(&decoded.message).context("encode a ProxyConfig")?;
        let (Value::Object(canonical), Value::Object(given)) = (canonical, value) else {
            bail!("{name}: the value is not an object");
        };
        // The canonical form omits zero values, which may be intended, such as `controlPlaneAuthPolicy: NONE`.
        for (field, value) in given {
            let camel = camel_case(&field);
            if !canonical.contains_key(&camel) && !decoded.unknown.contains(&field) && !value.is_null() {
                merge_field(&mut merged, camel, value);
            }
        }
        for (field, value) in canonical {
            merge_field(&mut merged, field, value);
        }
    }
    Ok(sluice_proto::json::decode(&Value::Object(merged)).context("decode the merged ProxyConfig")?.message)
}

/// `name_of_a_field` as `nameOfAField`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| {
        let mut letters = word.chars();
        let head: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
        all + &head + letters.as_str()
    })
}

fn merge_field(all: &mut Map<String, Value>, name: String, value: Value) {
    match name.as_str() {
        // Maps are merged by key.
        "proxyMetadata" | "runtimeValues" => {
            if let (Some(Value::Object(below)), Value::Object(above)) = (all.get_mut(&name), &value) {
                below.extend(above.clone());
                return;
            }
        }
        // These fields are a oneof.
        "serviceCluster" => drop(all.remove("tracingServiceName")),
        "tracingServiceName" => drop(all.remove("serviceCluster")),
        _ => {}
    }
    all.insert(name, value);
}

/// The duration of a message; `None` if it is negative.
pub(crate) fn to_duration(duration: Option<&ProtoDuration>) -> Option<Duration> {
    let duration = duration?;
    let seconds = u64::try_from(duration.seconds).ok()?;
    Some(Duration::new(seconds, u32::try_from(duration.nanos).ok()?))
}

/// The entries of `proxyMetadata` that become node metadata: those with prefix `ISTIO_META_`.
pub(crate) fn metadata(config: &ProxyConfig) -> BTreeMap<&str, &str> {
    let entries = config.proxy_metadata.iter();
    entries.filter_map(|(name, value)| Some((name.strip_prefix("ISTIO_META_")?, value.as_str()))).collect()
}

#[cfg(test)]
mod tests {
    use sluice_proto::istio::mesh::v1alpha1::proxy_config::ClusterName;

    use super::*;

    fn merge_all(layers: &[(&str, Option<&str>)]) -> (Result<ProxyConfig>, Vec<String>) {
        let mut warnings = Vec::new();
        let layers: Vec<_> =
            layers.iter().map(|(text, field)| ProxyConfigSource { name: "TEST", text, field: *field }).collect();
        (merge(&layers, &mut warnings), warnings)
    }

    #[test]
    fn defaults_apply_without_sources() {
        let config = merge_all(&[]).0.expect("defaults");
        assert_eq!(config.discovery_address, "istiod.istio-system.svc:15012");
        assert_eq!((config.proxy_admin_port, config.status_port, config.stat_name_length), (15000, 15020, 189));
        assert_eq!(to_duration(config.drain_duration.as_ref()), Some(Duration::from_secs(45)));
        assert_eq!(to_duration(config.termination_drain_duration.as_ref()), Some(Duration::from_secs(5)));
    }

    #[test]
    fn last_source_takes_precedence_and_metadata_is_merged() {
        let mesh =
            "defaultConfig:\n  discoveryAddress: mesh:1\n  drainDuration: 1m\n  proxyMetadata: {ISTIO_META_A: a}\n";
        let own = r#"{"drain_duration": "2s", "tracingServiceName": "CANONICAL_NAME_ONLY",
                      "proxyMetadata": {"ISTIO_META_B": "b", "OTHER": "c"}}"#;
        let (config, warnings) = merge_all(&[(mesh, Some("defaultConfig")), (own, None)]);
        let config = config.expect("a ProxyConfig");
        assert_eq!(config.discovery_address, "mesh:1");
        assert_eq!(to_duration(config.drain_duration.as_ref()), Some(Duration::from_secs(2)));
        assert_eq!(config.cluster_name, Some(ClusterName::TracingServiceName(1)));
        assert_eq!(metadata(&config), BTreeMap::from([("A", "a"), ("B", "b")]));
        assert_eq!(warnings, Vec::<String>::new());
    }

    #[test]
    fn zero_values_are_kept() {
        let (config, _) = merge_all(&[("{statusPort: 7, extraStatTags: [a]}", None), ("{status_port: 0}", None)]);
        assert_eq!(config.expect("a ProxyConfig").status_port, 0);
        let (config, _) = merge_all(&[("{controlPlaneAuthPolicy: NONE}", None)]);
        assert_eq!(config.expect("a ProxyConfig").control_plane_auth_policy, 0);
    }

    #[test]
    fn unknown_field_gives_a_warning_and_invalid_value_an_error_with_its_path() {
        let (config, warnings) = merge_all(&[("{statusPort: 1, statusPorts: 2}", None)]);
        assert_eq!(config.expect("a ProxyConfig").status_port, 1);
        assert_eq!(warnings, ["TEST: statusPorts: unknown field, it is ignored"]);
        let error = format!("{:#}", merge_all(&[("{drainDuration: soon}", None)]).0.expect_err("no duration"));
        assert!(error.contains("TEST") && error.contains("drainDuration"), "{error}");
    }
}
