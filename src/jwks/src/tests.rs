//! Fetches over sockets of the loopback.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use sluice_engine::{Engine, EngineOptions, Origin};
use sluice_graph::{GraphOptions, Handles};
use sluice_model::{Kind, ObjectKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const KEYS: &str = r#"{"keys":[{"kty":"oct","k":"AA","kid":"a"}]}"#;
const SECOND: Duration = Duration::from_secs(1);

/// A server of an issuer. Its keys can be changed, and it counts the requests for them.
#[derive(Clone, Default)]
struct Issuer {
    keys: Arc<Mutex<String>>,
    requests: Arc<AtomicUsize>,
}

impl Issuer {
    async fn serve(self) -> SocketAddr {
        self.set(KEYS);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let configuration = format!(r#"{{"issuer":"i","jwks_uri":"http://{address}/keys"}}"#);
        let router = Router::new()
            .route("/keys", get(keys))
            .route("/issuer/.well-known/openid-configuration", get(move || async move { configuration }))
            .route("/moved", get(|| async { Redirect::temporary("/keys") }))
            .route("/circle", get(|| async { Redirect::temporary("/circle") }))
            .route("/elsewhere", get(|| async { Redirect::temporary("ftp://127.0.0.1/keys") }))
            .route("/headers", get(headers))
            .route("/endless-failure", get(|| async { (StatusCode::BAD_GATEWAY, Body::from_stream(pieces(SECOND))) }))
            .route("/secret", get(|| async { "a password" }))
            .route("/long", get(|| async { " ".repeat(2 * 1024 * 1024) }))
            .route("/full", get(|| async { KEYS.to_owned() + &" ".repeat(1024 * 1024 - KEYS.len()) }))
            .route("/more", get(|| async { KEYS.to_owned() + &" ".repeat(1024 * 1024 - KEYS.len() + 1) }))
            .route("/endless", get(|| async { Body::from_stream(pieces(Duration::ZERO)) }))
            .route("/slow", get(|| async { Body::from_stream(pieces(Duration::from_millis(10))) }))
            .route("/inside", get(|| async { Redirect::temporary("http://127.0.0.2:1/keys") }))
            .route("/never", get(|| async { std::future::pending::<()>().await }))
            .with_state(self);
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    fn set(&self, keys: &str) {
        keys.clone_into(&mut self.keys.lock().expect("no panic"));
    }
}

/// A body of spaces that never ends.
fn pieces(rest: Duration) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures::stream::repeat(()).then(move |()| async move {
        tokio::time::sleep(rest).await;
        Ok(Bytes::from_static(&[b' '; 1024]))
    })
}

async fn keys(State(issuer): State<Issuer>) -> impl IntoResponse {
    issuer.requests.fetch_add(1, Ordering::SeqCst);
    let keys = issuer.keys.lock().expect("no panic").clone();
    if keys.is_empty() { (StatusCode::SERVICE_UNAVAILABLE, "later".to_owned()) } else { (StatusCode::OK, keys) }
}

/// The headers of the request, in the form of a key set.
async fn headers(headers: HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    serde_json::json!({"keys": [text("user-agent"), text("accept"), text("host"), text("authorization")]}).to_string()
}

fn at(uri: String) -> JwksKey {
    JwksKey { uri: uri.into(), ..JwksKey::default() }
}

fn client(blocked: &[&str]) -> JwksClient {
    let blocked = blocked.iter().map(|block| block.parse().expect("a block")).collect();
    with_options(&JwksOptions { blocked, ..JwksOptions::default() })
}

fn with_options(options: &JwksOptions) -> JwksClient {
    JwksClient::new(options).expect("a client")
}

#[tokio::test]
async fn keys_are_fetched_directly_after_a_redirect_and_by_discovery() {
    let address = Issuer::default().serve().await;
    let client = client(&[]);
    for key in [
        at(format!("http://{address}/keys")),
        at(format!("http://{address}/moved")),
        JwksKey { issuer: format!("http://{address}/issuer/").into(), ..JwksKey::default() },
    ] {
        assert_eq!(client.fetch(&key, SECOND).await.expect("keys"), KEYS, "{key}");
    }
}

#[tokio::test]
async fn failed_responses_and_other_documents_are_errors() {
    let address = Issuer::default().serve().await;
    let client = client(&[]);
    let fetch = async |path: &str| client.fetch(&at(format!("http://{address}{path}")), SECOND).await;
    assert!(matches!(fetch("/secret").await, Err(FetchError::Content(_))));
    assert!(matches!(fetch("/absent").await, Err(FetchError::Status(404))));
    assert!(matches!(fetch("/long").await, Err(FetchError::Body(_))));
    assert_eq!(fetch("/circle").await.expect_err("refused").to_string(), "more than 10 redirects");
    let error = fetch("/elsewhere").await.expect_err("refused").to_string();
    assert_eq!(error, "redirect: scheme \"ftp\" is not accepted");
    assert!(matches!(fetch("/endless-failure").await, Err(FetchError::Status(502))), "its body is not awaited");
    let never = at(format!("http://{address}/never"));
    assert!(matches!(client.fetch(&never, Duration::from_millis(50)).await, Err(FetchError::Timeout(_))));
    assert!(matches!(client.fetch(&at("ftp://h/k".to_owned()), SECOND).await, Err(FetchError::Url { .. })));
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("its address");
    let error = client.fetch(&at(format!("http://{closed}/keys")), SECOND).await.expect_err("refused").to_string();
    assert!(error.starts_with(&format!("connect to {closed}: Connection refused")), "{error}");
}

#[tokio::test]
async fn request_states_its_sender_and_no_credentials() {
    let address = Issuer::default().serve().await;
    let uri = format!("http://user:password@{address}/headers");
    let sent: serde_json::Value = serde_json::from_str(&client(&[]).fetch(&at(uri), SECOND).await.expect("headers"))
        .expect("a document of the server");
    let agent = concat!("sluice/", env!("CARGO_PKG_VERSION"));
    assert_eq!(sent["keys"], serde_json::json!([agent, "application/json, */*", address.to_string(), ""]));
}

#[tokio::test]
async fn responses_are_limited_in_size_and_time() {
    let address = Issuer::default().serve().await;
    let client = client(&[]);
    let fetch = async |path: &str, limit| client.fetch(&at(format!("http://{address}{path}")), limit).await;
    let long = Duration::from_secs(20);
    assert_eq!(fetch("/full", long).await.expect("a MiB is read").len(), 1024 * 1024);
    for path in ["/more", "/endless"] {
        let result = fetch(path, long).await;
        assert!(
            matches!(&result, Err(FetchError::Body(error)) if error.to_string().contains("limit")),
            "{path}: {result:?}"
        );
    }
    // Each piece arrives in time, but the body does not end in time.
    let limit = Duration::from_millis(200);
    assert!(matches!(fetch("/slow", limit).await, Err(FetchError::Timeout(after)) if after == limit));
    // The server accepts and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let key = at(format!("http://{}/keys", silent.local_addr().expect("its address")));
    assert!(matches!(client.fetch(&key, limit).await, Err(FetchError::Timeout(_))));
}

#[tokio::test]
async fn redirects_to_blocked_addresses_and_plaintext_are_refused() {
    let address = Issuer::default().serve().await;
    let inside = at(format!("http://{address}/inside"));
    let result = client(&["127.0.0.2/32"]).fetch(&inside, SECOND).await;
    assert!(matches!(&result, Err(FetchError::Forbidden { host, .. }) if host == "127.0.0.2"), "{result:?}");
    let https_only = with_options(&JwksOptions { https_only: true, skip_verify: true, ..JwksOptions::default() });
    let result = https_only.fetch(&at(format!("http://{address}/keys")), SECOND).await;
    assert!(matches!(result, Err(FetchError::Url { .. })), "{result:?}");
    let (port, _) = serve_tls(format!("307 Temporary Redirect\r\nlocation: http://{address}/keys"), "").await;
    let result = https_only.fetch(&at(format!("https://localhost:{port}/keys")), SECOND).await;
    assert_eq!(result.expect_err("refused").to_string(), "redirect: plaintext is refused");
}

#[tokio::test]
async fn keys_of_an_issuer_with_tls_are_not_fetched_in_plaintext() {
    let issuer = Issuer::default();
    let address = issuer.clone().serve().await;
    let client = with_options(&JwksOptions { skip_verify: true, ..JwksOptions::default() });
    let (port, _) = serve_tls(format!("307 Temporary Redirect\r\nlocation: http://{address}/keys"), "").await;
    let result = client.fetch(&at(format!("https://localhost:{port}/keys")), SECOND).await;
    assert_eq!(result.expect_err("refused").to_string(), "redirect: plaintext is refused");
    let document = format!(r#"{{"issuer":"i","jwks_uri":"http://{address}/keys"}}"#);
    let (port, _) = serve_tls("200 OK".to_owned(), &document).await;
    let key = JwksKey { issuer: format!("https://localhost:{port}").into(), ..JwksKey::default() };
    let error = client.fetch(&key, SECOND).await.expect_err("refused").to_string();
    let expect = format!(
        "the discovery document of `https://localhost:{port}` names the jwks_uri `http://{address}/keys`: only https is \
         accepted for an https issuer"
    );
    assert_eq!(error, expect);
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn no_request_is_sent_to_blocked_addresses() {
    let issuer = Issuer::default();
    let address = issuer.clone().serve().await;
    for host in ["127.0.0.1", "localhost"] {
        let key = at(format!("http://{host}:{}/keys", address.port()));
        let result = client(&["127.0.0.0/8", "::1/128"]).fetch(&key, SECOND).await;
        assert!(matches!(result, Err(FetchError::Forbidden { .. })), "{host}: {result:?}");
    }
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 0);
}

/// Serves one response over TLS. The port, and the certificate as PEM.
async fn serve_tls(head: String, body: &str) -> (u16, String) {
    let body = body.to_owned();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = sluice_crypto::provider(None);
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).expect("a key");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 1024]).await;
            let length = body.len();
            let response = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            let _ = stream.write_all(response.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (port, made.cert.pem())
}

#[tokio::test]
async fn certificates_of_servers_are_verified() {
    let (port, certificate) = serve_tls("200 OK".to_owned(), KEYS).await;
    let directory = tempfile::tempdir().expect("a directory");
    let extra_roots = directory.path().join("extra.pem");
    let key = at(format!("https://localhost:{port}/keys"));
    let options = JwksOptions { extra_roots: extra_roots.clone(), ..JwksOptions::default() };
    let client = with_options(&options);
    assert!(client.fetch(&key, SECOND).await.is_err(), "unknown root");
    let trusting = JwksOptions { skip_verify: true, ..options.clone() };
    assert_eq!(with_options(&trusting).fetch(&key, SECOND).await.expect("keys"), KEYS);
    std::fs::write(&extra_roots, certificate).expect("the file");
    assert_eq!(client.fetch(&key, SECOND).await.expect("keys"), KEYS, "the file of roots is read again");
}

/// A graph with one policy that names the keys at `address`, and the key set of the policy.
fn graph(address: SocketAddr) -> (Engine, Handles, JwksKey) {
    let options = GraphOptions::default();
    let (engine, handles) = Engine::start(EngineOptions::default(), move |b| sluice_graph::build(b, &options));
    let uri = format!("http://{address}/keys");
    let policy = serde_json::json!({
        "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
        "metadata": {"name": "it", "namespace": "shop"},
        "spec": {"jwtRules": [{"issuer": "i", "jwksUri": uri}]},
    });
    let parsed = sluice_parse::parse_object(&"Kubernetes".into(), "cluster.local", &policy).expect("a policy");
    engine.transaction(|tx| {
        handles.inputs.apply(tx, parsed, Origin::default());
        handles.inputs.mark_all_synced(tx);
    });
    (engine, handles, at(uri))
}

#[tokio::test]
async fn fetched_keys_are_an_input_of_the_graph_and_follow_the_issuer() {
    let issuer = Issuer::default();
    let address = issuer.clone().serve().await;
    // The first fetch fails.
    issuer.set("");
    let (engine, handles, key) = graph(address);
    let short = Duration::from_millis(5);
    let schedule = Schedule { refresh: short, retry: short, first_retry: short, ..Schedule::default() };
    let options = JwksOptions { schedule, ..JwksOptions::default() };
    let metrics = JwksMetrics::default();
    let wanted = handles.wanted_jwks.clone();
    let fetcher = JwksFetcher::new(engine.clone(), wanted, handles.inputs.jwks.clone(), &options, metrics.clone());
    let fetcher = fetcher.expect("a fetcher");
    let mut tried = fetcher.tried();
    let running = tokio::spawn(fetcher.run());
    tried.wait_for(|tried| *tried).await.expect("it runs");
    assert!(metrics.failed.get() >= 1);
    let mut feed = engine.feed().only(&handles.jwks);
    let mut expect = async |text: &str| {
        let deadline = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                let now = engine.snapshot().get(&handles.jwks, &key).map(|jwks| jwks.text.to_string());
                if now.unwrap_or_default() == *text {
                    return;
                }
                feed.next().await;
            }
        });
        deadline.await.unwrap_or_else(|_| panic!("{text:?} does not come"));
    };
    expect("").await;
    issuer.set(KEYS);
    expect(KEYS).await;
    let other = r#"{"keys":[]}"#;
    issuer.set(other);
    expect(other).await;
    // The keys stay when the issuer fails.
    let before = metrics.failed.get();
    issuer.set("");
    while metrics.failed.get() < before + 3 {
        tokio::task::yield_now().await;
    }
    expect(other).await;
    let policy = ObjectKey::new("Kubernetes", "shop", "it");
    engine.transaction(|tx| handles.inputs.delete(tx, Kind::RequestAuthentication, policy, Origin::default()));
    expect("").await;
    running.abort();
}
