//! The egress listeners of a Sidecar, compiled for a namespace: the hosts that its proxies reach.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use sluice_model::{
    CaptureMode, Host, OutboundTraffic, Protocol, RouteSemantics, Service, SidecarEgress, SidecarPort, SidecarScope,
    Text, UNIX_PREFIX, View, VirtualService,
};

use crate::registry::services::{HostServices, preferred};
use crate::traffic::virtual_services::is_visible;
use crate::views::sidecar_view;

/// The namespace of entries for all namespaces, and the host that matches all hosts.
const ANY: &str = "*";

/// The hosts that a listener lists for a namespace.
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

    /// A VirtualService also matches if its wildcard host covers a listed host.
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
    /// Its port; `None` is every port that no other listener declares.
    pub(crate) port: Option<SidecarPort>,
    /// The address it listens at; empty for the addresses of the services.
    pub(crate) bind: Text,
    /// Clients connect to it directly, whatever the interception mode.
    pub(crate) to_port: bool,
    hosts: BTreeMap<Text, HostSet>,
    /// Every host is listed exactly: then the oldest service is reached, also if it is exported to all.
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
            to_port: declared.capture == CaptureMode::None || declared.bind.starts_with(UNIX_PREFIX),
            hosts,
            only_exact,
        }
    }

    fn sets(&self, namespace: &str) -> impl Iterator<Item = &HostSet> {
        [self.hosts.get(namespace), self.hosts.get(ANY)].into_iter().flatten()
    }

    /// Whether it lists a host of a namespace.
    #[must_use]
    pub(crate) fn imports(&self, namespace: &str, host: &Host) -> bool {
        self.sets(namespace).any(|set| set.has(host)) && !self.sets(namespace).any(|set| set.excludes(host))
    }

    /// Whether an alias of a service may be used for it.
    #[must_use]
    pub(crate) fn imports_alias(&self, service: &Service, alias: &Host) -> bool {
        // Only the first entry that lists the service counts.
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

    /// The only port of services that is reached: that of the listener. An HTTP proxy and a socket reach all ports.
    #[must_use]
    pub(crate) fn only_port(&self) -> Option<u16> {
        let port = self.port.as_ref().filter(|port| port.number != 0 && port.protocol != Protocol::HttpProxy)?;
        Some(port.number)
    }

    /// The route table, if it has the hosts of all ports: that of an HTTP proxy or of a socket.
    #[must_use]
    pub(crate) fn shared_table(&self) -> Option<Text> {
        let port = self.port.as_ref()?;
        match port.number {
            0 => Some(self.bind.clone()),
            number => (port.protocol == Protocol::HttpProxy).then(|| number.to_string().into()),
        }
    }

    /// The route table, if the listener has a port and routes requests.
    #[must_use]
    pub(crate) fn table(&self) -> Option<Text> {
        let port = self.port.as_ref().filter(|port| port.protocol.is_http() || port.protocol.is_unsupported())?;
        Some(self.shared_table().unwrap_or_else(|| port.number.to_string().into()))
    }

    /// The service that a client reaches at the host of `services`, with the ports it reaches.
    #[must_use]
    pub(crate) fn service(&self, services: &HostServices, client: &str) -> Option<Arc<Service>> {
        let imported = |service: &&Arc<Service>| {
            service.export_to.allows(client)
                && self.imports(&service.namespace, &service.host)
                && self.only_port().is_none_or(|port| service.port(port).is_some())
        };
        let mut candidates: Vec<&Arc<Service>> = services.iter().filter(imported).collect();
        if self.only_exact {
            candidates.sort_by_key(|service| (service.created, &service.name, &service.namespace));
        }
        let found = preferred(candidates.into_iter(), client)?;
        Some(self.only_port().map_or_else(|| found.clone(), |port| with_ports(found, &[port].into())))
    }

    /// The entries that list hosts, without exclusions, with their namespace.
    fn patterns(&self) -> impl Iterator<Item = (&Text, &Host)> {
        self.hosts
            .iter()
            .flat_map(|(namespace, set)| set.exact.iter().chain(&set.wildcards).map(move |host| (namespace, host)))
    }
}

/// The service with only these ports.
pub(crate) fn with_ports(service: &Arc<Service>, ports: &BTreeSet<u16>) -> Arc<Service> {
    if service.ports.iter().all(|port| ports.contains(&port.port)) {
        return service.clone();
    }
    let mut trimmed = (**service).clone();
    trimmed.ports.retain(|port| ports.contains(&port.port));
    Arc::new(trimmed)
}

/// The egress listeners of a Sidecar, for the proxies of a namespace.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct EgressScope {
    /// The Sidecar and the namespace.
    pub(crate) scope: SidecarScope,
    /// In declared order; the last one may be for every port.
    pub(crate) listeners: Vec<EgressListener>,
    /// The outbound traffic policy, where it differs from that of the mesh.
    pub(crate) outbound: Option<OutboundTraffic>,
}

impl EgressScope {
    pub(crate) fn new(scope: SidecarScope, egress: &[SidecarEgress], outbound: Option<OutboundTraffic>) -> Self {
        let listeners = egress.iter().map(|listener| EgressListener::new(listener, &scope.namespace)).collect();
        Self { scope, listeners, outbound }
    }

    /// The namespace of the proxies.
    #[must_use]
    pub(crate) fn namespace(&self) -> &Text {
        &self.scope.namespace
    }

    /// The view of these proxies, with any labels.
    #[must_use]
    pub(crate) fn view(&self) -> View {
        sidecar_view(&self.scope)
    }

    /// Index of the listener that routes requests to a port.
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

    /// The entries that list hosts, without exclusions, with their namespace, each once.
    pub(super) fn patterns(&self) -> BTreeSet<(&Text, &Host)> {
        self.listeners.iter().flat_map(EgressListener::patterns).collect()
    }
}
