//! Certificates and keys that proxies get over SDS (P17).

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Text;

/// Bytes of a certificate or a key. `Debug` and `Serialize` do not show them, unless they are a [fingerprint](Self::fingerprint).
#[derive(Clone, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Redacted(pub Bytes);

/// Length of a fingerprint in bytes.
pub const FINGERPRINT_BYTES: usize = 16;
/// What surrounds the hexadecimal digits of a fingerprint.
const FINGERPRINT_FRAME: (&[u8], &[u8]) = (b"[redacted ", b"]");

impl Redacted {
    /// A text that stands for bytes in a recording: equal for equal bytes. `hash` is keyed, so that short bytes
    /// cannot be found by trial.
    #[must_use]
    pub fn fingerprint(hash: [u8; FINGERPRINT_BYTES]) -> Self {
        use fmt::Write as _;
        let mut digits = String::with_capacity(2 * FINGERPRINT_BYTES);
        // Writing to a String does not fail.
        for byte in hash {
            let _ = write!(digits, "{byte:02x}");
        }
        Self([FINGERPRINT_FRAME.0, digits.as_bytes(), FINGERPRINT_FRAME.1].concat().into())
    }

    /// The text, if the bytes have the form of a fingerprint.
    fn as_fingerprint(&self) -> Option<&str> {
        let digits = self.0.strip_prefix(FINGERPRINT_FRAME.0)?.strip_suffix(FINGERPRINT_FRAME.1)?;
        let is_hex = digits.len() == 2 * FINGERPRINT_BYTES && digits.iter().all(u8::is_ascii_hexdigit);
        is_hex.then(|| std::str::from_utf8(&self.0).ok())?
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_fingerprint().unwrap_or("[redacted]"))
    }
}

impl Serialize for Redacted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// Of a recording, the bytes are not known: they are the text that is shown instead.
impl<'de> Deserialize<'de> for Redacted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(text.into()))
    }
}

/// A certificate with its key, as configured: PEM if they are valid.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct CertificateKeyPair {
    /// The certificate and its intermediates.
    pub chain: Redacted,
    /// Its key.
    pub key: Redacted,
    /// OCSP staple.
    pub ocsp_staple: Option<Redacted>,
    /// Why Envoy cannot use them; empty if it can.
    pub problem: Text,
}

/// Root certificates, as configured: PEM if they are valid.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RootCertificates {
    /// The roots.
    pub certificates: Redacted,
    /// Certificate revocation list.
    pub revoked: Option<Redacted>,
}

/// The parts of a Kubernetes Secret that a proxy can use.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Secret {
    /// A certificate to present.
    pub certificate: Option<CertificateKeyPair>,
    /// Root certificates to verify peers.
    pub roots: Option<RootCertificates>,
    /// Credentials to pull images: the text of a Docker configuration.
    pub docker_config: Option<Redacted>,
    /// Without a certificate: the names of its data, at most three, and how many more there are.
    pub keys: Text,
}

impl RootCertificates {
    /// With `replace` applied to all bytes.
    #[must_use]
    pub fn with_bytes(&self, replace: &dyn Fn(&Redacted) -> Redacted) -> Self {
        Self { certificates: replace(&self.certificates), revoked: self.revoked.as_ref().map(replace) }
    }
}

impl Secret {
    /// With `replace` applied to all bytes.
    #[must_use]
    pub fn with_bytes(&self, replace: &dyn Fn(&Redacted) -> Redacted) -> Self {
        Self {
            certificate: self.certificate.as_ref().map(|pair| CertificateKeyPair {
                chain: replace(&pair.chain),
                key: replace(&pair.key),
                ocsp_staple: pair.ocsp_staple.as_ref().map(replace),
                problem: pair.problem.clone(),
            }),
            roots: self.roots.as_ref().map(|roots| roots.with_bytes(replace)),
            docker_config: self.docker_config.as_ref().map(replace),
            keys: self.keys.clone(),
        }
    }
}

/// Suffix of the name of a credential that contains root certificates.
pub const ROOTS_SUFFIX: &str = "-cacert";
/// Prefix of the credential that is the certificate of the workload.
pub const BUILTIN_CREDENTIAL: &str = "builtin://";
/// Prefix of a credential that never exists, so that connections fail.
pub const INVALID_CREDENTIAL: &str = "invalid://";

