//! The inputs of every parity case: the state depends only on the set of objects, not on the order in which they arrive or
//! on earlier objects. Without objects, no state is left.

#![expect(clippy::disallowed_methods, reason = "the test reads the cases")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use sluice_engine::{Engine, EngineOptions, Key, Origin, Published, Snapshot, Value};
use sluice_model::{Identity, Kind, ParsedObject, ProxyKey, TunnelSwitches};
use sluice_parse::{parse_object, parse_proxy, yaml};
use sluice_proto::envoy::config::core::v3::Node;

use crate::{AddressPools, AmbientOptions, GatewayApiOptions, GraphOptions, Handles, MultiClusterOptions, build};

/// An object or a proxy of a case, which tests add and remove.
#[derive(Clone)]
enum CaseItem {
    Object(Box<ParsedObject>),
    Proxy(ProxyKey, Box<sluice_model::Proxy>),
}

/// A reproducible sequence of numbers.
struct SeededRandom(u64);

impl SeededRandom {
    /// The next number, from 0 to below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap_or_default() % bound.max(1)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    };
    let mut cases: Vec<PathBuf> = list(&root).iter().flat_map(|family| list(family)).collect();
    cases.retain(|case| case.join("input.yaml").exists());
    cases.sort();
    assert!(cases.len() > 150, "the cases are missing from {}", root.display());
    cases
}

fn items(case: &Path) -> Vec<CaseItem> {
    let mut items = Vec::new();
    let mut known = BTreeSet::new();
    for entry in std::fs::read_dir(case).expect("case").flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let Some(middle) = name.strip_prefix("input").and_then(|rest| rest.strip_suffix(".yaml")) else { continue };
        let cluster = middle.strip_prefix('.').unwrap_or("Kubernetes").into();
        let text = std::fs::read_to_string(entry.path()).expect("input");
        for document in yaml::parse_documents(&text, &yaml::Limits::default()) {
            let object = document.expect("yaml").value;
            if let Ok(parsed) = parse_object(&cluster, "cluster.local", &object)
                && known.insert((parsed.kind, parsed.key.clone()))
            {
                items.push(CaseItem::Object(Box::new(parsed)));
            }
        }
    }
    let proxies = std::fs::read_to_string(case.join("proxies.json")).unwrap_or_else(|_| "[]".to_owned());
    let mut names = BTreeSet::new();
    let proxies: Vec<Json> = serde_json::from_str(&proxies).expect("proxies");
    for proxy in proxies {
        let Ok(node) = sluice_proto::json::decode::<Node>(&proxy["node"]) else { continue };
        // Two streams with one node id are one proxy. The later one applies.
        if let Ok(mut proxy) = parse_proxy(&node.message, &BTreeMap::new())
            && names.insert(proxy.id.clone())
        {
            let (namespace, account) = (proxy.namespace.clone(), proxy.service_account.clone());
            proxy.identity = Some(Identity::new("cluster.local", namespace, account));
            items.push(CaseItem::Proxy(ProxyKey(proxy.id.clone()), Box::new(proxy)));
        }
    }
    items
}

fn options() -> GraphOptions {
    let ambient = AmbientOptions {
        tunnels: TunnelSwitches { multi_network: true, ingress: true, baggage: true, ..TunnelSwitches::default() },
        ..AmbientOptions::default()
    };
    GraphOptions {
        address_pools: Some(AddressPools::default()),
        sends_hbone: true,
        ambient: Some(ambient),
        gateway_api: GatewayApiOptions {
            experimental: true,
            inference: true,
            waypoints: true,
            east_west: true,
            ..GatewayApiOptions::default()
        },
        ..GraphOptions::default()
    }
}

fn start(options: &GraphOptions) -> (Engine, Handles) {
    let options = options.clone();
    Engine::start(EngineOptions::default(), move |b| build(b, &options))
}

fn write(engine: &Engine, handles: &Handles, items: &[CaseItem]) {
    engine.transaction(|tx| {
        for item in items {
            match item.clone() {
                CaseItem::Object(parsed) => handles.inputs.apply(tx, *parsed, Origin::default()),
                CaseItem::Proxy(key, proxy) => {
                    tx.set(&handles.inputs.secret_clients, key.clone(), ());
                    tx.set(&handles.inputs.proxies, key, *proxy);
                }
            }
        }
    });
}

