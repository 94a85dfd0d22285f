//! Random changes of a small mesh: the objects of a case, and objects of other cases that refer to its hosts.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::history::GraphVariant;
use super::input_change::InputChange;
use super::remote_cluster;
use crate::mutate::mutate;
use crate::objects::{foreign_object, mutate_object};
use crate::rng::FuzzRng;
use crate::seeds::{CaseMesh, Seed, Seeds};

/// Number of objects of other cases in a mesh.
const FOREIGN_OBJECTS: usize = 40;
/// Largest number of objects of the case that a mesh begins from. Others are left out.
const MAX_CASE_OBJECTS: usize = 60;
/// Largest number of changes of an epoch.
const MAX_CHANGES: usize = 5;
/// The engine is replaced by a copy after one in this number of epochs.
const COPY_INTERVAL: usize = 30;
/// Fields that refer to hosts.
const HOST_FIELDS: [&str; 6] = ["host", "hosts", "hostnames", "dnsName", "provider", "authority"];
/// Fields with labels that select workloads.
const SELECTOR_FIELDS: [&str; 4] = ["matchLabels", "labels", "selector", "podSelector"];

/// Chooses changes for one mesh.
pub(super) struct ChangeGenerator<'s> {
    seeds: &'s Seeds,
    case: &'s CaseMesh,
    /// Objects that are written, changed and deleted.
    pool: Vec<Seed>,
    nodes: Vec<Value>,
    namespaces: Vec<String>,
    /// Names of Gateways of waypoints.
    waypoints: Vec<String>,
    /// The objects that exist, by their position in the pool.
    present: BTreeSet<usize>,
    connected: BTreeSet<String>,
}

impl<'s> ChangeGenerator<'s> {
    /// A generator for a random case; `None` if there is no case. In ambient mode, half of the cases have a waypoint.
    pub(super) fn new(seeds: &'s Seeds, variant: GraphVariant, rng: &mut FuzzRng) -> Option<Self> {
        let with_waypoints: Vec<&CaseMesh> =
            seeds.cases.iter().filter(|case| case.nodes.iter().any(is_waypoint)).collect();
        let case = match rng.choose(&with_waypoints) {
            Some(case) if matches!(variant, GraphVariant::Ambient | GraphVariant::Networks) && rng.once_in(2) => case,
            _ => rng.choose(&seeds.cases)?,
        };
        let mut pool: Vec<Seed> = case.objects.iter().take(MAX_CASE_OBJECTS).cloned().collect();
        let hosts = hosts(case);
        let labels = labels(case);
        for _ in 0..FOREIGN_OBJECTS {
            if let Some(mut seed) = foreign_object(case, seeds, rng) {
                refer(&mut seed.object, "", &hosts, &labels, rng);
                pool.push(seed);
            }
        }
        if variant == GraphVariant::Networks {
            let remote = remote_cluster::objects(&pool);
            pool.extend(remote);
        }
        let namespaces: BTreeSet<String> = pool
            .iter()
            .filter_map(|seed| seed.object.pointer("/metadata/namespace")?.as_str().map(ToOwned::to_owned))
            .collect();
        let mut nodes = case.nodes.clone();
        let others: Vec<&Value> = seeds.cases.iter().flat_map(|case| &case.nodes).collect();
        nodes.extend((0..2).filter_map(|_| rng.choose(&others)).map(|node| (*node).clone()));
        let namespaces = namespaces.into_iter().collect();
        let waypoints = waypoint_names(&pool);
        let (present, connected) = (BTreeSet::new(), BTreeSet::new());
        Some(Self { seeds, case, pool, nodes, namespaces, waypoints, present, connected })
    }

    /// Name of the case.
    pub(super) fn case(&self) -> &str {
        &self.case.name
    }

    /// The changes of one epoch.
    pub(super) fn epoch(&mut self, rng: &mut FuzzRng) -> Vec<InputChange> {
        // At first the mesh is empty.
        if self.present.is_empty() && rng.once_in(2) {
            return self.many(rng);
        }
        let count = if rng.once_in(3) { 1 + rng.below(MAX_CHANGES) } else { 1 };
        let mut changes: Vec<InputChange> = (0..count).flat_map(|_| self.change(rng)).collect();
        if rng.once_in(COPY_INTERVAL) {
            changes.push(InputChange::Copy);
        }
        changes
    }

