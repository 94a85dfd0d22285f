//! How many parts of the configuration a patch of an EnvoyFilter may match, for limits on what it may cost (T06).
//!
//! The numbers are sums over the objects of the mesh, rounded up, so that few changes of objects change them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Incremental, Value};
use sluice_model::{
    ApplyTo, Attachment, DestinationRule, EnvoyPatch, Gateway, ObjectKey, ObjectMatch, PatchContext, PatchOperation,
    RouteTableMatch, Service, ServiceKey, VirtualService,
};

/// The parts of the configuration that a patch may match.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) enum PatchedParts {
    /// Those of one resource that the patch names, or of one workload.
    Named,
    /// HTTP connection managers, and route tables.
    HttpListeners,
    /// Clusters, listeners and filter chains.
    Clusters,
    /// Virtual hosts and their routes.
    Routes,
}

/// Numbers of parts that the proxies of a mesh may have.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct PartCounts {
    pub(super) http_listeners: usize,
    pub(super) clusters: usize,
    pub(super) routes: usize,
}

impl PatchedParts {
    /// The parts that a patch may match; `ambient` is whether there may be waypoints.
    pub(super) fn of(patch: &EnvoyPatch, attachment: &Attachment, ambient: bool) -> Self {
        // The listener of a waypoint has filter chains for each service. The inbound listener of a sidecar has those of a
        // workload.
        let at_waypoint = ambient && attachment.has_targets();
        let of_workload = patch.context == PatchContext::SidecarInbound && !at_waypoint;
        // Listeners of many services may have the same port.
        let has_only_port =
            matches!(&patch.object, ObjectMatch::Listener(listener) if listener.name.is_empty() && listener.port != 0);
        if of_workload || (!is_repeated(patch) && !has_only_port) {
            return Self::Named;
        }
        match patch.apply_to {
            ApplyTo::ExtensionConfig => Self::Named,
            ApplyTo::HttpFilter if !at_waypoint => Self::HttpListeners,
            ApplyTo::RouteConfiguration => Self::HttpListeners,
            ApplyTo::VirtualHost | ApplyTo::HttpRoute => Self::Routes,
            ApplyTo::HttpFilter
            | ApplyTo::Cluster
            | ApplyTo::Listener
            | ApplyTo::FilterChain
            | ApplyTo::NetworkFilter
            | ApplyTo::ListenerFilter => Self::Clusters,
        }
    }

    /// Their number, at least 1.
    pub(super) fn count(self, counts: PartCounts) -> usize {
        let count = match self {
            Self::Named => 1,
            Self::HttpListeners => counts.http_listeners,
            Self::Clusters => counts.clusters,
            Self::Routes => counts.routes,
        };
        count.max(1)
    }
}

/// Whether a patch copies its value into every resource, or part of one, that it does not name.
pub(super) fn is_repeated(patch: &EnvoyPatch) -> bool {
    let adds_resource = patch.operation == PatchOperation::Add;
    let names_table = |table: &RouteTableMatch| !table.name.is_empty() || !table.gateway.is_empty() || table.port != 0;
    let names_object = match &patch.object {
        ObjectMatch::Any => false,
        ObjectMatch::Cluster(cluster) => !cluster.name.is_empty() || !cluster.service.is_empty(),
        ObjectMatch::Listener(listener) => !listener.name.is_empty() || listener.port != 0,
        ObjectMatch::RouteTable(table) => match patch.apply_to {
            ApplyTo::RouteConfiguration => names_table(table),
            ApplyTo::VirtualHost if adds_resource => names_table(table),
            _ => table.virtual_host.as_ref().is_some_and(|host| !host.name.is_empty() || !host.domain.is_empty()),
        },
    };
    match patch.apply_to {
        ApplyTo::ExtensionConfig => false,
        ApplyTo::Listener | ApplyTo::Cluster if adds_resource => false,
        _ => !names_object,
    }
}

/// The objects whose parts are counted.
pub(crate) struct PartInputs<'a, 's> {
    pub(crate) services: &'a Collection<'s, ServiceKey, Service>,
    pub(crate) destination_rules: &'a Collection<'s, ObjectKey, DestinationRule>,
    pub(crate) virtual_services: &'a Collection<'s, ObjectKey, VirtualService>,
    pub(crate) gateways: &'a Collection<'s, ObjectKey, Gateway>,
}

/// Numbers of parts by the kind of the objects that they are for.
pub(super) struct PartSums<'s> {
    services: Collection<'s, (), PartsOfServices>,
    subsets: Collection<'s, (), usize>,
    routes: Collection<'s, (), usize>,
    servers: Collection<'s, (), usize>,
}

/// Looks up the numbers of parts.
pub(super) struct PartLookup {
    services: Dep<(), PartsOfServices>,
    subsets: Dep<(), usize>,
    routes: Dep<(), usize>,
    servers: Dep<(), usize>,
}

