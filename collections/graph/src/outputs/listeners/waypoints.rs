//! Listeners of waypoints (N23).
//!
//! The chains of each service are derived apart, so that a change of a service or of a policy for it builds only its
//! chains again. The listener of all chains is one resource, which is put together from their bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::listener::{
    DestinationFacts, Destinations as TcpDestinations, DispatchInputs, WaypointChainInputs, WaypointHop, WaypointPort,
    build_connect_originate, build_connect_terminate, build_double_tunnel, build_east_west_chains,
    build_forward_inner_connect, build_main_internal, build_waypoint_chains,
};
use sluice_envoy::listener_settings::{ListenerAttachments, ListenerSettings};
use sluice_envoy::route::{DestinationService, RouteInputs, build_routes, vip_kinds};
use sluice_envoy::{template, wire};
use sluice_model::{
    AmbientService, Destination, Host, MESH_GATEWAY, ObjectKey, ProxyType, Resource, ResourceKey, Service, ServiceKey,
    SessionLabels, Text, View, VirtualService,
};
use sluice_proto::envoy::config::listener::v3::Listener;
use sluice_proto::envoy::config::route::v3::Route;

use super::profiled_routers::{ProfiledRouter, derive_profiled_routers};
use super::{FIXED, key, resource};
use crate::host_patterns::covering_hosts;
use crate::options::GraphOptions;
use crate::outputs::endpoints::waypoints::{ServedService, ServedServices};
use crate::outputs::routes::virtual_hosts::{RouteHeaders, destination_hash};
use crate::proxies::attached::{Attachments, WaypointAttachments};
use crate::proxies::policies::{PolicyBuilder, PolicyFinder, PolicyInputs, PolicyKeys};
use crate::traffic::destinations::DestinationInputs;
use crate::traffic::gateways::routers::Router;
use crate::traffic::virtual_services::{destinations, is_visible, precedence};
use crate::traffic::waypoints::{ServedKey, WaypointProxies, policy_target};

/// Inputs of the derivation of listeners of waypoints.
#[derive(Clone, Copy)]
pub(crate) struct WaypointListenerInputs<'a, 's> {
    /// Settings fixed at start-up.
    pub(crate) options: &'a GraphOptions,
    /// Connected waypoints, and what they serve.
    pub(crate) waypoints: &'a WaypointProxies<'s>,
    /// Telemetry and extensions of proxies, and the facts that listeners are built from.
    pub(crate) attached: &'a Attachments<'s>,
    /// The service and the DestinationRule of each host, for each client.
    pub(crate) destinations: DestinationInputs<'a, 's>,
    /// VirtualServices with their delegates and with `export_to` resolved.
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    /// VirtualServices of sidecars by host as declared, wildcards included.
    pub(crate) virtual_services_by_host: &'a Index<'s, Host, ObjectKey, ()>,
    /// AuthorizationPolicies and RequestAuthentications.
    pub(crate) policies: PolicyInputs<'a, 's>,
}

/// The chains of one service for one profile.
type ChainsKey = (ProfiledRouter, ServiceKey);

/// The chains of a service, encoded as parts of a listener.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceChains {
    /// A listener with the chains only.
    chains: Resource,
    /// The matcher of the addresses.
    matcher: Resource,
    /// The matches of the host names.
    host_names: Resource,
    ports: Vec<(u16, WaypointPort)>,
}

/// What is attached to a service at its waypoint.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ServiceAttachments {
    policies: PolicyKeys,
    /// Telemetry and extensions.
    others: Arc<ListenerAttachments>,
}

/// The listeners of every waypoint of a profile.
fn build_fixed(settings: &ListenerSettings) -> Vec<Listener> {
    if settings.profile.proxy_type != ProxyType::Waypoint {
        return Vec::new();
    }
    let tunnels = settings.switches.tunnels;
    if tunnels.multi_network && settings.profile.east_west {
        return vec![build_connect_terminate(settings), build_forward_inner_connect(settings)];
    }
    let mut built = vec![build_connect_terminate(settings), build_connect_originate(settings)];
    if !tunnels.local_waypoints {
        built.extend(build_double_tunnel(settings));
    }
    built
}

