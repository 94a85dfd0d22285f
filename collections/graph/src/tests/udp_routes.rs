//! UDPRoutes: the resources of gateways that they touch, their findings and their statuses.

use serde_json::Value;
use sluice_model::{Kind, ObjectKey, ProxyType};

use super::cases::state;
use super::{TestGraph, sidecar};
use crate::{GatewayApiOptions, GraphOptions, RejectKey, StatusKey};

const OBJECTS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: edge}}
---
{apiVersion: v1, kind: Service, metadata: {name: door-istio, namespace: edge}, spec: {clusterIP: 10.0.0.8,
 selector: {gateway.networking.k8s.io/gateway-name: door},
 ports: [{name: dns, port: 53, targetPort: 5353, protocol: UDP}, {name: dns-tcp, port: 53, targetPort: 5353}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: resolver, namespace: edge}, spec: {clusterIP: 10.0.0.1,
 ports: [{name: dns-tcp, port: 53}, {name: dns, port: 53, protocol: UDP}, {name: http, port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
 metadata: {name: resolver-x, namespace: edge, labels: {kubernetes.io/service-name: resolver}}, addressType: IPv4,
 ports: [{name: dns, port: 5353, protocol: UDP}, {name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: edge}
spec: {gatewayClassName: istio, listeners: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}
";

/// A route to these backends, with one more parent.
fn route(backends: &str, parents: &str) -> String {
    format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: UDPRoute, metadata: {{name: dns, namespace: edge}},
          spec: {{parentRefs: [{{name: door}}{parents}], rules: [{{backendRefs: [{backends}]}}]}}}}"
    )
}

/// A mesh with a router of the Gateway.
fn edge(experimental: bool) -> TestGraph {
    let gateway_api = GatewayApiOptions { experimental, ..GatewayApiOptions::default() };
    let mut mesh = TestGraph::with(GraphOptions { gateway_api, ..GraphOptions::default() }, OBJECTS);
    let mut router = sidecar("edge", "router", "10.1.0.8", &[("gateway.networking.k8s.io/gateway-name", "door")]);
    router.proxy_type = ProxyType::Router;
    mesh.connect(router);
    mesh.touched();
    mesh
}

fn findings(mesh: &TestGraph) -> Vec<String> {
    mesh.engine.flush();
    let key = RejectKey { kind: Kind::UDPRoute, object: ObjectKey::new("Kubernetes", "edge", "dns") };
    let rejects = mesh.get(&mesh.handles.rejects, &key).unwrap_or_default();
    rejects.iter().map(|reject| format!("{}: {}", reject.field_path, reject.reason)).collect()
}

fn status(mesh: &TestGraph, kind: Kind, name: &str) -> Value {
    mesh.engine.flush();
    let key = StatusKey { kind, object: ObjectKey::new("Kubernetes", "edge", name) };
    let update = mesh.get(&mesh.handles.status_updates, &key).expect("a status");
    serde_json::from_str(&update.wanted).expect("JSON")
}

/// `TYPE STATUS REASON` of conditions.
fn conditions(list: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |it: &Value| format!("{} {} {}", text(&it["type"]), text(&it["status"]), text(&it["reason"]));
    list.as_array().into_iter().flatten().map(line).collect()
}

const CLUSTER: &str = "outbound_udp|53||resolver.edge.svc.cluster.local";

#[test]
fn a_route_touches_its_listener_and_the_clusters_of_its_backends() {
    let mut mesh = edge(true);
    mesh.apply(&route("{name: resolver, port: 53}", ""));
    let added =
        [format!("+Cluster {CLUSTER}"), format!("+Endpoint {CLUSTER}"), "+Listener udp_0.0.0.0_5353".to_owned()];
    assert_eq!(mesh.touched(), added);
    assert_eq!(findings(&mesh), [""; 0]);
    // A second backend is one more matcher; the clusters stay.
    mesh.apply(&route("{name: resolver, port: 53, weight: 1}, {name: missing, port: 53, weight: 1}", ""));
    assert!(mesh.touched().contains(&"~Listener udp_0.0.0.0_5353".to_owned()));
    assert_eq!(findings(&mesh), ["spec.rules[0].backendRefs[1]: there is no such backend"]);
    // The same objects at once have the same result.
    let fresh = edge(true);
    fresh.apply(&route("{name: resolver, port: 53, weight: 1}, {name: missing, port: 53, weight: 1}", ""));
    fresh.engine.flush();
    assert_eq!(state(&mesh.engine, &mesh.handles), state(&fresh.engine, &fresh.handles));
    mesh.delete(Kind::UDPRoute, "edge", "dns");
    let touched = mesh.touched();
    for removed in added {
        assert!(touched.contains(&removed.replace('+', "-")), "{touched:?}");
    }
}

#[test]
fn only_gateways_relay_datagrams_and_only_to_udp_ports() {
    let mut mesh = edge(true);
    // Sidecars and waypoints cannot relay datagrams.
    mesh.apply(&route("{name: resolver, port: 80}", ", {group: '', kind: Service, name: resolver}"));
    let expected = [
        "spec.parentRefs[1]: routes of this kind have no effect for Services and ServiceEntries",
        "spec.rules[0].backendRefs[0]: the port of the backend is not a UDP port",
    ];
    assert_eq!(findings(&mesh), expected);
    let of_route = status(&mesh, Kind::UDPRoute, "dns");
    let parent = |kind: &str| {
        let mut parents = of_route["parents"].as_array().expect("parents").iter();
        conditions(&parents.find(|parent| parent["parentRef"]["kind"] == kind).expect("a parent")["conditions"])
    };
    assert_eq!(parent("Gateway"), ["Accepted True Accepted", "ResolvedRefs False UnsupportedProtocol"]);
    assert_eq!(parent("Service"), ["Accepted False UnsupportedValue", "ResolvedRefs False UnsupportedProtocol"]);
    // Datagrams are dropped: the listener refers to no cluster that exists.
    assert_eq!(mesh.touched(), ["+Listener udp_0.0.0.0_5353"]);
    let of_gateway = status(&mesh, Kind::KubernetesGateway, "door");
    for listener in of_gateway["listeners"].as_array().expect("listeners") {
        let is_udp = listener["name"] == "dns";
        let (kind, attached) = if is_udp { ("UDPRoute", 1) } else { ("TCPRoute", 0) };
        assert_eq!(
            (&listener["supportedKinds"][0]["kind"], &listener["attachedRoutes"]),
            (&kind.into(), &attached.into())
        );
        let conditions = conditions(&listener["conditions"]);
        assert!(conditions.contains(&"Conflicted False NoConflicts".to_owned()), "{conditions:?}");
        assert!(conditions.contains(&"Accepted True Accepted".to_owned()), "{conditions:?}");
    }
}

#[test]
fn a_service_of_a_gateway_has_ports_of_both_transports() {
    let mesh = edge(true);
    mesh.engine.flush();
    let key = ObjectKey::new("Kubernetes", "edge", "door");
    let deployed = mesh.get(&mesh.handles.gateway_deployments, &key).expect("deployed");
    let ports: Vec<_> =
        deployed.ports.iter().map(|port| (port.name.as_str(), port.port, port.transport.as_str())).collect();
    assert_eq!(ports, [("status-port", 15021, "TCP"), ("dns", 53, "UDP"), ("dns-tcp", 53, "TCP")]);
}

#[test]
fn a_policy_that_may_deny_closes_the_listener() {
    let mesh = edge(true);
    mesh.apply(&route("{name: resolver, port: 53}", ""));
    let listeners = |mesh: &TestGraph| {
        mesh.engine.flush();
        mesh.router_listeners()
    };
    let policy = |action: &str| {
        format!(
            "{{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {{name: guard, namespace: edge}},
              spec: {{targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: door}}], action: {action},
              rules: [{{to: [{{operation: {{ports: ['9']}}}}]}}]}}}}"
        )
    };
    mesh.apply(&policy("AUDIT"));
    assert_eq!(listeners(&mesh), ["udp_0.0.0.0_5353"]);
    let finding = |mesh: &TestGraph| {
        mesh.engine.flush();
        let object = ObjectKey::new("Kubernetes", "edge", "guard");
        let rejects = mesh.get(&mesh.handles.rejects, &RejectKey { kind: Kind::AuthorizationPolicy, object });
        rejects.unwrap_or_default().iter().map(|reject| reject.reason.to_string()).collect::<String>()
    };
    assert_eq!(finding(&mesh), "");
    mesh.apply(&policy("DENY"));
    assert_eq!(listeners(&mesh), [""; 0]);
    assert!(finding(&mesh).starts_with("Envoy cannot check datagrams"), "{}", finding(&mesh));
    mesh.delete(Kind::AuthorizationPolicy, "edge", "guard");
    assert_eq!(listeners(&mesh), ["udp_0.0.0.0_5353"]);
}

#[test]
fn without_the_variable_a_listener_for_udp_is_unsupported_as_in_the_reference() {
    let mut mesh = edge(false);
    mesh.apply(&route("{name: resolver, port: 53}", ""));
    assert_eq!(mesh.touched(), [""; 0]);
    let of_gateway = status(&mesh, Kind::KubernetesGateway, "door");
    let listener = &of_gateway["listeners"][0];
    assert_eq!(conditions(&listener["conditions"])[0], "Accepted False UnsupportedProtocol");
    // The other one has the same port.
    assert!(
        conditions(&of_gateway["listeners"][1]["conditions"]).contains(&"Conflicted True ProtocolConflict".to_owned())
    );
}
