//! Keys, certificate signing requests, and checks of certificates.

use anyhow::{Context, Result, ensure};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256,
    RsaKeySize, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::secret::PrivateKey;
use crate::settings::KeyKind;

/// A new key and its certificate signing request, PEM.
///
/// # Errors
/// The system has no randomness, or the identity is not ASCII.
pub(super) fn request(spiffe_id: &str, kind: KeyKind) -> Result<(PrivateKey, String)> {
    let rsa = |size| KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, size);
    let key = match kind {
        KeyKind::Rsa2048 => rsa(RsaKeySize::_2048),
        KeyKind::Rsa3072 => rsa(RsaKeySize::_3072),
        KeyKind::Rsa4096 => rsa(RsaKeySize::_4096),
        KeyKind::P256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        KeyKind::P384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
    };
    let key = key.context("generate a key")?;
    let mut params = CertificateParams::default();
    // The identity is in the alternative names; the subject stays empty.
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(spiffe_id.try_into().context("the identity is not ASCII")?)];
    let request = params.serialize_request(&key).context("sign the certificate signing request")?;
    Ok((PrivateKey::new(key.serialize_pem()), request.pem().context("encode the certificate signing request")?))
}

/// Checks that the key matches the first certificate of the chain.
///
/// # Errors
/// It does not, or one of them is malformed. The message does not quote the key.
pub(super) fn check_pair(chain: &[u8], key: &[u8]) -> Result<()> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(chain).filter_map(Result::ok).collect();
    ensure!(!certificates.is_empty(), "the chain contains no certificate");
    let key = PrivateKeyDer::from_pem_slice(key).ok().context("the file of the key contains no private key")?;
    let signer = sluice_crypto::provider(None)
        .key_provider
        .load_private_key(key)
        .ok()
        .context("the key is of an unsupported kind")?;
    let pair = rustls::sign::CertifiedKey::new(certificates, signer);
    pair.keys_match().ok().context("certificate and key do not match")
}

/// The certificates of PEM texts, in order and without duplicates; `None` if there are none.
pub(super) fn roots(pems: &[&[u8]]) -> Option<Vec<u8>> {
    let mut unique: Vec<CertificateDer<'static>> = Vec::new();
    for certificate in pems.iter().flat_map(|pem| CertificateDer::pem_slice_iter(pem)).filter_map(Result::ok) {
        if X509Certificate::from_der(&certificate).is_ok() && !unique.contains(&certificate) {
            unique.push(certificate);
        }
    }
    let text: String = unique.iter().map(|certificate| to_pem(certificate)).collect();
    (!text.is_empty()).then(|| text.into_bytes())
}

fn to_pem(certificate: &[u8]) -> String {
    let base64 = base64(certificate);
    let lines: Vec<_> = base64.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line)).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use rcgen::{BasicConstraints, IsCa, Issuer};
    use sluice_ca::{Authority, LifetimeLimits, NewKey, RsaBits};
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::public_key::PublicKey;

    use super::*;
    use crate::certificate_expiry::certificate_expiry;

    /// A root key that signs, and its certificate.
    pub(crate) fn root() -> (Issuer<'static, KeyPair>, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a root").pem();
        (Issuer::new(params, key), pem)
    }

    /// A chain whose leaf expires after a given time, and the key of the leaf.
    pub(crate) fn leaf(name: &str, expires_in: Duration) -> (String, String) {
        let (issuer, root) = root();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_after = (SystemTime::now() + expires_in).into();
        let leaf = params.signed_by(&key, &issuer).expect("a leaf");
        (leaf.pem() + &root, key.serialize_pem())
    }

    #[test]
    fn request_names_the_identity_and_the_authority_certifies_its_key() {
        const NAME: &str = "spiffe://td/ns/a/sa/b";
        let now =
            i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs()).expect("a time");
        let day = Duration::from_secs(24 * 3600);
        let rsa = NewKey::Rsa(RsaBits::DEFAULT);
        for (kind, root, bits) in [
            (KeyKind::Rsa2048, rsa, 2048),
            (KeyKind::Rsa3072, NewKey::EcdsaP256, 3072),
            (KeyKind::P256, rsa, 256),
            (KeyKind::P384, NewKey::EcdsaP384, 384),
        ] {
            let (key, text) = request(NAME, kind).expect("a request");
            assert!(String::from_utf8_lossy(key.pem()).contains("PRIVATE KEY"));
            let (_, pem) = x509_parser::pem::parse_x509_pem(text.as_bytes()).expect("a PEM");
            let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).expect("a request");
            parsed.verify_signature().expect("a proof of the key");
            let size = match parsed.certification_request_info.subject_pki.parsed().expect("a key") {
                PublicKey::RSA(rsa) => rsa.key_size(),
                PublicKey::EC(point) => point.key_size(),
                other => panic!("{other:?}"),
            };
            assert_eq!(size, bits, "{kind:?}");
            let extensions: Vec<String> =
                parsed.requested_extensions().into_iter().flatten().map(|extension| format!("{extension:?}")).collect();
            assert!(extensions.iter().any(|text| text.contains(&format!("URI(\"{NAME}\")"))), "{extensions:?}");

            let root = sluice_ca::root::create("td", root, day, now).expect("a root");
            let authority = Authority::new(&root, now).expect("an authority");
            let issued = authority
                .issue(&text, &[NAME.to_owned()], 3600, LifetimeLimits::default(), now)
                .expect("a certificate");
            check_pair(issued.chain.concat().as_bytes(), key.pem()).expect("a pair");
        }
    }

    #[test]
    fn expiry_is_that_of_the_leaf() {
        let (chain, _) = leaf("a", Duration::from_secs(1000));
        let left = certificate_expiry(chain.as_bytes())
            .expect("an expiry")
            .duration_since(SystemTime::now())
            .expect("in the future");
        assert!((998..=1000).contains(&left.as_secs()), "{left:?}");
        assert!(certificate_expiry(b"nothing").is_err());
    }

    #[test]
    fn key_of_another_certificate_is_rejected() {
        let ((chain, key), (_, other)) = (leaf("a", Duration::from_secs(9)), leaf("b", Duration::from_secs(9)));
        check_pair(chain.as_bytes(), key.as_bytes()).expect("a pair");
        let error = check_pair(chain.as_bytes(), other.as_bytes()).expect_err("no pair");
        assert!(!format!("{error:#}").contains("PRIVATE"), "{error:#}");
        assert!(check_pair(chain.as_bytes(), b"").is_err());
    }

    #[test]
    fn roots_are_deduplicated_and_comments_dropped() {
        let ((_, a), (_, b)) = (root(), root());
        let text = format!("# comment\n{a}{b}{a}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let joined = String::from_utf8(roots(&[text.as_bytes(), b.as_bytes()]).expect("roots")).expect("text");
        assert_eq!(joined.matches("BEGIN CERTIFICATE").count(), 2);
        assert!(!joined.contains("comment"));
        assert_eq!(roots(&[b"nothing"]), None);
    }
}
