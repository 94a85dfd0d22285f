//! Waypoints: what a change touches of the listeners, clusters and endpoints of a connected waypoint.

use sluice_model::label::GATEWAY_NAME;
use sluice_model::{Identity, Kind, Proxy, ProxyType, Resource, ResourceType, View};

use super::{TestGraph, endpoint_slice, sidecar};
use crate::{AmbientOptions, GraphOptions, JwksFetch};

const REEF: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: reef, labels: {istio.io/use-waypoint: wp}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: reef}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
status:
  addresses: [{type: Hostname, value: wp.reef.svc.cluster.local}]
---
apiVersion: v1
kind: Service
metadata: {name: wp, namespace: reef, labels: {gateway.istio.io/managed: istio.io-mesh-controller}}
spec:
  clusterIP: 10.0.0.9
  selector: {gateway.networking.k8s.io/gateway-name: wp}
  ports: [{name: mesh, port: 15008}]
---
apiVersion: v1
kind: Service
metadata: {name: coral, namespace: reef}
spec: {clusterIP: 10.0.0.1, selector: {app: coral}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: crab, namespace: reef}
spec: {clusterIP: 10.0.0.2, selector: {app: crab}, ports: [{name: tcp, port: 70}]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: sand}
spec: {clusterIP: 10.0.0.3, ports: [{name: http, port: 80}]}
";

fn policy(kind: &str, name: &str) -> String {
    let group = if kind == "Service" { "''" } else { "gateway.networking.k8s.io" };
    format!(
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: p, namespace: reef}}
spec:
  targetRefs: [{{group: {group}, kind: {kind}, name: {name}}}]
  action: DENY
  rules: [{{from: [{{source: {{namespaces: [pirates]}}}}]}}]
"
    )
}

fn waypoint(name: &str, ip: &str) -> Proxy {
    Proxy { proxy_type: ProxyType::Waypoint, ..sidecar("reef", name, ip, &[(GATEWAY_NAME, "wp")]) }
}

/// A mesh with a connected waypoint, and a service that it does not serve; nothing is pending.
fn test_mesh() -> TestGraph {
    let options = GraphOptions { ambient: Some(AmbientOptions::default()), ..GraphOptions::default() };
    let mut mesh = TestGraph::with(options, &format!("{REEF}{}", endpoint_slice("coral", "http", 8080, &["10.1.0.1"])));
    mesh.connect(waypoint("wp-1", "10.1.0.9"));
    mesh.touched();
    mesh
}

impl TestGraph {
    /// The changes of what waypoints get since the last call.
    fn waypoint_changes(&mut self) -> Vec<String> {
        let mut lines = self.touched();
        lines.retain(|line| ["Cluster ", "Endpoint ", "Listener "].iter().any(|kind| line[1..].starts_with(kind)));
        lines.retain(|line| !line[1..].starts_with("Endpoint outbound|"));
        lines
    }

    /// The names of the resources of a type that are written for waypoints.
    fn waypoint_names(&self, resource_type: ResourceType) -> Vec<String> {
        let now = self.engine.snapshot();
        let all = self.handles.resources.iter().flat_map(|of| now.iter(of));
        let shown = all.filter(|(key, value)| key.resource_type == resource_type && **value != Resource::Hidden);
        let mut names: Vec<String> = shown.map(|(key, _)| key.name.to_string()).collect();
        names.retain(|name| !name.starts_with("outbound|"));
        names.sort();
        names.dedup();
        names
    }
}

#[test]
fn a_waypoint_has_its_services_only() {
    let mesh = test_mesh();
    let clusters = mesh.waypoint_names(ResourceType::Cluster);
    let vips: Vec<&String> = clusters.iter().filter(|name| name.starts_with("inbound-vip|")).collect();
    assert_eq!(
        vips,
        ["inbound-vip|70|tcp|crab.reef.svc.cluster.local", "inbound-vip|80|http|coral.reef.svc.cluster.local"]
    );
    for fixed in ["connect_originate", "encap", "inner_connect_originate", "main_internal", "outer_connect_originate"] {
        assert!(clusters.iter().any(|name| name == fixed), "{fixed}: {clusters:?}");
    }
    let listeners = mesh.waypoint_names(ResourceType::Listener);
    for name in ["connect_originate", "connect_terminate", "main_internal"] {
        assert!(listeners.iter().any(|found| found == name), "{name}: {listeners:?}");
    }
}

