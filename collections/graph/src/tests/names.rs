//! Name tables and allocated addresses: the entries that a change touches.

use prost::Message;
use sluice_model::{Kind, Resource, ResourceType, View};
use sluice_proto::istio::networking::nds::v1::NameTable;

use super::{TestGraph, sidecar};
use crate::{AddressPools, GraphOptions};

const TOWN: &str = "
apiVersion: v1
kind: Service
metadata: {name: mill, namespace: town}
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: silo, namespace: town}
spec: {clusterIP: None, ports: [{name: tcp, port: 90}], selector: {app: silo}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: silo-1, namespace: town, labels: {kubernetes.io/service-name: silo}}
addressType: IPv4
ports: [{name: tcp, port: 90}]
endpoints: [{addresses: [10.1.0.1]}]
";

impl TestGraph {
    /// The changes in name tables since the last call: `+`, `~` or `-`, view and entry.
    fn changed_names(&mut self) -> Vec<String> {
        let Some(batch) = self.feed.try_next() else { return Vec::new() };
        let mut lines = Vec::new();
        for segments in &self.handles.segments {
            for event in batch.events(segments).filter(|event| event.key.resource_type == ResourceType::NameTable) {
                let sign = match (&event.old, &event.new) {
                    (None, _) => '+',
                    (_, None) => '-',
                    _ => '~',
                };
                lines.push(format!("{sign}{} {}", event.key.layer.view.namespace(), event.key.segment));
            }
        }
        lines.sort();
        lines
    }

    /// The addresses of a name in the base view.
    fn addresses(&self, name: &str) -> Vec<String> {
        let snapshot = self.engine.snapshot();
        let all = self.handles.segments.iter().flat_map(|segments| snapshot.iter(segments));
        let named = all.filter(|(key, _)| key.resource_type == ResourceType::NameTable && key.layer.view == View::Base);
        let mut found = Vec::new();
        for (_, entry) in named {
            let Resource::Encoded(bytes) = entry else { continue };
            let mut wire = Vec::new();
            prost::encoding::bytes::encode(1, bytes, &mut wire);
            let table = NameTable::decode(wire.as_slice()).expect("an entry").table;
            found.extend(table.get(name).into_iter().flat_map(|info| info.ips.clone()));
        }
        found
    }
}

/// A mesh with a sidecar that captures DNS, without pending changes.
fn test_mesh(options: GraphOptions) -> TestGraph {
    let mut mesh = TestGraph::with(options, TOWN);
    let mut client = sidecar("town", "client", "10.9.0.1", &[]);
    client.dns_capture = true;
    mesh.connect(client);
    let mut first = mesh.changed_names();
    first.sort();
    assert_eq!(first, ["+ ", "+ mill.town.svc.cluster.local", "+ silo.town.svc.cluster.local"]);
    mesh
}

#[test]
fn a_service_touches_its_own_names() {
    let mut mesh = test_mesh(GraphOptions::default());
    let bell = |address: &str, note: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: bell, namespace: town, annotations: {{networking.istio.io/exportTo: '{note}'}}}}, \
             spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}}}"
        )
    };
    mesh.apply(&bell("10.0.0.2", "*"));
    assert_eq!(mesh.changed_names(), ["+ bell.town.svc.cluster.local"]);
    mesh.apply(&bell("10.0.0.3", "*"));
    assert_eq!(mesh.changed_names(), ["~ bell.town.svc.cluster.local"]);
    assert_eq!(mesh.addresses("bell.town.svc.cluster.local"), ["10.0.0.3"]);
    // A service that is exported to one namespace is in the view of that namespace.
    mesh.apply(&bell("10.0.0.3", "barn"));
    assert_eq!(mesh.changed_names(), ["+barn bell.town.svc.cluster.local", "- bell.town.svc.cluster.local"]);
    mesh.delete(Kind::Service, "town", "bell");
    assert_eq!(mesh.changed_names(), ["-barn bell.town.svc.cluster.local"]);
}

#[test]
fn endpoints_touch_names_of_headless_services_only() {
    let mut mesh = test_mesh(GraphOptions::default());
    let slice = |service: &str, addresses: &str| {
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
             metadata: {{name: {service}-2, namespace: town, labels: {{kubernetes.io/service-name: {service}}}}}, \
             ports: [{{name: tcp, port: 90}}, {{name: http, port: 80}}], endpoints: [{{addresses: [{addresses}]}}]}}"
        )
    };
    mesh.apply(&slice("mill", "10.1.0.7"));
    assert_eq!(mesh.changed_names(), Vec::<String>::new());
    mesh.apply(&slice("silo", "10.1.0.8"));
    assert_eq!(mesh.changed_names(), ["~ silo.town.svc.cluster.local"]);
    assert_eq!(mesh.addresses("silo.town.svc.cluster.local"), ["10.1.0.1", "10.1.0.8"]);
    // A proxy with the same profile needs no further table. A proxy in another cluster does.
    let mut twin = sidecar("barn", "client", "10.9.0.2", &[]);
    twin.dns_capture = true;
    mesh.connect(twin.clone());
    assert_eq!(mesh.changed_names(), Vec::<String>::new());
    twin.id = "other".into();
    twin.network = "far".into();
    mesh.connect(twin.clone());
    assert_eq!(mesh.changed_names().len(), 3);
    // All networks without endpoints are alike.
    twin.id = "third".into();
    twin.network = "farther".into();
    mesh.connect(twin);
    assert_eq!(mesh.changed_names(), Vec::<String>::new());
}

