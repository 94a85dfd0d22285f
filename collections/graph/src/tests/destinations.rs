use sluice_model::{Proxy, ProxyKey, ResourceType};

use super::{TestGraph, sidecar};

const SHOP: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.0.0.1, selector: {app: cart}, ports: [{name: http, port: 80}, {name: tcp-raw, port: 90}]}
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {clusterIP: 10.0.0.2, selector: {app: stock}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cart-1, namespace: shop, labels: {app: cart, version: v1}}
spec: {serviceAccountName: cart}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cart-2, namespace: shop, labels: {app: cart, version: v2}}
spec: {serviceAccountName: cart}
status: {phase: Running, podIP: 10.1.0.2, conditions: [{type: Ready, status: 'True'}]}
";

fn slice(addresses: &[&str]) -> String {
    let endpoints: Vec<String> = addresses
        .iter()
        .map(|address| {
            let pod = address.rsplit('.').next().unwrap_or_default();
            format!(
                "- {{addresses: [{address}], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: cart-{pod}, namespace: shop}}}}"
            )
        })
        .collect();
    format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: cart-a, namespace: shop, labels: {{kubernetes.io/service-name: cart}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints:
{}
",
        endpoints.join("\n")
    )
}

fn rule(namespace: &str, spec: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: cart, namespace: {namespace}}}
spec: {spec}
"
    )
}

fn shop() -> TestGraph {
    let mut mesh = TestGraph::new(&format!("{SHOP}---{}", slice(&["10.1.0.1"])));
    mesh.connect(sidecar("shop", "stock-1", "10.1.1.1", &[("app", "stock")]));
    mesh.connect(sidecar("other", "else-1", "10.1.2.1", &[]));
    mesh.changed();
    mesh
}

#[test]
fn an_endpoint_change_writes_the_assignments_of_its_port() {
    let mut mesh = shop();
    mesh.apply(&slice(&["10.1.0.1", "10.1.0.2"]));
    assert_eq!(
        mesh.changed(),
        [
            "~endpoint_assignments base outbound|80||cart.shop.svc.cluster.local",
            "~endpoints shop/cart.shop.svc.cluster.local",
        ]
    );
}

#[test]
fn a_rule_writes_the_clusters_of_its_host() {
    let mut mesh = shop();
    let host = "cart.shop.svc.cluster.local";
    mesh.apply(&rule("shop", &format!("{{host: {host}, subsets: [{{name: v1, labels: {{version: v1}}}}]}}")));
    assert_eq!(
        mesh.changed(),
        [
            "+clusters/outbound base outbound|80|v1|cart.shop.svc.cluster.local",
            "+clusters/outbound base outbound|90|v1|cart.shop.svc.cluster.local",
            "+endpoint_assignments base outbound|80|v1|cart.shop.svc.cluster.local",
            "+endpoint_assignments base outbound|90|v1|cart.shop.svc.cluster.local",
            "~clusters/outbound base outbound|80||cart.shop.svc.cluster.local",
            "~clusters/outbound base outbound|90||cart.shop.svc.cluster.local",
        ]
    );
    // An endpoint outside the subset does not touch it.
    mesh.apply(&slice(&["10.1.0.1", "10.1.0.2"]));
    assert_eq!(
        mesh.changed(),
        [
            "~endpoint_assignments base outbound|80||cart.shop.svc.cluster.local",
            "~endpoints shop/cart.shop.svc.cluster.local",
        ]
    );
    // An object with the same meaning is no change.
    mesh.apply(&rule(
        "shop",
        &format!("{{host: {host}, exportTo: ['*'], subsets: [{{name: v1, labels: {{version: v1}}}}]}}"),
    ));
    assert_eq!(mesh.changed(), Vec::<String>::new());
}

