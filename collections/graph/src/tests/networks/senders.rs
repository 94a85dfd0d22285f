//! Which proxies send to other networks, and how; what east-west gateways serve besides HBONE.

use std::collections::BTreeMap;

use prost::Message as _;
use sluice_model::label::{GATEWAY_MANAGED, GATEWAY_NAME, INGRESS_GATEWAY, MANAGED_BY_EAST_WEST_CONTROLLER};
use sluice_model::{
    Kind as ObjectKind, Proxy, ProxyKey, ProxyType, Resource, ResourceKey, ResourceType, TunnelSwitches,
};
use sluice_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;

use super::super::{TestGraph, sidecar};
use super::{FAR, FAR_ENDPOINTS, NEAR, NEAR_ENDPOINTS, far_pod, waypoint};
use crate::{AmbientOptions, GatewayApiOptions, GraphOptions};

const OUTBOUND: &str = "outbound|80||coral.reef.svc.cluster.local";
const SNI: &str = "outbound_.80_._.coral.reef.svc.cluster.local";
/// The listeners of two tunnels.
const DOUBLE_TUNNEL: [&str; 2] = ["inner_connect_originate", "outer_connect_originate"];

/// The cluster `Kubernetes` in the network `near`, and `c2` in the network `far`, with endpoints of `coral` in both.
fn networks(tunnels: TunnelSwitches) -> TestGraph {
    let ambient = AmbientOptions { tunnels, ..AmbientOptions::default() };
    let gateway_api = GatewayApiOptions { waypoints: true, east_west: true, ..GatewayApiOptions::default() };
    let options = GraphOptions { ambient: Some(ambient), sends_hbone: true, gateway_api, ..GraphOptions::default() };
    let mesh = TestGraph::with(options, "");
    mesh.apply(&format!("{NEAR}---{NEAR_ENDPOINTS}"));
    mesh.write_in("c2", &format!("{FAR}---{}---{FAR_ENDPOINTS}", far_pod("coral-8", "10.9.0.1")), false);
    mesh
}

fn tunnels(ingress: bool) -> TunnelSwitches {
    TunnelSwitches { multi_network: true, ingress, ..TunnelSwitches::default() }
}

fn ingress_gateway() -> Proxy {
    let proxy = sidecar("istio-system", "ingress-1", "10.1.0.7", &[INGRESS_GATEWAY]);
    Proxy { proxy_type: ProxyType::Router, network: "near".into(), ..proxy }
}

fn client() -> Proxy {
    Proxy { network: "near".into(), ..sidecar("reef", "client", "10.1.0.8", &[]) }
}

fn east_west_gateway() -> Proxy {
    let labels = [(GATEWAY_MANAGED, MANAGED_BY_EAST_WEST_CONTROLLER), (GATEWAY_NAME, "east-west")];
    waypoint("istio-system", "east-west-1", &labels)
}

/// The resources of a proxy.
struct Sent<'g>(&'g TestGraph, ProxyKey);

impl Sent<'_> {
    /// The bytes of a resource as the proxy gets it.
    fn get(&self, resource_type: ResourceType, name: &str) -> Option<Vec<u8>> {
        let Self(mesh, proxy) = self;
        let scope = mesh.get(&mesh.handles.scopes, proxy).expect("a scope");
        let found =
            scope.layers.get(&resource_type).into_iter().flat_map(|layers| layers.iter()).find_map(|layer| {
                let key = ResourceKey { resource_type, layer: layer.clone(), name: name.into() };
                mesh.handles.resources.iter().find_map(|of| mesh.get(of, &key))
            })?;
        found.bytes(&scope.slots).map(|bytes| bytes.to_vec())
    }

    fn has(&self, resource_type: ResourceType, name: &str) -> bool {
        self.get(resource_type, name).is_some()
    }

    fn text(&self, resource_type: ResourceType, name: &str) -> String {
        String::from_utf8_lossy(&self.get(resource_type, name).expect(name)).into_owned()
    }

    /// The endpoints of a cluster as text.
    fn endpoints(&self, cluster: &str) -> Vec<String> {
        let bytes = self.get(ResourceType::Endpoint, cluster).expect(cluster);
        let assignment = ClusterLoadAssignment::decode(bytes.as_slice()).expect("an assignment");
        let all = assignment.endpoints.into_iter().flat_map(|place| place.lb_endpoints);
        all.map(|endpoint| format!("{endpoint:?}")).collect()
    }
}

fn sent(mesh: &TestGraph, proxy: Proxy) -> Sent<'_> {
    Sent(mesh, mesh.connect(proxy))
}

/// Whether an endpoint is the gateway of the network `far`, reached by two tunnels.
fn is_tunnelled(endpoint: &str) -> bool {
    let parts = ["inner_connect_originate", "203.0.113.1:15008", "coral.reef.svc.cluster.local:80", "tunnel"];
    parts.iter().all(|part| endpoint.contains(part))
}

