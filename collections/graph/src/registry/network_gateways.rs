//! Gateways between networks (S20).

use std::collections::BTreeSet;

use sluice_engine::Collection;
use sluice_model::gateway_api::{Gateway, Listener, ListenerTls, REMOTE_CLASS};
use sluice_model::{
    HBONE_PORT, KubernetesService, Labels, MeshNetworks, NetworkEndpoints, NetworkGateway, NetworkGatewayAddress, Node,
    ObjectKey, ServiceType, Text, label, match_labels,
};

use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::service_host;

/// Port of a gateway for mutual TLS unless its label has another one.
const MTLS_PORT: u16 = 15443;
/// Annotation of a Service of type NodePort that names the nodes it is reached at.
const NODE_SELECTOR: &str = "traffic.istio.io/nodeSelector";
/// Option of the TLS of a listener: what its port is for.
const LISTENER_PROTOCOL: &str = "gateway.istio.io/listener-protocol";
/// Its value for mutual TLS that is forwarded by server name.
const AUTO_PASSTHROUGH: &str = "auto-passthrough";

/// All gateways from one network to another, by address and port.
/// Key: none, one record. From: `kubernetes_services`, `nodes`, `kubernetes_gateways`, `remote_gateways`, `mesh_networks`.
/// Changes when: a Service or Gateway that is a gateway gains or loses an address or a port, or `meshNetworks` changes.
/// Size: 1. Rejects: none; a Service or Gateway that is not a gateway is ignored.
pub(crate) fn derive_network_gateways<'s>(
    objects: &ObjectCollections<'s>,
    remote_gateways: &Collection<'s, ObjectKey, Gateway>,
    mesh_networks: &Collection<'s, (), MeshNetworks>,
    options: &GraphOptions,
) -> Collection<'s, (), Vec<NetworkGateway>> {
    let domain = options.domain.clone();
    let services = objects.kubernetes_services.derive("network_gateways/services", |deps| {
        let (networks, nodes) = (deps.on(mesh_networks), deps.on(&objects.nodes));
        move |cx, key, service| {
            let networks = cx.get(&networks, &());
            let ports = gateway_ports(key, service, networks.as_deref(), &domain);
            if ports.is_empty() {
                return None;
            }
            let by_node = service.meta.annotations.get(NODE_SELECTOR).filter(|_| is_node_port(service));
            let addresses = match by_node {
                Some(selector) => node_addresses(selector, key, &cx.all(&nodes)),
                None => external_addresses(service),
            };
            let at = |address: &Text| {
                let gateways = ports.iter().map(|gateway| {
                    let port = if by_node.is_some() { node_port(service, gateway.port) } else { gateway.port };
                    NetworkGateway { address: address.clone(), port, cluster: key.cluster.clone(), ..gateway.clone() }
                });
                gateways.collect::<Vec<_>>()
            };
            let found: Vec<NetworkGateway> = addresses.iter().flat_map(at).collect();
            (!found.is_empty()).then_some(found)
        }
    });
    let resources = derive_of_gateways(&objects.kubernetes_gateways, remote_gateways, options);
    mesh_networks.derive("network_gateways", |deps| {
        let (services, resources) = (deps.on(&services), deps.on(&resources));
        move |cx, (), networks| {
            let mut gateways = declared(networks);
            let found = cx.all(&services).into_iter().chain(cx.all(&resources));
            gateways.extend(found.flat_map(|(_, found)| (*found).clone()));
            gateways.sort();
            gateways.dedup();
            Some(gateways)
        }
    })
}

/// The gateways that Gateways of the Gateway API declare with `spec.addresses`, if these may do so.
/// Key: the Gateway. From: `kubernetes_gateways`, `remote_gateways`. Changes when: its label, class, addresses or listeners do.
/// Size: such Gateways. Rejects: none.
fn derive_of_gateways<'s>(
    local: &Collection<'s, ObjectKey, Gateway>,
    remote: &Collection<'s, ObjectKey, Gateway>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, Vec<NetworkGateway>> {
    let (cluster, is_read) = (options.cluster.clone(), options.gateway_api.remote);
    let all = local.union_disjoint("network_gateways/known-gateways", &[remote]);
    all.filter_map("network_gateways/gateways", move |key, gateway| {
        // A Gateway of the remote class stands for one elsewhere. Those of the config cluster say how this mesh reaches it.
        let counts = is_read && (key.cluster == cluster || *gateway.class != *REMOTE_CLASS);
        let found = if counts { of_gateway(key, gateway) } else { Vec::new() };
        (!found.is_empty()).then_some(found)
    })
}

