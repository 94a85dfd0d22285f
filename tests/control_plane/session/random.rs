//! Clients with random steps that follow the protocol end with exactly the resources of their scope.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;
use sluice_model::{Resource, ResourceType, Template, TemplatePart};
use sluice_xds_protocol::XdsProtocol;

use super::client::{ScriptedClient, message};
use super::fixture::{SIDECAR, SessionFixture};

use ResourceType::{Cluster, Endpoint, Listener, Route};

const LAYERS: [&str; 4] = ["own", "shared", "base", ON_DEMAND];
/// The layer of resources that a client has to name.
const ON_DEMAND: &str = "on-demand:base";
const KINDS: [ResourceType; 4] = [Cluster, Endpoint, Listener, Route];
/// A proxy with the same layers, for which templates have other values.
const NEIGHBOUR: &str = "sidecar~10.0.0.2~till.orchard~orchard.svc.cluster.local";

#[derive(Clone, Debug)]
enum Step {
    /// Sets (or removes, or hides) a resource of a layer.
    Set { kind: usize, layer: usize, name: u8, content: Option<u8> },
    /// The same for a segment of route table `t0` or `t1`.
    Segment { layer: usize, table: u8, segment: u8, content: Option<u8> },
    /// Ends the epoch.
    Commit,
    /// Changes the order of the layers of the scopes, and the value of their slot.
    Scope { order: u8, number: u8 },
    /// The client receives one response.
    Receive,
    /// The client receives a response with endpoints, while other types wait for a push permit.
    ReceiveEndpoints,
    /// The client of the neighbour receives and acknowledges all responses.
    NeighbourReceives,
    /// The client acknowledges a response, or rejects it. It holds the resources in both cases.
    Answer { reject: bool },
    /// The client changes the names that it subscribes to.
    Names { kind: usize, add: u8, remove: u8 },
    /// The client reconnects with the versions it holds.
    Reconnect,
    /// Time passes.
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let content = || prop_oneof![3 => (0u8..4).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        6 => (0usize..4, 0usize..4, 0u8..8, content()).prop_map(|(kind, layer, name, content)| Step::Set { kind, layer, name, content }),
        4 => (0usize..3, 0u8..2, 0u8..6, content()).prop_map(|(layer, table, segment, content)| Step::Segment { layer, table, segment, content }),
        6 => Just(Step::Commit),
        1 => (0u8..6, 0u8..2).prop_map(|(order, number)| Step::Scope { order, number }),
        8 => Just(Step::Receive),
        2 => Just(Step::ReceiveEndpoints),
        4 => Just(Step::NeighbourReceives),
        8 => prop::bool::weighted(0.1).prop_map(|reject| Step::Answer { reject }),
        3 => (0usize..3, 0u8..8, 0u8..8).prop_map(|(kind, add, remove)| Step::Names { kind: [0, 1, 3][kind], add, remove }),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Wait),
    ]
}

fn name(kind: ResourceType, name: u8) -> String {
    // Some routes are single resources, some consist of segments.
    if kind == Route && name < 2 { format!("t{name}") } else { format!("n{name}") }
}

fn scope(order: u8) -> Vec<&'static str> {
    match order {
        0 => vec!["base"],
        1 => vec!["own", "base"],
        2 => vec!["shared", "base"],
        3 => vec!["own", "shared", "base"],
        4 => vec!["shared", "own", "base"],
        _ => vec!["own"],
    }
}

