//! Listeners of gRPC clients and servers without an Envoy (X28).
//!
//! A client subscribes to the listener of a service port by the name in its target; a server to its own by the address at
//! which it listens. Resources have the names by which they can be requested.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::Collection;
use sluice_envoy::listener::{
    GrpcClientInputs, GrpcServerInputs, build_grpc_client, build_grpc_server, grpc_server_addresses,
};
use sluice_envoy::listener_settings::ListenerSettings;
use sluice_model::{Host, Layer, Proxy, ProxyKey, Resource, ResourceKey, Text, View};
use sluice_proto::envoy::config::listener::v3::Listener;

use super::inbound::InboundListenerInputs;
use super::outbound::OutboundListenerInputs;
use super::{key, resource};
use crate::content_names::profile_text;
use crate::options::GraphOptions;
use crate::outputs::layers::LayerFacts;
use crate::proxies::peer_authentications::PeerLookup;
use crate::proxies::policies::{PolicyBuilder, PolicyFinder};
use crate::proxies::workloads::WorkloadName;
use crate::traffic::destinations::Destinations;
use crate::views::Overlay;

/// The listeners of a server at its own addresses, those at the addresses of every pod, then those of services.
pub(super) fn layers(client: &LayerFacts<'_>, profile: &Text) -> Vec<Layer> {
    let own = client.proxy.ips.iter().map(|address| server_view(client.workload, Some(address)));
    let servers = own.chain([server_view(client.workload, None)]);
    let servers = servers.map(|view| Layer { view, profile: profile.clone() });
    servers.chain(client.outbound(profile)).collect()
}

/// The view of servers of a workload at one of their own addresses, or at the addresses of every pod.
fn server_view(workload: &WorkloadName, address: Option<&Text>) -> View {
    match address {
        Some(address) => View::Workload(format!("{}@{address}", workload.0).into()),
        None => workload.view(),
    }
}

/// Why a name is one of a service. If it is one of several services, the first reason applies, as when a pod resolves the name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum NameUse {
    /// The name is a short one of the host.
    Short,
    /// The name is the host.
    Host,
    /// The host that is the name does not exist in this view.
    Hidden,
}

/// Listeners of services for gRPC clients.
/// Key: layer and name, one resource for each name of the service that a client may use. From: `hosts`, `services`,
/// `listener_settings`.
/// Changes when: a service is added, removed or gets other ports, addresses or labels.
/// Size: ports of services × profiles of gRPC clients × 4 names; nothing without gRPC clients. Rejects: none.
pub(super) fn derive_clients<'s>(
    inputs: &OutboundListenerInputs<'_, 's>,
    options: &GraphOptions,
    settings: &Collection<'s, Text, ListenerSettings>,
) -> Collection<'s, ResourceKey, Resource> {
    let (domain, sessions) = (options.domain.clone(), options.sessions.clone());
    let profiles = settings.flat_map("grpc_client_settings", |profile, settings| {
        settings.profile.grpc.then(|| (profile.clone(), settings.clone()))
    });
    let of_hosts = inputs.hosts.derive_many("listeners/grpc-clients/of-hosts", |deps| {
        let destinations = Destinations::on(deps, &inputs.clients);
        let profiles = deps.on(&profiles);
        move |cx, host, ()| {
            let profiles = cx.all(&profiles);
            if profiles.is_empty() {
                return Vec::new();
            }
            let destinations = destinations.get(cx, host);
            let own = ServiceName::of(host, &domain);
            let of_namespace = own.iter().map(|own| View::Namespace(own.namespace.into()));
            let views: Vec<View> = destinations.special_views().chain(of_namespace).collect();
            let mut rows = Vec::new();
            for (profile, settings) in &profiles {
                let seen = Overlay::rows(views.iter().cloned(), |view| {
                    let Some((service, _)) = destinations.seen_from(view) else { return BTreeMap::new() };
                    let session = sessions.session(&service.labels);
                    let short = own.as_ref().filter(|own| own.namespace == view.namespace());
                    let mut names = vec![host.to_string()];
                    names.extend(short.iter().flat_map(|own| own.short_names()));
                    let mut listeners = BTreeMap::new();
                    for port in &service.ports {
                        let session = session.as_ref();
                        let (service, port) = (&*service, port.port);
                        let inputs = GrpcClientInputs { settings, service, port, session };
                        let built = names.iter().map(|name| build_grpc_client(&inputs, name));
                        listeners.extend(built.map(|listener| (listener.name.clone(), resource(&listener))));
                    }
                    listeners
                });
                rows.extend(seen.into_iter().map(|(view, name, resource)| {
                    let name_use = match &resource {
                        Resource::Hidden => NameUse::Hidden,
                        _ if is_name_of(&name, host) => NameUse::Host,
                        _ => NameUse::Short,
                    };
                    ((key(view, profile, &name), name_use), resource)
                }));
            }
            rows
        }
    });
    let by_key =
        of_hosts.index("listeners/grpc-clients/by-key", |(key, _), resource| [(key.clone(), resource.clone())]);
    by_key.distinct("listeners/grpc-clients/keys").derive("listeners/grpc-clients", |deps| {
        let by_key = deps.by(&by_key);
        move |cx, key, ()| {
            let first = cx.by(&by_key, key).into_iter().min_by_key(|((_, name_use), _)| *name_use);
            first.map(|(_, resource)| (*resource).clone())
        }
    })
}

