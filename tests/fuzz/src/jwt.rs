//! Mutated tokens and key sets, for the authenticators that read them.
//!
//! An accepted token is signed by a key of the set, has the audience and the issuer, and is valid now. Its caller is the
//! service account in it. Valid tokens are accepted up to their size limit.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384,
    RSA_PSS_SHA256, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sluice_auth::{Authenticator, Call, ClusterKeys, FileKeys, SignedTokens, TrustDomain, Verdict};
use sluice_model::{Identity, Text};

use crate::bytes;
use crate::csr::element;
use crate::memory_bound::within_for_client;
use crate::mutate::mutate;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::Seeds;
use crate::turns;
use crate::violation::{Violation, violation};

/// Longer tokens are rejected unread.
const MAX_TOKEN_BYTES: usize = 16 << 10;
const ISSUER: &str = "https://issuer";
/// The cluster whose keys verify tokens.
const CLUSTER: &str = "own";
const P256: &str = include_str!("keys/p256.key");
const RSA: &str = include_str!("../../../src/ca/src/tests/rsa-pkcs8.key");
/// Key ids that tokens name.
const IDS: [&str; 5] = ["ed", "ec", "rsa", "", "none"];
const ALGORITHMS: [&str; 12] =
    ["EdDSA", "ES256", "RS256", "RS384", "PS256", "ES384", "RS512", "none", "None", "HS256", "", "ES256K"];

/// Keys of an issuer.
pub struct Issuer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
    rsa: RsaKeyPair,
    random: SystemRandom,
}

/// A token, and the identity in it.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub text: String,
    /// The identity in the token, if it is valid; none if it is invalid or mutated.
    pub identity: Option<(String, String)>,
}

/// Keys, and the authenticator that reads tokens.
pub(crate) struct TokenTarget<'s> {
    seeds: &'s Seeds,
    issuer: Issuer,
    runtime: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

/// Tries tokens until the deadline.
///
/// # Errors
/// There are no keys.
pub fn run(run: &Run, seeds: &Seeds) -> Result<FuzzStatistics> {
    let target = TokenTarget::new(seeds)?;
    Ok(turns::run(run, "tokens", |rng| target.run_turn(rng)))
}

impl<'s> TokenTarget<'s> {
    /// # Errors
    /// There are no keys.
    pub(crate) fn new(seeds: &'s Seeds) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(Self { seeds, issuer: Issuer::new()?, runtime, directory: tempfile::tempdir()? })
    }

    /// Tries a random token, often with other keys. Returns whether it was accepted.
    pub(crate) fn run_turn(&self, rng: &mut FuzzRng) -> Result<bool, Violation> {
        let mut set = self.issuer.keys();
        let changes_keys = rng.once_in(4);
        if changes_keys {
            let times = 1 + rng.below(3);
            mutate(&mut set, "", self.seeds, rng, times);
        }
        let mut text = set.to_string();
        if changes_keys && rng.once_in(3) {
            bytes::change_text(&mut text, &[], rng, 3);
        }
        let token = self.issuer.token(self.seeds, rng);
        check(&self.issuer, &token, &self.verdict(text.as_bytes(), &token.text)?, changes_keys)
    }

    /// Tries the bytes as a token, with the keys of the issuer.
    pub(crate) fn run_token(&self, bytes: &[u8]) -> Result<bool, Violation> {
        let token = Token { text: String::from_utf8_lossy(bytes).into_owned(), identity: None };
        let keys = self.issuer.keys().to_string();
        check(&self.issuer, &token, &self.verdict(keys.as_bytes(), &token.text)?, false)
    }

    /// Tries a valid token with the bytes as keys.
    pub(crate) fn run_keys(&self, bytes: &[u8]) -> Result<bool, Violation> {
        let token = self.issuer.valid_token();
        check(&self.issuer, &token, &self.verdict(bytes, &token.text)?, true)
    }

    /// A valid token and the keys of the issuer.
    pub(crate) fn examples(&self) -> (String, String) {
        (self.issuer.valid_token().text, self.issuer.keys().to_string())
    }

