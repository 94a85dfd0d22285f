//! Servers that forward TCP or TLS connections: their routes of the VirtualServices bound to their Gateway (N32).

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_model::{GatewayServer, RouteDestination, RouteSemantics, Text, VirtualService};

use crate::outputs::routes::gateway_hosts::common_hosts;
use crate::traffic::gateways::BoundServer;

/// A route of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ConnectionRoute {
    /// Server names that the route matches; empty if the server has only one route.
    pub(crate) server_names: Vec<Text>,
    /// The VirtualService that declares it.
    pub(crate) virtual_service: Arc<VirtualService>,
    /// Weighted destinations.
    pub(crate) route: Vec<RouteDestination>,
}

/// Server names that routes of a port already match, with the destination address.
pub(crate) type TakenNames = BTreeSet<(Text, Text)>;

/// The route of a server of opaque TCP, or of TLS that it terminates: the first TCP route that matches.
#[must_use]
pub(crate) fn tcp_route(bound: &BoundServer, virtual_services: &[Arc<VirtualService>]) -> Option<ConnectionRoute> {
    with_common_hosts(&bound.server, virtual_services).find_map(|virtual_service| {
        let opaque = virtual_service.tcp.iter().find(|route| {
            let any = route.matches.iter().any(|on| is_for(bound, on.port, &on.gateways));
            (route.matches.is_empty() || any) && !route.route.is_empty()
        });
        // A TLSRoute may be bound to a listener that terminates TLS; the server name is matched before.
        let terminated = || {
            let routes = virtual_service.tls.iter().filter(|_| virtual_service.semantics == RouteSemantics::GatewayApi);
            routes
                .filter(|route| route.matches.iter().any(|on| is_for(bound, on.port, &on.gateways)))
                .map(|route| &route.route)
                .next()
        };
        let found = opaque.map(|route| &route.route).or_else(terminated)?;
        Some(ConnectionRoute {
            server_names: Vec::new(),
            virtual_service: virtual_service.clone(),
            route: found.clone(),
        })
    })
}

/// The routes of a server that passes TLS through, by server name. Envoy rejects a listener in which a server name
/// occurs twice.
#[must_use]
pub(crate) fn tls_routes(
    bound: &BoundServer,
    virtual_services: &[Arc<VirtualService>],
    taken: &mut TakenNames,
) -> Vec<ConnectionRoute> {
    let mut routes = Vec::new();
    for virtual_service in with_common_hosts(&bound.server, virtual_services) {
        for route in virtual_service.tls.iter().filter(|route| !route.route.is_empty()) {
            for on in route.matches.iter().filter(|on| is_for(bound, on.port, &on.gateways)) {
                let names: Vec<_> = on.sni_hosts.iter().map(|name| (name.clone(), bound.server.bind.clone())).collect();
                if names.iter().any(|name| taken.contains(name)) {
                    continue;
                }
                taken.extend(names);
                routes.push(ConnectionRoute {
                    server_names: on.sni_hosts.clone(),
                    virtual_service: virtual_service.clone(),
                    route: route.route.clone(),
                });
            }
        }
    }
    routes
}

/// The VirtualServices that have a host in common with a server.
fn with_common_hosts<'a>(
    server: &'a GatewayServer,
    virtual_services: &'a [Arc<VirtualService>],
) -> impl Iterator<Item = &'a Arc<VirtualService>> {
    virtual_services.iter().filter(|virtual_service| !common_hosts(&server.hosts, virtual_service).is_empty())
}

/// Whether a match applies to a server; a gateway ignores matches on addresses and clients.
fn is_for(bound: &BoundServer, port: u32, gateways: &[Text]) -> bool {
    (port == 0 || port == bound.server.port) && (gateways.is_empty() || gateways.contains(&bound.gateway))
}

#[cfg(test)]
mod tests {
    use sluice_model::{L4Match, TcpRoute, TlsMatch, TlsRoute};

    use super::*;

    fn server(port: u32, hosts: &[&str]) -> BoundServer {
        let server = GatewayServer {
            port,
            hosts: hosts.iter().map(|host| Text::from(*host)).collect(),
            ..GatewayServer::default()
        };
        BoundServer { gateway: "edge/front".into(), server, ..BoundServer::default() }
    }

    fn to(host: &str) -> Vec<RouteDestination> {
        let destination = sluice_model::Destination { host: host.into(), ..sluice_model::Destination::default() };
        vec![RouteDestination { destination, weight: 0 }]
    }

    fn tcp(port: u32, gateway: &str, host: &str) -> TcpRoute {
        let gateways = if gateway.is_empty() { Vec::new() } else { vec![gateway.into()] };
        TcpRoute { matches: vec![L4Match { port, gateways, ..L4Match::default() }], route: to(host) }
    }

    fn tls(names: &[&str], host: &str) -> TlsRoute {
        let sni_hosts = names.iter().map(|name| Text::from(*name)).collect();
        TlsRoute { matches: vec![TlsMatch { sni_hosts, ..TlsMatch::default() }], route: to(host) }
    }

    fn virtual_service(host: &str, tcp: Vec<TcpRoute>, tls: Vec<TlsRoute>) -> Arc<VirtualService> {
        Arc::new(VirtualService {
            namespace: "app".into(),
            hosts: vec![host.into()],
            tcp,
            tls,
            ..VirtualService::default()
        })
    }

    fn target(route: Option<ConnectionRoute>) -> Option<String> {
        route.map(|route| route.route[0].destination.host.to_string())
    }

    #[test]
    fn the_first_route_for_port_and_gateway_is_taken() {
        let routes = vec![tcp(1, "", "port"), tcp(3000, "edge/other", "gateway"), tcp(3000, "edge/front", "this")];
        let bound = [virtual_service("*", routes, Vec::new()), virtual_service("*", vec![tcp(0, "", "later")], vec![])];
        assert_eq!(target(tcp_route(&server(3000, &["*"]), &bound)).as_deref(), Some("this"));
        assert_eq!(target(tcp_route(&server(4000, &["*"]), &bound)).as_deref(), Some("later"));
        assert_eq!(target(tcp_route(&server(4000, &["other/*"]), &bound)), None, "another namespace");
        assert_eq!(target(tcp_route(&server(4000, &["*"]), &[])), None);
    }

    #[test]
    fn a_server_name_is_taken_once_for_an_address() {
        let routes = vec![tls(&["a.com"], "first"), tls(&["b.com", "a.com"], "second"), tls(&["b.com"], "third")];
        let bound = [virtual_service("*.com", Vec::new(), routes)];
        let mut taken = TakenNames::new();
        let found = |routes: Vec<ConnectionRoute>| -> Vec<String> {
            routes.into_iter().map(|route| route.route[0].destination.host.to_string()).collect()
        };
        assert_eq!(found(tls_routes(&server(443, &["*"]), &bound, &mut taken)), ["first", "third"]);
        assert!(tls_routes(&server(443, &["*"]), &bound, &mut taken).is_empty());
        let mut elsewhere = server(443, &["*"]);
        elsewhere.server.bind = "10.0.0.1".into();
        assert_eq!(tls_routes(&elsewhere, &bound, &mut taken).len(), 2);
    }
}