/// Whether the name of a listener is a host with a port.
fn is_name_of(listener: &str, host: &Host) -> bool {
    listener.strip_prefix(host.as_str()).is_some_and(|rest| rest.starts_with(':'))
}

/// The name and the namespace in the host of a Kubernetes Service.
struct ServiceName<'a> {
    name: &'a str,
    namespace: &'a str,
}

impl<'a> ServiceName<'a> {
    /// The parts of `NAME.NAMESPACE.svc.DOMAIN`; `None` for other hosts.
    fn of(host: &'a Host, domain: &str) -> Option<Self> {
        let local = host.as_str().strip_suffix(domain)?.strip_suffix(".svc.")?;
        let (name, namespace) = local.rsplit_once('.')?;
        Some(Self { name, namespace })
    }

    /// The names that clients of the same namespace may use instead of the host.
    fn short_names(&self) -> [String; 3] {
        let Self { name, namespace } = self;
        [(*name).to_owned(), format!("{name}.{namespace}"), format!("{name}.{namespace}.svc")]
    }
}

/// The facts of a connected gRPC server that its listeners depend on.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct GrpcProxy {
    workload: WorkloadName,
    profile: Text,
    addresses: Vec<Text>,
}

/// Servers of one workload and profile at one address of a pod, or at the addresses of every pod.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct GrpcServer {
    workload: WorkloadName,
    profile: Text,
    address: Option<Text>,
}

/// Listeners of gRPC servers.
/// Key: layer and name. From: `workloads`, `services`, `peer_authentications`, `authorization_policies`,
/// `listener_settings`, `proxies` (addresses of gRPC servers).
/// Changes when: the services or policies of the workload do, or the first server at an address connects or the last leaves.
/// Size: ports of workloads of gRPC servers × (5 + replicas). Rejects: none.
pub(super) fn derive_servers<'s>(
    inputs: &InboundListenerInputs<'_, 's>,
    proxies: &Collection<'s, ProxyKey, Proxy>,
    settings: &Collection<'s, Text, ListenerSettings>,
) -> Collection<'s, ResourceKey, Resource> {
    let connected = inputs.workload_names.derive("listeners/grpc-proxies", |deps| {
        let (facts, proxies) = (deps.on(inputs.listener_facts), deps.on(proxies));
        move |cx, proxy, workload| {
            let facts = cx.get(&facts, proxy).filter(|facts| facts.grpc)?;
            let addresses = cx.get(&proxies, proxy)?.ips.clone();
            Some(GrpcProxy { workload: workload.clone(), profile: profile_text(&*facts), addresses })
        }
    });
    let servers = connected.index("listeners/grpc-servers/by-content", |_, proxy| {
        let addresses = std::iter::once(None).chain(proxy.addresses.iter().cloned().map(Some));
        let server = |address| GrpcServer { workload: proxy.workload.clone(), profile: proxy.profile.clone(), address };
        addresses.map(|address| (server(address), ())).collect::<Vec<_>>()
    });
    servers.distinct("listeners/grpc-servers").derive_many("listeners/grpc-inbound", |deps| {
        let (workloads, services) = (deps.on(inputs.workloads), deps.on(inputs.services));
        let (settings, peers) = (deps.on(settings), PeerLookup::on(deps, inputs.peer_authentications_by_namespace));
        let (finder, builder) = (PolicyFinder::on(deps, &inputs.policies), PolicyBuilder::on(deps, &inputs.policies));
        move |cx, server: &GrpcServer, ()| {
            let Some(workload) = cx.get(&workloads, &server.workload) else { return Vec::new() };
            let Some(settings) = cx.get(&settings, &server.profile) else { return Vec::new() };
            let root = &settings.mesh.root_namespace;
            let peers = peers.get(cx, &workload.namespace, root).of_workload(&workload.labels);
            let policies = finder.find(cx, &workload.namespace, &workload.labels);
            let filters = builder.build_grpc(cx, &settings, &policies);
            let binds = server.address.as_ref().map_or_else(grpc_server_addresses, |address| vec![address.clone()]);
            let view = server_view(&server.workload, server.address.as_ref());
            let row = |listener: &Listener| (key(view.clone(), &server.profile, &listener.name), resource(listener));
            let mut known = BTreeSet::new();
            let mut rows = Vec::new();
            for target in workload.targets.iter().filter(|target| target.target_port != 0) {
                let Some(service) = cx.get(&services, &target.service) else { continue };
                if !known.insert(target.target_port) {
                    continue;
                }
                let inputs = GrpcServerInputs {
                    settings: &settings,
                    service: &service,
                    port: target.target_port,
                    mode: peers.mode(target.target_port),
                    filters: &filters,
                };
                rows.extend(binds.iter().map(|bind| row(&build_grpc_server(&inputs, bind))));
            }
            rows
        }
    })
}
