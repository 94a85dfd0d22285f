//! Istio Gateways: the servers of gateway proxies (N22).

use serde::{Deserialize, Serialize};

use crate::{Host, Labels, Protocol, Text, Timestamp};

/// An Istio Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Gateway {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Selector of gateway proxies; empty selects all.
    pub selector: Labels,
    /// Servers in declared order.
    pub servers: Vec<GatewayServer>,
    /// Owner, if it is derived from a listener of the Gateway API. The selector is ignored then.
    pub owner: Option<GatewayOwner>,
}

/// The proxies that serve a listener of the Gateway API.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GatewayOwner {
    /// Hosts of the Services of the gateway proxies.
    pub services: Vec<Host>,
    /// Namespace of those Services: that of the Gateway of the Gateway API.
    pub namespace: Text,
    /// ServiceAccount of the gateway proxies; empty if it is not known.
    pub service_account: Text,
    /// Whether the listener is from a ListenerSet.
    pub is_set: bool,
}

/// A server of a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GatewayServer {
    /// Its name; may be empty.
    pub name: Text,
    /// Port of the Service of the gateway proxies.
    pub port: u32,
    /// Name of the port.
    pub port_name: Text,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The protocol as declared.
    pub protocol_text: Text,
    /// Bind address, empty for any.
    pub bind: Text,
    /// Hosts as `host` or `namespace/host`: `./` is resolved and `*/` stripped.
    pub hosts: Vec<Text>,
    /// TLS, if any.
    pub tls: Option<ServerTls>,
}

impl GatewayServer {
    /// Whether TLS is passed through.
    #[must_use]
    pub fn is_passthrough(&self) -> bool {
        self.tls
            .as_ref()
            .is_some_and(|tls| matches!(tls.mode, ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough))
    }

    /// Whether it is HTTP, or HTTPS that it terminates.
    #[must_use]
    pub fn is_http(&self) -> bool {
        self.protocol.is_http() || (self.protocol == Protocol::Https && !self.is_passthrough())
    }

    /// Whether it terminates HTTPS.
    #[must_use]
    pub fn terminates_https(&self) -> bool {
        self.tls.is_some() && self.protocol == Protocol::Https && !self.is_passthrough()
    }

    /// Whether it has TLS settings other than a redirect to HTTPS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some() && !self.protocol.is_http()
    }

    /// Whether plain-text requests are redirected to HTTPS.
    #[must_use]
    pub fn redirects_to_https(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.https_redirect)
    }

    /// Its hosts without namespaces, sorted and unique: the server names that its filter chain matches.
    #[must_use]
    pub fn sni_hosts(&self) -> Vec<Text> {
        let hosts = self.hosts.iter().map(|host| match host.split_once('/') {
            Some((_, name)) => Text::from(name),
            None => host.clone(),
        });
        hosts.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }
}

/// TLS mode of a server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ServerTlsMode {
    /// Passthrough: routed by server name, as VirtualServices configure.
    #[default]
    Passthrough,
    /// Terminated.
    Simple,
    /// Terminated; the client must present a certificate.
    Mutual,
    /// Auto passthrough: routed to the cluster that the server name contains.
    AutoPassthrough,
    /// Terminated, with mesh certificates on both sides.
    IstioMutual,
    /// Terminated; the client may present a certificate.
    OptionalMutual,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each variant is the version of that name")]
pub enum TlsProtocol {
    #[default]
    Auto,
    V1_0,
    V1_1,
    V1_2,
    V1_3,
}

/// Files of one server certificate.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TlsCertificateFiles {
    /// Certificate.
    pub server_certificate: Text,
    /// Key.
    pub private_key: Text,
    /// Roots.
    pub ca_certificates: Text,
}

/// TLS of a server.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServerTls {
    /// Mode.
    pub mode: ServerTlsMode,
    /// Whether plain-text requests are redirected to HTTPS.
    pub https_redirect: bool,
    /// File of the certificate.
    pub server_certificate: Text,
    /// File of its key.
    pub private_key: Text,
    /// File of the roots for client certificates.
    pub ca_certificates: Text,
    /// File of revoked certificates.
    pub ca_crl: Text,
    /// Secret with the certificate.
    pub credential_name: Text,
    /// Secrets with certificates of several key types.
    pub credential_names: Vec<Text>,
    /// Secret or ConfigMap with the roots.
    pub ca_cert_credential_name: Text,
    /// Additional certificates in files.
    pub tls_certificates: Vec<TlsCertificateFiles>,
    /// Accepted names in client certificates.
    pub subject_alt_names: Vec<Text>,
    /// Accepted public key hashes of client certificates.
    pub verify_certificate_spki: Vec<Text>,
    /// Accepted hashes of client certificates.
    pub verify_certificate_hash: Vec<Text>,
    /// Lowest version.
    pub min_protocol_version: TlsProtocol,
    /// Highest version.
    pub max_protocol_version: TlsProtocol,
    /// Cipher suites as declared; empty is the default.
    pub cipher_suites: Vec<Text>,
    /// Curves as declared; empty is the default.
    pub ecdh_curves: Vec<Text>,
    /// Whether client certificates are not verified; unset is the default.
    pub insecure_skip_verify: Option<bool>,
}

/// Cipher suites that Envoy supports; it rejects listeners with others.
const CIPHER_SUITES: [&str; 15] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA",
    "AES256-SHA",
    "DES-CBC3-SHA",
];

/// Whether Envoy accepts a cipher suite. Entries that start with an operator of its list syntax are not checked.
#[must_use]
pub fn is_cipher_suite(suite: &str) -> bool {
    let expression = suite.chars().next().is_none_or(|first| !first.is_alphanumeric());
    expression || suite == "ALL" || CIPHER_SUITES.contains(&suite)
}
