//! What the control plane has to write: statuses of Ingresses, conditions, taints of nodes.

use serde_json::Value;
use sluice_model::{Kind, ObjectKey, Text};

use super::TestGraph;
use crate::{AmbientOptions, GatewayApiOptions, GraphOptions, StatusKey, TaintRemoval, UntaintOptions};

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
    let untaint = UntaintOptions { taint: "other".into(), cni_namespace: "kube-system".into() };
    let options = GraphOptions { untaint: Some(untaint), ..GraphOptions::default() };
    let other = TestGraph::with(options, &(text.concat() + &ready));
    assert_eq!(removals(&other), [("one".to_owned(), vec![1]), ("two".to_owned(), vec![0])]);
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
    let ambient = Some(AmbientOptions::default());
    let options = GraphOptions { ambient, writes_conditions: true, ..GraphOptions::default() };
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
    let update = |namespace: &str| {
        let object = ObjectKey::new("Kubernetes", namespace, "api");
        mesh.get(&updates, &StatusKey { kind: Kind::ServiceEntry, object })
    };
    let condition = |namespace: &str| -> Option<Value> {
        let wanted: Value = serde_json::from_str(&update(namespace)?.wanted).expect("JSON");
        let mut list = wanted.as_array().expect("a list").iter();
        Some(list.find(|it| it["type"] == "istio.io/VisibilityApplied").cloned().unwrap_or_default())
    };
    let reason = |namespace: &str| Some(condition(namespace)?["reason"].as_str().map(str::to_owned));
    assert_eq!([reason("shop"), reason("lab"), reason("hulk")], [None, None, None], "no visibility is configured");
    mesh.apply(&mesh_config(
        "{serviceEntryVisibility: {defaultVisibility: NAMESPACE, policies: [\
         {visibility: PUBLIC, matchingRules: [{namespaceSelector: {matchLabels: {reach: mesh}}}]}, \
         {visibility: NONE, matchingRules: [{namespaceSelector: {matchLabels: {quarantine: yes-please}}}]}]}}",
    ));
    let some = |reason: &str| Some(Some(reason.to_owned()));
    assert_eq!([reason("shop"), reason("lab"), reason("hulk")], [some("Public"), some("Namespace"), None]);
    // It is written, beside a condition of another writer.
    let wanted = condition("shop").expect("a condition");
    let (wanted, message) =
        (wanted["reason"].as_str().expect("a reason"), wanted["message"].as_str().expect("a message"));
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
    assert!(removed.is.contains("VisibilityApplied"), "{removed:?}");
    assert_eq!(removed.wanted.as_str(), r#"[{"status":"True","type":"Other"}]"#);
    assert_eq!(update("lab"), None);
}

/// A Service that uses the waypoint.
const CART_SERVICE: &str = "
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop, labels: {istio.io/use-waypoint: wp}},
 spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}
";

const WAYPOINT: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: IPAddress, value: 10.0.0.9}]}
";

/// The Service as a target.
const CART: &str = "{group: '', kind: Service, name: cart}";