/// The network gateways of a Gateway with the label of a network: at each requested address, its listeners for mutual TLS and for
/// HBONE.
fn of_gateway(key: &ObjectKey, gateway: &Gateway) -> Vec<NetworkGateway> {
    let Some(network) = gateway.meta.labels.get(label::NETWORK).filter(|network| !network.is_empty()) else {
        return Vec::new();
    };
    let takes_mtls = |listener: &&Listener| {
        let tls = listener.tls.as_ref();
        tls.is_some_and(|tls| is_auto_passthrough(&gateway.meta.labels, tls, listener.port))
    };
    let ports = |of: &dyn Fn(&&Listener) -> bool| -> BTreeSet<u16> {
        gateway.listeners.iter().filter(of).map(|listener| listener.port).filter(|port| *port != 0).collect()
    };
    // A port for HBONE takes no mutual TLS of sidecars.
    let hbone = ports(&|listener| *listener.protocol == *"HBONE");
    let mtls = ports(&|listener| *listener.protocol != *"HBONE" && takes_mtls(listener));
    let port_of = |ports: &BTreeSet<u16>, place| ports.iter().nth(place).copied().map_or(0, u32::from);
    let addresses = gateway.addresses.iter().filter(|address| address.is_network_address());
    let at = |address: &Text| {
        let pairs = 0..hbone.len().max(mtls.len());
        let gateways = pairs.map(|place| NetworkGateway {
            address: address.clone(),
            port: port_of(&mtls, place),
            hbone_port: port_of(&hbone, place),
            network: network.clone(),
            cluster: key.cluster.clone(),
        });
        gateways.collect::<Vec<_>>()
    };
    addresses.flat_map(|address| at(&address.value)).collect()
}

/// Whether a listener of a Gateway with these labels forwards mutual TLS by server name.
pub(crate) fn is_auto_passthrough(labels: &Labels, tls: &ListenerTls, port: u16) -> bool {
    let is_network_port =
        || labels.get(label::GATEWAY_PORT).map_or(port == MTLS_PORT, |declared| **declared == *port.to_string());
    let is_declared = tls.options.get(LISTENER_PROTOCOL).is_some_and(|protocol| *protocol == *AUTO_PASSTHROUGH);
    is_declared || (labels.contains_key(label::NETWORK) && is_network_port())
}

/// Host names of gateways, to be resolved.
/// Key: the name. From: `network_gateways`. Changes when: a gateway gains or loses a host name. Size: host names.
/// Rejects: none.
pub(crate) fn derive_gateway_names<'s>(gateways: &Collection<'s, (), Vec<NetworkGateway>>) -> Collection<'s, Text, ()> {
    let names = gateways.index("gateway_names/by-name", |(), gateways| {
        let named = gateways.iter().filter(|gateway| !is_address(&gateway.address));
        named.map(|gateway| (gateway.address.clone(), ())).collect::<BTreeSet<_>>()
    });
    names.distinct("gateway_names")
}

/// All gateways from one network to another, by IP address: for proxies that receive endpoints and do not resolve host
/// names.
/// Key: none, one record. From: `network_gateways`, `resolved_names`.
/// Changes when: a gateway does, or the addresses of its host name. Size: 1. Rejects: none; a host name without address
/// is omitted.
pub(crate) fn derive_resolved_gateways<'s>(
    gateways: &Collection<'s, (), Vec<NetworkGateway>>,
    names: &Collection<'s, Text, Vec<Text>>,
) -> Collection<'s, (), Vec<NetworkGateway>> {
    gateways.derive("network_gateways/resolved", |deps| {
        let names = deps.on(names);
        move |cx, (), gateways| {
            let mut resolved: Vec<NetworkGateway> = Vec::new();
            for gateway in gateways {
                if is_address(&gateway.address) {
                    resolved.push(gateway.clone());
                } else if let Some(addresses) = cx.get(&names, &gateway.address) {
                    let at = |address: &Text| NetworkGateway { address: address.clone(), ..gateway.clone() };
                    resolved.extend(addresses.iter().map(at));
                }
            }
            resolved.sort();
            resolved.dedup();
            Some(resolved)
        }
    })
}

