//! Agentgateways: the resources that an object touches, who gets them, and the statuses.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use sluice_model::{Identity, Kind, ObjectKey, Proxy, ProxyKey, ProxyType, Resource, ResourceType};

use super::{TestGraph, sidecar};
use crate::{AmbientOptions, GatewayApiOptions, GraphOptions, RejectKey, ServedKind, StatusKey};

/// The Services that the routes of the tests refer to, and the one that is deployed for the Gateway.
const SERVICES: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: edge}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: door, namespace: edge}, spec: {clusterIP: 10.0.0.8,
 selector: {gateway.networking.k8s.io/gateway-name: door}, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop},
 spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: till, namespace: bank},
 spec: {clusterIP: 10.0.0.2, ports: [{name: http, port: 80}]}}
";

const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: edge}
spec:
  gatewayClassName: istio-agentgateway
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
";

fn options() -> GraphOptions {
    let gateway_api = GatewayApiOptions { agentgateway: true, experimental: true, ..GatewayApiOptions::default() };
    GraphOptions { gateway_api, ..GraphOptions::default() }
}

/// An agentgateway of the Gateway `edge/door`, with a verified identity or without one.
fn agentgateway(name: &str, account: Option<&str>) -> Proxy {
    Proxy {
        id: format!("agentgateway~10.1.0.8~{name}.edge~edge.svc.cluster.local").into(),
        proxy_type: ProxyType::Agentgateway,
        metadata: [("role".into(), "\"edge~door\"".into())].into(),
        identity: account.map(|account| Identity::new("cluster.local", "edge", account)),
        ..sidecar("edge", name, "10.1.0.8", &[])
    }
}

/// A graph with the Services and a connected agentgateway.
fn edge() -> (TestGraph, ProxyKey) {
    let mut mesh = TestGraph::with(options(), SERVICES);
    let proxy = mesh.connect(agentgateway("door-1", Some("door")));
    mesh.touched();
    (mesh, proxy)
}

/// A route in namespace `shop` for one host, with the rest of its rule.
fn route(kind: &str, name: &str, rule: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {name}, namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'}}
spec:
  parentRefs: [{{name: door, namespace: edge}}]
  hostnames: [{name}.example]
  rules: [{{{rule}}}]
"
    )
}

impl TestGraph {
    /// The resources of a type that a proxy gets, by name.
    fn resources_of(&self, proxy: &ProxyKey, resource_type: ResourceType) -> BTreeMap<String, Json> {
        self.engine.flush();
        let scope = self.get(&self.handles.scopes, proxy).expect("a scope");
        let now = self.engine.snapshot();
        let rows: Vec<_> = self.handles.resources.iter().flat_map(|of| now.iter(of)).collect();
        let mut found = BTreeMap::new();
        // The first layer decides.
        for layer in scope.layers.get(&resource_type).iter().flat_map(|layers| layers.iter()).rev() {
            let of_layer = rows.iter().filter(|(key, _)| key.resource_type == resource_type && key.layer == *layer);
            for (key, resource) in of_layer {
                let Resource::Encoded(bytes) = &**resource else { panic!("{key:?} {resource:?}") };
                found.insert(key.name.to_string(), sluice_proto::json::encode_any(resource_type.type_url(), bytes));
            }
        }
        found
    }

    fn agentgateway_names(&self, proxy: &ProxyKey) -> Vec<String> {
        self.resources_of(proxy, ResourceType::Agentgateway).into_keys().collect()
    }

    /// The status to write for an object.
    fn wanted_status(&self, kind: Kind, namespace: &str, name: &str) -> Json {
        self.engine.flush();
        let key = StatusKey { kind, object: ObjectKey::new("Kubernetes", namespace, name) };
        let update = self.get(&self.handles.status_updates, &key).expect("a status");
        serde_json::from_str(&update.wanted).expect("JSON")
    }

    pub(super) fn findings_of(&self, kind: Kind, namespace: &str, name: &str) -> Vec<String> {
        self.engine.flush();
        let key = RejectKey { kind, object: ObjectKey::new("Kubernetes", namespace, name) };
        let rejects = self.get(&self.handles.rejects, &key).unwrap_or_default();
        rejects.iter().map(|reject| format!("{}: {}", reject.field_path, reject.reason)).collect()
    }
}

/// A condition as `REASON=STATUS`.
fn condition(conditions: &Json, kind: &str) -> String {
    let found = conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == kind);
    let found = found.unwrap_or_else(|| panic!("no {kind} in {conditions}"));
    format!("{}={}", found["reason"].as_str().unwrap_or_default(), found["status"].as_str().unwrap_or_default())
}

