//! Modules from HTTP servers and registries of the test.

mod pages;

use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{AUTHORIZATION, HOST};
use prost::Message as _;
use serde_json::{Value, json};
use sluice_proto::envoy::config::core::v3::TypedExtensionConfig;

use super::digest::sha256;
use super::*;
use pages::{Page, Pages, tls};

const MODULE: &[u8] = b"\0asm\x01\0\0\0 the module";
const PASSWORD: &str = "hush-hush";

struct TestAgent {
    directory: tempfile::TempDir,
    modules: Modules,
    metrics: Metrics,
}

impl TestAgent {
    fn new(client: Option<ClientConfig>, change: impl FnOnce(&mut WasmSettings)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut settings = crate::settings::tests::settings("sidecar", &[]).expect("settings").wasm;
        settings.directory = directory.path().join("data");
        settings.retry_delay = Duration::from_millis(1);
        change(&mut settings);
        let metrics = Metrics::default();
        Self { directory, modules: Modules::with_tls(settings, client, metrics.clone()).expect("a cache"), metrics }
    }

    fn plain() -> Self {
        Self::new(None, |_| {})
    }

    async fn convert(&self, extension: &Value) -> Result<Value> {
        let (type_url, value) = sluice_proto::json::decode_any(extension).expect("an extension").message;
        let converted = self.modules.convert(vec![Any { type_url, value }]).await?;
        Ok(sluice_proto::json::encode_any(&converted[0].type_url, &converted[0].value)["typedConfig"].clone())
    }

    /// The content of the file that the converted extension refers to.
    async fn module(&self, extension: &Value) -> Option<Vec<u8>> {
        let filter = self.convert(extension).await.expect("an extension");
        let file = filter["config"]["vmConfig"]["code"]["local"]["filename"].as_str()?;
        assert!(file.starts_with(self.directory.path().canonicalize().expect("a directory").to_str()?), "{file}");
        Some(std::fs::read(file).expect("the module"))
    }

    fn has_metric(&self, line: &str) -> bool {
        self.metrics.text().lines().any(|metric| metric == format!("istio_agent_wasm_{line}"))
    }
}

fn extension(url: &str, sha256: &str, variables: &Value) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": "shop.guard",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": { "name": "shop.guard", "vmConfig": {
                "runtime": "envoy.wasm.runtime.v8",
                "code": { "remote": {
                    "httpUri": { "uri": url, "timeout": "30s", "cluster": "_" },
                    "sha256": sha256,
                } },
                "environmentVariables": { "keyValues": variables },
            } },
        },
    })
}

fn extension_of_version(url: &str, version: &str, policy: &str) -> Value {
    let variables = json!({
        "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION": version,
        "ISTIO_META_WASM_IMAGE_PULL_POLICY": policy,
    });
    extension(url, "nil", &variables)
}

const DENY: &str = r#"{"@type":"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC","rules":{},"rulesStatPrefix":"wasm-default-deny"}"#;
const ALLOW: &str = r#"{"@type":"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC","rulesStatPrefix":"wasm-default-allow"}"#;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[tokio::test]
async fn module_is_fetched_once_and_replaced_by_its_file() {
    let pages = Pages::default();
    pages.module("/m.wasm");
    let url = format!("http://127.0.0.1:{}/m.wasm", pages.serve(None).await);
    let agent = TestAgent::plain();
    let variables = json!({ "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION": "1", "MODE": "x" });
    let filter = agent.convert(&extension(&url, "nil", &variables)).await.expect("an extension");
    let vm = &filter["config"]["vmConfig"];
    assert_eq!(vm["environmentVariables"]["keyValues"], json!({ "MODE": "x" }), "variables for the agent are removed");
    assert!(vm["code"].get("remote").is_none() && vm["runtime"] == "envoy.wasm.runtime.v8", "{vm}");
    let with_checksum = extension(&url, &sha256(MODULE), &json!({}));
    assert_eq!(agent.module(&with_checksum).await.as_deref(), Some(MODULE));
    assert_eq!(pages.requests("/m.wasm").len(), 1);
    assert!(agent.has_metric("cache_lookup_count_total{hit=\"true\"} 1") && agent.has_metric("cache_entries 1"));

    // A module is fetched again only by the pull policy, and only for another resource version.
    for (version, policy, requests) in
        [("2", "", 1), ("3", "IfNotPresent", 1), ("4", "Always", 2), ("4", "Always", 2), ("5", "Always", 3)]
    {
        assert_eq!(agent.module(&extension_of_version(&url, version, policy)).await.as_deref(), Some(MODULE));
        assert_eq!(pages.requests("/m.wasm").len(), requests, "{version} {policy}");
    }

    // A module that is not requested expires, and is fetched again on request.
    let Modules(cache) = &agent.modules;
    cache.purge(Instant::now() + Duration::from_secs(23 * 3600));
    assert!(agent.has_metric("cache_entries 1"));
    cache.purge(Instant::now() + Duration::from_secs(25 * 3600));
    assert!(agent.has_metric("cache_entries 0"));
    let folder = cache.settings().directory.join(sha256(url.as_bytes()));
    assert_eq!(std::fs::read_dir(folder).expect("the directory").count(), 0);
    assert_eq!(agent.module(&with_checksum).await.as_deref(), Some(MODULE));
    assert_eq!(pages.requests("/m.wasm").len(), 4);
}

