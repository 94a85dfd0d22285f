//! The servers of a router: those of all Gateways that select it, merged by port (N22).

mod merge;
pub(crate) mod reach;
pub(crate) mod routers;
pub(crate) mod udp_policies;

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_model::{GatewayServer, Text};

pub(crate) use merge::{MergeOptions, SelectingGateway, merge_gateways};

/// A port of a Service of the router, and the target port of its pods.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PortTarget {
    /// Port of the Service.
    pub(crate) port: u16,
    /// Port of the pods.
    pub(crate) target: u16,
    /// It is a UDP port.
    pub(crate) udp: bool,
}

/// A server of a Gateway on a port of the router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct BoundServer {
    /// The Gateway, as `namespace/name`.
    pub(crate) gateway: Text,
    /// The server as declared; its port is the Service's.
    pub(crate) server: GatewayServer,
    /// Route table of HTTP and of terminated HTTPS; empty for other protocols.
    pub(crate) route_name: Text,
}

/// The servers of one port and address of a router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct GatewayPort {
    /// Port the router listens on.
    pub(crate) port: u32,
    /// Protocol of the first server, as declared.
    pub(crate) protocol: Text,
    /// Address to listen on, empty for any.
    pub(crate) bind: Text,
    /// Route table of plain HTTP; empty for other protocols.
    pub(crate) route_name: Text,
    /// Servers in order of precedence.
    pub(crate) servers: Vec<BoundServer>,
    /// Those that are also served over HTTP/3.
    pub(crate) http3: Vec<BoundServer>,
    /// It is a port for datagrams, of a listener of the Gateway API with protocol UDP.
    pub(crate) udp: bool,
}

/// A route table of a router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct GatewayTable {
    /// Its name: `http.PORT[.BIND]` or `https.PORT.PORT_NAME.GATEWAY.NAMESPACE[.BIND]`.
    pub(crate) name: Text,
    /// Servers whose hosts it routes.
    pub(crate) servers: Vec<BoundServer>,
    /// Responses advertise HTTP/3 (`alt-svc`).
    pub(crate) http3: bool,
}

/// The merged Gateways of a router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct MergedGateway {
    /// Namespace of the router.
    pub(crate) namespace: Text,
    /// Ports in order of precedence.
    pub(crate) ports: Vec<GatewayPort>,
    /// Route tables by name.
    pub(crate) tables: Vec<GatewayTable>,
    /// Secrets of other kinds than the router's own that its servers refer to, including servers that are omitted.
    pub(crate) references: BTreeSet<SecretReference>,
}

/// A Gateway's reference to a Secret.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SecretReference {
    /// Namespace of the Gateway.
    pub(crate) gateway_namespace: Text,
    /// The SDS resource it refers to: `kubernetes-gateway://NAMESPACE/NAME`.
    pub(crate) resource: Text,
    /// It also refers to the root certificates of the Secret.
    pub(crate) with_roots: bool,
}

impl MergedGateway {
    /// Whether a server of TLS mode AUTO_PASSTHROUGH selects clusters by SNI.
    #[must_use]
    pub(crate) fn has_auto_passthrough(&self) -> bool {
        let mut servers = self.ports.iter().flat_map(|port| &port.servers);
        servers.any(|bound| {
            let tls = bound.server.tls.as_ref();
            tls.is_some_and(|tls| tls.mode == sluice_model::ServerTlsMode::AutoPassthrough)
        })
    }

    /// Gateways with a server here, as `namespace/name`.
    #[must_use]
    pub(crate) fn gateways(&self) -> std::collections::BTreeSet<Text> {
        self.ports.iter().flat_map(|port| &port.servers).map(|bound| bound.gateway.clone()).collect()
    }
}
