//! Clusters on demand (ODCDS): which clusters a proxy has to name, and which changes move them.

use std::collections::BTreeMap;

use sluice_model::{Kind, Proxy, ProxyKey, ResourceType};

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
---
apiVersion: v1
kind: Service
metadata: {name: well, namespace: east}
spec: {clusterIP: 10.0.0.3, ports: [{name: tcp, port: 9000}]}
";

const MIRROR: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: mill, namespace: east}
spec:
  hosts: [mill.east.svc.cluster.local]
  http:
  - route: [{destination: {host: mill.east.svc.cluster.local}}]
    mirror: {host: forge.east.svc.cluster.local}
";

const FILTER: &str = "
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: limit, namespace: west}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: envoy.filters.http.ratelimit
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
          domain: east
          rate_limit_service:
            transport_api_version: V3
            grpc_service: {envoy_grpc: {cluster_name: outbound|80||mill.east.svc.cluster.local}}
";

fn on_demand(name: &str, ip: &str) -> Proxy {
    Proxy { on_demand_clusters: true, ..sidecar("west", name, ip, &[]) }
}

fn test_mesh(on_demand_clusters: bool) -> TestGraph {
    TestGraph::with(GraphOptions { on_demand_clusters, ..GraphOptions::default() }, TOWN)
}

/// The outbound clusters in the scope of a proxy, each with whether it has to name it.
fn clusters(mesh: &TestGraph, proxy: &ProxyKey) -> BTreeMap<String, bool> {
    let scope = mesh.get(&mesh.handles.scopes, proxy).expect("a scope");
    let snapshot = mesh.engine.snapshot();
    let mut found = BTreeMap::new();
    for layer in scope.layers[&ResourceType::Cluster].iter() {
        let resources = mesh.handles.resources.iter().flat_map(|of| snapshot.iter(of));
        let of_layer = resources.filter(|(key, _)| key.resource_type == ResourceType::Cluster && key.layer == *layer);
        for (key, _) in of_layer {
            if let Some(name) = key.name.strip_suffix(".east.svc.cluster.local") {
                found.entry(name.to_owned()).or_insert(layer.is_on_demand());
            }
        }
    }
    found
}

fn expected(of: &[(&str, bool)]) -> BTreeMap<String, bool> {
    of.iter().map(|(name, on_demand)| ((*name).to_owned(), *on_demand)).collect()
}

const MILL: &str = "outbound|80||mill";
const FORGE: &str = "outbound|80||forge";
const WELL: &str = "outbound|9000||well";

#[test]
fn clusters_that_only_routes_send_to_are_on_demand() {
    let mesh = test_mesh(true);
    let key = mesh.connect(on_demand("new", "10.9.0.1"));
    let other = mesh.connect(sidecar("west", "old", "10.9.0.2", &[]));
    let at_first = expected(&[(MILL, true), (FORGE, true), (WELL, false)]);
    assert_eq!(clusters(&mesh, &key), at_first);
    assert_eq!(clusters(&mesh, &other), expected(&[(MILL, false), (FORGE, false), (WELL, false)]));

    mesh.apply(MIRROR);
    assert_eq!(clusters(&mesh, &key), expected(&[(MILL, true), (FORGE, false), (WELL, false)]));
    mesh.delete(Kind::VirtualService, "east", "mill");
    assert_eq!(clusters(&mesh, &key), at_first);

    mesh.apply(FILTER);
    assert_eq!(clusters(&mesh, &key), expected(&[(MILL, false), (FORGE, true), (WELL, false)]));
    mesh.delete(Kind::EnvoyFilter, "west", "limit");
    assert_eq!(clusters(&mesh, &key), at_first);
}

#[test]
fn service_touches_its_clusters_alone() {
    let mut mesh = test_mesh(true);
    mesh.connect(on_demand("new", "10.9.0.1"));
    mesh.changed();
    mesh.delete(Kind::Service, "east", "forge");
    let changed = mesh.changed();
    let of_clusters: Vec<&String> = changed.iter().filter(|line| line[1..].starts_with("clusters/")).collect();
    assert_eq!(of_clusters, ["-clusters/outbound/on-demand base outbound|80||forge.east.svc.cluster.local"]);
}

#[test]
fn clusters_are_on_demand_only_if_the_option_is_set_and_only_for_envoys() {
    let mesh = test_mesh(false);
    let key = mesh.connect(on_demand("new", "10.9.0.1"));
    assert_eq!(clusters(&mesh, &key), expected(&[(MILL, false), (FORGE, false), (WELL, false)]));
    let mesh = test_mesh(true);
    let key = mesh.connect(Proxy { grpc: true, ..on_demand("library", "10.9.0.2") });
    assert!(clusters(&mesh, &key).values().all(|on_demand| !on_demand));
}
