//! LEDS: clients that behave as Envoy end with exactly the endpoints of the assignments they hold.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use sluice_model::{ResourceType, lb_endpoint};
use sluice_proto::envoy::config::core::v3::ConfigSource;
use sluice_proto::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use sluice_proto::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, LedsClusterLocalityConfig, LocalityLbEndpoints,
};
use sluice_xds_protocol::XdsProtocol;

use super::client::{ReceivedResponse, ScriptedClient, message};
use super::fixture::{SIDECAR, SessionFixture};

use ResourceType::{Cluster, Endpoint, LbEndpoint, Listener};

/// A collection of endpoints as an Envoy holds it.
#[derive(Clone, Debug, Default)]
struct Collection {
    source: ConfigSource,
    endpoints: BTreeMap<String, Bytes>,
    /// Envoy waits for the first response before it uses the assignment.
    is_answered: bool,
}

/// The part of Envoy that reads assignments and endpoints.
struct Envoy {
    client: ScriptedClient,
    /// By cluster and name.
    collections: BTreeMap<(String, String), Collection>,
    /// Clusters that replace one of the same name, and have no assignment.
    replaced: BTreeSet<String>,
}

impl Envoy {
    fn connect(mesh: &SessionFixture, clusters: &[&str]) -> Self {
        let mut client = ScriptedClient::connect(mesh, XdsProtocol::Delta);
        client.want_all(Cluster);
        client.want(Endpoint, clusters);
        client.want_all(Listener);
        Self { client, collections: BTreeMap::new(), replaced: BTreeSet::new() }
    }

    /// A new stream. Envoy states the collections that it subscribes to, and not which endpoints it holds.
    fn reconnect(self, mesh: &SessionFixture) -> Self {
        Self { client: self.client.reconnect(mesh), ..self }
    }

    fn receive(&mut self) -> Option<ReceivedResponse> {
        let held: BTreeSet<String> =
            self.client.holds.get(&Cluster).into_iter().flatten().map(|(name, _)| name.clone()).collect();
        let response = self.client.receive()?;
        match response.kind() {
            Cluster => {
                self.replaced.extend(response.names().into_iter().map(str::to_owned).filter(|name| held.contains(name)))
            }
            Endpoint => self.read_assignments(&response),
            LbEndpoint => self.read_endpoints(&response),
            _ => {}
        }
        Some(response)
    }

    fn read_assignments(&mut self, response: &ReceivedResponse) {
        let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
        for (cluster, _, bytes) in &response.resources {
            let assignment = ClusterLoadAssignment::decode(bytes.clone()).expect("an assignment");
            let configs = collections_of(assignment);
            let is_new = self.replaced.remove(cluster);
            self.collections.retain(|(of, name), collection| {
                let is_kept = of != cluster || configs.get(name) == Some(&collection.source);
                if !is_kept {
                    removed.insert(name.clone());
                }
                is_kept
            });
            for (name, source) in configs {
                let key = (cluster.clone(), name.clone());
                let collection = Collection { source, ..Collection::default() };
                let was_removed = removed.remove(&name);
                let is_held = self.collections.contains_key(&key);
                if is_held && !is_new {
                    continue;
                }
                self.collections.insert(key, collection);
                // The cluster that is replaced holds the subscription still.
                if !is_new || !was_removed && !is_held {
                    added.insert(name);
                }
            }
        }
        self.subscribe(&added, &removed);
    }

    fn subscribe(&mut self, added: &BTreeSet<String>, removed: &BTreeSet<String>) {
        if added.is_empty() && removed.is_empty() {
            return;
        }
        let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>();
        let (added, removed) = (names(added), names(removed));
        let added: Vec<&str> = added.iter().map(String::as_str).collect();
        let removed: Vec<&str> = removed.iter().map(String::as_str).collect();
        match self.client.wants.contains_key(&LbEndpoint) {
            true => self.client.change(LbEndpoint, &added, &removed),
            false => self.client.want(LbEndpoint, &added),
        }
    }