#[test]
fn gateway_touches_its_port_and_its_listener() {
    let (mut mesh, proxy) = edge();
    mesh.apply(GATEWAY);
    assert_eq!(mesh.touched(), ["+Agentgateway bind/80/edge/door", "+Agentgateway listener/edge/door.http"]);
    assert_eq!(mesh.agentgateway_names(&proxy), ["bind/80/edge/door", "listener/edge/door.http"]);
    // A second listener of the port opens none.
    let two = format!("{GATEWAY}  - {{name: other, port: 80, protocol: HTTP, hostname: a.example}}\n");
    mesh.apply(&two);
    assert_eq!(mesh.touched(), ["+Agentgateway listener/edge/door.other"]);
    mesh.apply(&GATEWAY.replace("istio-agentgateway", "other"));
    let removed = [
        "-Agentgateway bind/80/edge/door",
        "-Agentgateway listener/edge/door.http",
        "-Agentgateway listener/edge/door.other",
    ];
    assert_eq!(mesh.touched(), removed);
}

#[test]
fn gateways_are_not_served_unless_they_are_enabled() {
    let mut mesh = TestGraph::new(SERVICES);
    mesh.connect(agentgateway("door-1", Some("door")));
    mesh.touched();
    mesh.apply(GATEWAY);
    mesh.apply(&route("HTTPRoute", "cart", "backendRefs: [{name: cart, port: 80}]"));
    assert_eq!(mesh.touched(), [""; 0]);
    let key = StatusKey { kind: Kind::KubernetesGateway, object: ObjectKey::new("Kubernetes", "edge", "door") };
    assert_eq!(mesh.get(&mesh.handles.status_updates, &key), None);
}

#[test]
fn routers_and_agentgateways_do_not_serve_each_others_gateways() {
    let (mut mesh, proxy) = edge();
    let mut router = sidecar("edge", "router", "10.1.0.9", &[("gateway.networking.k8s.io/gateway-name", "door")]);
    router.proxy_type = ProxyType::Router;
    mesh.connect(router);
    mesh.touched();
    mesh.apply(GATEWAY);
    let lines = mesh.touched();
    assert!(lines.iter().all(|line| line.starts_with("+Agentgateway ")), "{lines:?}");
    mesh.apply(&route("HTTPRoute", "cart", "backendRefs: [{name: cart, port: 80}]"));
    assert_eq!(mesh.touched(), ["+Agentgateway route/shop/cart.0.0.http"]);
    mesh.apply(&GATEWAY.replace("istio-agentgateway", "istio"));
    let lines = mesh.touched();
    assert!(lines.iter().any(|line| line == "-Agentgateway route/shop/cart.0.0.http"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.starts_with("+Agentgateway ")), "{lines:?}");
    assert_eq!(mesh.agentgateway_names(&proxy), [""; 0]);
}

#[test]
fn route_touches_one_resource_for_each_match_and_listener() {
    let (mut mesh, proxy) = edge();
    mesh.apply(GATEWAY);
    mesh.touched();
    let rule = "matches: [{path: {value: /a/}}, {method: GET}], timeouts: {request: 3s, backendRequest: 1s}, \
                backendRefs: [{name: cart, port: 80, weight: 2}]";
    mesh.apply(&route("HTTPRoute", "cart", rule));
    assert_eq!(mesh.touched(), ["+Agentgateway route/shop/cart.0.0.http", "+Agentgateway route/shop/cart.0.1.http"]);
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    let expected = json!({
        "key": "shop/cart.0.0.http", "listenerKey": "edge/door.http", "hostnames": ["cart.example"],
        "name": {"kind": "HTTPRoute", "name": "cart", "namespace": "shop"},
        "matches": [{"path": {"pathPrefix": "/a"}}],
        "backends": [{
            "backend": {"service": {"namespace": "shop", "hostname": "cart.shop.svc.cluster.local"}, "port": 80},
            "weight": 2,
        }],
        "trafficPolicies": [{"timeout": {"request": "3s", "backendRequest": "1s"}}],
    });
    assert_eq!(found["route/shop/cart.0.0.http"]["route"], expected);
    // Another route touches its own resources.
    mesh.apply(&route("GRPCRoute", "calls", "backendRefs: [{name: cart, port: 80}]"));
    assert_eq!(mesh.touched(), ["+Agentgateway route/shop/calls.0.http"]);
    mesh.apply(&route("HTTPRoute", "cart", &rule.replace("3s", "4s")));
    assert_eq!(mesh.touched(), ["~Agentgateway route/shop/cart.0.0.http", "~Agentgateway route/shop/cart.0.1.http"]);
    mesh.delete(Kind::HTTPRoute, "shop", "cart");
    assert_eq!(mesh.touched(), ["-Agentgateway route/shop/cart.0.0.http", "-Agentgateway route/shop/cart.0.1.http"]);
}

