//! What a router listens for: the servers of all Gateways that select it, merged by port (N22).

mod merge;
pub(crate) mod reach;
pub(crate) mod routers;

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_model::{GatewayServer, Text};

pub(crate) use merge::{MergeOptions, SelectingGateway, merge_gateways};

/// How a port of a Service of the router maps to a port of its pods.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct PortTarget {
    /// Port of the Service.
    pub(crate) port: u16,
    /// Port of the pods.
    pub(crate) target: u16,
    /// It takes datagrams.
    pub(crate) udp: bool,
}

/// A server of a Gateway on a port of the router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct BoundServer {
    /// The Gateway, as `namespace/name`.
    pub(crate) gateway: Text,
    /// The server as declared; its port is the Service's.
    pub(crate) server: GatewayServer,
    /// Route table of HTTP and of HTTPS that is terminated; empty for the rest.
    pub(crate) route_name: Text,
}

/// What the router listens for on one port and address.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct GatewayPort {
    /// Port the router listens on.
    pub(crate) port: u32,
    /// Protocol of the first server, as written.
    pub(crate) protocol: Text,
    /// Address to listen on, empty for any.
    pub(crate) bind: Text,
    /// Route table of plain HTTP, empty for the rest.
    pub(crate) route_name: Text,
    /// Servers in order of precedence.
    pub(crate) servers: Vec<BoundServer>,
    /// Those of them that are served over HTTP/3 too.
    pub(crate) http3: Vec<BoundServer>,
}

/// A route table of a router.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct GatewayTable {
    /// Its name: `http.PORT[.BIND]` or `https.PORT.PORT_NAME.GATEWAY.NAMESPACE[.BIND]`.
    pub(crate) name: Text,
    /// Servers whose hosts it routes.
    pub(crate) servers: Vec<BoundServer>,
    /// Its answers tell that the hosts are served over HTTP/3 too.
    pub(crate) http3: bool,
}

/// All a router listens for.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct MergedGateway {
    /// Namespace of the router.
    pub(crate) namespace: Text,
    /// Ports in order of precedence.
    pub(crate) ports: Vec<GatewayPort>,
    /// Route tables by name.
    pub(crate) tables: Vec<GatewayTable>,
    /// Secrets of other kinds than the router's own that its servers refer to, those that are left out included.
    pub(crate) references: BTreeSet<SecretReference>,
}

/// A Gateway's reference to a Secret.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SecretReference {
    /// Namespace of the Gateway.
    pub(crate) gateway_namespace: Text,
    /// The SDS resource it refers to: `kubernetes-gateway://NAMESPACE/NAME`.
    pub(crate) resource: Text,
    /// It refers to the roots beside it as well.
    pub(crate) with_roots: bool,
}

impl MergedGateway {
    /// Whether SNI is routed to the clusters it names.
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