#[tokio::test]
async fn concurrent_extensions_fetch_their_module_once() {
    let pages = Pages::default();
    pages.module("/m.wasm");
    let url = format!("http://127.0.0.1:{}/m.wasm", pages.serve(None).await);
    let agent = TestAgent::plain();
    let (type_url, value) =
        sluice_proto::json::decode_any(&extension(&url, "nil", &json!({}))).expect("an extension").message;
    let all = agent.modules.convert(vec![Any { type_url, value }; 5]).await.expect("extensions");
    assert!(all.len() == 5 && all.iter().all(|one| is_wasm(&one.value)));
    assert_eq!(pages.requests("/m.wasm").len(), 1);
}

#[tokio::test]
async fn missing_module_denies_or_allows_all_traffic() {
    let pages = Pages::default();
    pages.module("/m.wasm");
    pages.put("/none.wasm", Page { body: b"<html>".to_vec(), ..Page::default() });
    let base = format!("http://127.0.0.1:{}", pages.serve(None).await);
    let agent = TestAgent::plain();
    let wrong = extension(&format!("{base}/m.wasm"), &"0".repeat(64), &json!({}));
    assert_eq!(agent.convert(&wrong).await.expect("an extension"), parsed(DENY));
    assert!(agent.has_metric("remote_fetch_count_total{result=\"checksum_mismatched\"} 1"));
    for path in ["/none.wasm", "/missing.wasm"] {
        let bad = extension(&format!("{base}{path}"), "nil", &json!({}));
        assert_eq!(agent.convert(&bad).await.expect("an extension"), parsed(DENY), "{path}");
    }
    let mut open = extension(&format!("{base}/missing.wasm"), "nil", &json!({}));
    open["typedConfig"]["config"]["failurePolicy"] = "FAIL_OPEN".into();
    assert_eq!(agent.convert(&open).await.expect("an extension"), parsed(ALLOW));
    let mut older = extension(&format!("{base}/missing.wasm"), "nil", &json!({}));
    older["typedConfig"]["config"]["failOpen"] = true.into();
    assert_eq!(agent.convert(&older).await.expect("an extension"), parsed(ALLOW));
    let mut network = open.clone();
    network["typedConfig"]["@type"] = "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm".into();
    let allowed = agent.convert(&network).await.expect("an extension");
    let expected = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
        "statPrefix": "wasm-default-allow",
    });
    assert_eq!(allowed, expected);
    let missing = json!({ "ISTIO_META_WASM_IMAGE_PULL_SECRET": "" });
    let missing = extension(&format!("{base}/m.wasm"), "nil", &missing);
    assert_eq!(agent.convert(&missing).await.expect("an extension"), parsed(DENY), "the pull secret is missing");
}