#[test]
fn a_change_of_a_rule_reaches_only_what_reads_the_changed_part() {
    let mut mesh = shop();
    mesh.connect(Proxy { grpc: true, ..sidecar("shop", "grpc", "10.1.1.2", &[]) });
    let host = "cart.shop.svc.cluster.local";
    let policy = |policy: &str| rule("shop", &format!("{{host: {host}, trafficPolicy: {{{policy}}}}}"));
    mesh.apply(&policy("connectionPool: {http: {http1MaxPendingRequests: 7}}"));
    mesh.changed();
    // The derivations that run for the host, of those that read rules.
    const READERS: [&str; 6] = [
        "clusters/outbound",
        "endpoint_assignments",
        "listeners/grpc-clients",
        "listeners/shares",
        "name_tables/entries",
        "routes/virtual-hosts",
    ];
    let runs = |mesh: &TestGraph| {
        let collections = mesh.engine.metrics().collections;
        READERS.map(|name| collections.iter().find(|it| it.name == name).expect(name).records_in)
    };
    let mut reached = |policy_text: &str| {
        let before = runs(&mesh);
        mesh.apply(&policy(policy_text));
        mesh.engine.flush();
        let after = runs(&mesh);
        let readers = READERS.iter().zip(before.iter().zip(&after)).filter(|(_, (before, after))| before != after);
        (readers.map(|(name, _)| *name).collect::<Vec<_>>(), mesh.changed())
    };
    let clusters = [80, 90].map(|port| format!("~clusters/outbound base outbound|{port}||{host}"));
    let (readers, changed) = reached("connectionPool: {http: {http1MaxPendingRequests: 8}}");
    assert_eq!((readers, changed), (vec!["clusters/outbound"], clusters.to_vec()));
    let (readers, _) = reached("connectionPool: {tcp: {idleTimeout: 9s}}");
    assert_eq!(readers, ["clusters/outbound", "listeners/shares"]);
    let (readers, _) = reached("outlierDetection: {consecutive5xxErrors: 5}");
    assert_eq!(readers, ["clusters/outbound", "endpoint_assignments", "listeners/shares"]);
    let (readers, _) = reached("loadBalancer: {consistentHash: {httpHeaderName: user}}");
    assert_eq!(readers, ["clusters/outbound", "endpoint_assignments", "listeners/shares", "routes/virtual-hosts"]);
}

#[test]
fn a_new_rule_reaches_only_what_reads_its_parts() {
    let mut mesh = shop();
    let host = "cart.shop.svc.cluster.local";
    let whole = |policy: &str| rule("istio-system", &format!("{{host: '*.local', trafficPolicy: {{{policy}}}}}"));
    let runs = |mesh: &TestGraph| {
        let collections = mesh.engine.metrics().collections;
        ["clusters/outbound", "endpoint_assignments"]
            .map(|name| collections.iter().find(|it| it.name == name).expect(name).records_in)
    };
    let before = runs(&mesh);
    let pool = "connectionPool: {tcp: {maxConnections: 7}}";
    mesh.apply(&whole(pool));
    mesh.engine.flush();
    let after = runs(&mesh);
    assert!(before[0] < after[0]);
    assert_eq!(before[1], after[1]);
    let changed = mesh.changed();
    assert!(changed.contains(&format!("~clusters/outbound base outbound|80||{host}")), "{changed:?}");
    // Where another rule orders endpoints, the precedence of a rule without such a part matters: it hides the other one.
    let orders = |namespace: &str, host: &str| {
        rule(
            namespace,
            &format!("{{host: '{host}', trafficPolicy: {{outlierDetection: {{consecutive5xxErrors: 5}}}}}}"),
        )
    };
    for (namespace, covering, is_relevant) in [
        ("istio-system", "*.shop.svc.cluster.local", true),
        ("istio-system", "*.other", false),
        ("istio-system", "*", true),
    ] {
        let mesh = shop();
        mesh.apply(&orders(namespace, covering));
        let before = runs(&mesh);
        mesh.apply(&rule("shop", &format!("{{host: {host}, trafficPolicy: {{{pool}}}}}")));
        mesh.engine.flush();
        assert_eq!(before[1] < runs(&mesh)[1], is_relevant, "{covering}");
    }
}

#[test]
fn a_rule_for_selected_clients_writes_only_their_differences() {
    let mut mesh = shop();
    let host = "cart.shop.svc.cluster.local";
    let policy = "trafficPolicy: {portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: RANDOM}}]}";
    mesh.apply(&rule("other", &format!("{{host: {host}, {policy}}}")));
    assert_eq!(
        mesh.changed(),
        [
            "+clusters/outbound namespace:other outbound|80||cart.shop.svc.cluster.local",
            // The rule is named in the metadata of every port's cluster.
            "+clusters/outbound namespace:other outbound|90||cart.shop.svc.cluster.local",
        ]
    );
    mesh.delete(sluice_model::Kind::DestinationRule, "other", "cart");
    assert_eq!(
        mesh.changed(),
        [
            "-clusters/outbound namespace:other outbound|80||cart.shop.svc.cluster.local",
            "-clusters/outbound namespace:other outbound|90||cart.shop.svc.cluster.local",
        ]
    );
}

