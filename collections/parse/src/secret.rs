//! Secrets and ConfigMaps with certificates (P17), and image pull Secrets (T05).
//!
//! Findings never quote the content of a Secret.

use serde_json::Value;
use sluice_model::{CertificateKeyPair, Object, ROOTS_SUFFIX, Redacted, RootCertificates, Secret};

use crate::encoding::decode_base64_lines;
use crate::{Findings, Item};

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

/// Parses a Secret with a certificate and key, with root certificates, or for image pulls. Others are ignored.
pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let kind = item.object.get("type").and_then(Value::as_str).unwrap_or_default();
    if OTHER_TYPES.contains(&kind) {
        return None;
    }
    let data = Data { item, encoded: true, findings };
    data.check_encoding();
    let certificate = CERTIFICATES.iter().find_map(|(chain, key, staple)| {
        let (chain_bytes, key_bytes) = (data.filled(chain)?, data.filled(key)?);
        let chain_is_pem = data.check_pem(chain, &chain_bytes, "CERTIFICATE");
        let readable = data.check_pem(key, &key_bytes, "PRIVATE KEY") && chain_is_pem;
        let ocsp_staple = staple.and_then(|staple| data.get(staple)).map(redacted);
        Some(CertificateKeyPair { chain: redacted(chain_bytes), key: redacted(key_bytes), ocsp_staple, readable })
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
    // By its name, this Secret has the roots of another one, even if it contains none.
    let counts =
        certificate.is_some() || roots.is_some() || docker_config.is_some() || item.key.name.ends_with(ROOTS_SUFFIX);
    counts.then_some(Object::Secret(Secret { certificate, roots, docker_config }))
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

    /// Reports a value that Envoy will reject. It is served nevertheless: the proxy sends a NACK and keeps its old certificate.
    fn check_pem(&self, name: &str, bytes: &[u8], label: &str) -> bool {
        let is_pem = is_pem(bytes, label);
        if !is_pem {
            self.findings
                .refuse(&format!("data.{name}"), format!("expected a PEM block of a {}", label.to_lowercase()));
        }
        is_pem
    }
}

fn redacted(bytes: Vec<u8>) -> Redacted {
    Redacted(bytes.into())
}

/// Whether the first block is PEM, with a label that ends in `label` and with DER content.
fn is_pem(bytes: &[u8], label: &str) -> bool {
    const DER_SEQUENCE: u8 = 0x30;
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Some((_, block)) = text.split_once("-----BEGIN ") else { return false };
    let Some((begins, block)) = block.split_once("-----") else { return false };
    let Some((body, _)) = block.split_once(&format!("-----END {begins}-----")) else { return false };
    // Keys in the traditional format may have headers, followed by an empty line.
    let body = body.rsplit("\n\n").next().unwrap_or(body);
    let encrypted = block.contains("ENCRYPTED");
    begins.ends_with(label)
        && decode_base64_lines(body).is_some_and(|der| encrypted || der.first() == Some(&DER_SEQUENCE))
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
        assert_eq!(secret, Secret { docker_config: Some(redacted("{\"auths\":{}}")), ..Secret::default() });
        for kind in ["kubernetes.io/dockercfg", "Opaque"] {
            let parsed = parse(kind, "pull", config.clone(), Value::Null);
            assert_eq!((found(&parsed), &parsed.object), (vec![], &None), "{kind}: agents cannot read it");
        }
        for wrong in [json!({}), json!({".dockerconfigjson": "/w=="}), json!({".dockerconfigjson": "hush!"})] {
            let parsed = parse("kubernetes.io/dockerconfigjson", "pull", wrong, Value::Null);
            let expect = vec![("data[.dockerconfigjson]", Severity::Error)];
            assert_eq!((found(&parsed), &parsed.object), (expect, &None));
        }
    }

    #[test]
    fn unrelated_secrets_are_ignored() {
        for (kind, name, plain, kept) in [
            ("Opaque", "password", json!({"password": "x", "key": "y"}), false),
            ("kubernetes.io/service-account-token", "token", json!({"ca.crt": CERTIFICATE}), false),
            ("helm.sh/release.v1", "release", json!({"cert": CERTIFICATE, "key": KEY}), false),
            ("Opaque", "roots-cacert", json!({"password": "x"}), true),
        ] {
            let parsed = parse(kind, name, Value::Null, plain);
            assert_eq!((parsed.object.is_some(), found(&parsed).len()), (kept, 0), "{name}");
        }
    }

    #[test]
    fn findings_do_not_quote_secrets() {
        let half = parse("Opaque", "half", Value::Null, json!({"cert": CERTIFICATE}));
        assert_eq!((found(&half), &half.object), (vec![("data.key", Severity::Error)], &None));
        let empty = parse("kubernetes.io/tls", "empty", json!({}), json!({"tls.crt": "", "tls.key": KEY}));
        assert_eq!((found(&empty), &empty.object), (vec![("data.tls.crt", Severity::Error)], &None));
        let garbled = parse("Opaque", "garbled", json!({"cacert": "hush!"}), Value::Null);
        assert_eq!((found(&garbled), &garbled.object), (vec![("data.cacert", Severity::Error)], &None));

        let text = parse("Opaque", "text", Value::Null, json!({"cert": "hush", "key": KEY.replace("MAMC", "hush")}));
        let both = vec![("data.cert", Severity::Refused), ("data.key", Severity::Refused)];
        assert_eq!(found(&text), both);
        let Some(Object::Secret(kept)) = &text.object else { panic!("{text:?}") };
        assert!(
            kept.certificate.as_ref().is_some_and(|kept| !kept.readable),
            "the Secret is served, and Envoy rejects it"
        );
        for parsed in [half, empty, garbled, text] {
            let shown = format!("{parsed:?} {}", serde_json::to_string(&parsed).expect("JSON"));
            assert!(!shown.contains("hush") && !shown.contains("MAMC"), "{shown}");
        }
    }
}