    fn verdict(&self, keys: &[u8], token: &str) -> Result<Verdict, Violation> {
        let file = self.directory.path().join("keys.json");
        match std::fs::write(&file, keys) {
            Ok(()) => within_for_client("tokens and keys", keys.len() + token.len(), || {
                self.runtime.block_on(verify(&file, token))
            }),
            Err(_) => Ok(Verdict::NoCredentials),
        }
    }
}

async fn verify(file: &Path, token: &str) -> Verdict {
    let own = ClusterKeys { cluster: Text::from(CLUSTER), keys: FileKeys::new(file) };
    let keys = [(String::new(), own)].into();
    let tokens = SignedTokens::of_clusters(keys, ISSUER, &["istio-ca".to_owned()], TrustDomain::new("td".into()));
    let mut headers = http::HeaderMap::new();
    let Ok(value) = http::HeaderValue::from_bytes(format!("Bearer {token}").as_bytes()) else {
        return Verdict::NoCredentials;
    };
    headers.insert("authorization", value);
    tokens.authenticate(&Call { headers: &headers, peer: None, certificates: &[] }).await
}

fn check(issuer: &Issuer, token: &Token, verdict: &Verdict, changes_keys: bool) -> Result<bool, Violation> {
    let description = || format!("{verdict:?}\n{}", token.text);
    match verdict {
        Verdict::Account(identity, cluster) => {
            let Some(claims) = issuer.signed(&token.text) else {
                return violation("a token without a valid signature is accepted", description());
            };
            let expect = identity_of(&claims).map(|(namespace, name)| Identity::new("td", namespace, name));
            match expect {
                Some(expect) if *identity == expect && cluster.as_str() == CLUSTER => Ok(true),
                _ => violation("an invalid token is accepted, or its identity is wrong", description()),
            }
        }
        Verdict::Pod(..) => violation("a token is accepted as that of a pod", description()),
        Verdict::Identified(_) => violation("a token of a cluster does not prove the cluster", description()),
        Verdict::Rejected(reason) if contains_token(reason, &token.text) => {
            violation("the reason of a rejection contains the token", description())
        }
        _ if token.identity.is_some() && token.text.len() <= MAX_TOKEN_BYTES && !changes_keys => {
            violation("a valid token is rejected", description())
        }
        _ => Ok(false),
    }
}

/// Whether a reason quotes the end of a token. Text of the alphabet of the reasons themselves may be there by chance; the end of a
/// signature always has other characters too.
fn contains_token(reason: &str, token: &str) -> bool {
    let end = token.get(token.len().saturating_sub(20)..).unwrap_or_default();
    let is_of_reasons = end.bytes().all(|byte| byte.is_ascii_lowercase() || b" -:,".contains(&byte));
    token.len() > 40 && !is_of_reasons && reason.contains(end)
}

/// The identity of valid claims, by an independent implementation of the rules.
fn identity_of(claims: &Value) -> Option<(String, String)> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_secs_f64();
    let has_audience = match &claims["aud"] {
        Value::String(one) => one == "istio-ca",
        Value::Array(many) => many.iter().all(Value::is_string) && many.iter().any(|one| one == "istio-ca"),
        _ => false,
    };
    let has_begun = claims["nbf"].is_null() || claims["nbf"].as_f64()? <= now + 61.0;
    let is_valid = has_audience && claims["iss"] == ISSUER && claims["exp"].as_f64()? > now - 1.0 && has_begun;
    let parts: Vec<&str> = claims["sub"].as_str()?.split(':').collect();
    match parts.as_slice() {
        ["system", "serviceaccount", namespace, name] if is_valid => {
            // A name with a slash would change the SPIFFE id.
            let is_name = |name: &str| !name.is_empty() && !name.contains('/');
            (is_name(namespace) && is_name(name)).then(|| ((*namespace).to_owned(), (*name).to_owned()))
        }
        _ => None,
    }
}

