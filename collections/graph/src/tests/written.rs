//! What the control plane has to write: statuses of Ingresses, conditions of ServiceEntries, taints of nodes.

use sluice_model::{Kind, ObjectKey, Text};

use super::TestGraph;
use crate::{
    AmbientOptions, ConditionUpdate, GatewayApiOptions, GraphOptions, StatusKey, TaintRemoval, UntaintOptions,
};

/// A pod on a node.
fn pod(namespace: &str, name: &str, node: &str, label: (&str, &str), phase: &str, ready: bool) -> String {
    let (label, value) = label;
    let status = if ready { "True" } else { "False" };
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{{label}: {value}}}}}
spec: {{nodeName: {node}}}
status: {{phase: {phase}, conditions: [{{type: Ready, status: '{status}'}}]}}
---"
    )
}

fn node(name: &str, taints: &[&str], addresses: &[&str], version: &str) -> String {
    let taints: Vec<String> = taints.iter().map(|key| format!("{{key: {key}, effect: NoSchedule}}")).collect();
    let address = |address: &&str| format!("{{type: ExternalIP, address: '{address}'}}");
    let addresses: Vec<String> = addresses.iter().map(address).collect();
    format!(
        "
apiVersion: v1
kind: Node
metadata: {{name: {name}}}
spec: {{taints: [{}]}}
status: {{addresses: [{}], nodeInfo: {{kubeletVersion: {version}}}}}
---",
        taints.join(", "),
        addresses.join(", ")
    )
}

fn mesh_config(text: &str) -> String {
    format!(
        "
apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data: {{mesh: '{text}'}}
---"
    )
}

#[test]
fn ingress_without_a_service_has_the_addresses_of_the_node_of_a_router() {
    let router = ("istio", "edge");
    let text = [
        mesh_config("{ingressService: \"\", ingressSelector: edge, ingressControllerMode: DEFAULT}"),
        "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop}
spec: {rules: [{host: web.example, http: {paths: []}}]}
---"
        .to_owned(),
        // Neither of the first two counts: the one waits for its node, the node of the other one has no external address.
        pod("istio-system", "a", "one", router, "Pending", false),
        pod("istio-system", "b", "two", router, "Running", true),
        pod("istio-system", "c", "three", router, "Running", false),
        pod("other", "d", "one", router, "Running", true),
        node("one", &[], &["192.0.2.1"], "v1.33.1"),
        node("two", &[], &[], "v1.33.1"),
        node("three", &[], &["192.0.2.9", "192.0.2.3", "192.0.2.9"], "v1.33.1"),
    ];
    let mesh = TestGraph::new(&text.concat());
    let updates = mesh.handles.ingress_status_updates.clone();
    let key = ObjectKey::new("Kubernetes", "shop", "web");
    let wanted = || mesh.get(&updates, &key).map(|update| update.wanted);
    let ip = |ip: &str| (Text::default(), Text::from(ip));
    assert_eq!(wanted(), Some(vec![ip("192.0.2.3"), ip("192.0.2.9")]));
    mesh.apply(&pod("istio-system", "a", "one", router, "Running", false));
    assert_eq!(wanted(), Some(vec![ip("192.0.2.1")]));
    mesh.delete(Kind::Node, "", "one");
    mesh.delete(Kind::Pod, "istio-system", "c");
    assert_eq!(wanted(), None, "the status has no address");
}

