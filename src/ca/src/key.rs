//! Private keys.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
};
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

    /// The kind of key that the server itself gets from an authority of this kind: always EC. A mesh that connects anew is
    /// handshakes above all, which cost many times as much with RSA, and nobody but TLS ever sees the key.
    #[must_use]
    pub const fn beside(self) -> NewKey {
        match self {
            Self::EcdsaP384 => NewKey::EcdsaP384,
            _ => NewKey::EcdsaP256,
        }
    }
}

/// A kind of key that is made here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NewKey {
    /// EC on P-256.
    EcdsaP256,
    /// EC on P-384.
    EcdsaP384,
    /// RSA of this size.
    Rsa(RsaBits),
}

/// The size of an RSA key that is made here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RsaBits(rsa::KeySize);

impl RsaBits {
    /// What istiod makes unless it is told otherwise: 2048.
    pub const DEFAULT: Self = Self(rsa::KeySize::Rsa2048);
    /// All of them.
    pub const ALL: [u32; 4] = [2048, 3072, 4096, 8192];

    /// A size, if it is one of `ALL`.
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

    /// A new key. One of RSA takes a good part of a second, and several with many bits.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate(kind: NewKey) -> Result<Self, MaterialError> {
        Self::made(kind).ok_or_else(|| MaterialError::new("private key", "cannot be made"))
    }

    fn made(kind: NewKey) -> Option<Self> {
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
        let text = Zeroizing::new(pem::write("PRIVATE KEY", &document));
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