fn is_address(address: &str) -> bool {
    address.parse::<std::net::IpAddr>().is_ok()
}

/// Gateways whose address the configuration gives.
fn declared(networks: &MeshNetworks) -> Vec<NetworkGateway> {
    let all = networks.networks.iter().flat_map(|(id, network)| network.gateways.iter().map(move |found| (id, found)));
    let at = all.filter_map(|(id, gateway)| match &gateway.address {
        NetworkGatewayAddress::Address(address) if !address.is_empty() => Some(NetworkGateway {
            address: address.clone(),
            port: u32::from(gateway.port),
            network: id.clone(),
            ..NetworkGateway::default()
        }),
        NetworkGatewayAddress::Address(_) | NetworkGatewayAddress::RegistryService(_) => None,
    });
    at.collect()
}

/// The networks that a Service is a gateway of, without address: by its label, else by its host in the configuration.
fn gateway_ports(
    key: &ObjectKey,
    service: &KubernetesService,
    networks: Option<&MeshNetworks>,
    domain: &str,
) -> Vec<NetworkGateway> {
    if let Some(network) = service.meta.labels.get(label::NETWORK).filter(|network| !network.is_empty()) {
        let declared = service.meta.labels.get(label::GATEWAY_PORT).and_then(|port| port.parse().ok());
        // A gateway accepts what its ports are for: mutual TLS, HBONE or both.
        let listens = |port: u16| if service.ports.iter().any(|p| p.port == port) { u32::from(port) } else { 0 };
        let (port, hbone_port) = (listens(declared.unwrap_or(MTLS_PORT)), listens(HBONE_PORT));
        let gateway = NetworkGateway { network: network.clone(), port, hbone_port, ..NetworkGateway::default() };
        return if port == 0 && hbone_port == 0 { Vec::new() } else { vec![gateway] };
    }
    let host = service_host(&key.name, &key.namespace, domain);
    let mut found = Vec::new();
    for (id, network) in networks.iter().flat_map(|networks| &networks.networks) {
        let of_cluster = |endpoints: &NetworkEndpoints| *endpoints == NetworkEndpoints::Registry(key.cluster.clone());
        if !network.endpoints.iter().any(of_cluster) {
            continue;
        }
        let named = network.gateways.iter().filter(|gateway| match &gateway.address {
            NetworkGatewayAddress::RegistryService(name) => **name == *host.as_str(),
            NetworkGatewayAddress::Address(_) => false,
        });
        found.extend(named.map(|gateway| NetworkGateway {
            network: id.clone(),
            port: u32::from(gateway.port),
            ..NetworkGateway::default()
        }));
    }
    found
}

fn is_node_port(service: &KubernetesService) -> bool {
    service.service_type == ServiceType::NodePort
}

fn external_addresses(service: &KubernetesService) -> Vec<Text> {
    let balanced =
        if service.service_type == ServiceType::LoadBalancer { service.load_balancer.as_slice() } else { &[] };
    balanced.iter().chain(&service.external_ips).cloned().collect()
}

fn node_port(service: &KubernetesService, port: u32) -> u32 {
    let found = service.ports.iter().find(|found| u32::from(found.port) == port && found.node_port != 0);
    found.map_or(port, |found| u32::from(found.node_port))
}

/// The first address of each of the cluster's nodes with these labels. `labels` is a JSON object.
fn node_addresses(selector: &str, key: &ObjectKey, nodes: &[(ObjectKey, std::sync::Arc<Node>)]) -> Vec<Text> {
    let Ok(selector) = serde_json::from_str::<Labels>(selector) else { return Vec::new() };
    let own = nodes.iter().filter(|(node, _)| node.cluster == key.cluster);
    let selected = own.filter(|(_, node)| match_labels(&selector, &node.labels));
    selected.filter_map(|(_, node)| node.addresses.first().cloned()).collect()
}
