//! JSON web key sets (RFC 7517) and signature verification.

use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// Public keys of an issuer.
#[derive(Debug, Default)]
pub struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm it may be used with, if declared.
    algorithm: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: String,
    n: String,
    e: String,
    x: String,
    y: String,
}

impl KeySet {
    /// Parses a set. Keys of unsupported types are ignored.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let set: Set = serde_json::from_str(text).map_err(|_| "the keys are not a JSON web key set".to_owned())?;
        let keys = set.keys.into_iter().filter(|key| key.usage.as_deref().is_none_or(|usage| usage == "sig"));
        Ok(Self(keys.filter_map(Key::new).collect()))
    }

    /// Whether a key has this id; without an id, whether there is any key.
    pub(super) fn has(&self, id: Option<&str>) -> bool {
        self.0.iter().any(|key| key.is_named(id))
    }

    /// Whether a key with this id, or one without an id, verifies the signature.
    pub(super) fn verifies(&self, id: Option<&str>, algorithm: &str, text: &[u8], signature: &[u8]) -> bool {
        self.0.iter().any(|key| key.is_named(id) && key.verifies(algorithm, text, signature))
    }
}

impl Key {
    fn new(jwk: Jwk) -> Option<Self> {
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        let point = |length: usize| {
            let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
            (x.len() == length && y.len() == length).then(|| [&[4], x.as_slice(), &y].concat())
        };
        let public = match (jwk.kty.as_str(), jwk.crv.as_str()) {
            ("RSA", _) => Public::Rsa { modulus: bytes(&jwk.n)?, exponent: bytes(&jwk.e)? },
            ("EC", "P-256") => Public::P256(point(32)?),
            ("EC", "P-384") => Public::P384(point(48)?),
            ("OKP", "Ed25519") => Public::Ed25519(bytes(&jwk.x)?),
            _ => return None,
        };
        Some(Self { id: jwk.kid, algorithm: jwk.alg, public })
    }

    fn is_named(&self, id: Option<&str>) -> bool {
        match (id, self.id.as_deref()) {
            (Some(wanted), Some(name)) => wanted == name,
            _ => true,
        }
    }

    fn verifies(&self, algorithm: &str, text: &[u8], signature: &[u8]) -> bool {
        if self.algorithm.as_deref().is_some_and(|own| own != algorithm) {
            return false;
        }
        let point = |kind: &'static dyn signature::VerificationAlgorithm, public: &[u8]| {
            UnparsedPublicKey::new(kind, public).verify(text, signature).is_ok()
        };
        match (&self.public, algorithm) {
            (Public::Rsa { modulus, exponent }, _) => {
                let parameters: &RsaParameters = match algorithm {
                    "RS256" => &RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &RSA_PSS_2048_8192_SHA256,
                    "PS384" => &RSA_PSS_2048_8192_SHA384,
                    "PS512" => &RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                let key = signature::RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(parameters, text, signature).is_ok()
            }
            (Public::P256(public), "ES256") => point(&ECDSA_P256_SHA256_FIXED, public),
            (Public::P384(public), "ES384") => point(&ECDSA_P384_SHA384_FIXED, public),
            (Public::Ed25519(public), "EdDSA") => point(&ED25519, public),
            _ => false,
        }
    }
}