#[test]
fn an_endpoint_touches_its_assignment_only() {
    let mut mesh = test_mesh();
    mesh.apply(&endpoint_slice("coral", "http", 8080, &["10.1.0.2"]));
    assert_eq!(mesh.waypoint_changes(), ["~Endpoint inbound-vip|80|http|coral.reef.svc.cluster.local"]);
}

#[test]
fn a_rule_touches_the_clusters_of_its_service() {
    let mut mesh = test_mesh();
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: coral, namespace: reef}
spec:
  host: coral.reef.svc.cluster.local
  trafficPolicy: {connectionPool: {http: {http2MaxRequests: 5}}}
",
    );
    assert_eq!(mesh.waypoint_changes(), ["~Cluster inbound-vip|80|http|coral.reef.svc.cluster.local"]);
}

#[test]
fn a_service_elsewhere_touches_nothing() {
    let mut mesh = test_mesh();
    mesh.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: far, namespace: sand}, spec: {clusterIP: 10.0.0.3, ports: [{name: http, port: 81}]}}",
    );
    assert_eq!(mesh.waypoint_changes(), [""; 0]);
}

#[test]
fn attaching_a_service_adds_its_resources() {
    let mut mesh = test_mesh();
    mesh.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: moss, namespace: reef}, spec: {clusterIP: 10.0.0.4, ports: [{name: http, port: 80}]}}",
    );
    let vip = "inbound-vip|80|http|moss.reef.svc.cluster.local";
    assert_eq!(
        mesh.waypoint_changes(),
        [format!("+Cluster {vip}"), format!("+Endpoint {vip}"), "~Listener main_internal".to_owned()]
    );
    mesh.delete(Kind::Service, "reef", "moss");
    assert_eq!(
        mesh.waypoint_changes(),
        [format!("-Cluster {vip}"), format!("-Endpoint {vip}"), "~Listener main_internal".to_owned()]
    );
}

#[test]
fn a_policy_touches_the_listener_if_it_names_the_waypoint_or_its_service() {
    let mut mesh = test_mesh();
    for (kind, name) in [("Service", "coral"), ("Gateway", "wp")] {
        mesh.apply(&policy(kind, name));
        assert_eq!(mesh.waypoint_changes(), ["~Listener main_internal"], "{kind} {name}");
        mesh.delete(Kind::AuthorizationPolicy, "reef", "p");
        assert_eq!(mesh.waypoint_changes(), ["~Listener main_internal"], "{kind} {name}");
    }
    mesh.apply(&policy("Service", "absent"));
    assert_eq!(mesh.waypoint_changes(), [""; 0]);
}

#[test]
fn a_route_to_another_service_adds_an_outbound_cluster() {
    for host in ["coral.reef.svc.cluster.local", "'*.reef.svc.cluster.local'"] {
        let mut mesh = test_mesh();
        mesh.apply(&format!(
            "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: coral, namespace: reef}}
spec:
  hosts: [{host}]
  http: [{{route: [{{destination: {{host: far.sand.svc.cluster.local, port: {{number: 80}}}}}}]}}]
"
        ));
        assert_eq!(
            mesh.waypoint_changes(),
            ["+Cluster outbound|80||far.sand.svc.cluster.local", "~Listener main_internal"],
            "{host}"
        );
    }
}

