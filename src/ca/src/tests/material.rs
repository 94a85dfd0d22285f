use rcgen::{CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair, SerialNumber};
use zeroize::Zeroizing;

use super::*;
use crate::store::{self, Contents};
use crate::{Certificate, KeyAlgorithm, LifetimeLimits, MaterialError, PrivateKey, RsaBits};

fn rejection(material: &Material) -> String {
    Authority::new(material, NOW).expect_err("it cannot be used").to_string()
}

#[test]
fn keys_of_every_format_are_parsed_and_never_shown() {
    for (text, algorithm) in
        [(RSA_PKCS1, KeyAlgorithm::Rsa), (RSA_PKCS8, KeyAlgorithm::Rsa), (EC_SEC1, KeyAlgorithm::EcdsaP256)]
    {
        let key = PrivateKey::from_pem(text).expect("a key");
        assert_eq!(key.algorithm(), algorithm);
        assert_eq!(key.secret_pem(), text);
        assert_eq!(format!("{key:?}"), format!("PrivateKey({algorithm:?}, redacted)"));
    }
    let generated = PrivateKey::generate(NewKey::EcdsaP384).expect("a key");
    let read = PrivateKey::from_pem(generated.secret_pem()).expect("a key");
    assert_eq!((read.public(), read.algorithm()), (generated.public(), KeyAlgorithm::EcdsaP384));
    for bad in ["", "secret text", P521, "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"] {
        let error = PrivateKey::from_pem(bad).expect_err("no key").to_string();
        assert!(error.starts_with("private key: is n") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn root_is_self_signed_and_has_the_requested_lifetime() {
    let material = root::create("td.example", NewKey::EcdsaP256, Duration::from_secs(DAY), NOW).expect("a root");
    let root = Certificate::from_pem("root", &material.certificate).expect("a certificate");
    assert_eq!((root.not_before, root.not_after), (NOW, NOW + DAY as i64));
    assert!(root.is_authority);
    assert_eq!(material.roots, material.certificate);
    assert!(material.chain.is_empty());
    assert!(!format!("{material:?}").contains("PRIVATE"));
}

#[test]
fn rsa_root_has_the_requested_size_and_certifies_keys_of_every_kind() {
    use x509_parser::prelude::{FromDer, X509Certificate};
    use x509_parser::public_key::PublicKey;
    for bits in [2048, 3072] {
        let kind = NewKey::Rsa(RsaBits::new(bits).expect("a size"));
        let material = root::create("td", kind, Duration::from_secs(DAY), NOW).expect("a root");
        let root = der(&material.certificate);
        let (_, root) = X509Certificate::from_der(&root).expect("a certificate");
        match root.public_key().parsed().expect("a key") {
            PublicKey::RSA(key) => assert_eq!(key.key_size(), bits as usize),
            other => panic!("{other:?}"),
        }
        let authority = Authority::new(&material, NOW).expect("an authority");
        assert_eq!(authority.key().algorithm(), KeyAlgorithm::Rsa);
        for key in [KeyPair::generate().expect("a key"), KeyPair::from_pem(RSA_PKCS8).expect("a key")] {
            let request = request_with(&key, "");
            let issued =
                authority.issue(&request, &[WORKLOAD.to_owned()], 0, LifetimeLimits::default(), NOW).expect("issued");
            verify(&issued.chain, authority.roots_pem(), NOW).expect("it verifies");
        }
        // As another replica reads it from the Secret.
        let read = PrivateKey::from_pem(&material.key).expect("a key");
        assert_eq!((read.algorithm(), read.public()), (KeyAlgorithm::Rsa, authority.key().public()));
        let server =
            authority.server_certificate(&["istiod".to_owned()], Duration::from_secs(60), NOW).expect("issued");
        assert_eq!(server.key.algorithm(), KeyAlgorithm::EcdsaP256);
    }
    assert_eq!([1024, 2047, 2560, 16_384].map(RsaBits::new), [None; 4]);
    assert!(RsaBits::ALL.into_iter().all(|bits| RsaBits::new(bits).is_some()));
    assert_eq!(RsaBits::new(2048), Some(RsaBits::DEFAULT));
}

#[test]
fn rsa_root_of_istiod_signs_and_is_renewed_with_its_key() {
    // As istiod writes it: an RSA key in PKCS #1.
    let key = PrivateKey::from_pem(RSA_PKCS1).expect("a key");
    let old = root::sign_for_tests(&key, "cluster.local", Duration::from_secs(10 * DAY), NOW - 9 * DAY as i64);
    let old = Authority::new(&old, NOW).expect("an authority");
    assert!(root::is_due(&old, 20, NOW));
    assert!(!root::is_due(&old, 20, NOW - 2 * DAY as i64));
    let issued = old.issue(&request(), &[WORKLOAD.to_owned()], 0, LifetimeLimits::default(), NOW).expect("issued");
    verify(&issued.chain, old.roots_pem(), NOW).expect("it verifies");

    let renewed = root::renew(&old, Duration::from_secs(3650 * DAY), NOW).expect("renewed");
    assert_eq!(renewed.key.as_str(), RSA_PKCS1);
    let renewed = Authority::new(&renewed, NOW).expect("an authority");
    assert_ne!(renewed.roots_pem(), old.roots_pem());
    assert!(!root::is_due(&renewed, 20, NOW));
    // Certificates of either root verify against the other.
    verify(&issued.chain, renewed.roots_pem(), NOW).expect("the old against the new");
    let issued =
        renewed.issue(&request(), &[WORKLOAD.to_owned()], 3600, LifetimeLimits::default(), NOW).expect("issued");
    verify(&issued.chain, old.roots_pem(), NOW).expect("the new against the old");
}

#[test]
fn material_that_would_not_verify_is_rejected() {
    let good = plugged("org root");
    Authority::new(&good.material, NOW).expect("an authority");
    let change = |change: &dyn Fn(&mut Material)| {
        let mut material = good.material.clone();
        change(&mut material);
        rejection(&material)
    };
    assert_eq!(change(&|m| m.certificate.clear()), "signing certificate: contains no certificate");
    assert_eq!(change(&|m| m.roots.clear()), "root certificates: contain no certificate");
    let other = plugged("org root").material;
    assert_eq!(change(&|m| m.key.clone_from(&other.key)), "private key: does not match the signing certificate");
    // The same names with another key: a forged authority.
    let forged = change(&|m| {
        m.roots.clone_from(&other.roots);
        m.chain.clone_from(&m.certificate);
    });
    assert!(
        forged.starts_with("certificate chain: a certificate that it signs does not verify against the roots"),
        "{forged}"
    );

    let mut leaf = plugged("org root");
    let mut params = authority_params("leaf");
    params.is_ca = IsCa::NoCa;
    leaf.intermediate(&params);
    assert_eq!(rejection(&leaf.material), "signing certificate: is not authorized to sign other certificates");

    let late = Authority::new(&good.material, NOW + 101 * DAY as i64).expect_err("late");
    assert_eq!(late.to_string(), "signing certificate: has expired");
    let early = Authority::new(&good.material, NOW - 7200).expect_err("early");
    assert_eq!(early.to_string(), "signing certificate: is not valid yet");
}

#[test]
fn missing_signing_certificate_is_added_to_the_chain() {
    let mut plugged = plugged("org root");
    plugged.material.chain.clear();
    let authority = Authority::new(&plugged.material, NOW).expect("an authority");
    assert_eq!(authority.chain(), [authority.certificate().der().clone()]);
    let issued =
        authority.issue(&request(), &[WORKLOAD.to_owned()], 0, LifetimeLimits::default(), NOW).expect("issued");
    verify(&issued.chain, authority.roots_pem(), NOW).expect("it verifies");
}

fn revocation_lists(plugged: &PluggedAuthority) -> (String, String) {
    let time = |at: i64| x509_parser::time::ASN1Time::from_timestamp(at).expect("a time").to_datetime();
    let list = |issuer: &Issuer<'_, &KeyPair>| {
        let params = CertificateRevocationListParams {
            this_update: time(NOW),
            next_update: time(NOW + 3600),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(issuer).expect("a list").pem().expect("its text")
    };
    let key = KeyPair::from_pem(&plugged.material.key).expect("a key");
    let intermediate = list(&Issuer::from_params(&plugged.root, &key));
    (list(&Issuer::from_params(&plugged.root, &plugged.root_key)), intermediate)
}

#[test]
fn each_certificate_of_the_chain_needs_a_revocation_list() {
    let mut plugged = plugged("org root");
    let (root, intermediate) = revocation_lists(&plugged);
    plugged.material.crl = root.clone() + &intermediate;
    let authority = Authority::new(&plugged.material, NOW).expect("an authority");
    assert_eq!(authority.crl(), plugged.material.crl.trim());
    plugged.material.crl = root;
    assert!(rejection(&plugged.material).starts_with("revocation lists: contain no list that is signed by"));
    plugged.material.crl = crate::pem::encode("X509 CRL", b"no list");
    assert_eq!(rejection(&plugged.material), "revocation lists: contain a section that is not a revocation list");
}

fn files(entries: &[(&str, &str)]) -> Contents {
    entries.iter().map(|(name, text)| ((*name).to_owned(), Zeroizing::new((*text).to_owned()))).collect()
}

#[test]
fn directories_have_istio_or_kubernetes_file_names() {
    let m = plugged("org root").material;
    assert!(store::from_files(&files(&[]), true).expect("no error").is_none());
    let all = [
        ("ca-cert.pem", m.certificate.as_str()),
        ("ca-key.pem", m.key.as_str()),
        ("cert-chain.pem", m.chain.as_str()),
        ("root-cert.pem", m.roots.as_str()),
    ];
    let stored = store::from_files(&files(&all), true).expect("valid files").expect("an authority");
    assert_eq!((stored.material, stored.is_generated), (m.clone(), false));
    for (missing, _) in all {
        let rest: Vec<_> = all.into_iter().filter(|(name, _)| *name != missing).collect();
        let error = store::from_files(&files(&rest), true).expect_err("a file is missing");
        assert_eq!(error, MaterialError::new(missing, "is missing; the other files of the authority exist"));
    }
    let tls = [("tls.crt", m.certificate.as_str()), ("tls.key", m.key.as_str()), ("ca.crt", m.roots.as_str())];
    let stored = store::from_files(&files(&tls), true).expect("valid files").expect("an authority");
    let authority = Authority::new(&stored.material, NOW).expect("an authority");
    assert_eq!(authority.chain().len(), 2);
    store::from_files(&files(&tls[..2]), true).expect_err("ca.crt is missing");

    let with_list = [&all[..], &[("ca-crl.pem", "list"), ("istio-generated", "")]].concat();
    let stored = store::from_files(&files(&with_list), true).expect("valid files").expect("an authority");
    assert_eq!((stored.material.crl.as_str(), stored.is_generated), ("list", true));
    let stored = store::from_files(&files(&with_list), false).expect("valid files").expect("an authority");
    assert_eq!(stored.material.crl, "");
}

#[test]
fn written_secret_is_read_back() {
    let material = root::create("td", NewKey::EcdsaP256, Duration::from_secs(DAY), NOW).expect("a root");
    let data = store::to_secret(store::SECRET, &material);
    let keys: Vec<&str> = data.keys().map(String::as_str).collect();
    assert_eq!(keys, ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "key.pem", "root-cert.pem"]);
    assert_eq!(data["root-cert.pem"].as_str(), material.certificate);
    assert_eq!(store::from_secret(store::SECRET, &data, "").expect("a valid Secret"), material);
    assert!(store::to_secret(store::CACERTS, &material).contains_key("istio-generated"));
    let error = store::from_secret("s", &Contents::new(), "").expect_err("an empty Secret");
    assert_eq!(error.to_string(), "Secret s: has no ca-cert.pem");

    let other = root::create("other", NewKey::EcdsaP256, Duration::from_secs(DAY), NOW).expect("a root");
    let both = store::from_secret(store::SECRET, &data, &other.certificate).expect("a valid Secret");
    assert_eq!(Authority::new(&both, NOW).expect("an authority").roots().len(), 2);
    let twice = store::from_secret(store::SECRET, &data, &material.certificate).expect("a valid Secret");
    assert_eq!(Authority::new(&twice, NOW).expect("an authority").roots().len(), 1);

    let stored = store::from_files(&store::to_files(&material), true).expect("valid files").expect("an authority");
    assert!(stored.is_generated);
    assert_eq!(Authority::new(&stored.material, NOW).expect("an authority").material(), material);
}

#[test]
fn replacement_must_keep_the_roots() {
    let mut plugged = plugged("org root");
    let old = Authority::new(&plugged.material, NOW).expect("an authority");
    plugged.intermediate(&authority_params("next"));
    let new = Authority::new(&plugged.material, NOW).expect("an authority");
    assert_ne!(new.certificate(), old.certificate());
    assert_eq!(store::check_replacement(&old, &new, false), Ok(()));

    let more = store::with_roots(plugged.material.clone(), self_signed().roots_pem());
    let more = Authority::new(&more, NOW).expect("an authority");
    assert!(store::check_replacement(&new, &more, false).is_err());
    assert_eq!(store::check_replacement(&new, &more, true), Ok(()));
    assert_eq!(store::check_replacement(&more, &new, true), Ok(()));
    assert!(store::check_replacement(&new, &self_signed(), true).is_err());
}
