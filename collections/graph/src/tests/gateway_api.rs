//! The Gateway API: the resources that a Gateway, route, grant or policy touches.

use sluice_model::{Identity, Kind, ObjectKey, ProxyType, Severity};

use super::{TestGraph, sidecar};
use crate::{GatewayApiOptions, GraphOptions, RejectKey, ServedKind, StatusKey, StatusUpdate};

/// The Service of a router, and two others.
const SERVICES: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: edge}}
---
{apiVersion: v1, kind: Service, metadata: {name: door-istio, namespace: edge}, spec: {clusterIP: 10.0.0.8,
 selector: {gateway.networking.k8s.io/gateway-name: door}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tls, port: 443, targetPort: 8443}]}}
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
  gatewayClassName: istio
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
";

fn edge() -> TestGraph {
    let mut mesh = TestGraph::new(SERVICES);
    let mut router = sidecar("edge", "router", "10.1.0.8", &[("gateway.networking.k8s.io/gateway-name", "door")]);
    router.proxy_type = ProxyType::Router;
    router.identity = Some(Identity::new("cluster.local", "edge", "gateway"));
    mesh.connect(router);
    mesh.touched();
    mesh
}

/// A route in namespace `shop` for one host, with more of its spec.
fn route(name: &str, backend: &str, rest: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: shop}}
spec:
  parentRefs: [{{name: door, namespace: edge}}]
  hostnames: [{name}.example]
  rules: [{{backendRefs: [{{{backend}, port: 80}}]{rest}}}]
"
    )
}

fn rejects(mesh: &TestGraph, kind: Kind, name: &str) -> Vec<String> {
    mesh.engine.flush();
    let key = RejectKey { kind, object: ObjectKey::new("Kubernetes", "shop", name) };
    let rejects = mesh.get(&mesh.handles.rejects, &key).unwrap_or_default();
    assert!(rejects.iter().all(|reject| reject.severity == Severity::Error));
    rejects.iter().map(|reject| format!("{}: {}", reject.field_path, reject.reason)).collect()
}

#[test]
fn a_gateway_touches_what_its_listeners_open() {
    let mut mesh = edge();
    mesh.apply(GATEWAY);
    assert_eq!(mesh.touched(), ["+Listener 0.0.0.0_8080", "+Route http.8080 ", "+Route http.8080 blackhole:80"]);
    // A class of another controller.
    mesh.apply(&GATEWAY.replace("gatewayClassName: istio", "gatewayClassName: other"));
    assert_eq!(mesh.touched(), ["-Listener 0.0.0.0_8080", "-Route http.8080 ", "-Route http.8080 blackhole:80"]);
    // The Service that it refers to has no routers.
    mesh.apply(&GATEWAY.replace("spec:", "spec:\n  addresses: [{type: Hostname, value: elsewhere}]"));
    assert_eq!(mesh.touched(), [""; 0]);
    assert!(mesh.router_listeners().is_empty());
}

#[test]
fn a_route_touches_the_virtual_host_of_its_host() {
    let mut mesh = edge();
    mesh.apply(GATEWAY);
    mesh.touched();
    mesh.apply(&route("a", "name: cart", ""));
    assert_eq!(mesh.touched(), ["+Route http.8080 a.example:80", "-Route http.8080 blackhole:80"]);
    mesh.apply(&route("b", "name: cart", ""));
    assert_eq!(mesh.touched(), ["+Route http.8080 b.example:80"]);
    mesh.apply(&route("b", "name: cart", ", timeouts: {request: 1s}"));
    assert_eq!(mesh.touched(), ["~Route http.8080 b.example:80"]);
    // Two routes for a host are one virtual host.
    let same_host = route("c", "name: cart", ", matches: [{path: {value: /c}}]").replace("c.example", "b.example");
    mesh.apply(&same_host);
    assert_eq!(mesh.touched(), ["~Route http.8080 b.example:80"]);
    mesh.delete(Kind::HTTPRoute, "shop", "b");
    assert_eq!(mesh.touched(), ["~Route http.8080 b.example:80"]);
    mesh.delete(Kind::HTTPRoute, "shop", "c");
    assert_eq!(mesh.touched(), ["-Route http.8080 b.example:80"]);
}