    fn change(&mut self, rng: &mut FuzzRng) -> Vec<InputChange> {
        let one = match rng.below(40) {
            0..=3 => return self.connect(rng).into_iter().collect(),
            4..=5 => {
                let connected: Vec<&String> = self.connected.iter().collect();
                let Some(id) = rng.choose(&connected).map(|id| (*id).clone()) else { return Vec::new() };
                self.connected.remove(&id);
                InputChange::Disconnect(id)
            }
            6..=12 => return self.delete(rng).into_iter().collect(),
            13..=14 => self.namespace(rng),
            15..=16 => mesh_config(rng),
            17 => InputChange::Trust(if rng.once_in(2) { Vec::new() } else { vec![format!("root-{}", rng.below(3))] }),
            18 => {
                let name = ["a.example.com", "eastwest.example.com", "gateway.example.com"][rng.below(3)].to_owned();
                InputChange::Resolve(
                    name,
                    if rng.once_in(3) { Vec::new() } else { vec![format!("192.0.2.{}", rng.below(4))] },
                )
            }
            19 if rng.once_in(4) => return self.many(rng),
            _ => return self.set(rng).into_iter().collect(),
        };
        vec![one]
    }

    /// Writes an object, often mutated.
    fn set(&mut self, rng: &mut FuzzRng) -> Option<InputChange> {
        let number = rng.below(self.pool.len());
        let mut seed = self.pool.get(number)?.clone();
        if rng.once_in(2) {
            let times = 1 + rng.below(3);
            mutate_object(&mut seed, self.seeds, rng, times);
            // The name stays, so that the object is deleted again.
            for name in ["apiVersion", "kind"] {
                seed.object[name] = self.pool[number].object[name].clone();
            }
            for name in ["name", "namespace"] {
                match (self.pool[number].object["metadata"].get(name), seed.object.get_mut("metadata")) {
                    (Some(own), Some(Value::Object(fields))) => drop(fields.insert(name.to_owned(), own.clone())),
                    _ => return None,
                }
            }
        }
        self.present.insert(number);
        Some(InputChange::Set(seed))
    }

    fn delete(&mut self, rng: &mut FuzzRng) -> Option<InputChange> {
        let present: Vec<usize> = self.present.iter().copied().collect();
        let number = *rng.choose(&present)?;
        self.present.remove(&number);
        self.pool.get(number).cloned().map(InputChange::Delete)
    }

    /// Writes or deletes half of all objects in one epoch.
    fn many(&mut self, rng: &mut FuzzRng) -> Vec<InputChange> {
        let deletes = !self.present.is_empty() && rng.once_in(2);
        let mut changes = Vec::new();
        for number in 0..self.pool.len() {
            if rng.once_in(2) {
                continue;
            }
            let seed = self.pool[number].clone();
            if deletes {
                self.present.remove(&number);
                changes.push(InputChange::Delete(seed));
            } else {
                self.present.insert(number);
                changes.push(InputChange::Set(seed));
            }
        }
        changes
    }

    fn connect(&mut self, rng: &mut FuzzRng) -> Option<InputChange> {
        let mut node = rng.choose(&self.nodes)?.clone();
        if rng.once_in(3) {
            mutate(&mut node, "/metadata", self.seeds, rng, 1);
        }
        for feature in ["VHDS", "LEDS", "ON_DEMAND_CLUSTERS"] {
            if rng.once_in(3)
                && let Some(metadata) = node.get_mut("metadata").and_then(Value::as_object_mut)
            {
                metadata.insert(feature.to_owned(), "true".into());
            }
        }
        self.connected.insert(node.get("id")?.as_str()?.to_owned());
        Some(InputChange::Connect(node, rng.once_in(2)))
    }

    /// Writes a namespace with other labels, or deletes it.
    fn namespace(&self, rng: &mut FuzzRng) -> InputChange {
        let name = rng.choose(&self.namespaces).map_or("default", String::as_str);
        let mut labels = Map::new();
        let waypoint = rng.choose(&self.waypoints).map_or("waypoint", String::as_str);
        for (label, values) in [
            ("team", &["a", "b"][..]),
            ("topology.istio.io/network", &["network-1", "network-2"]),
            ("istio.io/dataplane-mode", &["ambient", "none"]),
            ("istio.io/rev", &["default", "canary"]),
            ("istio.io/use-waypoint", &[waypoint, waypoint, "none"]),
        ] {
            if rng.once_in(3)
                && let Some(value) = rng.choose(values)
            {
                labels.insert(label.to_owned(), json!(value));
            }
        }
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        let seed = Seed { cluster: "Kubernetes".into(), object };
        if rng.once_in(6) { InputChange::Delete(seed) } else { InputChange::Set(seed) }
    }
}

/// Whether a node is a waypoint.
fn is_waypoint(node: &Value) -> bool {
    node.get("id").and_then(Value::as_str).is_some_and(|id| id.starts_with("waypoint~"))
}

