//! The header and the claims of a JSON Web Token (RFC 7519). `keys.rs` verifies its signature.
//!
//! `decode` and `decode_header` of `jsonwebtoken` (10.4) are not used. The test `jsonwebtoken_reads_tokens_differently`
//! checks these differences:
//! - They reject a header parameter whose value is not a string, such as `"ver":1`. RFC 7515 section 4 requires that
//!   unknown parameters are ignored.
//! - They do not distinguish an unknown algorithm, such as `none`, from a header that is not JSON.
//! - They allow the same clock skew for `exp` as for `nbf`, and round both to seconds.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::keys::KeySet;
use super::{TokenError, service_account};

/// Longest accepted token.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Clock skew that `nbf` tolerates.
const MAX_CLOCK_SKEW_SECONDS: i64 = 60;

/// A token whose signature has not been verified.
pub(super) struct UnverifiedToken<'a> {
    /// The signed text.
    text: &'a str,
    claims: Vec<u8>,
    signature: Vec<u8>,
    head: Head,
}

#[derive(Deserialize)]
struct Head {
    alg: String,
    kid: Option<String>,
    /// Critical extensions; none are supported.
    crit: Option<serde_json::Value>,
}

/// The claims of a token with a valid signature.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Claims {
    iss: String,
    sub: String,
    aud: Audience,
    exp: Option<f64>,
    nbf: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Default for Audience {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<'a> UnverifiedToken<'a> {
    pub(super) fn split(token: &'a str) -> Result<Self, TokenError> {
        let bad = || TokenError::Malformed;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(bad());
        }
        let (text, signature) = token.rsplit_once('.').ok_or_else(bad)?;
        let (head, claims) = text.split_once('.').filter(|(_, claims)| !claims.contains('.')).ok_or_else(bad)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| bad());
        let head: Head = serde_json::from_slice(&decode(head)?).map_err(|_| bad())?;
        if head.crit.is_some() {
            return Err(bad());
        }
        Ok(Self { text, claims: decode(claims)?, signature: decode(signature)?, head })
    }

    /// The expiry that the token states.
    pub(super) fn expiry(&self) -> Option<i64> {
        let claims: Claims = serde_json::from_slice(&self.claims).ok()?;
        #[expect(clippy::cast_possible_truncation, reason = "the result saturates")]
        claims.exp.map(|seconds| seconds as i64)
    }

    pub(super) fn key_id(&self) -> Option<&str> {
        self.head.kid.as_deref()
    }

    pub(super) fn verify(self, keys: &KeySet) -> Result<Claims, TokenError> {
        if !keys.verifies(self.key_id(), &self.head.alg, self.text.as_bytes(), &self.signature) {
            return Err(TokenError::Signature);
        }
        serde_json::from_slice(&self.claims).map_err(|_| TokenError::Malformed)
    }
}

impl Claims {
    /// Checks issuer, times and audience.
    #[allow(clippy::cast_precision_loss, reason = "seconds since the Unix epoch")]
    pub(super) fn check(&self, now: i64, issuer: &str, audiences: &[String]) -> Result<(), TokenError> {
        if !issuer.is_empty() && self.iss != issuer {
            return Err(TokenError::Issuer);
        }
        if self.exp.is_none_or(|expires| expires <= now as f64) {
            return Err(TokenError::Expired);
        }
        if self.nbf.is_some_and(|begins| begins > (now + MAX_CLOCK_SKEW_SECONDS) as f64) {
            return Err(TokenError::NotYet);
        }
        let has_audience = match &self.aud {
            Audience::One(one) => audiences.contains(one),
            Audience::Many(many) => many.iter().any(|one| audiences.contains(one)),
        };
        if has_audience { Ok(()) } else { Err(TokenError::Audience(audiences.to_vec())) }
    }

    /// Namespace and name of the service account.
    pub(super) fn service_account(&self) -> Option<(&str, &str)> {
        service_account(&self.sub)
    }
}
