//! `sluicectl experimental metrics` with a server that answers as Prometheus does.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::mesh::run;
use super::port_forward::{ForwardingCluster, serve_pages};

const SYSTEM: &str = "istio-system";
/// The bytes of an answer that no query has.
const HUGE_BYTES: usize = 4 << 20;

/// The query of a request line.
fn query(request: &str) -> Option<String> {
    let (path, parameters) = request.split(' ').nth(1)?.split_once('?')?;
    let mut pairs = form_urlencoded::parse(parameters.as_bytes());
    pairs.find(|(name, _)| path == "/api/v1/query" && name == "query").map(|(_, query)| query.into_owned())
}

fn vector(result: Value) -> String {
    json!({"status": "success", "data": {"resultType": "vector", "result": result}}).to_string()
}

fn sample(value: &str) -> String {
    vector(json!([{"metric": {}, "value": [1_800_000_000.5, value]}]))
}

/// A Prometheus that answers each query with a status and a body.
async fn prometheus(answer: impl Fn(&str) -> (&'static str, String) + Clone + Send + 'static) -> SocketAddr {
    serve_pages(move |request| Some(query(request).map_or(("404 Not Found", String::new()), |query| answer(&query))))
        .await
}

/// Answers about `cart`, for the range of the queries that istioctl sends.
fn answer(query: &str) -> (&'static str, String) {
    let selector = r#"destination_workload=~"cart.*", destination_workload_namespace=~"shop.*",reporter="destination""#;
    let latency = |quantile: &str| {
        format!(
            "histogram_quantile({quantile}, sum(rate(istio_request_duration_milliseconds_bucket{{{selector}}}[1m0s])) by (le))"
        )
    };
    let values = [
        (format!("sum(rate(istio_requests_total{{{selector}}}[1m0s]))"), "0.04"),
        (format!(r#"sum(rate(istio_requests_total{{{selector},response_code=~"[45][0-9]{{2}}"}}[1m0s]))"#), "0.01"),
        (latency("0.500000"), "2.5"),
        (latency("0.900000"), "1500"),
        (latency("0.990000"), "NaN"),
    ];
    let value = values.iter().find(|(known, _)| known == query).map(|(_, value)| *value);
    ("200 OK", value.map_or_else(|| vector(json!([])), sample))
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_and_latencies_are_those_of_prometheus_in_its_pod() {
    let cluster = ForwardingCluster::start().await;
    let metrics = ["experimental", "metrics", "cart.shop", "till.shop"];
    let without = cluster.ctl(&metrics).await;
    assert_eq!((without.code, without.out.as_str()), (1, ""), "{}", without.errors);
    let expected =
        "no running pod in namespace istio-system has the label app.kubernetes.io/name=prometheus; --address";
    assert!(without.errors.contains(expected), "{}", without.errors);

    cluster.api.apply(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": SYSTEM, "name": "prometheus-1", "labels": {"app.kubernetes.io/name": "prometheus"}},
        "spec": {"containers": []},
        "status": {"phase": "Running"},
    }));
    cluster.api.forward_port(SYSTEM, "prometheus-1", 9_090, prometheus(answer).await);
    let printed = cluster.ctl(&metrics).await;
    let expected =
        "                                  WORKLOAD    TOTAL RPS    ERROR RPS  P50 LATENCY  P90 LATENCY  P99 LATENCY
                                 cart.shop        0.040        0.010          2ms         1.5s            -
                                 till.shop        0.000        0.000            -            -            -
";
    assert_eq!((printed.code, printed.out.as_str()), (0, expected), "{}", printed.errors);
    let json = cluster.ctl(&["x", "m", "cart.shop", "-o", "json"]).await.json();
    let expected = json!([{
        "workload": "cart.shop", "requestsPerSecond": 0.04, "errorsPerSecond": 0.01,
        "p50Milliseconds": 2.5, "p90Milliseconds": 1500.0, "p99Milliseconds": null,
    }]);
    assert_eq!(json, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn duration_is_the_range_of_the_queries() {
    let server =
        prometheus(|query| ("200 OK", if query.contains("[1h30m0s]") { sample("7") } else { vector(json!([])) }));
    let address = format!("--address=http://{}", server.await);
    let printed = run(&["x", "metrics", "cart", "--duration", "90m", &address, "-o", "json"]).await;
    assert_eq!(printed.code, 0, "{}", printed.errors);
    assert_eq!(printed.json()[0]["requestsPerSecond"], 7.0);
    for duration in ["0s", "soon", "-1m"] {
        let refused = run(&["x", "metrics", "cart", &format!("--duration={duration}"), &address]).await;
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{duration}: {}", refused.errors);
    }
    let injected = run(&["x", "metrics", r#"cart"} or vector(1) #"#, &address]).await;
    assert_eq!(injected.code, 2, "{}", injected.errors);
    let unnamed = run(&["x", "metrics", &address]).await;
    assert_eq!(unnamed.code, 2, "{}", unnamed.errors);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_none_are_errors_with_the_query() {
    let refusal = json!({"status": "error", "errorType": "execution", "error": "query timed out"}).to_string();
    let huge = format!("{}{}", " ".repeat(HUGE_BYTES), sample("1"));
    let scalar = json!({"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}).to_string();
    for (status, body, expected) in [
        ("503 Service Unavailable", refusal.clone(), "status 503: query timed out"),
        ("400 Bad Request", refusal.clone(), ": query timed out"),
        ("404 Not Found", "404 page not found".to_owned(), "it has no page /api/v1/query"),
        ("200 OK", refusal, ": query timed out"),
        ("200 OK", "<html>".to_owned(), "the answer is no JSON"),
        ("200 OK", scalar, "the answer has no vector"),
        ("200 OK", vector(json!([{"value": [1, {}]}])), "a series without a value"),
        ("200 OK", "[".repeat(100_000), "the answer is no JSON"),
        ("200 OK", huge, "1048576"),
    ] {
        let shown = body.chars().take(40).collect::<String>();
        let address = format!("--address=http://{}", prometheus(move |_| (status, body.clone())).await);
        let refused = run(&["x", "metrics", "cart", &address]).await;
        assert_eq!((refused.code, refused.out.as_str()), (3, ""), "{shown}: {}", refused.errors);
        let is_complete =
            refused.errors.contains(expected) && refused.errors.contains("for the query sum(rate(istio_requests_total");
        assert!(
            is_complete && refused.errors.starts_with("sluicectl: Prometheus at 127.0.0.1:"),
            "{shown}: {}",
            refused.errors
        );
    }
    let unreachable = run(&["x", "metrics", "cart", "--address", "http://127.0.0.1:1"]).await;
    assert_eq!(unreachable.code, 3, "{}", unreachable.errors);
    assert!(unreachable.errors.starts_with("sluicectl: Prometheus at 127.0.0.1:1: "), "{}", unreachable.errors);
}