/// The numbers of parts of all services, rounded up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PartsOfServices {
    ports: usize,
    http_listeners: usize,
}

/// Numbers of parts.
/// Key: `()`. From: `services`, `destination_rules`, `virtual_services`, `gateways`.
/// Changes when: a number exceeds the one that it is rounded to, or falls to a smaller one. Size: 1 each. Rejects: none.
pub(super) fn derive_part_sums<'s>(inputs: &PartInputs<'_, 's>) -> PartSums<'s> {
    let routes = |routed: &VirtualService| routed.hosts.len().max(1) * routed.http.len();
    PartSums {
        services: inputs.services.incremental("patched_parts/services", ServiceSum::default),
        subsets: inputs
            .destination_rules
            .incremental("patched_parts/subsets", || RoundedSum::new(|rule: &DestinationRule| rule.subsets.len())),
        routes: inputs.virtual_services.incremental("patched_parts/routes", move || RoundedSum::new(routes)),
        servers: inputs
            .gateways
            .incremental("patched_parts/servers", || RoundedSum::new(|gateway: &Gateway| gateway.servers.len())),
    }
}

impl PartLookup {
    /// Declares the look-up.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, sums: &PartSums<'s>) -> Self {
        Self {
            services: deps.on(&sums.services),
            subsets: deps.on(&sums.subsets),
            routes: deps.on(&sums.routes),
            servers: deps.on(&sums.servers),
        }
    }

    /// The numbers of parts.
    pub(super) fn get(&self, cx: &Context) -> PartCounts {
        let sum = |of: &Dep<(), usize>| cx.get(of, &()).map_or(0, |sum| *sum);
        let services = cx.get(&self.services, &()).map(|parts| *parts).unwrap_or_default();
        PartCounts {
            http_listeners: services.http_listeners + sum(&self.servers),
            clusters: services.ports + sum(&self.subsets),
            routes: services.ports + sum(&self.routes),
        }
    }
}

/// A number with its three most significant binary digits, rounded up: at most a quarter more.
fn rounded_up(number: usize) -> usize {
    let digits = usize::BITS - number.leading_zeros();
    let step = 1 << digits.saturating_sub(3);
    number.div_ceil(step).saturating_mul(step)
}

/// The sum of a number of each object, rounded up.
struct RoundedSum<V> {
    number: fn(&V) -> usize,
    sum: usize,
}

impl<V> RoundedSum<V> {
    fn new(number: fn(&V) -> usize) -> Self {
        Self { number, sum: 0 }
    }
}

impl<V: Value> Incremental<ObjectKey, V> for RoundedSum<V> {
    type Key = ();
    type Value = usize;

    fn change(&mut self, _: &ObjectKey, old: Option<&V>, new: Option<&V>) {
        let number = |value: Option<&V>| value.map_or(0, self.number);
        self.sum = self.sum + number(new) - number(old);
    }

    fn settle(&mut self) -> Vec<((), Option<usize>)> {
        vec![((), (self.sum > 0).then(|| rounded_up(self.sum)))]
    }

    fn owner((): &()) -> Option<ObjectKey> {
        None
    }
}

/// The parts of all services.
#[derive(Default)]
struct ServiceSum {
    ports: usize,
    /// Ports whose protocol is detected: each has a listener with an HTTP connection manager.
    detected: usize,
    /// Services by their ports of HTTP, which share a listener.
    http: BTreeMap<u16, usize>,
}

impl ServiceSum {
    fn detected(service: &Service) -> usize {
        service.ports.iter().filter(|port| port.protocol.is_unsupported()).count()
    }

    fn http(service: &Service) -> BTreeSet<u16> {
        service.ports.iter().filter(|port| port.protocol.is_http()).map(|port| port.port).collect()
    }
}

impl Incremental<ServiceKey, Service> for ServiceSum {
    type Key = ();
    type Value = PartsOfServices;

    fn change(&mut self, _: &ServiceKey, old: Option<&Service>, new: Option<&Service>) {
        if let Some(service) = new {
            self.ports += service.ports.len();
            self.detected += Self::detected(service);
            for port in Self::http(service) {
                *self.http.entry(port).or_default() += 1;
            }
        }
        if let Some(service) = old {
            self.ports -= service.ports.len();
            self.detected -= Self::detected(service);
            for port in Self::http(service) {
                let services = self.http.entry(port).or_default();
                *services -= 1;
                if *services == 0 {
                    self.http.remove(&port);
                }
            }
        }
    }

    fn settle(&mut self) -> Vec<((), Option<PartsOfServices>)> {
        let parts = PartsOfServices {
            ports: rounded_up(self.ports),
            http_listeners: rounded_up(self.http.len() + self.detected),
        };
        vec![((), (self.ports > 0).then_some(parts))]
    }

    fn owner((): &()) -> Option<ServiceKey> {
        None
    }
}

#[cfg(test)]
mod tests;
