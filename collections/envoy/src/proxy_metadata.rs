//! Fields of a proxy's metadata that both its clusters and its listeners or endpoints depend on.

use serde::Serialize;
use sluice_model::{Proxy, ProxyType, Text, is_true};

/// Certificate files that a proxy names in its metadata.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct CertificateFiles {
    /// File of the certificate chain.
    pub chain: Text,
    /// File of the private key.
    pub key: Text,
    /// File of the root certificates.
    pub root: Text,
}

impl CertificateFiles {
    /// Reads the files from the metadata fields with this prefix; `None` if none is set.
    pub(crate) fn of(proxy: &Proxy, prefix: &str) -> Option<Self> {
        let text = |what: &str| metadata_text(proxy, &format!("{prefix}_{what}")).unwrap_or_default();
        let files = Self { chain: text("CERT_CHAIN"), key: text("KEY"), root: text("ROOT_CERT") };
        (files != Self::default()).then_some(files)
    }
}

/// Whether an SDS server for credentials listens on a socket of the proxy.
pub(crate) fn has_credential_socket(proxy: &Proxy) -> bool {
    has_socket(proxy, "credential")
}

/// Whether an SDS server for files listens on a socket of the proxy.
pub(crate) fn has_file_credential_socket(proxy: &Proxy) -> bool {
    has_socket(proxy, "file-credential")
}

fn has_socket(proxy: &Proxy, key: &str) -> bool {
    metadata_text(proxy, key).is_some_and(|value| value == "true")
}

/// Host and port of the agent's DNS server; `None` if DNS is not captured.
pub(crate) fn captured_dns(proxy: &Proxy) -> Option<(Text, u16)> {
    proxy.dns_capture.then(|| dns_proxy(metadata_text(proxy, "DNS_PROXY_ADDR").as_deref().unwrap_or_default()))
}

/// Whether a proxy does not send HBONE: its metadata disables that, or it is a gRPC client without an Envoy.
pub(crate) fn sends_no_hbone(proxy: &Proxy) -> bool {
    if proxy.grpc {
        return true;
    }
    has_flag(proxy, "DISABLE_HBONE_SEND")
}

/// Whether a proxy is a sidecar that accepts HBONE (`ENABLE_HBONE`, N25).
#[must_use]
pub fn receives_hbone(proxy: &Proxy) -> bool {
    proxy.proxy_type == ProxyType::Sidecar && !proxy.grpc && has_flag(proxy, "ENABLE_HBONE")
}

fn has_flag(proxy: &Proxy, key: &str) -> bool {
    proxy.metadata.get(key).map(|json| json.trim_matches('"')).is_some_and(is_true)
}

/// Host and port of the agent's DNS server, from `host:port`. Any other text gives the default address.
fn dns_proxy(declared: &str) -> (Text, u16) {
    let (host, port) = declared.rsplit_once(':').unwrap_or(("127.0.0.1", "15053"));
    let host = if host == "localhost" { "127.0.0.1" } else { host.trim_matches(['[', ']']) };
    (host.into(), port.parse().unwrap_or(15053))
}

/// A string of the proxy's metadata, if present and not empty.
fn metadata_text(proxy: &Proxy, key: &str) -> Option<Text> {
    let json = proxy.metadata.get(key)?;
    serde_json::from_str::<String>(json).ok().filter(|text| !text.is_empty()).map(Text::from)
}