#[test]
fn a_reference_to_an_absent_backend_is_rejected_and_loses_only_its_share() {
    let mut mesh = edge();
    mesh.apply(GATEWAY);
    mesh.apply(&route("good", "name: cart", ""));
    mesh.touched();
    mesh.apply(&route("far", "name: till, namespace: bank", ""));
    assert_eq!(mesh.touched(), ["+Route http.8080 far.example:80"]);
    let missing_grant = ["spec.rules[0].backendRefs[0]: no ReferenceGrant allows it"];
    assert_eq!(rejects(&mesh, Kind::HTTPRoute, "far"), missing_grant);
    // A grant for others changes nothing.
    let grant = |namespace: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {{name: grant, namespace: bank}}
spec:
  from: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: {namespace}}}]
  to: [{{group: '', kind: Service, name: till}}]
"
        )
    };
    mesh.apply(&grant("nowhere"));
    assert_eq!(mesh.touched(), [""; 0]);
    mesh.apply(&grant("shop"));
    assert_eq!(mesh.touched(), ["~Route http.8080 far.example:80"]);
    assert_eq!(rejects(&mesh, Kind::HTTPRoute, "far"), [""; 0]);
    mesh.delete(Kind::ReferenceGrant, "bank", "grant");
    assert_eq!(mesh.touched(), ["~Route http.8080 far.example:80"]);
    assert_eq!(rejects(&mesh, Kind::HTTPRoute, "far"), missing_grant);
    // References to a listener and to a Service that do not exist.
    let elsewhere = route("far", "name: none", "").replace("namespace: edge}", "namespace: edge, sectionName: tls}");
    mesh.apply(&elsewhere);
    assert_eq!(mesh.touched(), ["-Route http.8080 far.example:80"]);
    assert_eq!(rejects(&mesh, Kind::HTTPRoute, "far"), ["spec.parentRefs[0]: no listener has this name"]);
    mesh.apply(&route("far", "name: none", ""));
    assert_eq!(mesh.touched(), ["+Route http.8080 far.example:80"]);
    assert_eq!(rejects(&mesh, Kind::HTTPRoute, "far"), ["spec.rules[0].backendRefs[0]: there is no such backend"]);
    assert_eq!(rejects(&mesh, Kind::HTTPRoute, "good"), [""; 0]);
}

#[test]
fn listener_sets_add_listeners_where_the_gateway_allows_it() {
    let mut mesh = edge();
    let set = "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: shop}
spec:
  parentRef: {name: door, namespace: edge}
  listeners: [{name: tls, port: 443, protocol: TLS, hostname: a.example, tls: {mode: Passthrough}}]
";
    let tls_route = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: it, namespace: shop}
spec:
  parentRefs: [{group: gateway.networking.k8s.io, kind: ListenerSet, name: more}]
  rules: [{backendRefs: [{name: cart, port: 80}]}]
";
    mesh.apply(&format!("{GATEWAY}---{set}---{tls_route}"));
    mesh.touched();
    assert_eq!(mesh.router_listeners(), ["0.0.0.0_8080"]);
    let open = "spec:\n  allowedListeners: {namespaces: {from: All}}";
    mesh.apply(&GATEWAY.replace("spec:", open));
    assert_eq!(mesh.touched(), ["+Listener 0.0.0.0_8443"]);
    mesh.delete(Kind::ListenerSet, "shop", "more");
    assert_eq!(mesh.touched(), ["-Listener 0.0.0.0_8443"]);
}

