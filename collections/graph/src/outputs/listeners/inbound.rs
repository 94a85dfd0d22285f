//! Inbound listeners of sidecars (N03, N21, N34).

use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Index};
use sluice_envoy::listener::{
    BindAddress, InboundHbone, InboundInputs, InboundPort, PeerPolicy, build_inbound, can_bind, operation, take_names,
    wildcards,
};
use sluice_envoy::listener_settings::{ListenerProfile, ListenerSettings};
use sluice_model::{
    InterceptionMode, ObjectKey, PeerAuthentication, ProxyKey, ProxyType, Resource, ResourceKey, Service, ServiceKey,
    ServiceSource, SidecarIngress, SlotValues, Text,
};

use super::{key, resource};
use crate::content_names::profile_text;
use crate::proxies::peer_authentications::PeerLookup;
use crate::proxies::policies::{PolicyBuilder, PolicyFinder, PolicyInputs, PolicyKeys};
use crate::proxies::targets::ServiceTarget;
use crate::proxies::workloads::{Workload, WorkloadName, WorkloadSidecar};
use crate::traffic::sidecars::{SidecarInbound, has_socket, ingress_address, synthetic_host};

/// A workload whose proxies have one profile.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ProfiledWorkload {
    workload: WorkloadName,
    profile: Text,
}

/// The inputs of the listeners of a workload, except the names of its services: many workloads have the same shape.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ListenerShape {
    profile: Text,
    ports: Vec<InboundPort>,
    peers: PeerPolicy,
    policies: PolicyKeys,
    /// Addresses of the workload, if it receives HBONE.
    hbone_addresses: Vec<Text>,
}

/// A workload's shape, and the names that fill its slots.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct ShapedWorkload {
    shape: Arc<ListenerShape>,
    names: SlotValues,
}

/// Inputs of the derivation of inbound listeners.
pub(crate) struct InboundListenerInputs<'a, 's> {
    /// The workload of each proxy.
    pub(crate) workload_names: &'a Collection<'s, ProxyKey, WorkloadName>,
    /// Distinct workloads of connected proxies.
    pub(crate) workloads: &'a Collection<'s, WorkloadName, Workload>,
    /// The facts of each proxy that its listeners are built from.
    pub(crate) listener_facts: &'a Collection<'s, ProxyKey, ListenerProfile>,
    /// Services, merged over clusters.
    pub(crate) services: &'a Collection<'s, ServiceKey, Service>,
    /// The inbound settings of each Sidecar.
    pub(crate) sidecars_inbound: &'a Collection<'s, ObjectKey, SidecarInbound>,
    /// PeerAuthentications by namespace.
    pub(crate) peer_authentications_by_namespace: &'a Index<'s, Text, ObjectKey, PeerAuthentication>,
    /// AuthorizationPolicies and RequestAuthentications.
    pub(crate) policies: PolicyInputs<'a, 's>,
}

