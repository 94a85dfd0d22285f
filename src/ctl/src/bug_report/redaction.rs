//! What a report must not contain: data of Secrets, private keys, passwords and tokens.
//!
//! Objects are redacted by the names of fields, all texts by what private keys and tokens look like.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::proxy_config::dump::redact as redact_envoy;

/// Replaces a secret.
pub(super) const REDACTED: &str = "[redacted]";
/// Containers whose variables and arguments are those of the mesh, and no user's.
const MESH_CONTAINERS: [&str; 7] =
    ["discovery", "install-cni", "istio-cni", "istio-init", "istio-proxy", "istio-validation", "ztunnel"];
/// The annotation of `kubectl apply`: the object as it was written, with everything that is redacted elsewhere.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Words in names of fields, headers and variables whose values are secret.
const SECRET_WORDS: [&str; 11] = [
    "apikey",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "secret",
    "token",
];
/// Ends of names with such a word that refer to a secret or describe one.
const REFERENCE_ENDS: [&str; 12] = [
    "audience",
    "class",
    "expirationseconds",
    "file",
    "kind",
    "mode",
    "name",
    "names",
    "namespace",
    "path",
    "ref",
    "type",
];
/// The beginning of a PEM block in base64.
const PEM_IN_BASE64: &str = "LS0tLS1CRUdJTi";
/// Part of the label of PEM blocks with private keys.
const KEY_LABEL: &[u8] = b"PRIVATE KEY";
/// The shortest base64 text in which a private key is looked for.
const MIN_BASE64_CHARS: usize = 64;

/// Whether a name of a field, header or variable is that of a secret.
fn is_secret_name(name: &str) -> bool {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    SECRET_WORDS.iter().any(|word| plain.contains(word)) && !REFERENCE_ENDS.iter().any(|end| plain.ends_with(end))
}

/// Redacts a Kubernetes object.
pub(super) fn redact_object(object: &mut Value) {
    if object["kind"] == "Secret" {
        for field in ["data", "stringData"] {
            object.as_object_mut().map(|fields| fields.remove(field));
        }
    }
    redact_envoy(object);
    redact_fields(object);
}

/// Redacts any JSON value by the names of its fields.
pub(super) fn redact_fields(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(redact_fields),
        Value::Object(fields) => {
            fields.remove(APPLIED);
            // A list of names and values: variables, headers.
            let is_secret_pair = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name);
            let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
            let is_container = fields.contains_key("image") && !MESH_CONTAINERS.contains(&name);
            for (name, field) in fields {
                match (name.as_str(), &mut *field) {
                    ("value", Value::String(text)) if is_secret_pair => REDACTED.clone_into(text),
                    ("env", Value::Array(variables)) if is_container => variables.iter_mut().for_each(hide_value),
                    ("args" | "command", Value::Array(words)) if is_container => *words = vec![json!(REDACTED)],
                    ("jwks", Value::String(text)) if has_secret_keys(text) => REDACTED.clone_into(text),
                    (name, Value::String(text)) if is_secret_name(name) => REDACTED.clone_into(text),
                    (_, Value::String(text)) => {
                        if let Some(redacted) = redacted_document(text) {
                            *text = redacted;
                        }
                    }
                    (_, field) => redact_fields(field),
                }
            }
        }
        _ => {}
    }
}

fn hide_value(variable: &mut Value) {
    if let Some(value) = variable.get_mut("value") {
        *value = json!(REDACTED);
    }
}

/// Whether a key set has private or symmetric keys.
fn has_secret_keys(jwks: &str) -> bool {
    let keys: Value = serde_json::from_str(jwks).unwrap_or_default();
    let keys = keys["keys"].as_array().cloned().unwrap_or_default();
    keys.iter().any(|key| ["d", "k"].iter().any(|field| !key[*field].is_null()))
}

/// A text that is itself a YAML or JSON document, such as the mesh config in a ConfigMap, redacted. `None` if it is none, or has
/// no secret.
fn redacted_document(text: &str) -> Option<String> {
    if !text.contains(':') || !(text.contains('\n') || text.starts_with('{')) {
        return None;
    }
    let limits = sluice_parse::yaml::Limits::default();
    let value = sluice_parse::yaml::parse_value(text, &limits).ok().filter(Value::is_object)?;
    let mut redacted = value.clone();
    redact_envoy(&mut redacted);
    redact_fields(&mut redacted);
    (redacted != value).then(|| sluice_install::to_yaml(&redacted).unwrap_or_else(|_| REDACTED.to_owned()))
}

