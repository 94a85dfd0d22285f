use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData, SigningKey,
};
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

    fn tokens(&self, directory: &tempfile::TempDir) -> SignedTokens {
        tokens(directory, &json!({"keys": [self.jwk]}))
    }
}

/// Verifies with a key set for cluster `here`, or for callers that name none.
fn tokens(directory: &tempfile::TempDir, set: &Value) -> SignedTokens {
    let file = directory.path().join("keys.json");
    std::fs::write(&file, set.to_string()).expect("write keys");
    let keys = ["", "here"]
        .map(|name| (name.to_owned(), ClusterKeys { cluster: Text::from("here"), keys: FileKeys::new(&file) }));
    SignedTokens::of_clusters(keys.into(), "https://issuer", &["istio-ca".to_owned()], TrustDomain::new("td".into()))
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

async fn authenticate(tokens: &SignedTokens, headers: &[(&'static str, &str)]) -> Verdict {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_str(value).expect("a header"));
    }
    tokens.authenticate(&Call { headers: &map, peer: None, certificates: &[] }).await
}

#[tokio::test]
async fn valid_token_identifies_its_service_account_and_proves_the_cluster_of_the_keys() {
    let directory = tempfile::tempdir().expect("a directory");
    let issuer = Issuer::new();
    let tokens = issuer.tokens(&directory);
    let token = format!("Bearer {}", issuer.sign(&good()));
    let cart = Verdict::Account(Identity::new("td", "shop", "cart"), "here".into());
    assert_eq!(authenticate(&tokens, &[("authorization", &token)]).await, cart);
    assert_eq!(authenticate(&tokens, &[("authorization", &token), ("clusterid", "here")]).await, cart);
    let one = format!("Bearer {}", issuer.sign(&with("aud", json!("istio-ca"))));
    assert_eq!(authenticate(&tokens, &[("authorization", &one)]).await, cart);
    assert_eq!(authenticate(&tokens, &[]).await, Verdict::NoCredentials);
    let keys = FileKeys::new(&directory.path().join("keys.json"));
    let of_issuer =
        SignedTokens::of_issuer(keys, "https://issuer", &["istio-ca".to_owned()], TrustDomain::new("td".into()));
    let cart = Verdict::Identified(vec![Identity::new("td", "shop", "cart")]);
    assert_eq!(
        authenticate(&of_issuer, &[("authorization", &token), ("clusterid", "here")]).await,
        cart,
        "an issuer proves no cluster"
    );
    assert_eq!(authenticate(&tokens, &[("authorization", "Basic eDp5")]).await, Verdict::NoCredentials);
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
        let verdict = authenticate(&tokens, &[("authorization", &format!("Bearer {token}"))]).await;
        assert_eq!(verdict, Verdict::Rejected(reason.to_owned()));
    }
    let token = format!("Bearer {}", issuer.sign(&good()));
    let there = authenticate(&tokens, &[("authorization", &token), ("clusterid", "there")]).await;
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
    assert_eq!(authenticate(&tokens, &[("authorization", &format!("Bearer {token}"))]).await, refused);
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let point = other.der_bytes();
    let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    issuer.jwk = json!({"kty": "EC", "crv": "P-256", "kid": "one", "x": part(&point[1..33]), "y": part(&point[33..])});
    let tokens = issuer.tokens(&directory);
    assert_eq!(authenticate(&tokens, &[("authorization", &format!("Bearer {token}"))]).await, refused);
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
    assert!(matches!(authenticate(&tokens, &[("authorization", &token)]).await, Verdict::Rejected(_)));
    let _ = new.tokens(&directory);
    assert!(matches!(authenticate(&tokens, &[("authorization", &token)]).await, Verdict::Account(..)));
    std::fs::remove_file(directory.path().join("keys.json")).expect("remove");
    assert!(matches!(authenticate(&tokens, &[("authorization", &token)]).await, Verdict::Rejected(_)));
}

#[tokio::test]
async fn unusable_keys_do_not_hide_the_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let issuer = Issuer::new();
    let token = format!("Bearer {}", issuer.sign(&good()));
    let verdict = async |set: Value| authenticate(&tokens(&directory, &set), &[("authorization", &token)]).await;
    let unusable = json!([
        7, "key", {}, {"kty": 7}, {"kty": "unknown"}, {"kty": "oct", "k": "AA"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}, {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "P-256", "x": "AA"}, {"kty": "RSA", "n": "%", "e": "AQAB"}, {"kty": "RSA", "n": "AA"},
    ]);
    // Members that no signature needs are ignored, whatever they hold; so is padding.
    let mut usable = issuer.jwk.clone();
    usable["x5c"] = json!(7);
    usable["key_ops"] = json!("verify");
    usable["x"] = json!(format!("{}=", usable["x"].as_str().expect("text")));
    let mut keys = unusable.as_array().expect("a list").clone();
    keys.push(usable.clone());
    assert!(matches!(verdict(json!({"keys": keys})).await, Verdict::Account(..)));
    let refused = Verdict::Rejected(TokenError::Signature.to_string());
    assert_eq!(verdict(json!({"keys": unusable})).await, refused);
    usable["use"] = json!("enc");
    assert_eq!(verdict(json!({"keys": [usable]})).await, refused, "a key for encryption");
    let Verdict::Rejected(reason) = verdict(json!({"keys": {}})).await else { panic!("it is rejected") };
    assert!(reason.ends_with("keys.json: the keys are not a JSON web key set"), "{reason}");
}

