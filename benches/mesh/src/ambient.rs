//! Ambient mode: waypoints, their objects, and ztunnel.

use std::fmt::Write as _;

use crate::shape::Service;

/// Namespace of the waypoints.
pub(crate) const NAMESPACE: &str = "bench-waypoints";

/// Name of a waypoint: of its Gateway, its Service and its service account.
pub(crate) fn name(waypoint: usize) -> String {
    format!("waypoint-{waypoint:03}")
}

/// Address of the instance of a waypoint.
pub(crate) fn address(waypoint: usize) -> String {
    format!("172.29.{}.{}", waypoint / 250 % 250, waypoint % 250 + 1)
}

/// Address of the ztunnel of that number. There are more of them than nodes, so that a mesh with few nodes has many clients.
pub(crate) fn ztunnel_address(number: usize) -> String {
    format!("172.28.{}.{}", number / 250 % 250, number % 250 + 1)
}

/// The labels of a Service that uses a waypoint, after other labels.
pub(crate) fn labels(waypoint: Option<usize>) -> String {
    waypoint.map_or_else(String::new, |waypoint| {
        format!(", istio.io/use-waypoint: {}, istio.io/use-waypoint-namespace: {NAMESPACE}", name(waypoint))
    })
}

/// The cluster of a Service in its waypoint.
pub(crate) fn cluster(service: Service) -> String {
    let protocol = if service.is_tcp() { "tcp" } else { "http" };
    format!("inbound-vip|{}|{protocol}|{}", service.port(), service.host())
}

/// The name of a pod in WDS.
pub(crate) fn workload(service: Service, endpoint: usize) -> String {
    format!("Kubernetes//Pod/{}/{}", service.namespace(), service.pod(endpoint))
}

/// A waypoint with one instance, which Services of all namespaces may use.
pub(crate) fn waypoint(number: usize) -> String {
    let (name, address) = (name(number), address(number));
    let mut text = format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: {NAMESPACE}, creationTimestamp: 2026-01-01T00:00:00Z}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {{namespaces: {{from: All}}}}}}]
status: {{addresses: [{{type: Hostname, value: {name}.{NAMESPACE}.svc.cluster.local}}]}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
  namespace: {NAMESPACE}
  creationTimestamp: 2026-01-01T00:00:00Z
  labels: {{gateway.istio.io/managed: istio.io-mesh-controller}}
spec:
  type: ClusterIP
  clusterIP: 10.254.{}.{}
  selector: {{gateway.networking.k8s.io/gateway-name: {name}}}
  ports: [{{name: mesh, port: 15008, targetPort: 15008, appProtocol: hbone}}]
---
",
        number / 250 % 250,
        number % 250 + 1
    );
    let _ = write!(
        text,
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: {NAMESPACE}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: mesh, port: 15008, protocol: TCP}}]
endpoints:
- {{addresses: [{address}], conditions: {{ready: true}}, nodeName: node-0, targetRef: {{kind: Pod, name: {name}-0, namespace: {NAMESPACE}}}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}-0
  namespace: {NAMESPACE}
  labels: {{gateway.istio.io/managed: istio.io-mesh-controller, gateway.networking.k8s.io/gateway-name: {name}}}
spec: {{serviceAccountName: {name}, nodeName: node-0, containers: [{{name: istio-proxy, image: proxyv2}}]}}
status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}], conditions: [{{type: Ready, status: 'True'}}]}}
"
    );
    text
}
