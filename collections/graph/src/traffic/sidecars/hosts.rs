//! The Sidecars in use that list a host or reach it through a route.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::{Host, ObjectKey, Service, ServiceKey, ServiceSource, SidecarScope, Text, VirtualService};

use super::egress::{EgressListener, EgressScope, with_ports};
use crate::host_patterns::covering_hosts;
use crate::registry::services::{HostServiceLookup, HostServices, preferred};
use crate::traffic::virtual_services::{destination_ports, destinations, precedence};

/// The service that a Sidecar's proxies reach at a host.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct ReachedService {
    /// The service.
    pub(crate) service: ServiceKey,
    /// Its ports; `None` is all.
    pub(crate) ports: Option<BTreeSet<u16>>,
}

impl ReachedService {
    /// The service, with the ports that are reached.
    pub(crate) fn of(&self, service: &Arc<Service>) -> Arc<Service> {
        self.ports.as_ref().map_or_else(|| service.clone(), |ports| with_ports(service, ports))
    }

    /// Merges the service of another listener: the ports of one service are united; of two services the first is kept,
    /// unless only the second one is from Kubernetes.
    fn merge(&mut self, other: Self, kubernetes: impl Fn(&ServiceKey) -> bool) {
        if self.service == other.service {
            self.ports = match (self.ports.take(), other.ports) {
                (Some(mut ports), Some(more)) => {
                    ports.extend(more);
                    Some(ports)
                }
                _ => None,
            };
        } else if !kubernetes(&self.service) && kubernetes(&other.service) {
            *self = other;
        }
    }
}

/// The interest of one Sidecar in a host.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct HostInterest {
    /// A listener lists a service of the host.
    pub(crate) listed: bool,
    /// A VirtualService that applies has the host.
    pub(crate) routed: bool,
    /// The service that is reached, because a listener lists it or a VirtualService that applies has it as destination.
    pub(crate) seen: Option<ReachedService>,
}

/// The interests of Sidecars in a host.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SidecarHost(pub(crate) BTreeMap<SidecarScope, HostInterest>);

/// Sidecars in use by the hosts that they list: (namespace or `*`, host as declared).
pub(super) struct HostPatterns<'s> {
    exact: Index<'s, (Text, Host), SidecarScope, ()>,
    /// By every wildcard that covers a listed host: a VirtualService with such a wildcard host may apply.
    below: Index<'s, (Text, Host), SidecarScope, ()>,
    /// Whether any Sidecar is in use: without one, a host costs one look-up.
    any: Collection<'s, (), bool>,
}

impl<'s> HostPatterns<'s> {
    pub(super) fn new(scopes: &Collection<'s, SidecarScope, EgressScope>, one: &Collection<'s, (), ()>) -> Self {
        let exact = scopes.index("sidecars/by-pattern", |_, scope| {
            let patterns = scope.patterns().into_iter();
            patterns.map(|(namespace, host)| ((namespace.clone(), host.clone()), ())).collect::<Vec<_>>()
        });
        let below = scopes.index("sidecars/below-pattern", |_, scope| {
            let covering = |(namespace, host): (&Text, &Host)| {
                let namespace = namespace.clone();
                covering_hosts(host).skip(1).map(move |wildcard| (namespace.clone(), wildcard)).collect::<Vec<_>>()
            };
            let wildcards: BTreeSet<(Text, Host)> = scope.patterns().into_iter().flat_map(covering).collect();
            wildcards.into_iter().map(|wildcard| (wildcard, ())).collect::<Vec<_>>()
        });
        let keys = scopes.map("sidecars/in-use", |_, _| ());
        let any = one.derive("sidecars/any", |deps| {
            let keys = deps.on(&keys);
            move |cx, (), ()| Some(!cx.all(&keys).is_empty())
        });
        Self { exact, below, any }
    }
}

/// Finds Sidecars by the hosts that they list, inside a `derive`.
#[derive(Clone, Copy)]
struct PatternLookup {
    exact: IndexDep<(Text, Host), SidecarScope, ()>,
    below: IndexDep<(Text, Host), SidecarScope, ()>,
    any: Dep<(), bool>,
}

