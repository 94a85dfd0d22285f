//! `describe` and `experimental authz check`.

use serde_json::Value;
use sluice_testkit::wait::until_async;

use super::mesh::{AnswersFixture, run};

/// Policies of the namespace of `ratings`, and a Gateway that exposes it.
const POLICIES: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: shop, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: ratings, namespace: shop}
spec: {selector: {matchLabels: {app: ratings}}, portLevelMtls: {9090: {mode: DISABLE}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: shop}
spec:
  action: DENY
  rules: [{to: [{operation: {paths: [/admin*]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: bank-only, namespace: shop}
spec:
  selector: {matchLabels: {app: ratings}}
  rules: [{from: [{source: {namespaces: [bank]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: of-others, namespace: shop}
spec: {selector: {matchLabels: {app: cart}}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: not-read, namespace: hidden}
spec: {}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: logs, namespace: shop}
spec: {accessLogging: [{providers: [{name: envoy}]}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec:
  selector: {app: door}
  servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: [shop.example]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: door, namespace: shop}
spec:
  hosts: [shop.example]
  gateways: [door]
  http:
  - match: [{uri: {prefix: /ratings}}]
    route: [{destination: {host: ratings}}]
";

async fn mesh() -> AnswersFixture {
    let mesh = AnswersFixture::start().await;
    std::fs::write(mesh.directory.path().join("policies.yaml"), POLICIES).expect("written");
    mesh.answer(&["wait", "VirtualService/shop/door", "--for", "applied"]).await;
    mesh.answer(&["wait", "Telemetry/shop/logs", "--for", "applied"]).await;
    mesh
}

fn objects(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().filter_map(|it| it["object"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_is_described_with_everything_that_acts_on_it() {
    let mesh = mesh().await;
    let answer = mesh.answer(&["describe", "pod", "ratings-1.shop"]).await;
    assert_eq!((&answer["pod"], &answer["connected"]), (&"ratings-1.shop".into(), &false.into()));
    let service = &answer["services"][0];
    assert_eq!(service["service"], "ratings.shop");
    let rule = &service["destinationRule"];
    assert_eq!(rule["object"]["object"], "DestinationRule/shop/ratings");
    assert_eq!((&rule["matchingSubsets"][0], &rule["otherSubsets"][0]), (&"v1".into(), &"v2".into()));
    let routes = service["virtualServices"].as_array().expect("a list");
    let names: Vec<_> = routes.iter().filter_map(|it| it["object"]["object"].as_str()).collect();
    assert!(names.contains(&"VirtualService/shop/ratings") && names.contains(&"VirtualService/shop/door"), "{names:?}");
    let second = routes.iter().find(|it| it["object"]["object"] == "VirtualService/shop/ratings-second");
    assert_eq!(second.expect("it is of the same host")["shadowedBy"], "VirtualService/shop/ratings");
    assert_eq!(service["gateways"][0]["object"]["object"], "Gateway/shop/door");
    let peers = &answer["peerAuthentication"];
    assert_eq!((&peers["mode"], &peers["ports"]["9090"]), (&"STRICT".into(), &"DISABLE".into()));
    assert_eq!(
        peers["source"]["object"], "PeerAuthentication/shop/shop",
        "the policy of the workload declares no mode"
    );
    assert_eq!(objects(&peers["applied"]), ["PeerAuthentication/shop/ratings", "PeerAuthentication/shop/shop"]);
    let policies = ["AuthorizationPolicy/shop/bank-only", "AuthorizationPolicy/shop/no-admin"];
    assert_eq!(objects(&answer["authorizationPolicies"]), policies);
    assert_eq!(objects(&answer["extensions"]), ["Telemetry/shop/logs"]);

    let text = mesh.ctl(&["x", "describe", "pod", "ratings-1", "-n", "shop"]).await;
    for line in [
        "Pod: ratings-1.shop",
        "Service: ratings",
        "   Port: http 80/HTTP targets pod port 80",
        "DestinationRule: ratings for \"ratings.shop.svc.cluster.local\"",
        "   Matching subsets: v1",
        "      (Non-matching subsets v2)",
        "VirtualService: ratings",
        "   Workload mTLS mode: STRICT",
        "      9090: DISABLE",
        "   DENY: no-admin.shop (1 rule)",
        "Telemetry: logs.shop",
        "Gateway: door",
    ] {
        assert!(text.out.lines().any(|printed| printed == line), "{line}:\n{}", text.out);
    }
    assert!(text.out.contains("   Server: 8080/HTTP for "), "{}", text.out);
    assert!(text.out.contains("WARNING: ratings-1.shop is not part of mesh"), "{}", text.out);
    let lenient = mesh.ctl(&["describe", "pod", "ratings-1.shop", "--ignoreUnmeshed"]).await;
    assert!(!lenient.out.contains("not part of mesh"), "{}", lenient.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_is_described_with_its_pods() {
    let mesh = mesh().await;
    let answer = mesh.answer(&["describe", "service", "ratings.shop"]).await;
    assert_eq!(
        (&answer["pods"][0], &answer["host"]),
        (&"ratings-1.shop".into(), &"ratings.shop.svc.cluster.local".into())
    );
    assert_eq!(answer["mutualTls"]["STRICT"][0], "ratings-1.shop");
    let yaml = mesh.ctl(&["describe", "svc", "ratings", "-n", "shop", "-o", "yaml"]).await;
    assert!(yaml.out.contains("service: ratings.shop"), "{}{}", yaml.out, yaml.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_pod_and_service_are_reported_with_similar_names() {
    let mesh = mesh().await;
    let pod = mesh.ctl(&["describe", "pod", "rating-1.shop"]).await;
    assert_eq!(pod.code, 1, "{}", pod.out);
    assert!(pod.errors.contains("did you mean \"ratings-1.shop\"?"), "{}", pod.errors);
    let service = mesh.ctl(&["describe", "service", "rating.shop"]).await;
    assert_eq!(service.code, 1, "{}", service.out);
    assert!(service.errors.contains("ratings.shop"), "{}", service.errors);
    assert_eq!(mesh.ctl(&["describe", "job", "x"]).await.code, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_decide_about_a_request() {
    let mesh = mesh().await;
    let ask = async |arguments: &[&str]| {
        let server = format!("--server=http://{}", mesh.server.http);
        run(&[&["x", "authz", "check", "ratings-1.shop", &server], arguments].concat()).await
    };
    let of_bank = ["--source-namespace", "bank"];
    let allowed = ask(&[&["--request", "GET /"], &of_bank[..], &["-o", "json"]].concat()).await;
    assert_eq!(allowed.code, 0, "{}{}", allowed.out, allowed.errors);
    let answer = allowed.json();
    assert_eq!(answer["decision"], "ALLOW");
    assert_eq!(answer["decidedBy"]["object"], "AuthorizationPolicy/shop/bank-only");
    assert!(
        answer["decidedBy"]["source"].as_str().is_some_and(|source| source.contains("/policies.yaml:")),
        "{answer}"
    );
    assert_eq!((&answer["decidedBy"]["rule"], &answer["policies"]), (&"spec.rules[0]".into(), &2.into()));
    let denied = ask(&[&["--request", "POST /admin/x"], &of_bank[..]].concat()).await;
    assert_eq!(denied.code, 4, "{}{}", denied.out, denied.errors);
    assert!(denied.out.starts_with("DENY: spec.rules[0] of AuthorizationPolicy/shop/no-admin"), "{}", denied.out);
    let by_default = ask(&["--request", "GET /", "--source-principal", "cluster.local/ns/shop/sa/x"]).await;
    assert_eq!(by_default.code, 4);
    assert!(by_default.out.contains("there are ALLOW policies, and no rule of them matches"), "{}", by_default.out);
    let plaintext = ask(&["--request", "GET /"]).await;
    assert!(plaintext.out.contains("mutual TLS only"), "{}", plaintext.out);
    let at_port = ask(&["--request", "GET /", "--port", "9090"]).await;
    assert!(at_port.out.contains("port 9090: DISABLE") && !at_port.out.contains("mutual TLS only"), "{}", at_port.out);
    for (arguments, code) in [
        (&["--request", "nothing"][..], 2),
        (&["--request", "GET /", "--source-ip", "x"], 2),
        (&["--request", "GET /", "--header", "without-a-value"], 2),
        (&["--host", "without-a-request"], 2),
    ] {
        assert_eq!(ask(arguments).await.code, code, "{arguments:?}");
    }
}

/// A waypoint of the service `tea`, whose pod is in the ambient mesh, and the policies of both.
const WAYPOINT: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: cafe, labels: {mesh: \"on\"}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: cafe}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
status: {addresses: [{type: IPAddress, value: 10.0.0.9}]}
---
apiVersion: v1
kind: Pod
metadata: {name: door-1, namespace: cafe, labels: {gateway.networking.k8s.io/gateway-name: door}}
spec: {serviceAccountName: door, containers: [{name: istio-proxy}]}
status: {phase: Running, podIP: 10.1.7.1}
---
apiVersion: v1
kind: Service
metadata: {name: tea, namespace: cafe, labels: {istio.io/use-waypoint: door}}
spec: {clusterIP: 10.9.7.1, selector: {app: tea}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: tea-1, namespace: cafe, labels: {app: tea}, annotations: {ambient.istio.io/redirection: enabled}}
spec: {containers: [{name: app, ports: [{containerPort: 8080}]}]}
status: {phase: Running, podIP: 10.1.7.2}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: menu, namespace: cafe}
spec:
  targetRefs: [{group: '', kind: Service, name: tea}]
  rules: [{from: [{source: {namespaces: [shop]}}], to: [{operation: {paths: [/menu]}}]}]
---
";

/// The pod accepts a client only.
fn only(account: &str) -> String {
    format!(
        "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: pod, namespace: cafe}}
spec:
  selector: {{matchLabels: {{app: tea}}}}
  rules: [{{from: [{{source: {{principals: [cluster.local/ns/cafe/sa/{account}]}}}}]}}]
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_a_waypoint_decide_about_a_request() {
    let ambient = vec![("PILOT_ENABLE_AMBIENT".to_owned(), "true".to_owned())];
    let mesh = AnswersFixture::with_variables(ambient).await;
    mesh.add_file("waypoint.yaml", &(WAYPOINT.to_owned() + &only("door")));
    mesh.answer(&["wait", "AuthorizationPolicy/cafe/pod", "--for", "applied"]).await;
    let ask = async |path: &str, arguments: &[&str]| {
        let server = format!("--server=http://{}", mesh.server.http);
        let request = format!("GET {path}");
        let asked = ["x", "authz", "check", "tea-1.cafe", &server, "--request", &request];
        run(&[&asked[..], &["--source-namespace", "shop"], arguments].concat()).await
    };
    // The pod itself accepts its waypoint only. With the host, the request passes through the waypoint.
    let direct = ask("/menu", &["-o", "json"]).await;
    assert_eq!((direct.code, &direct.json()["decision"]), (4, &"DENY".into()), "{}{}", direct.out, direct.errors);
    let through = &direct.json()["waypoints"];
    assert_eq!((&through[0]["waypoint"], &through[0]["service"]), (&"cafe/door".into(), &"tea.cafe".into()));
    assert_eq!((&through[0]["decision"], &through[0]["policies"]), (&"ALLOW".into(), &1.into()), "{through}");
    let allowed = ask("/menu", &["--host", "tea.cafe:80", "-o", "json"]).await;
    assert_eq!(allowed.code, 0, "{}{}", allowed.out, allowed.errors);
    assert_eq!(allowed.json()["decidedBy"]["object"], "AuthorizationPolicy/cafe/menu");
    let denied = ask("/orders", &["--host", "tea.cafe"]).await;
    assert_eq!(denied.code, 4, "{}", denied.out);
    let line =
        "   Through waypoint cafe/door of tea.cafe: DENY: there are ALLOW policies, and no rule of them matches\n";
    assert!(denied.out.contains(line), "{}", denied.out);
    let elsewhere = ask("/menu", &["--host", "ratings.shop", "-o", "json"]).await;
    assert_eq!((elsewhere.code, &elsewhere.json()["waypoints"]), (4, &Value::Null), "another service");
    // What the waypoint allows, the pod denies.
    mesh.add_file("waypoint.yaml", &(WAYPOINT.to_owned() + &only("other")));
    let refused = until_async("the pod denies the request", async || {
        let asked = ask("/menu", &["--host", "tea.cafe"]).await;
        (asked.code == 4).then_some(asked)
    })
    .await;
    assert!(refused.out.contains("deny its identity spiffe://cluster.local/ns/cafe/sa/door"), "{}", refused.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_a_dump_are_listed() {
    let mesh = mesh().await;
    let rbac = serde_json::json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
        "rules": {"action": "DENY", "policies": {"ns[shop]-policy[no-admin]-rule[0]": {}}},
    });
    let dump = serde_json::json!({"configs": [{
        "@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
        "dynamic_listeners": [{"name": "virtualInbound", "active_state": {"listener": {
            "@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "virtualInbound",
            "filter_chains": [{"filters": [{"name": "envoy.filters.network.rbac", "typed_config": rbac}]}],
        }}}],
    }]});
    let file = mesh.directory.path().join("dump.txt");
    std::fs::write(&file, dump.to_string()).expect("written");
    let table = run(&["x", "authz", "check", "--file", file.to_str().expect("UTF-8")]).await;
    assert_eq!(table.code, 0, "{}", table.errors);
    assert_eq!(table.out, "ACTION   AuthorizationPolicy   RULES\nDENY     no-admin.shop         1\n");
}