#[test]
fn taint_is_removed_once_the_cni_agent_of_the_node_is_ready() {
    let agent = ("k8s-app", "istio-cni-node");
    let untaint = UntaintOptions { taint: "cni.istio.io/not-ready".into(), cni_namespace: "kube-system".into() };
    let options = GraphOptions { untaint: Some(untaint), ..GraphOptions::default() };
    let taints = ["cni.istio.io/not-ready", "other", "cni.istio.io/not-ready"];
    let text = [
        node("one", &taints, &[], "v1.33.1"),
        node("two", &["other"], &[], "v1.33.1"),
        pod("kube-system", "agent-1", "one", agent, "Running", false),
        pod("kube-system", "agent-2", "two", agent, "Running", true),
        // Neither is an agent.
        pod("shop", "agent-1", "one", agent, "Running", true),
        pod("kube-system", "proxy", "one", ("k8s-app", "kube-proxy"), "Running", true),
    ];
    let removals = |mesh: &TestGraph| -> Vec<(String, Vec<usize>)> {
        let now = mesh.engine.snapshot();
        let all = now.iter(&mesh.handles.taint_removals);
        all.map(|(key, TaintRemoval { positions, .. })| (key.name.to_string(), positions.clone())).collect()
    };
    let mesh = TestGraph::with(options, &text.concat());
    assert_eq!(removals(&mesh), []);
    let ready = pod("kube-system", "agent-1", "one", agent, "Running", true);
    mesh.apply(&ready);
    assert_eq!(removals(&mesh), [("one".to_owned(), vec![0, 2])]);
    mesh.apply(&node("one", &["other"], &[], "v1.33.1"));
    assert_eq!(removals(&mesh), []);
    let without = TestGraph::new(&(text.concat() + &ready));
    assert_eq!(removals(&without), [], "the option is not set");
}

#[test]
fn kubelet_versions_change_with_the_first_and_the_last_kubelet_of_a_version() {
    let text = [node("one", &[], &[], "v1.33.1"), node("two", &[], &[], "v1.33.1"), node("old", &[], &[], "v1.32.0")];
    let mut mesh = TestGraph::new(&text.concat());
    let published = mesh.handles.kubelet_versions.clone();
    let versions = |mesh: &TestGraph| mesh.get(&published, &"Kubernetes".into()).unwrap_or_default();
    assert_eq!(versions(&mesh), ["v1.32.0", "v1.33.1"]);
    mesh.feed.try_next();
    mesh.delete(Kind::Node, "", "one");
    let batch = mesh.feed.try_next().expect("the node has changed");
    assert_eq!(batch.events(&published).count(), 0, "another kubelet has the version");
    mesh.delete(Kind::Node, "", "old");
    assert_eq!(versions(&mesh), ["v1.33.1"]);
    mesh.delete(Kind::Node, "", "two");
    assert_eq!(mesh.get(&published, &"Kubernetes".into()), None);
}

#[test]
fn condition_of_a_service_entry_has_its_visibility() {
    let ambient = AmbientOptions { writes_conditions: true, ..AmbientOptions::default() };
    let options = GraphOptions { ambient: Some(ambient), ..GraphOptions::default() };
    let namespace = |name: &str, labels: &str| {
        format!("\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n---")
    };
    let entry = |namespace: &str, conditions: &str| {
        format!(
            "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: api, namespace: {namespace}}}
spec: {{hosts: [api.example], resolution: DNS, ports: [{{number: 80, name: http, protocol: HTTP}}]}}
status: {{conditions: [{conditions}]}}
---"
        )
    };
    let mesh = TestGraph::with(
        options,
        &[
            namespace("shop", "reach: mesh"),
            namespace("lab", ""),
            namespace("hulk", "quarantine: yes-please"),
            entry("shop", ""),
            entry("lab", ""),
            entry("hulk", ""),
        ]
        .concat(),
    );
    let updates = mesh.handles.condition_updates.clone();
    let update = |namespace: &str| mesh.get(&updates, &ObjectKey::new("Kubernetes", namespace, "api"));
    let reason = |namespace: &str| Some(update(namespace)?.wanted.map(|(reason, _)| reason.to_string()));
    assert_eq!([reason("shop"), reason("lab"), reason("hulk")], [None, None, None], "no visibility is configured");
    mesh.apply(&mesh_config(
        "{serviceEntryVisibility: {defaultVisibility: NAMESPACE, policies: [\
         {visibility: PUBLIC, matchingRules: [{namespaceSelector: {matchLabels: {reach: mesh}}}]}, \
         {visibility: NONE, matchingRules: [{namespaceSelector: {matchLabels: {quarantine: yes-please}}}]}]}}",
    ));
    let some = |reason: &str| Some(Some(reason.to_owned()));
    assert_eq!([reason("shop"), reason("lab"), reason("hulk")], [some("Public"), some("Namespace"), None]);
    // It is written, beside a condition of another writer.
    let (wanted, message) = update("shop").and_then(|update| update.wanted).expect("a condition");
    let other = "{type: Other, status: 'True'}";
    let own = format!(
        "{{type: istio.io/VisibilityApplied, status: 'True', reason: {wanted}, message: '{message}', \
         lastTransitionTime: '2026-01-01T00:00:00Z'}}"
    );
    mesh.apply(&entry("shop", &format!("{other}, {own}")));
    assert_eq!(reason("shop"), None);
    mesh.apply(&entry("shop", &format!("{other}, {}", own.replace("status: 'True'", "status: 'False'"))));
    assert_eq!(reason("shop"), some("Public"));
    mesh.apply(&entry("shop", &format!("{other}, {own}")));
    // Without the setting, the condition is removed.
    mesh.apply(&mesh_config("{}"));
    let removed = update("shop").expect("an update");
    assert!(matches!(removed, ConditionUpdate { wanted: None, .. }) && removed.is.contains("Other"), "{removed:?}");
    assert_eq!(update("lab"), None);
}

