use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, Issuer, KeyPair, SanType};

use super::*;
use crate::{ForwardedRequest, IssueError};

/// Adds something to a request that the caller must not request.
type Change = Box<dyn Fn(&mut CertificateParams)>;

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().expect("a name"))
}

fn request_with_change(change: impl Fn(&mut CertificateParams)) -> (KeyPair, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![uri(WORKLOAD)];
    change(&mut params);
    let request = params.serialize_request(&key).expect("a request").pem().expect("its text");
    (key, request)
}

fn parse(request: &str) -> Result<ForwardedRequest, IssueError> {
    ForwardedRequest::parse(request, &[WORKLOAD.to_owned()])
}

#[test]
fn request_for_other_names_is_not_forwarded() {
    assert!(parse(&request_with_change(|_| {}).1).is_ok());
    let other = "spiffe://cluster.local/ns/bank/sa/vault";
    let cases: [(&str, Change); 6] = [
        ("names that are not the caller's", Box::new(|it| it.subject_alt_names = vec![uri(other)])),
        ("names that are not the caller's", Box::new(|it| it.subject_alt_names.push(uri(other)))),
        (
            "names that are not the caller's",
            Box::new(|it| it.subject_alt_names.push(SanType::DnsName("istiod".try_into().expect("a name")))),
        ),
        ("no name", Box::new(|it| it.subject_alt_names.clear())),
        ("has a subject", Box::new(|it| it.distinguished_name.push(DnType::CommonName, "vault"))),
        (
            "extensions other than names",
            Box::new(|it| {
                it.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 19], vec![0x30, 3, 1, 1, 0xff]))
            }),
        ),
    ];
    for (reason, change) in cases {
        let error = parse(&request_with_change(|params| change(params)).1).expect_err(reason).to_string();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    // Weak keys are rejected, as by the authority.
    assert!(parse(include_str!("weak-rsa-1024.csr")).expect_err("weak").to_string().contains("too weak"));
}

/// The DER of the first request of a text.
fn der_of(text: &str) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    let der = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(text.as_bytes()).expect("a request");
    der.as_ref().to_vec()
}

#[test]
fn forwarded_request_has_only_what_was_checked() {
    let (_, request) = request_with_change(|_| {});
    let forwarded = parse(&request).expect("forwarded");
    assert_eq!(der_of(forwarded.pem()), der_of(&request), "the signature is the caller's");
    // A signer might read another request than the first.
    let (_, other) =
        request_with_change(|it| it.subject_alt_names = vec![uri("spiffe://cluster.local/ns/bank/sa/vault")]);
    let two = format!("# text\n{request}{}", other.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"));
    let forwarded = parse(&two).expect("forwarded");
    assert_eq!(forwarded.pem().matches("-----BEGIN").count(), 1);
    assert!(forwarded.pem().starts_with("-----BEGIN CERTIFICATE REQUEST-----\n"), "{}", forwarded.pem());
    assert_eq!(der_of(forwarded.pem()), der_of(&request));
}

#[test]
fn request_with_a_part_that_is_not_checked_is_not_forwarded() {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
    use der::asn1::{Any, BitString};
    use der::{Decode, Encode};
    use x509_cert::request::CertReq;

    let (key, request) = request_with_change(|_| {});
    let signing = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key.serialize_der()).expect("a key");
    let changed = |change: &dyn Fn(&mut CertReq)| {
        let mut request = CertReq::from_der(&der_of(&request)).expect("a request");
        change(&mut request);
        let info = request.info.to_der().expect("its encoding");
        let signature = signing.sign(&SystemRandom::new(), &info).expect("a signature");
        request.signature = BitString::from_bytes(signature.as_ref()).expect("bits");
        crate::pem::encode("CERTIFICATE REQUEST", &request.to_der().expect("its encoding"))
    };
    assert!(parse(&changed(&|_| {})).is_ok());
    // A parser may read the first value of the attribute only.
    let two_values = changed(&|request| {
        let mut attribute = request.info.attributes.iter().next().expect("an attribute").clone();
        attribute.values.insert(Any::from_der(&[0x30, 0]).expect("a value")).expect("inserted");
        request.info.attributes = vec![attribute].try_into().expect("attributes");
    });
    // The parameters of the signature are not signed.
    let parameters = changed(&|request| request.algorithm.parameters = Any::from_der(&[0x04, 1, 7]).ok());
    for request in [two_values, parameters] {
        assert!(matches!(parse(&request), Err(IssueError::Request(_))));
    }
}

#[test]
fn response_of_the_signer_is_accepted_for_the_caller_only() {
    let (key, request) = request_with_change(|_| {});
    let forwarded = parse(&request).expect("forwarded");
    let root_key = KeyPair::generate().expect("a key");
    let root_params = authority_params("signer");
    let root = root_params.self_signed(&root_key).expect("a root").pem();
    let issuer = Issuer::from_params(&root_params, &root_key);
    let sign = |key: &KeyPair, change: &dyn Fn(&mut CertificateParams)| {
        let mut params = authority_params("");
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = rcgen::IsCa::NoCa;
        params.key_usages = Vec::new();
        params.subject_alt_names = vec![uri(WORKLOAD)];
        change(&mut params);
        params.signed_by(key, &issuer).expect("a certificate").pem()
    };
    let good = sign(&key, &|_| {});
    let issued = forwarded.accept(&good, Some(&root), NOW).expect("accepted");
    assert_eq!(issued.chain.len(), 2);
    verify(&issued.chain, &issued.chain[1], NOW).expect("the chain verifies");
    let with_root = good.clone() + &root;
    assert_eq!(
        forwarded.accept(&with_root, None, NOW).expect("accepted").chain,
        issued.chain,
        "the response contains the root"
    );
    assert_eq!(forwarded.accept(&with_root, Some(&root), NOW).expect("accepted").chain, issued.chain);

    let rejection =
        |signed: &str, roots: Option<&str>| forwarded.accept(signed, roots, NOW).expect_err("rejected").to_string();
    assert!(rejection(&good, None).contains("has no root"));
    assert!(rejection("", Some(&root)).contains("is missing"));
    let other_root =
        authority_params("signer").self_signed(&KeyPair::generate().expect("a key")).expect("a root").pem();
    assert!(rejection(&good, Some(&other_root)).contains("does not verify"));
    assert!(
        rejection(&with_root, Some(&other_root)).contains("does not verify"),
        "roots of the mesh config take precedence"
    );
    assert!(rejection(&sign(&KeyPair::generate().expect("a key"), &|_| {}), Some(&root)).contains("another key"));
    let other = "spiffe://cluster.local/ns/bank/sa/vault";
    assert!(rejection(&sign(&key, &|it| it.subject_alt_names = vec![uri(other)]), Some(&root)).contains("names"));
    assert!(rejection(&sign(&key, &|it| it.subject_alt_names.push(uri(other))), Some(&root)).contains("names"));
    assert!(rejection(&sign(&key, &|it| it.subject_alt_names.clear()), Some(&root)).contains("names"));
    let authority = sign(&key, &|it| it.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    assert!(rejection(&authority, Some(&root)).contains("may sign other certificates"));
}