#[test]
fn an_ingress_gateway_sends_to_another_network_by_two_tunnels_if_that_is_enabled() {
    let mesh = networks(tunnels(true));
    let gateway = sent(&mesh, ingress_gateway());
    let endpoints = gateway.endpoints(OUTBOUND);
    assert!(endpoints.len() == 2 && endpoints.iter().filter(|it| is_tunnelled(it)).count() == 1, "{endpoints:?}");
    assert!(DOUBLE_TUNNEL.iter().all(|name| gateway.has(ResourceType::Cluster, name)));
    let [inner, outer] = DOUBLE_TUNNEL.map(|name| gateway.text(ResourceType::Listener, name));
    assert!(inner.contains("x-forwarded-network") && inner.contains("near"), "{inner}");
    assert!(outer.contains("x-istio-source") && outer.contains("gateway"), "{outer}");

    let mesh = networks(tunnels(false));
    let gateway = sent(&mesh, ingress_gateway());
    let endpoints = gateway.endpoints(OUTBOUND);
    assert!(endpoints.len() == 1 && endpoints[0].contains("10.1.0.1"), "{endpoints:?}");
    for kind in [ResourceType::Cluster, ResourceType::Listener] {
        assert!(DOUBLE_TUNNEL.iter().all(|name| !gateway.has(kind, name)), "{kind:?}");
    }
}

#[test]
fn an_ingress_gateway_that_sends_no_hbone_sends_to_its_own_network_only() {
    let mesh = networks(tunnels(true));
    let metadata = [("DISABLE_HBONE_SEND".into(), "\"true\"".into())].into();
    let gateway = sent(&mesh, Proxy { metadata, ..ingress_gateway() });
    let endpoints = gateway.endpoints(OUTBOUND);
    assert!(endpoints.len() == 1 && endpoints[0].contains("10.1.0.1"), "{endpoints:?}");
    assert!(!gateway.has(ResourceType::Listener, DOUBLE_TUNNEL[0]));
}

#[test]
fn a_gateway_of_another_network_that_is_removed_or_replaced_changes_endpoints() {
    let mesh = networks(tunnels(true));
    let gateway = sent(&mesh, ingress_gateway());
    let delete = |kind, namespace: &str, name: &str| {
        let key = sluice_model::ObjectKey::new("c2", namespace, name);
        mesh.engine.transaction(|tx| mesh.handles.inputs.delete(tx, kind, key, sluice_engine::Origin::default()));
    };
    delete(ObjectKind::Service, "istio-system", "east-west");
    let endpoints = gateway.endpoints(OUTBOUND);
    assert!(endpoints.len() == 1 && endpoints[0].contains("10.1.0.1"), "{endpoints:?}");
    mesh.write_in("c2", &FAR_ENDPOINTS.replace("203.0.113.1", "203.0.113.2"), false);
    let endpoints = gateway.endpoints(OUTBOUND);
    assert!(endpoints.iter().any(|it| it.contains("203.0.113.2:15008")), "{endpoints:?}");
}

#[test]
fn a_sidecar_sends_to_another_network_by_mutual_tls_only() {
    let mesh = networks(tunnels(true));
    let proxy = sent(&mesh, client());
    let endpoints = proxy.endpoints(OUTBOUND);
    assert!(endpoints.len() == 1 && endpoints[0].contains("10.1.0.1"), "{endpoints:?}");
    let mtls =
        FAR_ENDPOINTS.replace("{name: mesh, port: 15008}", "{name: mesh, port: 15008}, {name: tls, port: 15443}");
    mesh.write_in("c2", &mtls, false);
    let pod = far_pod("coral-8", "10.9.0.1").replace("{app: coral}", "{app: coral, security.istio.io/tlsMode: istio}");
    mesh.write_in("c2", &pod, false);
    let endpoints = proxy.endpoints(OUTBOUND);
    assert!(endpoints.iter().any(|it| it.contains("203.0.113.1") && it.contains("15443")), "{endpoints:?}");
}

#[test]
fn endpoints_in_other_clusters_are_those_of_global_services() {
    let mesh = networks(tunnels(false));
    // Both clusters are in one network.
    let namespace =
        "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: near}}}";
    mesh.write_in("c2", namespace, false);
    let proxy = sent(&mesh, client());
    assert_eq!(proxy.endpoints(OUTBOUND).len(), 2);
    let local = NEAR.replace("labels: {scope: all}", "labels: {}");
    assert_ne!(local, NEAR);
    mesh.apply(&local);
    let endpoints = proxy.endpoints(OUTBOUND);
    assert!(endpoints.len() == 1 && endpoints[0].contains("10.1.0.1"), "{endpoints:?}");
    mesh.apply(NEAR);
    assert_eq!(proxy.endpoints(OUTBOUND).len(), 2);
}

/// The east-west gateway of the network `near`, with TLS that it passes through: by a route, and to the server names of the mesh.
const EAST_WEST: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: east-west, namespace: istio-system, labels: {topology.istio.io/network: near}}
spec:
  gatewayClassName: istio-east-west
  listeners:
  - {name: mesh, port: 15008, protocol: HBONE, tls: {mode: Terminate, options: {gateway.istio.io/tls-terminate-mode: ISTIO_MUTUAL}}}
  - {name: api, port: 6443, protocol: TLS, hostname: api.example.com, tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}}
  - {name: mtls, port: 15443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: web, port: 8080, protocol: HTTP}