#[test]
fn a_policy_for_a_backend_touches_its_cluster() {
    let mut mesh = edge();
    mesh.apply(GATEWAY);
    mesh.touched();
    let policy = |name: &str, host: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: {name}, namespace: shop}}
spec:
  targetRefs: [{{group: '', kind: Service, name: cart}}]
  validation: {{hostname: {host}, wellKnownCACertificates: System}}
"
        )
    };
    mesh.apply(&policy("first", "a.example"));
    assert_eq!(mesh.touched(), ["~Cluster outbound|80||cart.shop.svc.cluster.local"]);
    // Of two policies of equal age for one backend, the first by name applies.
    mesh.apply(&policy("second", "b.example"));
    assert_eq!(mesh.touched(), [""; 0]);
    mesh.delete(Kind::BackendTLSPolicy, "shop", "first");
    assert_eq!(mesh.touched(), ["~Cluster outbound|80||cart.shop.svc.cluster.local"]);
}

#[test]
fn a_cluster_follows_whether_the_config_map_of_its_roots_exists() {
    let mut mesh = edge();
    mesh.apply(GATEWAY);
    mesh.apply(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: it, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: cart}]
  validation: {hostname: a.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: roots}]}
",
    );
    mesh.touched();
    let roots = |name: &str| {
        let pem = "-----BEGIN CERTIFICATE-----\\nMAMCAQA=\\n-----END CERTIFICATE-----\\n";
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{namespace: shop, name: {name}}}, data: {{ca.crt: \"{pem}\"}}}}"
        )
    };
    mesh.apply(&roots("others"));
    assert_eq!(mesh.touched(), [""; 0]);
    mesh.apply(&roots("roots"));
    assert_eq!(mesh.touched(), ["~Cluster outbound|80||cart.shop.svc.cluster.local"]);
    mesh.delete(Kind::ConfigMap, "shop", "roots");
    assert_eq!(mesh.touched(), ["~Cluster outbound|80||cart.shop.svc.cluster.local"]);
}

#[test]
fn a_listener_exists_while_its_certificate_does() {
    let gateway = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: edge}
spec:
  gatewayClassName: istio
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: shop}]}}
";
    let secret = |number: u8, key: &str| {
        let pem = |label: &str| format!("-----BEGIN {label}-----\\nMAMCAQ{number}=\\n-----END {label}-----\\n");
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{namespace: edge, name: shop}}, \
             stringData: {{tls.crt: \"{}\", {key}: \"{}\"}}}}",
            pem("CERTIFICATE"),
            pem("PRIVATE KEY")
        )
    };
    let mut mesh = edge();
    mesh.apply(gateway);
    assert_eq!(mesh.touched(), [""; 0]);
    mesh.apply(&secret(0, "tls.key"));
    let listener = "+Listener 0.0.0.0_8443".to_owned();
    assert!(mesh.touched().contains(&listener));
    mesh.apply(&secret(1, "tls.key"));
    assert_eq!(
        mesh.touched(),
        [""; 0],
        "a certificate that is renewed changes no listener, and no proxy subscribes to it"
    );
    mesh.write(&secret(1, "key.of.another"), true);
    assert!(mesh.touched().contains(&listener.replace('+', "-")));
}

#[test]
fn router_of_a_managed_gateway_serves_no_istio_gateway_of_another_namespace() {
    let istio = |namespace: &str, port: u16| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: own, namespace: {namespace}}}
spec: {{selector: {{gateway.networking.k8s.io/gateway-name: door}},
 servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ['*']}}]}}