#[test]
fn key_servers_of_a_service_are_reached_if_proxies_fetch_keys() {
    let authentication = |kind: &str, name: &str| {
        let group = if kind == "Service" { "''" } else { "gateway.networking.k8s.io" };
        format!(
            "
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: r, namespace: reef}}
spec:
  targetRefs: [{{group: {group}, kind: {kind}, name: {name}}}]
  jwtRules: [{{issuer: i, jwksUri: 'http://far.sand.svc.cluster.local/keys'}}]
"
        )
    };
    let options = GraphOptions {
        ambient: Some(AmbientOptions::default()),
        jwks_fetch: JwksFetch::Proxy,
        ..GraphOptions::default()
    };
    let mut mesh = TestGraph::with(options, REEF);
    mesh.connect(waypoint("wp-1", "10.1.0.9"));
    mesh.touched();
    for (kind, name) in [("Service", "coral"), ("Gateway", "wp")] {
        mesh.apply(&authentication(kind, name));
        assert_eq!(
            mesh.waypoint_changes(),
            ["+Cluster outbound|80||far.sand.svc.cluster.local", "~Listener main_internal"],
            "{kind} {name}"
        );
        mesh.delete(Kind::RequestAuthentication, "reef", "r");
        mesh.waypoint_changes();
    }
    mesh.apply(&authentication("Service", "absent"));
    assert_eq!(mesh.waypoint_changes(), [""; 0]);
}

#[test]
fn a_waypoint_may_pull_with_the_secrets_of_the_extensions_that_apply_to_it() {
    let extension = |namespace: &str, target: &str| {
        format!(
            "{{apiVersion: extensions.istio.io/v1alpha1, kind: WasmPlugin, metadata: {{name: e, namespace: {namespace}}},
              spec: {{url: oci://r.test/x, imagePullSecret: pull{target}}}}}"
        )
    };
    let target = |group: &str, kind: &str, name: &str| {
        format!(", targetRefs: [{{group: '{group}', kind: {kind}, name: {name}}}]")
    };
    let gateway = "gateway.networking.k8s.io";
    let (service, own) = (target("", "Service", "coral"), target(gateway, "Gateway", "wp"));
    let class = target(gateway, "GatewayClass", "istio-waypoint");
    let cases = [
        ("reef", service.as_str(), true),
        ("reef", &own, true),
        ("istio-system", &class, true),
        ("reef", &class, false),
        ("reef", "", false),
        ("istio-system", "", false),
        ("reef", &target("", "Service", "absent"), false),
        // The identity is one of another namespace.
        ("sand", &target("", "Service", "far"), false),
    ];
    let mut mesh = test_mesh();
    let identity = Some(Identity::new("cluster.local", "reef", "wp"));
    let key = mesh.connect(Proxy { identity, ..waypoint("wp-2", "10.1.0.10") });
    for (namespace, target, may_pull) in cases {
        mesh.apply(&extension(namespace, target));
        mesh.touched();
        let scope = mesh.get(&mesh.handles.scopes, &key).expect("a scope");
        let layers = scope.layers.get(&ResourceType::ExtensionConfig).map(|layers| layers.to_vec()).unwrap_or_default();
        let pulls =
            layers.iter().any(|layer| matches!(&layer.view, View::Workload(name) if name.starts_with("pulls#")));
        assert_eq!(pulls, may_pull, "{namespace} {target}");
        mesh.delete(Kind::WasmPlugin, namespace, "e");
    }
}

#[test]
fn an_envoy_filter_for_the_gateway_patches_the_listeners() {
    let mut mesh = test_mesh();
    let filter = |target: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {{name: f, namespace: reef}}
spec:
  {target}
  configPatches:
  - applyTo: LISTENER
    match: {{context: SIDECAR_INBOUND, listener: {{name: main_internal}}}}
    patch: {{operation: MERGE, value: {{stat_prefix: patched}}}}
"
        )
    };
    // Selectors do not hold for waypoints.
    mesh.apply(&filter("workloadSelector: {labels: {gateway.networking.k8s.io/gateway-name: wp}}"));
    assert_eq!(mesh.waypoint_changes(), [""; 0]);
    mesh.apply(&filter("targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: wp}]"));
    assert_eq!(mesh.waypoint_changes(), ["+Listener main_internal"]);
}

