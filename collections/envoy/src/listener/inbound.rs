//! Inbound listeners (N03).

use envoy_types::pb::envoy::config::core::v3::{CidrRange, Metadata, TrafficDirection};
use envoy_types::pb::envoy::config::listener::v3::listener::{InternalListenerConfig, ListenerSpecifier};
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, FilterChainMatch, Listener};
use envoy_types::pb::envoy::config::route::v3::VirtualHost;
use envoy_types::pb::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use prost::Message as _;
use serde::Serialize;
use sluice_model::{InterceptionMode, Protocol, ServerTls, SlotValues, Text};

use super::address::{additional, wildcards};
use super::bind::BindAddress;
use super::connect_terminate::build_connect_terminate;
use super::inbound_chain::{TransportMatch, declared_tls, transport_matches};
use super::inspector::inbound_filters;
use super::mtls::{MtlsMode, PeerPolicy, mesh_tls, socket};
use super::outbound::exact_balance;
use super::protocol_detection::{PortProtocol, port_protocol};
use super::server_tls::{TlsPayload, server_tls};
use super::virtual_outbound::to_cluster;
use crate::address::{address, cidr};
use crate::filter::{
    Extensions, HttpChain, RouteSource, build_http_manager, hcm_filter, listener_access_log, metadata_exchange,
    protocol_filters, tcp_access_logs, tcp_proxy_filter, tcp_stats,
};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name;
use crate::object_metadata::{ConfigKind, object_metadata};
use crate::route::{TableKind, build_header, build_inbound_route};
use crate::security::PolicyFilters;
use crate::slots::field_marker;
use crate::stat_name::StatNameValues;
use crate::wire::{boolean, duration, uint32};

/// A port of a workload that a service or a Sidecar declares.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct InboundPort {
    /// Port of the workload.
    pub target_port: u32,
    /// Port number of the service.
    pub port: u32,
    /// Port name of the service.
    pub port_name: Text,
    /// Its protocol.
    pub protocol: Protocol,
    /// Host of the service, for telemetry.
    pub host: Text,
    /// Operation name in traces.
    pub operation: Text,
    /// Name and namespace, if the service is a Kubernetes Service.
    pub kubernetes: Option<(Text, Text)>,
    /// Bind address. A port that binds to a socket has its own listener.
    pub bind: BindAddress,
    /// Namespace and name of the Sidecar that declares the port.
    pub sidecar: Option<(Text, Text)>,
    /// TLS that is terminated if mutual TLS is disabled. `protocol` is then the protocol inside of TLS.
    pub tls: Option<Box<ServerTls>>,
}

/// The operation name in traces of requests to a service port.
#[must_use]
pub fn operation(host: &str, port: u32) -> Text {
    let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
    format!("{open}{host}{close}:{port}/*").into()
}

/// The message whose first field is the operation name.
#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(string, tag = "1")]
    operation: String,
}

/// Removes the names of services from ports, so that workloads with similar ports share listeners. Returns them as values of
/// slots for [`Template::with`](sluice_model::Template::with). Names that statistics of the mesh use stay.
#[must_use]
pub fn take_names(settings: &ListenerSettings, ports: &mut [InboundPort]) -> SlotValues {
    let nameless = settings.mesh.inbound_cluster_stat_name.is_empty();
    let taken = ports.iter_mut().map(|port| {
        let slot = Text::from(format!("operation.{}", port.target_port));
        let marker = field_marker(&slot).into();
        let operation = std::mem::replace(&mut port.operation, marker).to_string();
        if nameless {
            port.host = Text::default();
            port.kubernetes = None;
        }
        (slot, Named { operation }.encode_to_vec().into())
    });
    taken.collect()
}

/// Inputs of the inbound listeners of a workload.
#[derive(Clone, Copy, Debug)]
pub struct InboundInputs<'a> {
    /// Settings of mesh and proxy.
    pub settings: &'a ListenerSettings,
    /// Mutual TLS modes.
    pub peers: &'a PeerPolicy,
    /// Ports by `target_port`, each number once.
    pub ports: &'a [InboundPort],
    /// Authentication and authorization.
    pub policies: &'a PolicyFilters,
    /// HBONE, if the proxy receives it.
    pub hbone: Option<InboundHbone<'a>>,
}