impl Issuer {
    /// An issuer with fixed keys.
    ///
    /// # Errors
    /// The keys cannot be read.
    pub fn new() -> Result<Self> {
        let random = SystemRandom::new();
        let der = |pem: &str| {
            let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
            base64::engine::general_purpose::STANDARD.decode(body)
        };
        let ec = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der(P256)?);
        Ok(Self {
            ed: Ed25519KeyPair::from_seed_unchecked(&[9; 32]).ok().context("make a key")?,
            ec: ec.ok().context("read the EC key")?,
            rsa: RsaKeyPair::from_pkcs8(&der(RSA)?).ok().context("read the RSA key")?,
            random,
        })
    }

    /// The public keys.
    #[must_use]
    pub fn keys(&self) -> Value {
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = self.ec.public_key().as_ref();
        let half = |range| part(point.get(range).unwrap_or_default());
        // PKCS #1: a sequence of the modulus and the exponent, each optionally with a leading zero.
        let (_, numbers) = element(self.rsa.public_key().as_ref()).unwrap_or_default();
        let (whole, modulus) = element(numbers).unwrap_or_default();
        let (_, exponent) = element(numbers.get(whole.len()..).unwrap_or_default()).unwrap_or_default();
        let n = part(modulus.strip_prefix(&[0]).unwrap_or(modulus));
        let e = part(exponent);
        json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "use": "sig", "x": part(self.ed.public_key().as_ref())},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "alg": "ES256", "x": half(1..33), "y": half(33..65)},
            {"kty": "RSA", "kid": "rsa", "n": n, "e": e},
        ]})
    }

    /// A valid token, which is always the same.
    fn valid_token(&self) -> Token {
        let claims = json!({
            "iss": ISSUER, "sub": "system:serviceaccount:shop:cart", "aud": ["istio-ca"], "exp": 99_999_999_999u64,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": "EdDSA", "kid": "ed"})), part(&claims));
        let signature = self.sign("ed", "EdDSA", signed.as_bytes());
        Token { text: format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)), identity: identity_of(&claims) }
    }

    /// A token: valid, invalid with a valid signature, or mutated.
    pub fn token(&self, seeds: &Seeds, rng: &mut FuzzRng) -> Token {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or_default();
        let namespace = rng.choose(&["shop", "bank", "istio-system"]).copied().unwrap_or_default();
        let mut claims = json!({
            "iss": ISSUER, "sub": format!("system:serviceaccount:{namespace}:cart"), "aud": ["other", "istio-ca"],
            "exp": now + 600, "nbf": now - 600, "kubernetes.io": {"namespace": namespace},
        });
        if rng.once_in(2) {
            invalidate(&mut claims, now, seeds, rng);
        }
        let (id, algorithm) = *rng
            .choose(&[("ed", "EdDSA"), ("ec", "ES256"), ("rsa", "RS256"), ("rsa", "PS256"), ("rsa", "RS384")])
            .unwrap_or(&("ed", "EdDSA"));
        let mut head = json!({"alg": algorithm, "kid": id, "typ": "JWT"});
        let changes_header = rng.once_in(4);
        if changes_header {
            match rng.below(5) {
                0 => head["alg"] = json!(rng.choose(&ALGORITHMS)),
                1 => head["kid"] = json!(rng.choose(&IDS)),
                2 => head["crit"] = json!(["exp"]),
                3 => {
                    head =
                        json!({"alg": rng.choose(&ALGORITHMS), "kid": rng.choose(&IDS), "jwk": self.keys()["keys"][0]})
                }
                _ => mutate(&mut head, "", seeds, rng, 1),
            }
        }
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&head), part(&claims));
        let signature = self.sign(id, algorithm, signed.as_bytes());
        let mut text = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        let changes = rng.once_in(2);
        if changes {
            self.change(&mut text, rng);
        }
        let identity = if changes_header || changes { None } else { identity_of(&claims) };
        Token { text, identity: identity.filter(|_| claims["exp"].as_i64().is_some_and(|exp| exp > now + 60)) }
    }

    fn change(&self, text: &mut String, rng: &mut FuzzRng) {
        let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
        let [head, claims, signature] = parts.as_slice() else { return };
        match rng.below(7) {
            0 => *text = format!("{head}.{claims}."),
            1 => {
                let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
                *text = format!("{none}.{claims}.");
            }
            2 => {
                // The public key as HMAC secret.
                let hs = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"rsa"}"#);
                let key = hmac::Key::new(hmac::HMAC_SHA256, self.keys()["keys"][2]["n"].to_string().as_bytes());
                let tag = hmac::sign(&key, format!("{hs}.{claims}").as_bytes());
                *text = format!("{hs}.{claims}.{}", URL_SAFE_NO_PAD.encode(tag));
            }
            3 => {
                let other = claims_of(claims).map(|mut claims| {
                    claims["sub"] = json!("system:serviceaccount:bank:vault");
                    claims["exp"] = json!(9_999_999_999u64);
                    URL_SAFE_NO_PAD.encode(claims.to_string())
                });
                *text = format!("{head}.{}.{signature}", other.unwrap_or_default());
            }
            4 => {
                let extra =
                    rng.choose(&[".", "..", ".a", " ", "=", "==", "\t", "\u{fffd}"]).copied().unwrap_or_default();
                text.push_str(extra);
            }
            _ => bytes::change_text(text, &[text.clone().into_bytes()], rng, 3),
        }
    }

    fn sign(&self, id: &str, algorithm: &str, text: &[u8]) -> Vec<u8> {
        match (id, algorithm) {
            ("ed", _) => self.ed.sign(text).as_ref().to_vec(),
            ("ec", _) => self.ec.sign(&self.random, text).map(|it| it.as_ref().to_vec()).unwrap_or_default(),
            (_, algorithm) => {
                let mut signature = vec![0; self.rsa.public_key().modulus_len()];
                let how: &'static dyn aws_lc_rs::signature::RsaEncoding = match algorithm {
                    "PS256" => &RSA_PSS_SHA256,
                    "RS384" => &RSA_PKCS1_SHA384,
                    _ => &RSA_PKCS1_SHA256,
                };
                match self.rsa.sign(how, &self.random, text, &mut signature) {
                    Ok(()) => signature,
                    Err(_) => Vec::new(),
                }
            }
        }
    }

    /// The claims of a token, if one of the keys has signed it: verified by other code than the tested one.
    fn signed(&self, token: &str) -> Option<Value> {
        let (text, signature) = token.trim().rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let verifies = |algorithm: &'static dyn aws_lc_rs::signature::VerificationAlgorithm, key: &[u8]| {
            aws_lc_rs::signature::UnparsedPublicKey::new(algorithm, key).verify(text.as_bytes(), &signature).is_ok()
        };
        let (ed, ec) = (self.ed.public_key(), self.ec.public_key());
        let rsa = self.rsa.public_key().as_ref();
        let good = verifies(&aws_lc_rs::signature::ED25519, ed.as_ref())
            || verifies(&aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED, ec.as_ref())
            || verifies(&aws_lc_rs::signature::RSA_PKCS1_2048_8192_SHA256, rsa)
            || verifies(&aws_lc_rs::signature::RSA_PKCS1_2048_8192_SHA384, rsa)
            || verifies(&aws_lc_rs::signature::RSA_PSS_2048_8192_SHA256, rsa);
        if !good {
            return None;
        }
        claims_of(text.split('.').nth(1)?)
    }
}