---"
        )
    };
    let gateways = istio("edge", 9001) + &istio("shop", 9002);
    let ports = |strict: bool, gateway: &str| -> Vec<String> {
        let options = GraphOptions { strict_gateway_merging: strict, ..GraphOptions::default() };
        let mesh = TestGraph::with(options, &[SERVICES, "---", &gateways, gateway].concat());
        let mut router = sidecar("edge", "router", "10.1.0.8", &[("gateway.networking.k8s.io/gateway-name", "door")]);
        router.proxy_type = ProxyType::Router;
        mesh.connect(router);
        mesh.router_listeners()
    };
    let [managed, own, other] = ["0.0.0.0_8080", "0.0.0.0_9001", "0.0.0.0_9002"];
    assert_eq!(ports(true, GATEWAY), [managed, own]);
    assert_eq!(ports(false, GATEWAY), [managed, own, other]);
    assert_eq!(ports(true, ""), [own, other], "no Gateway is managed");
}

#[test]
fn gateway_classes_are_created_and_accepted() {
    let class = |name: &str, controller: &str, rest: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: {name}, generation: 3}}
spec: {{controllerName: {controller}}}
{rest}
---"
        )
    };
    let pending = "status: {conditions: [{type: Accepted, status: Unknown, reason: Pending, message: Waiting for controller, \
                   lastTransitionTime: '1970-01-01T00:00:00Z'}]}";
    let mesh = TestGraph::new(&(class("istio", "istio.io/gateway-controller", pending) + &class("other", "them", "")));
    let missing = |mesh: &TestGraph| -> Vec<String> {
        let now = mesh.engine.snapshot();
        let all = now.iter(&mesh.handles.missing_gateway_classes);
        all.map(|(key, class)| format!("{} {}", key.name, class.controller)).collect()
    };
    assert_eq!(missing(&mesh), [""; 0], "the cluster does not serve the kind");
    let served = |cluster: &str| ServedKind { cluster: cluster.into(), kind: Kind::GatewayClass };
    mesh.handles.inputs.served_kinds.set(served("remote"), ());
    mesh.engine.flush();
    assert_eq!(missing(&mesh), [""; 0]);
    mesh.handles.inputs.served_kinds.set(served("Kubernetes"), ());
    mesh.engine.flush();
    let remote = "istio-remote istio.io/unmanaged-gateway";
    assert_eq!(missing(&mesh), [remote]);
    mesh.delete(Kind::GatewayClass, "", "istio");
    assert_eq!(missing(&mesh), ["istio istio.io/gateway-controller", remote]);
    mesh.apply(&class("istio", "istio.io/gateway-controller", pending));
    let key = |name: &str| StatusKey { kind: Kind::GatewayClass, object: ObjectKey::new("Kubernetes", "", name) };
    let update = |name: &str| mesh.get(&mesh.handles.status_updates, &key(name));
    assert_eq!(update("other"), None, "it is of another controller");
    let StatusUpdate { api_version, is, wanted } = update("istio").expect("a status");
    assert_eq!(&*api_version, "gateway.networking.k8s.io/v1");
    assert!(is.contains("Waiting for controller") && !wanted.contains("lastTransitionTime"), "{wanted}");
    let written = wanted.replace("\"type\"", "\"lastTransitionTime\": \"2026-01-01T00:00:00Z\", \"type\"");
    mesh.apply(&class("istio", "istio.io/gateway-controller", &format!("status: {written}")));
    assert_eq!(update("istio"), None);
    let canary = class("istio", "istio.io/gateway-controller", "")
        .replace("name: istio,", "name: istio, labels: {istio.io/rev: canary},");
    mesh.apply(&canary);
    assert_eq!(update("istio"), None, "it is of another revision");
    let ambient = GatewayApiOptions { waypoints: true, east_west: true, ..GatewayApiOptions::default() };
    let ambient = TestGraph::with(GraphOptions { gateway_api: ambient, ..GraphOptions::default() }, "");
    ambient.handles.inputs.served_kinds.set(served("Kubernetes"), ());
    ambient.engine.flush();
    assert_eq!(missing(&ambient).len(), 4);
}

