//! JSON web tokens of a token issuer for tests.

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SigningKey};
use serde_json::{Value, json};

/// Signs tokens with one key.
pub struct TokenIssuer {
    key: KeyPair,
    id: &'static str,
}

impl TokenIssuer {
    /// An issuer with a new key.
    ///
    /// # Errors
    /// Key generation fails.
    pub fn new() -> Result<Self> {
        Self::with_id("test")
    }

    /// An issuer with a new key of this id.
    ///
    /// # Errors
    /// Key generation fails.
    pub fn with_id(id: &'static str) -> Result<Self> {
        Ok(Self { key: KeyPair::generate_for(&PKCS_ED25519).context("make a signing key")?, id })
    }

    /// Its public key as a JSON web key set.
    #[must_use]
    pub fn key_set(&self) -> String {
        json!({ "keys": [self.key()] }).to_string()
    }

    /// Its public key as a JSON web key.
    #[must_use]
    pub fn key(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.key.der_bytes());
        json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": self.id, "x": x })
    }

    /// A token with these claims.
    ///
    /// # Errors
    /// Signing fails.
    pub fn sign(&self, claims: &Value) -> Result<String> {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = json!({ "alg": "EdDSA", "kid": self.id, "typ": "JWT" });
        let text = format!("{}.{}", part(&head), part(claims));
        let signature = self.key.sign(text.as_bytes()).context("sign a token")?;
        Ok(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}
