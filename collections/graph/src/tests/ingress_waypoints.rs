//! Gateways that send through the waypoints of services: what a change of a waypoint, a service or a label touches.

use serde_json::Value;
use sluice_model::{Kind, Layer, Proxy, ProxyKey, ProxyType, ResourceKey, ResourceType, SlotValues};
use sluice_proto::json::encode_any;

use super::{TestGraph, endpoint_slice, sidecar};
use crate::{AmbientOptions, GraphOptions};

const CORAL: &str = "outbound|80||coral.reef.svc.cluster.local";
const CRAB: &str = "outbound|80||crab.reef.svc.cluster.local";

/// Two services with pods, and two waypoints with instances. `coral` uses the first waypoint.
fn reef() -> String {
    let service = |name: &str, ip: &str, port: &str| {
        format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: reef}}
spec: {{clusterIP: {ip}, ports: [{port}]}}
"
        )
    };
    let waypoint = |name: &str| {
        format!(
            "---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: reef}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]
status: {{addresses: [{{type: Hostname, value: {name}.reef.svc.cluster.local}}]}}
"
        )
    };
    let web = "{name: http, port: 80}";
    let mesh = "{name: mesh, port: 15008}";
    [
        service("crab", "10.0.0.2", web),
        service("wp", "10.0.0.8", mesh),
        service("wp-next", "10.0.0.9", mesh),
        waypoint("wp"),
        waypoint("wp-next"),
        endpoint_slice("coral", "http", 8080, &["10.1.0.1"]),
        endpoint_slice("crab", "http", 8080, &["10.1.0.2"]),
        endpoint_slice("wp", "mesh", 15_008, &["10.1.0.8"]),
        endpoint_slice("wp-next", "mesh", 15_008, &["10.1.0.9", "10.1.0.10"]),
        coral("{istio.io/use-waypoint: wp}", "{}", "clusterIP: 10.0.0.1,"),
    ]
    .concat()
}

fn coral(labels: &str, annotations: &str, address: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: coral, namespace: reef, labels: {labels}, annotations: {annotations}}}
spec: {{{address} ports: [{{name: http, port: 80}}]}}
"
    )
}

const FOR_INGRESS: &str = "{istio.io/use-waypoint: wp, istio.io/ingress-use-waypoint: 'true'}";

fn gateway(name: &str, ip: &str) -> Proxy {
    Proxy { proxy_type: ProxyType::Router, ..sidecar("edge", name, ip, &[("app", "edge")]) }
}

struct IngressMesh {
    graph: TestGraph,
    gateway: ProxyKey,
    sidecar: ProxyKey,
}

impl IngressMesh {
    fn with(options: AmbientOptions) -> Self {
        let options = GraphOptions { ambient: Some(options), sends_hbone: true, ..GraphOptions::default() };
        let graph = TestGraph::with(options, &reef());
        let gateway = graph.connect(gateway("edge-1", "10.2.0.1"));
        let sidecar = graph.connect(sidecar("shop", "cart-1", "10.2.0.2", &[]));
        let mut mesh = Self { graph, gateway, sidecar };
        mesh.graph.changed();
        mesh
    }

    /// The endpoints that a proxy has of a cluster, each as `ADDRESS*WEIGHT`, with the destination of a tunnel before it.
    fn endpoints(&self, proxy: &ProxyKey, cluster: &str) -> Vec<String> {
        let layers = self.graph.get(&self.graph.handles.scopes, proxy).expect("it is connected").layers;
        let layers: Vec<Layer> = layers.get(&ResourceType::Endpoint).expect("layers").to_vec();
        let now = self.graph.engine.snapshot();
        let of_layer = |layer: &Layer| {
            let key = ResourceKey { resource_type: ResourceType::Endpoint, layer: layer.clone(), name: cluster.into() };
            self.graph.handles.resources.iter().find_map(|of| now.get(of, &key))
        };
        let resource = layers.iter().find_map(of_layer).expect("an assignment");
        let bytes = resource.bytes(&SlotValues::default()).expect("it is not hidden");
        let assignment = encode_any(ResourceType::Endpoint.type_url(), &bytes);
        let localities = assignment["endpoints"].as_array().into_iter().flatten();
        let all = localities.flat_map(|locality| locality["lbEndpoints"].as_array().into_iter().flatten());
        let mut shown: Vec<String> = all.map(shown).collect();
        shown.sort();
        shown
    }

    /// The changed assignments since the last call, by collection and name.
    fn touched(&mut self) -> Vec<String> {
        let mut lines = self.graph.changed();
        lines.retain(|line| line.contains("outbound|") && line.contains("assignments"));
        lines
    }
}

