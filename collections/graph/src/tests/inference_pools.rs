//! InferencePools: what a pool, a route to it, and its Service touch.

use prost::Message;
use sluice_model::{Kind, ObjectKey, Proxy, ProxyType, Resource, ResourceType, Severity};
use sluice_proto::envoy::config::cluster::v3::Cluster;
use sluice_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;

use super::{TestGraph, sidecar};
use crate::{GatewayApiOptions, GraphOptions, RejectKey, ShadowService, StatusKey};

const GATEWAY: &str = "
apiVersion: v1
kind: Service
metadata: {name: door-istio, namespace: ml}
spec: {clusterIP: 10.0.0.8, selector: {gateway.networking.k8s.io/gateway-name: door}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: picker, namespace: ml}
spec: {clusterIP: 10.0.0.9, ports: [{name: grpc, port: 9002}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: ml, generation: 1}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
";

const POOL: &str = "
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llm, namespace: ml, generation: 1, uid: u1}
spec:
  selector: {matchLabels: {app: llm}}
  targetPorts: [{number: 8000}, {number: 8001}]
  endpointPickerRef: {name: picker, port: {number: 9002}, failureMode: FailOpen}
";

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: chat, namespace: ml, generation: 1}
spec:
  parentRefs: [{name: door}]
  hostnames: [chat.example]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llm}]}]
";

/// The Service of the pool, as the control plane writes it.
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata:
  name: llm-ip-487b9104
  namespace: ml
  ownerReferences: [{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, name: llm, uid: u1}]
  labels:
    istio.io/inferencepool-name: llm
    istio.io/inferencepool-extension-service: picker
    istio.io/inferencepool-extension-port: '9002'
    istio.io/inferencepool-extension-failure-mode: FailOpen
    internal.istio.io/service-semantics: inferencepool
spec:
  clusterIP: None
  selector: {app: llm}
  ports:
  - {name: http-0, port: 54321, targetPort: 8000, appProtocol: http}
  - {name: http-1, port: 54322, targetPort: 8001, appProtocol: http}
";

const SLICE: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: llm-1, namespace: ml, labels: {kubernetes.io/service-name: llm-ip-487b9104}}
addressType: IPv4
endpoints: [{addresses: [10.2.0.1], conditions: {ready: true}}, {addresses: [10.2.0.2], conditions: {ready: true}}]
ports: [{name: http-0, port: 8000}, {name: http-1, port: 8001}]
";

const SERVICE_NAME: &str = "llm-ip-487b9104";

fn options() -> GraphOptions {
    let gateway_api = GatewayApiOptions { inference: true, ..GatewayApiOptions::default() };
    GraphOptions { gateway_api, ..GraphOptions::default() }
}

fn router() -> Proxy {
    let mut router = sidecar("ml", "door", "10.1.0.8", &[("gateway.networking.k8s.io/gateway-name", "door")]);
    router.proxy_type = ProxyType::Router;
    router
}

fn mesh() -> TestGraph {
    let mut mesh = TestGraph::with(options(), GATEWAY);
    mesh.connect(router());
    mesh.touched();
    mesh
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("Kubernetes", "ml", name)
}

/// The Service that has to be written.
fn shadow_service(mesh: &TestGraph) -> Option<ShadowService> {
    mesh.engine.flush();
    mesh.get(&mesh.handles.shadow_services, &key(SERVICE_NAME))
}

/// The wanted status of an object, if it differs from the stored one.
fn status(mesh: &TestGraph, kind: Kind, name: &str) -> String {
    mesh.engine.flush();
    let update = mesh.get(&mesh.handles.status_updates, &StatusKey { kind, object: key(name) });
    update.map(|update| update.wanted.to_string()).unwrap_or_default()
}

/// A resource, decoded.
fn resource<M: Message + Default>(mesh: &TestGraph, resource_type: ResourceType, name: &str) -> Option<M> {
    mesh.engine.flush();
    let now = mesh.engine.snapshot();
    let mut all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
    let (_, found) = all.find(|(key, _)| key.resource_type == resource_type && *key.name == *name)?;
    let Resource::Encoded(bytes) = found else { panic!("{name} has slots") };
    Some(M::decode(bytes.clone()).expect("it decodes"))
}