/// Inputs of the listeners of a sidecar for HBONE (N25).
#[derive(Clone, Copy, Debug)]
pub struct InboundHbone<'a> {
    /// Addresses of the sidecar: a tunnel leads to no other destination.
    pub addresses: &'a [Text],
    /// Authentication and authorization of peers whose identity is in the filter state.
    pub policies: &'a PolicyFilters,
}

/// Builds the inbound listeners: the one for redirected traffic, and one per port that binds to a socket.
#[must_use]
pub fn build_inbound(inputs: &InboundInputs<'_>) -> Vec<Listener> {
    let settings = inputs.settings;
    if settings.mesh.proxy_listen_port == 0 {
        return Vec::new();
    }
    let mut listeners = Vec::new();
    let mut redirected = Vec::new();
    for port in inputs.ports {
        let chains = port_chains(inputs, port);
        if port.bind.to_port {
            let name = name::listener(port.bind.primary(), port.target_port);
            listeners.push(listener(settings, &name, &port.bind.addresses, port.target_port, true, chains));
        } else {
            redirected.extend(chains);
        }
    }
    if settings.profile.interception != InterceptionMode::None {
        let mut chains = vec![black_hole(settings)];
        chains.extend(passthrough_chains(inputs));
        chains.extend(redirected);
        let port = u32::from(settings.mesh.proxy_inbound_listen_port);
        let addresses = wildcards(settings.profile.families);
        listeners.insert(0, listener(settings, name::VIRTUAL_INBOUND, &addresses, port, false, chains));
    }
    if let Some(in_tunnel) = inputs.hbone.as_ref().and_then(|hbone| build_in_tunnel(inputs, hbone)) {
        listeners.extend([build_connect_terminate(settings), in_tunnel]);
    }
    listeners
}

/// The listener of connections inside of tunnels. The tunnel has authenticated the peer, so no mode of mutual TLS
/// applies. None without a valid address: a chain without addresses would accept every destination.
fn build_in_tunnel(inputs: &InboundInputs<'_>, hbone: &InboundHbone<'_>) -> Option<Listener> {
    let settings = inputs.settings;
    let destinations: Vec<CidrRange> = hbone.addresses.iter().filter_map(|address| cidr(address)).collect();
    if destinations.is_empty() {
        return None;
    }
    let plain = PeerPolicy { mode: MtlsMode::Disable, ..PeerPolicy::default() };
    let in_tunnel = ListenerSettings { in_tunnel: true, ..settings.clone() };
    let undeclared = InboundInputs { peers: &plain, policies: hbone.policies, hbone: None, ..*inputs };
    let declared = InboundInputs { settings: &in_tunnel, ..undeclared };
    let ports = inputs.ports.iter().map(|port| InboundPort { tls: None, ..port.clone() });
    let mut chains: Vec<FilterChain> = ports.flat_map(|port| port_chains(&declared, &port)).collect();
    chains.extend(passthrough_chains(&undeclared));
    for chain in &mut chains {
        let condition = chain.filter_chain_match.get_or_insert_default();
        condition.transport_protocol.clear();
        condition.prefix_ranges = destinations.clone();
    }
    Some(Listener {
        name: name::MAIN_INTERNAL.to_owned(),
        listener_specifier: Some(ListenerSpecifier::InternalListener(InternalListenerConfig {})),
        traffic_direction: TrafficDirection::Inbound as i32,
        continue_on_listener_filters_timeout: true,
        listener_filters: inbound_filters(settings, &chains, false),
        filter_chains: chains,
        ..Listener::default()
    })
}

fn listener(
    settings: &ListenerSettings,
    name: &str,
    addresses: &[Text],
    port: u32,
    to_port: bool,
    chains: Vec<FilterChain>,
) -> Listener {
    let primary = addresses.first().map_or("", Text::as_str);
    let transparent = !to_port && settings.profile.interception == InterceptionMode::Tproxy;
    Listener {
        name: name.to_owned(),
        address: Some(address(primary, port)),
        additional_addresses: match addresses.get(1..) {
            Some(extra) if settings.dual_stack => additional(extra, port),
            _ => Vec::new(),
        },
        traffic_direction: TrafficDirection::Inbound as i32,
        continue_on_listener_filters_timeout: true,
        max_connections_to_accept_per_socket_event: settings.switches.connections_per_event(),
        connection_balance_config: exact_balance(settings.profile.inbound_exact_balance),
        transparent: transparent.then(|| boolean(true)),
        access_log: listener_access_log(settings, ListenerClass::Inbound),
        listener_filters: inbound_filters(settings, &chains, to_port),
        listener_filters_timeout: Some(duration(settings.mesh.protocol_detection_timeout)),
        filter_chains: chains,
        ..Listener::default()
    }
}