fn remove(engine: &Engine, handles: &Handles, items: &[CaseItem]) {
    engine.transaction(|tx| {
        for item in items {
            match item {
                CaseItem::Object(parsed) => {
                    handles.inputs.delete(tx, parsed.kind, parsed.key.clone(), Origin::default());
                }
                CaseItem::Proxy(key, _) => {
                    tx.delete(&handles.inputs.secret_clients, key.clone());
                    tx.delete(&handles.inputs.proxies, key.clone());
                }
            }
        }
    });
}

/// All published records: collection and key, with the debug text of the value.
pub(super) fn state(engine: &Engine, handles: &Handles) -> BTreeMap<String, String> {
    fn add<K: Key, V: Value>(state: &mut BTreeMap<String, String>, now: &Snapshot, of: &Published<K, V>) {
        for (key, value) in now.iter(of) {
            let mut text = format!("{value:?}");
            if let Some(sluice_model::Resource::Encoded(bytes)) = (value as &dyn std::any::Any).downcast_ref() {
                text = format!("{bytes:?}");
            }
            state.insert(format!("{} {key:?}", of.name()), text);
        }
    }
    let now = engine.snapshot();
    let mut state = BTreeMap::new();
    handles.resources.iter().for_each(|of| add(&mut state, &now, of));
    handles.segments.iter().for_each(|of| add(&mut state, &now, of));
    add(&mut state, &now, &handles.scopes);
    add(&mut state, &now, &handles.services);
    add(&mut state, &now, &handles.endpoints);
    add(&mut state, &now, &handles.endpoint_chunks);
    add(&mut state, &now, &handles.service_targets);
    add(&mut state, &now, &handles.address_updates);
    add(&mut state, &now, &handles.status_updates);
    add(&mut state, &now, &handles.missing_gateway_classes);
    add(&mut state, &now, &handles.missing_service_exports);
    add(&mut state, &now, &handles.multi_cluster_services);
    add(&mut state, &now, &handles.gateway_deployments);
    add(&mut state, &now, &handles.rejects);
    add(&mut state, &now, &handles.wanted_jwks);
    state
}

fn assert_same(case: &Path, left: &BTreeMap<String, String>, right: &BTreeMap<String, String>) {
    for (key, value) in left {
        assert_eq!(Some(value), right.get(key), "{}: {key}", case.display());
    }
    for key in right.keys() {
        assert!(left.contains_key(key), "{}: {key} is left over", case.display());
    }
}

/// Tests `part` of `parts` of the cases, so that several threads share them.
fn test_cases(part: usize, parts: usize) {
    for (number, case) in cases().iter().enumerate().filter(|(number, _)| number % parts == part) {
        test_items(case, number as u64 + 1, items(case), &options());
    }
}

/// Adds and removes the items of a case in any order.
fn test_items(case: &Path, seed: u64, mut items: Vec<CaseItem>, options: &GraphOptions) {
    let (engine, handles) = start(options);
    write(&engine, &handles, &items);
    let expected = state(&engine, &handles);
    assert!(expected.len() > 2, "{} has no published records", case.display());

    let mut rng = SeededRandom(0x9e37_79b9_7f4a_7c15 ^ seed);
    let (other, others) = start(options);
    rng.shuffle(&mut items);
    let mut rest = items.as_slice();
    while !rest.is_empty() {
        let (batch, tail) = rest.split_at((1 + rng.below(6)).min(rest.len()));
        write(&other, &others, batch);
        rest = tail;
        if rng.below(3) == 0 {
            // Some objects are removed and added again.
            let there = &items[..items.len() - rest.len()];
            let from = rng.below(there.len());
            let some = &there[from..(from + 1 + rng.below(4)).min(there.len())];
            remove(&other, &others, some);
            write(&other, &others, some);
        }
    }
    assert_same(case, &expected, &state(&other, &others));
    assert_eq!(other.panics(), [], "{}", case.display());

    rng.shuffle(&mut items);
    let half = items.len() / 2;
    remove(&other, &others, &items[..half]);
    let (fresh, freshs) = start(options);
    write(&fresh, &freshs, &items[half..]);
    assert_same(case, &state(&fresh, &freshs), &state(&other, &others));
    remove(&other, &others, &items[half..]);
    let (empty, empties) = start(options);
    assert_same(case, &state(&empty, &empties), &state(&other, &others));
}

/// A ServiceExport and a ServiceImport of each Service of the items.
fn exports_and_imports(items: &[CaseItem]) -> Vec<CaseItem> {
    let services = items.iter().filter_map(|item| match item {
        CaseItem::Object(parsed) if parsed.kind == Kind::Service => Some(&parsed.key),
        _ => None,
    });
    let objects = services.enumerate().flat_map(|(number, key)| {
        ["ServiceExport", "ServiceImport"].map(|kind| {
            let object = json!({
                "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": kind,
                "metadata": {"name": key.name.as_str(), "namespace": key.namespace.as_str()},
                "spec": {"ips": [format!("10.200.0.{number}")]},
            });
            CaseItem::Object(Box::new(parse_object(&key.cluster, "cluster.local", &object).expect("a known kind")))
        })
    });
    objects.collect()
}

