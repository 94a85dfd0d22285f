use std::process::Command;

use serde_json::{Value, json};

use super::*;
use crate::environment::environment;
use crate::settings::tests::settings;

/// The bootstrap of a proxy with these variables, and the warnings.
fn bootstrap(arguments: &str, variables: &[(&str, &str)]) -> (Value, Vec<String>) {
    let settings = settings(arguments, variables).expect("settings");
    let mut warnings = Vec::new();
    let node = EnvoyNode::new(&settings, &environment(variables), &mut warnings);
    let inputs = BootstrapInputs { settings: &settings, node: &node, external_sds: false, credential_socket: false };
    (build(&inputs, &mut warnings), warnings)
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

/// A ProxyConfig with all settings that the bootstrap reads.
const FULL_PROXY_CONFIG: &str = r#"{
    "tracing": {"zipkin": {"address": "zipkin.obs:9411"}, "tlsSettings": {"mode": "ISTIO_MUTUAL"}},
    "envoyMetricsService": {"address": "metrics.obs:15000", "tlsSettings": {"mode": "MUTUAL",
        "clientCertificate": "/c.pem", "privateKey": "/k.pem", "caCertificates": "/r.pem", "subjectAltNames": ["m"]}},
    "envoyAccessLogService": {"address": "[fd00::1]:15000"},
    "statsdUdpAddress": "10.1.1.1:9125",
    "extraStatTags": ["dog", "dog"],
    "proxyStatsMatcher": {"inclusionPrefixes": ["http.{pod_ip}_"]},
    "connectionSettings": {"globalDownstreamConnectionLimit": 100},
    "proxyMetadata": {"ISTIO_META_ENABLE_SELF_DISCOVERY": "true"}
}"#;

#[test]
fn sidecar_has_the_clusters_and_listeners_of_all_proxies() {
    let (bootstrap, warnings) = bootstrap("sidecar", &[("INSTANCE_IP", "10.0.0.7")]);
    assert_eq!(warnings, Vec::<String>::new());
    let resources = &bootstrap["static_resources"];
    assert_eq!(names(&resources["clusters"]), ["prometheus_stats", "agent", "sds-grpc", "xds-grpc"]);
    assert_eq!(names(&resources["listeners"]), ["0.0.0.0_15090", "0.0.0.0_15021"]);
    assert_eq!(bootstrap["dynamic_resources"]["ads_config"]["api_type"], "DELTA_GRPC");
    let path = |cluster: usize| {
        let endpoints = &resources["clusters"][cluster]["load_assignment"]["endpoints"];
        endpoints[0]["lb_endpoints"][0]["endpoint"]["address"].clone()
    };
    assert_eq!(path(0), socket_address("127.0.0.1", 15000));
    assert_eq!(path(1), socket_address("127.0.0.1", 15020));
    assert_eq!(path(2), json!({ "pipe": { "path": "./var/run/secrets/workload-spiffe-uds/socket" } }));
    assert_eq!(path(3), json!({ "pipe": { "path": "./etc/istio/proxy/XDS" } }));
    assert_eq!(bootstrap["admin"]["address"], socket_address("127.0.0.1", 15000));
}

#[test]
fn ip_families_decide_the_listener_addresses() {
    let settings_of = |variables: &[(&str, &str)], own: &[&str]| {
        let mut settings = settings("router", variables).expect("settings");
        settings.addresses = own.iter().map(|address| address.parse().expect("an address")).collect();
        settings
    };
    let listener = |settings: &Settings| {
        let node = EnvoyNode::new(settings, &environment(&[]), &mut Vec::new());
        let inputs = BootstrapInputs { settings, node: &node, external_sds: false, credential_socket: false };
        build(&inputs, &mut Vec::new())["static_resources"]["listeners"][1].clone()
    };
    let v6 = listener(&settings_of(&[], &["fd00::7"]));
    assert_eq!((v6["name"].as_str(), &v6["additional_addresses"]), (Some("::_15021"), &Value::Null));
    let both = listener(&settings_of(&[("ISTIO_DUAL_STACK", "true")], &["10.0.0.7", "fd00::7"]));
    assert_eq!(both["name"], "0.0.0.0_15021");
    assert_eq!(both["additional_addresses"][0]["address"], socket_address("::", 15021));
    let one = listener(&settings_of(&[], &["10.0.0.7", "fd00::7"]));
    assert_eq!(one["additional_addresses"], Value::Null);
}