#[tokio::test]
async fn module_over_the_size_limit_is_rejected() {
    let pages = Pages::default();
    let mut zeros = MODULE.to_vec();
    zeros.resize(100_000, 0);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&zeros).expect("compressed");
    let packed = packed.finish().expect("compressed");
    assert!(packed.len() < 50_000);
    pages.put("/plain", Page { body: zeros.clone(), ..Page::default() });
    pages.put("/packed", Page { body: packed, ..Page::default() });
    let base = format!("http://127.0.0.1:{}", pages.serve(None).await);
    let small = TestAgent::new(None, |settings| settings.max_bytes = 50_000);
    let big = TestAgent::new(None, |settings| settings.max_bytes = 100_000);
    for path in ["/plain", "/packed"] {
        let extension = extension(&format!("{base}{path}"), "nil", &json!({}));
        assert_eq!(small.convert(&extension).await.expect("an extension"), parsed(DENY), "{path}");
        assert_eq!(big.module(&extension).await.as_ref(), Some(&zeros), "{path}");
    }
    assert!(!small.directory.path().join("data").exists());
}

#[tokio::test]
async fn failed_requests_are_retried() {
    let pages = Pages::default();
    let body = MODULE.to_vec();
    pages.put("/twice", Page { first_statuses: vec![503, 500], body: body.clone(), ..Page::default() });
    pages.put("/often", Page { first_statuses: vec![503; 9], body: body.clone(), ..Page::default() });
    pages.put("/never", Page { first_statuses: vec![403], body, ..Page::default() });
    let base = format!("http://127.0.0.1:{}", pages.serve(None).await);
    let agent = TestAgent::plain();
    let of = |path: &str| extension(&format!("{base}{path}"), "nil", &json!({}));
    assert_eq!(agent.module(&of("/twice")).await.as_deref(), Some(MODULE));
    assert_eq!(agent.convert(&of("/often")).await.expect("an extension"), parsed(DENY));
    assert_eq!(agent.convert(&of("/never")).await.expect("an extension"), parsed(DENY));
    let requests = ["/twice", "/often", "/never"].map(|path| pages.requests(path).len());
    assert_eq!(requests, [3, 5, 1]);
}

#[tokio::test]
async fn attempts_time_and_expiry_are_those_of_the_settings() {
    let pages = Pages::default();
    pages.module("/m.wasm");
    pages.put("/often", Page { first_statuses: vec![503; 9], body: MODULE.to_vec(), ..Page::default() });
    let base = format!("http://127.0.0.1:{}", pages.serve(None).await);
    // It accepts connections and never responds.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_url = format!("http://{}/m.wasm", silent.local_addr().expect("an address"));
    let agent = TestAgent::new(None, |settings| {
        settings.max_attempts = 2;
        settings.request_timeout = Duration::from_millis(50);
        settings.expiry = Duration::from_secs(60);
    });
    let of = |url: &str| extension(url, "nil", &json!({}));
    assert_eq!(agent.convert(&of(&format!("{base}/often"))).await.expect("an extension"), parsed(DENY));
    assert_eq!(pages.requests("/often").len(), 2);
    let started = Instant::now();
    assert_eq!(agent.convert(&of(&silent_url)).await.expect("an extension"), parsed(DENY));
    assert!(started.elapsed() < Duration::from_secs(10), "the default is 15 s");
    assert_eq!(agent.module(&of(&format!("{base}/m.wasm"))).await.as_deref(), Some(MODULE));
    let Modules(cache) = &agent.modules;
    cache.purge(Instant::now() + Duration::from_secs(30));
    assert!(agent.has_metric("cache_entries 1"));
    cache.purge(Instant::now() + Duration::from_secs(120));
    assert!(agent.has_metric("cache_entries 0"));
}

#[tokio::test]
async fn file_of_docker_has_the_credentials_of_extensions_without_a_pull_secret() {
    let (server, client) = tls();
    let pages = Pages::default();
    let port = pages.serve(Some(server)).await;
    let credentials = super::credentials::basic(format!("me:{PASSWORD}").as_bytes());
    let super::credentials::Credentials::Basic(basic) = credentials else { panic!("not basic") };
    let ticket = json!({ "token": "ticket" }).to_string().into_bytes();
    let authorization = Some((basic.to_string(), "Basic".to_owned()));
    pages.put(TOKEN, Page { authorization, body: ticket, ..Page::default() });
    put_image(&pages, port, "1", &[("application/x-config", b"{}"), (MODULE_LAYER, MODULE)]);
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("config.json"), secret(port)).expect("write credentials");
    let image = extension(&format!("oci://localhost:{port}/a/guard:1"), "nil", &json!({}));
    let without = TestAgent::new(Some(client.clone()), |_| {});
    assert_eq!(without.module(&image).await, None);
    let named = directory.path().to_str().expect("a text");
    let file =
        crate::settings::tests::settings("sidecar", &[("DOCKER_CONFIG", named)]).expect("settings").wasm.docker_config;
    let agent = TestAgent::new(Some(client), |settings| settings.docker_config = file);
    assert_eq!(agent.module(&image).await.as_deref(), Some(MODULE));
}