#[test]
fn policy_with_a_target_says_whether_a_waypoint_enforces_it() {
    let ambient = Some(AmbientOptions::default());
    let gateway_api = GatewayApiOptions { waypoints: true, ..GatewayApiOptions::default() };
    let options = GraphOptions { ambient, writes_conditions: true, gateway_api, ..GraphOptions::default() };
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
    let mut mesh = TestGraph::with(options, &policy(CART));
    let key = StatusKey { kind: Kind::AuthorizationPolicy, object: ObjectKey::new("Kubernetes", "shop", "get") };
    let wanted = |mesh: &TestGraph| {
        mesh.engine.flush();
        mesh.get(&mesh.handles.condition_updates, &key).map(|update| update.wanted.to_string()).unwrap_or_default()
    };
    assert!(wanted(&mesh).contains("Service shop/cart was not found"));
    mesh.apply(CART_SERVICE);
    assert!(wanted(&mesh).contains("Service shop/cart is not bound to a waypoint"));
    mesh.apply(WAYPOINT);
    let bound = wanted(&mesh);
    assert!(bound.contains("bound to shop/wp") && bound.contains(r#""observedGeneration":"2""#), "{bound}");
    mesh.changed();
    // The status that is written changes no resource.
    mesh.apply(&format!("{}status: {{conditions: {bound}}}", policy(CART)));
    assert_eq!((wanted(&mesh), mesh.changed()), (String::new(), Vec::new()));
    mesh.apply(&policy(&format!("{CART}, {{group: '', kind: Service, name: other}}")));
    let partly = wanted(&mesh);
    assert!(partly.contains("PartiallyInvalid") && partly.contains("Service.core:shop/other"), "{partly}");
    mesh.apply(&policy("{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}"));
    assert!(wanted(&mesh).contains("must be in the root namespace `istio-system`"));
    mesh.delete(Kind::AuthorizationPolicy, "shop", "get");
    assert_eq!(wanted(&mesh), "");
}

#[test]
fn policy_for_another_class_of_waypoints_is_neither_enforced_nor_accepted() {
    let ambient = Some(AmbientOptions::default());
    let gateway_api = GatewayApiOptions { waypoints: true, ..GatewayApiOptions::default() };
    let options = GraphOptions { ambient, writes_conditions: true, gateway_api, ..GraphOptions::default() };
    let class = |name: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: {name}}}
spec: {{controllerName: istio.io/mesh-controller}}
---"
        )
    };
    let policy = |class: &str| {
        format!(
            "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: all, namespace: istio-system}}
spec: {{targetRefs: [{{group: gateway.networking.k8s.io, kind: GatewayClass, name: {class}}}], action: DENY, rules: [{{}}]}}
"
        )
    };
    let mesh = TestGraph::with(options, &format!("{}{}", class("istio-waypoint"), class("own")));
    let object = ObjectKey::new("Kubernetes", "istio-system", "all");
    let key = StatusKey { kind: Kind::AuthorizationPolicy, object };
    let wanted = |mesh: &TestGraph| {
        mesh.engine.flush();
        let update = mesh.get(&mesh.handles.condition_updates, &key).expect("an update");
        let unenforced = mesh.findings_of(Kind::AuthorizationPolicy, "istio-system", "all");
        (update.wanted.contains(r#""status":"True""#), update.wanted.to_string(), unenforced)
    };
    mesh.apply(&policy("istio-waypoint"));
    let (is_accepted, condition, findings) = wanted(&mesh);
    assert!(is_accepted && findings.is_empty(), "{condition} {findings:?}");
    mesh.apply(&policy("own"));
    let (is_accepted, condition, findings) = wanted(&mesh);
    assert!(!is_accepted && condition.contains("only `istio-waypoint` is supported"), "{condition}");
    assert!(
        findings.iter().any(|finding| finding.contains("GatewayClass `own` is not `istio-waypoint`")),
        "{findings:?}"
    );
}

/// Conditions that are written to an object, as `TYPE STATUS REASON: MESSAGE`; `None` if its status is up to date.
fn written_conditions(mesh: &TestGraph, kind: Kind, name: &str) -> Option<Vec<String>> {
    let key = StatusKey { kind, object: ObjectKey::new("Kubernetes", "shop", name) };
    let update = mesh.get(&mesh.handles.condition_updates, &key)?;
    let wanted: Value = serde_json::from_str(&update.wanted).expect("JSON");
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    let shown = |it: &Value| {
        format!("{} {} {}: {}", text(it, "type"), text(it, "status"), text(it, "reason"), text(it, "message"))
    };
    Some(wanted.as_array().expect("a list").iter().map(shown).collect())
}

#[test]
fn objects_say_whether_their_waypoint_is_used() {
    let ambient = Some(AmbientOptions::default());
    let gateway_api = GatewayApiOptions { waypoints: true, ..GatewayApiOptions::default() };
    let options = GraphOptions { ambient, writes_conditions: true, gateway_api, ..GraphOptions::default() };
    let service = |marks: &str, status: &str| {
        format!(
            "
{{apiVersion: v1, kind: Service, metadata: {{name: cart, namespace: shop, {marks}}},
 spec: {{clusterIP: 10.0.0.1, ports: [{{name: http, port: 80}}]}}, status: {{conditions: [{status}]}}}}
"
        )
    };
    let entry = |labels: &str| {
        format!(
            "
{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: api, namespace: shop, labels: {{{labels}}}}},
 spec: {{hosts: ['*.api.example'], resolution: DYNAMIC_DNS, ports: [{{number: 80, name: http, protocol: HTTP}}]}}}}
"
        )
    };
    let workload = |labels: &str| {
        format!(
            "
{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: vm, namespace: shop, labels: {{{labels}}}}},
 spec: {{address: 10.1.0.1}}}}
