//! Requests to the webhooks that the API server does not send, or whose answer does not depend on it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::kube_api::own;
use crate::kube_suite::webhooks::{HTTPS, WebhookFixture, exchange, exchange_declared, injector, pod, template};

async fn start(injection: Option<Value>, args: &[&str]) -> WebhookFixture {
    WebhookFixture::start(own().await.expect("a server"), injection, args).await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_no_reviews_are_rejected() {
    let mesh = start(None, &[HTTPS]).await;
    for path in ["/inject", "/validate"] {
        let (status, text) = mesh.post(path, br#"{"kind": "Pod", "apiVersion": "v1"}"#).await;
        let review: Value = serde_json::from_str(&text).expect("a review");
        assert_eq!((status, &review["response"]["allowed"]), (200, &json!(false)), "{path}");
        let message = review["response"]["status"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("could not decode body: expected an AdmissionReview"), "{message}");
        assert_eq!(mesh.post(path, b"").await, (400, "no body found\n".to_owned()));
        let other = exchange(mesh.connect().await, path, "text/plain", b"{}").await;
        assert_eq!(other, (415, "invalid Content-Type, want `application/json`\n".to_owned()));
        // The request is refused by its headers.
        let large = exchange_declared(mesh.connect().await, path, "application/json", (9 << 20, b"")).await;
        assert_eq!(large.0, 413, "{path}");
        // A large one within the limit is read.
        let large = format!("{{\"kind\": \"{}\"}}", "x".repeat(7 << 20));
        assert_eq!(mesh.post(path, large.as_bytes()).await.0, 200, "{path}");
    }
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": pod(&json!({}))});
    let without_configuration = mesh.post("/inject", review.to_string().as_bytes()).await;
    assert_eq!(without_configuration, (500, "no valid injection configuration has been read yet\n".to_owned()));
    assert_eq!(mesh.metric("galley_validation_http_error{status=\"415\"}").await, 1.0);
    let ready = exchange(mesh.connect().await, "/ready", "text/plain", b"").await;
    assert_eq!(ready.0, 405, "it is read by GET");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_validated_by_the_rules_of_their_kind() {
    let mesh = start(None, &[HTTPS]).await;
    let request = |group: &str, kind: &str, resource: &str, spec: Value, annotations: Value| {
        json!({
            "uid": "u-1", "operation": "UPDATE", "namespace": "shop", "name": "a", "dryRun": false,
            "resource": {"group": group, "version": "v1", "resource": resource},
            "object": {
                "apiVersion": format!("{group}/v1"), "kind": kind,
                "metadata": {"namespace": "shop", "name": "a", "annotations": annotations}, "spec": spec,
            },
        })
    };
    let networking = "networking.istio.io";
    let servers = json!({"servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]});
    let valid = [
        request(networking, "Gateway", "gateways", servers.clone(), json!({})),
        request(
            networking,
            "ServiceEntry",
            "serviceentries",
            json!({
                "hosts": ["a.example"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "resolution": "DNS",
            }),
            json!({}),
        ),
        request(
            "security.istio.io",
            "PeerAuthentication",
            "peerauthentications",
            json!({"mtls": {"mode": "STRICT"}}),
            json!({}),
        ),
    ];
    for valid in valid {
        let response = mesh.review("/validate", valid).await;
        assert_eq!(response["allowed"], true, "{response}");
    }
    let always = json!({"internal.istio.io/webhook-always-reject": "true"});
    let mut dry_run = request(networking, "Gateway", "gateways", servers.clone(), always);
    dry_run["dryRun"] = json!(true);
    let mut extra = request(networking, "Gateway", "gateways", servers, json!({}));
    extra["object"]["extra"] = json!({});
    let refused = [
        (
            request(networking, "Gateway", "gateways", json!({"servers": []}), json!({})),
            "configuration is invalid: spec.servers",
        ),
        (
            request(networking, "DestinationRule", "destinationrules", json!({}), json!({})),
            "configuration is invalid: spec.host",
        ),
        (
            request(
                "security.istio.io",
                "AuthorizationPolicy",
                "authorizationpolicies",
                json!({"action": "MAYBE"}),
                json!({}),
            ),
            "configuration is invalid: spec.action",
        ),
        (
            request(networking, "Harbor", "harbors", json!({}), json!({})),
            "unrecognized type networking.istio.io/v1/Harbor",
        ),
        (extra, "unknown field \"extra\" on Gateway resource shop/a"),
        (dry_run, "configuration is invalid: \"internal.istio.io/webhook-always-reject\" annotation found, rejecting"),
    ];
    for (refused, message) in refused {
        let response = mesh.review("/validate/path", refused).await;
        assert_eq!(response["allowed"], false, "{message}");
        let found = response["status"]["message"].as_str().unwrap_or_default();
        assert!(found.starts_with(message), "{found}");
    }
    let passed = "galley_validation_passed{group=\"networking.istio.io\",version=\"v1\",resource=\"gateways\"}";
    assert_eq!(mesh.metric(passed).await, 1.0);
    let failed = "galley_validation_failed{group=\"networking.istio.io\",version=\"v1\",resource=\"gateways\",reason=\"invalid_resource\"}";
    assert_eq!(mesh.metric(failed).await, 2.0, "the dry run is not counted");
    let unknown =
        "galley_validation_failed{group=\"other\",version=\"other\",resource=\"other\",reason=\"unknown_type\"}";
    assert_eq!(mesh.metric(unknown).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_with_very_many_elements_are_refused() {
    let mesh = start(None, &[HTTPS]).await;
    let review = |elements: usize| {
        let object = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"namespace": "shop", "name": "a"},
            "spec": {"hosts": ["a.example"], "http": vec![json!({}); elements]},
        });
        let request = json!({"uid": "u-1", "operation": "CREATE", "namespace": "shop", "object": object});
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
    };
    // What is read from the program at the first review is no cost of the large ones.
    assert_eq!(mesh.post("/validate", review(1).as_bytes()).await.0, 200);
    let memory = mesh.server.watch_memory().expect("it runs");
    // The parsed routes would take 240 MB. The JSON values take 32 bytes each.
    let (status, text) = mesh.post("/validate", review(350_000).as_bytes()).await;
    let response: Value = serde_json::from_str(&text).expect("a review");
    assert_eq!((status, &response["response"]["allowed"]), (200, &json!(false)), "{text}");
    let message = response["response"]["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("spec.http: the list has 350000 elements"), "{message}");
    // Not even their JSON is decoded.
    let (status, text) = mesh.post("/validate", review(2_700_000).as_bytes()).await;
    assert_eq!((status, text.starts_with("the request has too many values")), (413, true), "{text}");
    assert_eq!(mesh.metric("galley_validation_http_error{status=\"413\"}").await, 1.0);
    memory.check_growth("reviews with very many elements").expect("bounded memory");
    let deleted = mesh.review("/validate", json!({"uid": "u-1", "operation": "DELETE"})).await;
    assert_eq!(deleted["allowed"], true, "{deleted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_do_not_keep_the_api_server_from_the_webhooks() {
    let args = [HTTPS, "--handshakeTimeout=1s", "--firstRequestTimeout=1s", "--maxPendingConnectionsPerAddress=4"];
    let mesh = start(Some(injector(&template("proxy:one"))), &args).await;
    let address: SocketAddr = mesh.server.https.expect("the port");
    mesh.injects("proxy:one").await;
    let memory = mesh.server.watch_memory().expect("it runs");
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.expect("connect"));
    }
    // The silent ones are closed, those that wait for their turn as well.
    for socket in &mut silent {
        let mut end = [0];
        let _ = tokio::time::timeout(Duration::from_secs(20), socket.read(&mut end)).await.expect("an end");
    }
    mesh.injects("proxy:one").await;
    let mut handshaken = mesh.connect().await;
    let mut end = [0];
    let _ = tokio::time::timeout(Duration::from_secs(20), handshaken.read(&mut end)).await.expect("an end");
    let closed = "sluice_closed_connections{port=\"https\",reason=\"first_request\"}";
    assert_eq!(mesh.metric(closed).await, 1.0);
    assert!(mesh.metric("sluice_closed_connections{port=\"https\",reason=\"handshake\"}").await >= 4.0);
    mesh.injects("proxy:one").await;
    memory.check_growth("silent clients of the webhooks").expect("bounded memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_on_the_http_port_without_an_address_of_their_own() {
    let mesh = start(Some(injector(&template("proxy:one"))), &["--httpsAddr="]).await;
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": pod(&json!({}))});
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stream = TcpStream::connect(mesh.server.http).await.expect("connect");
        let (status, text) = exchange(stream, "/inject", "application/json", body.to_string().as_bytes()).await;
        if status == 200 {
            assert!(text.contains("\"patch\""), "{text}");
            break;
        }
        assert!(status == 500 && Instant::now() < deadline, "{status} {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn injection_follows_the_variables() {
    let answered = async |variable: (&str, &str), wanted: u16| {
        let injection = Some(injector(&template("proxy:one")));
        let api = own().await.expect("a server");
        let mesh = WebhookFixture::start_with(api, injection, &["--httpsAddr="], &[variable]).await;
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": pod(&json!({}))});
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let stream = TcpStream::connect(mesh.server.http).await.expect("connect");
            let (status, text) = exchange(stream, "/inject", "application/json", body.to_string().as_bytes()).await;
            if status == wanted {
                return text;
            }
            assert!(status == 500 && Instant::now() < deadline, "{variable:?}: {status} {text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let patch = |text: &str| {
        let review: Value = serde_json::from_str(text).expect("a review");
        let patch = STANDARD.decode(review["response"]["patch"].as_str().expect("a patch")).expect("base64");
        String::from_utf8(patch).expect("JSON")
    };
    let native = |is_native: bool| format!("\"name\":\"NATIVE\",\"value\":\"{is_native}\"");
    // The cluster has no nodes, so `auto` is the same as `false`.
    let text = answered(("ENABLE_NATIVE_SIDECARS", "true"), 200).await;
    assert!(patch(&text).contains(&native(true)), "{}", patch(&text));
    let text = answered(("ENABLE_NATIVE_SIDECARS", "false"), 200).await;
    assert!(patch(&text).contains(&native(false)), "{}", patch(&text));
    // Then /inject is no page, and other pages are read only.
    answered(("INJECT_ENABLED", "false"), 403).await;
}
