//! What a Sidecar lets its proxies reach: its egress listeners, compiled for a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_model::{
    CaptureMode, Host, OutboundTraffic, Protocol, RouteSemantics, Service, ServiceSource, SidecarEgress, SidecarPort,
    SidecarScope, Text, View, VirtualService,
};

use crate::traffic::virtual_services::is_visible;
use crate::views::sidecar_view;

/// Namespace of entries for every namespace, and the host that is every host.
const ANY: &str = "*";
/// How sockets in the file system are written.
const SOCKET: &str = "unix://";

/// The hosts a listener names in a namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct HostSet {
    exact: BTreeSet<Host>,
    wildcards: BTreeSet<Host>,
    excluded: BTreeSet<Host>,
}

impl HostSet {
    fn has(&self, host: &Host) -> bool {
        self.exact.contains(host) || self.wildcards.iter().any(|wildcard| wildcard.contains(host))
    }

    /// A VirtualService is also found by a host that its wildcard covers.
    fn has_route(&self, host: &Host) -> bool {
        self.has(host)
            || (host.is_wildcard()
                && (self.exact.iter().chain(&self.wildcards)).any(|imported| host.contains(imported)))
    }

    fn excludes(&self, host: &Host) -> bool {
        self.excluded.iter().any(|excluded| excluded.contains(host))
    }
}

/// An egress listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct EgressListener {
    /// Its port; `None` is every port no other listener claims.
    pub(crate) port: Option<SidecarPort>,
    /// Address it listens at, empty where the services are.
    pub(crate) bind: Text,
    /// Clients connect to it, whatever else is redirected.
    pub(crate) to_port: bool,
    hosts: BTreeMap<Text, HostSet>,
    /// Every host is named exactly: then the oldest service counts, whoever else sees it.
    pub(crate) only_exact: bool,
}

impl EgressListener {
    fn new(declared: &SidecarEgress, client: &str) -> Self {
        let mut hosts: BTreeMap<Text, HostSet> = BTreeMap::new();
        let mut only_exact = true;
        for entry in &declared.hosts {
            let Some((namespace, host)) = entry.split_once('/') else { continue };
            let excluded = namespace.strip_prefix('~');
            let namespace = match excluded.unwrap_or(namespace) {
                "" => ANY,
                "." => client,
                namespace => namespace,
            };
            let host = Host::new(host);
            let set = hosts.entry(namespace.into()).or_default();
            if excluded.is_some() {
                set.excluded.insert(host);
            } else if host.is_wildcard() {
                only_exact = false;
                set.wildcards.insert(host);
            } else {
                only_exact &= namespace != ANY;
                set.exact.insert(host);
            }
        }
        Self {
            port: declared.port.clone(),
            bind: declared.bind.clone(),
            to_port: declared.capture == CaptureMode::None || declared.bind.starts_with(SOCKET),
            hosts,
            only_exact,
        }
    }

    fn sets(&self, namespace: &str) -> impl Iterator<Item = &HostSet> {
        [self.hosts.get(namespace), self.hosts.get(ANY)].into_iter().flatten()
    }

    /// Whether it names a host of a namespace.
    #[must_use]
    pub(crate) fn imports(&self, namespace: &str, host: &Host) -> bool {
        self.sets(namespace).any(|set| set.has(host)) && !self.sets(namespace).any(|set| set.excludes(host))
    }

    /// Whether a name that stands for a service of a namespace may be used for it.
    #[must_use]
    pub(crate) fn imports_alias(&self, service: &Service, alias: &Host) -> bool {
        // Only the entries that brought the service count.
        self.sets(&service.namespace).find(|set| set.has(&service.host)).is_some_and(|set| set.has(alias))
    }

    /// Whether a VirtualService of sidecars applies: one of its hosts suffices.
    #[must_use]
    pub(crate) fn imports_route(&self, virtual_service: &VirtualService, client: &str) -> bool {
        let exact = virtual_service.semantics == RouteSemantics::GatewayApi;
        let namespace = &virtual_service.namespace;
        is_visible(virtual_service, client)
            && virtual_service.hosts.iter().any(|host| {
                self.sets(namespace).any(|set| if exact { set.has(host) } else { set.has_route(host) })
                    && !self.sets(namespace).any(|set| set.excludes(host))
            })
    }