/// Listeners of waypoints that depend on what they serve.
/// Key: layer and name. From: `waypoint_scopes`, `listeners/waypoint-chains`, `listener_settings`, policies of the
/// waypoint itself.
/// Changes when: the chains of a service do, or the waypoint begins or stops to serve something.
/// Size: distinct connected waypoints × profiles; a listener has the chains of all services of the waypoint. Rejects:
/// none.
pub(super) fn derive_waypoints<'s>(
    inputs: &WaypointListenerInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
) -> Collection<'s, ResourceKey, Resource> {
    let sides =
        derive_profiled_routers("listeners/waypoints-by-profile", &inputs.attached.facts, &inputs.waypoints.proxies);
    let chains = derive_chains(inputs, settings, &sides);
    let policies = derive_policies(inputs);
    sides.derive_many("listeners/waypoints", |deps| {
        let (settings, scopes, chains) = (deps.on(settings), deps.on(&inputs.waypoints.scopes), deps.on(&chains));
        let (policies, builder) = (deps.on(&policies), PolicyBuilder::on(deps, &inputs.policies));
        move |cx, side: &ProfiledRouter, ()| {
            let (Some(settings), Some(scope)) = (cx.get(&settings, &side.profile), cx.get(&scopes, &side.router))
            else {
                return Vec::new();
            };
            let Some(policies) = cx.get(&policies, &side.router) else { return Vec::new() };
            let policies = builder.build(cx, &settings, &policies, true);
            let (mut matchers, mut ports, mut parts) = (Vec::new(), Vec::new(), Vec::new());
            let mut host_names = Vec::new();
            for service in &scope.services {
                let Some(found) = cx.get(&chains, &(side.clone(), service.clone())) else { continue };
                matchers.extend_from_slice(&encoded(&found.matcher));
                host_names.extend_from_slice(&encoded(&found.host_names));
                ports.extend_from_slice(&found.ports);
                parts.push(encoded(&found.chains));
            }
            let built = build_main_internal(&DispatchInputs {
                settings: &settings,
                policies: &policies,
                matchers: &matchers,
                host_names: &host_names,
                ports: &ports,
                workloads: &scope.workloads,
                has_workloads: scope.has_workloads,
            });
            // Chains are a repeated field: the concatenation of two encoded messages is their merge.
            let mut bytes = wire::encode(&built).to_vec();
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            vec![(key(side.router.view(), &side.profile, &built.name), template(bytes.into()))]
        }
    })
}

fn encoded(resource: &Resource) -> Bytes {
    match resource {
        Resource::Encoded(bytes) => bytes.clone(),
        _ => Bytes::new(),
    }
}

/// The policies of each waypoint itself.
/// Key: waypoint. From: `waypoints/namespaces`, `authorization_policies`, `request_authentications`.
/// Changes when: a policy begins or stops to apply. Size: distinct connected waypoints. Rejects: none.
fn derive_policies<'s>(inputs: &WaypointListenerInputs<'_, 's>) -> Collection<'s, Router, PolicyKeys> {
    inputs.waypoints.namespaces.derive("listeners/waypoint-policies", |deps| {
        let (finder, root) = (PolicyFinder::on(deps, &inputs.policies), deps.on(inputs.policies.root_namespace));
        move |cx, waypoint: &Router, namespace: &Text| {
            let root = cx.get(&root, &())?;
            Some(finder.find_for_waypoint(cx, &policy_target(waypoint, namespace, &root, None)))
        }
    })
}

/// What is attached to each service at its waypoint. It is apart from the chains, so that a policy of the namespace
/// builds only the chains that it is for.
/// Key: waypoint and service. From: `waypoints/served`, `waypoints/namespaces`, `ambient_services`,
/// `authorization_policies`, `request_authentications`, `telemetries`, `extensions`.
/// Changes when: a policy begins or stops to apply, or a Telemetry or extension for the service does. Size: services of
/// connected waypoints. Rejects: none.
fn derive_attachments<'s>(inputs: &WaypointListenerInputs<'_, 's>) -> Collection<'s, ServedKey, ServiceAttachments> {
    inputs.waypoints.served.derive("listeners/waypoint-attachments", |deps| {
        let (finder, root) = (PolicyFinder::on(deps, &inputs.policies), deps.on(inputs.policies.root_namespace));
        let (namespaces, declared) = (deps.on(&inputs.waypoints.namespaces), deps.on(&inputs.waypoints.services));
        let attachments = WaypointAttachments::on(deps, inputs.attached);
        move |cx, (waypoint, service): &ServedKey, ()| {
            let (root, namespace) = (cx.get(&root, &())?, cx.get(&namespaces, waypoint)?);
            let declared = cx.get(&declared, service)?;
            let target = policy_target(waypoint, &namespace, &root, Some(&declared));
            let policies = finder.find_for_waypoint(cx, &target);
            Some(ServiceAttachments { policies, others: attachments.get(cx, &target)? })
        }
    })
}

