//! Virtual hosts as resources (VHDS): the keys that a change touches, and the proxies that get them.

use prost::Message;
use sluice_model::{Kind, Proxy, Resource, ResourceType, SlotValues};
use sluice_proto::envoy::config::route::v3::{RouteConfiguration, VirtualHost};

use super::{TestGraph, sidecar};
use crate::GraphOptions;

const TOWN: &str = "
apiVersion: v1
kind: Service
metadata: {name: mill, namespace: east}
spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: forge, namespace: east}
spec: {clusterIP: 10.0.0.2, ports: [{name: http, port: 80}]}
";

const ROUTE: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: mill, namespace: east}
spec: {hosts: [mill.east.svc.cluster.local], http: [{timeout: 1s, route: [{destination: {host: mill.east.svc.cluster.local}}]}]}
";

fn proxy_with_vhds(name: &str, ip: &str) -> Proxy {
    Proxy { virtual_hosts: true, ..sidecar("west", name, ip, &[]) }
}

fn test_mesh(virtual_hosts: bool) -> TestGraph {
    TestGraph::with(GraphOptions { virtual_hosts, ..GraphOptions::default() }, TOWN)
}

/// The changes of routes, without the names of collections.
fn routes(mesh: &mut TestGraph) -> Vec<String> {
    let is_route = |line: &&String| line.contains(" 80");
    let shown = |line: &String| {
        let (sign, rest) = line.split_at(1);
        let collection = rest.split(' ').next().unwrap_or_default();
        let kind = if collection.ends_with("/parts") { "part" } else { "segment" };
        format!("{sign}{kind}{}", &rest[collection.len()..])
    };
    let mut lines: Vec<String> = mesh.changed().iter().filter(is_route).map(shown).collect();
    lines.sort();
    lines
}

#[test]
fn a_virtual_service_touches_its_virtual_host_alone() {
    let mut mesh = test_mesh(true);
    mesh.connect(proxy_with_vhds("new", "10.9.0.1"));
    // A proxy in the namespace of the services has its own table, in which the services have short names.
    let both = |sign: char, kind: &str, names: &[&str]| -> Vec<String> {
        let row = |view: &str, name: &str| format!("{sign}{kind} {view} 80{name}");
        ["base", "namespace:east"].iter().flat_map(|view| names.iter().map(|name| row(view, name))).collect()
    };
    let (forge, mill) = ("/forge.east.svc.cluster.local:80", "/mill.east.svc.cluster.local:80");
    assert_eq!(routes(&mut mesh), both('+', "part", &["", "/allow_any", forge, mill]));
    mesh.apply(ROUTE);
    assert_eq!(routes(&mut mesh), both('~', "part", &[mill]));
    mesh.delete(Kind::Service, "east", "forge");
    assert_eq!(routes(&mut mesh), both('-', "part", &[forge]));

    // A proxy without VHDS gets the same virtual hosts as segments.
    mesh.connect(sidecar("west", "old", "10.9.0.2", &[]));
    assert_eq!(routes(&mut mesh), both('+', "segment", &[" ", " allow_any", " mill.east.svc.cluster.local:80"]));
}

#[test]
fn a_table_refers_to_vhds_and_scopes_have_its_virtual_hosts() {
    let mut mesh = test_mesh(true);
    let key = mesh.connect(proxy_with_vhds("new", "10.9.0.1"));
    routes(&mut mesh);
    let snapshot = mesh.engine.snapshot();
    let tables = mesh.handles.resources.iter().flat_map(|of| snapshot.iter(of));
    let table = tables.filter(|(key, _)| key.resource_type == ResourceType::Route).map(|(_, table)| match table {
        Resource::Encoded(bytes) => RouteConfiguration::decode(bytes.clone()).expect("a table"),
        other => panic!("{other:?}"),
    });
    let tables: Vec<RouteConfiguration> = table.collect();
    assert_eq!(tables.len(), 2, "the base table, and that of the namespace of the services: {tables:?}");
    for table in &tables {
        assert!(table.vhds.is_some() && table.virtual_hosts.is_empty() && table.name == "80");
        assert!(table.validate_clusters.is_some(), "the other fields are set as without VHDS");
    }
    for (key, host) in mesh.handles.resources.iter().flat_map(|of| snapshot.iter(of)) {
        if key.resource_type == ResourceType::VirtualHost {
            let host = host.bytes(&SlotValues::new()).expect("it is not hidden");
            assert_eq!(
                VirtualHost::decode(host).expect("a virtual host").name,
                *key.name,
                "its name is that of the resource"
            );
        }
    }
    let scope = mesh.get(&mesh.handles.scopes, &key).expect("a scope");
    assert_eq!(scope.layers.get(&ResourceType::VirtualHost), scope.layers.get(&ResourceType::Route));
}

#[test]
fn virtual_hosts_are_resources_only_if_the_option_is_set() {
    let mut mesh = test_mesh(false);
    let key = mesh.connect(proxy_with_vhds("new", "10.9.0.1"));
    let lines = routes(&mut mesh);
    assert!(lines.iter().all(|line| line.starts_with("+segment")) && lines.len() == 8, "{lines:?}");
    let scope = mesh.get(&mesh.handles.scopes, &key).expect("a scope");
    assert!(!scope.layers.contains_key(&ResourceType::VirtualHost));
}
