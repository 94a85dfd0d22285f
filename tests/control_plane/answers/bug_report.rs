//! `sluicectl bug-report` with a control plane, proxies and Secrets.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use super::mesh::{AnswersFixture, run};
use super::port_forward::{ForwardingCluster, serve_text};

const SYSTEM: &str = "istio-system";
/// Contents of Secrets, and of what else is secret. None of them may be in an archive, in whatever form.
const SECRETS: [&str; 6] = [
    "content-of-a-secret-41c7",
    "password-of-a-variable-93f2",
    "argument-of-an-application-5d0e",
    "value-of-a-header-77b1",
    "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6c2hvcDpjYXJ0In0.c2lnbmF0dXJl",
    "MHcCAQEEIObPqFAKEKEYbodyOfAPrivateKey0123456789",
];

fn private_key() -> String {
    format!("-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----\n", SECRETS[5])
}

/// The files of an archive by name.
fn files(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = std::fs::File::open(archive).expect("open the archive");
    let mut archive = tar::Archive::new(MultiGzDecoder::new(file));
    let entries = archive.entries().expect("entries").map(|entry| {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("read");
        (name, bytes)
    });
    entries.collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A cluster with a control plane, a proxy, and secrets wherever they may be.
async fn cluster_with_secrets(mesh: &AnswersFixture) -> ForwardingCluster {
    let cluster = ForwardingCluster::start().await;
    cluster.run_control_plane("istiod-1", mesh);
    let [content, password, argument, header, token, _] = SECRETS;
    let apply = |object: Value| {
        cluster.api.apply(object);
    };
    apply(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"namespace": "shop", "name": "tls-cart", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": json!({"stringData": {"key": content}}).to_string(),
        }},
        "data": {"key": STANDARD.encode(content), "tls.key": STANDARD.encode(private_key())},
    }));
    apply(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "cart-7f", "labels": {"app": "cart"}, "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": json!({"args": [argument]}).to_string(),
        }},
        "spec": {"containers": [
            {"name": "app", "image": "cart", "args": [argument], "env": [{"name": "DATABASE", "value": password}]},
            {"name": "istio-proxy", "image": "proxyv2", "args": ["proxy", "sidecar"],
             "env": [{"name": "ISTIO_META_TOKEN", "value": token}, {"name": "PILOT_CERT_PROVIDER", "value": "istiod"}]},
        ]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "istio-proxy", "restartCount": 1}]},
    }));
    apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": SYSTEM, "name": "istio"},
        "data": {"mesh": format!("accessLogFile: /dev/stdout\nextensionProviders:\n- name: otel\n  opentelemetry:\n    http:\n      headers:\n      - name: x-api-key\n        value: {header}\n")},
    }));
    let log =
        format!("2026-01-01T00:00:00Z starts\n2026-01-01T00:00:01Z authorization: Bearer {token}\n{}", private_key());
    cluster.api.set_log("shop", "cart-7f", "istio-proxy", &log);
    cluster.api.set_log(SYSTEM, "istiod-1", "discovery", "2026-01-01T00:00:00Z control plane\n");
    let key = json!(private_key()).to_string();
    let dump = format!(
        r#"{{"configs": [{{"@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump", "dynamic_active_secrets": [
            {{"name": "default", "secret": {{"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
              "name": "default", "tls_certificate": {{"private_key": {{"inline_string": {key}}}}}}}}}]}}]}}"#
    );
    cluster.api.forward_port("shop", "cart-7f", 15_000, serve_text(Some(dump.leak())).await);
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn archive_has_what_explains_a_mesh_and_no_secret() {
    let mesh = AnswersFixture::start().await;
    let header = SECRETS[3];
    let objects = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: keyed, namespace: shop}}\nspec:\n  hosts: [keyed.shop]\n  \
         http:\n  - headers: {{request: {{set: {{x-api-key: {header}}}}}}}\n    route: [{{destination: {{host: ratings.shop.svc.cluster.local}}}}]\n---\n\
         apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: keyed, namespace: shop}}\nspec:\n  configPatches:\n  \
         - applyTo: CLUSTER\n    patch: {{operation: MERGE, value: {{transport_socket: {{name: tls, typed_config: {{'@type': \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: {{tls_certificates: \
         [{{private_key: {{inline_string: {}}}}}]}}}}}}}}}}\n",
        json!(private_key())
    );
    std::fs::write(mesh.directory.path().join("keyed.yaml"), objects).expect("written");
    let applied = mesh.ctl(&["wait", "vs/shop/keyed", "--for", "applied"]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.errors);
    let cluster = cluster_with_secrets(&mesh).await;
    let directory = tempfile::tempdir().expect("a directory");
    let output = format!("--output-dir={}", directory.path().display());
    let written = cluster.ctl(&["bug-report", &output]).await;
    assert_eq!(written.code, 0, "{}{}", written.out, written.errors);
    assert!(written.errors.contains("reading logs of 2 containers"), "{}", written.errors);

    let archive = directory.path().join("bug-report.tar.gz");
    let mut files = files(&archive);
    let file = |name: &str| {
        let text = files.get(&format!("bug-report/{name}")).unwrap_or_else(|| panic!("{name}: {:?}", files.keys()));
        String::from_utf8_lossy(text).into_owned()
    };
    assert!(file("versions.json").contains("istiod-1"));
    assert!(file("cluster/objects/pods.yaml").contains("PILOT_CERT_PROVIDER"));
    assert!(file("cluster/objects/configmaps.yaml").contains("accessLogFile: /dev/stdout"));
    assert!(file("istio/istio-system/istiod-1/discovery.log").contains("control plane"));
    assert!(file("istio/istio-system/istiod-1/debug/registryz.json").contains("ratings.shop.svc.cluster.local"));
    assert!(file("istio/istio-system/istiod-1/debug/configz.json").contains("keyed"));
    assert_eq!(
        file("istio/istio-system/istiod-1/debug/config_sources.json").trim(),
        "[]",
        "the mesh config lists none"
    );
    assert!(file("istio/istio-system/istiod-1/metrics.txt").contains("# HELP"));
    assert!(file("proxies/shop/cart-7f/istio-proxy.log").contains("starts"));
    assert!(file("proxies/shop/cart-7f/config_dump.json").contains("[redacted]"));
    assert!(file("summary.txt").contains("istio-proxy.previous.log"), "{}", file("summary.txt"));
    assert!(files.contains_key("bug-report/analyze/messages.txt"), "{:?}", files.keys());

    // The recording can be replayed.
    let recording = files["bug-report/istio/istio-system/istiod-1/recording.sluice"].clone();
    let path = directory.path().join("recording.sluice");
    std::fs::write(&path, &recording).expect("written");
    let replayed = run(&["replay", path.to_str().expect("UTF-8")]).await;
    assert_eq!(replayed.code, 0, "{}{}", replayed.out, replayed.errors);
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(recording.as_slice()).read_to_end(&mut unpacked).expect("gzip");
    assert!(contains(&unpacked, "keyed.shop"), "the VirtualService is recorded");
    files.insert("the recording, unpacked".to_owned(), unpacked);

    for (name, bytes) in &files {
        for secret in SECRETS {
            let encoded = STANDARD.encode(secret);
            // Without the characters that depend on what is before and after it.
            let encoded = &encoded[..encoded.len() / 4 * 4 - 8];
            assert!(!contains(bytes, secret), "{name} contains {secret}");
            assert!(!contains(bytes, encoded), "{name} contains {secret} in base64");
        }
        assert!(!contains(bytes, &STANDARD.encode(private_key())), "{name} contains a private key in base64");
        assert!(!contains(bytes, "BEGIN EC PRIVATE KEY"), "{name} contains a private key");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_times_and_sizes_bound_a_report() {
    let mesh = AnswersFixture::start().await;
    let cluster = cluster_with_secrets(&mesh).await;
    let directory = tempfile::tempdir().expect("a directory");
    let output = format!("--output-dir={}", directory.path().display());
    let selected = cluster.ctl(&["bug-report", "--dry-run", &output, "--include", "shop//cart-*"]).await;
    let expected = "istio-system/istiod-1/discovery\nshop/cart-7f/istio-proxy\n";
    assert_eq!((selected.code, selected.out.as_str()), (0, expected), "{}", selected.errors);
    let excluded = cluster.ctl(&["bug-report", "--dry-run", &output, "--exclude", "shop///app=cart"]).await;
    assert_eq!(excluded.out, "istio-system/istiod-1/discovery\n");
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0, "nothing is written");

    let short = ["--skip-cluster-dump", "--skip-analyze", "--skip-proxy-debug", "--duration=1h", "--tail=7"];
    let bounded = cluster.ctl(&[&["bug-report", &output, "--max-size=0"][..], &short].concat()).await;
    assert_eq!(bounded.code, 0, "{}", bounded.errors);
    let files = files(&directory.path().join("bug-report.tar.gz"));
    assert_eq!(files.keys().collect::<Vec<_>>(), ["bug-report/summary.txt"]);
    let summary = String::from_utf8_lossy(&files["bug-report/summary.txt"]).into_owned();
    assert!(summary.contains("discovery.log: left out: the archive has the size of --max-size"), "{summary}");
    let requests = cluster.api.log_requests();
    let is_bounded =
        |it: &String| it.contains("tailLines=7") && it.contains("sinceTime=") && it.contains("limitBytes=");
    assert!(!requests.is_empty() && requests.iter().all(is_bounded), "{requests:?}");

    let late = cluster.ctl(&[&["bug-report", &output, "--timeout=0s"][..], &short].concat()).await;
    assert_eq!(late.code, 0, "{}", late.errors);
    let files = self::files(&directory.path().join("bug-report.tar.gz"));
    let summary = String::from_utf8_lossy(&files["bug-report/summary.txt"]).into_owned();
    assert!(summary.contains("logs: not complete, from istio-system/istiod-1/discovery on: --timeout"), "{summary}");

    for (arguments, code) in [(["--include=///app", &output], 2), (["--output-dir=/nowhere/reports", "--tail=1"], 2)] {
        let refused = cluster.ctl(&[&["bug-report"][..], &arguments].concat()).await;
        assert_eq!(refused.code, code, "{}", refused.errors);
    }
}