#[test]
fn policy_with_a_target_says_whether_a_waypoint_enforces_it() {
    let ambient = AmbientOptions { writes_conditions: true, ..AmbientOptions::default() };
    let gateway_api = GatewayApiOptions { waypoints: true, ..GatewayApiOptions::default() };
    let options = GraphOptions { ambient: Some(ambient), gateway_api, ..GraphOptions::default() };
    let service = "
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop, labels: {istio.io/use-waypoint: wp}},
 spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}
";
    let waypoint = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: IPAddress, value: 10.0.0.9}]}
";
    let policy = |targets: &str| {
        format!(
            "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: get, namespace: shop, generation: 2}}
spec: {{targetRefs: [{targets}], rules: [{{to: [{{operation: {{methods: [GET]}}}}]}}]}}
"
        )
    };
    let cart = "{group: '', kind: Service, name: cart}";
    let mut mesh = TestGraph::with(options, &policy(cart));
    let key = StatusKey { kind: Kind::AuthorizationPolicy, object: ObjectKey::new("Kubernetes", "shop", "get") };
    let wanted = |mesh: &TestGraph| {
        mesh.engine.flush();
        mesh.get(&mesh.handles.policy_status_updates, &key).map(|update| update.wanted.to_string()).unwrap_or_default()
    };
    assert!(wanted(&mesh).contains("Service shop/cart was not found"));
    mesh.apply(service);
    assert!(wanted(&mesh).contains("Service shop/cart is not bound to a waypoint"));
    mesh.apply(waypoint);
    let bound = wanted(&mesh);
    assert!(bound.contains("bound to shop/wp") && bound.contains(r#""observedGeneration":"2""#), "{bound}");
    mesh.changed();
    // The status that is written changes no resource.
    mesh.apply(&format!("{}status: {bound}", policy(cart)));
    assert_eq!((wanted(&mesh), mesh.changed()), (String::new(), Vec::new()));
    mesh.apply(&policy(&format!("{cart}, {{group: '', kind: Service, name: other}}")));
    let partly = wanted(&mesh);
    assert!(partly.contains("PartiallyInvalid") && partly.contains("Service.core:shop/other"), "{partly}");
    mesh.apply(&policy("{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}"));
    assert!(wanted(&mesh).contains("must be in the root namespace `istio-system`"));
    mesh.delete(Kind::AuthorizationPolicy, "shop", "get");
    assert_eq!(wanted(&mesh), "");
}
