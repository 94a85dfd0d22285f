//! Variables that decide who is accepted, and what callers see.

use std::sync::Arc;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use sluice_testkit::ads::connect;
use sluice_testkit::pods::identity::{Authority, certificates, private_key};
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use sluice_testkit::server::get;
use sluice_testkit::wait::until_async;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs};
use tonic::Code;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::mesh::{CART, IdentityFixture, uris};
use super::{clusters, node};

/// The connection of a client with the certificate of a service account.
async fn certified(mesh: &IdentityFixture, subject: &str) -> tonic::transport::Channel {
    let (key, csr) = signing_request().expect("a request");
    let channel = mesh.connect(&ClientTls::default()).await;
    let chain = CertificateRequest::with_token(&csr, &mesh.token(subject)).send(&channel).await.expect("issued");
    mesh.connect(&ClientTls { pair: Some((chain[0].clone(), key)), ..ClientTls::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn secure_port_needs_no_credentials_if_authentication_is_disabled() {
    let mesh = IdentityFixture::start_with(&[], &[("XDS_AUTH", "false")]).await;
    let anonymous = mesh.connect(&ClientTls::default()).await;
    assert!(clusters(anonymous.clone(), node("shop", "cart")).await.expect("it is served") > 0);
    // Certificates are for authenticated callers in any case.
    let (_, csr) = signing_request().expect("a request");
    let request = CertificateRequest { csr, ..CertificateRequest::default() };
    assert_eq!(request.send(&anonymous).await.expect_err("no credentials").code(), Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread")]
async fn plaintext_port_needs_credentials_if_that_is_configured() {
    let served = async |mesh: &IdentityFixture| {
        let channel = connect(mesh.server.grpc).await.expect("a connection");
        clusters(channel, node("shop", "cart")).await.map(|clusters| clusters > 0)
    };
    let mesh = IdentityFixture::start(&[]).await;
    assert_eq!(served(&mesh).await, Ok(true));
    let mesh = IdentityFixture::start_with(&[], &[("XDS_AUTH_PLAINTEXT", "true")]).await;
    assert_eq!(served(&mesh).await, Err(Code::Unauthenticated));
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_may_have_the_identity_of_another_proxy_if_the_check_is_disabled() {
    let mesh = IdentityFixture::start_with(&[], &[("PILOT_ENABLE_XDS_IDENTITY_CHECK", "false")]).await;
    let channel = certified(&mesh, CART).await;
    assert!(clusters(channel, node("bank", "vault")).await.expect("it is served") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_need_one_of_the_configured_audiences() {
    let mesh = IdentityFixture::start_with(&[], &[("TOKEN_AUDIENCES", "mesh, other")]).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    for (audience, is_accepted) in [("mesh", true), ("other", true), ("istio-ca", false)] {
        let mut claims = mesh.claims(CART, 600);
        claims["aud"] = json!([audience]);
        let (_, csr) = signing_request().expect("a request");
        let answer = CertificateRequest::with_token(&csr, &mesh.sign(&claims)).send(&channel).await;
        assert_eq!(answer.map_err(|status| status.code()).err(), (!is_accepted).then_some(Code::Unauthenticated));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_the_issuer_of_the_jwt_rule_are_accepted() {
    let issuer = TokenIssuer::new().expect("an issuer");
    let authority = Authority::new().expect("an authority");
    let directory = tempfile::tempdir().expect("a directory");
    let roots = directory.path().join("roots.pem");
    std::fs::write(&roots, authority.root()).expect("write the roots");
    let address = serve_keys(&issuer, Some(&authority)).await;
    let uri = format!("https://localhost:{}/keys", address.port());
    let rule = json!({"issuer": "https://oidc", "jwks_uri": uri, "audiences": ["mesh"]}).to_string();
    let roots = roots.display().to_string();
    let variables = [("JWT_RULE", rule.as_str()), ("SSL_CERT_FILE", roots.as_str())];
    let mesh = IdentityFixture::start_with(&[], &variables).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    for (issuer_name, audience, is_accepted) in
        [("https://oidc", "mesh", true), ("https://oidc", "istio-ca", false), ("https://other", "mesh", false)]
    {
        let mut claims = mesh.claims(CART, 600);
        (claims["iss"], claims["aud"]) = (json!(issuer_name), json!([audience]));
        let token = issuer.sign(&claims).expect("a token");
        let (_, csr) = signing_request().expect("a request");
        match CertificateRequest::with_token(&csr, &token).send(&channel).await {
            Ok(chain) => {
                assert!(is_accepted, "{issuer_name} {audience}");
                assert_eq!(uris(&chain[0]), ["spiffe://cluster.local/ns/shop/sa/cart"]);
            }
            Err(status) => {
                assert!(!is_accepted, "{issuer_name} {audience}: {status}");
                assert_eq!(status.code(), Code::Unauthenticated);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_the_jwt_rule_are_fetched_over_verified_tls_only() {
    let issuer = TokenIssuer::new().expect("an issuer");
    let (authority, plaintext) = (Authority::new().expect("an authority"), serve_keys(&issuer, None).await);
    // A server of unknown roots; the variable is for keys that proxies use.
    let unverified = serve_keys(&issuer, Some(&authority)).await;
    for uri in [format!("http://{plaintext}/keys"), format!("https://localhost:{}/keys", unverified.port())] {
        let rule = json!({"issuer": "https://oidc", "jwks_uri": uri, "audiences": ["mesh"]}).to_string();
        let variables = [("JWT_RULE", rule.as_str()), ("JWKS_RESOLVER_INSECURE_SKIP_VERIFY", "true")];
        let mesh = IdentityFixture::start_with(&[], &variables).await;
        let channel = mesh.connect(&ClientTls::default()).await;
        let mut claims = mesh.claims(CART, 600);
        (claims["iss"], claims["aud"]) = (json!("https://oidc"), json!(["mesh"]));
        let (_, csr) = signing_request().expect("a request");
        let token = issuer.sign(&claims).expect("a token");
        let status = CertificateRequest::with_token(&csr, &token).send(&channel).await.expect_err("no keys");
        assert_eq!(status.code(), Code::Unauthenticated, "{uri}");
    }
}

/// Serves the keys of an issuer at `/keys`, over TLS if there is an authority that certifies the server.
async fn serve_keys(issuer: &TokenIssuer, authority: Option<&Authority>) -> std::net::SocketAddr {
    let keys = issuer.key_set();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = axum::Router::new().route("/keys", axum::routing::get(async move || keys));
    let Some(authority) = authority else {
        tokio::spawn(async move { axum::serve(listener, router).await.expect("served") });
        return address;
    };
    let (chain, key) = authority.issue_hosts(&["localhost".to_owned()]).expect("a certificate");
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let (chain, key) = (certificates(&chain).expect("a chain"), private_key(&key).expect("a key"));
    let tls = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).expect("a pair")));
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (tls, service) = (tls.clone(), TowerToHyperService::new(router.clone()));
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                // The client may end the connection at any time.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// Seconds for which a certificate is valid.
fn lifetime(pem: &str) -> i64 {
    let der = certificates(pem).expect("a certificate").remove(0);
    let (_, certificate) = X509Certificate::from_der(&der).expect("a certificate");
    let validity = certificate.validity();
    validity.not_after.timestamp() - validity.not_before.timestamp()
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_have_the_configured_lifetimes() {
    let variables = [
        ("DEFAULT_WORKLOAD_CERT_TTL", "30m"),
        ("MAX_WORKLOAD_CERT_TTL", "1h"),
        ("CITADEL_SELF_SIGNED_CA_CERT_TTL", "240h"),
        ("SLUICE_SELF_SIGNED_CA_ECC_CURVE", "P384"),
    ];
    let mesh = IdentityFixture::start_with(&[], &variables).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    let issue = async |seconds| {
        let (_, csr) = signing_request().expect("a request");
        let request = CertificateRequest { seconds, ..CertificateRequest::with_token(&csr, &mesh.token(CART)) };
        request.send(&channel).await.map(|chain| lifetime(&chain[0])).map_err(|status| status.code())
    };
    // A certificate is valid from a time before it is issued.
    let near = |seconds: i64, wanted: i64| (wanted..=wanted + 300).contains(&seconds);
    assert!(near(issue(0).await.expect("issued"), 1800));
    assert!(near(issue(3600).await.expect("issued"), 3600));
    assert_eq!(issue(3601).await, Err(Code::InvalidArgument));
    assert!(near(lifetime(&mesh.root()), 240 * 3600));
    let der = sluice_testkit::pods::identity::certificates(&mesh.root()).expect("the root").remove(0);
    let (_, root) = X509Certificate::from_der(&der).expect("the root");
    let curve = root.public_key().algorithm.parameters.as_ref().and_then(|of| of.as_oid().ok());
    assert_eq!(curve.map(|oid| oid.to_id_string()).as_deref(), Some("1.3.132.0.34"), "P-384");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_authority_if_it_is_disabled() {
    let mesh = IdentityFixture::start_with(&[], &[("ENABLE_CA_SERVER", "false")]).await;
    assert!(!mesh.authority().exists(), "no root is generated");
    let port = mesh.server.secure.expect("the address");
    // It is bound until it is known that no certificate is issued.
    let refused = async || tokio::net::TcpStream::connect(port).await.is_err().then_some(());
    until_async("without a certificate of the authority, the secure port is closed", refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn debug_pages_are_served_over_http_unless_that_is_disabled() {
    let statuses = async |mesh: &IdentityFixture| {
        let monitoring = get(mesh.server.monitoring, "/debug/syncz").await.expect("an answer").0;
        let (http, metrics) = (mesh.server.get("/debug/syncz").await, mesh.server.get("/metrics").await);
        [monitoring, http.expect("an answer").0, metrics.expect("an answer").0]
    };
    let mesh = IdentityFixture::start(&[]).await;
    assert_eq!(statuses(&mesh).await, [200, 200, 200]);
    let mesh = IdentityFixture::start_with(&[], &[("ENABLE_DEBUG_ON_HTTP", "false")]).await;
    assert_eq!(statuses(&mesh).await, [404, 404, 200]);
}