    fn read_endpoints(&mut self, response: &ReceivedResponse) {
        let collection_of = |name: &str| format!("{}/*", name.rsplit_once('/').expect("a collection").0);
        let mut each = |name: &str, read: &dyn Fn(&mut Collection)| {
            let of_name = self.collections.iter_mut().filter(|((_, known), _)| *known == collection_of(name));
            for (_, collection) in of_name {
                collection.is_answered = true;
                read(collection);
            }
        };
        for (name, _, bytes) in &response.resources {
            each(name, &|collection| drop(collection.endpoints.insert(name.clone(), bytes.clone())));
        }
        for name in &response.removed {
            each(name, &|collection| drop(collection.endpoints.remove(name)));
        }
    }

    fn settle(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            while self.client.answer(None) {}
            match self.receive() {
                Some(response) => all.push(response.text()),
                None => return all,
            }
            assert!(all.len() < 1000, "the responses do not end");
        }
    }

    fn endpoints(&self) -> BTreeMap<String, Bytes> {
        self.collections.values().flat_map(|collection| collection.endpoints.clone()).collect()
    }
}

/// The collections that an assignment refers to, with their sources.
fn collections_of(assignment: ClusterLoadAssignment) -> BTreeMap<String, ConfigSource> {
    let collection = |locality: LocalityLbEndpoints| {
        let Some(LbConfig::LedsClusterLocalityConfig(config)) = locality.lb_config else { return None };
        Some((config.leds_collection_name, config.leds_config.expect("a source")))
    };
    assignment.endpoints.into_iter().filter_map(collection).collect()
}

/// The collection of a cluster in a locality.
fn collection(cluster: &str, locality: &str) -> String {
    lb_endpoint::collection_name(cluster, &[locality])
}

fn assignment(cluster: &str, localities: &[&str]) -> Vec<u8> {
    let endpoints = localities.iter().map(|locality| {
        let config = LedsClusterLocalityConfig {
            leds_config: Some(ConfigSource::default()),
            leds_collection_name: format!("{}/*", collection(cluster, locality)),
        };
        LocalityLbEndpoints {
            lb_config: Some(LbConfig::LedsClusterLocalityConfig(config)),
            ..LocalityLbEndpoints::default()
        }
    });
    let assignment = ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: endpoints.collect(),
        ..ClusterLoadAssignment::default()
    };
    assignment.encode_to_vec()
}

/// Shortens the names of endpoints in responses.
fn short(responses: Vec<String>) -> Vec<String> {
    let prefix = lb_endpoint::cluster_prefix("");
    responses.iter().map(|text| text.replace(prefix.trim_end_matches('/'), "")).collect()
}

struct EndpointFixture {
    mesh: SessionFixture,
}

impl EndpointFixture {
    fn new() -> Self {
        let fixture = Self { mesh: SessionFixture::with_endpoints_by_locality() };
        fixture.mesh.cluster("base", "c", "1");
        fixture.mesh.set(Endpoint, "base", "c", &assignment("c", &["east", "west"]));
        fixture.endpoint("east", "a", Some("1"));
        fixture.endpoint("east", "b", Some("1"));
        fixture.endpoint("west", "d", Some("1"));
        fixture.mesh.commit();
        fixture
    }

    fn endpoint(&self, locality: &str, name: &str, content: Option<&str>) {
        let full = lb_endpoint::endpoint_name(&collection("c", locality), name);
        match content {
            Some(content) => self.mesh.set(LbEndpoint, "base", &full, &message(name, content)),
            None => self.mesh.delete(LbEndpoint, "base", &full),
        }
    }
}

