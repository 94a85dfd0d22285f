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
