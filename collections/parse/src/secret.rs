//! Secrets and ConfigMaps with certificates (P17), and image pull Secrets (T05).
//!
//! Findings never quote the content of a Secret.

mod key_pair;

use std::collections::BTreeSet;

use serde_json::Value;
use sluice_model::{CertificateKeyPair, Object, Redacted, RootCertificates, Secret, Text};

use crate::encoding::decode_base64_lines;
use crate::{Findings, Item};
use key_pair::{PemBlock, is_mismatched};

/// Frequent types of Secrets that a proxy never uses.
const OTHER_TYPES: [&str; 3] =
    ["helm.sh/release.v1", "kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"];

/// Data keys of certificate, private key and OCSP staple: of a generic Secret, then of type `kubernetes.io/tls`.
const CERTIFICATES: [(&str, &str, Option<&str>); 2] =
    [("cert", "key", None), ("tls.crt", "tls.key", Some("tls.ocsp-staple"))];
/// Data keys of root certificates and of their revocation list, in the same order.
const ROOTS: [(&str, &str); 2] = [("cacert", "crl"), ("ca.crt", "ca.crl")];

/// Type and data key of image pull Secrets.
const DOCKER_CONFIG: (&str, &str) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");

/// Parses a Secret with a certificate and key, with root certificates, or for image pulls. Of others, only the names of their data are
/// kept, for the status of a Gateway that refers to one.
pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let kind = item.object.get("type").and_then(Value::as_str).unwrap_or_default();
    if OTHER_TYPES.contains(&kind) {
        return None;
    }
    let data = Data { item, encoded: true, findings };
    data.check_encoding();
    let certificate = CERTIFICATES.iter().find_map(|(chain, key, staple)| {
        let (chain_bytes, key_bytes) = (data.filled(chain)?, data.filled(key)?);
        let problem = data.pair_problem((chain, &chain_bytes), (key, &key_bytes)).into();
        let ocsp_staple = staple.and_then(|staple| data.get(staple)).map(redacted);
        Some(CertificateKeyPair { chain: redacted(chain_bytes), key: redacted(key_bytes), ocsp_staple, problem })
    });
    if certificate.is_none() && !findings.has_errors() {
        for (chain, key, _) in CERTIFICATES {
            if data.has(chain) || (kind == "kubernetes.io/tls" && chain == "tls.crt") {
                let missing = if data.filled(chain).is_none() { chain } else { key };
                findings.error(&format!("data.{missing}"), "the private key of the certificate is required");
            }
        }
    }
    let roots = data.roots();
    let docker_config = if kind == DOCKER_CONFIG.0 { data.docker_config() } else { None };
    let keys = if certificate.is_none() { data.names() } else { Text::default() };
    Some(Object::Secret(Secret { certificate, roots, docker_config, keys }))
}

/// Parses a ConfigMap with root certificates.
pub(crate) fn parse_config_map(item: &Item<'_>, findings: &Findings) -> Option<RootCertificates> {
    Data { item, encoded: false, findings }.roots()
}

/// Reader of the data of a Secret or ConfigMap.
struct Data<'a> {
    item: &'a Item<'a>,
    /// Whether the values of `data` are base64.
    encoded: bool,
    findings: &'a Findings,
}

