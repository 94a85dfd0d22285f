//! The work of a change beside many other records.

use std::ops::Range;

use super::{TestGraph, sidecar};
use crate::{AddressPools, GraphOptions};

const MESH: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: app}
spec: {clusterIP: 10.0.0.1, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: app}
spec:
  workloadSelector: {labels: {app: web}}
  egress: [{hosts: ['./*']}]
";

fn processed(mesh: &TestGraph) -> u64 {
    mesh.engine.metrics().collections.iter().map(|collection| collection.records_in).sum()
}

/// Records that the operators process while these replicas connect, one in each epoch.
fn connect(mesh: &TestGraph, replicas: Range<usize>) -> u64 {
    let before = processed(mesh);
    for replica in replicas {
        let ip = format!("10.1.{}.{}", replica / 200, replica % 200);
        mesh.connect(sidecar("app", &format!("web-{replica}"), &ip, &[("app", "web")]));
    }
    processed(mesh) - before
}

#[test]
fn a_replica_that_connects_costs_the_same_however_many_there_are() {
    let mesh = TestGraph::new(MESH);
    connect(&mesh, 0..10);
    let (first, later) = (connect(&mesh, 10..110), connect(&mesh, 110..210));
    assert_eq!(first, later, "records for 100 replicas");
}

fn entries(namespace: &str, numbers: Range<usize>) -> String {
    let entry = |number| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
             metadata: {{name: e{number}, namespace: {namespace}}}\n\
             spec: {{hosts: [h{number}.example], resolution: DNS, ports: [{{number: 443, name: tls, protocol: TLS}}]}}\n"
        )
    };
    numbers.map(entry).collect()
}

fn namespace(name: &str, read: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{read: '{read}'}}}}\n")
}

/// Selects the namespaces with the label `read`.
const SELECTORS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n\
                         data: {mesh: \"discoverySelectors: [{matchLabels: {read: 'yes'}}]\"}\n";

#[test]
fn a_namespace_that_is_discovered_visits_its_own_objects() {
    let work = [20, 200].map(|others| {
        let text = SELECTORS.to_owned() + &namespace("large", "yes") + &entries("large", 0..others);
        let mut mesh = TestGraph::new(&(text + &namespace("small", "no") + &entries("small", 900..903)));
        mesh.changed();
        let before = processed(&mesh);
        mesh.apply(&namespace("small", "yes"));
        let services = mesh.changed().iter().filter(|line| line.starts_with("+services small/")).count();
        assert_eq!(services, 3);
        mesh.apply(&namespace("small", "no"));
        let services = mesh.changed().iter().filter(|line| line.starts_with("-services small/")).count();
        assert_eq!(services, 3);
        processed(&mesh) - before
    });
    assert_eq!(work[0], work[1], "records beside 20 and 200 objects");
}

/// Entries in the stores of a collection.
fn stored(mesh: &TestGraph, name: &str) -> Option<i64> {
    let collections = mesh.engine.metrics().collections;
    collections.iter().find(|collection| collection.name == name).map(|collection| collection.stored)
}

#[test]
fn objects_are_not_copied_where_no_namespace_is_selected() {
    let mesh = TestGraph::new(&entries("large", 0..50));
    assert_eq!(stored(&mesh, "service_entries"), Some(50), "one reference for each");
}

#[test]
fn objects_are_stored_once_where_namespaces_are_selected() {
    let text = SELECTORS.to_owned() + &namespace("large", "yes") + &entries("large", 0..50);
    let mesh = TestGraph::new(&(text + &namespace("small", "no") + &entries("small", 900..903)));
    let services = |mesh: &TestGraph| mesh.engine.snapshot().iter(&mesh.handles.services).count();
    assert_eq!(services(&mesh), 50, "only those of one namespace are selected");
    // `records_that_pass_share_their_values` in the tests of the engine shows that these are no copies of the values.
    assert_eq!(stored(&mesh, "service_entries"), Some(53), "one reference for each, selected or not");
    mesh.apply(&namespace("small", "yes"));
    assert_eq!(services(&mesh), 53);
    assert_eq!(stored(&mesh, "service_entries"), Some(53));
}

#[test]
fn an_address_is_allocated_at_the_same_cost_beside_many() {
    let work = [20, 200].map(|others| {
        let options = GraphOptions { address_pools: Some(AddressPools::default()), ..GraphOptions::default() };
        let mesh = TestGraph::with(options, &entries("app", 0..others));
        let before = processed(&mesh);
        mesh.apply(&entries("app", 900..901));
        processed(&mesh) - before
    });
    assert_eq!(work[0], work[1], "records beside 20 and 200 hosts");
}
