//! The text of a JSON Web Key Set (RFC 7517).

use serde_json::{Map, Value};

/// Checks a set of keys, or a single key; gives the indices of keys with secret parts.
pub(super) fn check(text: &str) -> Result<Vec<usize>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    let Value::Object(object) = value else { return Err("a JSON object is expected".to_owned()) };
    let keys = match object.get("keys") {
        Some(Value::Array(keys)) => keys.iter().collect(),
        Some(_) => return Err("`keys` is no list".to_owned()),
        None if object.contains_key("kty") => {
            return check_key(&object).map(|secret| (0..usize::from(secret)).collect());
        }
        None => return Err("has no `keys`".to_owned()),
    };
    let mut private = Vec::new();
    let keys: Vec<&Value> = keys;
    for (n, key) in keys.into_iter().enumerate() {
        let Value::Object(key) = key else { return Err(format!("key {n} is no object")) };
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
        "" => return Err("has no `kty`".to_owned()),
        other => return Err(format!("`{other}` is no kind of key")),
    };
    match needed.iter().find(|name| key.get(**name).and_then(Value::as_str).is_none_or(str::is_empty)) {
        Some(name) => Err(format!("has no `{name}`")),
        None => Ok(kind == "oct" || key.contains_key("d")),
    }
}
