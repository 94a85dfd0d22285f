//! The objects of a mesh as YAML.

use std::fmt::Write as _;
use std::ops::Range;

use crate::ambient;
use crate::shape::{Layout, NODES, Service, Shape, ZONES};

/// How a service's endpoints differ from the initial ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Endpoints {
    /// Endpoints in addition to those of the shape.
    pub(crate) more: usize,
    /// The first one is not ready.
    pub(crate) first_unready: bool,
    /// Generation of the addresses of the first endpoint, or of all.
    pub(crate) moved: usize,
    /// `moved` applies to all endpoints.
    pub(crate) all_moved: bool,
    /// An annotation that nothing reads.
    pub(crate) note: usize,
}

impl Endpoints {
    /// The present address of an endpoint.
    pub(crate) fn address(&self, service: Service, endpoint: usize) -> String {
        let moved = if endpoint == 0 || self.all_moved { self.moved } else { 0 };
        service.address(endpoint, moved)
    }
}

pub(crate) fn mesh_config(marker: Option<&str>) -> String {
    let log = marker.map_or_else(String::new, |marker| {
        format!("\n    accessLogFile: /dev/stdout\n    accessLogFormat: \"{marker} %RESPONSE_CODE%\\n\"")
    });
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |-
    rootNamespace: istio-system
    trustDomain: cluster.local{log}
"
    )
}

pub(crate) fn nodes() -> String {
    let mut text = String::new();
    for node in 0..NODES {
        let zone = node % ZONES;
        let _ = write!(
            text,
            "---
apiVersion: v1
kind: Node
metadata: {{name: node-{node}, labels: {{topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: r1-z{zone}}}}}
status: {{addresses: [{{type: InternalIP, address: 172.16.0.{}}}]}}
",
            node + 1
        );
    }
    text
}

pub(crate) fn namespace(name: &str, is_ambient: bool) -> String {
    let labels = if is_ambient { ", labels: {istio.io/dataplane-mode: ambient}" } else { "" };
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}{labels}}}\n")
}

/// The largest number of endpoints that Kubernetes puts into an EndpointSlice.
const ENDPOINTS_PER_SLICE: usize = 1000;

/// A Service with its endpoints: a text for each EndpointSlice with its Pods. The first also has the Service.
pub(crate) fn service(service: Service, shape: &Shape, state: &Endpoints) -> Vec<String> {
    let (name, namespace, port) = (service.name(), service.namespace(), service.port());
    let port_name = port_name(service);
    let head = format!(
        "apiVersion: v1
kind: Service
metadata:
  name: {name}
  namespace: {namespace}
  creationTimestamp: 2026-01-01T00:00:00Z
  labels: {{app: {name}{waypoint}}}
  annotations: {{bench/note: \"{note}\"}}
spec:
  type: ClusterIP
  clusterIP: {vip}
  clusterIPs: [{vip}]
  selector: {{app: {name}}}
  ports: [{{name: {port_name}, port: {port}, targetPort: 8080, protocol: TCP}}]
---
",
        vip = service.vip(),
        waypoint = ambient::labels(shape.waypoint(service)),
        note = state.note,
    );
    let all = shape.endpoints + state.more;
    let slices = (0..all.max(1)).step_by(ENDPOINTS_PER_SLICE).enumerate();
    let mut texts: Vec<String> =
        slices.map(|(at, first)| slice(service, at + 1, first..all.min(first + ENDPOINTS_PER_SLICE), state)).collect();
    texts[0].insert_str(0, &head);
    texts
}

fn port_name(service: Service) -> &'static str {
    if service.is_tcp() { "tcp-main" } else { "http-main" }
}

/// A slice of these endpoints, and their Pods.
fn slice(service: Service, number: usize, endpoints: Range<usize>, state: &Endpoints) -> String {
    let (name, namespace, port_name) = (service.name(), service.namespace(), port_name(service));
    let mut text = format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {name}-{number}
  namespace: {namespace}
  labels: {{kubernetes.io/service-name: {name}}}
addressType: IPv4
ports: [{{name: {port_name}, port: 8080, protocol: TCP}}]
endpoints:
"
    );
    for endpoint in endpoints.clone() {
        let ready = endpoint > 0 || !state.first_unready;
        let _ = writeln!(
            text,
            "- {{addresses: [{}], conditions: {{ready: {ready}, serving: {ready}, terminating: false}}, nodeName: node-{}, \
             targetRef: {{kind: Pod, name: {}, namespace: {namespace}}}}}",
            state.address(service, endpoint),
            service.node(endpoint),
            service.pod(endpoint),
        );
    }
    for endpoint in endpoints {
        let _ = write!(
            text,
            "---
apiVersion: v1
kind: Pod
metadata:
  name: {pod}
  namespace: {namespace}
  labels: {{app: {name}, version: v1, security.istio.io/tlsMode: istio, service.istio.io/canonical-name: {name}}}
spec:
  serviceAccountName: {name}
  nodeName: node-{node}
  containers: [{{name: app, image: app, ports: [{{name: main, containerPort: 8080, protocol: TCP}}]}}]
status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}
",
            pod = service.pod(endpoint),
            node = service.node(endpoint),
            address = state.address(service, endpoint),
        );
    }
    text
}

