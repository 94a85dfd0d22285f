//! The kinds of change, and the expectations that show that a change has arrived.

use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::change_tracker::{Expectation, ExpectedContent};
use crate::mesh_objects::MeshObjects;
use crate::objects::{self, Endpoints};
use crate::scan::Type;
use crate::shape::{Layout, Role, Service, Shape};
use crate::{ambient, gateway};

/// Addresses that a pod takes in turn. The first octet allows no more.
const MOVED_ENDPOINTS: usize = 100;

/// A kind of change.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ChangeKind {
    /// An endpoint becomes unready, then ready again.
    EndpointReady,
    /// A pod restarts with another address.
    EndpointAddress,
    /// A service gets 100 more endpoints, then loses them.
    ScaleUp,
    /// A Service with its endpoints is added.
    ServiceAdd,
    /// A Service with its endpoints is removed.
    ServiceRemove,
    /// A VirtualService for one host changes.
    #[value(alias = "vs")]
    VirtualService,
    /// A DestinationRule for one host changes.
    #[value(alias = "dr")]
    DestinationRule,
    /// An AuthorizationPolicy of one namespace changes.
    #[value(alias = "authz")]
    AuthorizationPolicy,
    /// An AuthorizationPolicy of the root namespace changes.
    #[value(alias = "authz-root")]
    AuthorizationPolicyRoot,
    /// A PeerAuthentication of one namespace changes its mode.
    PeerAuthentication,
    /// A namespace gets a Sidecar that narrows its scope to itself and one host, then loses it; needs two namespaces.
    Sidecar,
    /// The access log format in the mesh config changes.
    MeshConfig,
    /// An annotation of a Service that nothing reads changes: nothing may be sent.
    NoOp,
    /// Every pod of a namespace gets another address, one service after the other.
    RollingRestart,
    /// The certificate of the gateways is replaced; needs gateways.
    SecretRotation,
    /// A pod of a service with a waypoint restarts with another address: its waypoint gets the endpoint; needs waypoints.
    WaypointEndpoint,
    /// A VirtualService for a service with a waypoint changes; needs waypoints.
    WaypointRoute,
    /// A pod restarts with another address: every ztunnel gets the workload; needs ztunnels.
    Workload,
    /// No change.
    None,
}

impl ChangeKind {
    /// Every kind of change.
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().iter().copied().filter(|kind| *kind != Self::None).collect()
    }

    /// The option that the shape lacks, if this kind would change nothing without it.
    pub(crate) fn needs(self, shape: &Shape) -> Option<&'static str> {
        match self {
            Self::SecretRotation if shape.gateways == 0 => Some("--gateways"),
            Self::WaypointEndpoint | Self::WaypointRoute if shape.waypoints == 0 => Some("--waypoints"),
            Self::Workload if shape.ztunnels == 0 => Some("--ztunnels"),
            Self::Sidecar if shape.namespaces == 1 => Some("more --namespaces than one"),
            _ => None,
        }
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// The proxies that a change affects.
#[derive(Clone, Debug)]
pub(crate) enum AffectedProxies {
    /// Every sidecar.
    Sidecars,
    /// The sidecars that have a namespace in scope, by its number.
    InScope(usize),
    /// The sidecars in a namespace, by its number.
    Namespace(usize),
    Gateways,
    /// The waypoint of that number.
    Waypoint(usize),
    Ztunnels,
    None,
}

impl AffectedProxies {
    pub(crate) fn includes(&self, shape: &Shape, role: Role) -> bool {
        let own = match role {
            Role::Sidecar(number) => shape.proxy(number).0.namespace_number(),
            Role::Gateway(_) => return matches!(self, Self::Gateways),
            Role::Waypoint(number) => return matches!(self, Self::Waypoint(affected) if *affected == number),
            Role::Ztunnel(_) => return matches!(self, Self::Ztunnels),
        };
        match self {
            Self::Sidecars => true,
            Self::InScope(number) => match shape.layout {
                Layout::Flat => true,
                Layout::Scoped => own == *number || shape.neighbour(own) == *number,
            },
            Self::Namespace(number) => own == *number,
            Self::Gateways | Self::Waypoint(_) | Self::Ztunnels | Self::None => false,
        }
    }
}

type Write = Box<dyn FnOnce(&MeshObjects) -> Result<Instant>>;

/// One change.
pub(crate) struct PlannedChange {
    /// Prepares the change for the same proxies, and is not measured.
    pub(crate) prepare: Option<(Write, Vec<Expectation>)>,
    pub(crate) write: Write,
    pub(crate) expected: Vec<Expectation>,
    pub(crate) affected: AffectedProxies,
}