#[tokio::test]
async fn unknown_header_parameters_are_ignored_unless_critical() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut issuer = Issuer::new();
    let head = json!({"alg": "EdDSA", "kid": "one", "ver": 1, "typ": ["JWT"], "jwk": issuer.jwk, "x5c": {}});
    issuer.head = head.clone();
    let tokens = issuer.tokens(&directory);
    let token = format!("Bearer {}", issuer.sign(&good()));
    assert!(matches!(authenticate(&tokens, &[("authorization", &token)]).await, Verdict::Account(..)));
    for (name, value) in [("crit", json!(["ver"])), ("crit", json!([])), ("kid", json!(1)), ("alg", Value::Null)] {
        issuer.head = head.clone();
        issuer.head[name] = value;
        let token = format!("Bearer {}", issuer.sign(&good()));
        let malformed = Verdict::Rejected(TokenError::Malformed.to_string());
        assert_eq!(authenticate(&tokens, &[("authorization", &token)]).await, malformed, "{}", issuer.head);
    }
}

#[tokio::test]
async fn each_algorithm_is_verified_with_keys_of_its_type_only() {
    use Algorithm::{ES256, ES384, PS256, PS384, PS512, RS256, RS384, RS512};
    let directory = tempfile::tempdir().expect("a directory");
    let verdict = async |key: &Value, token: &str| {
        authenticate(&tokens(&directory, &json!({"keys": [key]})), &[("authorization", token)]).await
    };
    let sign = |key: &EncodingKey, algorithm: Algorithm| {
        let token = jsonwebtoken::encode(&Header::new(algorithm), &good(), key);
        format!("Bearer {}", token.expect("a token"))
    };
    let refused = Verdict::Rejected(TokenError::Signature.to_string());
    let pair = |kind| KeyPair::generate_for(kind).expect("a key").serialize_der();
    // The RSA key inside PKCS #8, whose header has this length for 2,048 bits.
    let rsa = EncodingKey::from_rsa_der(&pair(&PKCS_RSA_SHA256)[26..]);
    let p256 = EncodingKey::from_ec_der(&pair(&PKCS_ECDSA_P256_SHA256));
    let p384 = EncodingKey::from_ec_der(&pair(&PKCS_ECDSA_P384_SHA384));
    for (key, algorithm) in [
        (&rsa, RS256),
        (&rsa, RS384),
        (&rsa, RS512),
        (&rsa, PS256),
        (&rsa, PS384),
        (&rsa, PS512),
        (&p256, ES256),
        (&p384, ES384),
    ] {
        let token = sign(key, algorithm);
        let mut jwk = json!(Jwk::from_encoding_key(key, algorithm).expect("a public key"));
        assert!(matches!(verdict(&jwk, &token).await, Verdict::Account(..)), "{algorithm:?}");
        // The key declares another algorithm, of its type or not.
        for declared in ["RS256", "PS256", "HS256", "none", "RSA-OAEP"] {
            jwk["alg"] = json!(declared);
            if declared != format!("{algorithm:?}") {
                assert_eq!(verdict(&jwk, &token).await, refused, "{algorithm:?} {declared}");
            }
        }
        jwk["alg"] = Value::Null;
        assert!(matches!(verdict(&jwk, &token).await, Verdict::Account(..)), "{algorithm:?}");
        // The public key as the secret of HMAC.
        let public = jwk.get("n").or(jwk.get("x")).and_then(Value::as_str).expect("text");
        let secret = EncodingKey::from_secret(public.as_bytes());
        assert_eq!(verdict(&jwk, &sign(&secret, Algorithm::HS256)).await, refused, "{algorithm:?}");
    }
    let symmetric = json!({"kty": "oct", "k": URL_SAFE_NO_PAD.encode("secret"), "alg": "HS256"});
    let token = sign(&EncodingKey::from_secret(b"secret"), Algorithm::HS256);
    assert_eq!(verdict(&symmetric, &token).await, refused, "a symmetric key");
}

/// Why `claims.rs` reads tokens itself. An assertion that fails after an update removes a reason.
#[test]
fn jsonwebtoken_reads_tokens_differently() {
    use jsonwebtoken::errors::ErrorKind;
    let mut issuer = Issuer::new();
    let head = issuer.head.clone();
    let error = |issuer: &Issuer| jsonwebtoken::decode_header(issuer.sign(&good())).expect_err("an error").into_kind();
    issuer.head["ver"] = json!(1);
    assert!(matches!(error(&issuer), ErrorKind::Json(_)), "a number in the header");
    issuer.head = json!({"alg": "none"});
    assert!(matches!(error(&issuer), ErrorKind::Json(_)), "an unknown algorithm");
    issuer.head = head;
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.set_audience(&["istio-ca"]);
    let key = DecodingKey::from_ed_der(issuer.key.der_bytes());
    let expired = issuer.sign(&with("exp", json!(unix_seconds() - 30)));
    assert!(jsonwebtoken::decode::<Claims>(expired, &key, &validation).is_ok(), "clock skew applies to `exp`");
    validation.leeway = 0;
    validation.validate_nbf = true;
    let early = issuer.sign(&with("nbf", json!(unix_seconds() + 30)));
    assert!(jsonwebtoken::decode::<Claims>(early, &key, &validation).is_err(), "none applies to `nbf`");
}
