//! The kinds of change, and by what each is known to have arrived.

use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::objects::{self, Endpoints};
use crate::scan::Type;
use crate::shape::{Service, Shape};
use crate::watch::{Content, Expectation};
use crate::world::World;

/// A kind of change.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// An endpoint becomes unready, then ready again.
    EndpointReady,
    /// A pod comes back with another address.
    EndpointAddress,
    /// A service gets 100 endpoints more, then loses them.
    ScaleUp,
    /// A Service with its endpoints comes.
    ServiceAdd,
    /// A Service with its endpoints goes.
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
    /// A namespace gets a Sidecar that narrows its scope, then loses it.
    Sidecar,
    /// The mesh config changes the access log's format.
    MeshConfig,
    /// A Service gets another annotation that nothing reads: nothing may be sent.
    NoOp,
    /// Every pod of a namespace gets another address, a service after another.
    RollingRestart,
    /// No change.
    None,
}

impl Kind {
    /// Every kind of change.
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().iter().copied().filter(|kind| *kind != Self::None).collect()
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Whose proxies a change concerns.
#[derive(Clone, Debug)]
pub(crate) enum Concerned {
    Everyone,
    /// By number of the namespace.
    Namespace(usize),
    Nobody,
}

impl Concerned {
    pub(crate) fn has(&self, shape: &Shape, proxy: usize) -> bool {
        match self {
            Self::Everyone => true,
            Self::Namespace(number) => shape.proxy(proxy).0.number % shape.namespaces == *number,
            Self::Nobody => false,
        }
    }
}

type Write = Box<dyn FnOnce(&World) -> Result<Instant>>;

/// One change.
pub(crate) struct Change {
    /// Made before, and not measured.
    pub(crate) before: Option<Write>,
    pub(crate) write: Write,
    pub(crate) expected: Vec<Expectation>,
    pub(crate) concerned: Concerned,
}

/// The change of a kind in a round; rounds count from 0.
pub(crate) fn plan(kind: Kind, shape: &Shape, round: usize) -> Change {
    let marker = format!("bench-marker-{round:04}");
    let target = shape.http_service(0);
    let everyone = |write: Write, expected| Change { before: None, write, expected, concerned: Concerned::Everyone };
    match kind {
        Kind::EndpointReady => {
            let endpoints = Endpoints { first_unready: round.is_multiple_of(2), ..Endpoints::default() };
            everyone(service(target, endpoints), vec![assignment(target, Content::Any)])
        }
        Kind::EndpointAddress => {
            let endpoints = Endpoints { moved: round + 1, ..Endpoints::default() };
            let content = Content::Has(endpoints.address(target, 0));
            everyone(service(target, endpoints), vec![assignment(target, content)])
        }
        Kind::ScaleUp => {
            const MORE: usize = 100;
            let more = if round.is_multiple_of(2) { MORE } else { 0 };
            let endpoints = Endpoints { more, ..Endpoints::default() };
            let last = endpoints.address(target, shape.endpoints + MORE - 1);
            let content = if more > 0 { Content::Has(last) } else { Content::Lacks(last) };
            everyone(service(target, endpoints), vec![assignment(target, content)])
        }
        Kind::ServiceAdd => {
            let new = additional(shape, round);
            everyone(
                service(new, Endpoints::default()),
                vec![cluster(new, Content::Any), table(new, Content::Has(new.host()))],
            )
        }
        Kind::ServiceRemove => {
            // Another service than `ServiceAdd` makes.
            let old = additional(shape, 1000 + round);
            let write: Write = Box::new(move |world| world.remove_service(old));
            let expected = vec![cluster(old, Content::Gone), table(old, Content::Lacks(old.host()))];
            Change { before: Some(service(old, Endpoints::default())), ..everyone(write, expected) }
        }
        Kind::VirtualService => {
            let text = objects::virtual_service(target, &marker);
            everyone(file("virtual-service.yaml", text), vec![table(target, Content::Has(marker))])
        }
        Kind::DestinationRule => {
            let text = objects::destination_rule(target, &marker);
            everyone(file("destination-rule.yaml", text), vec![cluster(target, Content::Has(marker))])
        }
        Kind::AuthorizationPolicy => {
            let text = objects::authorization_policy(&Shape::namespace(0), &marker);
            let write = file("authorization-policy.yaml", text);
            Change { concerned: Concerned::Namespace(0), ..everyone(write, vec![listener(Content::Has(marker))]) }
        }
        Kind::AuthorizationPolicyRoot => {
            let text = objects::authorization_policy("istio-system", &marker);
            everyone(file("authorization-policy-root.yaml", text), vec![listener(Content::Has(marker))])
        }
        Kind::PeerAuthentication => {
            let number = 1 % shape.namespaces;
            let mode = if round.is_multiple_of(2) { "STRICT" } else { "PERMISSIVE" };
            let write = file("peer-authentication.yaml", objects::peer_authentication(&Shape::namespace(number), mode));
            Change { concerned: Concerned::Namespace(number), ..everyone(write, vec![listener(Content::Any)]) }
        }
        Kind::Sidecar => {
            const FILE: &str = "sidecar.yaml";
            let number = 2 % shape.namespaces;
            let text = objects::sidecar(&Shape::namespace(number), target);
            let narrow = round.is_multiple_of(2);
            let write: Write = if narrow { file(FILE, text) } else { Box::new(|world| world.remove(FILE)) };
            let content = if narrow { Content::Gone } else { Content::Any };
            let expected = vec![Expectation { kind: Type::Cds, name: None, content }];
            Change { concerned: Concerned::Namespace(number), ..everyone(write, expected) }
        }
        Kind::MeshConfig => {
            let text = objects::mesh_config(Some(&marker));
            everyone(file("mesh.yaml", text), vec![listener(Content::Has(marker))])
        }
        Kind::NoOp => {
            let other = shape.http_service(shape.namespaces);
            let write = service(other, Endpoints { note: round + 1, ..Endpoints::default() });
            Change { concerned: Concerned::Nobody, ..everyone(write, Vec::new()) }
        }
        Kind::RollingRestart => rolling_restart(shape, round),
        Kind::None => {
            let nothing: Write = Box::new(|_| Ok(Instant::now()));
            Change { concerned: Concerned::Nobody, ..everyone(nothing, Vec::new()) }
        }
    }
}

fn rolling_restart(shape: &Shape, round: usize) -> Change {
    let number = 3 % shape.namespaces;
    let services: Vec<Service> =
        (number..shape.services).step_by(shape.namespaces).map(|number| shape.service(number)).collect();
    let endpoints = Endpoints { moved: round + 1, all_moved: true, ..Endpoints::default() };
    let expected = services.last().map(|last| {
        let address = endpoints.address(*last, shape.endpoints.saturating_sub(1));
        assignment(*last, Content::Has(address))
    });
    let write: Write = Box::new(move |world| {
        let start = Instant::now();
        for service in services {
            world.service(service, &endpoints)?;
        }
        Ok(start)
    });
    Change { before: None, write, expected: expected.into_iter().collect(), concerned: Concerned::Everyone }
}

fn file(name: &'static str, text: String) -> Write {
    Box::new(move |world| world.write(name, &text))
}

fn service(service: Service, endpoints: Endpoints) -> Write {
    Box::new(move |world| world.service(service, &endpoints))
}

/// An HTTP service beyond those of the shape.
fn additional(shape: &Shape, number: usize) -> Service {
    let mut service = shape.service(shape.services + number);
    while service.is_tcp() {
        service = shape.service(service.number + 20_000);
    }
    service
}

fn cluster(service: Service, content: Content) -> Expectation {
    Expectation { kind: Type::Cds, name: Some(service.cluster()), content }
}

fn assignment(service: Service, content: Content) -> Expectation {
    Expectation { kind: Type::Eds, name: Some(service.cluster()), content }
}

fn table(service: Service, content: Content) -> Expectation {
    Expectation { kind: Type::Rds, name: Some(service.port().to_string()), content }
}

fn listener(content: Content) -> Expectation {
    Expectation { kind: Type::Lds, name: None, content }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { services: 60, namespaces: 4, endpoints: 2, service_entries: 1 };

    #[test]
    fn every_kind_changes_something_in_every_round() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let world = World::lay(directory.path(), &SHAPE)?;
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
        for kind in Kind::all() {
            for round in 0..3 {
                let change = plan(kind, &SHAPE, round);
                if let Some(before) = change.before {
                    before(&world)?;
                }
                let old = read(directory.path())?;
                (change.write)(&world)?;
                assert_ne!(old, read(directory.path())?, "{kind:?} in round {round}");
                let nobody = matches!(change.concerned, Concerned::Nobody);
                assert_eq!(change.expected.is_empty(), nobody, "{kind:?} is known by something");
            }
        }
        Ok(())
    }

    #[test]
    fn a_namespace_is_that_of_the_proxys_service() {
        let concerned = Concerned::Namespace(1);
        let proxies: Vec<usize> = (0..70).filter(|proxy| concerned.has(&SHAPE, *proxy)).collect();
        assert_eq!((proxies[0], proxies[1], proxies.len()), (1, 5, 18));
    }
}