impl Data<'_> {
    fn field(&self, section: &str, name: &str) -> Option<&str> {
        self.item.object.get(section)?.get(name)?.as_str()
    }

    fn has(&self, name: &str) -> bool {
        ["data", "stringData"].iter().any(|section| self.field(section, name).is_some())
    }

    /// The value of a key. `stringData`, which a Secret from a file may have, has precedence.
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        let plain = |text: &str| text.as_bytes().to_vec();
        if !self.encoded {
            return self.field("data", name).map(plain);
        }
        if let Some(text) = self.field("stringData", name) {
            return Some(plain(text));
        }
        decode_base64_lines(self.field("data", name)?)
    }

    /// Reports values that are not valid base64.
    fn check_encoding(&self) {
        let certificates = CERTIFICATES.iter().flat_map(|(chain, key, staple)| [Some(*chain), Some(*key), *staple]);
        let roots = ROOTS.iter().flat_map(|(roots, revoked)| [Some(*roots), Some(*revoked)]);
        for name in certificates.chain(roots).flatten() {
            if self.has(name) && self.get(name).is_none() {
                self.findings.error(&format!("data.{name}"), "expected base64");
            }
        }
    }

    /// The names of its values: the first three, and how many more there are.
    fn names(&self) -> Text {
        const MAX_NAMES: usize = 3;
        let sections =
            ["data", "stringData"].into_iter().filter_map(|section| self.item.object.get(section)?.as_object());
        let names: BTreeSet<&String> = sections.flat_map(|section| section.keys()).collect();
        let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(|name| name.as_str()).collect();
        match names.len() {
            0..MAX_NAMES => shown.join(", ").into(),
            count => format!("{}, and {} more...", shown.join(", "), count - MAX_NAMES).into(),
        }
    }

    /// Why Envoy cannot use a certificate and its key; empty if it can.
    fn pair_problem(&self, (chain_name, chain): (&str, &[u8]), (key_name, key): (&str, &[u8])) -> &'static str {
        let (chain, key) =
            (self.check_pem(chain_name, chain, "CERTIFICATE"), self.check_pem(key_name, key, "PRIVATE KEY"));
        let Some(chain) = chain else { return "tls: failed to find any PEM data in certificate input" };
        let Some(key) = key else { return "tls: failed to find any PEM data in key input" };
        if is_mismatched(&chain, &key) {
            self.findings.refuse(&format!("data.{key_name}"), "the private key is not that of the certificate");
            return "tls: private key does not match public key";
        }
        ""
    }

    /// The value of a key that is present and not empty.
    fn filled(&self, name: &str) -> Option<Vec<u8>> {
        self.get(name).filter(|bytes| !bytes.is_empty())
    }

    fn roots(&self) -> Option<RootCertificates> {
        ROOTS.iter().find_map(|(roots, revoked)| {
            let certificates = self.filled(roots)?;
            self.check_pem(roots, &certificates, "CERTIFICATE");
            Some(RootCertificates { certificates: redacted(certificates), revoked: self.get(revoked).map(redacted) })
        })
    }

    /// The Docker configuration of an image pull Secret, which must be UTF-8 text.
    fn docker_config(&self) -> Option<Redacted> {
        let (_, name) = DOCKER_CONFIG;
        let config = self.filled(name).filter(|bytes| std::str::from_utf8(bytes).is_ok());
        if config.is_none() {
            self.findings.error(&format!("data[{name}]"), "expected a Docker configuration in UTF-8");
        }
        config.map(redacted)
    }

    /// The first block of a value. Reports a value that Envoy will reject. It is served nevertheless: the proxy sends a NACK and keeps
    /// its old certificate.
    fn check_pem<'b>(&self, name: &str, bytes: &'b [u8], label: &str) -> Option<PemBlock<'b>> {
        let block = PemBlock::first(bytes).filter(|block| block.is_der_of(label));
        if block.is_none() {
            self.findings
                .refuse(&format!("data.{name}"), format!("expected a PEM block of a {}", label.to_lowercase()));
        }
        block
    }
}