fn shown(endpoint: &Value) -> String {
    let weight = &endpoint["loadBalancingWeight"];
    let address = &endpoint["endpoint"]["address"];
    if let Some(ip) = address["socketAddress"]["address"].as_str() {
        return format!("{ip}*{weight}");
    }
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let listener = text(&address["envoyInternalAddress"]["serverListenerName"]);
    let tunnel = &endpoint["metadata"]["filterMetadata"]["envoy.filters.listener.original_dst"];
    format!("{listener} {} by {}*{weight}", text(&tunnel["local"]), text(&tunnel["waypoint"]))
}

#[test]
fn gateways_send_through_the_waypoint_of_a_service_with_the_label() {
    let mut mesh = IngressMesh::with(AmbientOptions::default());
    assert_eq!(mesh.endpoints(&mesh.gateway, CORAL), ["10.1.0.1*1"], "without the label");
    mesh.graph.apply(&coral(FOR_INGRESS, "{}", "clusterIP: 10.0.0.1,"));
    assert_eq!(mesh.endpoints(&mesh.gateway, CORAL), ["connect_originate 10.0.0.1:80 by 10.1.0.8:15008*1"]);
    assert_eq!(mesh.endpoints(&mesh.sidecar, CORAL), ["10.1.0.1*1"], "sidecars do not");
    assert_eq!(mesh.endpoints(&mesh.gateway, CRAB), ["10.1.0.2*1"], "another service");
    mesh.touched();

    // An instance of the waypoint, and an endpoint of the service.
    mesh.graph.apply(&endpoint_slice("wp", "mesh", 15_008, &["10.1.0.8", "10.1.0.18"]));
    assert_eq!(mesh.endpoints(&mesh.gateway, CORAL).len(), 2);
    let through = |touched: &[String]| touched.iter().filter(|line| line.contains("ingress_waypoints")).count();
    let touched = mesh.touched();
    assert_eq!(through(&touched), 1, "{touched:?}");
    assert!(touched.iter().all(|line| !line.contains("crab")), "{touched:?}");
    mesh.graph.apply(&endpoint_slice("coral", "http", 8080, &["10.1.0.1", "10.1.0.11"]));
    let touched = mesh.touched();
    assert_eq!(through(&touched), 0, "the waypoint sends to it: {touched:?}");

    // The label is removed, and all is as before.
    mesh.graph.apply(&coral("{istio.io/use-waypoint: wp}", "{}", "clusterIP: 10.0.0.1,"));
    assert_eq!(mesh.endpoints(&mesh.gateway, CORAL), ["10.1.0.1*1", "10.1.0.11*1"]);
    let touched = mesh.touched();
    assert!(touched.iter().all(|line| line.starts_with('-')) && through(&touched) == 1, "{touched:?}");
}

#[test]
fn shares_of_waypoints_become_weights_of_their_instances() {
    let mesh = IngressMesh::with(AmbientOptions::default());
    let labels =
        "{istio.io/use-waypoint: wp, istio.io/use-waypoint-canary: wp-next, istio.io/ingress-use-waypoint: 'true'}";
    let share = |percent: &str| format!("{{istio.io/use-waypoint-canary-weight: '{percent}'}}");
    mesh.graph.apply(&coral(labels, &share("30"), "clusterIP: 10.0.0.1,"));
    let expected = [
        "connect_originate 10.0.0.1:80 by 10.1.0.10:15008*150000",
        "connect_originate 10.0.0.1:80 by 10.1.0.8:15008*700000",
        "connect_originate 10.0.0.1:80 by 10.1.0.9:15008*150000",
    ];
    assert_eq!(mesh.endpoints(&mesh.gateway, CORAL), expected);
    mesh.graph.apply(&coral(labels, &share("0"), "clusterIP: 10.0.0.1,"));
    assert_eq!(mesh.endpoints(&mesh.gateway, CORAL), ["connect_originate 10.0.0.1:80 by 10.1.0.8:15008*1000000"]);
    // Waypoints without instances fail closed: no request passes by the policies that they enforce.
    mesh.graph.delete(Kind::EndpointSlice, "reef", "wp-x");
    assert_eq!(mesh.endpoints(&mesh.gateway, CORAL), [""; 0]);
}

#[test]
fn headless_services_and_a_switch_keep_gateways_from_waypoints() {
    let mesh = IngressMesh::with(AmbientOptions::default());
    let external = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tide, namespace: reef, labels: {istio.io/use-waypoint: wp, istio.io/ingress-use-waypoint: 'true'}}
spec:
  hosts: [tide.example.org]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 198.51.100.1}]
";
    mesh.graph.apply(external);
    let tide = "outbound|80||tide.example.org";
    assert_eq!(mesh.endpoints(&mesh.gateway, tide), ["198.51.100.1*1"], "it has no address that the waypoint accepts");

    let switched = IngressMesh::with(AmbientOptions { direct_gateways: true, ..AmbientOptions::default() });
    switched.graph.apply(&coral(FOR_INGRESS, "{}", "clusterIP: 10.0.0.1,"));
    assert_eq!(switched.endpoints(&switched.gateway, CORAL), ["10.1.0.1*1"]);
}