#[test]
fn a_policy_that_no_waypoint_enforces_is_a_finding() {
    let reasons = |mesh: &TestGraph| -> Vec<String> {
        let now = mesh.engine.snapshot();
        let found = now.iter(&mesh.handles.rejects).flat_map(|(_, rejects)| (*rejects).clone());
        let mut reasons: Vec<String> = found.map(|reject| reject.reason.to_string()).collect();
        reasons.retain(|reason| reason.ends_with(": no proxy enforces this policy for the target"));
        reasons
    };
    let mesh = test_mesh();
    mesh.apply(&policy("Service", "coral"));
    assert_eq!(reasons(&mesh), [""; 0]);
    mesh.apply(&policy("Service", "absent"));
    assert!(reasons(&mesh)[0].starts_with("there is no Service `absent`"));
    mesh.apply(&policy("GatewayClass", "istio-waypoint"));
    assert!(reasons(&mesh)[0].starts_with("a GatewayClass is a target only in the root namespace"));
    mesh.apply(&policy("Service", "coral"));
    mesh.apply("{apiVersion: v1, kind: Namespace, metadata: {name: reef}}");
    assert!(reasons(&mesh)[0].starts_with("Service `coral` uses no waypoint"));
    let mesh = TestGraph::new(REEF);
    mesh.apply(&policy("Service", "coral"));
    assert!(reasons(&mesh)[0].starts_with("ambient mode is off"));
    mesh.apply(&policy("Gateway", "wp"));
    assert_eq!(reasons(&mesh), [""; 0]);
}

#[test]
fn telemetry_and_filters_that_no_waypoint_applies_are_findings() {
    let reasons = |mesh: &TestGraph| -> Vec<String> {
        let now = mesh.engine.snapshot();
        let found = now.iter(&mesh.handles.rejects).flat_map(|(_, rejects)| (*rejects).clone());
        let mut reasons: Vec<String> = found.map(|reject| format!("{}: {}", reject.kind, reject.reason)).collect();
        reasons.retain(|reason| reason.ends_with(": no proxy applies this object for the target"));
        reasons.sort();
        reasons
    };
    let object = |api_version: &str, kind: &str, target: &str, spec: &str| {
        format!(
            "
apiVersion: {api_version}
kind: {kind}
metadata: {{name: for-target, namespace: reef}}
spec: {{targetRefs: [{{group: '', kind: Service, name: {target}}}], {spec}}}
"
        )
    };
    let telemetry =
        |target: &str| object("telemetry.istio.io/v1", "Telemetry", target, "accessLogging: [{disabled: true}]");
    let plugin =
        |target: &str| object("extensions.istio.io/v1alpha1", "WasmPlugin", target, "url: oci://registry.example/f:v1");
    let mesh = test_mesh();
    mesh.apply(&telemetry("coral"));
    mesh.apply(&plugin("coral"));
    assert_eq!(reasons(&mesh), [""; 0]);
    mesh.apply(&telemetry("absent"));
    mesh.apply(&plugin("absent"));
    let absent = "there is no Service `absent` in its namespace: no proxy applies this object for the target";
    assert_eq!(reasons(&mesh), [format!("Telemetry: {absent}"), format!("WasmPlugin: {absent}")]);
    mesh.apply(&telemetry("coral"));
    mesh.apply(&plugin("coral"));
    assert_eq!(reasons(&mesh), [""; 0]);
    let patch = "configPatches: [{applyTo: HTTP_FILTER, patch: {operation: REMOVE}}]";
    mesh.apply(&object("networking.istio.io/v1alpha3", "EnvoyFilter", "coral", patch));
    let refused = "EnvoyFilter: an EnvoyFilter cannot have a Service or ServiceEntry as its target: \
                   no proxy applies this object for the target";
    assert_eq!(reasons(&mesh), [refused]);
}