#[tokio::test]
async fn redirects_drop_credentials_and_never_leave_tls() {
    let (server, client) = tls();
    let (plain, secure) = (Pages::default(), Pages::default());
    plain.module("/m.wasm");
    secure.module("/m.wasm");
    let (from, to) = (plain.serve(None).await, secure.serve(Some(server.clone())).await);
    let away = Pages::default();
    let elsewhere = away.serve(Some(server)).await;
    away.put("/away", Page { location: Some(format!("https://localhost:{to}/m.wasm")), ..Page::default() });
    plain.put("/up", Page { location: Some(format!("https://localhost:{to}/m.wasm")), ..Page::default() });
    secure.put("/down", Page { location: Some(format!("http://localhost:{from}/m.wasm")), ..Page::default() });
    secure.put("/stay", Page { location: Some("m.wasm".to_owned()), ..Page::default() });
    secure.put("/round", Page { location: Some("/round".to_owned()), ..Page::default() });
    let agent = TestAgent::new(Some(client), |_| {});
    let module = async |url: String| agent.module(&extension(&url, "nil", &json!({}))).await;
    assert_eq!(module(format!("http://localhost:{from}/up")).await.as_deref(), Some(MODULE));
    assert_eq!(plain.requests("/up")[0][HOST], format!("localhost:{from}"));
    assert_eq!(module(format!("https://me:{PASSWORD}@localhost:{elsewhere}/away")).await.as_deref(), Some(MODULE));
    assert!(away.requests("/away")[0].contains_key(AUTHORIZATION));
    assert!(!secure.requests("/m.wasm")[1].contains_key(AUTHORIZATION));
    assert_eq!(module(format!("https://me:{PASSWORD}@localhost:{to}/stay")).await.as_deref(), Some(MODULE));
    assert!(secure.requests("/m.wasm")[2].contains_key(AUTHORIZATION));
    assert_eq!(module(format!("https://localhost:{to}/down")).await, None);
    assert_eq!(module(format!("https://localhost:{to}/round")).await, None);
    assert!(plain.requests("/m.wasm").is_empty());

    // A server with another root is rejected, unless it is named as insecure.
    let url = format!("https://localhost:{to}/m.wasm");
    let (_, other) = tls();
    let verifying = TestAgent::new(Some(other.clone()), |settings| settings.max_attempts = 1);
    assert_eq!(verifying.module(&extension(&url, "nil", &json!({}))).await, None);
    let insecure = TestAgent::new(Some(other), |settings| settings.insecure_hosts = [format!("localhost:{to}")].into());
    assert_eq!(insecure.module(&extension(&url, "nil", &json!({}))).await.as_deref(), Some(MODULE));
}

#[tokio::test]
async fn blocked_addresses_are_never_connected_to() {
    let pages = Pages::default();
    pages.module("/m.wasm");
    let port = pages.serve(None).await;
    let blocking = TestAgent::new(None, |settings| settings.blocked = vec!["127.0.0.0/8".parse().expect("a block")]);
    for host in ["127.0.0.1", "169.254.169.254"] {
        let extension = extension(&format!("http://{host}:{port}/m.wasm"), "nil", &json!({}));
        assert_eq!(blocking.convert(&extension).await.expect("an extension"), parsed(DENY), "{host}");
    }
    assert!(pages.requests("/m.wasm").is_empty());
}