fn redacted(bytes: Vec<u8>) -> Redacted {
    Redacted(bytes.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_model::{ParsedObject, Severity};

    use super::*;
    use crate::parse_object;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nMAMCAQI=\n-----END EC PRIVATE KEY-----\n";

    fn parse(kind: &str, name: &str, data: Value, plain: Value) -> ParsedObject {
        let metadata = json!({"name": name, "namespace": "edge"});
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data, "stringData": plain,
        });
        parse_object(&"c".into(), "cluster.local", &object).expect("a Secret")
    }

    fn found(parsed: &ParsedObject) -> Vec<(&str, Severity)> {
        parsed.rejects.iter().map(|reject| (reject.field_path.as_str(), reject.severity)).collect()
    }

    fn secret(parsed: ParsedObject) -> Secret {
        assert_eq!(found(&parsed), []);
        match parsed.object {
            Some(Object::Secret(secret)) => secret,
            other => panic!("{other:?}"),
        }
    }

    fn redacted(text: &str) -> Redacted {
        super::redacted(text.as_bytes().to_vec())
    }

    #[test]
    fn tls_secret_has_certificate_roots_and_revocation_list() {
        let plain = json!({"tls.crt": CERTIFICATE, "tls.key": KEY, "ca.crt": CERTIFICATE, "ca.crl": "CRL"});
        let secret = secret(parse("kubernetes.io/tls", "all", json!({"tls.ocsp-staple": "AAEC\nAw=="}), plain));
        let certificate = secret.certificate.expect("a certificate");
        assert_eq!((certificate.chain, certificate.key), (redacted(CERTIFICATE), redacted(KEY)));
        assert_eq!(certificate.ocsp_staple, Some(super::redacted(vec![0, 1, 2, 3])));
        let roots = RootCertificates { certificates: redacted(CERTIFICATE), revoked: Some(redacted("CRL")) };
        assert_eq!(secret.roots, Some(roots));
    }

    #[test]
    fn data_keys_of_generic_secrets_have_precedence() {
        let other = "-----BEGIN CERTIFICATE-----\nMAMCAQM=\n-----END CERTIFICATE-----\n";
        let plain = json!({"cert": CERTIFICATE, "key": KEY, "cacert": CERTIFICATE, "tls.crt": other, "ca.crt": other});
        let secret = secret(parse("Opaque", "generic", Value::Null, plain));
        assert_eq!(secret.certificate.expect("a certificate").chain, redacted(CERTIFICATE));
        assert_eq!(secret.roots, Some(RootCertificates { certificates: redacted(CERTIFICATE), revoked: None }));
    }

    #[test]
    fn docker_configuration_is_kept_unchanged() {
        let config = json!({".dockerconfigjson": "eyJhdXRocyI6e319"});
        let secret = secret(parse("kubernetes.io/dockerconfigjson", "pull", config.clone(), Value::Null));
        let keys = ".dockerconfigjson".into();
        assert_eq!(secret, Secret { docker_config: Some(redacted("{\"auths\":{}}")), keys, ..Secret::default() });
        let has_config = |parsed: &ParsedObject| match &parsed.object {
            Some(Object::Secret(secret)) => secret.docker_config.is_some(),
            other => panic!("{other:?}"),
        };
        for kind in ["kubernetes.io/dockercfg", "Opaque"] {
            let parsed = parse(kind, "pull", config.clone(), Value::Null);
            assert_eq!((found(&parsed), has_config(&parsed)), (vec![], false), "{kind}: agents cannot read it");
        }
        for wrong in [json!({}), json!({".dockerconfigjson": "/w=="}), json!({".dockerconfigjson": "hush!"})] {
            let parsed = parse("kubernetes.io/dockerconfigjson", "pull", wrong, Value::Null);
            let expect = vec![("data[.dockerconfigjson]", Severity::Error)];
            assert_eq!((found(&parsed), has_config(&parsed)), (expect, false));
        }
    }

    #[test]
    fn secrets_of_types_that_proxies_never_use_are_ignored() {
        for (kind, name, plain, kept) in [
            ("Opaque", "password", json!({"password": "x", "key": "y"}), true),
            ("kubernetes.io/service-account-token", "token", json!({"ca.crt": CERTIFICATE}), false),
            ("helm.sh/release.v1", "release", json!({"cert": CERTIFICATE, "key": KEY}), false),
            ("Opaque", "roots-cacert", json!({"password": "x"}), true),
        ] {
            let parsed = parse(kind, name, Value::Null, plain);
            assert_eq!((parsed.object.is_some(), found(&parsed).len()), (kept, 0), "{name}");
        }
    }

    #[test]
    fn key_of_another_certificate_is_reported() {
        let pem = |name: &str| {
            let text = include_str!("../../../tests/statuses/own/03-listener-problems/input.yaml");
            let documents = crate::yaml::parse_documents(text, &crate::yaml::Limits::default()).into_iter();
            let secrets = documents.map(|document| document.expect("YAML").value);
            let secret = |object: &Value| object["kind"] == "Secret" && object["metadata"]["name"] == name;
            secrets.into_iter().find(secret).expect("a Secret")["stringData"].take()
        };
        let problem = |data: Value| {
            let parsed = parse("kubernetes.io/tls", "s", Value::Null, data);
            let paths: Vec<String> = found(&parsed).iter().map(|(path, _)| (*path).to_owned()).collect();
            let Some(Object::Secret(found)) = parsed.object else { panic!("{parsed:?}") };
            (found.certificate.expect("a certificate").problem, paths)
        };
        assert_eq!(problem(pem("good")), (Text::default(), Vec::new()));
        let mismatched = ("tls: private key does not match public key".into(), vec!["data.tls.key".to_owned()]);
        assert_eq!(problem(pem("mismatch")), mismatched);
    }

    #[test]
    fn names_of_data_are_shortened() {
        let names = |data: Value| secret(parse("Opaque", "s", Value::Null, data)).keys;
        assert_eq!(*names(json!({"b": "", "a": ""})), *"a, b");
        assert_eq!(*names(json!({"d": "", "c": "", "b": "", "a": ""})), *"a, b, c, and 1 more...");
    }

    #[test]
    fn findings_do_not_quote_secrets() {
        let without = |keys: &str| Some(Object::Secret(Secret { keys: keys.into(), ..Secret::default() }));
        let half = parse("Opaque", "half", Value::Null, json!({"cert": CERTIFICATE}));
        assert_eq!((found(&half), &half.object), (vec![("data.key", Severity::Error)], &without("cert")));
        let empty = parse("kubernetes.io/tls", "empty", json!({}), json!({"tls.crt": "", "tls.key": KEY}));
        assert_eq!(
            (found(&empty), &empty.object),
            (vec![("data.tls.crt", Severity::Error)], &without("tls.crt, tls.key"))
        );
        let garbled = parse("Opaque", "garbled", json!({"cacert": "hush!"}), Value::Null);
        assert_eq!((found(&garbled), &garbled.object), (vec![("data.cacert", Severity::Error)], &without("cacert")));

        let text = parse("Opaque", "text", Value::Null, json!({"cert": "hush", "key": KEY.replace("MAMC", "hush")}));
        let both = vec![("data.cert", Severity::Refused), ("data.key", Severity::Refused)];
        assert_eq!(found(&text), both);
        let Some(Object::Secret(kept)) = &text.object else { panic!("{text:?}") };
        assert!(
            kept.certificate.as_ref().is_some_and(|kept| kept.problem.contains("certificate input")),
            "the Secret is served, and Envoy rejects it"
        );
        for parsed in [half, empty, garbled, text] {
            let shown = format!("{parsed:?} {}", serde_json::to_string(&parsed).expect("JSON"));
            assert!(!shown.contains("hush") && !shown.contains("MAMC"), "{shown}");
        }
    }
}