/// The kind of object that contains a credential.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum CredentialKind {
    /// A Secret in the cluster and namespace of the proxy.
    Secret,
    /// A Secret in the cluster of the proxy that a Gateway refers to.
    GatewaySecret,
    /// A ConfigMap in the cluster of the proxy.
    ConfigMap,
}

impl CredentialKind {
    const ALL: [Self; 3] = [Self::Secret, Self::GatewaySecret, Self::ConfigMap];

    /// The prefix of the names of SDS resources that refer to such an object.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Secret => "kubernetes://",
            Self::GatewaySecret => "kubernetes-gateway://",
            Self::ConfigMap => "configmap://",
        }
    }
}

/// The object that the name of an SDS resource refers to.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct CredentialName {
    /// Kind of the object.
    pub kind: CredentialKind,
    /// Namespace of the object; `None` is that of the proxy.
    pub namespace: Option<Text>,
    /// Name of the object, with [`ROOTS_SUFFIX`] if it has it.
    pub name: Text,
}

impl CredentialName {
    /// Parses the name of an SDS resource. `None` if it does not refer to an object.
    #[must_use]
    pub fn parse(resource: &str) -> Option<Self> {
        let stripped = |kind: CredentialKind| Some((kind, resource.strip_prefix(kind.prefix())?));
        let (kind, path) = CredentialKind::ALL.into_iter().find_map(stripped)?;
        let (namespace, name) = match path.split_once('/') {
            // The text after a second slash is ignored.
            Some((namespace, rest)) => (Some(namespace), rest.split('/').next().unwrap_or_default()),
            None => (None, path),
        };
        let valid = match (kind, namespace) {
            (CredentialKind::Secret, None) => !name.is_empty(),
            (_, Some(namespace)) => !namespace.is_empty() && !name.is_empty(),
            (_, None) => false,
        };
        valid.then(|| Self { kind, namespace: namespace.map(Text::from), name: name.into() })
    }

    /// Whether it refers to root certificates only, which are not secret.
    #[must_use]
    pub fn is_roots(&self) -> bool {
        self.kind == CredentialKind::ConfigMap || self.name.ends_with(ROOTS_SUFFIX)
    }
}

/// A service account whose permission to read the Secrets of its namespace is reviewed.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SecretReader {
    /// The cluster whose API server does the review.
    pub cluster: Text,
    /// Namespace of the service account.
    pub namespace: Text,
    /// Its name.
    pub service_account: Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names_refer_to_objects() {
        let check = |resource: &str, kind, namespace: Option<&str>, name: &str| {
            let expect = CredentialName { kind, namespace: namespace.map(Text::from), name: name.into() };
            assert_eq!(CredentialName::parse(resource), Some(expect), "{resource}");
        };
        check("kubernetes://cert", CredentialKind::Secret, None, "cert");
        check("kubernetes://ns/cert-cacert", CredentialKind::Secret, Some("ns"), "cert-cacert");
        check("kubernetes-gateway://ns/cert", CredentialKind::GatewaySecret, Some("ns"), "cert");
        check("configmap://ns/roots", CredentialKind::ConfigMap, Some("ns"), "roots");
        for nothing in [
            "cert",
            "default",
            "invalid://",
            "builtin://",
            "vault://ns/cert",
            "kubernetes://",
            "kubernetes:///cert",
            "kubernetes://ns/",
            "configmap://roots",
            "kubernetes-gateway://cert",
            "kubernetes-gateway:///cert",
        ] {
            assert_eq!(CredentialName::parse(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn debug_output_of_secrets_is_redacted() {
        let bytes = |text: &'static str| Redacted(Bytes::from_static(text.as_bytes()));
        let secret = Secret {
            certificate: Some(CertificateKeyPair {
                chain: bytes("PUBLIC"),
                key: bytes("PRIVATE"),
                ocsp_staple: Some(bytes("STAPLE")),
                problem: Text::default(),
            }),
            roots: Some(RootCertificates { certificates: bytes("ROOTS"), revoked: Some(bytes("REVOKED")) }),
            docker_config: Some(bytes("DOCKER")),
            keys: Text::default(),
        };
        let shown = format!("{secret:?} {secret:#?}");
        for hidden in ["PUBLIC", "PRIVATE", "STAPLE", "ROOTS", "REVOKED", "DOCKER", "80, 82"] {
            assert!(!shown.contains(hidden), "{shown}");
        }
    }
}