#[test]
fn routes_for_connections_are_attached_to_listeners_of_their_protocol() {
    let (mut mesh, proxy) = edge();
    let listeners = "
  - {name: raw, port: 9000, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}
  - {name: names, port: 443, protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {namespaces: {from: All}}}
";
    mesh.apply(&format!("{}{listeners}", GATEWAY.trim_end()));
    mesh.touched();
    let tcp =
        route("TCPRoute", "raw", "backendRefs: [{name: cart, port: 80}]").replace("  hostnames: [raw.example]\n", "");
    mesh.apply(&tcp.replace("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1alpha2"));
    assert_eq!(mesh.touched(), ["+Agentgateway tcp_route/1767225600/shop/raw.0.raw"]);
    mesh.apply(&route("TLSRoute", "names", "backendRefs: [{name: cart, port: 80}]"));
    assert_eq!(mesh.touched(), ["+Agentgateway tcp_route/1767225600/shop/names.0.names"]);
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    let names = &found["tcp_route/1767225600/shop/names.0.names"]["tcpRoute"];
    assert_eq!((&names["listenerKey"], &names["hostnames"]), (&json!("edge/door.names"), &json!(["names.example"])));
    let passthrough = &found["listener/edge/door.names"]["listener"];
    assert_eq!((&passthrough["protocol"], passthrough.get("tls")), (&json!("TLS"), None));
    assert_eq!(found["bind/443/edge/door"]["bind"]["protocol"], "TLS");
    assert_eq!(found["bind/9000/edge/door"]["bind"]["protocol"], "TCP");
}

#[test]
fn backend_that_is_absent_or_forbidden_loses_only_its_share() {
    let (mut mesh, proxy) = edge();
    mesh.apply(GATEWAY);
    let rule = "backendRefs: [{name: cart, port: 80}, {name: none, port: 80}, {name: till, namespace: bank, port: 80}]";
    mesh.apply(&route("HTTPRoute", "cart", rule));
    mesh.touched();
    let backends = |mesh: &TestGraph| -> Vec<Option<String>> {
        let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
        let backends = found["route/shop/cart.0.0.http"]["route"]["backends"].as_array().expect("backends").clone();
        backends.iter().map(|to| to["backend"]["service"]["hostname"].as_str().map(str::to_owned)).collect()
    };
    let cart = Some("cart.shop.svc.cluster.local".to_owned());
    assert_eq!(backends(&mesh), [cart.clone(), None, None]);
    let findings = [
        "spec.rules[0].backendRefs[1]: there is no such backend",
        "spec.rules[0].backendRefs[2]: no ReferenceGrant allows it",
    ];
    assert_eq!(mesh.findings_of(Kind::HTTPRoute, "shop", "cart"), findings);
    let status = mesh.wanted_status(Kind::HTTPRoute, "shop", "cart");
    assert_eq!(condition(&status["parents"][0]["conditions"], "ResolvedRefs"), "RefNotPermitted=False");
    assert_eq!(condition(&status["parents"][0]["conditions"], "Accepted"), "Accepted=True");
    let grant = "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: grant, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: '', kind: Service}]
";
    mesh.apply(grant);
    assert_eq!(mesh.touched(), ["~Agentgateway route/shop/cart.0.0.http"]);
    assert_eq!(backends(&mesh), [cart, None, Some("till.bank.svc.cluster.local".to_owned())]);
    assert_eq!(mesh.findings_of(Kind::HTTPRoute, "shop", "cart"), findings[..1]);
}

#[test]
fn backend_of_another_kind_is_a_finding_and_a_condition() {
    let (mesh, _) = edge();
    mesh.apply(GATEWAY);
    let pool = "backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llm}]";
    mesh.apply(&route("HTTPRoute", "cart", pool));
    let finding = "spec.rules[0].backendRefs[0]: agentgateway does not send to this kind of backend";
    assert_eq!(mesh.findings_of(Kind::HTTPRoute, "shop", "cart"), [finding]);
    let status = mesh.wanted_status(Kind::HTTPRoute, "shop", "cart");
    assert_eq!(condition(&status["parents"][0]["conditions"], "ResolvedRefs"), "InvalidKind=False");
}

