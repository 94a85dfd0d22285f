//! Outbound listeners of services, and how services share an address and port (N05, N06).

use std::collections::BTreeSet;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{
    FilterChain, FilterChainMatch, Listener,
    listener::{ConnectionBalanceConfig, connection_balance_config},
};
use serde::Serialize;
use sluice_model::{Protocol, Resolution, Service, ServicePort, ServiceSource, Text};

use super::address::{additional, wildcards};
use super::bind::{BindAddress, can_bind};
use super::chain::{Action, Chain, RAW_BUFFER};
use super::outbound_port::OutboundPort;
use super::outbound_tcp::tcp_chains;
use super::protocol_detection::{PortProtocol, plain_http, port_protocol};
use super::service_address::{extra_addresses, service_address};
use super::{dynamic_dns, inspector, virtual_outbound};
use crate::address::address;
use crate::filter::{Extensions, HttpChain, RouteSource, build_http_manager, hcm_filter};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name;
use crate::wire::{boolean, duration};

/// The address and port of an outbound listener.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerKey {
    /// Address to bind to.
    pub bind: BindAddress,
    /// Port.
    pub port: u16,
}

impl ListenerKey {
    /// The listener's name.
    #[must_use]
    pub fn name(&self) -> String {
        name::listener(self.bind.primary(), u32::from(self.port))
    }
}

/// The listeners of a service port: usually one; for a headless service one per pod.
///
/// `bind` is the address that a Sidecar declares, if any. `pods` are the addresses of the pods, which are used only for
/// headless services (one list per pod, the primary address first); `None` if pods have no listeners.
#[must_use]
pub fn listener_keys(
    settings: &ListenerSettings,
    service: &Service,
    port: &ServicePort,
    bind: &BindAddress,
    pods: Option<&[Vec<Text>]>,
) -> Vec<ListenerKey> {
    let Some(kind) = port_protocol(port.protocol) else { return Vec::new() };
    if service.resolution == Resolution::Alias
        || !can_bind(settings, bind.to_port, bind.primary(), u32::from(port.port), port.protocol, true)
    {
        return Vec::new();
    }
    let key =
        |addresses: Vec<Text>| ListenerKey { bind: BindAddress { addresses, to_port: bind.to_port }, port: port.port };
    if !bind.addresses.is_empty() {
        return vec![key(bind.addresses.clone())];
    }
    let wildcard = || wildcards(settings.profile.families);
    if kind == PortProtocol::Http {
        return vec![key(wildcard())];
    }
    let own = service_address(settings, service);
    if let Some(pods) = pods
        && own.is_none()
        && service.resolution == Resolution::Passthrough
    {
        // A headless service without pods has no listener: its traffic has no destination, and a listener for all
        // addresses would be added and removed with the last pod. A ServiceEntry without selector never has pods.
        let has_pods = service.source == ServiceSource::Kubernetes || !pods.is_empty() || !service.selector.is_empty();
        if has_pods {
            let literal = |pod: &&Vec<Text>| {
                !pod.is_empty() && pod.iter().all(|address| address.parse::<std::net::IpAddr>().is_ok())
            };
            return pods.iter().filter(literal).map(|pod| key(pod.clone())).collect();
        }
    }
    // Each address of a ServiceEntry has a listener. CIDR blocks share one.
    let declared = service.addresses_for(&settings.profile.cluster);
    if service.source == ServiceSource::ServiceEntry && declared.len() > 1 {
        let keys = declared.iter().map(|address| match address.contains('/') {
            true => key(wildcard()),
            false => key(vec![address.clone()]),
        });
        return keys.collect::<BTreeSet<_>>().into_iter().collect();
    }
    match own {
        // The filter chain matches the CIDR block.
        Some(address) if address.contains('/') => vec![key(wildcard())],
        Some(address) => {
            let mut addresses = vec![address];
            addresses.extend(extra_addresses(settings, service));
            vec![key(addresses)]
        }
        None if service.source == ServiceSource::ServiceEntry => vec![key(wildcard())],
        None => vec![key(vec!["0.0.0.0".into()])],
    }
}

/// The CIDR blocks that the chains of a service match.
fn blocks(settings: &ListenerSettings, service: &Service) -> Vec<Text> {
    let declared = service.addresses_for(&settings.profile.cluster).iter();
    declared.filter(|address| address.contains('/')).cloned().collect()
}