/// Adds an image to a registry that requires a token for it. Returns the digest of its manifest.
fn put_image(pages: &Pages, port: u16, tag: &str, layers: &[(&str, &[u8])]) -> String {
    let layer = |(media_type, bytes): &(&str, &[u8])| {
        let digest = format!("sha256:{}", sha256(bytes));
        let authorization = Some(("Bearer ticket".to_owned(), "Bearer".to_owned()));
        pages.put(
            &format!("/v2/a/guard/blobs/{digest}"),
            Page { authorization, body: bytes.to_vec(), ..Page::default() },
        );
        json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
    };
    let layers: Vec<Value> = layers.iter().map(layer).collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "layers": layers,
    });
    let manifest = manifest.to_string().into_bytes();
    let digest = sha256(&manifest);
    let challenge =
        format!("Bearer realm=\"https://localhost:{port}/token\",service=\"r\",scope=\"repository:a/guard:pull\"");
    for version in [tag.to_owned(), format!("sha256:{digest}")] {
        let authorization = Some(("Bearer ticket".to_owned(), challenge.clone()));
        pages.put(
            &format!("/v2/a/guard/manifests/{version}"),
            Page { authorization, body: manifest.clone(), ..Page::default() },
        );
    }
    digest
}

const TOKEN: &str = "/token?scope=repository:a/guard:pull&service=r";
const MODULE_LAYER: &str = "application/vnd.module.wasm.content.layer.v1+wasm";

fn secret(port: u16) -> String {
    json!({ "auths": { format!("localhost:{port}"): { "username": "me", "password": PASSWORD } } }).to_string()
}

fn layer(name: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut header = tar::Header::new_gnu();
    header.set_size(MODULE.len() as u64);
    header.set_cksum();
    archive.append_data(&mut header, name, MODULE).expect("archived");
    archive.into_inner().expect("archived").finish().expect("compressed")
}

#[tokio::test]
async fn registry_credentials_are_sent_to_the_registry_only() {
    // The log is checked below.
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&log);
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || SharedLog(Arc::clone(&writer)))
        .finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    // With a single subscriber, a call site that another thread reaches first would be disabled for all threads.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());

    let (server, client) = tls();
    let pages = Pages::default();
    let port = pages.serve(Some(server)).await;
    let credentials = super::credentials::basic(format!("me:{PASSWORD}").as_bytes());
    let super::credentials::Credentials::Basic(basic) = credentials else { panic!("not basic") };
    let ticket = json!({ "token": "ticket" }).to_string().into_bytes();
    pages.put(
        TOKEN,
        Page { authorization: Some((basic.to_string(), "Basic".to_owned())), body: ticket, ..Page::default() },
    );
    let digest = put_image(&pages, port, "1", &[("application/x-config", b"{}"), (MODULE_LAYER, MODULE)]);
    let agent = TestAgent::new(Some(client), |_| {});
    let variables = json!({ "ISTIO_META_WASM_IMAGE_PULL_SECRET": secret(port) });
    let url = format!("oci://localhost:{port}/a/guard:1");
    let filter = agent.convert(&extension(&url, &digest, &variables)).await.expect("an extension");
    let file = filter["config"]["vmConfig"]["code"]["local"]["filename"].as_str().expect("a file").to_owned();
    assert_eq!(std::fs::read(&file).expect("the module"), MODULE);
    assert!(file.ends_with(&format!("{digest}.wasm")), "{file}");
    assert!(filter["config"]["vmConfig"].get("environmentVariables").is_none(), "{filter}");

    // The same image by its digest is cached.
    let by_digest = extension(&format!("oci://localhost:{port}/a/guard@sha256:{digest}"), "nil", &json!({}));
    assert_eq!(agent.module(&by_digest).await.as_deref(), Some(MODULE));
    assert_eq!(pages.requests("/v2/a/guard/manifests/1").len(), 2, "without and with a token");
    assert!(pages.requests(&format!("/v2/a/guard/manifests/sha256:{digest}")).is_empty());

    // The registry receives the token only, the token server the password.
    for (path, page) in &*pages.0.lock().expect("the pages") {
        for headers in &page.requests {
            let sent = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
            assert!(if path == TOKEN { sent == Some(&basic) } else { sent.is_none_or(|sent| sent == "Bearer ticket") });
        }
    }

    // Failures do not show them either.
    let wrong = json!({ "ISTIO_META_WASM_IMAGE_PULL_SECRET": format!("{{\"auths\": \"{PASSWORD}\"}}") });
    let other = format!("oci://me:{PASSWORD}@localhost:{port}/a/other:1");
    for (url, variables) in [(format!("{url}2"), &variables), (other, &variables), (format!("{url}3"), &wrong)] {
        assert_eq!(agent.convert(&extension(&url, "nil", variables)).await.expect("an extension"), parsed(DENY));
    }
    let log = String::from_utf8(log.lock().expect("the log").clone()).expect("a log");
    assert!(log.contains("all traffic is denied") && log.contains("fetched"), "{log}");
    for hidden in [PASSWORD, "ticket", basic.as_str()] {
        assert!(!log.contains(hidden), "{log}");
    }
}

