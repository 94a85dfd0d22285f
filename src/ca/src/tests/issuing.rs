use std::time::Duration;

use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;
use crate::{IssueError, KeyAlgorithm, LifetimeLimits};

fn issue(request: &str, seconds: i64) -> Result<crate::Issued, IssueError> {
    self_signed().issue(request, &[WORKLOAD.to_owned()], seconds, LifetimeLimits::default(), NOW)
}

fn rejection(request: &str) -> String {
    match issue(request, 0) {
        Err(IssueError::Request(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

fn uris(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().expect("well-formed").expect("names");
    assert!(names.critical, "the subject is empty");
    let one = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => (*uri).to_owned(),
        other => panic!("{other}"),
    };
    names.value.general_names.iter().map(one).collect()
}

#[test]
fn workload_certificate_has_its_identity_and_no_other_requested_name() {
    let authority = self_signed();
    let issued =
        authority.issue(&request(), &[WORKLOAD.to_owned()], 3600, LifetimeLimits::default(), NOW).expect("issued");
    assert_eq!(issued.chain.len(), 2, "leaf and roots");
    assert_eq!(issued.chain[1], authority.roots_pem());
    assert_eq!(issued.not_after, NOW + 3600);
    verify(&issued.chain, authority.roots_pem(), NOW).expect("it verifies");

    let leaf = der(&issued.chain[0]);
    let (_, leaf) = X509Certificate::from_der(&leaf).expect("a certificate");
    assert_eq!(uris(&leaf), [WORKLOAD]);
    assert_eq!(leaf.subject().iter().count(), 0);
    assert_eq!(leaf.issuer().to_string(), "O=cluster.local");
    assert!(!leaf.is_ca());
    assert!(leaf.basic_constraints().expect("well-formed").expect("constraints").critical);
    assert_eq!(leaf.validity().not_before.timestamp(), NOW - 120);
    assert_eq!(leaf.validity().not_after.timestamp(), NOW + 3600);
    let usage = leaf.key_usage().expect("well-formed").expect("usage");
    assert!(usage.critical);
    assert_eq!(usage.value.flags, 0b101, "digitalSignature and keyEncipherment");
    let extended = leaf.extended_key_usage().expect("well-formed").expect("usage").value;
    assert!(extended.server_auth && extended.client_auth && !extended.any && extended.other.is_empty());
    assert_eq!(leaf.extensions().len(), 5);
    let second =
        authority.issue(&request(), &[WORKLOAD.to_owned()], 3600, LifetimeLimits::default(), NOW).expect("issued");
    let second = der(&second.chain[0]);
    let (_, second) = X509Certificate::from_der(&second).expect("a certificate");
    assert_ne!(leaf.raw_serial(), second.raw_serial());
}

#[test]
fn keys_of_every_kind_are_certified_if_strong_enough() {
    let authority = self_signed();
    let mut requests = vec![include_str!("rsa.csr").to_owned()];
    for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        requests.push(request_with(&KeyPair::generate_for(algorithm).expect("a key"), ""));
    }
    for request in requests {
        let issued =
            authority.issue(&request, &[WORKLOAD.to_owned()], 0, LifetimeLimits::default(), NOW).expect("issued");
        verify(&issued.chain, authority.roots_pem(), NOW).expect("it verifies");
    }
    assert_eq!(rejection(include_str!("weak-rsa-1024.csr")), "RSA key of 1024 bits is too weak, 2048 are needed");
    assert_eq!(rejection(include_str!("p521.csr")), "EC key is on another curve than P-256 and P-384");
    assert_eq!(rejection(include_str!("sha1.csr")), "certificate signing request is signed with SHA-1");
}

#[test]
fn malformed_requests_are_rejected() {
    assert_eq!(rejection(""), "certificate signing request is not properly encoded");
    assert_eq!(rejection("garbage"), "certificate signing request is not properly encoded");
    assert_eq!(rejection(&"A".repeat(20_000)), "certificate signing request is too long");
    let empty = crate::pem::encode("CERTIFICATE REQUEST", &[0x30, 0]);
    assert_eq!(rejection(&empty), "failed to parse X.509 certificate signing request");
    // One bit of the signature, and one byte after the end.
    let text = request();
    let der = pem_bytes(&text);
    let mut forged = der.clone();
    *forged.last_mut().expect("bytes") ^= 1;
    let forged = rejection(&crate::pem::encode("CERTIFICATE REQUEST", &forged));
    assert_eq!(forged, "certificate signing request is not signed by its key");
    let mut longer = der;
    longer.push(0);
    let longer = rejection(&crate::pem::encode("CERTIFICATE REQUEST", &longer));
    assert_eq!(longer, "failed to parse X.509 certificate signing request");
}

fn pem_bytes(text: &str) -> Vec<u8> {
    use rustls::pki_types::CertificateSigningRequestDer;
    use rustls::pki_types::pem::PemObject;
    CertificateSigningRequestDer::from_pem_slice(text.as_bytes()).expect("PEM").to_vec()
}

#[test]
fn lifetime_is_limited_by_configuration_and_signing_certificate() {
    let after = |seconds| issue(&request(), seconds).map(|issued| issued.not_after - NOW);
    assert_eq!(after(0), Ok(DAY as i64));
    assert_eq!(after(-5), Ok(DAY as i64));
    assert_eq!(after(i64::MIN), Ok(DAY as i64));
    assert_eq!(after(90 * DAY as i64), Ok(90 * DAY as i64));
    let too_long = 90 * DAY as i64 + 1;
    assert_eq!(after(too_long), Err(IssueError::Lifetime { requested: too_long, max: 90 * DAY }));
    assert_eq!(after(i64::MAX).expect_err("too long").label(), "TTL_ERROR");

    let material = root::create("td", NewKey::EcdsaP256, Duration::from_secs(3600), NOW).expect("a root");
    let authority = Authority::new(&material, NOW).expect("an authority");
    let issue = |now| authority.issue(&request(), &[WORKLOAD.to_owned()], 0, LifetimeLimits::default(), now);
    assert_eq!(issue(NOW + 600).expect("issued").not_after, NOW + 3600);
    let late = issue(NOW + 3600).expect_err("it has expired");
    assert_eq!(late, IssueError::Sign("the signing certificate has expired".to_owned()));
    assert!(!late.is_caller_error());
}

#[test]
fn common_name_is_the_identity_if_it_fits() {
    let subject = |identity: &str, common_name: &str| {
        let key = KeyPair::generate().expect("a key");
        let request = request_with(&key, common_name);
        let issued =
            self_signed().issue(&request, &[identity.to_owned()], 0, LifetimeLimits::default(), NOW).expect("issued");
        let leaf = der(&issued.chain[0]);
        let (_, leaf) = X509Certificate::from_der(&leaf).expect("a certificate");
        leaf.subject().to_string()
    };
    assert_eq!(subject(WORKLOAD, "istiod"), format!("CN={WORKLOAD}"));
    assert_eq!(subject(WORKLOAD, ""), "");
    assert_eq!(subject(&format!("spiffe://td/ns/n/sa/{}", "a".repeat(64)), "x"), "");
}

#[test]
fn caller_without_identity_is_rejected() {
    let rejected = self_signed().issue(&request(), &[], 0, LifetimeLimits::default(), NOW);
    assert_eq!(rejected.expect_err("no identity").label(), "CSR_ERROR");
}

#[test]
fn chain_has_one_certificate_per_text_and_the_roots_last() {
    let plugged = plugged("org root");
    let authority = Authority::new(&plugged.material, NOW).expect("an authority");
    let issued =
        authority.issue(&request(), &[WORKLOAD.to_owned()], 0, LifetimeLimits::default(), NOW).expect("issued");
    assert_eq!(issued.chain.len(), 4);
    for text in &issued.chain {
        assert!(text.ends_with("-----END CERTIFICATE-----\n"));
        assert_eq!(text.matches("BEGIN").count(), 1);
    }
    assert_eq!(issued.chain[3], authority.roots_pem());
    verify(&issued.chain, &plugged.material.roots, NOW).expect("it verifies");
}

#[test]
fn server_certificate_has_its_names_and_an_ec_key() {
    let authority = self_signed();
    let names = ["istiod.istio-system.svc", "10.0.0.1", "::1"].map(str::to_owned);
    let server = authority.server_certificate(&names, Duration::from_secs(20_000 * DAY), NOW).expect("issued");
    assert_eq!(server.not_after, authority.certificate().not_after);
    assert_eq!(server.key.algorithm(), KeyAlgorithm::EcdsaP256);
    let (_, leaf) = X509Certificate::from_der(&server.chain[0]).expect("a certificate");
    assert_eq!(leaf.public_key().raw, server.key.public());
    let san_names = leaf.subject_alternative_name().expect("well-formed").expect("names").value;
    let san_names: Vec<String> = san_names.general_names.iter().map(ToString::to_string).collect();
    assert_eq!(san_names.len(), 3);
    assert_eq!(san_names[0], "DNSName(istiod.istio-system.svc)");
    let checked = EndEntityCert::try_from(&server.chain[0]).expect("a certificate");
    for name in ["istiod.istio-system.svc", "10.0.0.1", "::1"] {
        let name = rustls::pki_types::ServerName::try_from(name).expect("a name");
        checked.verify_is_valid_for_subject_name(&name).expect("the certificate matches the name");
    }
}
