//! Callers that must not get a certificate, and the status each gets.

use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::json;
use sluice_ca::LifetimeLimits;
use sluice_testkit::pods::identity::Authority as ForeignAuthority;
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use tonic::{Code, Status};

use super::mesh::{CART, IdentityFixture, now, until, uris};

const WEAK: &str = include_str!("../../../src/ca/src/tests/weak-rsa-1024.csr");

/// Sends a request that is rejected, and checks that the rejection is logged once, with the reason and without the
/// credentials.
async fn refused(
    mesh: &IdentityFixture,
    channel: &tonic::transport::Channel,
    request: CertificateRequest,
    reason: &str,
) -> Status {
    let before = mesh.logged("rejected a certificate request").len();
    let status = request.send(channel).await.expect_err(reason);
    let logged = until(reason, async || {
        let lines = mesh.logged("rejected a certificate request");
        (lines.len() > before).then_some(lines)
    });
    let logged = logged.await;
    assert_eq!(logged.len(), before + 1, "{logged:?}");
    let line = logged.last().expect("a line");
    assert!(line.contains(reason) && line.contains("127.0.0.1:"), "{reason}: {line}");
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_get_no_certificate() {
    let mesh = IdentityFixture::start(&[]).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    let (_, csr) = signing_request().expect("a request");
    let with = |name: &str, value: serde_json::Value| {
        let mut claims = mesh.claims(CART, 600);
        claims[name] = value;
        mesh.sign(&claims)
    };
    let foreign = TokenIssuer::new().expect("an issuer").sign(&mesh.claims(CART, 600)).expect("a token");
    let tokens = [
        (with("exp", json!(now() - 1)), "the token has expired"),
        (with("nbf", json!(now() + 3600)), "the token is not valid yet"),
        (with("aud", json!(["kubernetes.default.svc"])), "the token does not have the audience istio-ca"),
        (with("iss", json!("https://other")), "the token has another issuer than the configured one"),
        (with("sub", json!("system:node:one")), "the token is not that of a service account"),
        (foreign, "no key of the issuer verifies the signature of the token"),
        ("garbage".to_owned(), "the token is malformed"),
    ];
    let count = tokens.len();
    for (token, reason) in tokens {
        let status = refused(&mesh, &channel, CertificateRequest::with_token(&csr, &token), reason).await;
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unauthenticated, "request authenticate failure"),
            "{reason}"
        );
    }
    // A valid token of a cluster that is not the one the caller claims.
    for (cluster, reason) in [("east", "no key of the issuer verifies the signature"), ("west", "cluster \\\"west\\\"")]
    {
        let mut request = CertificateRequest::with_token(&csr, &mesh.token(CART));
        request.headers.push(("clusterid", cluster.to_owned()));
        assert_eq!(refused(&mesh, &channel, request, reason).await.code(), Code::Unauthenticated);
    }
    let nothing = CertificateRequest { csr: csr.clone(), ..CertificateRequest::default() };
    let status = refused(&mesh, &channel, nothing, "it presents no credentials").await;
    assert_eq!(status.code(), Code::Unauthenticated);
    // No peer is trusted to forward certificates, not even the loopback.
    let forged = CertificateRequest {
        csr: csr.clone(),
        headers: vec![("x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/shop/sa/cart".to_owned())],
        ..CertificateRequest::default()
    };
    assert_eq!(refused(&mesh, &channel, forged, "it presents no credentials").await.code(), Code::Unauthenticated);
    let mut node = CertificateRequest::with_token(&csr, &mesh.token(CART));
    node.metadata.push(("ImpersonatedIdentity", "spiffe://cluster.local/ns/bank/sa/vault".to_owned()));
    let status = refused(&mesh, &channel, node, "CA_TRUSTED_NODE_ACCOUNTS").await;
    assert_eq!(status.code(), Code::Unauthenticated);
    let metrics = mesh.metrics().await;
    let expect = count as f64 + 5.0;
    assert_eq!(metrics["citadel_server_authentication_failure_count"], expect);
    assert_eq!(metrics["citadel_server_csr_count"], expect);
    assert_eq!(metrics["citadel_server_success_cert_issuance_count"], 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_signing_requests_get_no_certificate() {
    let mesh = IdentityFixture::start(&[]).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    let token = mesh.token(CART);
    for (csr, reason) in [
        ("", "not properly encoded"),
        ("garbage", "not properly encoded"),
        ("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n", "failed to parse"),
        (WEAK, "RSA key of 1024 bits is too weak"),
    ] {
        let status = refused(&mesh, &channel, CertificateRequest::with_token(csr, &token), reason).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("CSR signing error (") && status.message().contains(reason), "{status}");
    }
    let (_, csr) = signing_request().expect("a request");
    let long = CertificateRequest { seconds: 91 * 86400, ..CertificateRequest::with_token(&csr, &token) };
    let status = refused(&mesh, &channel, long, "greater than the max allowed TTL").await;
    assert_eq!(status.code(), Code::InvalidArgument);
    let metrics = mesh.metrics().await;
    assert_eq!(metrics["citadel_server_csr_parsing_err_count"], 4.0);
    assert_eq!(metrics["citadel_server_csr_sign_err_count{error=\"CSR_ERROR\"}"], 4.0);
    assert_eq!(metrics["citadel_server_csr_sign_err_count{error=\"TTL_ERROR\"}"], 1.0);
    // A request that is too long is not read.
    let status =
        CertificateRequest::with_token(&"A".repeat(100_000), &token).send(&channel).await.expect_err("too long");
    assert_eq!(status.code(), Code::OutOfRange);
    CertificateRequest::with_token(&csr, &token).send(&channel).await.expect("the next is served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_has_the_names_of_its_caller_whatever_the_request_names() {
    let mesh = IdentityFixture::start(&[]).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![
        SanType::URI("spiffe://cluster.local/ns/bank/sa/vault".try_into().expect("a name")),
        SanType::DnsName("istiod.istio-system.svc".try_into().expect("a name")),
    ];
    let csr = params.serialize_request(&key).expect("a request").pem().expect("the PEM text");
    let chain = CertificateRequest::with_token(&csr, &mesh.token(CART)).send(&channel).await.expect("issued");
    assert_eq!(uris(&chain[0]), ["spiffe://cluster.local/ns/shop/sa/cart"]);
    // The same request from another caller gets a certificate of that caller. A replayed request is useless without the
    // private key.
    let till = mesh.token("system:serviceaccount:shop:till");
    let chain = CertificateRequest::with_token(&csr, &till).send(&channel).await.expect("issued");
    assert_eq!(uris(&chain[0]), ["spiffe://cluster.local/ns/shop/sa/till"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_client_is_rejected_before_first_request() {
    let mesh = IdentityFixture::start(&[]).await;
    let (_, csr) = signing_request().expect("a request");
    let request = || CertificateRequest::with_token(&csr, &mesh.token(CART));
    let foreign = ForeignAuthority::new().expect("an authority");
    let pair = foreign.issue("spiffe://cluster.local/ns/shop/sa/cart").expect("a certificate");
    let presented = |pair: (String, String)| ClientTls { pair: Some(pair), ..ClientTls::default() };
    // With TLS 1.3 the client detects the rejection at its first read.
    let refused = async |presented: ClientTls| match mesh.try_connect(&presented).await {
        Err(_) => true,
        Ok(channel) => request().send(&channel).await.is_err(),
    };
    assert!(refused(presented(pair)).await, "an unknown root");
    // Issued by the same authority while the mesh had another trust domain.
    let other = mesh.rename("other.domain").await;
    let channel = other.connect(&ClientTls::default()).await;
    let (key, own) = signing_request().expect("a request");
    let chain = CertificateRequest::with_token(&own, &other.token(CART)).send(&channel).await.expect("issued");
    assert_eq!(uris(&chain[0]), ["spiffe://other.domain/ns/shop/sa/cart"]);
    let pair = presented((chain[0].clone(), key));
    other.connect(&pair).await;
    let mesh = other.rename("cluster.local").await;
    let refused = match mesh.try_connect(&pair).await {
        Err(_) => true,
        Ok(channel) => CertificateRequest::with_token(&own, &mesh.token(CART)).send(&channel).await.is_err(),
    };
    assert!(refused, "another trust domain");
    until("it is logged", async || mesh.logged("TLS handshake failed").pop()).await;
    assert!(mesh.metrics().await["sluice_tls_refused"] >= 1.0);
    let channel = mesh.connect(&ClientTls::default()).await;
    CertificateRequest::with_token(&own, &mesh.token(CART)).send(&channel).await.expect("other callers are served");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_and_future_certificates_are_rejected() {
    let mesh = IdentityFixture::start(&[]).await;
    let authority = mesh.signing_authority();
    let hour = 3600;
    for (begins, is_good) in [(now() - 2 * hour, false), (now() + hour, false), (now(), true)] {
        let (key, csr) = signing_request().expect("a request");
        let names = ["spiffe://cluster.local/ns/shop/sa/cart".to_owned()];
        let issued = authority.issue(&csr, &names, hour, LifetimeLimits::default(), begins).expect("issued");
        let presented = ClientTls { pair: Some((issued.chain[0].clone(), key)), ..ClientTls::default() };
        let got = match mesh.try_connect(&presented).await {
            Err(_) => false,
            Ok(channel) => CertificateRequest { csr, ..CertificateRequest::default() }.send(&channel).await.is_ok(),
        };
        assert_eq!(got, is_good, "valid from {begins} on, it is {}", now());
    }
    // The client may try more than once.
    until("both are logged", async || (mesh.logged("TLS handshake failed").len() >= 2).then_some(())).await;
    assert!(mesh.metrics().await["sluice_tls_refused"] >= 2.0);
}