/// Options of [`plan`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    /// Number of the service that is changed, and of the namespace: the first at or after it.
    pub(crate) target: usize,
    /// Proxies subscribe to virtual hosts one by one (VHDS).
    pub(crate) by_virtual_host: bool,
    /// Proxies subscribe to endpoints one by one (LEDS).
    pub(crate) by_locality: bool,
}

/// The change of a kind in a round; rounds count from 0.
pub(crate) fn plan(kind: ChangeKind, shape: &Shape, round: usize, options: Plan) -> Result<PlannedChange> {
    let marker = format!("bench-marker-{round:04}");
    let target = shape.http_service(options.target);
    let routes = |service: Service, marker: Marker| {
        if options.by_virtual_host { host(service, marker) } else { table(service, marker) }
    };
    let assignment = |service: Service, content: ExpectedContent| {
        if options.by_locality { endpoint(content) } else { assignment(service, content) }
    };
    let home = target.namespace_number();
    let change_for_clients_of = |namespace: usize, write: Write, expected| PlannedChange {
        prepare: None,
        write,
        expected,
        affected: AffectedProxies::InScope(namespace),
    };
    let home_change = |write: Write, expected| change_for_clients_of(home, write, expected);
    Ok(match kind {
        ChangeKind::EndpointReady => {
            let endpoints = Endpoints { first_unready: round.is_multiple_of(2), ..Endpoints::default() };
            home_change(service(target, endpoints), vec![assignment(target, ExpectedContent::Any)])
        }
        ChangeKind::EndpointAddress => {
            let endpoints = Endpoints { moved: 1 + round % MOVED_ENDPOINTS, ..Endpoints::default() };
            let content = ExpectedContent::Has(endpoints.address(target, 0));
            home_change(service(target, endpoints), vec![assignment(target, content)])
        }
        ChangeKind::ScaleUp => {
            const ADDED_ENDPOINTS: usize = 100;
            let more = if round.is_multiple_of(2) { ADDED_ENDPOINTS } else { 0 };
            let endpoints = Endpoints { more, ..Endpoints::default() };
            let last = endpoints.address(target, shape.endpoints + ADDED_ENDPOINTS - 1);
            let content = if more > 0 { ExpectedContent::Has(last) } else { ExpectedContent::Lacks(last) };
            home_change(service(target, endpoints), vec![assignment(target, content)])
        }
        ChangeKind::ServiceAdd => {
            let new = additional(shape, round);
            let expected = vec![cluster(new, ExpectedContent::Any), routes(new, Marker::Present(new.host()))];
            change_for_clients_of(new.namespace_number(), service(new, Endpoints::default()), expected)
        }
        ChangeKind::ServiceRemove => {
            // Not one of the services that `ServiceAdd` adds in its rounds below 1000, or from 6000 on.
            let old = additional(shape, 1000 + round);
            let write: Write = Box::new(move |mesh| mesh.remove_service(old));
            let expected = vec![cluster(old, ExpectedContent::Removed), routes(old, Marker::Absent(old.host()))];
            let change = change_for_clients_of(old.namespace_number(), write, expected);
            let present = vec![cluster(old, ExpectedContent::Any), routes(old, Marker::Present(old.host()))];
            PlannedChange { prepare: Some((service(old, Endpoints::default()), present)), ..change }
        }
        ChangeKind::VirtualService => {
            let text = objects::virtual_service(target, &marker);
            home_change(file("virtual-service.yaml", text), vec![routes(target, Marker::Present(marker))])
        }
        ChangeKind::DestinationRule => {
            let text = objects::destination_rule(target, &marker);
            home_change(file("destination-rule.yaml", text), vec![cluster(target, ExpectedContent::Has(marker))])
        }
        ChangeKind::AuthorizationPolicy => {
            let text = objects::authorization_policy(&Shape::namespace(home), &marker);
            let write = file("authorization-policy.yaml", text);
            PlannedChange {
                affected: AffectedProxies::Namespace(home),
                ..home_change(write, vec![listener(ExpectedContent::Has(marker))])
            }
        }
        ChangeKind::AuthorizationPolicyRoot => {
            let text = objects::authorization_policy("istio-system", &marker);
            let write = file("authorization-policy-root.yaml", text);
            PlannedChange {
                affected: AffectedProxies::Sidecars,
                ..home_change(write, vec![listener(ExpectedContent::Has(marker))])
            }
        }
        ChangeKind::PeerAuthentication => {
            let number = (home + 1) % shape.namespaces;
            let mode = if round.is_multiple_of(2) { "STRICT" } else { "PERMISSIVE" };
            let write = file("peer-authentication.yaml", objects::peer_authentication(&Shape::namespace(number), mode));
            PlannedChange {
                affected: AffectedProxies::Namespace(number),
                ..home_change(write, vec![listener(ExpectedContent::Any)])
            }
        }
        ChangeKind::Sidecar => {
            const FILE: &str = "sidecar.yaml";
            let number = (home + 2) % shape.namespaces;
            let text = objects::sidecar(&Shape::namespace(number), target, shape.layout);
            let narrow = round.is_multiple_of(2);
            let write: Write = if narrow { file(FILE, text) } else { Box::new(|mesh| mesh.remove(FILE)) };
            let content = if narrow { ExpectedContent::Removed } else { ExpectedContent::Any };
            let expected = vec![Expectation { kind: Type::Cds, name: None, content }];
            PlannedChange { affected: AffectedProxies::Namespace(number), ..home_change(write, expected) }
        }
        ChangeKind::MeshConfig => {
            let text = objects::mesh_config(Some(&marker));
            let write = file("mesh.yaml", text);
            PlannedChange {
                affected: AffectedProxies::Sidecars,
                ..home_change(write, vec![listener(ExpectedContent::Has(marker))])
            }
        }
        ChangeKind::NoOp => {
            let other = shape.http_service(target.number + shape.namespaces);
            let write = service(other, Endpoints { note: round + 1, ..Endpoints::default() });
            PlannedChange { affected: AffectedProxies::None, ..home_change(write, Vec::new()) }
        }
        ChangeKind::RollingRestart => rolling_restart(shape, (home + 3) % shape.namespaces, round),
        ChangeKind::SecretRotation => {
            let (text, marker) = gateway::secret()?;
            let expected = vec![Expectation {
                kind: Type::Sds,
                name: Some(gateway::SECRET.to_owned()),
                content: ExpectedContent::Has(marker),
            }];
            PlannedChange {
                affected: AffectedProxies::Gateways,
                ..home_change(file("gateway-secret.yaml", text), expected)
            }
        }
        ChangeKind::WaypointEndpoint => {
            let endpoints = Endpoints { moved: 1 + round % MOVED_ENDPOINTS, ..Endpoints::default() };
            let content = ExpectedContent::Has(endpoints.address(target, 0));
            let expected = vec![Expectation { kind: Type::Eds, name: Some(ambient::cluster(target)), content }];
            PlannedChange {
                affected: shape.waypoint(target).map_or(AffectedProxies::None, AffectedProxies::Waypoint),
                ..home_change(service(target, endpoints), expected)
            }
        }
        ChangeKind::WaypointRoute => {
            let text = objects::virtual_service(target, &marker);
            let expected = vec![listener(ExpectedContent::Has(marker))];
            PlannedChange {
                affected: shape.waypoint(target).map_or(AffectedProxies::None, AffectedProxies::Waypoint),
                ..home_change(file("virtual-service.yaml", text), expected)
            }
        }
        ChangeKind::Workload => {
            let endpoints = Endpoints { moved: 1 + round % MOVED_ENDPOINTS, ..Endpoints::default() };
            let name = Some(ambient::workload(target, 0));
            let expected = vec![Expectation { kind: Type::Address, name, content: ExpectedContent::Any }];
            PlannedChange { affected: AffectedProxies::Ztunnels, ..home_change(service(target, endpoints), expected) }
        }
        ChangeKind::None => {
            let nothing: Write = Box::new(|_| Ok(Instant::now()));
            PlannedChange { affected: AffectedProxies::None, ..home_change(nothing, Vec::new()) }
        }
    })
}

