//! Whether a certificate and a private key belong together.

use aws_lc_rs::rsa::KeyPair as RsaKeyPair;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair as _,
};
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
    let declared = &certificate.public_key().subject_public_key.data;
    public_key(&key.content).is_some_and(|public| public != **declared)
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