fn claims_of(part: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Changes claims. Most results are invalid.
fn invalidate(claims: &mut Value, now: i64, seeds: &Seeds, rng: &mut FuzzRng) {
    let times =
        [json!(now - 700), json!(now + 700), json!(0), json!(-1), json!(1e300), json!(now.to_string()), Value::Null];
    let audiences =
        [json!("istio-ca"), json!("kubernetes"), json!([]), json!(["istio-ca2"]), json!({"istio-ca": 1}), Value::Null];
    let subjects =
        ["system:serviceaccount:bank:vault", "system:serviceaccount::x", "system:serviceaccount:a:b:c", "", "x"];
    let names: BTreeSet<&str> = ["exp", "nbf", "aud", "iss", "sub"].into();
    match rng.below(7) {
        0 => claims["exp"] = rng.choose(&times).cloned().unwrap_or_default(),
        1 => claims["nbf"] = rng.choose(&times).cloned().unwrap_or_default(),
        2 => claims["aud"] = rng.choose(&audiences).cloned().unwrap_or_default(),
        3 => claims["iss"] = json!(rng.choose(&["https://other", "", "https://issuer/"])),
        4 => claims["sub"] = json!(rng.choose(&subjects)),
        5 => {
            if let Some(fields) = claims.as_object_mut() {
                let all: Vec<&str> = names.into_iter().collect();
                fields.remove(*rng.choose(&all).unwrap_or(&"exp"));
            }
        }
        _ => mutate(claims, "", seeds, rng, 1),
    }
}
