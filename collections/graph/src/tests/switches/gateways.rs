//! Switches of gateways.

use sluice_model::{Kind, Proxy, ProxyType, ResourceType};

use super::{Sent, sent_to, sidecar};
use crate::tests::TestGraph;
use crate::{GatewayApiOptions, GraphOptions, SecurityOptions, ServedKind};

const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: edge}}";

fn router(labels: &[(&str, &str)]) -> Proxy {
    Proxy { proxy_type: ProxyType::Router, ..sidecar("edge", "router", "10.1.0.8", labels) }
}

fn ingress_router() -> Proxy {
    router(&[("istio", "ingressgateway")])
}

/// A Gateway of Istio with one server, and a Service of its routers whose ports are served over TCP and UDP.
fn istio_gateway(namespace: &str, server: &str) -> String {
    format!(
        "{NAMESPACE}
---
apiVersion: v1
kind: Service
metadata: {{name: ingress, namespace: edge}}
spec:
  clusterIP: 10.0.0.9
  selector: {{istio: ingressgateway}}
  ports: [{{name: https, port: 443, targetPort: 443}}, {{name: http3, port: 443, protocol: UDP, targetPort: 443}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: front, namespace: {namespace}}}
spec: {{selector: {{istio: ingressgateway}}, servers: [{server}]}}
"
    )
}

#[test]
fn https_is_also_served_over_http3_if_it_is_enabled() {
    let server = "{port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example], \
                  tls: {mode: SIMPLE, credentialName: c}}";
    let text = istio_gateway("edge", server);
    let found = |http3| {
        let sent = sent_to(GraphOptions { http3, ..GraphOptions::default() }, &text, ingress_router());
        (sent.names(ResourceType::Listener).contains(&"udp_0.0.0.0_443"), !sent.has_anywhere(&["quic"]).is_empty())
    };
    assert_eq!(found(true), (true, true));
    assert_eq!(found(false), (false, false));
}

#[test]
fn gateways_apply_to_routers_of_other_namespaces_unless_they_are_scoped() {
    let server = "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}";
    let served = |namespace, scope_gateways| {
        let options = GraphOptions { scope_gateways, ..GraphOptions::default() };
        let sent = sent_to(options, &istio_gateway(namespace, server), ingress_router());
        sent.names(ResourceType::Listener).contains(&"0.0.0.0_80")
    };
    assert!(served("edge", false) && served("edge", true) && served("shop", false));
    assert!(!served("shop", true));
}

