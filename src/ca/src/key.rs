//! Private keys.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair};
use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{Signer, SigningKey};
use zeroize::{Zeroize, Zeroizing};

use crate::{MaterialError, pem};

/// What a key signs with.
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

    /// The DER of its signatures' AlgorithmIdentifier.
    pub(crate) const fn identifier(self) -> &'static [u8] {
        match self {
            Self::EcdsaP256 => &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2],
            Self::EcdsaP384 => &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3],
            Self::Rsa => &[0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11, 5, 0],
            Self::Ed25519 => &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70],
        }
    }

    /// The kind of key this authority makes for itself beside one of this kind: never RSA.
    #[must_use]
    pub const fn beside(self) -> Self {
        match self {
            Self::EcdsaP384 => Self::EcdsaP384,
            _ => Self::EcdsaP256,
        }
    }
}

/// A private key. Its text is wiped when it is dropped, and no `Debug` shows it.
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
    /// There is none, or it is of another kind. The text never says what was there.
    pub fn from_pem(text: &str) -> Result<Self, MaterialError> {
        let fail = |reason: &str| MaterialError::new("private key", reason);
        let mut der = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|_| fail("is no PEM of a private key without a password"))?;
        let made = Self::new(Arc::new(Zeroizing::new(text.to_owned())), &der);
        der.zeroize();
        made.ok_or_else(|| fail("is neither EC P-256 or P-384, nor RSA of 2048 to 8192 bits, nor Ed25519"))
    }

    /// A new key; RSA cannot be made, and gives P-256.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate(algorithm: KeyAlgorithm) -> Result<Self, MaterialError> {
        let fail = || MaterialError::new("private key", "cannot be made");
        let scheme = match algorithm.beside() {
            KeyAlgorithm::EcdsaP384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
            _ => &ECDSA_P256_SHA256_ASN1_SIGNING,
        };
        let document = EcdsaKeyPair::generate_pkcs8(scheme, &SystemRandom::new()).map_err(|_| fail())?;
        let text = Zeroizing::new(pem::write("PRIVATE KEY", document.as_ref()));
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document.as_ref()));
        Self::new(Arc::new(text), &der).ok_or_else(fail)
    }

    fn new(pem: Arc<Zeroizing<String>>, der: &PrivateKeyDer<'_>) -> Option<Self> {
        let key = any_supported_type(der).ok()?;
        let (algorithm, signer) = KeyAlgorithm::ALL
            .into_iter()
            .find_map(|algorithm| Some((algorithm, key.choose_scheme(&[algorithm.scheme()])?)))?;
        let public = Arc::from(key.public_key()?.as_ref());
        Some(Self { pem, algorithm, key, signer: Arc::from(signer), public })
    }

    /// What it signs with.
    #[must_use]
    pub fn algorithm(&self) -> KeyAlgorithm {
        self.algorithm
    }

    /// The text it came from, to be put only where keys are kept.
    #[must_use]
    pub fn secret_pem(&self) -> &str {
        &self.pem
    }

    /// For TLS.
    #[must_use]
    pub fn signing_key(&self) -> Arc<dyn SigningKey> {
        self.key.clone()
    }

    /// The DER of its public half, a SubjectPublicKeyInfo.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.signer.sign(message).ok()
    }
}