#[test]
fn a_service_with_a_canary_is_served_by_both_waypoints() {
    let mut mesh = test_mesh();
    mesh.apply(
        &REEF.split("---").skip(1).take(2).collect::<Vec<_>>().join("---").replace("wp", "next").replace("0.9", "0.8"),
    );
    mesh.connect(Proxy {
        proxy_type: ProxyType::Waypoint,
        ..sidecar("reef", "next-1", "10.1.0.8", &[(GATEWAY_NAME, "next")])
    });
    mesh.touched();
    mesh.apply(
        "
apiVersion: v1
kind: Service
metadata:
  name: coral
  namespace: reef
  labels: {istio.io/use-waypoint-canary: next}
  annotations: {istio.io/use-waypoint-canary-weight: '20'}
spec: {clusterIP: 10.0.0.1, selector: {app: coral}, ports: [{name: http, port: 80}]}
",
    );
    let vip = "inbound-vip|80|http|coral.reef.svc.cluster.local";
    assert_eq!(
        mesh.waypoint_changes(),
        [format!("+Cluster {vip}"), format!("+Endpoint {vip}"), "~Listener main_internal".to_owned()]
    );
}

#[test]
fn a_replica_of_a_waypoint_adds_nothing() {
    let mut mesh = test_mesh();
    mesh.connect(waypoint("wp-2", "10.1.0.10"));
    assert_eq!(mesh.waypoint_changes(), [""; 0]);
}

#[test]
fn without_ambient_mode_a_waypoint_is_not_configured() {
    let mesh = TestGraph::new(REEF);
    mesh.connect(waypoint("wp-1", "10.1.0.9"));
    assert_eq!(mesh.waypoint_names(ResourceType::Listener), [""; 0]);
}

#[test]
fn waypoints_with_made_up_labels_share_one_copy_until_something_selects_a_label() {
    let mut mesh = test_mesh();
    for n in 0..20 {
        let number = n.to_string();
        let labels = [(GATEWAY_NAME, "wp"), ("x", &number)];
        let proxy = sidecar("reef", &format!("made-up-{n}"), &format!("10.2.0.{n}"), &labels);
        mesh.connect(Proxy { proxy_type: ProxyType::Waypoint, ..proxy });
    }
    assert_eq!(mesh.waypoint_changes(), [""; 0], "they have the resources of the first waypoint");
    mesh.apply(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: coral, namespace: reef}
spec:
  host: coral.reef.svc.cluster.local
  workloadSelector: {matchLabels: {x: '7'}}
  trafficPolicy: {connectionPool: {http: {http2MaxRequests: 5}}}
",
    );
    let changes = mesh.waypoint_changes();
    assert!(changes.iter().all(|line| line.starts_with('+')), "{changes:#?}");
    assert!(changes.contains(&"+Cluster inbound-vip|80|http|coral.reef.svc.cluster.local".to_owned()), "{changes:#?}");
    mesh.delete(Kind::DestinationRule, "reef", "coral");
    assert!(mesh.waypoint_changes().iter().all(|line| line.starts_with('-')));
}

#[test]
fn objects_of_the_namespace_of_a_service_select_a_waypoint_without_a_gateway() {
    let mut mesh = test_mesh();
    // A Service of the waypoint that selects it by another label.
    let selecting = "apiVersion: v1\nkind: Service\nmetadata: {name: wp, namespace: reef}\n\
                     spec: {clusterIP: 10.0.0.9, selector: {app: other}, ports: [{name: mesh, port: 15008}]}\n---\n\
                     apiVersion: v1\nkind: Namespace\nmetadata: {name: sand, labels: {istio.io/use-waypoint: wp, \
                     istio.io/use-waypoint-namespace: reef}}\n";
    mesh.apply(selecting);
    let proxy = sidecar("reef", "other", "10.2.0.1", &[("app", "other"), ("x", "7")]);
    mesh.connect(Proxy { proxy_type: ProxyType::Waypoint, ..proxy });
    mesh.touched();
    let policy = |value: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: sand}}\n\
             spec: {{selector: {{matchLabels: {{x: '{value}'}}}}, action: DENY, rules: [{{}}]}}\n"
        )
    };
    mesh.apply(&policy("8"));
    assert_eq!(mesh.waypoint_changes(), [""; 0]);
    mesh.apply(&policy("7"));
    let changes = mesh.waypoint_changes();
    assert!(changes.iter().any(|line| line.contains("Listener main_internal")), "{changes:#?}");
}