/// The chain that blocks traffic to the listener's own port, which would otherwise loop.
fn black_hole(settings: &ListenerSettings) -> FilterChain {
    let mut filters: Vec<Filter> = metadata_exchange(settings).into_iter().collect();
    filters.extend(tcp_stats(settings, ListenerClass::Inbound));
    filters.push(tcp_proxy_filter(&to_cluster(name::BLACK_HOLE)));
    FilterChain {
        name: "virtualInbound-blackhole".to_owned(),
        filter_chain_match: Some(FilterChainMatch {
            destination_port: Some(uint32(u32::from(settings.mesh.proxy_inbound_listen_port))),
            ..FilterChainMatch::default()
        }),
        filters,
        ..FilterChain::default()
    }
}

/// Inputs of the chains of a port.
struct Port<'a> {
    /// Port of the workload; 0 for all undeclared ports.
    target_port: u32,
    port: u32,
    protocol: Protocol,
    cluster: String,
    http_name: String,
    tcp_name: String,
    stat_prefix: String,
    tcp_stat_prefix: String,
    operation: Text,
    metadata: Option<Metadata>,
    tls: Option<&'a ServerTls>,
}

fn port_chains(inputs: &InboundInputs<'_>, port: &InboundPort) -> Vec<FilterChain> {
    let mode = inputs.peers.mode(port.target_port);
    let cluster = name::inbound_cluster(port.target_port);
    let name = name::listener(port.bind.primary(), port.target_port);
    let pattern = &inputs.settings.mesh.inbound_cluster_stat_name;
    let described = Port {
        target_port: port.target_port,
        port: port.port,
        protocol: port.protocol,
        stat_prefix: name::stat_prefix(&format!("inbound_{name}")),
        tcp_stat_prefix: if pattern.is_empty() { cluster.clone() } else { stat_name(pattern, port) },
        http_name: name.clone(),
        tcp_name: name,
        cluster,
        operation: port.operation.clone(),
        metadata: port.sidecar.as_ref().map(|(namespace, name)| object_metadata(ConfigKind::Sidecar, namespace, name)),
        // Two TLS terminations of the same connection are not possible.
        tls: port.tls.as_deref().filter(|_| mode == MtlsMode::Disable),
    };
    // A protocol that is not proxied outbound is TCP here.
    let kind = port_protocol(port.protocol).unwrap_or(PortProtocol::Tcp);
    let transport_matches = match described.tls {
        Some(_) => declared_tls(kind),
        None => transport_matches(mode, kind, inputs.settings.switches),
    };
    chains(inputs, &described, &transport_matches)
}

/// Chains of undeclared ports, and of ports that only a policy names.
fn passthrough_chains(inputs: &InboundInputs<'_>) -> Vec<FilterChain> {
    let declared = |port: &u32| inputs.ports.iter().any(|declared| declared.target_port == *port);
    let named = inputs.peers.ports.keys().copied().filter(|port| !declared(port));
    std::iter::once(0)
        .chain(named)
        .flat_map(|target_port| {
            let pattern = &inputs.settings.mesh.inbound_cluster_stat_name;
            let described = Port {
                target_port,
                port: 0,
                protocol: Protocol::Unsupported,
                cluster: name::INBOUND_PASSTHROUGH.to_owned(),
                http_name: "virtualInbound-catchall-http".to_owned(),
                tcp_name: name::VIRTUAL_INBOUND.to_owned(),
                stat_prefix: name::stat_prefix(name::INBOUND_PASSTHROUGH),
                tcp_stat_prefix: if pattern.is_empty() {
                    name::INBOUND_PASSTHROUGH.to_owned()
                } else {
                    let undeclared = InboundPort { port_name: name::VIRTUAL_INBOUND.into(), ..InboundPort::default() };
                    stat_name(pattern, &undeclared)
                },
                operation: operation("", 0),
                metadata: None,
                tls: None,
            };
            let transport_matches =
                transport_matches(inputs.peers.mode(target_port), PortProtocol::Auto, inputs.settings.switches);
            chains(inputs, &described, &transport_matches)
        })
        .collect()
}