/// Inbound listeners.
/// Key: layer and name. From: `workloads`, `services`, `sidecars`, `peer_authentications`, `workload_policies`,
/// `authorization_policies`, `request_authentications`, `jwks`, `listener_settings`.
/// Changes when: the workload's services or policies do, or JWKS that these refer to. Size: workloads × (1 + ports with
/// sockets); those of one shape share everything but their names. Rejects: none.
pub(super) fn derive_inbound<'s>(
    inputs: &InboundListenerInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
) -> Collection<'s, ResourceKey, Resource> {
    let sides = derive_shaped_workloads(inputs, settings);
    let shapes = sides.index("listeners/shapes-by-content", |_, side| [(ListenerShape::clone(&side.shape), ())]);
    let built = shapes.distinct("listeners/shapes").derive("listeners/inbound-shared", |deps| {
        let (settings, builder) = (deps.on(settings), PolicyBuilder::on(deps, &inputs.policies));
        move |cx, shape: &ListenerShape, ()| {
            let settings = cx.get(&settings, &shape.profile)?;
            let in_tunnel = (!shape.hbone_addresses.is_empty()).then(|| {
                let settings = ListenerSettings { in_tunnel: true, ..(*settings).clone() };
                builder.build(cx, &settings, &shape.policies, false)
            });
            let listeners = build_inbound(&InboundInputs {
                settings: &settings,
                peers: &shape.peers,
                ports: &shape.ports,
                policies: &builder.build(cx, &settings, &shape.policies, false),
                hbone: in_tunnel.as_ref().map(|policies| InboundHbone { addresses: &shape.hbone_addresses, policies }),
            });
            let named = listeners.iter().map(|listener| (Text::from(listener.name.as_str()), resource(listener)));
            Some(named.collect::<Vec<_>>())
        }
    });
    sides.derive_many("listeners/inbound", |deps| {
        let built = deps.on(&built);
        move |cx, side: &ProfiledWorkload, shaped: &ShapedWorkload| {
            let Some(listeners) = cx.get(&built, &shaped.shape) else { return Vec::new() };
            let own = |listener: &Resource| match listener {
                Resource::Template(template) => Resource::Template(template.with(&shaped.names)),
                whole => whole.clone(),
            };
            let row =
                |(name, listener): &(Text, Resource)| (key(side.workload.view(), &side.profile, name), own(listener));
            listeners.iter().map(row).collect()
        }
    })
}

/// The shape of each workload with a connected proxy.
/// Key: workload and profile. From: `workloads`, `services`, `sidecars`, `peer_authentications`, `workload_policies`,
/// `listener_settings`. Changes when: the workload's services do, or which policies apply. Size: workloads. Rejects:
/// none.
fn derive_shaped_workloads<'s>(
    inputs: &InboundListenerInputs<'_, 's>,
    settings: &Collection<'s, Text, ListenerSettings>,
) -> Collection<'s, ProfiledWorkload, ShapedWorkload> {
    let sides = inputs.workload_names.derive("listeners/proxy-sides", |deps| {
        let facts = deps.on(inputs.listener_facts);
        move |cx, proxy, workload| {
            let facts = cx.get(&facts, proxy)?;
            let sidecar = facts.proxy_type == ProxyType::Sidecar && !facts.grpc;
            sidecar.then(|| ProfiledWorkload { workload: workload.clone(), profile: profile_text(&*facts) })
        }
    });
    let sides = sides.index("listeners/sides-by-content", |_, side| [(side.clone(), ())]).distinct("listeners/sides");
    let policies = derive_workload_policies(inputs);
    sides.derive("listeners/shaped-sides", |deps| {
        let policies = deps.on(&policies);
        let (workloads, services) = (deps.on(inputs.workloads), deps.on(inputs.services));
        let sidecars = deps.on(inputs.sidecars_inbound);
        let (settings, peers) = (deps.on(settings), PeerLookup::on(deps, inputs.peer_authentications_by_namespace));
        move |cx, side: &ProfiledWorkload, ()| {
            let workload = cx.get(&workloads, &side.workload)?;
            let settings = cx.get(&settings, &side.profile)?;
            let sidecar = workload.sidecar.as_ref();
            let declared = sidecar.and_then(|own| Some((own, cx.get(&sidecars, &own.scope.sidecar)?)));
            let mut ports = match declared.filter(|(_, declared)| !declared.ingress.is_empty()) {
                Some((own, declared)) => declared_ports(&settings, own, &declared.ingress),
                None => {
                    let targets = workload.targets.iter();
                    let found = targets.filter_map(|target| Some((target, cx.get(&services, &target.service)?)));
                    inbound_ports(&settings, found.collect())
                }
            };
            let names = take_names(&settings, &mut ports);
            let peers = peers.get(cx, &workload.namespace, &settings.mesh.root_namespace).of_workload(&workload.labels);
            let policies = cx.get(&policies, &side.workload).unwrap_or_default();
            let shape = ListenerShape {
                profile: side.profile.clone(),
                ports,
                peers,
                policies: PolicyKeys::clone(&policies),
                hbone_addresses: workload.hbone_addresses.clone(),
            };
            Some(ShapedWorkload { shape: Arc::new(shape), names })
        }
    })
}

