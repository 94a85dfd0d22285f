//! Listeners of routers (N22, N32) and of east-west gateways (A09): one for each port and address, with a filter chain for
//! each server or route.

use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, IndexDep};
use sluice_envoy::listener::{
    GatewayAction, GatewayChain, GatewayListener, GatewayPort as ServerPort, UdpListener, build_gateway,
    build_udp_listener, gateway_addresses,
};
use sluice_envoy::listener_settings::ListenerSettings;
use sluice_envoy::{name, template, wire};
use sluice_model::{Host, Labels, ObjectKey, Resource, ResourceKey, ServerTlsMode, Text, View, VirtualService, label};
use sluice_proto::envoy::config::listener::v3::Listener;

use super::auto_passthrough::{PassthroughChains, PassthroughInputs, derive_passthrough_chains};
use super::connection_routes::{ConnectionRoute, TakenNames, tcp_route, tls_routes};
use super::key;
use super::profiled_routers::{ProfiledRouter, derive_profiled_routers};
use super::rules::{ConnectionRuleInputs, ConnectionRules, index_connection_routes};
use crate::outputs::routes::gateway_hosts::visible;
use crate::proxies::policies::{PolicyBuilder, PolicyFinder, PolicyInputs, PolicyKeys};
use crate::registry::services::HostServiceLookup;
use crate::traffic::gateway_api::inference_pools::GatewayName;
use crate::traffic::gateways::routers::{Router, Routers};
use crate::traffic::gateways::{BoundServer, GatewayPort, MergedGateway};
use crate::traffic::virtual_services::index_by_gateway;

/// A listener of a router.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct GatewayListenerKey {
    side: ProfiledRouter,
    /// The listener's name.
    name: Text,
}

/// The servers of one listener of a router.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct GatewayListenerPorts {
    /// Namespace of the router.
    namespace: Text,
    /// Ports with the same address; all but the first are selected by server name.
    ports: Vec<GatewayPort>,
    /// Over HTTP/3.
    quic: bool,
}

/// Inputs of the derivation of listeners of routers.
pub(crate) struct GatewayListenerInputs<'a, 's> {
    /// Routers, and what chains of TLS mode AUTO_PASSTHROUGH are derived from.
    pub(crate) passthrough: PassthroughInputs<'a, 's>,
    /// VirtualServices with their delegates and with `export_to` resolved.
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    /// AuthorizationPolicies and RequestAuthentications.
    pub(crate) policies: PolicyInputs<'a, 's>,
    /// Gateways whose proxies call the endpoint pickers of InferencePools.
    pub(crate) gateways_with_pools: &'a Collection<'s, GatewayName, ()>,
}