#[test]
fn a_changed_endpoint_is_sent_alone() {
    let fixture = EndpointFixture::new();
    let mut envoy = Envoy::connect(&fixture.mesh, &["c"]);
    assert_eq!(short(envoy.settle()), ["CDS +c", "EDS +c", "LEDS +/c/east/a +/c/east/b +/c/west/d", "LDS"]);
    fixture.endpoint("east", "b", Some("2"));
    fixture.endpoint("west", "e", Some("1"));
    fixture.endpoint("east", "a", None);
    fixture.mesh.commit();
    assert_eq!(short(envoy.settle()), ["LEDS +/c/east/b +/c/west/e -/c/east/a"]);
    assert_eq!(envoy.endpoints(), fixture.mesh.current(SIDECAR, LbEndpoint));
}

#[test]
fn a_collection_without_endpoints_is_answered() {
    let fixture = EndpointFixture::new();
    fixture.mesh.set(Endpoint, "base", "c", &assignment("c", &["east", "south"]));
    fixture.mesh.commit();
    let mut envoy = Envoy::connect(&fixture.mesh, &["c"]);
    assert!(short(envoy.settle()).contains(&"LEDS +/c/east/a +/c/east/b -/c/south/*".to_owned()));
    assert!(envoy.collections.values().all(|collection| collection.is_answered));
    fixture.endpoint("south", "f", Some("1"));
    fixture.mesh.commit();
    assert_eq!(short(envoy.settle()), ["LEDS +/c/south/f"]);
}

#[test]
fn a_client_that_reconnects_forgets_removed_endpoints() {
    let fixture = EndpointFixture::new();
    let mut envoy = Envoy::connect(&fixture.mesh, &["c"]);
    envoy.settle();
    fixture.endpoint("east", "a", None);
    fixture.mesh.commit();
    let mut envoy = envoy.reconnect(&fixture.mesh);
    envoy.settle();
    assert_eq!(envoy.endpoints(), fixture.mesh.current(SIDECAR, LbEndpoint));
    // The next stream differs from this one, too.
    fixture.endpoint("east", "b", None);
    fixture.mesh.commit();
    let mut envoy = envoy.reconnect(&fixture.mesh);
    envoy.settle();
    assert_eq!(envoy.endpoints(), fixture.mesh.current(SIDECAR, LbEndpoint));
}

#[test]
fn a_changed_cluster_gets_its_endpoints_again() {
    let fixture = EndpointFixture::new();
    let mut envoy = Envoy::connect(&fixture.mesh, &["c"]);
    envoy.settle();
    fixture.mesh.cluster("base", "c", "2");
    fixture.mesh.commit();
    assert_eq!(short(envoy.settle()), ["CDS +c", "EDS +c", "LEDS +/c/east/a +/c/east/b +/c/west/d"]);
    assert_eq!(envoy.endpoints(), fixture.mesh.current(SIDECAR, LbEndpoint));
}

#[test]
fn endpoints_overtake_changes_that_wait_for_a_permit() {
    let fixture = EndpointFixture::new();
    let mut envoy = Envoy::connect(&fixture.mesh, &["c"]);
    envoy.settle();
    fixture.mesh.set(Listener, "base", "l", &message("l", "1"));
    fixture.endpoint("east", "b", Some("2"));
    fixture.mesh.commit();
    let first = envoy.client.receive_endpoints().map(|response| response.text());
    assert_eq!(short(first.into_iter().collect()), ["LEDS +/c/east/b"]);
    assert_eq!(envoy.client.receive_endpoints(), None);
    assert_eq!(envoy.settle(), ["LDS +l"]);
}

#[derive(Clone, Debug)]
enum Step {
    /// Sets the cluster, or only its content.
    Cluster {
        cluster: usize,
        content: u8,
    },
    /// Sets the localities of an assignment, or removes it.
    Assignment {
        cluster: usize,
        localities: Option<u8>,
    },
    /// Sets or removes an endpoint.
    Endpoint {
        cluster: usize,
        locality: usize,
        name: u8,
        content: Option<u8>,
    },
    /// Sets a listener, so that removals wait for its acknowledgement.
    Listener(u8),
    Commit,
    Receive,
    Answer,
    Reconnect,
    Wait,
}