/// Names of the Gateways of waypoints.
fn waypoint_names(pool: &[Seed]) -> Vec<String> {
    let text = |seed: &Seed, path: &str| seed.object.pointer(path).and_then(Value::as_str).map(ToOwned::to_owned);
    let is_waypoint = |seed: &&Seed| {
        seed.kind() == "Gateway" && text(seed, "/spec/gatewayClassName").as_deref() == Some("istio-waypoint")
    };
    pool.iter().filter(is_waypoint).filter_map(|seed| text(seed, "/metadata/name")).collect()
}

/// A mesh config with a few fields, or no mesh config.
fn mesh_config(rng: &mut FuzzRng) -> InputChange {
    let fields = [
        ("discoverySelectors", json!([{ "matchLabels": { "team": "a" } }])),
        ("discoverySelectors", json!([{ "matchExpressions": [{ "key": "team", "operator": "DoesNotExist" }] }])),
        ("outboundTrafficPolicy", json!({ "mode": "REGISTRY_ONLY" })),
        ("rootNamespace", json!("default")),
        ("serviceScopeConfigs", json!([{ "scope": "GLOBAL" }])),
        ("trustDomain", json!("other.example")),
        ("trustDomainAliases", json!(["old.example"])),
        ("defaultServiceExportTo", json!(["."])),
        ("defaultVirtualServiceExportTo", json!(["."])),
        ("defaultDestinationRuleExportTo", json!(["."])),
        ("enableAutoMtls", json!(false)),
        ("accessLogFile", json!("/dev/stdout")),
        ("pathNormalization", json!({ "normalization": "MERGE_SLASHES" })),
        ("localityLbSetting", json!({ "enabled": true, "failoverPriority": ["topology.kubernetes.io/zone"] })),
        ("ingressControllerMode", json!("STRICT")),
        ("defaultConfig", json!({ "holdApplicationUntilProxyStarts": true, "tracing": { "sampling": 7 } })),
        (
            "serviceSettings",
            json!([{ "settings": { "clusterLocal": true }, "hosts": ["*.default.svc.cluster.local"] }]),
        ),
    ];
    let mut mesh = Map::new();
    for _ in 0..=rng.below(3) {
        if let Some((name, value)) = rng.choose(&fields) {
            mesh.insert((*name).to_owned(), value.clone());
        }
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "istio", "namespace": "istio-system" },
        "data": { "mesh": mesh },
    });
    let seed = Seed { cluster: "Kubernetes".into(), object };
    if rng.once_in(4) { InputChange::Delete(seed) } else { InputChange::Set(seed) }
}

/// The host names of a case.
fn hosts(case: &CaseMesh) -> Vec<String> {
    let mut hosts = BTreeSet::new();
    for seed in &case.objects {
        let text = |path: &str| seed.object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
        match seed.kind() {
            "Service" => {
                hosts.insert(format!("{name}.{namespace}.svc.cluster.local"));
                hosts.insert(name.to_owned());
            }
            "ServiceEntry" => {
                let entries = seed.object.pointer("/spec/hosts").and_then(Value::as_array).into_iter().flatten();
                hosts.extend(entries.filter_map(|host| host.as_str().map(ToOwned::to_owned)));
            }
            _ => {}
        }
    }
    hosts.into_iter().collect()
}

/// The labels of the workloads of a case.
fn labels(case: &CaseMesh) -> Vec<Value> {
    let workloads = case.objects.iter().filter(|seed| matches!(seed.kind(), "Pod" | "WorkloadEntry"));
    let labels = workloads.filter_map(|seed| seed.object.pointer("/metadata/labels").cloned());
    let nodes = case.nodes.iter().filter_map(|node| node.pointer("/metadata/LABELS").cloned());
    labels.chain(nodes).filter(Value::is_object).collect()
}

/// Makes a foreign object refer to hosts and workloads of the mesh.
fn refer(value: &mut Value, field: &str, hosts: &[String], labels: &[Value], rng: &mut FuzzRng) {
    match value {
        Value::String(text) if HOST_FIELDS.contains(&field) && !rng.once_in(3) => {
            if let Some(host) = rng.choose(hosts) {
                // Sidecars and Gateways name hosts with a namespace.
                *text = match text.split_once('/') {
                    Some((namespace, _)) => format!("{namespace}/{host}"),
                    None => host.clone(),
                };
            }
        }
        Value::Object(fields) if SELECTOR_FIELDS.contains(&field) && !rng.once_in(3) => {
            if let Some(Value::Object(own)) = rng.choose(labels) {
                *fields =
                    own.iter().take(1 + rng.below(2)).map(|(name, value)| (name.clone(), value.clone())).collect();
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                refer(value, name, hosts, labels, rng);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| refer(item, field, hosts, labels, rng)),
        _ => {}
    }
}