#[test]
fn ingresses_are_served_by_routers_of_their_namespace() {
    let text = format!(
        "{NAMESPACE}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {{name: istio}}
spec: {{controller: istio.io/ingress-controller}}
---
apiVersion: v1
kind: Service
metadata: {{name: cart, namespace: shop}}
spec: {{clusterIP: 10.0.0.1, ports: [{{name: http, port: 80}}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: web, namespace: shop}}
spec: {{ingressClassName: istio, defaultBackend: {{service: {{name: cart, port: {{number: 80}}}}}}}}
"
    );
    let served = |namespace: &str| {
        let options =
            GraphOptions { ingress_namespace: namespace.into(), scope_gateways: true, ..GraphOptions::default() };
        let sent = sent_to(options, &text, ingress_router());
        sent.names(ResourceType::Listener).contains(&"0.0.0.0_80")
    };
    assert!(served("edge") && !served("istio-system"));
}

/// A Gateway of the Gateway API, of the class `gate`, and its router.
fn gateway(rest: &str) -> String {
    format!(
        "{NAMESPACE}
---
apiVersion: v1
kind: Service
metadata: {{name: door-gate, namespace: edge}}
spec: {{clusterIP: 10.0.0.8, selector: {{gateway.networking.k8s.io/gateway-name: door}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: door, namespace: edge}}
spec:
  gatewayClassName: gate
  listeners: [{{name: http, port: 80, protocol: HTTP}}]
{rest}
"
    )
}

const CLASS: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: gate}
spec: {controllerName: example.com/controller}
";

/// Whether the Gateway is served.
fn is_served(gateway_api: GatewayApiOptions, text: &str) -> bool {
    let options = GraphOptions { gateway_api, ..GraphOptions::default() };
    let sent = sent_to(options, text, router(&[("gateway.networking.k8s.io/gateway-name", "door")]));
    sent.names(ResourceType::Listener).contains(&"0.0.0.0_8080")
}

#[test]
fn gateways_of_the_controller_of_the_server_are_served() {
    let text = gateway(CLASS);
    let controller = |name: &str| GatewayApiOptions { controller: name.into(), ..GatewayApiOptions::default() };
    assert!(is_served(controller("example.com/controller"), &text));
    assert!(!is_served(GatewayApiOptions::default(), &text));
}

#[test]
fn default_class_needs_no_object() {
    let text = gateway("");
    let class = |name: &str| GatewayApiOptions { default_class: name.into(), ..GatewayApiOptions::default() };
    assert!(is_served(class("gate"), &text));
    assert!(!is_served(GatewayApiOptions::default(), &text));
}

/// The GatewayClasses to create.
fn missing_classes(gateway_api: GatewayApiOptions) -> Vec<String> {
    let mesh = TestGraph::with(GraphOptions { gateway_api, ..GraphOptions::default() }, "");
    let served = ServedKind { cluster: "Kubernetes".into(), kind: Kind::GatewayClass };
    mesh.handles.inputs.served_kinds.set(served, ());
    mesh.engine.flush();
    let now = mesh.engine.snapshot();
    now.iter(&mesh.handles.missing_gateway_classes).map(|(key, _)| key.name.to_string()).collect()
}

#[test]
fn missing_gateway_classes_are_created_unless_that_is_disabled() {
    let created =
        |creates_classes| missing_classes(GatewayApiOptions { creates_classes, ..GatewayApiOptions::default() });
    assert_eq!(created(true), ["istio", "istio-remote"]);
    assert_eq!(created(false), [""; 0]);
}

#[test]
fn class_of_gateways_in_other_networks_exists_unless_that_is_disabled() {
    let created = |remote| missing_classes(GatewayApiOptions { remote, ..GatewayApiOptions::default() });
    assert_eq!(created(true), ["istio", "istio-remote"]);
    assert_eq!(created(false), ["istio"]);
}

#[test]
fn gateway_may_name_a_service_unless_that_is_disabled() {
    let text = gateway("  addresses: [{type: Hostname, value: own.edge.svc.cluster.local}]\n")
        + "---
apiVersion: v1
kind: Service
metadata: {name: own, namespace: edge}
spec: {clusterIP: 10.0.0.7, selector: {istio: ingressgateway}, ports: [{name: http, port: 80, targetPort: 8081}]}
";
    let ports = |manual_deployment| {
        let gateway_api =
            GatewayApiOptions { manual_deployment, default_class: "gate".into(), ..GatewayApiOptions::default() };
        let mesh = TestGraph::with(GraphOptions { gateway_api, ..GraphOptions::default() }, &text);
        mesh.connect(router(&[("istio", "ingressgateway")]));
        mesh.connect(Proxy { id: "deployed".into(), ..router(&[("gateway.networking.k8s.io/gateway-name", "door")]) });
        let sent = Sent::of(&mesh);
        let names = sent.names(ResourceType::Listener);
        ["0.0.0.0_8080", "0.0.0.0_8081"].map(|name| names.contains(&name))
    };
    assert_eq!(ports(true), [false, true], "by routers of the named Service");
    assert_eq!(ports(false), [true, false], "by deployed routers");
}

#[test]
fn policies_select_gateways_of_the_gateway_api_by_label_unless_that_is_disabled() {
    let text = gateway("")
        + "---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: edge}
spec: {selector: {matchLabels: {istio: door}}, action: DENY, rules: [{from: [{source: {namespaces: [pond]}}]}]}
";
    let applies = |gateways_by_target_only| {
        let options = GraphOptions {
            security: SecurityOptions { gateways_by_target_only, ..SecurityOptions::default() },
            gateway_api: GatewayApiOptions { default_class: "gate".into(), ..GatewayApiOptions::default() },
            ..GraphOptions::default()
        };
        let labels = [("gateway.networking.k8s.io/gateway-name", "door"), ("istio", "door")];
        !sent_to(options, &text, router(&labels)).has(ResourceType::Listener, "0.0.0.0_8080", &["pond"]).is_empty()
    };
    assert!(applies(false) && !applies(true));
}

#[test]
fn deployed_objects_have_labels_and_annotations_of_their_gateway_unless_disabled() {
    let text = gateway("").replace(
        "name: door, namespace: edge",
        "name: door, namespace: edge, labels: {team: one}, annotations: {note: two}",
    );
    let copied = |copies_labels| {
        let gateway_api =
            GatewayApiOptions { copies_labels, default_class: "gate".into(), ..GatewayApiOptions::default() };
        let mesh = TestGraph::with(GraphOptions { gateway_api, ..GraphOptions::default() }, &text);
        let now = mesh.engine.snapshot();
        let (_, deployment) = now.iter(&mesh.handles.gateway_deployments).next().expect("it is deployed");
        (deployment.labels.contains_key("team"), deployment.annotations.contains_key("note"))
    };
    assert_eq!(copied(true), (true, true));
    assert_eq!(copied(false), (false, false));
}