const CLUSTERS: [&str; 2] = ["c", "d"];
const LOCALITIES: [&str; 3] = ["east", "west", "south"];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0usize..2, 0u8..3).prop_map(|(cluster, content)| Step::Cluster { cluster, content }),
        2 => (0usize..2, prop::option::weighted(0.8, 0u8..8)).prop_map(|(cluster, localities)| Step::Assignment { cluster, localities }),
        6 => (0usize..2, 0usize..3, 0u8..4, prop::option::weighted(0.6, 0u8..3))
            .prop_map(|(cluster, locality, name, content)| Step::Endpoint { cluster, locality, name, content }),
        1 => (0u8..3).prop_map(Step::Listener),
        5 => Just(Step::Commit),
        8 => Just(Step::Receive),
        8 => Just(Step::Answer),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Wait),
    ]
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mesh = SessionFixture::with_endpoints_by_locality();
    for cluster in CLUSTERS {
        mesh.cluster("base", cluster, "0");
        mesh.set(Endpoint, "base", cluster, &assignment(cluster, &LOCALITIES));
    }
    mesh.commit();
    let mut envoy = Envoy::connect(&mesh, &CLUSTERS);
    for step in steps {
        match step {
            Step::Cluster { cluster, content } => mesh.cluster("base", CLUSTERS[cluster], &content.to_string()),
            Step::Assignment { cluster, localities: None } => mesh.delete(Endpoint, "base", CLUSTERS[cluster]),
            Step::Assignment { cluster, localities: Some(mask) } => {
                let chosen = LOCALITIES.iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0);
                let chosen: Vec<&str> = chosen.map(|(_, locality)| *locality).collect();
                mesh.set(Endpoint, "base", CLUSTERS[cluster], &assignment(CLUSTERS[cluster], &chosen));
            }
            Step::Endpoint { cluster, locality, name, content } => {
                let name = format!("e{name}");
                let full = lb_endpoint::endpoint_name(&collection(CLUSTERS[cluster], LOCALITIES[locality]), &name);
                match content {
                    Some(content) => mesh.set(LbEndpoint, "base", &full, &message(&name, &content.to_string())),
                    None => mesh.delete(LbEndpoint, "base", &full),
                }
            }
            Step::Listener(content) => mesh.set(Listener, "base", "l", &message("l", &content.to_string())),
            Step::Commit => mesh.commit(),
            Step::Receive => drop(envoy.receive()),
            Step::Answer => drop(envoy.client.answer(None)),
            Step::Reconnect => envoy = envoy.reconnect(&mesh),
            Step::Wait => envoy.client.now += std::time::Duration::from_secs(3),
        }
    }
    mesh.commit();
    envoy.settle();
    let current = mesh.current(SIDECAR, LbEndpoint);
    for cluster in CLUSTERS {
        // Envoy keeps the assignment of a cluster when it is removed.
        let Some(bytes) = mesh.current(SIDECAR, Endpoint).remove(cluster) else { continue };
        let assignment = ClusterLoadAssignment::decode(bytes).expect("an assignment");
        let expect: BTreeSet<String> = collections_of(assignment).into_keys().collect();
        let of_cluster = envoy.collections.iter().filter(|((of, _), _)| of == cluster);
        let held: BTreeSet<String> = of_cluster.clone().map(|((_, name), _)| name.clone()).collect();
        prop_assert_eq!(held, expect);
        for ((_, name), collection) in of_cluster {
            let prefix = name.trim_end_matches('*');
            let expect: BTreeMap<String, Bytes> = current
                .iter()
                .filter(|(name, _)| name.starts_with(prefix))
                .map(|(a, b)| (a.clone(), b.clone()))
                .collect();
            prop_assert!(collection.is_answered, "{} is not answered", name);
            prop_assert_eq!(&collection.endpoints, &expect, "{}", name);
        }
    }
    prop_assert!(envoy.settle().is_empty(), "no response is pending");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_ends_with_the_endpoints_of_its_assignments(steps in prop::collection::vec(step(), 1..120)) {
        run(steps)?;
    }
}