struct SharedLog(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for SharedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the log").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn module_file_of_a_layer_is_used_after_its_digest_is_checked() {
    let (server, client) = tls();
    let pages = Pages::default();
    let port = pages.serve(Some(server)).await;
    let ticket = json!({ "access_token": "ticket" }).to_string().into_bytes();
    pages.put(TOKEN, Page { body: ticket, ..Page::default() });
    let oci = "application/vnd.oci.image.layer.v1.tar+gzip";
    let (good, bad) = (layer("./dir/plugin.wasm"), layer("other.wasm"));
    put_image(&pages, port, "good", &[(oci, &good)]);
    put_image(&pages, port, "bad", &[(oci, &bad)]);
    let agent = TestAgent::new(Some(client), |_| {});
    let of = |version: &str| extension(&format!("oci://localhost:{port}/a/guard:{version}"), "nil", &json!({}));
    assert_eq!(agent.module(&of("good")).await.as_deref(), Some(MODULE));
    assert_eq!(agent.module(&of("bad")).await, None);

    // A registry that serves other content than the manifest names.
    let digest = put_image(&pages, port, "lie", &[(MODULE_LAYER, b"\0asm\x01\0\0\0 another")]);
    let path = format!("/v2/a/guard/blobs/sha256:{}", sha256(b"\0asm\x01\0\0\0 another"));
    pages.module(&path);
    assert_eq!(agent.module(&of("lie")).await, None);
    let by_digest = extension(&format!("oci://localhost:{port}/a/guard@sha256:{digest}"), "nil", &json!({}));
    pages.put(&format!("/v2/a/guard/manifests/sha256:{digest}"), Page { body: b"{}".to_vec(), ..Page::default() });
    assert_eq!(agent.module(&by_digest).await, None);
}

#[tokio::test]
async fn token_server_on_an_internal_address_is_rejected() {
    let pages = Pages::default();
    let internal = Pages::default();
    internal
        .put("/token?scope=repository:a/guard:pull", Page { body: b"{\"token\":\"x\"}".to_vec(), ..Page::default() });
    let (port, internal_port) = (pages.serve(None).await, internal.serve(None).await);
    let challenge = format!("Bearer realm=\"http://127.0.0.1:{internal_port}/token\"");
    let authorization = Some(("Bearer x".to_owned(), challenge));
    pages.put("/v2/a/guard/manifests/1", Page { authorization, ..Page::default() });
    // A registry on the loopback may be without TLS.
    let agent = TestAgent::new(None, |settings| settings.max_attempts = 1);
    let variables = json!({ "ISTIO_META_WASM_IMAGE_PULL_SECRET": secret(port) });
    let extension = extension(&format!("oci://localhost:{port}/a/guard:1"), "nil", &variables);
    assert_eq!(agent.module(&extension).await, None);
    assert_eq!(pages.requests("/v2/a/guard/manifests/1").len(), 1);
    assert!(internal.requests("/token?scope=repository:a/guard:pull").is_empty());
}

#[tokio::test]
async fn token_server_is_checked_by_its_address_and_not_by_its_name() {
    let (registry, internal) = (Pages::default(), Pages::default());
    const PATH: &str = "/token?scope=repository:a/guard:pull";
    internal.put(PATH, Page { body: b"{\"token\":\"x\"}".to_vec(), ..Page::default() });
    let (port, internal_port) = (registry.serve(None).await, internal.serve(None).await);
    // A name with an address of this machine, as a name server of the registry's owner may have.
    let challenge = format!("Bearer realm=\"http://localhost:{internal_port}/token\"");
    let authorization = Some(("Bearer x".to_owned(), challenge));
    registry.put("/v2/a/guard/manifests/1", Page { authorization, ..Page::default() });
    let agent = TestAgent::new(None, |settings| settings.max_attempts = 1);
    let extension = extension(&format!("oci://127.0.0.1:{port}/a/guard:1"), "nil", &json!({}));
    assert_eq!(agent.module(&extension).await, None);
    assert_eq!(registry.requests("/v2/a/guard/manifests/1").len(), 1);
    assert!(internal.requests(PATH).is_empty());
}