impl PatternLookup {
    fn on<'s>(deps: &mut Deps<'s>, patterns: &HostPatterns<'s>) -> Self {
        Self { exact: deps.by(&patterns.exact), below: deps.by(&patterns.below), any: deps.on(&patterns.any) }
    }

    fn any(&self, cx: &Context) -> bool {
        cx.get(&self.any, &()).is_some_and(|any| *any)
    }

    /// The Sidecars that may list a host of a namespace; with `wider`, also those that list hosts that `host` covers.
    fn get(&self, cx: &Context, namespace: &Text, host: &Host, wider: bool, out: &mut BTreeSet<SidecarScope>) {
        for namespace in [namespace.clone(), Text::from("*")] {
            for covering in covering_hosts(host) {
                out.extend(cx.by(&self.exact, &(namespace.clone(), covering)).into_iter().map(|(scope, _)| scope));
            }
            if wider && host.is_wildcard() {
                out.extend(cx.by(&self.below, &(namespace, host.clone())).into_iter().map(|(scope, _)| scope));
            }
        }
    }
}

/// The Sidecars in use for which a VirtualService of sidecars applies.
/// Key: `ObjectKey`. From: `virtual_services`, `sidecars/scopes`.
/// Changes when: the hosts or the visibility of a VirtualService do, or the hosts that a Sidecar lists; not when routes
/// do.
/// Size: VirtualServices that apply for some Sidecar in use. Rejects: none.
pub(super) fn derive_routes<'s>(
    virtual_services: &Collection<'s, ObjectKey, VirtualService>,
    scopes: &Collection<'s, SidecarScope, EgressScope>,
    patterns: &HostPatterns<'s>,
) -> Collection<'s, ObjectKey, BTreeSet<SidecarScope>> {
    virtual_services.derive("sidecars/routes", |deps| {
        let (patterns, scopes) = (PatternLookup::on(deps, patterns), deps.on(scopes));
        move |cx, _, virtual_service| {
            if !virtual_service.is_mesh() || !patterns.any(cx) {
                return None;
            }
            let mut found = BTreeSet::new();
            for host in &virtual_service.hosts {
                patterns.get(cx, &virtual_service.namespace, host, true, &mut found);
            }
            found.retain(|scope| cx.get(&scopes, scope).is_some_and(|scope| scope.imports_route(virtual_service)));
            (!found.is_empty()).then_some(found)
        }
    })
}

/// The collections that hosts are derived from.
pub(crate) struct HostInputs<'a, 's> {
    pub(crate) services: &'a Collection<'s, ServiceKey, Service>,
    pub(crate) services_by_host: &'a Index<'s, Host, ServiceKey, ()>,
    pub(crate) hosts: &'a Collection<'s, Host, ()>,
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    pub(crate) routed: &'a Index<'s, Host, ObjectKey, ()>,
    /// See [`GraphOptions::reaches_best_service`](crate::GraphOptions::reaches_best_service).
    pub(crate) reaches_best: bool,
}

/// The interests of the Sidecars in use in each host.
/// Key: `Host`. From: `hosts`, `services`, `virtual_services`, `sidecars/scopes`.
/// Changes when: the services of a host do, a Sidecar that lists it, or a VirtualService with the host or with it as
/// destination.
/// Size: hosts that concern some Sidecar in use, with those Sidecars. Rejects: none.
pub(super) fn derive_hosts<'s>(
    inputs: &HostInputs<'_, 's>,
    scopes: &Collection<'s, SidecarScope, EgressScope>,
    patterns: &HostPatterns<'s>,
    routes: &Collection<'s, ObjectKey, BTreeSet<SidecarScope>>,
) -> Collection<'s, Host, SidecarHost> {
    let by_destination = inputs.virtual_services.index("sidecars/routes-by-destination", |_, virtual_service| {
        let hosts: BTreeSet<Host> = match virtual_service.is_mesh() {
            true => destinations(virtual_service).map(|destination| destination.host.clone()).collect(),
            false => BTreeSet::new(),
        };
        hosts.into_iter().map(|host| (host, ())).collect::<Vec<_>>()
    });
    let routed = inputs.routed.distinct("sidecars/routed-hosts");
    let hosts = inputs.hosts.union("sidecars/all-hosts", &[routed]);
    let reaches_best = inputs.reaches_best;
    hosts.derive("sidecars/hosts", |deps| {
        let (patterns, scopes) = (PatternLookup::on(deps, patterns), deps.on(scopes));
        let services = HostServiceLookup::on(deps, inputs.services_by_host, inputs.services);
        let (routes, virtual_services) = (deps.on(routes), deps.on(inputs.virtual_services));
        let (routed, by_destination) = (deps.by(inputs.routed), deps.by(&by_destination));
        move |cx, host, ()| {
            if !patterns.any(cx) {
                return None;
            }
            let services = services.get(cx, host);
            let mut named = BTreeSet::new();
            for service in services.iter() {
                patterns.get(cx, &service.namespace, host, false, &mut named);
            }
            let applied = |key: &ObjectKey| cx.get(&routes, key).map(|scopes| (*scopes).clone()).unwrap_or_default();
            let routed: BTreeSet<SidecarScope> =
                cx.by(&routed, host).iter().flat_map(|(key, _)| applied(key)).collect();
            let mut routes_to_host: Vec<Arc<VirtualService>> = Vec::new();
            let mut reaching = BTreeSet::new();
            for (key, _) in cx.by(&by_destination, host) {
                let scopes = applied(&key);
                if !scopes.is_empty() {
                    reaching.extend(scopes);
                    routes_to_host.extend(cx.get(&virtual_services, &key));
                }
            }
            let all: BTreeSet<&SidecarScope> = named.iter().chain(&routed).chain(&reaching).collect();
            let mut found = BTreeMap::new();
            for key in all {
                let Some(scope) = cx.get(&scopes, key) else { continue };
                let mut listed = false;
                let seen = reached_service(&scope, host, &services, (&routes_to_host, reaches_best), &mut listed);
                let interest = HostInterest { listed, routed: routed.contains(key), seen };
                if interest != HostInterest::default() {
                    found.insert(key.clone(), interest);
                }
            }
            (!found.is_empty()).then_some(SidecarHost(found))
        }
    })
}