fn chains(inputs: &InboundInputs<'_>, port: &Port<'_>, transport_matches: &[TransportMatch]) -> Vec<FilterChain> {
    let terminate = |http: bool| match port.tls {
        Some(tls) => socket(&server_tls(inputs.settings, tls, TlsPayload::Http)),
        None => mesh_tls(inputs.settings, http),
    };
    transport_matches
        .iter()
        .map(|transport| FilterChain {
            name: if transport.http { port.http_name.clone() } else { port.tcp_name.clone() },
            filter_chain_match: Some(FilterChainMatch {
                application_protocols: transport.names.iter().map(|name| (*name).to_owned()).collect(),
                transport_protocol: transport.transport.to_owned(),
                destination_port: (port.target_port != 0).then(|| uint32(port.target_port)),
                ..FilterChainMatch::default()
            }),
            filters: if transport.http { http_filters(inputs, port) } else { tcp_filters(inputs, port) },
            transport_socket: transport.terminate.then(|| terminate(transport.http)),
            metadata: port.metadata.clone(),
            ..FilterChain::default()
        })
        .collect()
}

fn http_filters(inputs: &InboundInputs<'_>, port: &Port<'_>) -> Vec<Filter> {
    let settings = inputs.settings;
    let is_grpc = matches!(port.protocol, Protocol::Grpc | Protocol::GrpcWeb);
    let retry = settings.mesh.default_inbound_http_retry_policy.as_ref();
    let mut routes = build_header(&port.cluster, TableKind::Absent);
    routes.virtual_hosts = vec![VirtualHost {
        name: format!("inbound|http|{}", port.port),
        domains: vec!["*".to_owned()],
        routes: vec![build_inbound_route(&port.cluster, &port.operation, is_grpc, retry)],
        ..VirtualHost::default()
    }];
    let mut chain = HttpChain::new(
        ListenerClass::Inbound,
        port.protocol,
        port.target_port,
        RouteSource::Inline(Box::new(routes)),
        port.stat_prefix.clone(),
    );
    chain.policies.clone_from(&inputs.policies.http);
    let mut filters: Vec<Filter> = metadata_exchange(settings).into_iter().collect();
    filters.extend(Extensions::on(settings, ListenerClass::Inbound, port.target_port).all_network());
    filters.push(hcm_filter(&build_http_manager(settings, &chain)));
    filters
}

fn tcp_filters(inputs: &InboundInputs<'_>, port: &Port<'_>) -> Vec<Filter> {
    let settings = inputs.settings;
    let proxy = TcpProxy {
        stat_prefix: port.tcp_stat_prefix.clone(),
        idle_timeout: settings.profile.idle_timeout.map(duration),
        access_log: tcp_access_logs(settings, ListenerClass::Inbound),
        ..to_cluster(&port.cluster)
    };
    let mut filters: Vec<Filter> = metadata_exchange(settings).into_iter().collect();
    // Unlike HTTP, TCP uses the port number of the service.
    let extensions = Extensions::on(settings, ListenerClass::Inbound, port.port);
    filters.extend(extensions.network_around(&inputs.policies.tcp));
    filters.extend(tcp_stats(settings, ListenerClass::Inbound));
    filters.extend(protocol_filters(settings, port.protocol, &port.tcp_stat_prefix, &port.cluster, &proxy));
    filters
}

/// The statistics name by the pattern of the mesh.
fn stat_name(pattern: &str, port: &InboundPort) -> String {
    let values = StatNameValues {
        host: &port.host,
        kubernetes: port.kubernetes.as_ref().map(|(name, namespace)| (&**name, &**namespace)),
        subset: "",
        port: port.port,
        port_name: &port.port_name,
        target_port: None,
    };
    values.expand(pattern)
}