/// `on_demand`: the scope has a layer of resources that the client has to name, as it does for clusters.
fn run(protocol: XdsProtocol, on_demand: bool, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mesh = SessionFixture::new();
    let scope = |order, number: u8| {
        let mut layers = scope(order);
        layers.extend(on_demand.then_some(ON_DEMAND));
        for proxy in [SIDECAR, NEIGHBOUR] {
            mesh.scope_with(proxy, None, &format!("{proxy} {number}"), &layers);
        }
    };
    scope(0, 0);
    mesh.commit();
    let [mut client, mut neighbour] = [SIDECAR, NEIGHBOUR].map(|proxy| {
        let mut client = ScriptedClient::connect_as(proxy, &mesh, protocol);
        match on_demand {
            true => client.want(Cluster, &["*"]),
            false => client.want_all(Cluster),
        }
        client.want(Endpoint, &["n0", "n1"]);
        client.want_all(Listener);
        client.want(Route, &["t0", "n3"]);
        client
    });
    for step in steps {
        match step {
            Step::Set { kind, layer, name: n, content } => {
                let (kind, layer) = (KINDS[kind], LAYERS[layer]);
                let name = name(kind, n);
                match content {
                    None => mesh.delete(kind, layer, &name),
                    Some(0) => mesh.put(kind, layer, &name, Some(Resource::Hidden)),
                    Some(3) if kind == Listener => mesh.put(kind, layer, &name, Some(template(&name, layer))),
                    Some(content) => {
                        let content = format!("{content} of {layer}");
                        match kind {
                            Cluster => mesh.cluster(layer, &name, &content),
                            kind => mesh.set(kind, layer, &name, &message(&name, &content)),
                        }
                    }
                }
            }
            Step::Segment { layer, table, segment, content } => {
                let name = format!("t{table}");
                let own = segment == 0;
                let content = content.map(|content| match content {
                    0 => Resource::Hidden,
                    content if own => Resource::Encoded(message(&name, &content.to_string()).into()),
                    content => Resource::Encoded(Bytes::from(vec![b'x'; usize::from(content)])),
                });
                mesh.segment(LAYERS[layer], &name, &if own { String::new() } else { format!("s{segment}") }, content);
            }
            Step::Commit => mesh.commit(),
            Step::Scope { order, number } => scope(order, number),
            Step::Receive => {
                client.receive();
            }
            Step::ReceiveEndpoints => {
                client.receive_endpoints();
            }
            Step::NeighbourReceives => {
                neighbour.settle();
            }
            Step::Answer { reject } => {
                client.answer(reject.then_some("rejected"));
            }
            Step::Names { kind, add, remove } => {
                let kind = KINDS[kind];
                if kind == Cluster && !on_demand {
                    continue;
                }
                let add = name(kind, add);
                // Envoy keeps the clusters that it has requested on demand.
                let remove = if kind == Cluster { add.clone() } else { name(kind, remove) };
                let wanted = client.wants[&kind].clone().unwrap_or_default();
                // Names change only after the last response is acknowledged. At least one name stays.
                let is_idle = client.unanswered.iter().all(|response| response.kind() != kind);
                if is_idle && (kind == Cluster || wanted.len() > 1 && add != remove) {
                    let add = (!wanted.contains(&add)).then_some(add.as_str());
                    let remove = (kind != Cluster && wanted.contains(&remove)).then_some(remove.as_str());
                    client.change(kind, add.as_slice(), remove.as_slice());
                }
            }
            Step::Reconnect => client = client.reconnect(&mesh),
            Step::Wait => client.now += std::time::Duration::from_secs(3),
        }
    }
    mesh.commit();
    for (proxy, mut client) in [(SIDECAR, client), (NEIGHBOUR, neighbour)] {
        client.settle();
        for kind in KINDS {
            let mut expect = mesh.current(proxy, kind);
            let names = client.wants[&kind].clone().unwrap_or_else(|| BTreeSet::from(["*".to_owned()]));
            let is_on_demand = |content: &Bytes| String::from_utf8_lossy(content).contains(ON_DEMAND);
            expect.retain(|name, content| names.contains(name) || names.contains("*") && !is_on_demand(content));
            let mut holds: BTreeMap<String, Bytes> =
                client.holds[&kind].iter().map(|(name, (_, bytes))| (name.clone(), bytes.clone())).collect();
            if protocol == XdsProtocol::Sotw && !kind.is_wildcard() {
                // The protocol has no field for removed resources.
                let removed: BTreeSet<String> =
                    holds.keys().filter(|name| !expect.contains_key(*name)).cloned().collect();
                holds.retain(|name, _| !removed.contains(name));
            }
            prop_assert_eq!(holds, expect, "{} {:?}", proxy, kind);
        }
        prop_assert!(client.settle().is_empty(), "no response is pending");
    }
    Ok(())
}