#[tokio::test]
async fn credentials_are_never_sent_in_plaintext() {
    let (server, _) = tls();
    let (plain, secure) = (Pages::default(), Pages::default());
    plain.module("/m.wasm");
    let (port, tls_port) = (plain.serve(None).await, secure.serve(Some(server)).await);
    secure.put("/down", Page { location: Some(format!("http://localhost:{port}/m.wasm")), ..Page::default() });
    // Not even to servers whose certificates are not verified.
    let agent = TestAgent::new(None, |settings| {
        settings.insecure_hosts = ["*".to_owned()].into();
        settings.max_attempts = 1;
    });
    let module = async |url: String, variables: Value| agent.module(&extension(&url, "nil", &variables)).await;
    assert_eq!(module(format!("http://me:{PASSWORD}@localhost:{port}/m.wasm"), json!({})).await, None);
    assert_eq!(module(format!("https://me:{PASSWORD}@localhost:{tls_port}/down"), json!({})).await, None);
    assert!(plain.requests("/m.wasm").is_empty());
    assert!(secure.requests("/down")[0].contains_key(AUTHORIZATION));
    assert_eq!(module(format!("https://localhost:{tls_port}/down"), json!({})).await.as_deref(), Some(MODULE));

    // A registry without TLS that requests the password, itself or for a token.
    let pull_secret = json!({ "ISTIO_META_WASM_IMAGE_PULL_SECRET": secret(port) });
    for (version, challenge) in
        [("1", "Basic".to_owned()), ("2", format!("Bearer realm=\"http://localhost:{port}/token\""))]
    {
        let path = format!("/v2/a/guard/manifests/{version}");
        plain.put(&path, Page { authorization: Some(("x".to_owned(), challenge)), ..Page::default() });
        assert_eq!(module(format!("oci://localhost:{port}/a/guard:{version}"), pull_secret.clone()).await, None);
        assert_eq!(plain.requests(&path).len(), 1, "without credentials");
    }
    for page in plain.0.lock().expect("the pages").values() {
        assert!(page.requests.iter().all(|headers| !headers.contains_key(AUTHORIZATION)));
    }
}

#[tokio::test]
async fn typed_structs_are_converted_and_local_modules_lose_their_pull_secret() {
    let pages = Pages::default();
    pages.module("/m.wasm");
    let url = format!("http://127.0.0.1:{}/m.wasm", pages.serve(None).await);
    let agent = TestAgent::plain();
    let mut structure = extension(&url, "nil", &json!({}));
    let config = structure["typedConfig"]["config"].take();
    structure["typedConfig"] = json!({
        "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
        "typeUrl": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "value": { "config": config },
    });
    assert_eq!(agent.module(&structure).await.as_deref(), Some(MODULE));

    let variables = json!({ "ISTIO_META_WASM_IMAGE_PULL_SECRET": PASSWORD, "MODE": "x" });
    let mut local = extension(&url, "nil", &variables);
    local["typedConfig"]["config"]["vmConfig"]["code"] = json!({ "local": { "filename": "/opt/m.wasm" } });
    let mut expected = local["typedConfig"].clone();
    expected["config"]["vmConfig"]["environmentVariables"]["keyValues"] = json!({ "MODE": "x" });
    assert_eq!(agent.convert(&local).await.expect("an extension"), expected);

    let mut other = extension(&url, "nil", &json!({}));
    other["typedConfig"] = parsed(DENY);
    assert_eq!(agent.convert(&other).await.expect("an extension"), parsed(DENY));
    let mut none = extension(&url, "nil", &json!({}));
    none["typedConfig"]["config"]["vmConfig"]["code"] = json!({});
    assert!(agent.convert(&none).await.is_err(), "the response has to be rejected");
    let extension = TypedExtensionConfig { name: "a".into(), typed_config: None };
    let bare = Any { type_url: String::new(), value: extension.encode_to_vec() };
    assert!(agent.modules.convert(vec![bare]).await.is_err());
}