/// The filter chains of a listener so far.
#[derive(Clone, Debug)]
struct Entry {
    port: ServicePort,
    protocol: Protocol,
    chains: Vec<Chain>,
}

/// The listener of these ports, oldest first; `None` if none of them can have one.
#[must_use]
pub fn build_outbound(settings: &ListenerSettings, key: &ListenerKey, ports: &[OutboundPort<'_>]) -> Option<Listener> {
    let mut entry = None;
    for port in ports {
        add(settings, key, &mut entry, port);
    }
    entry.map(|entry| finish(settings, key, &entry))
}

/// Adds a port to the listener. Older ports have precedence; chains that Envoy can distinguish are merged (N05).
fn add(settings: &ListenerSettings, key: &ListenerKey, entry: &mut Option<Entry>, port: &OutboundPort<'_>) {
    let Some(kind) = port_protocol(port.listen.protocol) else { return };
    let bind = key.bind.primary();
    let wildcard = wildcards(settings.profile.families).first().is_some_and(|wildcard| *wildcard == *bind);
    let blocks = if bind == "0.0.0.0" || wildcard { blocks(settings, port.service) } else { Vec::new() };
    let tcp = || -> Vec<Chain> {
        let of_block = |blocks: &[Text]| tcp_chains(settings, port, bind, blocks);
        if blocks.is_empty() { of_block(&[]) } else { blocks.chunks(1).flat_map(of_block).collect() }
    };
    let http = |sniffed: bool| {
        let mut chain = http_chain(settings, key, kind, wildcard, port);
        if sniffed {
            chain.application_protocols = plain_http(settings.switches).to_vec();
            chain.transport = RAW_BUFFER;
        }
        chain
    };
    let mut protocol = port.listen.protocol;
    let Some(current) = entry else {
        let chains = match kind {
            // A client of the HTTP proxy listener always uses HTTP.
            _ if port.listen.protocol == Protocol::HttpProxy => vec![http(false)],
            PortProtocol::Http => {
                if wildcard {
                    protocol = Protocol::Unsupported;
                }
                vec![http(wildcard)]
            }
            PortProtocol::Tcp => tcp(),
            PortProtocol::Auto => tcp().into_iter().chain([http(true)]).collect(),
        };
        *entry = Some(Entry { port: port.listen.clone(), protocol, chains });
        return;
    };
    // Protocols in which the server sends first cannot be detected.
    let server_first = |protocol: Protocol| matches!(protocol, Protocol::Mongo | Protocol::Mysql);
    let differs = port.listen.protocol != current.protocol;
    if differs && (server_first(port.listen.protocol) || server_first(current.protocol)) {
        return;
    }
    match kind {
        PortProtocol::Http if !current.protocol.is_tcp() => return,
        PortProtocol::Http => merge(current, vec![http(wildcard)]),
        PortProtocol::Tcp => {
            let upgrade = current.protocol.is_http();
            merge(current, tcp());
            if !upgrade {
                return;
            }
        }
        PortProtocol::Auto if current.protocol.is_http() => {
            let chains = tcp().into_iter().chain([http(true)]).collect();
            *current = Entry { port: port.listen.clone(), protocol, chains };
            return;
        }
        PortProtocol::Auto if current.protocol.is_tcp() => {
            merge(current, tcp().into_iter().chain([http(true)]).collect())
        }
        PortProtocol::Auto => return merge(current, tcp()),
    }
    current.protocol = Protocol::Unsupported;
}

fn merge(entry: &mut Entry, incoming: Vec<Chain>) {
    for chain in incoming {
        if !entry.chains.iter().any(|existing| existing.conflicts_with(&chain)) {
            entry.chains.push(chain);
        }
    }
}

fn http_chain(
    settings: &ListenerSettings,
    key: &ListenerKey,
    kind: PortProtocol,
    wildcard: bool,
    port: &OutboundPort<'_>,
) -> Chain {
    let routes = if port.listen.port == 0 {
        key.bind.primary().to_owned()
    } else if kind == PortProtocol::Auto && !wildcard {
        // A service with protocol detection has its own listener, and so its own route configuration.
        format!("{}:{}", port.service.host, port.listen.port)
    } else {
        port.listen.port.to_string()
    };
    let prefix = name::stat_prefix(&format!("outbound_{}", key.name()));
    let mut chain = HttpChain::new(
        ListenerClass::Outbound,
        port.listen.protocol,
        u32::from(key.port),
        RouteSource::Named(routes),
        prefix,
    );
    if port.service.is_dynamic_dns() {
        chain.forward_filters.push(dynamic_dns::http_filter(settings, port.service));
    }
    virtual_outbound::add_forward_filter(settings, &mut chain);
    Chain::new(Action::Http(Box::new(chain)))
}

fn finish(settings: &ListenerSettings, key: &ListenerKey, entry: &Entry) -> Listener {
    let port = u32::from(entry.port.port);
    let mut listener = Listener {
        name: key.name(),
        address: Some(address(key.bind.primary(), port)),
        additional_addresses: additional(key.bind.extra(), port),
        traffic_direction: TrafficDirection::Outbound as i32,
        continue_on_listener_filters_timeout: true,
        listener_filters_timeout: Some(duration(Duration::ZERO)),
        connection_balance_config: exact_balance(settings.profile.outbound_exact_balance),
        ..Listener::default()
    };
    if key.bind.to_port {
        listener.max_connections_to_accept_per_socket_event = settings.switches.connections_per_event();
    } else {
        listener.bind_to_port = Some(boolean(false));
    }
    let by_name = |chain: &Chain| {
        let resolves = match &chain.action {
            Action::Network(filters) => filters.iter().any(|filter| filter.name == dynamic_dns::SNI_FILTER),
            Action::Http(_) => false,
        };
        resolves || !chain.server_names.is_empty()
    };
    if entry.chains.iter().any(by_name) {
        listener.listener_filters.push(inspector::tls_inspector());
    }
    if entry.chains.iter().any(|chain| !chain.application_protocols.is_empty()) {
        listener.listener_filters.push(inspector::http_inspector());
        listener.listener_filters_timeout = Some(duration(settings.mesh.protocol_detection_timeout));
    }
    for chain in &entry.chains {
        let built = FilterChain {
            filter_chain_match: chain.to_match(),
            filters: match &chain.action {
                Action::Network(filters) => filters.clone(),
                Action::Http(chain) => {
                    let extensions = Extensions::on(settings, chain.class, chain.port).all_network();
                    extensions.chain([hcm_filter(&build_http_manager(settings, chain))]).collect()
                }
            },
            metadata: chain.metadata.clone(),
            transport_socket_connect_timeout: settings.switches.gateway_handshake_timeout(),
            ..FilterChain::default()
        };
        // A chain that matches everything becomes the default filter chain.
        if chain.matches_all() {
            listener.default_filter_chain = Some(built);
        } else {
            listener.filter_chains.push(built);
        }
    }
    match listener.default_filter_chain.take() {
        Some(only) if listener.filter_chains.is_empty() => listener.filter_chains.push(only),
        Some(default) => listener.default_filter_chain = Some(default),
        None => {
            listener.default_filter_chain = Some(FilterChain {
                name: "PassthroughFilterChain".to_owned(),
                filter_chain_match: Some(FilterChainMatch::default()),
                filters: virtual_outbound::catch_all_filters(settings),
                ..FilterChain::default()
            });
        }
    }
    listener
}

pub(super) fn exact_balance(wanted: bool) -> Option<ConnectionBalanceConfig> {
    use connection_balance_config::{BalanceType, ExactBalance};
    wanted.then(|| ConnectionBalanceConfig { balance_type: Some(BalanceType::ExactBalance(ExactBalance::default())) })
}

/// The filter chain of the HTTP proxy listener.
pub(super) fn proxy_listener(settings: &ListenerSettings, key: &ListenerKey) -> Listener {
    let prefix = name::stat_prefix(&format!("outbound_{}", key.name()));
    let routes = RouteSource::Named(name::HTTP_PROXY_ROUTES.to_owned());
    let mut chain = HttpChain::new(ListenerClass::Outbound, Protocol::HttpProxy, u32::from(key.port), routes, prefix);
    chain.forward_proxy = true;
    chain.mesh_headers_only_in_mesh = false;
    virtual_outbound::add_forward_filter(settings, &mut chain);
    let port = ServicePort {
        port: key.port,
        name: Text::default(),
        protocol: Protocol::HttpProxy,
        target_port: Text::default(),
    };
    let chains = vec![Chain::new(Action::Http(Box::new(chain)))];
    finish(settings, key, &Entry { port, protocol: Protocol::HttpProxy, chains })
}
