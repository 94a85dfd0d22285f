//! Validation of a JSON Web Key Set (RFC 7517).
//!
//! `jsonwebtoken::jwk` (10.4) is not used here. A key without `e`, a key of an unknown type and a key on the curve Ed448 all give
//! its one error, "data did not match any variant of untagged enum AlgorithmParameters", where a reject names the member or
//! the type. It also rejects curves that it does not verify itself, while tokens are verified by proxies.

use serde_json::{Map, Value};

/// Checks a key set or a single key. Returns the indices of the keys that have secret parts.
pub(super) fn check(text: &str) -> Result<Vec<usize>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
    let Value::Object(object) = value else { return Err("expected a JSON object".to_owned()) };
    let keys = match object.get("keys") {
        Some(Value::Array(keys)) => keys.iter().collect(),
        Some(_) => return Err("`keys` must be a list".to_owned()),
        None if object.contains_key("kty") => {
            return check_key(&object).map(|secret| (0..usize::from(secret)).collect());
        }
        None => return Err("`keys` is required".to_owned()),
    };
    let mut private = Vec::new();
    let keys: Vec<&Value> = keys;
    for (n, key) in keys.into_iter().enumerate() {
        let Value::Object(key) = key else { return Err(format!("key {n} is not an object")) };
        if check_key(key).map_err(|reason| format!("key {n}: {reason}"))? {
            private.push(n);
        }
    }
    Ok(private)
}

/// Whether the key has a secret part.
fn check_key(key: &Map<String, Value>) -> Result<bool, String> {
    let kind = key.get("kty").and_then(Value::as_str).unwrap_or_default();
    let needed: &[&str] = match kind {
        "RSA" => &["n", "e"],
        "EC" => &["crv", "x", "y"],
        "OKP" => &["crv", "x"],
        "oct" => &["k"],
        "" => return Err("`kty` is required".to_owned()),
        other => return Err(format!("unknown key type `{other}`")),
    };
    match needed.iter().find(|name| key.get(**name).and_then(Value::as_str).is_none_or(str::is_empty)) {
        Some(name) => Err(format!("`{name}` is required")),
        None => Ok(kind == "oct" || key.contains_key("d")),
    }
}
