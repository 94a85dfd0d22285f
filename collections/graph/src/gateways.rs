//! What a router listens for: the servers of all Gateways that select it, merged by port (N22).

pub mod connections;
mod merge;
pub(crate) mod reach;
pub mod routers;
pub mod routes;

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_model::{GatewayServer, Text};

pub use merge::{MergeOptions, SelectingGateway, merge_gateways};

/// How a port of a Service of the router maps to a port of its pods.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct PortTarget {
    /// Port of the Service.
    pub port: u16,
    /// Port of the pods.
    pub target: u16,
    /// It takes datagrams.
    pub udp: bool,
}

/// A server of a Gateway on a port of the router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct BoundServer {
    /// The Gateway, as `namespace/name`.
    pub gateway: Text,
    /// The server as declared; its port is the Service's.
    pub server: GatewayServer,
    /// Route table of HTTP and of HTTPS that is terminated; empty for the rest.
    pub route_name: Text,
}

/// What the router listens for on one port and address.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GatewayPort {
    /// Port the router listens on.
    pub port: u32,
    /// Protocol of the first server, as written.
    pub protocol: Text,
    /// Address to listen on, empty for any.
    pub bind: Text,
    /// Route table of plain HTTP, empty for the rest.
    pub route_name: Text,
    /// Servers in order of precedence.
    pub servers: Vec<BoundServer>,
    /// Those of them that are served over HTTP/3 too.
    pub http3: Vec<BoundServer>,
}

/// A route table of a router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GatewayTable {
    /// Its name: `http.PORT[.BIND]` or `https.PORT.PORT_NAME.GATEWAY.NAMESPACE[.BIND]`.
    pub name: Text,
    /// Servers whose hosts it routes.
    pub servers: Vec<BoundServer>,
    /// Its answers tell that the hosts are served over HTTP/3 too.
    pub http3: bool,
}

/// All a router listens for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct MergedGateway {
    /// Namespace of the router.
    pub namespace: Text,
    /// Ports in order of precedence.
    pub ports: Vec<GatewayPort>,
    /// Route tables by name.
    pub tables: Vec<GatewayTable>,
    /// Secrets of other kinds than the router's own that its servers refer to, those that are left out included.
    pub references: BTreeSet<SecretReference>,
}

/// A Gateway's reference to a Secret.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SecretReference {
    /// Namespace of the Gateway.
    pub gateway_namespace: Text,
    /// The SDS resource it refers to: `kubernetes-gateway://NAMESPACE/NAME`.
    pub resource: Text,
    /// It refers to the roots beside it as well.
    pub with_roots: bool,
}

impl MergedGateway {
    /// Whether SNI is routed to the clusters it names.
    #[must_use]
    pub fn has_auto_passthrough(&self) -> bool {
        let mut servers = self.ports.iter().flat_map(|port| &port.servers);
        servers.any(|bound| {
            let tls = bound.server.tls.as_ref();
            tls.is_some_and(|tls| tls.mode == sluice_model::ServerTlsMode::AutoPassthrough)
        })
    }

    /// Gateways with a server here, as `namespace/name`.
    #[must_use]
    pub fn gateways(&self) -> std::collections::BTreeSet<Text> {
        self.ports.iter().flat_map(|port| &port.servers).map(|bound| bound.gateway.clone()).collect()
    }
}
