//! Envoy's runtime values, and its connection limit.

use serde_json::{Map, Value, json};
use sluice_crypto::CompliancePolicy;
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;

const CONNECTION_LIMIT: &str = "overload.global_downstream_max_connections";

/// Runtime values that differ from Envoy's defaults, and those of the ProxyConfig; an empty value removes one.
pub(super) fn build(config: &ProxyConfig, policy: Option<CompliancePolicy>) -> Value {
    let mut values = Map::from_iter([
        ("re2.max_program_size.error_level".to_owned(), json!("32768")),
        ("envoy.reloadable_features.http_reject_path_with_fragment".to_owned(), json!(false)),
        ("envoy.reloadable_features.fixed_heap_use_allocated".to_owned(), json!(true)),
        ("envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update".to_owned(), json!(false)),
    ]);
    if policy == Some(CompliancePolicy::Fips140V2) {
        values.insert("envoy.reloadable_features.google_grpc_disable_tls_13".to_owned(), json!(true));
    }
    for (name, value) in &config.runtime_values {
        match value.as_str() {
            "" => drop(values.remove(name)),
            "true" => drop(values.insert(name.clone(), json!(true))),
            "false" => drop(values.insert(name.clone(), json!(false))),
            text => drop(values.insert(name.clone(), json!(text))),
        }
    }
    // The overload manager has this limit. Envoy warns if it is set twice.
    values.remove(CONNECTION_LIMIT);
    json!({ "layers": [
        { "name": "global config", "static_layer": values },
        { "name": "admin", "admin_layer": {} },
    ] })
}

/// The connection limit: from the connection settings, else from metadata, else from the older runtime value.
pub(super) fn connection_limit(config: &ProxyConfig, warnings: &mut Vec<String>) -> i64 {
    let settings = config.connection_settings.as_ref();
    let configured = settings.and_then(|settings| settings.global_downstream_connection_limit.as_ref());
    if let Some(limit) = configured.filter(|limit| limit.value > 0) {
        return i64::from(limit.value);
    }
    let metadata = config.proxy_metadata.get("ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS");
    for text in [metadata, config.runtime_values.get(CONNECTION_LIMIT)].into_iter().flatten() {
        match text.parse() {
            Ok(limit) if limit > 0 => return limit,
            _ => warnings
                .push(format!("ProxyConfig: the connection limit {text:?} is not a positive number and is ignored")),
        }
    }
    i64::from(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(yaml: &str) -> ProxyConfig {
        let layer = crate::proxy_config::ProxyConfigSource { name: "TEST", text: yaml, field: None };
        crate::proxy_config::merge(&[layer], &mut Vec::new()).expect("a ProxyConfig")
    }

    #[test]
    fn runtime_values_are_added_typed_and_removed() {
        let yaml = "{runtimeValues: {a: 'true', b: '7', re2.max_program_size.error_level: ''}}";
        let runtime = build(&config(yaml), None);
        let values = &runtime["layers"][0]["static_layer"];
        assert_eq!(values["a"], json!(true));
        assert_eq!(values["b"], json!("7"));
        assert!(values.get("re2.max_program_size.error_level").is_none());
    }

    #[test]
    fn fips_140_2_disables_tls_13_of_envoys_grpc_clients() {
        const FEATURE: &str = "envoy.reloadable_features.google_grpc_disable_tls_13";
        let is_set = |policy| build(&config("{}"), policy)["layers"][0]["static_layer"].get(FEATURE).cloned();
        assert_eq!(is_set(Some(CompliancePolicy::Fips140V2)), Some(json!(true)));
        for policy in [None, Some(CompliancePolicy::Fips140V3), Some(CompliancePolicy::PostQuantum)] {
            assert_eq!(is_set(policy), None, "{policy:?}");
        }
    }

    #[test]
    fn connection_limit_prefers_the_newer_setting() {
        let limit = |yaml: &str| connection_limit(&config(yaml), &mut Vec::new());
        assert_eq!(limit("{}"), 2_147_483_647);
        let old = "runtimeValues: {overload.global_downstream_max_connections: '5'}";
        let metadata = "proxyMetadata: {ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS: '6'}";
        assert_eq!(limit(&format!("{{{old}}}")), 5);
        assert_eq!(limit(&format!("{{{old}, {metadata}}}")), 6);
        let new = "connectionSettings: {globalDownstreamConnectionLimit: 7}";
        assert_eq!(limit(&format!("{{{old}, {metadata}, {new}}}")), 7);
    }
}