#[test]
fn pool_is_a_service_with_an_endpoint_picker() {
    let mut options = options();
    options.gateway_api.inference = true;
    let mut mesh = TestGraph::with(options, SERVICES);
    let proxy = mesh.connect(agentgateway("door-1", Some("door")));
    mesh.apply(GATEWAY);
    let to_pool = "backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: llm}]";
    mesh.apply(&route("HTTPRoute", "chat", to_pool));
    assert_eq!(
        mesh.findings_of(Kind::HTTPRoute, "shop", "chat"),
        ["spec.rules[0].backendRefs[0]: there is no such InferencePool"]
    );
    mesh.touched();
    mesh.apply(&format!(
        "{}\n---\n{}",
        "{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: llm, namespace: shop},
          spec: {selector: {matchLabels: {app: llm}}, targetPorts: [{number: 8000}],
                 endpointPickerRef: {name: picker, port: {number: 9002}, failureMode: FailOpen}}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: llm-1, namespace: shop, labels: {app: llm}}, spec: {nodeName: n},
          status: {podIP: 10.2.0.3, podIPs: [{ip: 10.2.0.3}], phase: Running, conditions: [{type: Ready, status: 'True'}]}}"
    ));
    let lines = mesh.touched();
    let host = "llm.shop.inference.cluster.local";
    for line in [
        "+Agentgateway policy/shop/llm:inference".to_owned(),
        "+Agentgateway policy/shop/llm:inferencetls".to_owned(),
        "~Agentgateway route/shop/chat.0.0.http".to_owned(),
        format!("+Address shop/{host}"),
        "+Address Kubernetes//Pod/shop/llm-1".to_owned(),
    ] {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    let routing = &found["policy/shop/llm:inference"]["policy"];
    assert_eq!(routing["target"], json!({"service": {"namespace": "shop", "hostname": host}}));
    let picker = json!({"service": {"namespace": "shop", "hostname": "picker.shop.svc.cluster.local"}, "port": 9002});
    let expected = json!({"endpointPicker": picker, "failureMode": "FAIL_OPEN"});
    assert_eq!(routing["backend"]["inferenceRouting"], expected);
    let tls = &found["policy/shop/llm:inferencetls"]["policy"];
    assert_eq!(tls["backend"]["backendTls"], json!({"verification": "INSECURE_ALL"}));
    let backend = &found["route/shop/chat.0.0.http"]["route"]["backends"][0]["backend"];
    assert_eq!(*backend, json!({"service": {"namespace": "shop", "hostname": host}, "port": 8000}));
    let addresses = mesh.resources_of(&proxy, ResourceType::Address);
    let services = &addresses["Kubernetes//Pod/shop/llm-1"]["workload"]["services"];
    let ports = json!({"ports": [{"servicePort": 8000, "targetPort": 8000}]});
    assert_eq!(services[format!("shop/{host}")], ports);
    assert_eq!(addresses[&format!("shop/{host}")]["service"]["hostname"], host);
    // Agentgateways need no Service of the pool.
    assert_eq!(mesh.engine.snapshot().iter(&mesh.handles.shadow_services).count(), 0);
    let status = mesh.wanted_status(Kind::InferencePool, "shop", "llm");
    assert_eq!(condition(&status["parents"][0]["conditions"], "Accepted"), "Accepted=True");
    assert_eq!(mesh.findings_of(Kind::HTTPRoute, "shop", "chat"), [""; 0]);
}

const WAYPOINT: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: edge}
spec:
  gatewayClassName: istio-agentgateway-waypoint
  listeners:
  - {name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {namespaces: {from: All}}}
";

/// A route of Service `cart`.
const ROUTE_OF_SERVICE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: cart, port: 80}]
  rules: [{backendRefs: [{name: cart, port: 80}], timeouts: {request: 1s}}]
";

/// Service `cart` with these labels and annotations.
fn cart(labels: &str, annotations: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: cart, namespace: shop, labels: {{{labels}}}, annotations: \
         {{{annotations}}}}}, spec: {{clusterIP: 10.0.0.1, ports: [{{name: http, port: 80}}]}}}}"
    )
}

const USE_DOOR: &str = "istio.io/use-waypoint: door, istio.io/use-waypoint-namespace: edge";

/// A graph of an ambient mesh with the Services and a connected agentgateway.
fn ambient_edge() -> (TestGraph, ProxyKey) {
    let gateway_api = GatewayApiOptions { agentgateway: true, waypoints: true, ..GatewayApiOptions::default() };
    let mut mesh = TestGraph::with(GraphOptions { gateway_api, ..GraphOptions::default() }, SERVICES);
    let proxy = mesh.connect(agentgateway("door-1", Some("door")));
    mesh.touched();
    (mesh, proxy)
}

#[test]
fn waypoint_serves_the_routes_of_services_that_use_it() {
    let (mut mesh, proxy) = ambient_edge();
    mesh.apply(WAYPOINT);
    assert_eq!(mesh.touched(), ["+Agentgateway bind/15008/edge/door", "+Agentgateway listener/edge/door.mesh"]);
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    assert_eq!(found["bind/15008/edge/door"]["bind"]["tunnelProtocol"], "HBONE_WAYPOINT");
    assert_eq!(found["listener/edge/door.mesh"]["listener"]["protocol"], "HBONE");
    let status = mesh.wanted_status(Kind::KubernetesGateway, "edge", "door");
    assert_eq!(condition(&status["conditions"], "Accepted"), "Accepted=True");
    // The Service has no waypoint yet.
    mesh.apply(ROUTE_OF_SERVICE);
    assert_eq!(of_agentgateways(&mesh.touched()), [""; 0]);
    mesh.apply(&cart(USE_DOOR, ""));
    assert_eq!(
        of_agentgateways(&mesh.touched()),
        ["+Agentgateway route/shop/cart.0.0.mesh.cart.shop.svc.cluster.local"]
    );
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    let route = &found["route/shop/cart.0.0.mesh.cart.shop.svc.cluster.local"]["route"];
    assert_eq!(route["listenerKey"], "edge/door.mesh");
    assert_eq!(route["serviceKey"], json!({"namespace": "shop", "hostname": "cart.shop.svc.cluster.local"}));
    let status = mesh.wanted_status(Kind::HTTPRoute, "shop", "cart");
    let parents: Vec<(&Json, String)> = status["parents"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|parent| (&parent["controllerName"], condition(&parent["conditions"], "Accepted")))
        .collect();
    let accepted = || "Accepted=True".to_owned();
    let (mesh_controller, own) =
        (json!("istio.io/gateway-controller"), json!("istio.io/agentgateway-waypoint-controller"));
    assert_eq!(parents, [(&mesh_controller, accepted()), (&own, accepted())]);
    let status = mesh.wanted_status(Kind::KubernetesGateway, "edge", "door");
    assert_eq!(status["listeners"][0]["attachedRoutes"], 1);
    mesh.apply(&cart("istio.io/use-waypoint: none", ""));
    assert_eq!(
        of_agentgateways(&mesh.touched()),
        ["-Agentgateway route/shop/cart.0.0.mesh.cart.shop.svc.cluster.local"]
    );
}