---
apiVersion: v1
kind: Service
metadata: {name: east-west, namespace: istio-system, labels: {topology.istio.io/network: near}}
spec:
  clusterIP: 10.0.0.7
  selector: {gateway.networking.k8s.io/gateway-name: east-west}
  ports: [{name: mesh, port: 15008}, {name: api, port: 6443}, {name: mtls, port: 15443}, {name: web, port: 8080}]
";

const TLS_ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: api, namespace: reef}
spec:
  parentRefs: [{name: east-west, namespace: istio-system, sectionName: api}]
  hostnames: [api.example.com]
  rules: [{backendRefs: [{name: coral, port: 80}]}]
";

#[test]
fn an_east_west_gateway_passes_tls_through() {
    let mesh = networks(tunnels(false));
    mesh.apply(EAST_WEST);
    let gateway = sent(&mesh, east_west_gateway());
    assert!(!gateway.has(ResourceType::Listener, "0.0.0.0_6443"), "nothing is routed");
    assert!(!gateway.has(ResourceType::Cluster, OUTBOUND), "nor reached");
    mesh.apply(TLS_ROUTE);
    let listener = gateway.text(ResourceType::Listener, "0.0.0.0_6443");
    assert!(listener.contains("api.example.com") && listener.contains(OUTBOUND), "{listener}");
    assert!(gateway.has(ResourceType::Cluster, OUTBOUND));
    let endpoints = gateway.endpoints(OUTBOUND);
    assert!(endpoints.len() == 1 && endpoints[0].contains("10.1.0.1"), "its own network only: {endpoints:?}");
    // Its other listeners stay, and only HBONE and TLS are served.
    assert!(gateway.has(ResourceType::Listener, "connect_terminate"));
    assert!(!gateway.has(ResourceType::Listener, "0.0.0.0_8080"));
    mesh.delete(ObjectKind::TLSRoute, "reef", "api");
    assert!(!gateway.has(ResourceType::Listener, "0.0.0.0_6443"));
    assert!(!gateway.has(ResourceType::Cluster, OUTBOUND));
}

#[test]
fn an_east_west_gateway_serves_mutual_tls_of_sidecars() {
    let mesh = networks(tunnels(false));
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: coral-1, namespace: reef, labels: {app: coral, security.istio.io/tlsMode: istio}}, spec: {containers: []}, status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}}";
    mesh.apply(pod);
    mesh.apply(
        &NEAR_ENDPOINTS.replace("ready: true}", "ready: true}, targetRef: {kind: Pod, name: coral-1, namespace: reef}"),
    );
    mesh.apply(EAST_WEST);
    let gateway = sent(&mesh, east_west_gateway());
    let listener = gateway.text(ResourceType::Listener, "0.0.0.0_15443");
    assert!(listener.contains(SNI), "{listener}");
    assert!(gateway.has(ResourceType::Cluster, SNI));
    let endpoints = gateway.endpoints(SNI);
    assert!(endpoints.len() == 1 && endpoints[0].contains("10.1.0.1"), "{endpoints:?}");
    mesh.apply(&EAST_WEST.replace("  - {name: mtls, port: 15443, protocol: TLS, tls: {mode: Passthrough}}\n", ""));
    assert!(!gateway.has(ResourceType::Listener, "0.0.0.0_15443"));
    assert!(!gateway.has(ResourceType::Cluster, SNI));
}

#[test]
fn resources_of_senders_are_those_of_a_new_start() {
    let all = |mesh: &TestGraph| -> BTreeMap<ResourceKey, Resource> {
        let now = mesh.engine.snapshot();
        let all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
        all.map(|(key, resource)| (key.clone(), resource.clone())).collect()
    };
    let proxies = || [ingress_gateway(), client(), east_west_gateway()];
    let changed = networks(tunnels(true));
    for proxy in proxies() {
        changed.connect(proxy);
    }
    changed.apply(EAST_WEST);
    changed.apply(TLS_ROUTE);
    changed.apply(&NEAR.replace("labels: {scope: all}", "labels: {}"));
    changed.delete(ObjectKind::KubernetesGateway, "istio-system", "east-west");
    changed.delete(ObjectKind::TLSRoute, "reef", "api");
    changed.apply(NEAR);
    changed.apply(TLS_ROUTE);
    changed.apply(EAST_WEST);
    let fresh = networks(tunnels(true));
    fresh.apply(&format!("{EAST_WEST}---{TLS_ROUTE}"));
    for proxy in proxies() {
        fresh.connect(proxy);
    }
    let (changed, fresh) = (all(&changed), all(&fresh));
    for (key, resource) in &changed {
        assert_eq!(Some(resource), fresh.get(key), "{key:?}");
    }
    assert_eq!(changed.len(), fresh.len());
}
