//! Endpoints of localities as resources (LEDS): the keys that a change touches, and that a proxy has the same endpoints as without.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use sluice_model::{Proxy, ProxyKey, Resource, ResourceType, Text};
use sluice_proto::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use sluice_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use sluice_proto::wire::encode;

use super::{TestGraph, endpoint_slice, sidecar};
use crate::GraphOptions;

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: crab, namespace: reef}
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}
";

const NAME: &str = "outbound|80||crab.reef.svc.cluster.local";

fn by_locality(proxy: Proxy) -> Proxy {
    Proxy { endpoints_by_locality: true, ..proxy }
}

fn mesh(addresses: &[&str]) -> TestGraph {
    let options = GraphOptions { endpoints_by_locality: true, ..GraphOptions::default() };
    TestGraph::with(options, &(SERVICE.to_owned() + &endpoint_slice("crab", "http", 8080, addresses)))
}

/// The resources of a type in the scope of a proxy: whole ones, and those that consist of segments.
fn resources(mesh: &TestGraph, proxy: &ProxyKey, kind: ResourceType) -> BTreeMap<Text, Bytes> {
    let scope = mesh.get(&mesh.handles.scopes, proxy).expect("a scope");
    let snapshot = mesh.engine.snapshot();
    let (mut whole, mut segments) = (BTreeMap::new(), BTreeMap::new());
    for layer in scope.layers.get(&kind).into_iter().flat_map(|layers| layers.iter()).rev() {
        for (key, resource) in mesh.handles.resources.iter().flat_map(|of| snapshot.iter(of)) {
            if key.resource_type == kind && key.layer == *layer {
                whole.insert(key.name.clone(), resource.clone());
            }
        }
        for (key, segment) in mesh.handles.segments.iter().flat_map(|of| snapshot.iter(of)) {
            if key.resource_type == kind && key.layer == *layer {
                segments.insert((key.name.clone(), key.segment.clone()), segment.clone());
            }
        }
    }
    let bytes = |resource: &Resource| match resource {
        Resource::Encoded(bytes) => Some(bytes.clone()),
        _ => None,
    };
    let mut found: BTreeMap<Text, Bytes> =
        whole.into_iter().filter_map(|(name, resource)| Some((name, bytes(&resource)?))).collect();
    let mut assembled: BTreeMap<Text, Vec<u8>> = BTreeMap::new();
    for ((name, _), segment) in segments {
        assembled.entry(name).or_default().extend(bytes(&segment).unwrap_or_default());
    }
    found
        .extend(assembled.into_iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(name, bytes)| (name, bytes.into())));
    found
}

/// The assignments of a proxy with their endpoints in the order of their bytes, wherever it gets them from.
fn assignments(mesh: &TestGraph, proxy: &ProxyKey) -> BTreeMap<Text, ClusterLoadAssignment> {
    let endpoints = resources(mesh, proxy, ResourceType::LbEndpoint);
    let decode = |bytes: Bytes| {
        let mut assignment = ClusterLoadAssignment::decode(bytes).expect("an assignment");
        for group in &mut assignment.endpoints {
            if let Some(LbConfig::LedsClusterLocalityConfig(config)) = group.lb_config.take() {
                let prefix = config.leds_collection_name.trim_end_matches('*');
                let own = endpoints.iter().filter(|(name, _)| name.starts_with(prefix));
                group.lb_endpoints =
                    own.map(|(_, bytes)| LbEndpoint::decode(bytes.clone()).expect("an endpoint")).collect();
            }
            group.lb_endpoints.sort_by_key(encode);
        }
        assignment
    };
    let found = resources(mesh, proxy, ResourceType::Endpoint);
    found.into_iter().map(|(name, bytes)| (name, decode(bytes))).collect()
}