#[test]
fn waypoint_of_a_namespace_or_of_a_share_of_the_traffic_serves_routes() {
    let (mut mesh, _) = ambient_edge();
    mesh.apply(WAYPOINT);
    mesh.apply(ROUTE_OF_SERVICE);
    mesh.touched();
    mesh.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, labels: {{{USE_DOOR}}}}}}}"));
    assert_eq!(
        of_agentgateways(&mesh.touched()),
        ["+Agentgateway route/shop/cart.0.0.mesh.cart.shop.svc.cluster.local"]
    );
    // The first waypoint of the Service is of another class, and gets none of the resources.
    mesh.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}");
    let other = WAYPOINT.replace("istio-agentgateway-waypoint", "istio-waypoint");
    mesh.apply(&other.replace("name: door, namespace: edge", "name: first, namespace: shop"));
    mesh.apply(&cart("istio.io/use-waypoint: first", ""));
    assert_eq!(
        of_agentgateways(&mesh.touched()),
        ["-Agentgateway route/shop/cart.0.0.mesh.cart.shop.svc.cluster.local"]
    );
    let both = "istio.io/use-waypoint: first, istio.io/use-waypoint-canary: door, \
                istio.io/use-waypoint-canary-namespace: edge";
    let share = |percent: &str| format!("istio.io/use-waypoint-canary-weight: '{percent}'");
    mesh.apply(&cart(both, &share("101")));
    assert_eq!(of_agentgateways(&mesh.touched()), [""; 0], "an invalid share is none");
    mesh.apply(&cart(both, &share("10")));
    assert_eq!(
        of_agentgateways(&mesh.touched()),
        ["+Agentgateway route/shop/cart.0.0.mesh.cart.shop.svc.cluster.local"]
    );
}

#[test]
fn policy_for_a_service_whose_waypoint_is_an_agentgateway_is_a_finding() {
    let gateway_api = GatewayApiOptions { agentgateway: true, waypoints: true, ..GatewayApiOptions::default() };
    let options = GraphOptions { gateway_api, ambient: Some(AmbientOptions::default()), ..GraphOptions::default() };
    let mesh = TestGraph::with(options, SERVICES);
    let ready = |gateway: &str| format!("{gateway}status: {{addresses: [{{type: IPAddress, value: 10.0.0.8}}]}}\n");
    mesh.apply(&ready(WAYPOINT));
    mesh.apply(&cart(USE_DOOR, ""));
    mesh.apply(
        "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: deny, namespace: shop},
          spec: {targetRefs: [{group: '', kind: Service, name: cart}], action: DENY, rules: [{}]}}",
    );
    let findings = || mesh.findings_of(Kind::AuthorizationPolicy, "shop", "deny");
    let finding = "spec.targetRefs: agentgateways serve Gateway `door`, the waypoint of Service `cart`: no proxy enforces this policy \
                   for the target";
    assert_eq!(findings(), [finding]);
    mesh.apply(&ready(&WAYPOINT.replace("istio-agentgateway-waypoint", "istio-waypoint")));
    assert_eq!(findings(), [""; 0]);
}

/// The lines of resources of agentgateways.
fn of_agentgateways(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).filter(|line| line[1..].starts_with("Agentgateway ")).collect()
}

#[test]
fn policy_for_a_gateway_of_agentgateways_is_a_finding() {
    let (mesh, _) = edge();
    mesh.apply(GATEWAY);
    let policy = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: edge}
spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: door}], action: DENY, rules: [{}]}
";
    mesh.apply(policy);
    let findings = || mesh.findings_of(Kind::AuthorizationPolicy, "edge", "deny");
    let finding = "spec.targetRefs: agentgateways serve Gateway `door`: no proxy enforces this policy for the target";
    assert_eq!(findings(), [finding]);
    mesh.apply(&GATEWAY.replace("istio-agentgateway", "istio"));
    assert_eq!(findings(), [""; 0]);
}

