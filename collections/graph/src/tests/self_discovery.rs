//! Proxies that discover their own replicas: the endpoints of `local_cluster` (X30).

use serde_json::Value;
use sluice_model::{Locality, Proxy, ProxyKey, ResourceKey, ResourceType, SlotValues};
use sluice_proto::json::encode_any;

use super::{TestGraph, sidecar};

/// A service in two regions, of two workloads. The first has two templates.
const WEB: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z2}}
---
apiVersion: v1
kind: Node
metadata: {name: n3, labels: {topology.kubernetes.io/region: r2, topology.kubernetes.io/zone: z3}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: app}
spec:
  clusterIP: 10.0.0.1
  selector: {app: web}
  trafficDistribution: PreferClose
  ports: [{name: http, port: 80, targetPort: 8080}, {name: raw, port: 90, targetPort: 9090}]
";

/// A ready pod of a ReplicaSet.
fn pod(name: &str, node: &str, ip: &str, hash: &str) -> String {
    let workload = name.rsplit_once('-').map_or(name, |(workload, _)| workload);
    format!(
        "---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  generateName: {workload}-{hash}-
  namespace: app
  labels: {{app: web, pod-template-hash: '{hash}'}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: {workload}-{hash}, uid: r, controller: true}}]
spec: {{nodeName: {node}}}
status: {{phase: Running, podIP: {ip}, conditions: [{{type: Ready, status: 'True'}}]}}
"
    )
}

/// The EndpointSlice of these pods, with their addresses.
fn slice(pods: &[(&str, &str)]) -> String {
    let endpoint = |(name, ip): &(&str, &str)| {
        format!(
            "{{addresses: [{ip}], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: {name}, namespace: app}}}}"
        )
    };
    let endpoints: Vec<String> = pods.iter().map(endpoint).collect();
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-a, namespace: app, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}, {{name: raw, port: 9090}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

const PODS: [(&str, &str, &str, &str); 5] = [
    ("web-1", "n1", "10.1.0.1", "aa"),
    ("web-2", "n2", "10.1.0.2", "aa"),
    ("web-3", "n2", "10.1.0.3", "bb"),
    ("web-4", "n3", "10.1.0.4", "aa"),
    ("job-5", "n1", "10.1.0.5", "aa"),
];

fn replica(name: &str, ip: &str) -> Proxy {
    Proxy {
        workload_name: "web".into(),
        locality: Locality { region: "r1".into(), ..Locality::default() },
        self_discovery: true,
        ..sidecar("app", name, ip, &[("app", "web"), ("pod-template-hash", "aa")])
    }
}

fn start() -> TestGraph {
    let pods: Vec<String> = PODS.iter().map(|(name, node, ip, hash)| pod(name, node, ip, hash)).collect();
    TestGraph::new(&[WEB.to_owned(), pods.concat(), slice(&PODS.map(|(name, _, ip, _)| (name, ip)))].concat())
}

/// The assignment of `local_cluster` of a proxy; `None` if it has none.
fn assignment(graph: &TestGraph, proxy: &ProxyKey) -> Option<Value> {
    let layers = graph.get(&graph.handles.scopes, proxy).expect("it is connected").layers;
    let now = graph.engine.snapshot();
    let resource = layers.get(&ResourceType::Endpoint)?.iter().find_map(|layer| {
        let name = "local_cluster".into();
        let key = ResourceKey { resource_type: ResourceType::Endpoint, layer: layer.clone(), name };
        graph.handles.resources.iter().find_map(|of| now.get(of, &key))
    });
    let resource = resource?;
    let bytes = resource.bytes(&SlotValues::default()).expect("it is not hidden");
    Some(encode_any(ResourceType::Endpoint.type_url(), &bytes))
}

/// The zones of the assignment, with the ports and addresses of their endpoints, and the priority if there is one.
fn shown(graph: &TestGraph, proxy: &ProxyKey) -> Vec<String> {
    let assignment = assignment(graph, proxy).expect("an assignment");
    assert_eq!(assignment["clusterName"], "local_cluster");
    let localities = assignment["endpoints"].as_array().cloned().unwrap_or_default();
    let mut shown = Vec::new();
    for locality in localities {
        assert_eq!(locality["priority"], Value::Null, "no load balancing applies");
        for endpoint in locality["lbEndpoints"].as_array().into_iter().flatten() {
            let address = &endpoint["endpoint"]["address"]["socketAddress"];
            let zone = locality["locality"]["zone"].as_str().unwrap_or_default();
            shown.push(format!("{zone} {}:{}", address["address"].as_str().unwrap_or_default(), address["portValue"]));
        }
    }
    shown.sort();
    shown
}

#[test]
fn replicas_are_those_of_the_workload_the_template_and_the_region() {
    let graph = start();
    let proxy = graph.connect(replica("web-1", "10.1.0.1"));
    assert_eq!(shown(&graph, &proxy), ["z1 10.1.0.1:8080", "z2 10.1.0.2:8080"]);
    let other = graph.connect(Proxy { self_discovery: false, ..replica("web-2", "10.1.0.2") });
    assert_eq!(assignment(&graph, &other), None, "it does not subscribe to its replicas");
}

#[test]
fn a_change_of_another_template_touches_no_replica() {
    let mut graph = start();
    let proxy = graph.connect(replica("web-1", "10.1.0.1"));
    let of_cluster = |mut lines: Vec<String>| {
        lines.retain(|line| line.contains("local_cluster"));
        lines.len()
    };
    assert_eq!(of_cluster(graph.changed()), 1);
    // All replicas of the template share the assignment.
    graph.connect(replica("web-2", "10.1.0.2"));
    assert_eq!(of_cluster(graph.changed()), 0);
    graph.apply(&slice(&[("web-1", "10.1.0.1"), ("web-2", "10.1.0.2"), ("web-4", "10.1.0.4")]));
    assert_eq!(of_cluster(graph.changed()), 0, "web-3 has another template");
    graph.apply(&slice(&[("web-1", "10.1.0.1")]));
    assert_eq!(of_cluster(graph.changed()), 1);
    assert_eq!(shown(&graph, &proxy), ["z1 10.1.0.1:8080"]);
}

#[test]
fn proxy_without_a_service_has_no_replicas() {
    let graph = start();
    let mut alone = replica("web-9", "10.1.0.9");
    alone.labels = [("app".into(), "other".into())].into_iter().collect();
    let proxy = graph.connect(alone);
    assert_eq!(shown(&graph, &proxy), Vec::<String>::new());
    // A deleted service leaves an empty assignment.
    let known = graph.connect(replica("web-1", "10.1.0.1"));
    graph.delete(sluice_model::Kind::Service, "app", "web");
    assert_eq!(shown(&graph, &known), Vec::<String>::new());
}
