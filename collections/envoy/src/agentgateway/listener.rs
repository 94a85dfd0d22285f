//! Binds, which open a port, and the listeners of a port.

use bytes::Bytes;
use sluice_model::{CertificateKeyPair, ObjectKey, RootCertificates};
use sluice_proto::agentgateway::bind::{Protocol as BindProtocol, TunnelProtocol};
use sluice_proto::agentgateway::resource::Kind;
use sluice_proto::agentgateway::tls_config::MtlsMode;
use sluice_proto::agentgateway::{Bind, Listener, ListenerName, Protocol, ResourceName, TlsConfig};

use super::AgentgatewayResource;

/// What stands for a certificate that cannot be used. The proxy then rejects TLS connections.
const UNUSABLE: Bytes = Bytes::from_static(b"invalid");

/// The port that a Gateway opens. `protocol` is that of its first listener, as declared.
#[must_use]
pub fn build_bind(gateway: &ObjectKey, port: u16, protocol: &str, is_waypoint: bool) -> AgentgatewayResource {
    let (protocol, tunnel) = match protocol {
        "HTTPS" | "TLS" => (BindProtocol::Tls, TunnelProtocol::Direct),
        "TCP" => (BindProtocol::Tcp, TunnelProtocol::Direct),
        "HBONE" if is_waypoint => (BindProtocol::Http, TunnelProtocol::HboneWaypoint),
        "HBONE" => (BindProtocol::Http, TunnelProtocol::HboneGateway),
        _ => (BindProtocol::Http, TunnelProtocol::Direct),
    };
    AgentgatewayResource::new(Kind::Bind(Bind {
        key: bind_key(gateway, port),
        port: port.into(),
        protocol: protocol.into(),
        tunnel_protocol: tunnel.into(),
    }))
}

fn bind_key(gateway: &ObjectKey, port: u16) -> String {
    format!("{port}/{}/{}", gateway.namespace, gateway.name)
}

/// Inputs of a listener.
#[derive(Clone, Debug)]
pub struct AgentgatewayListenerInputs<'a> {
    /// The Gateway that it is served by.
    pub gateway: &'a ObjectKey,
    /// The ListenerSet that declares it; `None` if that is the Gateway.
    pub set: Option<&'a ObjectKey>,
    /// Its name.
    pub section: &'a str,
    /// Its host as declared, empty for any.
    pub hostname: &'a str,
    /// Its port.
    pub port: u16,
    /// Its protocol as declared.
    pub protocol: &'a str,
    /// How it terminates TLS; `None` if it does not.
    pub tls: Option<ListenerTlsInputs<'a>>,
}

/// Inputs of the TLS settings of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerTlsInputs<'a> {
    /// The certificate; `None` if the proxy may not have it.
    pub certificate: Option<&'a CertificateKeyPair>,
    /// The roots that the certificates of clients are verified by.
    pub roots: Option<&'a RootCertificates>,
    /// Clients without a valid certificate are accepted too.
    pub allows_insecure: bool,
}

/// The key of a listener, to which routes refer: `NAMESPACE/NAME.SECTION` of the object that declares it.
#[must_use]
pub fn listener_key(gateway: &ObjectKey, set: Option<&ObjectKey>, section: &str) -> String {
    let ObjectKey { namespace, name, .. } = set.unwrap_or(gateway);
    // A ListenerSet may have the name of its Gateway.
    let suffix = if set == Some(gateway) { "/set" } else { "" };
    format!("{namespace}/{name}.{section}{suffix}")
}

/// A listener; `None` if its protocol is not served.
#[must_use]
pub fn build_listener(inputs: &AgentgatewayListenerInputs<'_>) -> Option<AgentgatewayResource> {
    let protocol = match inputs.protocol {
        "HTTP" => Protocol::Http,
        "HTTPS" => Protocol::Https,
        "TLS" => Protocol::Tls,
        "TCP" => Protocol::Tcp,
        "HBONE" => Protocol::Hbone,
        _ => return None,
    };
    let gateway = inputs.gateway;
    let name = ListenerName {
        gateway_name: gateway.name.to_string(),
        gateway_namespace: gateway.namespace.to_string(),
        listener_name: inputs.section.to_owned(),
        listener_set: inputs
            .set
            .map(|set| ResourceName { name: set.name.to_string(), namespace: set.namespace.to_string() }),
    };
    Some(AgentgatewayResource::new(Kind::Listener(Listener {
        key: listener_key(gateway, inputs.set, inputs.section),
        bind_key: bind_key(gateway, inputs.port),
        name: Some(name),
        hostname: inputs.hostname.to_owned(),
        protocol: protocol.into(),
        tls: inputs.tls.filter(|_| matches!(protocol, Protocol::Https | Protocol::Tls)).map(|tls| tls_config(&tls)),
    })))
}

fn tls_config(tls: &ListenerTlsInputs<'_>) -> TlsConfig {
    let (certificate, key) = match tls.certificate {
        Some(CertificateKeyPair { chain, key, .. }) => (chain.0.clone(), key.0.clone()),
        None => (UNUSABLE, UNUSABLE),
    };
    let mode =
        if tls.roots.is_some() && tls.allows_insecure { MtlsMode::AllowInsecureFallback } else { MtlsMode::Strict };
    TlsConfig {
        cert: certificate.to_vec(),
        private_key: key.to_vec(),
        root: tls.roots.map(|roots| roots.certificates.0.to_vec()),
        mtls_mode: mode.into(),
    }
}
