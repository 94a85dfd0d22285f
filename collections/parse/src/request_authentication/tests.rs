use serde_json::json;
use sluice_model::{JwtKeys, Object, ParsedObject, ProviderService, RequestAuthentication};

use super::jwks;
use super::uri::parse_jwks_uri;
use crate::parse_object;

fn parse(rule: serde_json::Value) -> (RequestAuthentication, Vec<String>) {
    let object = json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "RequestAuthentication",
        "metadata": {"namespace": "orchard", "name": "p"},
        "spec": {"jwtRules": [rule]},
    });
    let parsed = parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("known kind");
    let ParsedObject { object: Some(Object::RequestAuthentication(policy)), rejects, .. } = parsed else {
        panic!("it counts all the same")
    };
    (*policy, rejects.into_iter().map(|reject| reject.field_path.to_string()).collect())
}

#[test]
fn all_fields_are_read() {
    let (policy, rejects) = parse(json!({
        "issuer": "https://i", "audiences": ["a"], "jwksUri": "https://i/keys",
        "fromHeaders": [{"name": "x", "prefix": "T "}], "fromParams": ["p"], "fromCookies": ["c"],
        "outputPayloadToHeader": "x-p", "outputClaimToHeaders": [{"header": "x-s", "claim": "sub"}],
        "forwardOriginalToken": true, "timeout": "3s", "spaceDelimitedClaims": ["scp"],
    }));
    assert_eq!(rejects, Vec::<String>::new());
    let rule = &policy.rules[0];
    assert_eq!(rule.from_headers, [("x".into(), "T ".into())]);
    assert_eq!(rule.output_claim_to_headers, [("x-s".into(), "sub".into())]);
    assert_eq!(rule.remote_keys().map(|key| key.uri), Some("https://i/keys".into()));
    assert_eq!(rule.timeout.map(|timeout| timeout.as_secs()), Some(3));
}

#[test]
fn invalid_parts_are_reported_and_left_out() {
    for (rule, path) in [
        (json!({"issuer": "i", "jwks": "not json"}), "jwks"),
        (json!({"issuer": "i", "jwks": "[]"}), "jwks"),
        (json!({"issuer": "i", "jwks": "{\"keys\":[{\"kty\":\"RSA\",\"e\":\"AQAB\"}]}"}), "jwks"),
        (json!({"issuer": "i", "jwks": "{\"keys\":[]}", "jwksUri": "https://i/k"}), "jwksUri"),
        (json!({"issuer": "i", "jwksUri": "ftp://i/k"}), "jwksUri"),
        (json!({"jwks": "{\"keys\":[]}"}), "issuer"),
        (json!({"issuer": "i", "audiences": [""]}), "audiences[0]"),
        (json!({"issuer": "i", "timeout": "0.0001s"}), "timeout"),
        (json!({"issuer": "i", "fromHeaders": [{"name": ""}]}), "fromHeaders[0].name"),
        (json!({"issuer": "i", "fromCookies": ["a", ""]}), "fromCookies[1]"),
        (
            json!({"issuer": "i", "outputClaimToHeaders": [{"header": "x y!", "claim": "c"}]}),
            "outputClaimToHeaders[0].header",
        ),
    ] {
        let (policy, mut rejects) = parse(rule.clone());
        // A warning about the effect may follow.
        rejects.retain(|path| path != "spec.jwtRules[0]");
        assert_eq!(rejects, [format!("spec.jwtRules[0].{path}")], "{rule}");
        assert_eq!(policy.rules.len(), 1);
        assert!(policy.rules[0].from_headers.is_empty() && policy.rules[0].output_claim_to_headers.is_empty());
    }
    let (policy, _) = parse(json!({"issuer": "i", "jwks": "not json"}));
    assert_eq!(policy.rules[0].keys, JwtKeys::Unusable);
}

#[test]
fn unreadable_rule_accepts_no_token() {
    let good = json!({
        "issuer": "i", "jwks": "{\"keys\":[]}", "audiences": ["a"], "fromHeaders": [{"name": "x", "prefix": "T "}],
        "fromParams": ["p"], "fromCookies": ["c"], "outputPayloadToHeader": "x-p",
        "outputClaimToHeaders": [{"header": "x-s", "claim": "sub"}], "spaceDelimitedClaims": ["scp"],
    });
    let (policy, _) = parse(good.clone());
    assert!(policy.rules[0].keys != JwtKeys::Unusable && !policy.rules[0].location_unreadable);
    for (name, location) in [
        ("issuer", false),
        ("jwks", false),
        ("jwksUri", false),
        ("audiences", false),
        ("spaceDelimitedClaims", false),
        ("fromHeaders", true),
        ("fromParams", true),
        ("fromCookies", true),
        ("outputPayloadToHeader", true),
        ("outputClaimToHeaders", true),
    ] {
        for bad in [json!(5), json!([5]), json!({"a": "b"})] {
            let mut rule = good.clone();
            rule[name] = bad.clone();
            let (policy, _) = parse(rule);
            let rule = &policy.rules[0];
            assert_eq!((&rule.keys, rule.location_unreadable), (&JwtKeys::Unusable, location), "{name}: {bad}");
        }
    }
    let (policy, _) = parse(json!({"issuer": "i", "jwks": "{\"keys\":[]}", "audiences": [""]}));
    assert_eq!(policy.rules[0].keys, JwtKeys::Unusable, "no audience is left, which would accept any");
    for rule in [json!(5), json!("x")] {
        let (policy, _) = parse(rule);
        assert!(policy.rules[0].location_unreadable && policy.rules[0].keys == JwtKeys::Unusable);
    }
}