#[test]
fn unsupported_filter_excludes_the_route() {
    let (mut mesh, _) = edge();
    mesh.apply(GATEWAY);
    mesh.touched();
    let filter = "filters: [{type: ExtensionRef, extensionRef: {group: a.example, kind: Limit, name: x}}]";
    mesh.write(&route("HTTPRoute", "cart", &format!("{filter}, backendRefs: [{{name: cart, port: 80}}]")), true);
    assert_eq!(mesh.touched(), [""; 0]);
    let status = mesh.wanted_status(Kind::HTTPRoute, "shop", "cart");
    assert_eq!(condition(&status["parents"][0]["conditions"], "ResolvedRefs"), "IncompatibleFilters=False");
}

#[test]
fn server_decides_about_the_requests_of_a_rule() {
    let (mesh, own) = edge();
    mesh.apply(GATEWAY);
    let with = |backend: &str, rest: &str| {
        let auth =
            format!("{{type: ExternalAuth, externalAuth: {{backendRef: {{name: {backend}, port: 80}}, {rest}}}}}");
        route("HTTPRoute", "cart", &format!("filters: [{auth}], backendRefs: [{{name: cart, port: 80}}]"))
    };
    let served = |mesh: &TestGraph| -> Json {
        let found = mesh.resources_of(&own, ResourceType::Agentgateway);
        let mut routes = found.values().map(|resource| &resource["route"]).filter(|route| route.is_object());
        let route = routes.next().expect("a route");
        json!([route["trafficPolicies"], route["backends"].as_array().map_or(0, Vec::len)])
    };
    mesh.apply(&with("cart", "protocol: GRPC, grpc: {allowedHeaders: [x-user]}, forwardBody: {maxSize: 100}"));
    let target = json!({"service": {"hostname": "cart.shop.svc.cluster.local", "namespace": "shop"}, "port": 80});
    let policy = |rest: Json| {
        let mut auth = json!({"target": target});
        auth.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
        json!([[{"extAuthz": auth}], 1])
    };
    let grpc = json!({"grpc": {}, "includeRequestHeaders": ["x-user"], "includeRequestBody": {"maxRequestBytes": 100}});
    assert_eq!(served(&mesh), policy(grpc));
    mesh.apply(&with("cart", "protocol: HTTP, http: {path: check, allowedResponseHeaders: [x-id]}"));
    let http = json!({"path": "\"/check\" + request.path", "includeResponseHeaders": ["x-id"]});
    assert_eq!(served(&mesh), policy(json!({"http": http, "includeRequestHeaders": ["Authorization", ":authority"]})));
    // All requests fail while the server does not exist.
    mesh.apply(&with("absent", "protocol: GRPC"));
    assert_eq!(served(&mesh), json!([null, 0]));
    let status = mesh.wanted_status(Kind::HTTPRoute, "shop", "cart");
    assert_eq!(condition(&status["parents"][0]["conditions"], "ResolvedRefs"), "BackendNotFound=False");
    let redirect = "filters: [{type: RequestRedirect, requestRedirect: {hostname: a.example}}, ";
    let redirecting = |backend: &str| {
        let text = with(backend, "protocol: GRPC").replace("filters: [", redirect);
        text.replace(", backendRefs: [{name: cart, port: 80}]", "")
    };
    mesh.apply(&redirecting("absent"));
    assert_eq!(served(&mesh), json!([null, 0]));
    mesh.apply(&redirecting("cart"));
    assert_eq!(served(&mesh)[0].as_array().map(Vec::len), Some(2), "it redirects and asks");
    // An Envoy does not serve the route.
    mesh.apply(&with("cart", "protocol: GRPC"));
    mesh.apply(&GATEWAY.replace("istio-agentgateway", "istio"));
    let finding = "spec.rules[0].filters: filter `ExternalAuth` is not supported by Envoy; the route does not apply";
    assert_eq!(mesh.findings_of(Kind::HTTPRoute, "shop", "cart"), [finding]);
}

#[test]
fn private_key_is_sent_to_the_proxies_of_the_gateway_only() {
    let (mut mesh, own) = edge();
    let others = [mesh.connect(agentgateway("plain", None)), mesh.connect(agentgateway("other", Some("other")))];
    let secret = |number: u8| {
        let pem = |label: &str| format!("-----BEGIN {label}-----\\nMAMCAQ{number}=\\n-----END {label}-----\\n");
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: cert, namespace: edge}}, \
             stringData: {{tls.crt: \"{}\", tls.key: \"{}\"}}}}",
            pem("CERTIFICATE"),
            pem("PRIVATE KEY")
        )
    };
    let https = GATEWAY
        .replace("port: 80, protocol: HTTP", "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}");
    mesh.apply(&https);
    mesh.touched();
    let key = |mesh: &TestGraph, proxy: &ProxyKey| {
        let found = mesh.resources_of(proxy, ResourceType::Agentgateway);
        found.get("listener/edge/door.http").map(|found| found["listener"]["tls"]["privateKey"].clone())
    };
    // Without its certificate the listener is not served.
    assert_eq!(key(&mesh, &own), None);
    let status = mesh.wanted_status(Kind::KubernetesGateway, "edge", "door");
    assert_eq!(condition(&status["listeners"][0]["conditions"], "ResolvedRefs"), "InvalidCertificateRef=False");
    mesh.apply(&secret(1));
    let first = key(&mesh, &own).expect("a listener");
    let unusable = json!("aW52YWxpZA==");
    assert_ne!(first, unusable);
    for other in &others {
        assert_eq!(key(&mesh, other), Some(unusable.clone()), "{other:?}");
    }
    mesh.touched();
    // A renewed key touches the listener only.
    mesh.apply(&secret(2));
    assert_eq!(mesh.touched(), ["~Agentgateway listener/edge/door.http"]);
    assert_ne!(key(&mesh, &own), Some(first));
    assert_eq!(key(&mesh, &others[0]), Some(unusable));
}