fn rolling_restart(shape: &Shape, number: usize, round: usize) -> PlannedChange {
    let services: Vec<Service> =
        (number..shape.services).step_by(shape.namespaces).map(|number| shape.service(number)).collect();
    let endpoints = Endpoints { moved: 1 + round % MOVED_ENDPOINTS, all_moved: true, ..Endpoints::default() };
    let expected = services.last().map(|last| {
        let address = endpoints.address(*last, shape.endpoints.saturating_sub(1));
        assignment(*last, ExpectedContent::Has(address))
    });
    let write: Write = Box::new(move |mesh| {
        let start = Instant::now();
        for service in services {
            mesh.service(service, &endpoints)?;
        }
        Ok(start)
    });
    PlannedChange {
        prepare: None,
        write,
        expected: expected.into_iter().collect(),
        affected: AffectedProxies::InScope(number),
    }
}

fn file(name: &'static str, text: String) -> Write {
    Box::new(move |mesh| mesh.write(name, &text))
}

fn service(service: Service, endpoints: Endpoints) -> Write {
    Box::new(move |mesh| mesh.service(service, &endpoints))
}

/// An HTTP service beyond those of the shape.
fn additional(shape: &Shape, number: usize) -> Service {
    let mut service = shape.service(shape.services + number);
    while service.is_tcp() {
        service = shape.service(service.number + shape.namespaces * 1001);
    }
    service
}

