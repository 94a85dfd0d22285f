use axum::body::Body;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;
use crate::settings::tests::settings;

const LOCAL: &str = "127.0.0.1:999";
const MAPPED: &str = "[::ffff:127.0.0.1]:999";
const OTHER: &str = "10.0.0.9:999";

fn status(variables: &[(&str, &str)]) -> (Router, Stop) {
    let settings = settings("sidecar", variables).expect("settings");
    // Nobody listens there.
    let admin = Admin { host: "127.0.0.1".to_owned(), port: 1 };
    let stop = Stop::default();
    let metrics = Metrics::default();
    let readiness = Readiness::new(admin.clone(), None, stop.requested.clone(), metrics.clone());
    let status = Status::new(&settings, Arc::new(readiness), admin, stop.clone(), None, metrics).expect("a status");
    (router(Arc::new(status)), stop)
}

async fn ask(router: &Router, method: &str, path: &str, peer: &str) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
    request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().expect("an address")));
    let response = router.clone().oneshot(request).await.expect("an answer");
    let status = response.status();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn only_the_loopback_may_end_it_and_only_by_post() {
    let (router, stop) = status(&[]);
    assert_eq!(ask(&router, "POST", "/quitquitquit", OTHER).await.0, StatusCode::FORBIDDEN);
    assert_eq!(ask(&router, "GET", "/quitquitquit", LOCAL).await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert!(!stop.requested.is_cancelled());
    assert_eq!(ask(&router, "POST", "/quitquitquit", MAPPED).await.0, StatusCode::OK);
    assert!(stop.requested.is_cancelled() && stop.at_once.is_cancelled());
}

#[tokio::test]
async fn what_is_for_the_loopback_is_refused_to_others() {
    let (router, stop) = status(&[]);
    for (method, path) in [("POST", "/drain"), ("GET", "/debug/ndsz")] {
        assert_eq!(ask(&router, method, path, OTHER).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(ask(&router, "GET", "/debug/ndsz", LOCAL).await, (StatusCode::NOT_FOUND, "{}".to_owned()));
    assert_eq!(ask(&router, "POST", "/drain", LOCAL).await.0, StatusCode::BAD_GATEWAY);
    assert!(!stop.at_once.is_cancelled(), "nothing was drained");
}

#[tokio::test]
async fn nothing_is_ready_without_envoy_and_unknown_probes_are_refused() {
    let (router, _) = status(&[]);
    assert_eq!(ask(&router, "GET", "/healthz/ready", OTHER).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask(&router, "GET", "/app-health/tea/livez", OTHER).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(&router, "GET", "/healthz/ready/../../quitquitquit", LOCAL).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_are_those_that_can_be_had_and_may_be_for_the_loopback_only() {
    let (router, _) = status(&[("METRICS_LOCALHOST_ACCESS_ONLY", "true"), ("ENVOY_PROMETHEUS_PORT", "1")]);
    assert_eq!(ask(&router, "GET", "/stats/prometheus", OTHER).await.0, StatusCode::FORBIDDEN);
    let (status, text) = ask(&router, "GET", "/stats/prometheus", LOCAL).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("istio_agent_scrapes_total 1"), "{text}");
}

/// An application with an HTTP server, behind the agent's probes.
#[tokio::test]
async fn probes_reach_the_application_with_the_headers_of_the_kubelet() {
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
        request.extensions_mut().insert(ConnectInfo(OTHER.parse::<SocketAddr>().expect("an address")));
        let response = router.clone().oneshot(request).await.expect("an answer");
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