"
        )
    };
    let waypoint = |name: &str, traffic: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: shop, labels: {{istio.io/waypoint-for: {traffic}}}}}
spec: {{gatewayClassName: istio-waypoint, listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]}}
status: {{addresses: [{{type: IPAddress, value: 10.0.0.9}}]}}
---"
        )
    };
    let uses = |name: &str| format!("istio.io/use-waypoint: {name}");
    let labels = |labels: &str| format!("labels: {{{labels}}}");
    let mut mesh = TestGraph::with(options, &service(&labels(&uses("wp")), ""));
    let cart = |mesh: &TestGraph| written_conditions(mesh, Kind::Service, "cart").map(|all| all.join("; "));
    let some = |text: &str| Some(text.to_owned());
    let bound = "istio.io/WaypointBound True WaypointAccepted: Successfully attached to waypoint shop/wp";
    let not_ready = "istio.io/WaypointBound False WaypointIsNotReady: waypoint \"shop/wp\" is not ready";
    assert_eq!(cart(&mesh), some(not_ready));
    // An empty name is not that of a waypoint.
    mesh.apply(&service(&labels(&uses("''")), ""));
    assert_eq!(cart(&mesh), some(&not_ready.replace("shop/wp", "shop/")));
    mesh.apply(&service(&labels(&uses("wp")), ""));
    mesh.apply(&waypoint("wp", "service"));
    assert_eq!(cart(&mesh), some(bound));
    // The status that is written changes no resource.
    mesh.changed();
    let other = "{type: Other, status: 'True'}";
    let own = "{type: istio.io/WaypointBound, status: 'True', reason: WaypointAccepted, \
               message: Successfully attached to waypoint shop/wp, lastTransitionTime: '2026-01-01T00:00:00Z'}";
    let stored = format!("{other}, {own}");
    mesh.apply(&service(&labels(&uses("wp")), &stored));
    assert_eq!((cart(&mesh), mesh.changed()), (None, Vec::new()));
    let canary = format!(
        "{}, annotations: {{istio.io/use-waypoint-canary-weight: many}}",
        labels(&format!("{}, istio.io/use-waypoint-canary: next, istio.io/ingress-use-waypoint: 'false'", uses("wp")))
    );
    mesh.apply(&service(&canary, &stored));
    let with_canary = format!(
        "Other True : ; {bound}. Ingress traffic is not using the waypoint, set the istio.io/ingress-use-waypoint label to \
         true if desired.. Canary waypoint not attached: canary waypoint \"shop/next\" has an invalid weight; must be an \
         integer in [0,100]"
    );
    assert_eq!(cart(&mesh), Some(with_canary));
    // Without the label, the condition is removed.
    mesh.apply(&service("labels: {}", &stored));
    assert_eq!(cart(&mesh), some("Other True : "));
    mesh.delete(Kind::Service, "shop", "cart");
    assert_eq!(cart(&mesh), None);

    mesh.apply(&entry(&uses("none")));
    let api = |mesh: &TestGraph| written_conditions(mesh, Kind::ServiceEntry, "api").map(|all| all.join("; "));
    let missing = "istio.io/WaypointMissing True NoWaypointForWildcardService: ServiceEntry will not apply until it is bound \
                   to a valid waypoint.";
    assert_eq!(api(&mesh), some(missing));
    mesh.apply(&entry(&uses("wp")));
    assert_eq!(api(&mesh), some(bound));

    mesh.apply(&workload(&uses("wp")));
    let vm = |mesh: &TestGraph| written_conditions(mesh, Kind::WorkloadEntry, "vm").map(|all| all.join("; "));
    let unsupported = "istio.io/WaypointBound False UnsupportedTrafficType: attempting to bind to traffic type \"workload\" \
                       which the waypoint \"shop/wp\" does not support";
    assert_eq!(vm(&mesh), some(unsupported));
    mesh.apply(&waypoint("wp", "all"));
    assert_eq!(vm(&mesh), some(bound));
    // A waypoint of the namespace may be for services only.
    mesh.apply(&workload(""));
    mesh.apply(&waypoint("wp", "service"));
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/use-waypoint: wp}}}";
    mesh.apply(namespace);
    assert_eq!(vm(&mesh), None);
}