#[test]
fn termination_needs_exactly_one_certificate() {
    let (mesh, _) = edge();
    mesh.apply(&GATEWAY.replace(
        "port: 80, protocol: HTTP",
        "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}, {name: b}]}",
    ));
    let status = mesh.wanted_status(Kind::KubernetesGateway, "edge", "door");
    let conditions = &status["listeners"][0]["conditions"];
    assert_eq!(condition(conditions, "ResolvedRefs"), "InvalidCertificateRef=False");
    assert_eq!(condition(conditions, "Programmed"), "Invalid=False");
    assert_eq!(condition(&status["conditions"], "Accepted"), "ListenersNotValid=False");
}

#[test]
fn statuses_name_the_controller_of_agentgateways() {
    let (mut mesh, _) = edge();
    mesh.apply(GATEWAY);
    mesh.apply(&route("HTTPRoute", "cart", "backendRefs: [{name: cart, port: 80}]"));
    let status = mesh.wanted_status(Kind::KubernetesGateway, "edge", "door");
    assert_eq!(condition(&status["conditions"], "Accepted"), "Accepted=True");
    let insecure = condition(&status["conditions"], "InsecureFrontendValidationMode");
    assert_eq!(insecure, "AllowInsecureFallbackNotConfigured=False");
    assert_eq!((&status["attachedListenerSets"], &status["listeners"][0]["attachedRoutes"]), (&json!(0), &json!(1)));
    let controllers = |mesh: &TestGraph| -> Vec<Json> {
        let status = mesh.wanted_status(Kind::HTTPRoute, "shop", "cart");
        status["parents"].as_array().into_iter().flatten().map(|parent| parent["controllerName"].clone()).collect()
    };
    assert_eq!(controllers(&mesh), ["istio.io/agentgateway-controller"]);
    // A route may be attached to Gateways of both controllers.
    mesh.apply(&GATEWAY.replace("name: door,", "name: gate,").replace("istio-agentgateway", "istio"));
    let both = route("HTTPRoute", "cart", "backendRefs: [{name: cart, port: 80}]")
        .replace("[{name: door, namespace: edge}]", "[{name: door, namespace: edge}, {name: gate, namespace: edge}]");
    mesh.apply(&both);
    assert_eq!(controllers(&mesh), ["istio.io/gateway-controller", "istio.io/agentgateway-controller"]);
    mesh.touched();
}

#[test]
fn class_is_created_only_if_it_is_enabled() {
    let created = |options: GraphOptions| {
        let mesh = TestGraph::with(options, "");
        let served = ServedKind { cluster: "Kubernetes".into(), kind: Kind::GatewayClass };
        mesh.engine.transaction(|tx| tx.set(&mesh.handles.inputs.served_kinds, served, ()));
        mesh.get(&mesh.handles.missing_gateway_classes, &ObjectKey::new("Kubernetes", "", "istio-agentgateway"))
    };
    assert_eq!(created(GraphOptions::default()), None);
    let class = created(options()).expect("a class");
    assert_eq!(
        (class.controller.as_str(), class.description.as_str()),
        ("istio.io/agentgateway-controller", "Istio with Agentgateway")
    );
}

#[test]
fn listener_sets_add_ports_and_listeners() {
    let (mut mesh, proxy) = edge();
    mesh.apply(&format!("{}\n  allowedListeners: {{namespaces: {{from: All}}}}\n", GATEWAY.trim_end()));
    mesh.touched();
    let set = "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: shop}
spec:
  parentRef: {name: door, namespace: edge}
  listeners: [{name: http, port: 8080, protocol: HTTP, hostname: a.example}]
";
    mesh.apply(set);
    assert_eq!(mesh.touched(), ["+Agentgateway bind/8080/edge/door", "+Agentgateway listener/shop/more.http"]);
    let to_set = route("HTTPRoute", "a", "backendRefs: [{name: cart, port: 80}]").replace(
        "[{name: door, namespace: edge}]",
        "[{group: gateway.networking.k8s.io, kind: ListenerSet, name: more}]",
    );
    mesh.apply(&to_set);
    assert_eq!(mesh.touched(), ["+Agentgateway route/shop/a.0.0.http"]);
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    assert_eq!(found["route/shop/a.0.0.http"]["route"]["listenerKey"], "shop/more.http");
    let status = mesh.wanted_status(Kind::KubernetesGateway, "edge", "door");
    assert_eq!(status["attachedListenerSets"], 1);
}

