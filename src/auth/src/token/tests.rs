use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData, SigningKey};
use serde_json::{Value, json};
use sluice_model::Identity;
use sluice_telemetry::unix_seconds;

use super::*;

struct Issuer {
    key: KeyPair,
    head: Value,
    jwk: Value,
}

impl Issuer {
    fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": URL_SAFE_NO_PAD.encode(key.der_bytes())});
        Self { key, head: json!({"alg": "EdDSA", "kid": "one"}), jwk }
    }

    fn sign(&self, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&self.head), part(claims));
        let signature = self.key.sign(text.as_bytes()).expect("a signature");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Verifies with the keys of this issuer for cluster `here`, or for callers that name none.
    fn tokens(&self, directory: &tempfile::TempDir) -> SignedTokens {
        let file = directory.path().join("keys.json");
        std::fs::write(&file, json!({"keys": [self.jwk]}).to_string()).expect("write keys");
        let keys = ["", "here"].map(|cluster| (cluster.to_owned(), FileKeys::new(&file)));
        SignedTokens::of_clusters(
            keys.into(),
            "https://issuer",
            &["istio-ca".to_owned()],
            TrustDomain::new("td".into()),
        )
    }
}

fn good() -> Value {
    json!({
        "iss": "https://issuer", "sub": "system:serviceaccount:shop:cart", "aud": ["other", "istio-ca"],
        "exp": unix_seconds() + 600, "nbf": unix_seconds() - 5,
    })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = good();
    claims[name] = value;
    claims
}

async fn ask(tokens: &SignedTokens, headers: &[(&'static str, &str)]) -> Verdict {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_str(value).expect("a header"));
    }
    tokens.authenticate(&Call { headers: &map, peer: None, certificates: &[] }).await
}

#[tokio::test]
async fn valid_token_identifies_its_service_account() {
    let directory = tempfile::tempdir().expect("a directory");
    let issuer = Issuer::new();
    let tokens = issuer.tokens(&directory);
    let token = format!("Bearer {}", issuer.sign(&good()));
    let cart = Verdict::Identified(vec![Identity::new("td", "shop", "cart")]);
    assert_eq!(ask(&tokens, &[("authorization", &token)]).await, cart);
    assert_eq!(ask(&tokens, &[("authorization", &token), ("clusterid", "here")]).await, cart);
    let one = format!("Bearer {}", issuer.sign(&with("aud", json!("istio-ca"))));
    assert_eq!(ask(&tokens, &[("authorization", &one)]).await, cart);
    assert_eq!(ask(&tokens, &[]).await, Verdict::NoCredentials);
    assert_eq!(ask(&tokens, &[("authorization", "Basic eDp5")]).await, Verdict::NoCredentials);
}

#[tokio::test]
async fn invalid_tokens_are_rejected_and_never_quoted() {
    let directory = tempfile::tempdir().expect("a directory");
    let issuer = Issuer::new();
    let tokens = issuer.tokens(&directory);
    let no_key = Issuer::new();
    let mut none = Issuer::new();
    none.head = json!({"alg": "none"});
    let unsigned = none.sign(&good());
    let unsigned = unsigned.rsplit_once('.').expect("parts").0.to_owned() + ".";
    let cases = [
        (issuer.sign(&with("exp", json!(unix_seconds() - 1))), "the token has expired"),
        (issuer.sign(&with("exp", Value::Null)), "the token has expired"),
        (issuer.sign(&with("nbf", json!(unix_seconds() + 600))), "the token is not valid yet"),
        (issuer.sign(&with("aud", json!(["kubernetes"]))), "the token does not have the audience istio-ca"),
        (issuer.sign(&with("aud", json!([]))), "the token does not have the audience istio-ca"),
        (issuer.sign(&with("iss", json!("https://other"))), "the token has another issuer than the configured one"),
        (issuer.sign(&with("sub", json!("alice"))), "the token is not that of a service account"),
        (issuer.sign(&with("sub", json!("system:serviceaccount:a:b:c"))), "the token is not that of a service account"),
        (issuer.sign(&with("sub", json!("system:serviceaccount:a:b/c"))), "the token is not that of a service account"),
        (no_key.sign(&good()), "no key of the issuer verifies the signature of the token"),
        (unsigned, "no key of the issuer verifies the signature of the token"),
        ("a.b".to_owned(), "the token is malformed"),
        ("a.b.c.d".to_owned(), "the token is malformed"),
        ("x".repeat(20_000), "the token is malformed"),
    ];
    for (token, reason) in cases {
        let verdict = ask(&tokens, &[("authorization", &format!("Bearer {token}"))]).await;
        assert_eq!(verdict, Verdict::Rejected(reason.to_owned()));
    }
    let token = format!("Bearer {}", issuer.sign(&good()));
    let there = ask(&tokens, &[("authorization", &token), ("clusterid", "there")]).await;
    assert!(matches!(there, Verdict::Rejected(reason) if reason.contains("\"there\"")));
}

#[tokio::test]
async fn a_key_is_used_with_its_own_algorithm_only() {
    // A key on P-256 whose signature is of the fixed form, which rcgen does not write: the test needs its rejection only.
    let directory = tempfile::tempdir().expect("a directory");
    let mut issuer = Issuer::new();
    let token = issuer.sign(&good());
    issuer.jwk["alg"] = json!("RS256");
    let tokens = issuer.tokens(&directory);
    let refused = Verdict::Rejected(TokenError::Signature.to_string());
    assert_eq!(ask(&tokens, &[("authorization", &format!("Bearer {token}"))]).await, refused);
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let point = other.der_bytes();
    let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    issuer.jwk = json!({"kty": "EC", "crv": "P-256", "kid": "one", "x": part(&point[1..33]), "y": part(&point[33..])});
    let tokens = issuer.tokens(&directory);
    assert_eq!(ask(&tokens, &[("authorization", &format!("Bearer {token}"))]).await, refused);
}

#[tokio::test]
async fn keys_change_with_their_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let old = Issuer::new();
    let tokens = old.tokens(&directory);
    let mut new = Issuer::new();
    new.jwk["kid"] = json!("another");
    new.head["kid"] = json!("another");
    let token = format!("Bearer {}", new.sign(&good()));
    assert!(matches!(ask(&tokens, &[("authorization", &token)]).await, Verdict::Rejected(_)));
    let _ = new.tokens(&directory);
    assert!(matches!(ask(&tokens, &[("authorization", &token)]).await, Verdict::Identified(_)));
    std::fs::remove_file(directory.path().join("keys.json")).expect("remove");
    assert!(matches!(ask(&tokens, &[("authorization", &token)]).await, Verdict::Rejected(_)));
}