/// The chains of the services of waypoints.
/// Key: `ChainsKey`. From: `waypoints/served`, `listeners/waypoint-attachments`, `services`, `virtual_services`,
/// `destination_rules`, `authorization_policies`, `request_authentications`, `jwks`, `listener_settings`.
/// Changes when: the service does, a route of it, a service or rule of a destination, or a policy, Telemetry or
/// extension for it. Size: services of connected waypoints × profiles. Rejects: none.
fn derive_chains<'s>(
    inputs: &WaypointListenerInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
    sides: &Collection<'s, ProfiledRouter, ()>,
) -> Collection<'s, ChainsKey, ServiceChains> {
    let by_waypoint: Index<'s, Router, ProfiledRouter, ()> =
        sides.index("listeners/waypoint-profiles", |side: &ProfiledRouter, ()| [(side.router.clone(), ())]);
    let attachments = derive_attachments(inputs);
    attachments.derive_many("listeners/waypoint-chains", |deps| {
        let (settings, sides) = (deps.on(settings), deps.by(&by_waypoint));
        let policies = PolicyBuilder::on(deps, &inputs.policies);
        let routes = RouteLookup::on(deps, inputs);
        move |cx, key: &ServedKey, attached: &ServiceAttachments| {
            let (waypoint, service_key) = key;
            let Some(found) = routes.served.get(cx, key) else { return Vec::new() };
            let virtual_services = routes.virtual_services(cx, &found);
            let destinations = routes.destinations(cx, &found, &virtual_services);
            let mut rows = Vec::new();
            for (side, _) in cx.by(&sides, waypoint) {
                let Some(settings) = cx.get(&settings, &side.profile) else { continue };
                let settings = ListenerSettings { attached: attached.others.clone(), ..(*settings).clone() };
                let filters = policies.build(cx, &settings, &attached.policies, true);
                let serves = |service: &ServiceKey| routes.serves(cx, waypoint, service);
                let http_routes =
                    |port| routes.http(cx, &found, waypoint, (virtual_services.as_slice(), &settings), port);
                let more_addresses = routes.more_addresses(cx, service_key, &settings);
                let built = if settings.switches.tunnels.multi_network && settings.profile.east_west {
                    let hop = routes.waypoint_hop(cx, service_key);
                    build_east_west_chains(&settings, &found.service, &more_addresses, hop.as_ref())
                } else {
                    build_waypoint_chains(&WaypointChainInputs {
                        settings: &settings,
                        service: &found.service,
                        policies: &filters,
                        virtual_services: &virtual_services,
                        destinations: &destinations,
                        serves: &serves,
                        more_addresses: &more_addresses,
                        http_routes: &http_routes,
                    })
                };
                let chains = Listener { filter_chains: built.chains, ..Listener::default() };
                let value = ServiceChains {
                    chains: Resource::Encoded(wire::encode(&chains)),
                    matcher: Resource::Encoded(built.matcher.into()),
                    host_names: Resource::Encoded(built.host_names.into()),
                    ports: built.ports,
                };
                rows.push(((side, service_key.clone()), value));
            }
            rows
        }
    })
}

/// Looks up the routes of a service at its waypoint, inside a `derive`.
struct RouteLookup {
    served: ServedServices,
    served_keys: Dep<ServedKey, ()>,
    declared: Dep<ServiceKey, AmbientService>,
    virtual_services: Dep<ObjectKey, VirtualService>,
    by_host: IndexDep<Host, ObjectKey, ()>,
    sessions: SessionLabels,
    shadow_suffix: bool,
}