/// Listeners of routers.
/// Key: layer and name. From: `listeners/router-ports`, `listener_settings`, `router_policies`,
/// `authorization_policies`, `request_authentications`, `jwks`; for servers of TCP and TLS also `virtual_services`
/// bound to their Gateways and the services and rules of their destinations; for those of TLS mode AUTO_PASSTHROUGH
/// every service that matches a host; `gateway_api/gateways-with-pools`.
/// Changes when: a server of the port does, a policy for the router or JWKS that it refers to; when the first route to an
/// InferencePool is added or the last one removed; for servers of TCP and
/// TLS, when their route or its destination does.
/// Size: routers × ports. Rejects: none.
pub(super) fn derive_gateways<'s>(
    inputs: &GatewayListenerInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
) -> Collection<'s, ResourceKey, Resource> {
    let Routers { proxies: routers, merged, .. } = inputs.passthrough.routers;
    let policies = derive_router_policies(merged, &inputs.policies);
    let sides = derive_profiled_routers("listeners/routers", inputs.passthrough.listener_facts, routers);
    let ports = derive_ports(settings, merged, &sides);
    let by_gateway = index_by_gateway("listeners/virtual-services-by-gateway", inputs.virtual_services);
    let by_host = index_connection_routes(inputs.virtual_services);
    let GatewayListenerInputs { virtual_services, passthrough: PassthroughInputs { destinations, .. }, .. } = *inputs;
    let rules = ConnectionRuleInputs { destinations, virtual_services, connection_routes: &by_host };
    let passed = derive_passthrough_chains(&inputs.passthrough, settings);
    ports.derive_many("listeners/gateways", |deps| {
        let settings = deps.on(settings);
        let with_pools = deps.on(inputs.gateways_with_pools);
        let (policies, filters) = (deps.on(&policies), PolicyBuilder::on(deps, &inputs.policies));
        let passing = PassthroughChains::on(deps, &passed);
        let routes = ConnectionRouteLookup {
            virtual_services: deps.on(inputs.virtual_services),
            by_gateway: deps.by(&by_gateway),
            hosts: HostServiceLookup::on(deps, destinations.services_by_host, destinations.services),
            rules: ConnectionRules::on(deps, &rules),
        };
        move |cx, place: &GatewayListenerKey, listening: &GatewayListenerPorts| {
            let Some(settings) = cx.get(&settings, &place.side.profile) else { return Vec::new() };
            let Some(first) = listening.ports.first() else { return Vec::new() };
            if first.udp {
                let keys = cx.get(&policies, &place.side.router).unwrap_or_default();
                // Envoy cannot check datagrams, so none are relayed that a policy might deny.
                let is_open = filters.denying(cx, &keys).is_empty();
                let built = is_open.then(|| routes.udp_listener(cx, first, &settings, &listening.namespace)).flatten();
                let row = |built: Listener| {
                    let name = key(place.side.router.view(), &place.side.profile, &built.name);
                    (name, template(wire::encode(&built)))
                };
                return built.into_iter().map(row).collect();
            }
            let gateway = place.side.router.labels.get(label::GATEWAY_NAME);
            let gateway = gateway.map(|name| (listening.namespace.clone(), name.clone()));
            let mut listener = GatewayListener {
                calls_pickers: gateway.is_some_and(|gateway| cx.get(&with_pools, &gateway).is_some()),
                port: first.port,
                bind: first.bind.clone(),
                quic: listening.quic,
                ..GatewayListener::default()
            };
            let mut taken = TakenNames::new();
            let mut passed = Vec::new();
            for port in &listening.ports {
                let is_http = first_protocol(port).is_some_and(|protocol| protocol.is_http());
                if is_http && !settings.profile.east_west {
                    listener.chains.extend(plain_http(port));
                    continue;
                }
                // An east-west gateway serves nothing else than HBONE and TLS that it passes through.
                let served = |bound: &&BoundServer| !settings.profile.east_west || bound.server.is_passthrough();
                for bound in port.servers.iter().filter(served) {
                    let mode = bound.server.tls.as_ref().map(|tls| tls.mode);
                    if mode == Some(ServerTlsMode::AutoPassthrough) {
                        passed.extend(passing.chains(cx, &place.side, &bound.server.sni_hosts()));
                    } else {
                        let chains = routes.chains(cx, bound, &place.side.router, &listening.namespace, &mut taken);
                        listener.chains.extend(chains);
                    }
                }
            }
            listener.more_chains = !passed.is_empty();
            let keys = cx.get(&policies, &place.side.router).unwrap_or_default();
            let filters = filters.build(cx, &settings, &keys, true);
            let Some(built) = build_gateway(&settings, &listener, &filters) else { return Vec::new() };
            // Chains are a repeated field: the concatenation of two encoded messages is their merge.
            let mut bytes = wire::encode(&built).to_vec();
            passed.iter().for_each(|chains: &bytes::Bytes| bytes.extend_from_slice(chains));
            vec![(key(place.side.router.view(), &place.side.profile, &built.name), template(bytes.into()))]
        }
    })
}

/// The policies for each router.
/// Key: `Router`. From: `merged_gateways`, `authorization_policies`, `request_authentications`, `root_namespace`.
/// Changes when: a policy for the router is added or removed, or their order does. Size: routers. Rejects: none.
fn derive_router_policies<'s>(
    merged: &Collection<'s, Router, MergedGateway>,
    policies: &PolicyInputs<'_, 's>,
) -> Collection<'s, Router, PolicyKeys> {
    merged.derive("router_policies", |deps| {
        let finder = PolicyFinder::on(deps, policies);
        move |cx, router, merged| Some(finder.find(cx, &merged.namespace, &router.labels))
    })
}

/// The servers of each router, by listener.
/// Key: `GatewayListenerKey`. From: `listeners/routers`, `merged_gateways`, `listener_settings`.
/// Changes when: a server of the port does. Size: routers × ports. Rejects: none; a port that the router cannot bind to
/// is omitted.
fn derive_ports<'s>(
    settings: &Collection<'s, Text, ListenerSettings>,
    merged: &Collection<'s, Router, MergedGateway>,
    sides: &Collection<'s, ProfiledRouter, ()>,
) -> Collection<'s, GatewayListenerKey, GatewayListenerPorts> {
    sides.derive_many("listeners/router-ports", |deps| {
        let (settings, merged) = (deps.on(settings), deps.on(merged));
        move |cx, side: &ProfiledRouter, ()| {
            let (Some(settings), Some(merged)) = (cx.get(&settings, &side.profile), cx.get(&merged, &side.router))
            else {
                return Vec::new();
            };
            let mut places: Vec<(GatewayListenerKey, GatewayListenerPorts)> = Vec::new();
            let mut add = |name: String, port: GatewayPort, quic: bool| {
                let place = GatewayListenerKey { side: side.clone(), name: name.into() };
                match places.iter_mut().find(|(known, _)| *known == place) {
                    Some((_, listening)) => listening.ports.push(port),
                    None => {
                        let listening =
                            GatewayListenerPorts { namespace: merged.namespace.clone(), ports: vec![port], quic };
                        places.push((place, listening));
                    }
                }
            };
            for port in &merged.ports {
                let Some(addresses) = gateway_addresses(&settings, port.port, &port.bind) else { continue };
                let Some(primary) = addresses.first() else { continue };
                if port.udp {
                    add(name::udp_listener(primary, port.port), port.clone(), false);
                    continue;
                }
                add(name::listener(primary, port.port), port.clone(), false);
                if !port.http3.is_empty() {
                    let over_udp = GatewayPort { servers: port.http3.clone(), ..port.clone() };
                    add(name::udp_listener(primary, port.port), over_udp, true);
                }
            }
            places
        }
    })
}

