//! Trust anchors with a graph, and a server that publishes a bundle.

use axum::Router;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sluice_ca::to_pem;
use sluice_engine::{EngineOptions, Origin};
use sluice_graph::{GraphOptions, build};
use sluice_jwks::JwksOptions;
use sluice_telemetry::unix_seconds;
use tokio_rustls::TlsAcceptor;

use super::*;

fn root(name: &str) -> CertificateDer<'static> {
    let material =
        sluice_ca::root::create(name, sluice_ca::NewKey::EcdsaP256, Duration::from_secs(86400), unix_seconds())
            .expect("a root");
    CertificateDer::from_pem_slice(material.roots.as_bytes()).expect("a certificate")
}

fn bundle(root: &CertificateDer<'_>) -> Value {
    json!({"keys": [
        {"use": "jwt-svid", "kty": "EC", "kid": "a"},
        {"use": "x509-svid", "kty": "EC", "x5c": [STANDARD.encode(root)]},
    ], "spiffe_sequence": 1})
}

/// Certificates as separate PEM texts, sorted, as they are written.
fn texts(roots: &[CertificateDer<'_>]) -> Vec<Text> {
    let mut texts: Vec<Text> = roots.iter().map(|root| to_pem(std::slice::from_ref(root)).into()).collect();
    texts.sort();
    texts
}

#[test]
fn published_bundle_has_one_root_for_each_key() {
    let one = root("one");
    assert_eq!(parse_bundle(&bundle(&one).to_string()), Ok(vec![one.clone()]));
    let check = |change: fn(&mut Value), reason: &str| {
        let mut value = bundle(&one);
        change(&mut value);
        let error = parse_bundle(&value.to_string()).expect_err(reason);
        assert!(error.contains(reason), "{error}");
    };
    check(|value| value["keys"][1]["use"] = json!("jwt-svid"), "it has no root");
    check(|value| value["keys"] = json!(7), "not a SPIFFE trust bundle");
    check(|value| value["keys"][1]["x5c"] = json!([]), "0 certificates");
    check(|value| value["keys"][1]["x5c"] = json!(["%"]), "not base64");
    check(|value| value["keys"][1]["x5c"] = json!(["AAAA"]), "not an X.509 certificate");
}

/// Publishes a bundle over TLS. Returns its URL, and a client that does not verify the server certificate.
async fn publish(bundle: Value) -> (String, JwksClient) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let provider = sluice_crypto::provider(None);
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_no_client_auth();
    let config = config.with_single_cert(vec![certified.cert.der().clone()], key).expect("a key");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let text = bundle.to_string();
    let router = Router::new().route("/bundle", get(move || async move { text }));
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            let stream = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(stream, service));
        }
    });
    let options = JwksOptions { skip_verify: true, https_only: true, ..JwksOptions::default() };
    (format!("localhost:{port}/bundle"), JwksClient::new(&options).expect("a client"))
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_of_all_sources_are_merged_and_updated() {
    let [own, declared, remote] = ["own", "declared", "remote"].map(root);
    let (address, client) = publish(bundle(&remote)).await;
    let options = GraphOptions::default();
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
    let set_mesh = |certificates: Value| {
        let mesh = json!({"caCertificates": certificates}).to_string();
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"},
            "data": {"mesh": mesh},
        });
        let parsed = sluice_parse::parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("a mesh config");
        engine.transaction(|tx| handles.inputs.apply(tx, parsed, Origin::default()));
    };
    engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
    let (sender, receiver) =
        watch::channel(TrustBundle { roots: to_pem(std::slice::from_ref(&own)), ..TrustBundle::default() });
    let anchors = TrustAnchors::new(client, receiver, None, handles.inputs.trust_bundle.clone());
    let stop = CancellationToken::new();
    let running = tokio::spawn(anchors.run(engine.clone(), handles.clone(), stop.clone()));
    let has = async |roots: &[&CertificateDer<'static>]| {
        let expect = texts(&roots.iter().map(|root| (*root).clone()).collect::<Vec<_>>());
        let deadline = Instant::now() + Duration::from_secs(20);
        while engine.dump("trust_bundle").is_none_or(|dump| {
            let written: Vec<Value> = dump.records().map(|(_, roots)| roots).collect();
            written != [json!(expect)]
        }) {
            assert!(Instant::now() < deadline, "{} roots", expect.len());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    has(&[&own]).await;
    // A duplicate root is written once. A certificate that is not a CA certificate is ignored.
    let leaf = rcgen::generate_simple_self_signed(["leaf".to_owned()]).expect("a certificate").cert.pem();
    let both = to_pem(&[declared.clone(), own.clone()]);
    set_mesh(json!([{"pem": both}, {"pem": leaf}, {"pem": "nonsense"}, {"spiffeBundleUrl": address}]));
    has(&[&own, &declared, &remote]).await;
    // Another root of the authority, and a bundle URL that refuses connections.
    let second = root("second");
    // Roots of another signer of the server certificate are ignored.
    let workload_roots = to_pem(&[own.clone(), second.clone()]);
    sender.send_replace(TrustBundle { roots: to_pem(&[root("server")]), workload_roots, ..TrustBundle::default() });
    has(&[&own, &second, &declared, &remote]).await;
    set_mesh(
        json!([{"pem": to_pem(std::slice::from_ref(&declared))}, {"spiffeBundleUrl": "https://localhost:1/none"}]),
    );
    has(&[&own, &second, &declared]).await;
    set_mesh(json!([]));
    has(&[&own, &second]).await;
    stop.cancel();
    running.await.expect("no panic");
}
