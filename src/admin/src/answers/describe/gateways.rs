//! Gateways that expose a service by VirtualServices.

use std::collections::BTreeSet;

use serde::Serialize;
use sluice_model::{Gateway, GatewayServer, Kind, Pod, Protocol, Service, Text, match_labels};

use super::MeshFacts;
use super::virtual_services::RouteDescription;
use crate::answers::objects::ObjectVersion;

/// A Gateway that exposes the service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GatewayDescription {
    object: ObjectVersion,
    /// The VirtualService that routes to the service.
    virtual_service: String,
    servers: Vec<ServerDescription>,
    /// Pods that it selects: `NAME.NAMESPACE`.
    pods: Vec<String>,
    /// Addresses of its servers, such as `http://192.0.2.1:8080`.
    addresses: BTreeSet<String>,
}

/// A server of a Gateway.
#[derive(Clone, Debug, Serialize)]
struct ServerDescription {
    port: u32,
    protocol: Text,
    hosts: Vec<Text>,
}

/// The Gateways of the VirtualServices with routes to the service.
pub(super) fn describe(facts: &MeshFacts<'_>, routes: &[RouteDescription]) -> Vec<GatewayDescription> {
    let gateways = facts.collection::<Gateway>("gateways/all");
    let mut found = Vec::new();
    for route in routes.iter().filter(|route| route.reaches()) {
        for name in route.gateways() {
            let is_it = |gateway: &Gateway| format!("{}/{}", gateway.namespace, gateway.name) == name.as_str();
            let Some((key, gateway)) = gateways.iter().find(|(_, gateway)| is_it(gateway)) else { continue };
            let pods = selected(facts, gateway);
            found.push(GatewayDescription {
                object: facts.object(Kind::Gateway, key),
                virtual_service: route.object_text().to_owned(),
                servers: gateway.servers.iter().map(server).collect(),
                pods: pods.iter().map(|pod| format!("{}.{}", pod.name, pod.namespace)).collect(),
                addresses: addresses(facts, gateway, &pods),
            });
        }
    }
    found
}

fn server(server: &GatewayServer) -> ServerDescription {
    ServerDescription { port: server.port, protocol: server.protocol_text.clone(), hosts: server.hosts.clone() }
}

fn selected<'f>(facts: &'f MeshFacts<'_>, gateway: &Gateway) -> Vec<&'f Pod> {
    let pods = facts.snapshot.iter(&facts.state.handles.pods).map(|(_, pod)| pod);
    let in_scope = |pod: &&Pod| !facts.state.graph.scope_gateways || pod.namespace == gateway.namespace;
    let selects = |pod: &&Pod| !gateway.selector.is_empty() && match_labels(&gateway.selector, &pod.labels);
    pods.filter(in_scope).filter(selects).collect()
}

/// The addresses at which clients reach the servers: those of the Services that select the pods, with the ports that lead to a
/// server.
fn addresses(facts: &MeshFacts<'_>, gateway: &Gateway, pods: &[&Pod]) -> BTreeSet<String> {
    let services = facts.snapshot.iter(&facts.state.handles.services).map(|(_, service)| service);
    let selects = |service: &&Service| {
        let selects = |pod: &&Pod| service.namespace == pod.namespace && match_labels(&service.selector, &pod.labels);
        !service.selector.is_empty() && pods.iter().any(selects)
    };
    let mut found = BTreeSet::new();
    for service in services.filter(selects) {
        let external = service.external_addresses.iter().flat_map(|(_, addresses)| addresses);
        let mut hosts: Vec<&str> = external.map(Text::as_str).collect();
        if hosts.is_empty() {
            hosts.push("unknown");
        }
        for server in &gateway.servers {
            let leads = |port: &&sluice_model::ServicePort| {
                let target = pods.first().and_then(|pod| super::target_port(port, pod));
                u32::from(port.port) == server.port || target.is_some_and(|target| u32::from(target) == server.port)
            };
            for port in service.ports.iter().filter(leads) {
                found.extend(hosts.iter().map(|host| url(host, port.port, server)));
            }
        }
    }
    found
}

/// `http://192.0.2.1`, with a port that is not the default one.
fn url(host: &str, port: u16, server: &GatewayServer) -> String {
    let (scheme, default) = match server.protocol {
        Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::GrpcWeb => ("http", 80),
        Protocol::Https => ("https", 443),
        Protocol::Tls => ("tls", 0),
        _ => ("tcp", 0),
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    if port == default { format!("{scheme}://{host}") } else { format!("{scheme}://{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_unless_it_is_the_default() {
        let of = |protocol| GatewayServer { protocol, ..GatewayServer::default() };
        assert_eq!(url("192.0.2.1", 80, &of(Protocol::Http)), "http://192.0.2.1");
        assert_eq!(url("2001:db8::1", 8443, &of(Protocol::Https)), "https://[2001:db8::1]:8443");
        assert_eq!(url("unknown", 443, &of(Protocol::Tls)), "tls://unknown:443");
    }
}
