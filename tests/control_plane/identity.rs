//! The certificate authority and the secure port of a real `sluiced` without a cluster, with real TLS and tokens.

mod connections;
mod debug;
pub(crate) mod mesh;
mod pilot_agent;
mod refusals;
mod rotation;
mod trust;
mod variables;

use std::os::unix::fs::PermissionsExt;

use mesh::{CART, IdentityFixture, uris};
use rustls::NamedGroup;
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol};
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use tonic::Code;

/// The node of a pod with this service account.
pub(crate) fn node(namespace: &str, account: &str) -> Identity {
    let node = serde_json::json!({
        "id": format!("sidecar~10.0.0.1~pod-1.{namespace}~{namespace}.svc.cluster.local"),
        "metadata": {"NAMESPACE": namespace, "SERVICE_ACCOUNT": account, "CLUSTER_ID": "Kubernetes"},
    });
    Identity::of_node(&node).expect("a node")
}

/// The number of clusters in the first response of a stream, or its status.
async fn clusters(channel: tonic::transport::Channel, identity: Identity) -> Result<usize, Code> {
    let mut stream = AdsStream::open(channel, Protocol::Delta, identity).expect("a stream");
    // The server may have rejected the stream already; the next update gives its status.
    let _ = stream.subscribe(Kind::Cds.type_url(), &[], std::collections::BTreeMap::new());
    match stream.next().await {
        Ok(update) => update.map(|update| update.resources.len()).ok_or(Code::Cancelled),
        Err(error) => Err(error.downcast_ref::<tonic::Status>().map_or(Code::Unknown, tonic::Status::code)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_gets_a_certificate_and_is_authenticated_by_it() {
    let mesh = IdentityFixture::start(&[]).await;
    let (key, csr) = signing_request().expect("a request");
    let token = mesh.token(CART);
    let chain = CertificateRequest::with_token(&csr, &token)
        .send(&mesh.connect(&ClientTls::default()).await)
        .await
        .expect("issued");
    assert_eq!(chain.len(), 2, "the certificate and the root");
    assert_eq!(chain[1], mesh.root());
    assert_eq!(uris(&chain[0]), ["spiffe://cluster.local/ns/shop/sa/cart"]);

    // The certificate authenticates the request for the next certificate, and the subscription to configuration.
    let presented = ClientTls { pair: Some((chain[0].clone(), key)), ..ClientTls::default() };
    let channel = mesh.connect(&presented).await;
    let (_, csr) = signing_request().expect("a request");
    let again =
        CertificateRequest { csr, seconds: 60, ..CertificateRequest::default() }.send(&channel).await.expect("issued");
    assert_eq!(uris(&again[0]), ["spiffe://cluster.local/ns/shop/sa/cart"]);
    assert!(clusters(channel.clone(), node("shop", "cart")).await.expect("it is served") > 0);
    assert_eq!(clusters(channel.clone(), node("shop", "till")).await, Err(Code::PermissionDenied));
    assert_eq!(clusters(channel, node("bank", "cart")).await, Err(Code::PermissionDenied));
    let unauthenticated = mesh.connect(&ClientTls::default()).await;
    assert_eq!(clusters(unauthenticated, node("shop", "cart")).await, Err(Code::Unauthenticated));

    let metrics = mesh.metrics().await;
    assert_eq!(metrics["citadel_server_csr_count"], 2.0);
    assert_eq!(metrics["citadel_server_success_cert_issuance_count"], 2.0);
    assert_eq!(metrics["citadel_server_authentication_failure_count"], 0.0);
    let remaining = metrics["citadel_server_root_cert_expiry_seconds"];
    assert!(remaining > 3649.0 * 86400.0 && remaining <= 3650.0 * 86400.0, "{remaining}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_tokens_are_in_no_log_dump_or_metric() {
    let mesh = IdentityFixture::start(&["--log_output_level=default:debug"]).await;
    let file = mesh.authority().join("ca-key.pem");
    let mode = std::fs::metadata(&file).expect("the authority is kept").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let authority_key = std::fs::read_to_string(&file).expect("read the key");
    let (_, csr) = signing_request().expect("a request");
    let (good, bad) = (mesh.token(CART), mesh.sign(&mesh.claims("system:serviceaccount:shop:thief", -5)));
    let channel = mesh.connect(&ClientTls::default()).await;
    CertificateRequest::with_token(&csr, &good).send(&channel).await.expect("issued");
    CertificateRequest::with_token(&csr, &bad).send(&channel).await.expect_err("expired");

    let (_, list) = mesh.server.get("/debug/list").await.expect("the list");
    let mut pages: Vec<String> = serde_json::from_str(&list).expect("names");
    assert!(pages.len() > 10, "{pages:?}");
    pages.push("../metrics".to_owned());
    let collections = mesh.server.get("/debug/collections").await.expect("collections").1;
    let mut output = mesh.log() + &collections;
    for page in pages {
        output += &mesh.server.get(&format!("/debug/{page}").replace("/debug/../", "/")).await.expect("a page").1;
    }
    assert!(
        output.contains("generated a certificate authority") && output.contains("the token has expired"),
        "{output}"
    );
    let body = authority_key.lines().filter(|line| !line.starts_with("-----"));
    for secret in body.chain(good.split('.').skip(1)).chain(bad.split('.').skip(1)).chain(["PRIVATE KEY"]) {
        assert!(secret.len() > 10 && !output.contains(secret), "{secret} is in the output");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_is_kept_in_its_directory_across_restarts() {
    let mesh = IdentityFixture::start(&[]).await;
    let root = mesh.root();
    let mesh = mesh.restart(&["--createCA=false"]).await;
    assert_eq!(mesh.root(), root);
    let (_, csr) = signing_request().expect("a request");
    let token = mesh.token(CART);
    let chain = CertificateRequest::with_token(&csr, &token)
        .send(&mesh.connect(&ClientTls::default()).await)
        .await
        .expect("issued");
    assert_eq!(chain[1], root);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_of_tls_can_be_refused() {
    let only_12 = ClientTls { only_12: true, ..ClientTls::default() };
    let mesh = IdentityFixture::start(&["--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]).await;
    mesh.try_connect(&only_12).await.expect("TLS 1.2 is accepted");
    let mesh = mesh.restart(&["--tls-min-version=VersionTLS13"]).await;
    mesh.try_connect(&only_12).await.expect_err("only TLS 1.3 is accepted");
    mesh.connect(&ClientTls::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_pqc_only_post_quantum_key_exchange_is_accepted() {
    let mesh = IdentityFixture::start_with(&[], &[("COMPLIANCE_POLICY", "pqc")]).await;
    let only = |group| ClientTls { only: Some(group), ..ClientTls::default() };
    mesh.try_connect(&only(NamedGroup::X25519)).await.expect_err("a key exchange that is not post-quantum");
    mesh.try_connect(&ClientTls { only_12: true, ..ClientTls::default() })
        .await
        .expect_err("TLS 1.2 has no post-quantum key exchange");
    let channel = mesh.connect(&only(NamedGroup::X25519MLKEM768)).await;
    let (_, csr) = signing_request().expect("a request");
    CertificateRequest::with_token(&csr, &mesh.token(CART)).send(&channel).await.expect("issued");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_rsa_root_has_the_configured_size() {
    let mesh = IdentityFixture::start_with(&[], &[("CITADEL_SELF_SIGNED_CA_RSA_KEY_SIZE", "3072")]).await;
    let (_, root) = x509_parser::pem::parse_x509_pem(mesh.root().as_bytes()).expect("PEM");
    let root = root.parse_x509().expect("a certificate");
    let key = root.public_key().parsed().expect("a key");
    assert!(matches!(&key, x509_parser::public_key::PublicKey::RSA(key) if key.key_size() == 3072), "{key:?}");
    let (key, csr) = signing_request().expect("a request");
    let token = mesh.token(CART);
    let chain = CertificateRequest::with_token(&csr, &token)
        .send(&mesh.connect(&ClientTls::default()).await)
        .await
        .expect("issued");
    let channel = mesh.connect(&ClientTls { pair: Some((chain[0].clone(), key)), ..ClientTls::default() }).await;
    assert!(clusters(channel, node("shop", "cart")).await.expect("it is served") > 0);
}
