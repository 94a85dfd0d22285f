//! Istio Gateways: what routers listen for (N22).

use serde::Serialize;

use crate::{Host, Labels, Protocol, Text, Timestamp};

/// An Istio Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Gateway {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Labels a router must have; empty selects every router.
    pub selector: Labels,
    /// Servers in declared order.
    pub servers: Vec<GatewayServer>,
    /// Whose it is, if it stands for a listener of the Gateway API. Then its selector does not count.
    pub owner: Option<GatewayOwner>,
}

/// Who serves a listener of the Gateway API.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GatewayOwner {
    /// Hosts of the Services of its routers.
    pub services: Vec<Host>,
    /// Namespace of those Services: that of the Gateway of the Gateway API.
    pub namespace: Text,
    /// ServiceAccount of its routers; empty if that is not known.
    pub service_account: Text,
    /// The listener is of a ListenerSet.
    pub is_set: bool,
}

/// A server of a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GatewayServer {
    /// Its name, may be empty.
    pub name: Text,
    /// Port as the router's Service has it.
    pub port: u32,
    /// Name of the port.
    pub port_name: Text,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The protocol as written.
    pub protocol_text: Text,
    /// Address to listen on, empty for any.
    pub bind: Text,
    /// Hosts as `host` or `namespace/host`: `./` is resolved and `*/` stripped.
    pub hosts: Vec<Text>,
    /// TLS, if any.
    pub tls: Option<ServerTls>,
}

impl GatewayServer {
    /// TLS that is not terminated here.
    #[must_use]
    pub fn is_passthrough(&self) -> bool {
        self.tls
            .as_ref()
            .is_some_and(|tls| matches!(tls.mode, ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough))
    }

    /// HTTP, or HTTPS that is terminated here.
    #[must_use]
    pub fn is_http(&self) -> bool {
        self.protocol.is_http() || (self.protocol == Protocol::Https && !self.is_passthrough())
    }

    /// HTTPS that is terminated here.
    #[must_use]
    pub fn terminates_https(&self) -> bool {
        self.tls.is_some() && self.protocol == Protocol::Https && !self.is_passthrough()
    }

    /// Has TLS settings that are more than a redirect to HTTPS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some() && !self.protocol.is_http()
    }

    /// Plain requests are sent to HTTPS.
    #[must_use]
    pub fn redirects_to_https(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.https_redirect)
    }

    /// Its hosts without namespaces, sorted, none twice: the server names its filter chain matches.
    #[must_use]
    pub fn sni_hosts(&self) -> Vec<Text> {
        let hosts = self.hosts.iter().map(|host| match host.split_once('/') {
            Some((_, name)) => Text::from(name),
            None => host.clone(),
        });
        hosts.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }
}

/// How a server treats TLS.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ServerTlsMode {
    /// Routed by server name to what VirtualServices say.
    #[default]
    Passthrough,
    /// Terminated.
    Simple,
    /// Terminated, the client shows a certificate.
    Mutual,
    /// Routed by server name to the cluster it names.
    AutoPassthrough,
    /// Terminated, both sides with certificates of the mesh.
    IstioMutual,
    /// Terminated, the client may show a certificate.
    OptionalMutual,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
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
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TlsCertificateFiles {
    /// Certificate.
    pub server_certificate: Text,
    /// Key.
    pub private_key: Text,
    /// Roots.
    pub ca_certificates: Text,
}

/// TLS of a server.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ServerTls {
    /// How TLS is treated.
    pub mode: ServerTlsMode,
    /// Plain requests are sent to HTTPS.
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
    /// More certificates by file.
    pub tls_certificates: Vec<TlsCertificateFiles>,
    /// Names a client's certificate may have.
    pub subject_alt_names: Vec<Text>,
    /// Hashes of keys a client's certificate may have.
    pub verify_certificate_spki: Vec<Text>,
    /// Hashes a client's certificate may have.
    pub verify_certificate_hash: Vec<Text>,
    /// Lowest version.
    pub min_protocol_version: TlsProtocol,
    /// Highest version.
    pub max_protocol_version: TlsProtocol,
    /// Cipher suites as written; empty is the default.
    pub cipher_suites: Vec<Text>,
    /// Curves as written; empty is the default.
    pub ecdh_curves: Vec<Text>,
    /// Client certificates are not verified; unset is the default.
    pub insecure_skip_verify: Option<bool>,
}

/// Suites Envoy knows; others would make it refuse the listener.
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

/// Whether Envoy takes a suite; what begins with an operator of its list syntax is its own business.
#[must_use]
pub fn is_cipher_suite(suite: &str) -> bool {
    let expression = suite.chars().next().is_none_or(|first| !first.is_alphanumeric());
    expression || suite == "ALL" || CIPHER_SUITES.contains(&suite)
}