#[test]
fn state_of_multi_cluster_services_is_a_function_of_the_objects_there_are() {
    for (number, cluster_local) in [false, true].into_iter().enumerate() {
        let multi_cluster = Some(MultiClusterOptions { imported_hosts: true, cluster_local });
        let options = GraphOptions { multi_cluster, ..options() };
        let cases = cases().into_iter().filter(|case| case.to_string_lossy().contains("/multicluster/"));
        let mut imported = 0;
        for case in cases {
            let mut items = items(&case);
            items.extend(exports_and_imports(&items));
            let (engine, handles) = start(&options);
            write(&engine, &handles, &items);
            let now = engine.snapshot();
            let services = now.iter(&handles.services);
            imported += services.filter(|(key, _)| key.host.as_str().ends_with(".clusterset.local")).count();
            test_items(&case, number as u64 + 1, items, &options);
        }
        assert!(imported > 5, "{imported} hosts of imports");
    }
}

/// The objects of a case with Gateways of agentgateways in place of those of routers, and an agentgateway for each Gateway.
fn with_agentgateways(case: &Path) -> Vec<CaseItem> {
    let text = std::fs::read_to_string(case.join("input.yaml")).expect("input");
    let (mut items, mut known) = (Vec::new(), BTreeSet::new());
    for document in yaml::parse_documents(&text, &yaml::Limits::default()) {
        let mut object = document.expect("yaml").value;
        let is_gateway = object["spec"]["gatewayClassName"] == "istio";
        if is_gateway {
            object["spec"]["gatewayClassName"] = json!("istio-agentgateway");
        }
        let Ok(parsed) = parse_object(&"Kubernetes".into(), "cluster.local", &object) else { continue };
        let (key, kind) = (parsed.key.clone(), parsed.kind);
        if !known.insert((kind, key.clone())) {
            continue;
        }
        items.push(CaseItem::Object(Box::new(parsed)));
        if is_gateway {
            let (namespace, name) = (&key.namespace, &key.name);
            let node = Node {
                id: format!(
                    "agentgateway~10.9.0.{}~{name}-1.{namespace}~{namespace}.svc.cluster.local",
                    items.len() % 250
                ),
                ..Node::default()
            };
            let mut proxy = parse_proxy(&node, &BTreeMap::new()).expect("a node");
            proxy.labels.insert(sluice_model::label::GATEWAY_NAME.into(), name.clone());
            proxy.identity = Some(Identity::new("cluster.local", namespace.clone(), name.clone()));
            items.push(CaseItem::Proxy(ProxyKey(proxy.id.clone()), Box::new(proxy)));
        }
    }
    items
}

#[test]
fn state_of_agentgateways_is_a_function_of_the_objects_there_are() {
    let gateway_api = GatewayApiOptions { agentgateway: true, ..options().gateway_api };
    let with_ambient = GraphOptions { gateway_api, ..options() };
    let without = GraphOptions { ambient: None, ..with_ambient.clone() };
    let (mut routes, mut keys) = (0, 0);
    for (number, case) in cases().iter().filter(|case| case.to_string_lossy().contains("/gateway-api/")).enumerate() {
        let options = if number % 2 == 0 { &without } else { &with_ambient };
        let items = with_agentgateways(case);
        let (engine, handles) = start(options);
        write(&engine, &handles, &items);
        let now = engine.snapshot();
        let rows = handles.resources.iter().flat_map(|of| now.iter(of)).map(|(key, _)| key);
        for key in rows.filter(|key| key.resource_type == sluice_model::ResourceType::Agentgateway) {
            routes += usize::from(key.name.starts_with("route/"));
            keys += usize::from(&*key.layer.profile == "keys");
        }
        test_items(case, number as u64 + 1, items, options);
    }
    assert!(routes > 30 && keys > 3, "{routes} routes, {keys} listeners with private keys");
}

#[test]
fn state_is_a_function_of_the_objects_there_are_0() {
    test_cases(0, 3);
}

#[test]
fn state_is_a_function_of_the_objects_there_are_1() {
    test_cases(1, 3);
}

#[test]
fn state_is_a_function_of_the_objects_there_are_2() {
    test_cases(2, 3);
}
