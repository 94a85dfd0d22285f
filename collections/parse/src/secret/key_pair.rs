//! Whether a certificate and a private key belong together.

use aws_lc_rs::rsa::KeyPair as RsaKeyPair;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair as _,
};
use pkcs1::RsaPrivateKeyRef;
use pkcs8::PrivateKeyInfoRef;
use pkcs8::der::Encode as _;
use sec1::EcPrivateKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::encoding::decode_base64_lines;

/// A PEM block: its label and its content.
pub(super) struct PemBlock<'a> {
    label: &'a str,
    is_encrypted: bool,
    content: Vec<u8>,
}

impl<'a> PemBlock<'a> {
    /// The first block, if its content is base64.
    pub(super) fn first(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (_, block) = text.split_once("-----BEGIN ")?;
        let (label, block) = block.split_once("-----")?;
        let (body, _) = block.split_once(&format!("-----END {label}-----"))?;
        // Keys in the traditional format may have headers, followed by an empty line.
        let body = body.rsplit("\n\n").next().unwrap_or(body);
        Some(Self { label, is_encrypted: block.contains("ENCRYPTED"), content: decode_base64_lines(body)? })
    }

    /// Whether its label ends in `label` and its content is DER.
    pub(super) fn is_der_of(&self, label: &str) -> bool {
        const DER_SEQUENCE: u8 = 0x30;
        self.label.ends_with(label) && (self.is_encrypted || self.content.first() == Some(&DER_SEQUENCE))
    }
}

/// Whether the private key is certainly not that of the certificate. Keys of other algorithms than RSA, ECDSA and Ed25519 are not
/// compared, and neither is what cannot be read.
pub(super) fn is_mismatched(chain: &PemBlock<'_>, key: &PemBlock<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(&chain.content) else { return false };
    let certified = &certificate.public_key().subject_public_key.data;
    // Most private keys contain the public one. To compute it takes as long as the rest of a Secret.
    if contained_public_key(&key.content).is_some_and(|contained| contained == **certified) {
        return false;
    }
    public_key(&key.content).is_some_and(|public| public != **certified)
}

/// The public key that an ECDSA or RSA private key contains, as certificates contain it.
fn contained_public_key(key: &[u8]) -> Option<Vec<u8>> {
    let key = PrivateKeyInfoRef::try_from(key).map_or(key, |key| key.private_key.as_bytes());
    let ecdsa = EcPrivateKey::try_from(key).ok().and_then(|key| key.public_key).map(<[u8]>::to_vec);
    ecdsa.or_else(|| RsaPrivateKeyRef::try_from(key).ok()?.public_key().to_der().ok())
}

/// The public key of a private key, as certificates contain it.
fn public_key(key: &[u8]) -> Option<Vec<u8>> {
    let curves = [&ECDSA_P256_SHA256_ASN1_SIGNING, &ECDSA_P384_SHA384_ASN1_SIGNING, &ECDSA_P521_SHA512_ASN1_SIGNING];
    let ecdsa = curves.into_iter().find_map(|curve| {
        let read = EcdsaKeyPair::from_pkcs8(curve, key).or_else(|_| EcdsaKeyPair::from_private_key_der(curve, key));
        read.ok().map(|pair| pair.public_key().as_ref().to_vec())
    });
    let rsa = || {
        let read = RsaKeyPair::from_pkcs8(key).or_else(|_| RsaKeyPair::from_der(key));
        read.ok().map(|pair| pair.public_key().as_ref().to_vec())
    };
    let ed25519 = || Ed25519KeyPair::from_pkcs8(key).ok().map(|pair| pair.public_key().as_ref().to_vec());
    ecdsa.or_else(rsa).or_else(ed25519)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
    use aws_lc_rs::rsa::KeySize;

    use super::*;

    #[test]
    fn contained_and_computed_public_keys_are_equal() {
        let curves =
            [&ECDSA_P256_SHA256_ASN1_SIGNING, &ECDSA_P384_SHA384_ASN1_SIGNING, &ECDSA_P521_SHA512_ASN1_SIGNING];
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for curve in curves {
            let pair = EcdsaKeyPair::generate(curve).expect("a key");
            let pkcs8 = pair.to_pkcs8v1().expect("an encoding");
            keys.push(pkcs8.as_ref().to_vec());
        }
        let rsa = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        let pkcs8: Pkcs8V1Der<'_> = rsa.as_der().expect("an encoding");
        keys.push(pkcs8.as_ref().to_vec());
        for key in keys {
            let traditional = PrivateKeyInfoRef::try_from(key.as_slice()).expect("PKCS #8").private_key.as_bytes();
            for key in [&key, traditional] {
                let contained = contained_public_key(key);
                assert!(contained.is_some());
                assert_eq!(contained, public_key(key));
            }
        }
    }

    #[test]
    fn what_is_no_key_contains_none() {
        assert_eq!(contained_public_key(b""), None);
        assert_eq!(contained_public_key(&[0x30, 3, 2, 1, 0]), None);
        let ed25519 = Ed25519KeyPair::generate().and_then(|pair| pair.to_pkcs8v1()).expect("a key");
        assert_eq!(contained_public_key(ed25519.as_ref()), None);
        assert!(public_key(ed25519.as_ref()).is_some());
    }
}
