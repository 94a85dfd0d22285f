//! Switches of ambient mode.

use sluice_model::ResourceType;

use super::{CORAL, sent, service};
use crate::{AmbientOptions, GatewayApiOptions, GraphOptions};

/// A pod of `coral` that accepts HBONE, and mutual TLS if `mode` is `istio`.
fn coral(mode: &str) -> String {
    service(&[("http", 80)])
        + &format!(
            "---
apiVersion: v1
kind: Pod
metadata: {{name: coral-1, namespace: reef, labels: {{app: coral, networking.istio.io/tunnel: http, security.istio.io/tlsMode: {mode}}}}}
spec: {{serviceAccountName: diver, containers: []}}
status: {{phase: Running, podIP: 10.1.0.1, conditions: [{{type: Ready, status: 'True'}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: coral-x, namespace: reef, labels: {{kubernetes.io/service-name: coral}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [10.1.0.1], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: coral-1, namespace: reef}}}}]
"
        )
}

fn ambient(ambient: AmbientOptions) -> GraphOptions {
    let gateway_api = GatewayApiOptions { waypoints: true, ..GatewayApiOptions::default() };
    GraphOptions { ambient: Some(ambient), gateway_api, ..GraphOptions::default() }
}

#[test]
fn hbone_is_used_for_destinations_that_accept_it_as_the_switches_say() {
    let tunnelled = |sends_hbone, prefers_hbone, mode: &str| {
        let options = GraphOptions { sends_hbone, prefers_hbone, ..ambient(AmbientOptions::default()) };
        !sent(options, &coral(mode)).has(ResourceType::Endpoint, CORAL, &["connect_originate"]).is_empty()
    };
    assert!(tunnelled(true, false, "disabled") && !tunnelled(false, false, "disabled"));
    assert!(!tunnelled(true, false, "istio"), "mutual TLS has precedence");
    assert!(tunnelled(true, true, "istio") && !tunnelled(false, true, "istio"));
}

#[test]
fn dry_run_policies_are_sent_to_node_proxies_if_enabled() {
    let text = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: trial, namespace: reef, annotations: {istio.io/dry-run: 'true'}}
spec: {action: DENY, rules: [{from: [{source: {namespaces: [pond]}}]}]}
";
    let is_sent = |dry_run_policies| {
        let sent = sent(ambient(AmbientOptions { dry_run_policies, ..AmbientOptions::default() }), text);
        sent.names(ResourceType::Authorization).contains(&"reef/trial")
    };
    assert!(is_sent(true) && !is_sent(false));
}

#[test]
fn waypoint_is_the_only_client_of_its_workloads_if_enabled() {
    let text = coral("disabled")
        + "---
apiVersion: v1
kind: Namespace
metadata: {name: reef, labels: {istio.io/use-waypoint: wp, istio.io/dataplane-mode: ambient}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: reef, labels: {istio.io/waypoint-for: all}}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: Hostname, value: wp.reef.svc.cluster.local}]}
---
apiVersion: v1
kind: Service
metadata: {name: wp, namespace: reef, labels: {gateway.istio.io/managed: istio.io-mesh-controller}}
spec: {clusterIP: 10.0.0.9, selector: {gateway.networking.k8s.io/gateway-name: wp}, ports: [{name: mesh, port: 15008}]}
---
apiVersion: v1
kind: Pod
metadata: {name: wp-1, namespace: reef, labels: {gateway.networking.k8s.io/gateway-name: wp, gateway.istio.io/managed: istio.io-mesh-controller}}
spec: {serviceAccountName: lighthouse, containers: []}
status: {phase: Running, podIP: 10.1.0.9, conditions: [{type: Ready, status: 'True'}]}
";
    let allowed = |allows_waypoints| {
        let sent = sent(ambient(AmbientOptions { allows_waypoints, ..AmbientOptions::default() }), &text);
        let names = sent.names(ResourceType::Authorization);
        let policies: Vec<String> = names.into_iter().filter(|name| name.contains("wp")).map(str::to_owned).collect();
        let principal = "cluster.local/ns/reef/sa/lighthouse";
        let of_policy =
            policies.iter().any(|name| !sent.has(ResourceType::Authorization, name, &[principal]).is_empty());
        let workload = "Kubernetes//Pod/reef/coral-1";
        let is_bound = policies.iter().any(|name| !sent.has(ResourceType::Address, workload, &[name]).is_empty());
        (of_policy, is_bound)
    };
    assert_eq!(allowed(true), (true, true));
    assert_eq!(allowed(false), (false, false));
}