/// Istio's dashboards use these statistics. Others are excluded, because there are thousands.
#[test]
fn statistics_of_istios_dashboards_are_kept() {
    let (bootstrap, _) = bootstrap("sidecar", &[]);
    let config = &bootstrap["stats_config"];
    let patterns = config["stats_matcher"]["inclusion_list"]["patterns"].as_array().expect("patterns");
    let of = |kind: &str| -> Vec<&str> { patterns.iter().filter_map(|pattern| pattern[kind].as_str()).collect() };
    let prefixes = [
        "reporter=",
        "cluster_manager",
        "listener_manager",
        "server",
        "cluster.xds-grpc",
        "wasm",
        "component",
        "istio",
    ];
    assert_eq!(of("prefix"), prefixes);
    assert_eq!(of("suffix"), ["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"]);
    let tags = config["stats_tags"].as_array().expect("tags");
    let mut tags: Vec<&str> = tags.iter().filter_map(|tag| tag["tag_name"].as_str()).collect();
    tags.sort_unstable();
    let expected = [
        "authz_dry_run_action",
        "authz_dry_run_result",
        "authz_enforce_result",
        "cache",
        "cluster_name",
        "component",
        "http_conn_manager_listener_prefix",
        "http_conn_manager_prefix",
        "listener_address",
        "mongo_prefix",
        "response_code",
        "response_code_class",
        "tag",
        "tcp_prefix",
        "thread_name",
        "wasm_filter",
    ];
    assert_eq!(tags, expected);
}

#[test]
fn telemetry_has_clusters_and_sinks() {
    let (bootstrap, warnings) =
        bootstrap("router", &[("INSTANCE_IP", "10.0.0.7"), ("PROXY_CONFIG", FULL_PROXY_CONFIG)]);
    assert_eq!(warnings, Vec::<String>::new());
    let clusters = names(&bootstrap["static_resources"]["clusters"]);
    let expected = ["local_cluster", "zipkin", "envoy_accesslog_service", "envoy_metrics_service"];
    assert_eq!(&clusters[4..], expected);
    assert_eq!(bootstrap["cluster_manager"]["local_cluster_name"], "local_cluster");
    assert_eq!(names(&bootstrap["stats_sinks"]), ["envoy.stat_sinks.metrics_service", "envoy.stat_sinks.statsd"]);
    let tags = bootstrap["stats_config"]["stats_tags"].as_array().expect("tags");
    assert_eq!(tags.iter().filter(|tag| tag["tag_name"] == "dog").count(), 1);
    let patterns = &bootstrap["stats_config"]["stats_matcher"]["inclusion_list"]["patterns"];
    assert_eq!(patterns[0]["prefix"], "http.10.0.0.7_");
    let monitor = &bootstrap["overload_manager"]["resource_monitors"][0]["typed_config"];
    assert_eq!(monitor["max_active_downstream_connections"], 100);
}

#[test]
fn invalid_telemetry_is_skipped_with_a_warning() {
    let config = r#"{"tracing": {"zipkin": {"address": "no-port"}}, "statsdUdpAddress": "statsd:9125"}"#;
    let (bootstrap, warnings) = bootstrap("sidecar", &[("PROXY_CONFIG", config)]);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(bootstrap.get("tracing").is_none() && bootstrap.get("stats_sinks").is_none());
}

/// Envoy validates all names, types and values of the bootstraps.
#[test]
fn upstream_envoy_accepts_all_bootstraps() {
    let binary = sluice_testkit::pods::envoy::binary().expect("Envoy is installed");
    let full =
        [("INSTANCE_IP", "10.0.0.7"), ("PROXY_CONFIG", FULL_PROXY_CONFIG), ("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true")];
    let sotw = [("ISTIO_DELTA_XDS", "false"), ("ISTIO_META_DNS_CAPTURE", "true")];
    let datadog =
        [("PROXY_CONFIG", r#"{"tracing": {"datadog": {"address": "$(HOST_IP):8126"}}}"#), ("HOST_IP", "10.9.9.9")];
    for (arguments, variables) in [
        ("sidecar", &full[..]),
        ("router --outlierLogPath=/dev/null", &full[..]),
        ("sidecar", &sotw),
        ("router", &datadog),
    ] {
        let (bootstrap, warnings) = bootstrap(arguments, variables);
        assert_eq!(warnings, Vec::<String>::new());
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("bootstrap.json");
        std::fs::write(&file, bootstrap.to_string()).expect("write the bootstrap");
        // Envoy rejects unknown fields here, unlike when the agent starts it.
        let output = Command::new(&binary)
            .args(["--mode", "validate", "--log-level", "warning", "-c"])
            .arg(&file)
            .current_dir(directory.path())
            .output()
            .expect("run Envoy");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments} {variables:?}: {log}");
        // The bootstrap has no other field for tracing yet.
        let old = |line: &&str| line.contains("deprecated") && !line.contains("Bootstrap.tracing");
        assert_eq!(log.lines().find(old), None, "{arguments} {variables:?}");
    }
}