    /// The one port of services that counts: a listener of a port is for that of its services. A proxy for HTTP and a
    /// socket are for all of them.
    #[must_use]
    pub(crate) fn only_port(&self) -> Option<u16> {
        let port = self.port.as_ref().filter(|port| port.number != 0 && port.protocol != Protocol::HttpProxy)?;
        Some(port.number)
    }

    /// The table of its requests, if that has the hosts of all ports: a proxy for HTTP has, and a socket.
    #[must_use]
    pub(crate) fn shared_table(&self) -> Option<Text> {
        let port = self.port.as_ref()?;
        match port.number {
            0 => Some(self.bind.clone()),
            number => (port.protocol == Protocol::HttpProxy).then(|| number.to_string().into()),
        }
    }

    /// The table of its requests, if it is for a port and takes any.
    #[must_use]
    pub(crate) fn table(&self) -> Option<Text> {
        let port = self.port.as_ref().filter(|port| port.protocol.is_http() || port.protocol.is_unsupported())?;
        Some(self.shared_table().unwrap_or_else(|| port.number.to_string().into()))
    }

    /// The service a client means by the host of `services`, which are in order of precedence, with the ports it reaches.
    #[must_use]
    pub(crate) fn service(&self, services: &[Arc<Service>], client: &str) -> Option<Arc<Service>> {
        let imported = |service: &&Arc<Service>| {
            service.export_to.allows(client)
                && self.imports(&service.namespace, &service.host)
                && self.only_port().is_none_or(|port| service.port(port).is_some())
        };
        let mut candidates: Vec<&Arc<Service>> = services.iter().filter(imported).collect();
        if self.only_exact {
            candidates.sort_by_key(|service| (service.created, &service.name, &service.namespace));
        }
        let own = candidates.iter().find(|service| *service.namespace == *client);
        let kubernetes = || candidates.iter().find(|service| service.source == ServiceSource::Kubernetes);
        let found = own.or_else(kubernetes).or(candidates.first())?;
        Some(self.only_port().map_or_else(|| (*found).clone(), |port| with_ports(found, &[port].into())))
    }

    /// The entries that name hosts to take, with their namespace.
    fn patterns(&self) -> impl Iterator<Item = (&Text, &Host)> {
        self.hosts
            .iter()
            .flat_map(|(namespace, set)| set.exact.iter().chain(&set.wildcards).map(move |host| (namespace, host)))
    }
}

/// A service as if it had these of its ports only.
pub(crate) fn with_ports(service: &Arc<Service>, ports: &BTreeSet<u16>) -> Arc<Service> {
    if service.ports.iter().all(|port| ports.contains(&port.port)) {
        return service.clone();
    }
    let mut trimmed = (**service).clone();
    trimmed.ports.retain(|port| ports.contains(&port.port));
    Arc::new(trimmed)
}

/// What the proxies of a namespace reach by their Sidecar.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct EgressScope {
    /// Which this is.
    pub(crate) scope: SidecarScope,
    /// In declared order; the last may be for every port.
    pub(crate) listeners: Vec<EgressListener>,
    /// What becomes of other traffic, where that is not as the mesh says.
    pub(crate) outbound: Option<OutboundTraffic>,
}

impl EgressScope {
    pub(super) fn new(scope: SidecarScope, egress: &[SidecarEgress], outbound: Option<OutboundTraffic>) -> Self {
        let listeners = egress.iter().map(|listener| EgressListener::new(listener, &scope.namespace)).collect();
        Self { scope, listeners, outbound }
    }

    /// The namespace of the proxies.
    #[must_use]
    pub(crate) fn namespace(&self) -> &Text {
        &self.scope.namespace
    }

    /// The view of these proxies, whatever their labels.
    #[must_use]
    pub(crate) fn view(&self) -> View {
        sidecar_view(&self.scope)
    }

    /// The listener that routes requests to a port, by its place.
    #[must_use]
    pub(crate) fn listener_for(&self, port: u16) -> Option<usize> {
        let claims = |listener: &EgressListener| listener.port.as_ref().is_none_or(|declared| declared.number == port);
        self.listeners.iter().position(claims)
    }

    /// Whether a VirtualService of sidecars applies to any listener.
    #[must_use]
    pub(crate) fn imports_route(&self, virtual_service: &VirtualService) -> bool {
        self.listeners.iter().any(|listener| listener.imports_route(virtual_service, self.namespace()))
    }

    /// The entries that name hosts to take, with their namespace, each once.
    pub(super) fn patterns(&self) -> BTreeSet<(&Text, &Host)> {
        self.listeners.iter().flat_map(EgressListener::patterns).collect()
    }
}
