//! Certificates and keys that proxies are handed over SDS (P17).

use std::fmt;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::Text;

/// Bytes of a certificate or a key, which nobody is shown.
#[derive(Clone, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Redacted(pub Bytes);

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Serialize for Redacted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// A certificate with its key, as they were given: PEM, if all is well.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct CertificateKeyPair {
    /// The certificate and what leads to a root.
    pub chain: Redacted,
    /// Its key.
    pub key: Redacted,
    /// What says that it is not revoked.
    pub ocsp_staple: Option<Redacted>,
    /// Both are PEM.
    pub readable: bool,
}

/// Roots, as they were given: PEM, if all is well.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct RootCertificates {
    /// The roots.
    pub certificates: Redacted,
    /// What is revoked.
    pub revoked: Option<Redacted>,
}

/// A Kubernetes Secret, as far as a proxy can use it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Secret {
    /// To show.
    pub certificate: Option<CertificateKeyPair>,
    /// To verify others by.
    pub roots: Option<RootCertificates>,
    /// To pull images with: text of a Docker configuration.
    pub docker_config: Option<Redacted>,
}

/// Ending of the name of a credential's roots.
pub const ROOTS_SUFFIX: &str = "-cacert";

/// Where a credential is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum CredentialKind {
    /// In a Secret of the proxy's own cluster and namespace.
    Secret,
    /// In a Secret of the own cluster that a Gateway refers to.
    GatewaySecret,
    /// In a ConfigMap of the own cluster.
    ConfigMap,
}

/// What the name of an SDS resource says.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct CredentialName {
    /// Where it is kept.
    pub kind: CredentialKind,
    /// Namespace of the object; `None` is the proxy's own.
    pub namespace: Option<Text>,
    /// Name of the object, with the suffix if there is one.
    pub name: Text,
}

impl CredentialName {
    /// What the name of an SDS resource says; nothing if no object is meant.
    #[must_use]
    pub fn parse(resource: &str) -> Option<Self> {
        let (scheme, path) = resource.split_once("://")?;
        let kind = match scheme {
            "kubernetes" => CredentialKind::Secret,
            "kubernetes-gateway" => CredentialKind::GatewaySecret,
            "configmap" => CredentialKind::ConfigMap,
            _ => return None,
        };
        let (namespace, name) = match path.split_once('/') {
            // What follows a second slash means nothing.
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

    /// Whether only roots are meant, which are no secret.
    #[must_use]
    pub fn is_roots(&self) -> bool {
        self.kind == CredentialKind::ConfigMap || self.name.ends_with(ROOTS_SUFFIX)
    }
}

/// Who may or may not read the Secrets of its namespace, in its cluster.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SecretReader {
    /// The cluster that is to be asked.
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
    fn names_say_where_a_credential_is() {
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
    fn nothing_of_a_secret_is_shown() {
        let bytes = |text: &'static str| Redacted(Bytes::from_static(text.as_bytes()));
        let secret = Secret {
            certificate: Some(CertificateKeyPair {
                chain: bytes("PUBLIC"),
                key: bytes("PRIVATE"),
                ocsp_staple: Some(bytes("STAPLE")),
                readable: true,
            }),
            roots: Some(RootCertificates { certificates: bytes("ROOTS"), revoked: Some(bytes("REVOKED")) }),
            docker_config: Some(bytes("DOCKER")),
        };
        let shown = format!("{secret:?} {secret:#?}");
        for hidden in ["PUBLIC", "PRIVATE", "STAPLE", "ROOTS", "REVOKED", "DOCKER", "80, 82"] {
            assert!(!shown.contains(hidden), "{shown}");
        }
    }
}