/// A resource with a field for the proxy.
fn template(name: &str, layer: &str) -> Resource {
    // Field 2, of variable length.
    let before = [message(name, layer), vec![0x12]].concat();
    let proxy = TemplatePart::Nested(vec![TemplatePart::Slot("who".into())]);
    Resource::Template(Template::new(vec![TemplatePart::Bytes(before.into()), proxy]))
}

/// An epoch of clusters and routes: the clusters with their content, the cluster of each route, and the following steps of
/// the client: it receives (true) or acknowledges (false).
type RouteEpoch = (BTreeMap<u8, u8>, Vec<u8>, Vec<bool>);

fn epochs() -> impl Strategy<Value = Vec<RouteEpoch>> {
    let epoch = prop::collection::btree_map(0u8..8, 0u8..2, 1..6).prop_flat_map(|clusters| {
        let names: Vec<u8> = clusters.keys().copied().collect();
        let routes = prop::collection::vec(prop::sample::select(names), 3);
        (Just(clusters), routes, prop::collection::vec(any::<bool>(), 0..10))
    });
    prop::collection::vec(epoch, 1..12)
}

/// Checks that at no time a route that the client holds refers to a cluster that it does not hold.
fn check_references(protocol: XdsProtocol, epochs: Vec<RouteEpoch>) -> Result<(), TestCaseError> {
    let mesh = SessionFixture::new();
    let apply = |clusters: &BTreeMap<u8, u8>, routes: &[u8]| {
        for cluster in 0..8u8 {
            match clusters.get(&cluster) {
                Some(content) => mesh.cluster("base", &format!("c{cluster}"), &content.to_string()),
                None => mesh.delete(Cluster, "base", &format!("c{cluster}")),
            }
        }
        for (route, cluster) in routes.iter().enumerate() {
            let name = format!("r{route}");
            mesh.set(Route, "base", &name, &message(&name, &format!("c{cluster}")));
        }
        mesh.commit();
    };
    apply(&BTreeMap::from([(0, 0)]), &[0, 0, 0]);
    let mut client = ScriptedClient::connect(&mesh, protocol);
    client.want_all(Cluster);
    client.want(Route, &["r0", "r1", "r2"]);
    let check = |client: &ScriptedClient| {
        for (route, (_, bytes)) in client.holds.get(&Route).into_iter().flatten() {
            let cluster = String::from_utf8_lossy(&bytes[bytes.len() - 2..]).into_owned();
            prop_assert!(
                client.holds[&Cluster].contains_key(&cluster),
                "{} refers to {}, which is removed",
                route,
                cluster
            );
        }
        Ok(())
    };
    for (clusters, routes, actions) in epochs {
        apply(&clusters, &routes);
        for receive in actions {
            if receive {
                client.receive();
                check(&client)?;
            } else {
                client.answer(None);
            }
        }
    }
    loop {
        while client.answer(None) {}
        if client.receive().is_none() {
            break;
        }
        check(&client)?;
    }
    let expect: Vec<String> = mesh.current(SIDECAR, Cluster).into_keys().collect();
    prop_assert_eq!(client.holds[&Cluster].keys().cloned().collect::<Vec<_>>(), expect);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_delta_client_ends_with_what_its_scope_has(steps in prop::collection::vec(step(), 1..120)) {
        run(XdsProtocol::Delta, false, steps)?;
    }

    #[test]
    fn a_client_ends_with_what_its_scope_has_and_it_has_named(steps in prop::collection::vec(step(), 1..120)) {
        run(XdsProtocol::Delta, true, steps)?;
    }

    #[test]
    fn a_state_of_the_world_client_ends_with_what_its_scope_has(steps in prop::collection::vec(step(), 1..120)) {
        run(XdsProtocol::Sotw, false, steps)?;
    }

    #[test]
    fn routes_never_refer_to_absent_clusters_with_delta(epochs in epochs()) {
        check_references(XdsProtocol::Delta, epochs)?;
    }

    #[test]
    fn routes_never_refer_to_absent_clusters_with_state_of_the_world(epochs in epochs()) {
        check_references(XdsProtocol::Sotw, epochs)?;
    }
}
