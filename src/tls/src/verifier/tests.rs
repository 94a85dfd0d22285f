use std::time::Duration;

use http::HeaderMap;
use rustls::pki_types::pem::PemObject;
use sluice_auth::{Authenticator as _, Call, ClientCertificates, Verdict};
use sluice_testkit::pods::identity::Authority;

use super::*;
use crate::TlsConnection;

const CART: &str = "spiffe://cluster.local/ns/shop/sa/cart";

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

#[tokio::test]
async fn certificate_of_a_withdrawn_root_ends_its_connection_and_is_rejected() {
    let (withdrawn, kept) = (Authority::new().expect("a root"), Authority::new().expect("a root"));
    let verifier = Arc::new(ClientVerifier::new(TrustDomain::new("cluster.local".into())));
    let roots = [der(withdrawn.root()), der(kept.root())];
    verifier.set_roots(&roots, &[]).expect("usable");
    let authenticator = ClientCertificates::checked_by(verifier.clone());
    let headers = HeaderMap::new();
    let verdict = async |chain: &[CertificateDer<'static>]| {
        authenticator.authenticate(&Call { headers: &headers, peer: None, certificates: chain }).await
    };
    let connection = |authority: &Authority| {
        let certificates = [der(&authority.issue(CART).expect("a certificate").0)].into();
        TlsConnection::new(([127, 0, 0, 1], 1).into(), certificates, verifier.clone(), verifier.changes())
    };
    let (ending, staying) = (connection(&withdrawn), connection(&kept));
    for connection in [&ending, &staying] {
        assert_eq!(verdict(&connection.certificates).await, Verdict::Identified(vec![CART.parse().expect("a name")]));
    }
    let changes = verifier.changes();
    verifier.set_roots(&roots, &[]).expect("usable");
    assert!(!changes.has_changed().expect("open"), "the same roots are no change");
    verifier.set_roots(&roots[1..], &[]).expect("usable");
    let reason = tokio::select! {
        reason = ending.credentials_end() => reason,
        reason = staying.credentials_end() => panic!("the root is kept: {reason}"),
    };
    assert!(reason.starts_with("the client certificate is not valid"), "{reason}");
    assert_eq!(verdict(&ending.certificates).await, Verdict::Rejected(reason));
    assert!(matches!(verdict(&staying.certificates).await, Verdict::Identified(_)));
}

#[tokio::test]
async fn expired_certificate_that_the_chain_does_not_need_is_not_checked_without_a_pause() {
    let authority = Authority::new().expect("a root");
    let verifier = Arc::new(ClientVerifier::new(TrustDomain::new("cluster.local".into())));
    verifier.set_roots(&[der(authority.root())], &[]).expect("usable");
    let valid = der(&authority.issue(CART).expect("a certificate").0);
    let expired = der(&authority.issue_for(CART, Duration::from_secs(0)).expect("a certificate").0);
    while Certificate::parse("certificate", &expired).expect("a certificate").not_after
        >= sluice_telemetry::unix_seconds()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let certificates = [valid, expired].into();
    let connection = TlsConnection::new(([127, 0, 0, 1], 1).into(), certificates, verifier.clone(), verifier.changes());
    let mut polls = 0;
    let mut end = std::pin::pin!(connection.credentials_end());
    let counted = std::future::poll_fn(|cx| {
        polls += 1;
        end.as_mut().poll(cx)
    });
    assert!(tokio::time::timeout(Duration::from_millis(200), counted).await.is_err(), "the connection stays");
    assert!(polls < 10, "{polls} polls");
}
