//! The exact keys that a change touches.

use std::collections::BTreeSet;

use sluice_model::{ProxyKey, ResourceType};

use super::{TestGraph, sidecar};

/// Three namespaces with four Services each, and a sidecar in two of them.
fn test_mesh() -> TestGraph {
    let mut text = String::new();
    for namespace in ["east", "north", "south"] {
        for (number, service) in ["bakery", "forge", "mill", "school"].iter().enumerate() {
            text += &format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {service}, namespace: {namespace}}}\n\
                 spec:\n  clusterIP: 10.{}.0.{number}\n  selector: {{app: {service}}}\n  \
                 ports: [{{name: http, port: 80}}, {{name: tcp, port: 9000}}]\n",
                namespace.len(),
            );
        }
    }
    let mut mesh = TestGraph::new(&text);
    for (namespace, ip) in [("east", "10.9.0.1"), ("north", "10.9.0.2")] {
        mesh.connect(sidecar(namespace, "client", ip, &[("app", "client")]));
    }
    mesh.changed();
    mesh
}

/// Checks that there are changes, and that all are about the host.
fn assert_only(lines: &[String], host: &str) {
    assert!(!lines.is_empty(), "nothing changed");
    for line in lines {
        assert!(line.contains(host), "{line} in {lines:#?}");
    }
}

#[test]
fn a_destination_rule_touches_the_clusters_of_its_host() {
    let mut mesh = test_mesh();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mill, namespace: east}
spec:
  host: mill.east.svc.cluster.local
  trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}
  subsets: [{name: v1, labels: {version: v1}}]
",
    );
    let changed = mesh.changed();
    assert_only(&changed, "mill.east.svc.cluster.local");
    for line in ["outbound|80||mill", "outbound|9000||mill", "outbound|80|v1|mill"] {
        assert!(changed.iter().any(|changed| changed.contains(line)), "{line} in {changed:#?}");
    }
    // The same object is written again, and then deleted.
    mesh.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: east, labels: {a: b}}\n");
    assert_eq!(mesh.changed(), Vec::<String>::new());
    mesh.delete(sluice_model::Kind::DestinationRule, "east", "mill");
    assert_only(&mesh.changed(), "mill.east.svc.cluster.local");
}

#[test]
fn a_virtual_service_touches_the_segments_of_its_host() {
    let mut mesh = test_mesh();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: forge, namespace: south}
spec:
  hosts: [forge.south.svc.cluster.local]
  http: [{route: [{destination: {host: forge.south.svc.cluster.local}}], timeout: 3s}]
",
    );
    let changed = mesh.changed();
    assert_only(&changed, "forge.south.svc.cluster.local");
    assert!(changed.iter().any(|line| line.contains(" base 80 ")), "{changed:#?}");
    assert!(!changed.iter().any(|line| line.contains("clusters")), "{changed:#?}");
}

#[test]
fn a_service_becomes_private() {
    let mut mesh = test_mesh();
    mesh.apply(
        "
apiVersion: v1
kind: Service
metadata: {name: school, namespace: north, annotations: {networking.istio.io/exportTo: .}}
spec:
  clusterIP: 10.5.0.3
  selector: {app: school}
  ports: [{name: http, port: 80}, {name: tcp, port: 9000}]
",
    );
    let changed = mesh.changed();
    let clusters: Vec<_> = changed.iter().filter(|line| line.contains("outbound|80||")).collect();
    let has = |sign: &str, layer: &str| clusters.iter().any(|line| line.starts_with(sign) && line.contains(layer));
    assert!(has("-", " base ") && has("+", " namespace:north "), "{clusters:#?}");
    assert!(!has("+", " namespace:east ") && !has("+", " namespace:south "), "{clusters:#?}");
}

#[test]
fn one_more_replica_creates_no_resource() {
    let mut mesh = test_mesh();
    mesh.connect(sidecar("east", "client-2", "10.9.0.3", &[("app", "client")]));
    let changed = mesh.changed();
    assert!(changed.iter().all(|line| line.contains("client-2")), "{changed:#?}");
    assert!(changed.iter().any(|line| line.starts_with("+scopes")), "{changed:#?}");
}

#[test]
fn workloads_have_layers_of_their_own_only_while_a_service_needs_them() {
    let mesh = test_mesh();
    let [one, two] = [("one", "10.9.0.3"), ("two", "10.9.0.4")]
        .map(|(app, ip)| mesh.connect(sidecar("east", app, ip, &[("app", app)])));
    let layers = |mesh: &TestGraph, proxy: &ProxyKey| {
        let scope = mesh.get(&mesh.handles.scopes, proxy).expect("a scope");
        [ResourceType::Endpoint, ResourceType::Cluster].map(|kind| scope.layers[&kind].to_vec())
    };
    let [before, clusters] = layers(&mesh, &one);
    assert_eq!(layers(&mesh, &two)[0], before);
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mill, namespace: east}
spec:
  host: mill.east.svc.cluster.local
  trafficPolicy:
    outlierDetection: {consecutive5xxErrors: 5}
    loadBalancer: {localityLbSetting: {failoverPriority: [app]}}
",
    );
    let own: Vec<_> = {
        let others = layers(&mesh, &two)[0].clone();
        layers(&mesh, &one)[0].iter().filter(|layer| !others.contains(layer)).cloned().collect()
    };
    let snapshot = mesh.engine.snapshot();
    let rows = mesh.handles.resources.iter().flat_map(|of| snapshot.iter(of));
    let names: BTreeSet<String> =
        rows.filter(|(key, _)| own.contains(&key.layer)).map(|(key, _)| key.name.to_string()).collect();
    let ports = [80, 9000].map(|port| format!("outbound|{port}||mill.east.svc.cluster.local"));
    assert_eq!(names, BTreeSet::from(ports), "only the layers in which they differ");
    mesh.delete(sluice_model::Kind::DestinationRule, "east", "mill");
    assert_eq!(layers(&mesh, &one), [before, clusters]);
}