#[test]
fn policy_for_a_backend_applies_at_all_gateways_whatever_leads_to_it() {
    let (mut mesh, proxy) = edge();
    mesh.apply(GATEWAY);
    let policy = "
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: tls, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: cart}]
  validation: {hostname: cart.example, wellKnownCACertificates: System}
";
    mesh.touched();
    mesh.apply(policy);
    let name = "policy/shop/tls:backend-tls:shop/cart.shop.svc.cluster.local";
    // Mirrors, hostnames and routes of ListenerSets lead to the backend too.
    assert_eq!(mesh.touched(), [format!("+Agentgateway {name}")]);
    mesh.apply(&route("HTTPRoute", "cart", "backendRefs: [{name: cart, port: 80}]"));
    assert_eq!(mesh.touched(), ["+Agentgateway route/shop/cart.0.0.http"]);
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    assert_eq!(found[name]["policy"]["backend"]["backendTls"], json!({"hostname": "cart.example"}));
    let status = mesh.wanted_status(Kind::BackendTLSPolicy, "shop", "tls");
    let ancestors = status["ancestors"].as_array().expect("ancestors");
    let of_gateway = ancestors.iter().find(|ancestor| ancestor["ancestorRef"]["kind"] == "Gateway").expect("one");
    assert_eq!(of_gateway["controllerName"], "istio.io/agentgateway-controller");
    // The certificate of the Gateway is sent to its own proxies only.
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: client, namespace: edge}, stringData: {
        tls.crt: \"-----BEGIN CERTIFICATE-----\\nMAMCAQE=\\n-----END CERTIFICATE-----\\n\",
        tls.key: \"-----BEGIN PRIVATE KEY-----\\nMAMCAQE=\\n-----END PRIVATE KEY-----\\n\"}}";
    mesh.apply(secret);
    let client = "spec:\n  tls: {backend: {clientCertificateRef: {name: client}}}";
    mesh.apply(&GATEWAY.replace("spec:", client));
    let other = mesh.connect(agentgateway("other", Some("other")));
    let key = |proxy: &ProxyKey| {
        let found = mesh.resources_of(proxy, ResourceType::Agentgateway);
        found[name]["policy"]["backend"]["backendTls"].get("key").cloned()
    };
    assert!(key(&proxy).is_some());
    assert_eq!(key(&other), None);
    // Roots that are missing let connections fail.
    let missing = policy
        .replace("wellKnownCACertificates: System", "caCertificateRefs: [{group: '', kind: ConfigMap, name: none}]");
    mesh.apply(&missing);
    let found = mesh.resources_of(&proxy, ResourceType::Agentgateway);
    assert_eq!(found[name]["policy"]["backend"]["backendTls"]["root"], "aW52YWxpZA==");
    mesh.delete(Kind::BackendTLSPolicy, "shop", "tls");
    for proxy in [&proxy, &other] {
        assert_eq!(mesh.resources_of(proxy, ResourceType::Agentgateway).get(name), None);
    }
}

#[test]
fn addresses_are_those_of_ztunnel_except_for_workloads_with_sidecars() {
    let (mesh, proxy) = edge();
    let pod = |name: &str, ip: &str, labels: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}, \
             spec: {{nodeName: n}}, status: {{podIP: {ip}, podIPs: [{{ip: {ip}}}], phase: Running, \
             conditions: [{{type: Ready, status: 'True'}}]}}}}\n"
        )
    };
    let pods = [pod("plain", "10.2.0.1", ""), pod("meshed", "10.2.0.2", "security.istio.io/tlsMode: istio")];
    mesh.apply(&pods.concat());
    let found = mesh.resources_of(&proxy, ResourceType::Address);
    let tunnel = |pod: &str| found[&format!("Kubernetes//Pod/shop/{pod}")]["workload"].get("tunnelProtocol").cloned();
    assert_eq!((tunnel("plain"), tunnel("meshed")), (None, Some(json!("LEGACY_ISTIO_MTLS"))));
    assert_eq!(found["shop/cart.shop.svc.cluster.local"]["service"]["name"], "cart");
}

#[test]
fn agentgateway_adds_nothing_to_what_envoys_are_sent() {
    let mut mesh = TestGraph::with(options(), SERVICES);
    mesh.changed();
    mesh.connect(agentgateway("door-1", Some("door")));
    let changed = mesh.changed();
    assert_eq!(changed, ["+scopes/all agentgateway~10.1.0.8~door-1.edge~edge.svc.cluster.local"]);
}