#[test]
fn a_changed_endpoint_touches_itself_alone() {
    let mut mesh = mesh(&["10.1.0.1", "10.1.0.2"]);
    let key = mesh.connect(by_locality(sidecar("reef", "new", "10.9.0.1", &[])));
    let whole = mesh.connect(sidecar("reef", "old", "10.9.0.2", &[]));
    let both = |mesh: &TestGraph| {
        let found = assignments(mesh, &key);
        assert_eq!(found, assignments(mesh, &whole));
        found[NAME].endpoints.iter().flat_map(|group| &group.lb_endpoints).count()
    };
    assert_eq!(both(&mesh), 2);
    mesh.changed();
    // An endpoint is replaced by another: the assignment and its weight stay.
    mesh.apply(&endpoint_slice("crab", "http", 8080, &["10.1.0.1", "10.1.0.3"]));
    let prefix = "xdstp:///envoy.config.endpoint.v3.LbEndpoint/outbound|80||crab.reef.svc.cluster.local/,,,0/";
    assert_eq!(
        mesh.changed(),
        [
            format!("+endpoint_assignments base {prefix}10.1.0.3_8080"),
            format!("-endpoint_assignments base {prefix}10.1.0.2_8080"),
            "~endpoint_assignments base outbound|80||crab.reef.svc.cluster.local".to_owned(),
            "~endpoints reef/crab.reef.svc.cluster.local".to_owned(),
        ],
        "the changed assignment is that of the other proxy"
    );
    assert_eq!(both(&mesh), 2);
    mesh.apply(&endpoint_slice("crab", "http", 8080, &[]));
    assert_eq!(both(&mesh), 0);
}

#[test]
fn proxies_of_all_views_have_the_same_endpoints_as_without() {
    const RULES: &str = "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: crab, namespace: reef}
spec:
  host: crab.reef.svc.cluster.local
  subsets: [{name: all}]
  trafficPolicy: {outlierDetection: {consecutive5xxErrors: 5}, loadBalancer: {localityLbSetting: {failoverPriority: [rack]}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: crab, namespace: shore}
spec:
  host: crab.reef.svc.cluster.local
  trafficPolicy: {tls: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: crab-of-gulls, namespace: shore}
spec:
  host: crab.reef.svc.cluster.local
  workloadSelector: {matchLabels: {app: gull}}
  subsets: [{name: v1, labels: {version: v1}}]
";
    let addresses: Vec<String> = (0..700).map(|number| format!("10.1.{}.{}", number / 250, number % 250)).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    // With few endpoints, an assignment is whole; with many, it consists of chunks.
    for count in [3, 700] {
        let mesh = mesh(&addresses[..count]);
        mesh.apply(RULES);
        let mut compared = 0;
        for (namespace, labels) in [
            ("reef", &[("rack", "r1")][..]),
            ("shore", &[][..]),
            ("shore", &[("app", "gull")][..]),
            ("elsewhere", &[][..]),
        ] {
            let name = format!("{namespace}-{}", labels.len());
            let whole = mesh.connect(sidecar(namespace, &name, "10.9.0.2", labels));
            let key = mesh.connect(by_locality(sidecar(namespace, &format!("{name}-new"), "10.9.0.1", labels)));
            for addresses in [&addresses[..count], &addresses[1..count], &addresses[..count]] {
                mesh.apply(&endpoint_slice("crab", "http", 8080, addresses));
                let expected = assignments(&mesh, &whole);
                assert_eq!(assignments(&mesh, &key), expected, "{name} {count}");
                compared += expected.values().flat_map(|it| &it.endpoints).flat_map(|it| &it.lb_endpoints).count();
            }
            assert!(!resources(&mesh, &key, ResourceType::LbEndpoint).is_empty());
            assert!(resources(&mesh, &whole, ResourceType::LbEndpoint).is_empty());
        }
        assert!(compared > count * 12, "{compared}");
    }
}

#[test]
fn without_the_option_the_metadata_has_no_effect() {
    let mesh = TestGraph::new(&(SERVICE.to_owned() + &endpoint_slice("crab", "http", 8080, &["10.1.0.1"])));
    let key = mesh.connect(by_locality(sidecar("reef", "new", "10.9.0.1", &[])));
    let scope = mesh.get(&mesh.handles.scopes, &key).expect("a scope");
    assert!(!scope.layers.contains_key(&ResourceType::LbEndpoint));
    assert_eq!(assignments(&mesh, &key)[NAME].endpoints[0].lb_endpoints.len(), 1);
    assert!(resources(&mesh, &key, ResourceType::LbEndpoint).is_empty());
}