#[test]
fn service_of_a_pool_is_written_while_a_route_refers_to_the_pool_and_it_differs() {
    let mesh = mesh();
    mesh.apply(POOL);
    assert_eq!(shadow_service(&mesh), None, "no route refers to the pool");
    mesh.apply(ROUTE);
    let wanted = shadow_service(&mesh).expect("a Service");
    assert_eq!((wanted.pool.as_str(), wanted.pool_uid.as_str()), ("llm", "u1"));
    let ports: Vec<_> = wanted.ports.iter().map(|port| (port.name.as_str(), port.port, port.target_port)).collect();
    assert_eq!(ports, [("http-0", 54321, 8000), ("http-1", 54322, 8001)]);
    mesh.apply(SERVICE);
    assert_eq!(shadow_service(&mesh), None, "it is stored");
    for changed in [
        SERVICE.replace("'9002'", "'9003'"),
        SERVICE.replace("selector: {app: llm}", "selector: {app: other}"),
        SERVICE.replace("targetPort: 8001", "targetPort: 8002"),
        SERVICE.replace("uid: u1", "uid: u0"),
    ] {
        mesh.apply(&changed);
        assert_eq!(shadow_service(&mesh).as_ref(), Some(&wanted), "{changed}");
    }
    // A Service of another owner is not changed.
    mesh.apply(&SERVICE.replace("istio.io/inferencepool-name: llm", "app: x"));
    assert_eq!(shadow_service(&mesh), None);
    let reject = RejectKey { kind: Kind::InferencePool, object: key("llm") };
    let rejects = mesh.get(&mesh.handles.rejects, &reject).unwrap_or_default();
    assert_eq!((rejects.len(), rejects[0].severity), (1, Severity::Warning));
    mesh.delete(Kind::Service, "ml", SERVICE_NAME);
    assert_eq!(shadow_service(&mesh), Some(wanted));
    assert_eq!(mesh.get(&mesh.handles.rejects, &reject), None);
    mesh.apply(&POOL.replace("uid: u1", "uid: u1, labels: {istio.io/rev: canary}"));
    assert_eq!(shadow_service(&mesh), None, "it is of another revision");
    mesh.apply(POOL);
    mesh.delete(Kind::HTTPRoute, "ml", "chat");
    assert_eq!(shadow_service(&mesh), None);
}

#[test]
fn a_route_to_a_pool_touches_the_listener_and_its_virtual_host() {
    let mut mesh = mesh();
    mesh.apply(&format!("{POOL}---{SERVICE}---{SLICE}"));
    let touched = mesh.touched();
    assert!(touched.iter().all(|line| !line.contains("Listener") && !line.contains("Route http.80")), "{touched:?}");
    mesh.apply(ROUTE);
    let expected = ["+Route http.80 chat.example:80", "-Route http.80 blackhole:80", "~Listener 0.0.0.0_80"];
    assert_eq!(mesh.touched(), expected);
    // A second route to the pool changes no listener.
    mesh.apply(&ROUTE.replace("name: chat,", "name: more,").replace("chat.example", "more.example"));
    assert_eq!(mesh.touched(), ["+Route http.80 more.example:80"]);
    mesh.delete(Kind::HTTPRoute, "ml", "more");
    assert_eq!(mesh.touched(), ["-Route http.80 more.example:80"]);
    // The picker is that of the labels of the Service.
    mesh.apply(&SERVICE.replace("'9002'", "'9003'"));
    let touched = mesh.touched();
    assert!(touched.contains(&"~Route http.80 chat.example:80".to_owned()), "{touched:?}");
    mesh.apply(&POOL.replace("number: 9002", "number: 9003"));
    assert_eq!(mesh.touched(), [""; 0]);
    mesh.delete(Kind::HTTPRoute, "ml", "chat");
    let gone = ["+Route http.80 blackhole:80", "-Route http.80 chat.example:80", "~Listener 0.0.0.0_80"];
    assert_eq!(mesh.touched(), gone);
}