/// A ServiceEntry of one host with a WorkloadEntry behind it.
pub(crate) fn service_entry(number: usize, namespace: &str) -> String {
    let address = format!("172.{}.{}.{}", 17 + number / 62_500, number / 250 % 250, number % 250 + 1);
    format!(
        "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: entry-{number:05}, namespace: {namespace}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  hosts: [entry-{number:05}.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: 8080}}]
  workloadSelector: {{labels: {{app: entry-{number:05}}}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: entry-{number:05}, namespace: {namespace}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec: {{address: {address}, labels: {{app: entry-{number:05}}}, serviceAccount: default}}
"
    )
}

pub(crate) fn virtual_service(service: Service, marker: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: bench, namespace: {}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  hosts: [{host}]
  http:
  - headers: {{request: {{set: {{x-bench: {marker}}}}}}}
    route: [{{destination: {{host: {host}}}}}]
",
        service.namespace(),
        host = service.host()
    )
}

pub(crate) fn destination_rule(service: Service, marker: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: bench, namespace: {}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  host: {}
  trafficPolicy: {{tls: {{mode: SIMPLE, sni: {marker}}}}}
",
        service.namespace(),
        service.host()
    )
}

pub(crate) fn authorization_policy(namespace: &str, marker: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: bench, namespace: {namespace}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  action: DENY
  rules: [{{from: [{{source: {{principals: [cluster.local/ns/absent/sa/{marker}]}}}}]}}]
"
    )
}

pub(crate) fn peer_authentication(namespace: &str, mode: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: bench, namespace: {namespace}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec: {{mtls: {{mode: {mode}}}}}
"
    )
}

/// A Sidecar that limits its namespace to itself and one other host. With a selector, it takes precedence over an older one of the
/// namespace.
pub(crate) fn sidecar(namespace: &str, other: Service, layout: Layout) -> String {
    let selector = match layout {
        Layout::Flat => "",
        Layout::Scoped => "workloadSelector: {labels: {version: v1}}, ",
    };
    format!(
        "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: bench, namespace: {namespace}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec: {{{selector}egress: [{{hosts: [\"./*\", \"{}/{}\"]}}]}}
",
        other.namespace(),
        other.host()
    )
}

/// The Sidecar of a namespace in the scoped layout: it imports its own namespace and another one.
pub(crate) fn scope(namespace: &str, other: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: scope, namespace: {namespace}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec: {{egress: [{{hosts: [\"./*\", \"istio-system/*\", \"{other}/*\"]}}]}}
"
    )
}