/// A security policy `get` with these targets and, as JSON text, these conditions.
fn security_policy(kind: Kind, targets: &str, conditions: &str) -> String {
    format!(
        "
apiVersion: security.istio.io/v1
kind: {kind}
metadata: {{name: get, namespace: shop, generation: 3}}
spec: {{targetRefs: [{targets}]}}
status: {{conditions: {conditions}}}
---"
    )
}

/// The stored form of the conditions that are written to policy `get`.
fn written_text(mesh: &TestGraph, kind: Kind) -> String {
    let key = StatusKey { kind, object: ObjectKey::new("Kubernetes", "shop", "get") };
    mesh.get(&mesh.handles.condition_updates, &key).expect("an update").wanted.to_string()
}

/// As [`written_conditions`] of policy `get`, in one line.
fn written_line(mesh: &TestGraph, kind: Kind) -> Option<String> {
    mesh.engine.flush();
    written_conditions(mesh, kind, "get").map(|all| all.join("; "))
}

#[test]
fn without_ambient_mode_a_policy_for_waypoints_is_not_accepted_until_its_targets_change() {
    let options = GraphOptions { writes_conditions: true, ..GraphOptions::default() };
    let gateway = "{group: gateway.networking.k8s.io, kind: Gateway, name: door}";
    let entry = "{group: networking.istio.io, kind: ServiceEntry, name: outside}";
    let class = "{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}";
    let refused = |targets: &str| {
        Some(format!(
            "WaypointAccepted False AncestorNotBound: no waypoint enforces the policy for {targets}: ambient mode is off \
             (PILOT_ENABLE_AMBIENT)"
        ))
    };
    for kind in [Kind::AuthorizationPolicy, Kind::RequestAuthentication] {
        let policy = |targets: &str, conditions: &str| security_policy(kind, targets, conditions);
        let mut mesh = TestGraph::with(options.clone(), &policy(gateway, "[]"));
        assert_eq!(written_line(&mesh, kind), None, "{kind}: gateways enforce it");
        for (target, shown) in
            [(CART, "Service shop/cart"), (entry, "ServiceEntry shop/outside"), (class, "GatewayClass istio-waypoint")]
        {
            mesh.apply(&policy(target, "[]"));
            assert_eq!(written_line(&mesh, kind), refused(shown), "{kind}");
        }
        let several = format!("{gateway}, {CART}, {class}");
        mesh.apply(&policy(&several, "[]"));
        assert_eq!(written_line(&mesh, kind), refused("Service shop/cart, GatewayClass istio-waypoint"), "{kind}");
        let stored = written_text(&mesh, kind);
        assert!(stored.contains(r#""observedGeneration":"3""#), "{stored}");
        // The status that is written changes no resource.
        mesh.changed();
        mesh.apply(&policy(&several, &stored));
        assert_eq!((written_line(&mesh, kind), mesh.changed()), (None, Vec::new()), "{kind}");
        // Without such a target, the condition is removed, beside that of another writer.
        let beside = stored.replacen('[', r#"[{"type":"Other","status":"True"},"#, 1);
        for targets in [gateway, ""] {
            mesh.apply(&policy(targets, &beside));
            assert_eq!(written_line(&mesh, kind).as_deref(), Some("Other True : "), "{kind} `{targets}`");
        }
        mesh.apply(&policy("", r#"[{"type":"Other","status":"True"}]"#));
        assert_eq!(written_line(&mesh, kind), None, "{kind}: it is removed");
        // An object of files has no generation.
        mesh.apply(&policy(CART, "[]").replace(", generation: 3", ""));
        assert_eq!(written_line(&mesh, kind), None, "{kind}: no API server has it");
        let off = TestGraph::new(&policy(CART, "[]"));
        assert_eq!(written_line(&off, kind), None, "{kind}: conditions are switched off");
    }
}

#[test]
fn without_ambient_mode_conditions_of_policies_depend_on_policies_for_waypoints_only() {
    let options = GraphOptions { writes_conditions: true, ..GraphOptions::default() };
    let kinds = [Kind::AuthorizationPolicy, Kind::RequestAuthentication];
    let policies = |targets: &str| kinds.map(|kind| security_policy(kind, targets, "[]")).concat();
    // Records that the collections hold and have processed.
    let cost = |mesh: &TestGraph| {
        mesh.engine.flush();
        let is_counted = |name: &str| {
            ["policies_with_status/", "policy_statuses/", "policy_condition_updates"]
                .iter()
                .any(|it| name.starts_with(*it))
        };
        let all = mesh.engine.metrics().collections;
        let counted = all.iter().filter(|collection| is_counted(&collection.name));
        counted.fold((0_i64, 0_u64), |(held, processed), it| (held + it.size, processed + it.records_in))
    };
    let mesh = TestGraph::with(options, &policies(""));
    assert_eq!(cost(&mesh).0, 0, "policies without targets");
    mesh.apply(&policies(CART));
    let before = cost(&mesh);
    assert!(before.0 > 0, "policies with targets");
    mesh.apply(CART_SERVICE);
    mesh.delete(Kind::Service, "shop", "cart");
    assert_eq!(cost(&mesh), before, "Services change");
}

#[test]
fn request_authentication_says_whether_a_waypoint_enforces_it() {
    let kind = Kind::RequestAuthentication;
    let gateway_api = GatewayApiOptions { waypoints: true, ..GatewayApiOptions::default() };
    let options = GraphOptions {
        ambient: Some(AmbientOptions::default()),
        writes_conditions: true,
        gateway_api,
        ..GraphOptions::default()
    };
    let policy = |targets: &str, conditions: &str| security_policy(kind, targets, conditions);
    let mut mesh = TestGraph::with(options, &policy(CART, "[]"));
    let some = |text: &str| Some(text.to_owned());
    let missing = "WaypointAccepted False TargetNotFound: Service shop/cart was not found";
    assert_eq!(written_line(&mesh, kind), some(missing));
    mesh.apply(CART_SERVICE);
    let unbound = "WaypointAccepted False AncestorNotBound: Service shop/cart is not bound to a waypoint";
    assert_eq!(written_line(&mesh, kind), some(unbound));
    mesh.apply(WAYPOINT);
    let bound = "WaypointAccepted True Accepted: bound to shop/wp";
    assert_eq!(written_line(&mesh, kind), some(bound));
    let stored = written_text(&mesh, kind);
    // The status that is written changes no resource.
    mesh.changed();
    mesh.apply(&policy(CART, &stored));
    assert_eq!((written_line(&mesh, kind), mesh.changed()), (None, Vec::new()));
    mesh.apply(&policy("{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}", "[]"));
    let elsewhere = "WaypointAccepted False Invalid: RequestAuthentication must be in the root namespace `istio-system` when \
                     referencing a GatewayClass";
    assert_eq!(written_line(&mesh, kind), some(elsewhere));
    let gateway = |name: &str| format!("{{group: gateway.networking.k8s.io, kind: Gateway, name: {name}}}");
    mesh.apply(&policy(&gateway("wp"), "[]"));
    assert_eq!(written_line(&mesh, kind), some(bound));
    // A Gateway that is no waypoint enforces it, and ztunnel knows no such policies.
    mesh.apply(&policy(&format!("{}, {CART}", gateway("door")), "[]"));
    assert_eq!(written_line(&mesh, kind), some(bound));
    for targets in [gateway("door"), String::new()] {
        mesh.apply(&policy(&targets, "[]"));
        assert_eq!(written_line(&mesh, kind), None, "`{targets}`");
        mesh.apply(&policy(&targets, &stored));
        assert_eq!(written_line(&mesh, kind), some(""), "the condition is removed");
    }
}
