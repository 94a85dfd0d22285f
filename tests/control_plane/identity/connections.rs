//! Connections whose credentials are no longer valid.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_ca::LifetimeLimits;
use sluice_testkit::ads::{AdsStream, Kind, Protocol};
use sluice_testkit::pods::identity::Authority as Organization;
use sluice_testkit::secure::{CertificateRequest, ClientTls, signing_request};
use tonic::transport::Channel;
use x509_parser::pem::parse_x509_pem;

use super::mesh::{CART, IdentityFixture, now, until};
use super::{clusters, node};

/// Time limit for the end of a stream.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A stream of a service account of namespace `shop` that has received clusters.
async fn stream(channel: &Channel, account: &str) -> AdsStream {
    let mut stream = AdsStream::open(channel.clone(), Protocol::Delta, node("shop", account)).expect("a stream");
    stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new()).expect("open");
    stream.next().await.expect("no error").expect("a response");
    stream
}

/// Waits for the end of a stream. Returns the error.
async fn end(stream: &mut AdsStream) -> String {
    let end = async {
        loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(error) => return format!("{error:#}"),
            }
        }
    };
    tokio::time::timeout(END_TIMEOUT, end).await.expect("the stream ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_ends_when_its_client_certificate_expires() {
    let mesh = IdentityFixture::start(&[]).await;
    let authority = mesh.signing_authority();
    let (key, csr) = signing_request().expect("a request");
    let names = ["spiffe://cluster.local/ns/shop/sa/cart".to_owned()];
    let issued = authority.issue(&csr, &names, 4, LifetimeLimits::default(), now()).expect("issued");
    let presented = ClientTls { pair: Some((issued.chain[0].clone(), key)), ..ClientTls::default() };
    let channel = mesh.connect(&presented).await;
    let mut short = stream(&channel, "cart").await;
    CertificateRequest { csr: csr.clone(), ..CertificateRequest::default() }.send(&channel).await.expect("still valid");
    let error = end(&mut short).await;
    assert!(now() >= issued.not_after, "the certificate is still valid: {error}");
    let refused = CertificateRequest { csr, ..CertificateRequest::default() }.send(&channel).await;
    assert!(refused.is_err(), "an expired certificate renews nothing");
    let metrics = mesh.metrics().await;
    // The client reconnects with its TLS session: that connection is refused, not served and ended.
    assert_eq!(metrics[r#"sluice_closed_connections{port="secure grpc",reason="credentials"}"#], 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_ends_when_its_token_expires() {
    let mesh = IdentityFixture::start(&[]).await;
    let channel = mesh.connect(&ClientTls::default()).await;
    let open = |seconds| {
        let token = mesh.sign(&mesh.claims(CART, seconds));
        AdsStream::open_with_token(channel.clone(), Protocol::Delta, node("shop", "cart"), &token).expect("a stream")
    };
    let (mut short, mut long) = (open(3), open(600));
    for stream in [&mut short, &mut long] {
        stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new()).expect("open");
        stream.next().await.expect("no error").expect("a response");
    }
    let error = end(&mut short).await;
    assert!(error.contains("expired"), "{error}");
    long.subscribe(Kind::Lds.type_url(), &[], BTreeMap::new()).expect("open");
    long.next().await.expect("no error").expect("a response");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_certificate_ends_its_connection_and_no_other() {
    let mesh = IdentityFixture::start(&[]).await;
    let organization = Organization::new().expect("a root");
    organization.plug_in(&mesh.authority(), "first", organization.root()).expect("plugged in");
    let mesh = mesh.restart(&[]).await;
    let mut streams = Vec::new();
    let mut serials = Vec::new();
    for account in ["cart", "till"] {
        let (key, csr) = signing_request().expect("a request");
        let token = mesh.token(&format!("system:serviceaccount:shop:{account}"));
        let channel = mesh.connect(&ClientTls::default()).await;
        let chain = CertificateRequest::with_token(&csr, &token).send(&channel).await.expect("issued");
        let (_, pem) = parse_x509_pem(chain[0].as_bytes()).expect("a PEM text");
        serials.push(pem.parse_x509().expect("a certificate").raw_serial().to_vec());
        let pair = (chain[0].clone() + &chain[1], key);
        let channel = mesh.connect(&ClientTls { pair: Some(pair), ..ClientTls::default() }).await;
        streams.push((stream(&channel, account).await, channel, csr));
    }
    organization.revoke(&mesh.authority(), "first", &serials[..1]).expect("revoked");
    let [(revoked, channel, csr), (kept, ..)] = &mut streams[..] else { panic!("two streams") };
    end(revoked).await;
    let refused = CertificateRequest { csr: csr.clone(), ..CertificateRequest::default() }.send(channel).await;
    assert!(refused.is_err(), "a revoked certificate renews nothing");
    until("it is counted", async || {
        let metrics = mesh.metrics().await;
        metrics
            .get(r#"sluice_closed_connections{port="secure grpc",reason="credentials"}"#)
            .filter(|count| **count >= 1.0)
            .copied()
    })
    .await;
    kept.subscribe(Kind::Lds.type_url(), &[], BTreeMap::new()).expect("open");
    kept.next().await.expect("no error").expect("a response");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_of_a_withdrawn_root_ends_and_no_other() {
    let mesh = IdentityFixture::start_with(&[], &[("ISTIO_MULTIROOT_MESH", "true")]).await;
    let (kept, withdrawn) = (Organization::new().expect("a root"), Organization::new().expect("a root"));
    let both = kept.root().to_owned() + withdrawn.root();
    kept.plug_in(&mesh.authority(), "first", &both).expect("plugged in");
    let mesh = mesh.restart(&[]).await;
    let presented = |organization: &Organization, account: &str| {
        let pair = organization.issue(&format!("spiffe://cluster.local/ns/shop/sa/{account}")).expect("a certificate");
        ClientTls { pair: Some(pair), ..ClientTls::default() }
    };
    let renew = async |channel: &Channel| {
        let (_, csr) = signing_request().expect("a request");
        CertificateRequest { csr, ..CertificateRequest::default() }.send(channel).await
    };
    let (ending_tls, staying_tls) = (presented(&withdrawn, "cart"), presented(&kept, "till"));
    let (ending_channel, staying_channel) = (mesh.connect(&ending_tls).await, mesh.connect(&staying_tls).await);
    let mut ending = stream(&ending_channel, "cart").await;
    let mut staying = stream(&staying_channel, "till").await;
    renew(&ending_channel).await.expect("the root is trusted");

    std::fs::write(mesh.authority().join("root-cert.pem"), kept.root()).expect("withdraw a root");
    end(&mut ending).await;
    // The same channel connects again with its TLS session, the other one connects with a full handshake. With TLS 1.3,
    // a client may learn only after its handshake that its certificate is refused.
    for channel in [Ok(ending_channel), mesh.try_connect(&ending_tls).await].into_iter().flatten() {
        renew(&channel).await.expect_err("a certificate of a withdrawn root renews nothing");
        clusters(channel, node("shop", "cart")).await.expect_err("no stream is opened with it");
    }
    staying.subscribe(Kind::Lds.type_url(), &[], BTreeMap::new()).expect("open");
    staying.next().await.expect("no error").expect("a response");
    renew(&staying_channel).await.expect("its root is trusted");
    let channel = mesh.connect(&staying_tls).await;
    assert!(clusters(channel, node("shop", "till")).await.expect("it is served") > 0);
    // Later connections with the certificate are refused, not served and ended.
    let metrics = mesh.metrics().await;
    assert_eq!(metrics[r#"sluice_closed_connections{port="secure grpc",reason="credentials"}"#], 1.0);
}