fn entry(name: &str, created: &str, more: &str) -> String {
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
         metadata: {{name: {name}, namespace: town, creationTimestamp: '2026-01-01T00:00:{created}Z'}}\n\
         spec: {{hosts: [{name}.example], resolution: DNS, ports: [{{number: 443, name: tls, protocol: TLS}}]}}\n{more}\n"
    )
}

#[test]
fn without_pools_only_addresses_in_statuses_are_used() {
    let mut mesh = test_mesh(GraphOptions::default());
    mesh.apply(&entry("plain", "01", ""));
    assert_eq!(mesh.changed_names(), Vec::<String>::new());
    mesh.apply(&entry("plain", "01", "status: {addresses: [{host: plain.example, value: 240.240.0.9}]}"));
    assert_eq!(mesh.changed_names(), ["+ plain.example"]);
    assert_eq!(mesh.addresses("plain.example"), ["240.240.0.9"]);
    assert!(mesh.engine.snapshot().is_empty(&mesh.handles.address_updates));
}

#[test]
fn addresses_follow_from_hashes_if_they_are_not_allocated() {
    let named = |allocates_addresses| {
        let mesh = TestGraph::with(GraphOptions { allocates_addresses, ..GraphOptions::default() }, TOWN);
        let mut client = sidecar("town", "client", "10.9.0.1", &[]);
        (client.dns_capture, client.dns_auto_allocate) = (true, true);
        mesh.connect(client);
        mesh.apply(&entry("plain", "01", ""));
        mesh.engine.flush();
        let snapshot = mesh.engine.snapshot();
        let mut all = mesh.handles.segments.iter().flat_map(|segments| snapshot.iter(segments));
        all.any(|(key, _)| key.resource_type == ResourceType::NameTable && *key.segment == *"plain.example")
    };
    assert!(named(false) && !named(true), "there are no pools");
}

#[test]
fn allocated_addresses_are_of_the_pools_of_the_server() {
    let (v4, v6) = ("10.9.0.0/24".parse().expect("a block"), "fd00:1::/112".parse().expect("a block"));
    let options = GraphOptions { address_pools: Some(AddressPools { v4, v6 }), ..GraphOptions::default() };
    let mesh = test_mesh(options);
    mesh.apply(&entry("first", "01", ""));
    let key = sluice_model::ObjectKey::new("Kubernetes", "town", "first");
    let update = mesh.get(&mesh.handles.address_updates, &key).expect("a pending update");
    let addresses: Vec<&str> = update.wanted.iter().map(|(_, address)| address.as_str()).collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    assert!(addresses[0].starts_with("10.9.0.") && addresses[1].starts_with("fd00:1::"), "{addresses:?}");
}

#[test]
fn an_entry_gets_addresses_at_once_and_a_new_entry_moves_no_other() {
    let options = GraphOptions { address_pools: Some(AddressPools::default()), ..GraphOptions::default() };
    let mut mesh = test_mesh(options);
    mesh.apply(&entry("first", "01", ""));
    assert_eq!(mesh.changed_names(), ["+ first.example"]);
    let first = mesh.addresses("first.example");
    assert_eq!(first.len(), 1, "a client without IPv6 gets none: {first:?}");
    let text: String = (0..40).map(|number| entry(&format!("more-{number}"), "02", "")).collect();
    mesh.apply(&text);
    assert!(mesh.changed_names().iter().all(|line| line.starts_with("+ more-")));
    assert_eq!(mesh.addresses("first.example"), first);
    // The status is to be written. When the status has the addresses, no update is pending.
    let key = sluice_model::ObjectKey::new("Kubernetes", "town", "first");
    let update = mesh.get(&mesh.handles.address_updates, &key).expect("a pending update");
    assert!(update.is.is_empty());
    let wanted: Vec<String> =
        update.wanted.iter().map(|(host, value)| format!("{{host: {host}, value: '{value}'}}")).collect();
    mesh.apply(&entry("first", "01", &format!("status: {{addresses: [{}]}}", wanted.join(", "))));
    assert_eq!(mesh.changed_names(), Vec::<String>::new());
    assert_eq!(mesh.get(&mesh.handles.address_updates, &key), None);
}
