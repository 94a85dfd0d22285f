//! Validation of a JSON Web Key Set (RFC 7517).
//!
//! `jsonwebtoken::jwk` (10.4) is not used here. A key without `e`, a key of an unknown type and a key on the curve Ed448 all give
//! its one error, "data did not match any variant of untagged enum AlgorithmParameters", where a reject names the member or
//! the type. It also rejects curves that it does not verify itself, while tokens are verified by proxies.

use serde_json::{Map, Value};

/// Why a key set is invalid; displayed as a lower-case fragment.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeySetError {
    #[error("invalid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("expected a JSON object")]
    NotAnObject,
    #[error("`keys` is required")]
    NoKeys,
    #[error("`keys` must be a list")]
    KeysNotAList,
    #[error("key {0} is not an object")]
    KeyNotAnObject(usize),
    #[error("key {0}: {1}")]
    Key(usize, KeyError),
    #[error(transparent)]
    SingleKey(#[from] KeyError),
}

/// Why a key is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    #[error("unknown key type `{0}`")]
    UnknownType(String),
    #[error("`{0}` is required")]
    Missing(&'static str),
}

/// Checks a key set or a single key. Returns the indices of the keys that have secret parts.
pub(super) fn check(text: &str) -> Result<Vec<usize>, KeySetError> {
    let Value::Object(object) = serde_json::from_str(text)? else { return Err(KeySetError::NotAnObject) };
    let keys = match object.get("keys") {
        Some(Value::Array(keys)) => keys,
        Some(_) => return Err(KeySetError::KeysNotAList),
        None if object.contains_key("kty") => {
            let secret = check_key(&object)?;
            return Ok((0..usize::from(secret)).collect());
        }
        None => return Err(KeySetError::NoKeys),
    };
    let mut private = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let Value::Object(key) = key else { return Err(KeySetError::KeyNotAnObject(n)) };
        if check_key(key).map_err(|error| KeySetError::Key(n, error))? {
            private.push(n);
        }
    }
    Ok(private)
}

/// Whether the key has a secret part.
fn check_key(key: &Map<String, Value>) -> Result<bool, KeyError> {
    let kind = key.get("kty").and_then(Value::as_str).unwrap_or_default();
    let needed: &[&str] = match kind {
        "RSA" => &["n", "e"],
        "EC" => &["crv", "x", "y"],
        "OKP" => &["crv", "x"],
        "oct" => &["k"],
        "" => return Err(KeyError::Missing("kty")),
        other => return Err(KeyError::UnknownType(other.to_owned())),
    };
    match needed.iter().find(|name| key.get(**name).and_then(Value::as_str).is_none_or(str::is_empty)) {
        Some(name) => Err(KeyError::Missing(name)),
        None => Ok(kind == "oct" || key.contains_key("d")),
    }
}
