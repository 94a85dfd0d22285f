use std::time::Duration;

use sluice_model::{MeshConfig, ProviderKind, Severity};

use super::merge_mesh_config;
use crate::Findings;
use crate::yaml::{Limits, parse_value};

fn lay(base: MeshConfig, text: &str) -> (MeshConfig, Vec<(Severity, String)>) {
    let findings = Findings::default();
    let value = parse_value(text, &Limits::default()).expect("yaml");
    let mesh = merge_mesh_config(base, &value, "mesh", &findings);
    (mesh, findings.into_vec().into_iter().map(|f| (f.severity, f.field_path.to_string())).collect())
}

#[test]
fn present_field_replaces_the_default() {
    let (mesh, findings) = lay(
        MeshConfig::default(),
        "connectTimeout: 1500ms\ntrustDomain: t.example\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\n\
         defaultConfig:\n  proxyMetadata: {A: b}\n  tracing: {sampling: 12.5, zipkin: {address: 'z:9411'}}\n",
    );
    assert_eq!(findings, []);
    assert_eq!(mesh.connect_timeout, Duration::from_millis(1500));
    assert_eq!(mesh.trust_domain, *"t.example");
    assert_eq!(mesh.proxy_listen_port, 15001);
    assert_eq!(mesh.default_config.stat_name_length, 189);
    assert!((mesh.default_config.tracing.expect("tracing").sampling.to_f64() - 12.5).abs() < 1e-9);
}

#[test]
fn metadata_and_aliases_are_joined_and_providers_replaced_by_name() {
    let base = "trustDomainAliases: [b]\ndefaultConfig: {proxyMetadata: {A: '1', B: '1'}}\n";
    let over = "trustDomainAliases: [a, b]\ndefaultConfig: {proxyMetadata: {B: '2'}}\n\
                extensionProviders: [{name: envoy, envoyFileAccessLog: {path: /dev/null}}, {name: own, prometheus: {}}]\n";
    let (mesh, _) = lay(lay(MeshConfig::default(), base).0, over);
    assert_eq!(mesh.trust_domain_aliases.iter().map(|t| t.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let metadata: Vec<_> = mesh.default_config.proxy_metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(metadata, ["A=1", "B=2"]);
    let names: Vec<_> = mesh.extension_providers.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["prometheus", "stackdriver", "envoy", "own"]);
    let envoy = mesh.provider("envoy").expect("there");
    assert!(matches!(&envoy.kind, ProviderKind::FileAccessLog { path, .. } if *path == *"/dev/null"));
}

#[test]
fn invalid_field_is_reported_and_the_others_apply() {
    let (mesh, findings) = lay(MeshConfig::default(), "connectTimeout: soon\nnoSuchField: 1\nproxyHttpPort: 8888\n");
    assert_eq!(mesh.proxy_http_port, 8888);
    assert_eq!(mesh.connect_timeout, Duration::from_secs(10));
    assert_eq!(
        findings,
        [(Severity::Error, "mesh.connectTimeout".to_owned()), (Severity::Warning, "mesh.noSuchField".to_owned())]
    );
}

#[test]
fn fields_without_effect_are_reported_if_they_ask_for_one() {
    let silent = "ca:\ncertificates: []\nverifyCertificateAtClient: true\nthriftConfig: {rateLimitUrl: a}\n";
    assert_eq!(lay(MeshConfig::default(), silent).1, []);
    let asks = "ca: {address: 'ca.example:443'}\ncertificates: [{secretName: a}]\nverifyCertificateAtClient: false\n";
    let (mesh, findings) = lay(MeshConfig::default(), asks);
    assert_eq!(mesh, MeshConfig::default());
    let expected = ["ca", "certificates", "verifyCertificateAtClient"];
    assert_eq!(findings, expected.map(|name| (Severity::Warning, format!("mesh.{name}"))));
}

#[test]
fn log_format_nesting_is_limited() {
    let nested = |levels: usize| format!("{}{{}}{}", "{\"a\":".repeat(levels - 1), "}".repeat(levels - 1));
    let mesh_of = |levels: usize| {
        let format = nested(levels);
        let text = format!(
            "accessLogFormat: '{format}'\nextensionProviders:\n- name: json\n  \
             envoyFileAccessLog: {{path: /dev/stdout, logFormat: {{labels: {format}}}}}\n"
        );
        lay(MeshConfig::default(), &text)
    };
    let (mesh, findings) = mesh_of(16);
    assert_eq!((mesh.access_log_format.as_str(), findings), (nested(16).as_str(), Vec::new()));
    let (mesh, findings) = mesh_of(17);
    assert_eq!(mesh.access_log_format, *"");
    let json = mesh.provider("json").expect("there");
    assert!(matches!(&json.kind, ProviderKind::FileAccessLog { format: None, .. }));
    let fields = ["mesh.accessLogFormat", "mesh.extensionProviders[0].envoyFileAccessLog.logFormat.labels"];
    assert_eq!(findings, fields.map(|field| (Severity::Error, field.to_owned())));
}