/// The cluster of a service, with a content.
pub(crate) fn cluster(service: Service, content: ExpectedContent) -> Expectation {
    Expectation { kind: Type::Cds, name: Some(service.cluster()), content }
}

fn assignment(service: Service, content: ExpectedContent) -> Expectation {
    Expectation { kind: Type::Eds, name: Some(service.cluster()), content }
}

/// An endpoint as a resource of its own.
fn endpoint(content: ExpectedContent) -> Expectation {
    let content = match content {
        ExpectedContent::Lacks(_) => ExpectedContent::Removed,
        content => content,
    };
    Expectation { kind: Type::Leds, name: None, content }
}

/// A text whose presence or absence shows that the routes of a service have changed.
pub(crate) enum Marker {
    Present(String),
    Absent(String),
}

/// The route table of a service's port, with or without a text.
pub(crate) fn table(service: Service, marker: Marker) -> Expectation {
    let content = match marker {
        Marker::Present(text) => ExpectedContent::Has(text),
        Marker::Absent(text) => ExpectedContent::Lacks(text),
    };
    Expectation { kind: Type::Rds, name: Some(service.port().to_string()), content }
}

fn host(service: Service, marker: Marker) -> Expectation {
    let content = match marker {
        Marker::Present(text) => ExpectedContent::Has(text),
        Marker::Absent(_) => ExpectedContent::Removed,
    };
    Expectation { kind: Type::Vhds, name: Some(service.virtual_host()), content }
}

fn listener(content: ExpectedContent) -> Expectation {
    Expectation { kind: Type::Lds, name: None, content }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh_objects::ObjectTarget;

    const SHAPE: Shape = Shape {
        services: 60,
        namespaces: 4,
        endpoints: 2,
        service_entries: 1,
        gateways: 1,
        waypoints: 3,
        ztunnels: 1,
        layout: Layout::Flat,
    };

    #[test]
    fn every_kind_changes_something_in_every_round() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let mesh = MeshObjects::create(ObjectTarget::directory(directory.path())?, &SHAPE)?;
        let read = |directory: &std::path::Path| -> Result<Vec<(std::path::PathBuf, String)>> {
            let mut files = Vec::new();
            let folders = (0..SHAPE.namespaces).map(|n| directory.join(Shape::namespace(n)));
            for folder in folders.chain([directory.to_owned()]) {
                for entry in std::fs::read_dir(folder)? {
                    let path = entry?.path();
                    if path.is_file() {
                        files.push((path.clone(), std::fs::read_to_string(path)?));
                    }
                }
            }
            files.sort();
            Ok(files)
        };
        for kind in ChangeKind::all() {
            for round in 0..3 {
                let change = plan(kind, &SHAPE, round, Plan::default())?;
                if let Some((prepare, _)) = change.prepare {
                    prepare(&mesh)?;
                }
                let old = read(directory.path())?;
                (change.write)(&mesh)?;
                assert_ne!(old, read(directory.path())?, "{kind:?} in round {round}");
                let affects_none = matches!(change.affected, AffectedProxies::None);
                assert_eq!(change.expected.is_empty(), affects_none, "{kind:?} has expectations");
            }
        }
        Ok(())
    }

    #[test]
    fn proxy_is_in_the_namespace_of_its_service() {
        let affected = AffectedProxies::Namespace(1);
        let proxies = |shape: &Shape, affected: &AffectedProxies| -> Vec<usize> {
            (0..70).filter(|proxy| affected.includes(shape, Role::Sidecar(*proxy))).collect()
        };
        let found = proxies(&SHAPE, &affected);
        assert_eq!((found[0], found[1], found.len()), (1, 5, 18));
        let scoped = Shape { layout: Layout::Scoped, ..SHAPE };
        assert_eq!(
            proxies(&scoped, &AffectedProxies::InScope(0))[..4],
            [0, 3, 4, 7],
            "namespace 0, and namespace 3, whose Sidecar imports it"
        );
        assert!(
            !affected.includes(&SHAPE, Role::Gateway(0))
                && AffectedProxies::Gateways.includes(&SHAPE, Role::Gateway(0))
        );
        let of_waypoint = AffectedProxies::Waypoint(1);
        let waypoints: Vec<usize> =
            (0..3).filter(|number| of_waypoint.includes(&SHAPE, Role::Waypoint(*number))).collect();
        assert_eq!(waypoints, [1]);
    }
}