fn first_protocol(port: &GatewayPort) -> Option<sluice_model::Protocol> {
    port.servers.first().map(|bound| bound.server.protocol)
}

/// Plain HTTP servers of a port have one chain and one route table.
fn plain_http(port: &GatewayPort) -> Option<GatewayChain> {
    let first = port.servers.first()?;
    Some(GatewayChain {
        server_names: Vec::new(),
        tls: None,
        port: ServerPort { protocol: first.server.protocol, ..ServerPort::default() },
        action: GatewayAction::Http { route_name: port.route_name.clone(), stat_prefix: Text::default() },
    })
}

/// Looks up the routes of servers of TCP and TLS.
struct ConnectionRouteLookup {
    virtual_services: Dep<ObjectKey, VirtualService>,
    by_gateway: IndexDep<Text, ObjectKey, ()>,
    hosts: HostServiceLookup,
    rules: ConnectionRules,
}

impl ConnectionRouteLookup {
    /// The VirtualServices that are bound to the Gateway of a server, as the namespace of the router sees them.
    fn virtual_services(&self, cx: &Context, bound: &BoundServer, namespace: &Text) -> Vec<Arc<VirtualService>> {
        let bound_to = cx.by(&self.by_gateway, &bound.gateway).into_iter();
        let bound_to = bound_to.filter_map(|(key, _)| cx.get(&self.virtual_services, &key).map(|found| (key, found)));
        visible(bound_to.collect(), namespace).into_iter().map(|(_, found)| found).collect()
    }

    /// The listener of a port for datagrams; `None` if it has no route.
    fn udp_listener(
        &self,
        cx: &Context,
        port: &GatewayPort,
        settings: &ListenerSettings,
        namespace: &Text,
    ) -> Option<Listener> {
        let bound = port.servers.first()?;
        let found = tcp_route(bound, &self.virtual_services(cx, bound, namespace))?;
        let listener = UdpListener { port: port.port, bind: port.bind.clone(), route: found.route };
        build_udp_listener(settings, &listener)
    }

    fn chains(
        &self,
        cx: &Context,
        bound: &BoundServer,
        router: &Router,
        namespace: &Text,
        taken: &mut TakenNames,
    ) -> Vec<GatewayChain> {
        let server = &bound.server;
        let port = ServerPort {
            number: u16::try_from(server.port).unwrap_or_default(),
            name: server.port_name.clone(),
            protocol: server.protocol,
        };
        let terminated = server.tls.clone().filter(|_| !server.is_passthrough());
        if server.terminates_https() {
            let action = GatewayAction::Http { route_name: bound.route_name.clone(), stat_prefix: server.name.clone() };
            return vec![GatewayChain { server_names: server.sni_hosts(), tls: terminated, port, action }];
        }
        let virtual_services = self.virtual_services(cx, bound, namespace);
        let routes: Vec<ConnectionRoute> = if server.is_passthrough() {
            tls_routes(bound, &virtual_services, taken)
        } else {
            let names = if terminated.is_some() { server.sni_hosts() } else { Vec::new() };
            let found = tcp_route(bound, &virtual_services).into_iter();
            found.map(|route| ConnectionRoute { server_names: names.clone(), ..route }).collect()
        };
        let view = View::Selected { namespace: namespace.clone(), labels: Labels::clone(&router.labels) };
        let chain = |ConnectionRoute { server_names, virtual_service, route }: ConnectionRoute| {
            let services: &[Arc<VirtualService>] = std::slice::from_ref(&virtual_service);
            let seen = |host: &Host| self.hosts.get(cx, host).visible_to(view.namespace()).cloned();
            let destinations = self.rules.destinations(cx, &seen, services, &view);
            let action = GatewayAction::Tcp { virtual_service, route, destinations };
            GatewayChain { server_names, tls: terminated.clone(), port: port.clone(), action }
        };
        routes.into_iter().map(chain).collect()
    }
}
