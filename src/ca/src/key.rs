//! Private keys.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
};
use der::asn1::AnyRef;
use der::oid::db::{rfc5912, rfc8410};
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{Signer, SigningKey};
use x509_cert::spki::AlgorithmIdentifierRef;
use zeroize::{Zeroize, Zeroizing};

use crate::{MaterialError, pem};

/// The signature algorithm of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyAlgorithm {
    /// ECDSA on P-256 with SHA-256.
    EcdsaP256,
    /// ECDSA on P-384 with SHA-384.
    EcdsaP384,
    /// RSA of 2048 to 8192 bits, PKCS #1 with SHA-256.
    Rsa,
    /// Ed25519.
    Ed25519,
}

impl KeyAlgorithm {
    const ALL: [Self; 4] = [Self::EcdsaP256, Self::EcdsaP384, Self::Rsa, Self::Ed25519];

    const fn scheme(self) -> SignatureScheme {
        match self {
            Self::EcdsaP256 => SignatureScheme::ECDSA_NISTP256_SHA256,
            Self::EcdsaP384 => SignatureScheme::ECDSA_NISTP384_SHA384,
            Self::Rsa => SignatureScheme::RSA_PKCS1_SHA256,
            Self::Ed25519 => SignatureScheme::ED25519,
        }
    }

    /// The AlgorithmIdentifier of its signatures.
    pub(crate) const fn identifier(self) -> AlgorithmIdentifierRef<'static> {
        let (oid, parameters) = match self {
            Self::EcdsaP256 => (rfc5912::ECDSA_WITH_SHA_256, None),
            Self::EcdsaP384 => (rfc5912::ECDSA_WITH_SHA_384, None),
            Self::Rsa => (rfc5912::SHA_256_WITH_RSA_ENCRYPTION, Some(AnyRef::NULL)),
            Self::Ed25519 => (rfc8410::ID_ED_25519, None),
        };
        AlgorithmIdentifierRef { oid, parameters }
    }

    /// The kind of key of the server certificate under an authority with this algorithm. It is always EC: RSA makes
    /// handshakes many times as expensive, and only TLS uses the key.
    #[must_use]
    pub(crate) const fn server_key(self) -> NewKey {
        match self {
            Self::EcdsaP384 => NewKey::EcdsaP384,
            _ => NewKey::EcdsaP256,
        }
    }
}

/// A kind of key to generate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NewKey {
    /// EC on P-256.
    EcdsaP256,
    /// EC on P-384.
    EcdsaP384,
    /// RSA of this size.
    Rsa(RsaBits),
}

/// The size of an RSA key to generate, in bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RsaBits(rsa::KeySize);

impl RsaBits {
    /// The default of istiod: 2048.
    pub const DEFAULT: Self = Self(rsa::KeySize::Rsa2048);
    /// The accepted sizes.
    pub const ALL: [u32; 4] = [2048, 3072, 4096, 8192];

    /// The size, if it is one of `ALL`.
    #[must_use]
    pub const fn new(bits: u32) -> Option<Self> {
        Some(Self(match bits {
            2048 => rsa::KeySize::Rsa2048,
            3072 => rsa::KeySize::Rsa3072,
            4096 => rsa::KeySize::Rsa4096,
            8192 => rsa::KeySize::Rsa8192,
            _ => return None,
        }))
    }
}

/// A private key. Its text is zeroed on drop, and `Debug` does not show it.
#[derive(Clone)]
pub struct PrivateKey {
    pem: Arc<Zeroizing<String>>,
    algorithm: KeyAlgorithm,
    key: Arc<dyn SigningKey>,
    signer: Arc<dyn Signer>,
    public: Arc<[u8]>,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({:?}, redacted)", self.algorithm)
    }
}

impl PrivateKey {
    /// The first private key of a PEM text: PKCS #8, PKCS #1 or SEC 1; EC P-256 or P-384, RSA of at least 2048 bits,
    /// Ed25519.
    ///
    /// # Errors
    /// The text contains no key, or an unsupported one. The error does not quote the text.
    pub fn from_pem(text: &str) -> Result<Self, MaterialError> {
        let fail = |reason: &str| MaterialError::new("private key", reason);
        let mut der = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|_| fail("is not the PEM of an unencrypted private key"))?;
        let key = Self::new(Arc::new(Zeroizing::new(text.to_owned())), &der);
        der.zeroize();
        key.ok_or_else(|| fail("is neither EC P-256 or P-384, nor RSA of 2048 to 8192 bits, nor Ed25519"))
    }

    /// Generates a key. RSA takes up to a second with 2048 bits, and several seconds with 8192.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate(kind: NewKey) -> Result<Self, MaterialError> {
        Self::try_generate(kind).ok_or_else(|| MaterialError::new("private key", "cannot be generated"))
    }

    fn try_generate(kind: NewKey) -> Option<Self> {
        let ec = |algorithm: &'static EcdsaSigningAlgorithm| {
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).ok()?;
            Some(Zeroizing::new(document.as_ref().to_vec()))
        };
        let document = match kind {
            NewKey::EcdsaP256 => ec(&ECDSA_P256_SHA256_ASN1_SIGNING)?,
            NewKey::EcdsaP384 => ec(&ECDSA_P384_SHA384_ASN1_SIGNING)?,
            NewKey::Rsa(bits) => {
                let document: Pkcs8V1Der<'_> = rsa::KeyPair::generate(bits.0).ok()?.as_der().ok()?;
                Zeroizing::new(document.as_ref().to_vec())
            }
        };
        let text = Zeroizing::new(pem::encode("PRIVATE KEY", &document));
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document.as_slice()));
        Self::new(Arc::new(text), &der)
    }

    fn new(pem: Arc<Zeroizing<String>>, der: &PrivateKeyDer<'_>) -> Option<Self> {
        let key = any_supported_type(der).ok()?;
        let (algorithm, signer) = KeyAlgorithm::ALL
            .into_iter()
            .find_map(|algorithm| Some((algorithm, key.choose_scheme(&[algorithm.scheme()])?)))?;
        let public = Arc::from(key.public_key()?.as_ref());
        Some(Self { pem, algorithm, key, signer: Arc::from(signer), public })
    }

    /// Its signature algorithm.
    #[must_use]
    pub fn algorithm(&self) -> KeyAlgorithm {
        self.algorithm
    }

    /// The PEM text of the key. Write it only to places that hold keys.
    #[must_use]
    pub fn secret_pem(&self) -> &str {
        &self.pem
    }

    /// The key for TLS.
    #[must_use]
    pub fn signing_key(&self) -> Arc<dyn SigningKey> {
        self.key.clone()
    }

    /// The DER of its SubjectPublicKeyInfo.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.signer.sign(message).ok()
    }
}