impl RouteLookup {
    fn on<'s>(deps: &mut Deps<'s>, inputs: &WaypointListenerInputs<'_, 's>) -> Self {
        Self {
            served: ServedServices::on(deps, inputs.waypoints, &inputs.destinations),
            served_keys: deps.on(&inputs.waypoints.served),
            declared: deps.on(&inputs.waypoints.services),
            virtual_services: deps.on(inputs.virtual_services),
            by_host: deps.by(inputs.virtual_services_by_host),
            sessions: inputs.options.sessions.clone(),
            shadow_suffix: inputs.options.shadow_suffix,
        }
    }

    /// The addresses of a global service in the network of the proxy, or in all networks if the proxy states none.
    fn more_addresses(&self, cx: &Context, service: &ServiceKey, settings: &ListenerSettings) -> Vec<Text> {
        if !settings.switches.tunnels.multi_network {
            return Vec::new();
        }
        let network = &settings.profile.network;
        let Some(service) = cx.get(&self.declared, service).filter(|service| service.global) else { return Vec::new() };
        let own = service.addresses.iter().map(|block| (&service.network, block));
        let all = own.chain(service.other_addresses.iter().map(|(network, block)| (network, block)));
        let near = all.filter(|(at, _)| network.is_empty() || *at == network);
        near.map(|(_, block)| block.addr().to_string().into()).collect()
    }

    /// The waypoint of a service, if it is known by its host name.
    fn waypoint_hop(&self, cx: &Context, service: &ServiceKey) -> Option<WaypointHop> {
        let waypoints = &cx.get(&self.declared, service)?.waypoints;
        let address = waypoints.address.as_ref()?;
        let host = address.destination.service()?.host.clone();
        Some(WaypointHop { host, port: address.port, for_ingress: waypoints.for_ingress })
    }

    /// VirtualServices with the host of the service, in the namespace of the waypoint or of the service.
    fn virtual_services(&self, cx: &Context, found: &ServedService) -> Vec<Arc<VirtualService>> {
        let keys: BTreeSet<ObjectKey> = covering_hosts(&found.service.host)
            .flat_map(|host| cx.by(&self.by_host, &host))
            .map(|(virtual_service, _)| virtual_service)
            .collect();
        let namespace = &found.namespace;
        let near = |vs: &VirtualService| vs.namespace == *namespace || vs.namespace == found.service.namespace;
        let all = keys.iter().filter_map(|key| cx.get(&self.virtual_services, key));
        let mut visible: Vec<_> = all.filter(|vs| near(vs) && is_visible(vs, namespace)).collect();
        visible.sort_by(|a, b| precedence(a, namespace).cmp(&precedence(b, namespace)));
        visible
    }

    /// The service itself and the destinations of its routes, with their rules.
    fn destinations(
        &self,
        cx: &Context,
        found: &ServedService,
        virtual_services: &[Arc<VirtualService>],
    ) -> TcpDestinations {
        let hosts: BTreeSet<&Host> =
            virtual_services.iter().flat_map(|vs| destinations(vs)).map(|destination| &destination.host).collect();
        let facts = |host: &Host| {
            let service = self.service(cx, found, host);
            let rule = service.as_ref().and_then(|service| self.rule(cx, service, &found.view)).map(Arc::new);
            (host.clone(), DestinationFacts { service, rule })
        };
        let mut all: TcpDestinations = hosts.into_iter().map(facts).collect();
        let own = DestinationFacts { service: Some(found.service.clone()), rule: found.rule.clone().map(Arc::new) };
        all.insert(found.service.host.clone(), own);
        all
    }

    fn service(&self, cx: &Context, found: &ServedService, host: &Host) -> Option<Arc<Service>> {
        if *host == found.service.host {
            return Some(found.service.clone());
        }
        self.served.destinations().service(cx, host, &found.namespace)
    }

    fn rule(&self, cx: &Context, service: &Service, view: &View) -> Option<sluice_model::DestinationRule> {
        self.served.destinations().rule(cx, service, view)
    }

    /// Whether the waypoint serves a service.
    fn serves(&self, cx: &Context, waypoint: &Router, service: &ServiceKey) -> bool {
        cx.get(&self.served_keys, &(waypoint.clone(), service.clone())).is_some()
    }

    /// HTTP routes for requests to a port.
    fn http(
        &self,
        cx: &Context,
        found: &ServedService,
        waypoint: &Router,
        (virtual_services, settings): (&[Arc<VirtualService>], &ListenerSettings),
        port: u32,
    ) -> Vec<Route> {
        let service = |host: &Host| {
            let service = self.service(cx, found, host)?;
            let served = service.key() == found.service.key() || self.serves(cx, waypoint, &service.key());
            Some(DestinationService {
                only_port: service.only_port(),
                alias_of: None,
                session: self.sessions.session(&service.labels),
                vip_kinds: served.then(|| vip_kinds(&service)),
            })
        };
        let hash = |destination: &Destination| {
            let service = self.service(cx, found, &destination.host)?;
            destination_hash(&self.rule(cx, &service, &found.view)?, destination)
        };
        let routes = virtual_services.iter().flat_map(|virtual_service| {
            build_routes(&RouteInputs {
                virtual_service,
                port,
                gateway: MESH_GATEWAY,
                namespace: &found.namespace,
                labels: &waypoint.labels,
                is_tls: false,
                waypoint: true,
                append_x_forwarded_host: RouteHeaders::of(settings.config()).append_x_forwarded_host,
                default_retry: settings.mesh.default_http_retry_policy.as_ref(),
                shadow_suffix: self.shadow_suffix,
                grpc: false,
                service: &service,
                hash: &hash,
            })
        });
        routes.collect()
    }
}

/// The name of the layer of listeners that depend only on the profile.
pub(super) fn fixed_view() -> View {
    View::Workload(format!("waypoint-{FIXED}").into())
}

/// The rows of [`build_fixed`].
pub(super) fn fixed_rows(profile: &Text, settings: &ListenerSettings) -> Vec<(ResourceKey, Resource)> {
    let row = |listener: &Listener| (key(fixed_view(), profile, &listener.name), resource(listener));
    build_fixed(settings).iter().map(row).collect()
}