/// The policies for each workload.
/// Key: `WorkloadName`. From: `workloads`, `authorization_policies`, `request_authentications`, `root_namespace`.
/// Changes when: a policy for the workload is added or removed, or their order does. Size: workloads. Rejects: none.
fn derive_workload_policies<'s>(inputs: &InboundListenerInputs<'_, 's>) -> Collection<'s, WorkloadName, PolicyKeys> {
    inputs.workloads.derive("workload_policies", |deps| {
        let finder = PolicyFinder::on(deps, &inputs.policies);
        move |cx, _, workload| Some(finder.find(cx, &workload.namespace, &workload.labels))
    })
}

/// The ports of a workload, each number once: of several services of one port the oldest counts.
fn inbound_ports(settings: &ListenerSettings, mut targets: Vec<(&ServiceTarget, Arc<Service>)>) -> Vec<InboundPort> {
    // Without interception the application itself listens on its ports; only a Sidecar can declare listeners.
    if settings.profile.interception == InterceptionMode::None {
        return Vec::new();
    }
    targets.sort_by(|a, b| (a.1.created, &a.1.host).cmp(&(b.1.created, &b.1.host)));
    let addresses = wildcards(settings.profile.families);
    let wildcard = addresses.first().map_or("", Text::as_str);
    let mut ports: Vec<InboundPort> = Vec::with_capacity(targets.len());
    for (target, service) in targets {
        let known = ports.iter().any(|port| port.target_port == target.target_port);
        let free = can_bind(settings, false, wildcard, target.target_port, target.port.protocol, true);
        if known || !free || target.target_port == 0 {
            continue;
        }
        let kubernetes = service.source == ServiceSource::Kubernetes;
        ports.push(InboundPort {
            target_port: target.target_port,
            port: u32::from(target.port.port),
            port_name: target.port.name.clone(),
            protocol: target.port.protocol,
            operation: operation(service.host.as_str(), u32::from(target.port.port)),
            host: service.host.0.clone(),
            kubernetes: kubernetes.then(|| (service.name.clone(), service.namespace.clone())),
            bind: BindAddress { addresses: addresses.clone(), to_port: false },
            sidecar: None,
            tls: None,
        });
    }
    ports.sort_by_key(|port| port.target_port);
    ports
}

/// The ports that the workload's Sidecar declares, each number once.
fn declared_ports(settings: &ListenerSettings, own: &WorkloadSidecar, declared: &[SidecarIngress]) -> Vec<InboundPort> {
    let mut ports: Vec<InboundPort> = Vec::new();
    for listener in declared {
        let (number, protocol) = (u32::from(listener.port.number), listener.port.protocol);
        let to_port = has_socket(listener, settings.profile.interception);
        let known = ports.iter().any(|port| port.target_port == number);
        if known || !can_bind(settings, to_port, &listener.bind, number, protocol, false) {
            continue;
        }
        let tls = listener.tls.clone().filter(|_| settings.switches.sidecar_ingress_tls).map(Box::new);
        let addresses = match ingress_address(listener, own) {
            Some(address) => vec![address],
            None => wildcards(settings.profile.families),
        };
        let host = synthetic_host(&own.scope);
        ports.push(InboundPort {
            target_port: number,
            port: number,
            port_name: listener.port.name.clone(),
            protocol: if tls.is_some() { protocol.after_tls() } else { protocol },
            operation: operation(&host, number),
            host,
            kubernetes: None,
            bind: BindAddress { addresses, to_port },
            sidecar: Some((own.scope.namespace.clone(), own.scope.sidecar.name.clone())),
            tls,
        });
    }
    ports.sort_by_key(|port| port.target_port);
    ports
}