/// The webhook configuration or Service of a tag, for a revision.
fn tag(kind: &str, name: &str, tag: &str, revision: &str) -> String {
    let (version, namespace) = match kind {
        "Service" => ("v1", ", namespace: istio-system"),
        _ => ("admissionregistration.k8s.io/v1", ""),
    };
    let labels = format!("{{istio.io/tag: {tag}, istio.io/rev: {revision}}}");
    format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}{namespace}, labels: {labels}}}}}\n")
}

#[test]
fn statuses_and_deployments_are_written_by_the_revision_of_a_tag() {
    const WEBHOOK: &str = "MutatingWebhookConfiguration";
    const DEFAULT: &str = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration,
 metadata: {name: istiod-default-validator, labels: {istio.io/rev: canary}}}";
    let class = "---
{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: istio}, spec: {controllerName: istio.io/gateway-controller}}
";
    let options = GraphOptions { revision: "canary".into(), ..GraphOptions::default() };
    let mesh = TestGraph::with(options, &format!("{SERVICES}{class}"));
    let key = ObjectKey::new("Kubernetes", "edge", "door");
    let status = StatusKey { kind: Kind::KubernetesGateway, object: key.clone() };
    let written = || {
        let has_status = mesh.get(&mesh.handles.status_updates, &status).is_some();
        assert_eq!(mesh.get(&mesh.handles.gateway_deployments, &key).is_some(), has_status);
        has_status
    };
    mesh.apply(&GATEWAY.replace("name: door,", "name: door, labels: {istio.io/rev: prod},"));
    assert!(!written(), "no revision has the tag");
    mesh.apply(&tag(WEBHOOK, "istio-revision-tag-prod", "prod", "stable"));
    assert!(!written(), "another revision has it");
    mesh.apply(&tag(WEBHOOK, "istio-revision-tag-prod", "prod", "canary"));
    assert!(written(), "this revision has it");
    mesh.delete(Kind::MutatingWebhookConfiguration, "", "istio-revision-tag-prod");
    assert!(!written());
    mesh.apply(&tag("Service", "istiod-revision-tag-prod", "prod", "canary"));
    assert!(written(), "a Service is a tag, too");
    mesh.apply(&tag("Service", "istiod-revision-tag-prod", "prod", "canary").replace("istio-system", "shop"));
    mesh.delete(Kind::Service, "istio-system", "istiod-revision-tag-prod");
    assert!(!written(), "a Service of another namespace is none");

    mesh.apply(GATEWAY);
    assert!(!written(), "no object tells which revision is the default one");
    mesh.apply(DEFAULT);
    assert!(written());
    mesh.apply(&tag(WEBHOOK, "istio-revision-tag-default", "default", "stable"));
    assert!(!written(), "the tag precedes");
    mesh.apply(&tag(WEBHOOK, "istio-revision-tag-default", "default", "canary"));
    assert!(written());
    mesh.apply("{apiVersion: v1, kind: Namespace, metadata: {name: edge, labels: {istio.io/rev: stable}}}");
    assert!(!written(), "the namespace selects another revision");
}

#[test]
fn route_of_a_service_entry_with_a_wildcard_host_is_for_that_host() {
    let mut mesh = TestGraph::new(
        "
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop},
 spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: shop}
spec: {hosts: ['*.wild.example'], location: MESH_EXTERNAL, resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}
",
    );
    mesh.connect(sidecar("shop", "client", "10.1.0.1", &[]));
    mesh.touched();
    let route = route("wild", "name: cart", "")
        .replace("{name: door, namespace: edge}", "{group: networking.istio.io, kind: ServiceEntry, name: wild}");
    mesh.apply(&route);
    assert_eq!(mesh.touched(), ["~Route 80 *.wild.example:80"]);
    assert_eq!(rejects(&mesh, Kind::HTTPRoute, "wild"), [""; 0]);
    mesh.delete(Kind::HTTPRoute, "shop", "wild");
    assert_eq!(mesh.touched(), ["~Route 80 *.wild.example:80"]);
}
