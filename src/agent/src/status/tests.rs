use axum::body::Body;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;
use crate::settings::tests::settings;

const LOCAL: &str = "127.0.0.1:999";
const MAPPED: &str = "[::ffff:127.0.0.1]:999";
const REMOTE: &str = "10.0.0.9:999";

fn status(variables: &[(&str, &str)]) -> (Router, ShutdownTokens) {
    let settings = settings("sidecar", variables).expect("settings");
    // No server listens on this port.
    let admin = settings.runs_envoy.then(|| Admin::new("127.0.0.1".to_owned(), 1).expect("a client"));
    let stop = ShutdownTokens::default();
    let metrics = Metrics::default();
    let readiness = Readiness::new(admin.clone(), Vec::new(), None, stop.requested.clone(), metrics.clone());
    let status =
        StatusState::new(&settings, Arc::new(readiness), admin, stop.clone(), None, metrics).expect("a status");
    (router(Arc::new(status)), stop)
}

async fn send(router: &Router, method: &str, path: &str, peer: &str) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
    request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().expect("an address")));
    let response = router.clone().oneshot(request).await.expect("a response");
    let status = response.status();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn quitquitquit_is_accepted_from_the_loopback_by_post_only() {
    let (router, stop) = status(&[]);
    assert_eq!(send(&router, "POST", "/quitquitquit", REMOTE).await.0, StatusCode::FORBIDDEN);
    assert_eq!(send(&router, "GET", "/quitquitquit", LOCAL).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert!(!stop.requested.is_cancelled());
    assert_eq!(send(&router, "POST", "/quitquitquit", MAPPED).await.0, StatusCode::OK);
    assert!(stop.requested.is_cancelled() && stop.at_once.is_cancelled());
}

#[tokio::test]
async fn loopback_pages_are_rejected_for_remote_clients() {
    let (router, stop) = status(&[]);
    for (method, path) in [("POST", "/drain"), ("GET", "/debug/ndsz")] {
        assert_eq!(send(&router, method, path, REMOTE).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(send(&router, "GET", "/debug/ndsz", LOCAL).await, (StatusCode::NOT_FOUND, "{}".to_owned()));
    assert_eq!(send(&router, "POST", "/drain", LOCAL).await.0, StatusCode::BAD_GATEWAY);
    assert!(!stop.at_once.is_cancelled(), "nothing was drained");
}

#[tokio::test]
async fn proxy_is_not_ready_without_envoy_and_unknown_probes_are_rejected() {
    let (router, _) = status(&[]);
    assert_eq!(send(&router, "GET", "/healthz/ready", REMOTE).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(send(&router, "GET", "/app-health/tea/livez", REMOTE).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(send(&router, "GET", "/healthz/ready/../../quitquitquit", LOCAL).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_hold_the_sources_that_respond_and_may_be_limited_to_the_loopback() {
    let (router, _) = status(&[("METRICS_LOCALHOST_ACCESS_ONLY", "true"), ("ENVOY_PROMETHEUS_PORT", "1")]);
    assert_eq!(send(&router, "GET", "/stats/prometheus", REMOTE).await.0, StatusCode::FORBIDDEN);
    let (status, text) = send(&router, "GET", "/stats/prometheus", LOCAL).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("istio_agent_scrapes_total 1"), "{text}");
}

#[tokio::test]
async fn without_envoy_nothing_is_drained_or_scraped() {
    let (router, stop) = status(&[("DISABLE_ENVOY", "true")]);
    assert_eq!(send(&router, "GET", "/healthz/ready", REMOTE).await.0, StatusCode::OK);
    let (status, text) = send(&router, "GET", "/stats/prometheus", LOCAL).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("istio_agent_scrapes_total 1") && !text.contains("scrape_failures"), "{text}");
    assert_eq!(send(&router, "POST", "/drain", LOCAL).await.0, StatusCode::OK);
    assert!(!stop.requested.is_cancelled());
}

/// An application with an HTTP server, behind the agent's probes.
#[tokio::test]
async fn probes_reach_the_application_with_the_kubelets_headers() {
    let application = Router::new()
        .route(
            "/up",
            get(|request: Request| async move {
                (StatusCode::ACCEPTED, request.headers()["x-probe"].to_str().expect("text").to_owned())
            }),
        )
        .route("/moved", get(|| async { (StatusCode::FOUND, [(header::LOCATION, "/up")]) }))
        .route("/away", get(|| async { (StatusCode::FOUND, [(header::LOCATION, "http://elsewhere/")]) }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move { axum::serve(listener, application).await });
    let json = format!(
        r#"{{"/app-health/a/livez": {{"httpGet": {{"path": "up", "port": {port}}}}},
            "/app-health/b/livez": {{"httpGet": {{"path": "/moved", "port": {port}}}}},
            "/app-health/c/livez": {{"httpGet": {{"path": "/away", "port": {port}}}}},
            "/app-health/d/livez": {{"tcpSocket": {{"port": {port}}}}},
            "/app-health/e/livez": {{"tcpSocket": {{"port": 1}}}},
            "/app-health/f/livez": {{"grpc": {{"port": {port}}}}}}}"#
    );
    let (router, _) = status(&[("INSTANCE_IP", "127.0.0.1"), ("ISTIO_KUBE_APP_PROBERS", &json)]);
    let probe = async |container: &str| {
        let path = format!("/app-health/{container}/livez");
        let mut request =
            Request::builder().uri(path).header("x-probe", "kubelet").body(Body::empty()).expect("a request");
        request.extensions_mut().insert(ConnectInfo(REMOTE.parse::<SocketAddr>().expect("an address")));
        let response = router.clone().oneshot(request).await.expect("a response");
        let status = response.status();
        (status, response.into_body().collect().await.expect("a body").to_bytes())
    };
    assert_eq!(probe("a").await, (StatusCode::ACCEPTED, "kubelet".into()));
    assert_eq!(probe("b").await, (StatusCode::ACCEPTED, "kubelet".into()));
    assert_eq!(probe("c").await.0, StatusCode::OK);
    assert_eq!(probe("d").await.0, StatusCode::OK);
    assert_eq!(probe("e").await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(probe("f").await.0, StatusCode::INTERNAL_SERVER_ERROR);
}
