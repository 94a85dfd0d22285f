//! JSON web key sets (RFC 7517) and signature verification, by `jsonwebtoken` on aws-lc.

use std::str::FromStr;

use jsonwebtoken::crypto::aws_lc;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// Members of a key that are read. RFC 7517 section 4: all others are ignored, whatever their value.
const MEMBERS: [&str; 9] = ["kty", "kid", "alg", "use", "crv", "n", "e", "x", "y"];

const RSA: &[Algorithm] =
    &[Algorithm::RS256, Algorithm::RS384, Algorithm::RS512, Algorithm::PS256, Algorithm::PS384, Algorithm::PS512];

/// Public keys of an issuer.
#[derive(Debug, Default)]
pub struct KeySet(Vec<Key>);

/// A text that is not a JSON web key set.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the keys are not a JSON web key set")]
pub struct NotKeySet;

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The algorithms it may be used with: those of its type, or the declared one of them.
    algorithms: Vec<Algorithm>,
    public: DecodingKey,
}

#[derive(Deserialize)]
struct Set {
    /// `jsonwebtoken::jwk::JwkSet` rejects a set because of one key.
    keys: Vec<Value>,
}

impl KeySet {
    /// Parses a set. Keys that are malformed, of unsupported types or not for signatures are ignored.
    pub(super) fn parse(text: &str) -> Result<Self, NotKeySet> {
        let set: Set = serde_json::from_str(text).map_err(|_| NotKeySet)?;
        Ok(Self(set.keys.into_iter().filter_map(Key::parse).collect()))
    }

    /// Whether a key has this id or no id; without an id, whether there is any key.
    pub(super) fn has(&self, id: Option<&str>) -> bool {
        self.0.iter().any(|key| key.is_named(id))
    }

    /// Whether a key with this id, or one without an id, verifies the signature. Without an id, all keys are tried.
    pub(super) fn verifies(&self, id: Option<&str>, algorithm: &str, text: &[u8], signature: &Vec<u8>) -> bool {
        // `none` is the name of no algorithm.
        Algorithm::from_str(algorithm).is_ok_and(|algorithm| {
            self.0.iter().any(|key| key.is_named(id) && key.verifies(algorithm, text, signature))
        })
    }
}

impl Key {
    fn parse(mut key: Value) -> Option<Self> {
        key.as_object_mut()?.retain(|name, _| MEMBERS.contains(&name.as_str()));
        let mut jwk: Jwk = serde_json::from_value(key).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|usage| *usage != PublicKeyUse::Signature) {
            return None;
        }
        // Symmetric keys are ignored: a public key could otherwise be taken for a secret.
        let of_type = match &mut jwk.algorithm {
            AlgorithmParameters::RSA(rsa) => {
                remove_padding(&mut rsa.n);
                remove_padding(&mut rsa.e);
                RSA
            }
            AlgorithmParameters::EllipticCurve(point) => {
                remove_padding(&mut point.x);
                remove_padding(&mut point.y);
                let (coordinate_bytes, algorithm): (usize, &[Algorithm]) = match point.curve {
                    EllipticCurve::P256 => (32, &[Algorithm::ES256]),
                    EllipticCurve::P384 => (48, &[Algorithm::ES384]),
                    EllipticCurve::P521 | EllipticCurve::Ed25519 => return None,
                };
                let text_bytes = (coordinate_bytes * 8).div_ceil(6);
                if point.x.len() != text_bytes || point.y.len() != text_bytes {
                    return None;
                }
                algorithm
            }
            AlgorithmParameters::OctetKeyPair(point) if point.curve == EllipticCurve::Ed25519 => {
                remove_padding(&mut point.x);
                &[Algorithm::EdDSA]
            }
            AlgorithmParameters::OctetKeyPair(_) | AlgorithmParameters::OctetKey(_) => return None,
        };
        let algorithms = match jwk.common.key_algorithm {
            None => of_type.to_vec(),
            Some(declared) => {
                let declared = Algorithm::from_str(&declared.to_string()).ok();
                declared.into_iter().filter(|algorithm| of_type.contains(algorithm)).collect()
            }
        };
        Some(Self { public: DecodingKey::from_jwk(&jwk).ok()?, id: jwk.common.key_id, algorithms })
    }

    fn is_named(&self, id: Option<&str>) -> bool {
        match (id, self.id.as_deref()) {
            (Some(wanted), Some(name)) => wanted == name,
            _ => true,
        }
    }

    fn verifies(&self, algorithm: Algorithm, text: &[u8], signature: &Vec<u8>) -> bool {
        // The backend is named: the default one panics once a dependency enables a second one.
        self.algorithms.contains(&algorithm)
            && (aws_lc::DEFAULT_PROVIDER.verifier_factory)(&algorithm, &self.public)
                .is_ok_and(|verifier| verifier.verify(text, signature).is_ok())
    }
}

/// Removes the padding of base64, which RFC 7515 forbids and some issuers write.
fn remove_padding(text: &mut String) {
    text.truncate(text.trim_end_matches('=').len());
}