/// A text without private keys, JSON web tokens and credentials of headers.
pub(super) fn redacted_text(text: &str) -> String {
    let text = without_private_keys(text);
    let text = without_encoded_keys(&text);
    let text = without_web_tokens(&text);
    without_credentials(&text)
}

/// Removes PEM blocks of private keys. A block that does not end reaches to the end of the text.
fn without_private_keys(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    const LABEL_END: &str = "PRIVATE KEY-----";
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(BEGIN) {
        let label = &rest[at + BEGIN.len()..];
        let is_private = label.find("-----").is_some_and(|end| label[..end].ends_with("PRIVATE KEY"));
        let kept = if is_private { at } else { at + BEGIN.len() };
        out.push_str(&rest[..kept]);
        rest = &rest[kept..];
        if is_private {
            out.push_str(REDACTED);
            let body = &rest[BEGIN.len()..];
            let body = body.find(LABEL_END).map_or("", |end| &body[end + LABEL_END.len()..]);
            rest = body.find(LABEL_END).map_or("", |end| &body[end + LABEL_END.len()..]);
        }
    }
    out.push_str(rest);
    out
}

/// Removes texts in base64 of both alphabets that contain a private key, with their further lines.
fn without_encoded_keys(text: &str) -> String {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_');
    let has_key = |run: &str| {
        let run = run.replace('-', "+").replace('_', "/");
        let decoded = STANDARD.decode(&run[..run.len() / 4 * 4]).unwrap_or_default();
        decoded.windows(KEY_LABEL.len()).any(|window| window == KEY_LABEL)
    };
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(is_base64) {
        let run = &rest[at..];
        let run = &run[..run.find(|c| !is_base64(c)).unwrap_or(run.len())];
        out.push_str(&rest[..at]);
        // What is before a PEM block may be part of the run, such as a path.
        let pem = run.find(PEM_IN_BASE64).map(|begin| &run[begin..]);
        let is_secret = run.len() >= MIN_BASE64_CHARS && (has_key(run) || pem.is_some_and(has_key));
        out.push_str(if is_secret { REDACTED } else { run });
        rest = &rest[at + run.len()..];
        if is_secret {
            rest = after_further_lines(rest, is_base64);
        }
    }
    out.push_str(rest);
    out
}

/// What follows the lines that continue a text in base64: each consists of it alone, but for indentation.
fn after_further_lines(text: &str, is_base64: impl Fn(char) -> bool) -> &str {
    let mut rest = text.trim_start_matches('=');
    loop {
        let Some(next) = ["\r\n", "\n", "\\n"].iter().find_map(|end| rest.strip_prefix(end)) else { return rest };
        let line = next.trim_start_matches([' ', '\t']);
        let after = line.trim_start_matches(&is_base64);
        if after.len() == line.len() {
            return rest;
        }
        let after = after.trim_start_matches('=');
        if !(after.is_empty() || after.starts_with(['\r', '\n', '\\', '"'])) {
            return rest;
        }
        rest = after;
    }
}

/// Removes JSON web tokens: three parts in base64, of which the first two are JSON objects.
fn without_web_tokens(text: &str) -> String {
    const BEGIN: &str = "eyJ";
    let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(BEGIN) {
        let run = &rest[at..];
        let run = &run[..run.find(|c| !is_token(c)).unwrap_or(run.len())];
        let parts: Vec<&str> = run.split('.').collect();
        out.push_str(&rest[..at]);
        out.push_str(if parts.len() >= 3 && parts[1].starts_with(BEGIN) { REDACTED } else { run });
        rest = &rest[at + run.len()..];
    }
    out.push_str(rest);
    out
}