/// The service of a host that the proxies of a Sidecar reach.
pub(crate) fn reached_service(
    scope: &EgressScope,
    host: &Host,
    services: &HostServices,
    (routes_to_host, reaches_best): (&[Arc<VirtualService>], bool),
    listed: &mut bool,
) -> Option<ReachedService> {
    let client = scope.namespace();
    let kubernetes = |key: &ServiceKey| {
        services.iter().any(|service| service.key() == *key && service.source == ServiceSource::Kubernetes)
    };
    let mut seen: Option<ReachedService> = None;
    let mut add = |found: ReachedService| match &mut seen {
        None => seen = Some(found),
        Some(seen) => seen.merge(found, kubernetes),
    };
    for listener in &scope.listeners {
        if let Some(service) = listener.service(services, client) {
            *listed = true;
            add(ReachedService { service: service.key(), ports: trimmed(&service, services) });
        }
        let mut routes: Vec<&Arc<VirtualService>> =
            routes_to_host.iter().filter(|route| listener.imports_route(route, client)).collect();
        routes.sort_by(|a, b| precedence(a, client).cmp(&precedence(b, client)));
        let reached = service_of_routes(services, client, reaches_best);
        let reached = reached.map(|service| {
            let found = routes.into_iter().filter_map(|route| destination(route, listener, host, service, client));
            found.collect::<Vec<_>>()
        });
        reached.into_iter().flatten().for_each(&mut add);
    }
    seen
}

/// The ports of a service that a listener reaches, if not all.
fn trimmed(service: &Arc<Service>, services: &HostServices) -> Option<BTreeSet<u16>> {
    let whole = services.iter().any(|other| Arc::ptr_eq(service, other));
    (!whole).then(|| service.ports.iter().map(|port| port.port).collect())
}

/// The service that VirtualServices make reachable at a host: the [`preferred`] one, oldest first, or the first by namespace. A
/// service of the client's namespace is reachable even if it is not exported to that namespace.
fn service_of_routes<'a>(services: &'a HostServices, client: &str, best: bool) -> Option<&'a Arc<Service>> {
    let mut reachable: Vec<_> =
        services.iter().filter(|service| *service.namespace == *client || service.export_to.allows(client)).collect();
    if best {
        reachable.sort_by_key(|service| service.created);
        return preferred(reachable.into_iter(), client);
    }
    let own = reachable.iter().find(|service| *service.namespace == *client).copied();
    own.or_else(|| reachable.into_iter().min_by_key(|service| &service.namespace))
}

/// The ports of a service that a VirtualService makes reachable.
fn destination(
    route: &VirtualService,
    listener: &EgressListener,
    host: &Host,
    service: &Arc<Service>,
    client: &str,
) -> Option<ReachedService> {
    let ports = destination_ports(route, host, client)?;
    let all: BTreeSet<u16> = service.ports.iter().map(|port| port.port).collect();
    let wanted: BTreeSet<u16> = match listener.only_port() {
        Some(port) => [port].into(),
        // A destination without a port may be any port.
        None if ports.contains(&0) => all.clone(),
        None => ports.iter().filter_map(|port| u16::try_from(*port).ok()).collect(),
    };
    let kept: BTreeSet<u16> = all.intersection(&wanted).copied().collect();
    if kept.is_empty() {
        return None;
    }
    let ports = (kept.len() < all.len()).then_some(kept);
    Some(ReachedService { service: service.key(), ports })
}