#[test]
fn a_policy_that_forbids_mutual_tls_writes_the_clusters_of_its_namespace() {
    let mut mesh = shop();
    mesh.apply(
        "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: plain, namespace: shop}
spec: {mtls: {mode: DISABLE}}
",
    );
    let changed: Vec<String> = mesh.changed().into_iter().filter(|line| line.contains("clusters/")).collect();
    assert_eq!(
        changed,
        [
            "~clusters/outbound base outbound|80||cart.shop.svc.cluster.local",
            "~clusters/outbound base outbound|80||stock.shop.svc.cluster.local",
            "~clusters/outbound base outbound|90||cart.shop.svc.cluster.local",
        ]
    );
}

#[test]
fn a_workload_follows_its_rule_on_its_own_port() {
    let mut mesh = shop();
    let host = "stock.shop.svc.cluster.local";
    mesh.apply(&rule(
        "shop",
        &format!("{{host: {host}, trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: 7}}}}}}}}"),
    ));
    let changed = mesh.changed();
    assert_eq!(changed.len(), 2, "{changed:?}");
    assert!(changed[0].starts_with("~clusters/inbound workload:shop#"), "{changed:?}");
    assert!(changed[0].ends_with(" inbound|80||"), "{changed:?}");
    assert_eq!(changed[1], "~clusters/outbound base outbound|80||stock.shop.svc.cluster.local");
}

#[test]
fn a_gateway_between_networks_replaces_the_endpoints_of_its_network() {
    let mut mesh = shop();
    mesh.apply(
        "
apiVersion: v1
kind: Service
metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: far}}
spec: {type: LoadBalancer, clusterIP: 10.0.0.9, ports: [{name: tls, port: 15443}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}]}}
",
    );
    let changed = mesh.changed();
    // A single gateway changes no weight, and no endpoint is on its network yet.
    assert!(!changed.iter().any(|line| line.contains("cart") || line.contains("stock")), "{changed:?}");
    mesh.apply(
        "
apiVersion: v1
kind: Pod
metadata:
  name: cart-1
  namespace: shop
  labels: {app: cart, version: v1, topology.istio.io/network: far, security.istio.io/tlsMode: istio}
spec: {serviceAccountName: cart}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
",
    );
    let changed = mesh.changed();
    assert!(
        changed.contains(&"~endpoint_assignments base outbound|80||cart.shop.svc.cluster.local".to_owned()),
        "{changed:?}"
    );
}

#[test]
fn clients_in_unknown_networks_and_clusters_are_alike_until_an_endpoint_is_there() {
    let mesh = shop();
    let connect = |name: &str, ip: &str, location: &str| {
        let proxy = sidecar("shop", name, ip, &[]);
        mesh.connect(Proxy { network: location.into(), cluster: location.into(), ..proxy })
    };
    let (far, farther) = (connect("a", "10.9.1.1", "far"), connect("b", "10.9.1.2", "farther"));
    let layers = |key: &ProxyKey| {
        mesh.engine.flush();
        let scope = mesh.get(&mesh.handles.scopes, key).expect("a scope");
        let kinds = [ResourceType::Cluster, ResourceType::Endpoint, ResourceType::Route, ResourceType::NameTable];
        kinds.map(|kind| scope.layers.get(&kind).cloned())
    };
    assert_eq!(layers(&far), layers(&farther));
    let own = mesh.connect(sidecar("shop", "c", "10.9.1.3", &[]));
    assert_ne!(layers(&far), layers(&own), "the cluster of the control plane is known");
    mesh.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: cart-1, namespace: shop, labels: {app: cart, version: v1, topology.istio.io/network: far}}
spec: {serviceAccountName: cart}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
",
    );
    let (now_known, unknown) = (layers(&far), layers(&farther));
    assert_ne!(now_known, unknown);
    let [_, endpoints, ..] = now_known;
    let profile = endpoints.and_then(|layers| layers.first().map(|layer| layer.profile.clone())).expect("a layer");
    assert!(profile.contains(r#""network":"far""#), "{profile}");
}