/// Removes what follows `Bearer` and `Basic` in headers.
fn without_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let lower = text.to_ascii_lowercase();
    loop {
        let from = text.len() - rest.len();
        let next =
            ["bearer ", "basic "].iter().filter_map(|scheme| Some((lower[from..].find(scheme)?, scheme.len()))).min();
        let Some((at, length)) = next else { break };
        let value = &rest[at + length..];
        let end =
            value.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '\\')).unwrap_or(value.len());
        out.push_str(&rest[..at + length]);
        // A word of a sentence is shorter than a credential.
        out.push_str(if end >= 16 { REDACTED } else { &value[..end] });
        rest = &value[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIObPq\n-----END EC PRIVATE KEY-----";
    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----";

    #[test]
    fn private_keys_are_removed_from_texts() {
        let text = format!("a {KEY} b {CERTIFICATE} c {}", KEY.replace('\n', "\\n"));
        assert_eq!(redacted_text(&text), format!("a {REDACTED} b {CERTIFICATE} c {REDACTED}"));
        assert_eq!(redacted_text("x -----BEGIN PRIVATE KEY-----\nMHcCAQEE"), format!("x {REDACTED}"));
        let encoded = STANDARD.encode(KEY);
        let shifted = STANDARD.encode(format!("a\n{KEY}"));
        assert_eq!(redacted_text(&format!("{shifted} path/{encoded}")), format!("{REDACTED} {REDACTED}"));
        assert_eq!(redacted_text(&format!("key: {encoded}\n")), format!("key: {REDACTED}\n"));
        let lines = |text: &str| -> Vec<String> {
            text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned()).collect()
        };
        let long = STANDARD.encode(KEY.replace("MHc", &"a+/b".repeat(60)));
        for (encoded, separator) in [(long.clone(), "\n  "), (long.replace('+', "-").replace('/', "_"), "\\n")] {
            let text = format!("key: {}\nnext: line of words", lines(&encoded).join(separator));
            assert_eq!(redacted_text(&text), format!("key: {REDACTED}\nnext: line of words"));
        }
        let certificate = format!("cert: {}\n", STANDARD.encode(CERTIFICATE));
        assert_eq!(redacted_text(&certificate), certificate);
    }

    #[test]
    fn tokens_and_credentials_are_removed_from_texts() {
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl";
        assert_eq!(redacted_text(&format!("token={token};")), format!("token={REDACTED};"));
        let header = "Authorization: Bearer 0123456789abcdef\", \"basic dXNlcjpwYXNzd29yZA==\"";
        let expected = format!("Authorization: Bearer {REDACTED}\", \"basic {REDACTED}\"");
        assert_eq!(redacted_text(header), expected);
        for kept in ["the basic rule, a bearer token", "eyJhbGciOiJSUzI1NiJ9", "é -----BEGIN", "Bearer "] {
            assert_eq!(redacted_text(kept), kept);
        }
    }

    #[test]
    fn objects_are_redacted_by_the_names_of_fields() {
        let mut pod = json!({
            "kind": "Pod", "metadata": {"annotations": {APPLIED: "s3cret", "other": "a"}},
            "spec": {
                "serviceAccountName": "cart", "imagePullSecrets": [{"name": "pull"}],
                "containers": [
                    {"name": "app", "image": "a", "args": ["--db=s3cret"], "command": ["s3cret"],
                     "env": [{"name": "URL", "value": "s3cret"}, {"name": "REF", "valueFrom": {"x": 1}}]},
                    {"name": "istio-proxy", "image": "p", "args": ["proxy"], "env": [
                        {"name": "PILOT_CERT_PROVIDER", "value": "istiod"}, {"name": "XDS_AUTH_TOKEN", "value": "s3cret"}]},
                ],
                "volumes": [{"secret": {"secretName": "tls"}, "projected": {"serviceAccountToken": {"path": "token"}}}],
            },
        });
        redact_object(&mut pod);
        let text = pod.to_string();
        assert!(!text.contains("s3cret"), "{text}");
        for kept in
            ["\"cart\"", "\"pull\"", "\"tls\"", "\"istiod\"", "\"proxy\"", "\"path\":\"token\"", "\"valueFrom\""]
        {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }

    #[test]
    fn configuration_has_no_credentials() {
        let mut objects = json!([
            {"kind": "Secret", "metadata": {"name": "a"}, "data": {"x": "s3cret"}, "stringData": {"y": "s3cret"}},
            {"kind": "VirtualService", "spec": {"http": [{"headers": {"request": {"set": {"x-api-key": "s3cret"}}}}]}},
            {"kind": "EnvoyFilter", "spec": {"patch": {"value": {"private_key": {"inline_bytes": "s3cret"}}}}},
            {"kind": "RequestAuthentication", "spec": {"jwks": "{\"keys\":[{\"kty\":\"oct\",\"k\":\"s3cret\"}]}"}},
            {"kind": "ConfigMap", "data": {"mesh": "extensionProviders:\n- headers:\n  - name: authorization\n    value: s3cret\n"}},
            {"kind": "Gateway", "spec": {"tls": {"credentialName": "tls-cart", "mode": "SIMPLE"}}},
            {"kind": "RequestAuthentication", "spec": {"jwks": "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"public\"}]}"}},
        ]);
        for object in objects.as_array_mut().into_iter().flatten() {
            redact_object(object);
        }
        let text = objects.to_string();
        assert!(!text.contains("s3cret"), "{text}");
        assert!(text.contains("tls-cart") && text.contains("public") && text.contains("SIMPLE"), "{text}");
    }
}
