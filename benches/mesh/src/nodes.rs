//! The nodes of the proxies.

use serde_json::{Value, json};

use crate::shape::{NODES, Role, Shape};
use crate::{ambient, gateway};

/// The node of a proxy, as protobuf JSON.
pub(crate) fn node(shape: &Shape, role: Role, by_virtual_host: bool) -> Value {
    let mut node = match role {
        Role::Sidecar(number) => sidecar(shape, number),
        Role::Gateway(number) => gateway(number),
        Role::Waypoint(number) => waypoint(number),
        Role::Ztunnel(number) => ztunnel(number),
    };
    if by_virtual_host {
        node["metadata"]["VHDS"] = "true".into();
    }
    node
}

fn sidecar(shape: &Shape, proxy: usize) -> Value {
    let (service, endpoint) = shape.proxy(proxy);
    let (name, pod, address) = (service.name(), service.pod(endpoint), service.address(endpoint, 0));
    let mut node = of_pod("sidecar", &service.namespace(), &name, &pod, &address);
    node["metadata"]["INTERCEPTION_MODE"] = "REDIRECT".into();
    node["metadata"]["NODE_NAME"] = format!("node-{}", service.node(endpoint)).into();
    node["metadata"]["LABELS"] = json!({
        "app": name, "version": "v1", "security.istio.io/tlsMode": "istio",
        "service.istio.io/canonical-name": name, "service.istio.io/canonical-revision": "latest",
    });
    node
}

fn gateway(number: usize) -> Value {
    let name = gateway::NAME;
    let mut node = of_pod("router", gateway::NAMESPACE, name, &format!("{name}-{number}"), &gateway::address(number));
    node["metadata"]["NODE_NAME"] = "node-0".into();
    node["metadata"]["LABELS"] = json!({"istio": name, "service.istio.io/canonical-name": name});
    node
}

fn waypoint(number: usize) -> Value {
    let (name, address) = (ambient::name(number), ambient::address(number));
    let mut node = of_pod("waypoint", ambient::NAMESPACE, &name, &format!("{name}-0"), &address);
    node["metadata"]["NODE_NAME"] = "node-0".into();
    node["metadata"]["LABELS"] = json!({
        "gateway.istio.io/managed": "istio.io-mesh-controller", "gateway.networking.k8s.io/gateway-name": name,
        "gateway.networking.k8s.io/gateway-class-name": "istio-waypoint", "service.istio.io/canonical-name": name,
    });
    node
}

fn ztunnel(number: usize) -> Value {
    let (pod, address) = (format!("ztunnel-{number:04}"), ambient::ztunnel_address(number));
    json!({
        "id": format!("ztunnel~{address}~{pod}.istio-system~istio-system.svc.cluster.local"),
        "cluster": "ztunnel.istio-system",
        "metadata": {
            "NAME": pod, "NAMESPACE": "istio-system", "SERVICE_ACCOUNT": "ztunnel", "CLUSTER_ID": "Kubernetes",
            "ISTIO_VERSION": "1.30.0", "INSTANCE_IPS": address, "NODE_NAME": format!("node-{}", number % NODES),
        },
    })
}

/// The metadata of a proxy in a pod of the workload `name`.
fn of_pod(kind: &str, namespace: &str, name: &str, pod: &str, address: &str) -> Value {
    json!({
        "id": format!("{kind}~{address}~{pod}.{namespace}~{namespace}.svc.cluster.local"),
        "cluster": format!("{name}.{namespace}"),
        "userAgentName": "envoy",
        "metadata": {
            "NAME": pod,
            "NAMESPACE": namespace,
            "OWNER": format!("kubernetes://apis/apps/v1/namespaces/{namespace}/deployments/{name}"),
            "WORKLOAD_NAME": name,
            "SERVICE_ACCOUNT": name,
            "CLUSTER_ID": "Kubernetes",
            "MESH_ID": "cluster.local",
            "ISTIO_VERSION": "1.30.0",
            "INSTANCE_IPS": address,
            "PROXY_CONFIG": proxy_config(),
        },
    })
}

fn proxy_config() -> Value {
    json!({
        "binaryPath": "/usr/local/bin/envoy", "configPath": "./etc/istio/proxy", "concurrency": 2,
        "discoveryAddress": "istiod.istio-system.svc:15012", "drainDuration": "45s", "proxyAdminPort": 15000,
        "serviceCluster": "istio-proxy", "statNameLength": 189, "statusPort": 15020,
        "terminationDrainDuration": "5s", "controlPlaneAuthPolicy": "MUTUAL_TLS",
    })
}