#[test]
fn key_set_errors_name_the_key_and_the_field() {
    let check = |text: &str, reason: &str| {
        assert_eq!(jwks::check(text).map_err(|error| error.to_string()), Err(reason.to_owned()), "{text}");
    };
    check("x", "invalid JSON: expected value at line 1 column 1");
    check("[]", "expected a JSON object");
    check("{}", "`keys` is required");
    check("{\"keys\": 1}", "`keys` must be a list");
    check("{\"keys\": [1]}", "key 0 is not an object");
    check("{\"keys\": [{\"kty\": \"RSA\", \"n\": \"x\"}]}", "key 0: `e` is required");
    check("{\"keys\": [{}]}", "key 0: `kty` is required");
    check("{\"kty\": \"x\"}", "unknown key type `x`");
    assert_eq!(jwks::check("{\"kty\": \"oct\", \"k\": \"x\"}").expect("a key"), [0]);
}

#[test]
fn secret_keys_are_reported() {
    let (policy, rejects) = parse(json!({"issuer": "i", "jwks": "{\"keys\":[{\"kty\":\"oct\",\"k\":\"c2VjcmV0\"}]}"}));
    assert_eq!(rejects, ["spec.jwtRules[0].jwks"]);
    assert!(matches!(policy.rules[0].keys, JwtKeys::Inline(_)));
}

#[test]
fn plaintext_keys_of_an_issuer_with_tls_are_a_warning() {
    for (issuer, uri, is_warned) in [
        ("https://i", "http://i/keys", true),
        ("HTTPS://i", "HTTP://i/keys", true),
        ("https://i", "https://i/keys", false),
        ("https://i", "HTTPS://i/keys", false),
        ("http://i", "http://i/keys", false),
        ("i", "http://i/keys", false),
    ] {
        let (policy, rejects) = parse(json!({"issuer": issuer, "jwksUri": uri}));
        let expected: &[&str] = if is_warned { &["spec.jwtRules[0].jwksUri"] } else { &[] };
        assert_eq!(rejects, expected, "{issuer} {uri}");
        assert_eq!(policy.rules[0].remote_keys().map(|key| key.uri), Some(uri.into()), "the URL is used");
    }
    let (_, rejects) = parse(json!({"issuer": "https://i", "jwksUri": "http://i/keys", "jwks": "{\"keys\":[]}"}));
    assert_eq!(rejects, ["spec.jwtRules[0].jwksUri"], "the URL is not used: no warning in addition");
}

#[test]
fn jwks_uris_have_a_host_and_a_port() {
    let check = |uri: &str, host: &str, port| {
        assert_eq!(parse_jwks_uri(uri), Ok(ProviderService { service: host.into(), port }));
    };
    check("http://keys.club:8080/jwks.json", "keys.club", 8080);
    check("https://idp.example.org/keys", "idp.example.org", 443);
    check("https://[fd00::1]?x", "fd00::1", 443);
    check("HTTP://u:p@h", "h", 80);
    for (bad, reason) in [
        ("", "`` is not an http or https URL"),
        ("idp", "`idp` is not an http or https URL"),
        ("ftp://h", "`ftp://h` is not an http or https URL"),
        ("http://h:port", "`port` is not a port number"),
        ("http://[::1", "`[::1` lacks a closing bracket"),
        ("https://[::1]h/k", "`[::1]h` has text after the closing bracket that is not a port"),
        ("https://[::1].idp.test:443/k", "`[::1].idp.test:443` has text after the closing bracket that is not a port"),
        ("http://a b", "`http://a b` contains characters that a URL must not contain"),
    ] {
        assert_eq!(parse_jwks_uri(bad).map_err(|error| error.to_string()), Err(reason.to_owned()), "{bad}");
    }
}

#[test]
fn status_is_read_of_a_policy_with_targets_or_conditions() {
    let generation = |spec: serde_json::Value, status: serde_json::Value| {
        let object = json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "RequestAuthentication",
            "metadata": {"namespace": "orchard", "name": "p", "generation": 2},
            "spec": spec,
            "status": status,
        });
        let parsed = parse_object(&"Kubernetes".into(), "cluster.local", &object).expect("known kind");
        match parsed.object {
            Some(Object::RequestAuthentication(policy)) => policy.status.generation,
            other => panic!("{other:?}"),
        }
    };
    let for_service = json!({"targetRefs": [{"group": "", "kind": "Service", "name": "tea"}]});
    let with_condition = json!({"conditions": [{"type": "Other", "status": "True"}]});
    assert_eq!(generation(for_service, json!({})), 2);
    assert_eq!(generation(json!({}), with_condition), 2, "a condition may have to be removed");
    assert_eq!(generation(json!({}), json!({"observedGeneration": "2"})), 0, "nothing depends on it");
}