#[test]
fn route_without_the_pool_or_its_service_fails_requests_and_says_why() {
    let mesh = mesh();
    mesh.apply(ROUTE);
    assert!(status(&mesh, Kind::HTTPRoute, "chat").contains("backend(llm) not found"));
    mesh.apply(POOL);
    let message = format!("backend({SERVICE_NAME}.ml.svc.cluster.local) not found");
    assert!(status(&mesh, Kind::HTTPRoute, "chat").contains(&message));
    mesh.apply(&SERVICE.replace("istio.io/inferencepool-extension-port: '9002'", "x: y"));
    assert!(status(&mesh, Kind::HTTPRoute, "chat").contains("InvalidDestination"));
    mesh.apply(SERVICE);
    assert!(status(&mesh, Kind::HTTPRoute, "chat").contains("All references resolved"));
    let disabled = TestGraph::new(&format!("{GATEWAY}---{POOL}---{SERVICE}---{ROUTE}"));
    assert!(status(&disabled, Kind::HTTPRoute, "chat").contains("InferencePool is not enabled"));
}

#[test]
fn endpoints_of_all_ports_are_in_the_cluster_of_the_first_port() {
    let mesh = mesh();
    mesh.apply(&format!("{POOL}---{SERVICE}---{SLICE}"));
    let name = |port: u16| format!("outbound|{port}||{SERVICE_NAME}.ml.svc.cluster.local");
    let first: Cluster = resource(&mesh, ResourceType::Cluster, &name(54321)).expect("a cluster");
    let policy = &first.load_balancing_policy.as_ref().expect("a policy").policies[0];
    let policy = policy.typed_extension_config.as_ref().map(|config| config.name.as_str());
    assert_eq!(policy, Some("envoy.load_balancing_policies.override_host"));
    assert_eq!(resource::<Cluster>(&mesh, ResourceType::Cluster, &name(54322)), None);
    let load: ClusterLoadAssignment = resource(&mesh, ResourceType::Endpoint, &name(54321)).expect("endpoints");
    assert_eq!(load.endpoints.iter().map(|place| place.lb_endpoints.len()).sum::<usize>(), 4);
}

#[test]
fn status_of_a_pool_names_the_gateways_of_its_routes() {
    let mesh = mesh();
    mesh.apply(POOL);
    assert_eq!(status(&mesh, Kind::InferencePool, "llm"), "", "it has no parents");
    let placeholder = "status: {parents: [{parentRef: {kind: Status, name: default}}, {parentRef: {name: alien}}]}";
    mesh.apply(&format!("{POOL}{placeholder}"));
    let cleared = status(&mesh, Kind::InferencePool, "llm");
    assert!(cleared.contains("alien") && !cleared.contains("default"), "{cleared}");
    mesh.apply(&format!("{POOL}---{ROUTE}"));
    let accepted = status(&mesh, Kind::InferencePool, "llm");
    assert!(accepted.contains("Referenced by an HTTPRoute accepted"), "{accepted}");
    assert!(accepted.contains("Referenced ExtensionRef resolved successfully"), "{accepted}");
    mesh.delete(Kind::Service, "ml", "picker");
    assert!(status(&mesh, Kind::InferencePool, "llm").contains("Referenced ExtensionRef not found picker"));
    mesh.apply(&ROUTE.replace("{name: door}", "{name: door, sectionName: tls}"));
    assert!(status(&mesh, Kind::InferencePool, "llm").contains("not accepted by Gateway ml/door"));
    // The parent is ours, and no route refers to it any more.
    mesh.apply(&format!("{POOL}status: {accepted}"));
    mesh.delete(Kind::HTTPRoute, "ml", "chat");
    assert_eq!(status(&mesh, Kind::InferencePool, "llm"), r#"{"parents":[]}"#);
}
