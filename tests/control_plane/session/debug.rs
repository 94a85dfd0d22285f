//! The debug pages over HTTP, by the address and the identity of the caller (O09).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Method, Request, Response, StatusCode};
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use prometheus_client::registry::Registry;
use sluice_admin::{
    AdminOptions, AdminState, PreviewOptions, PreviewTurns, Readiness, Refusals, Sessions, UpdateRates, http_router,
    monitoring_router,
};
use sluice_auth::{Authenticator, Authenticators, Call, Caller, Verdict};
use sluice_config::{CommandLine, Config};
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, build};
use sluice_model::{MultiClusterApi, ResourceType, Text};
use sluice_proto::envoy::config::core::v3::Node;
use sluice_sources::configuration::ConfigSourceStates;
use sluice_sources::kube::{RemoteStates, WatchStates};
use sluice_sources::{Cluster, Originals, Reporter};
use sluice_telemetry::LogControl;
use sluice_xds::AdsStream;
use sluice_xds_protocol::{Request as XdsRequest, XdsProtocol};
use tower::ServiceExt;

use super::fixture::{SIDECAR, SessionFixture};

const TILL: &str = "sidecar~10.0.0.2~till.shop~shop.svc.cluster.local";
pub(super) const REMOTE_PEER: &str = "10.0.0.9:4711";

/// Authenticates `Bearer SPIFFE-ID` as that identity.
struct BearerIsIdentity;

impl Authenticator for BearerIsIdentity {
    fn name(&self) -> &'static str {
        "bearer"
    }

    fn authenticate<'a>(&'a self, call: &'a Call<'a>) -> BoxFuture<'a, Verdict> {
        let token = call.headers.get("authorization").and_then(|value| value.to_str().ok());
        let verdict = match token.and_then(|token| token.strip_prefix("Bearer ")) {
            None => Verdict::NoCredentials,
            Some(id) => match id.parse() {
                Ok(identity) => Verdict::Identified(vec![identity]),
                Err(_) => Verdict::Rejected("it is not a SPIFFE id".into()),
            },
        };
        Box::pin(async move { verdict })
    }
}

/// The log, which is off, without its hook for panics: those of tests are reported as usual.
fn log() -> LogControl {
    static LOG: OnceLock<LogControl> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = sluice_telemetry::start(&config().log).expect("no log is installed");
        drop(std::panic::take_hook());
        log
    })
    .clone()
}

fn config() -> Config {
    let arguments = ["sluiced", "discovery", "--log_output_level=all:none", "-n", "control"].map(str::to_owned);
    let (line, _) = CommandLine::parse_lenient(arguments).expect("arguments");
    let variable = |name: &str| (name == "DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES").then(|| "ops, other-ops".to_owned());
    Config::new(line.discovery, &[], variable).expect("a configuration")
}

/// The pages of a mesh with two sidecars, one in `orchard` and one in `shop`.
pub(super) struct DebugPages {
    state: Arc<AdminState>,
    router: Router,
    _streams: Vec<AdsStream>,
}

impl DebugPages {
    pub(super) fn new() -> Self {
        let mesh = SessionFixture::new();
        mesh.scope(TILL, &["base"]);
        mesh.commit();
        let streams = [SIDECAR, TILL].map(|id| {
            let mut stream = mesh.server.open(XdsProtocol::Sotw, Caller::default()).expect("ready");
            let node = Some(Node { id: id.into(), ..Node::default() });
            let type_url = ResourceType::Cluster.type_url().into();
            stream
                .request(XdsRequest { node, type_url, ..XdsRequest::default() }, Instant::now())
                .expect("the request is accepted");
            stream
        });
        let options = GraphOptions::default();
        let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
        engine.transaction(|tx| handles.inputs.mark_all_synced(tx));
        let config = config();
        let mut registry = Registry::default();
        let refusals = Refusals::default();
        refusals.register(&mut registry);
        let state = Arc::new(AdminState {
            engine,
            handles,
            status: mesh.status.clone(),
            readiness: Arc::new(Readiness::default()),
            metrics: Mutex::new(registry),
            reporter: Reporter::default(),
            originals: Originals::default(),
            mesh_config: OnceLock::new(),
            current_mesh: OnceLock::new(),
            templates: OnceLock::new(),
            log: log(),
            options: AdminOptions {
                cluster: config.identity.cluster,
                namespace: config.identity.namespace,
                pod_name: config.identity.pod_name,
                debug_namespaces: config.features.debug_namespaces,
                debug_auth: config.features.debug_auth,
                debug_on_http: config.features.debug_on_http,
                changing_pages: config.features.changing_pages,
                profiles: config.profiles,
                preview: PreviewOptions {
                    cluster: Cluster {
                        id: "Kubernetes".into(),
                        domain: "cluster.local".into(),
                        is_remote: false,
                        reads_remote_gateways: false,
                        ignored: BTreeSet::new(),
                        revision: Text::default(),
                        multi_cluster_api: MultiClusterApi::default(),
                    },
                    from_files: true,
                },
            },
            graph: GraphOptions::default(),
            preview_turns: PreviewTurns::default(),
            remotes: RemoteStates::default(),
            config_sources: ConfigSourceStates::default(),
            watches: WatchStates::default(),
            callers: OnceLock::new(),
            refusals,
            sessions: Sessions::default(),
            update_rates: UpdateRates::default(),
        });
        Self { router: http_router(state.clone()), state, _streams: streams.into() }
    }

    pub(super) fn with_authentication(self) -> Self {
        assert!(self.state.callers.set(Authenticators::new(vec![Arc::new(BearerIsIdentity)], true)).is_ok());
        self
    }

    async fn get(&self, peer: &str, path: &str, headers: &[(&str, &str)]) -> (StatusCode, String) {
        self.send(Method::GET, peer, path, headers).await
    }

    async fn send(&self, method: Method, peer: &str, path: &str, headers: &[(&str, &str)]) -> (StatusCode, String) {
        let response = self.respond(method, peer, path, headers, "").await;
        (response.status(), response.into_body())
    }

    /// The response to a request with a body.
    pub(super) async fn respond(
        &self,
        method: Method,
        peer: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<String> {
        let peer: SocketAddr = peer.parse().expect("an address");
        let mut request = Request::builder().method(method).uri(path).extension(ConnectInfo(peer));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.router.clone().oneshot(request.body(Body::from(body.to_owned())).expect("a request")).await;
        let (head, body) = response.expect("an answer").into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Response::from_parts(head, String::from_utf8(body.to_vec()).expect("text"))
    }

    /// The status of a response to a remote caller.
    async fn get_as(&self, id: &str, path: &str) -> StatusCode {
        self.get(REMOTE_PEER, path, &[("authorization", &format!("Bearer {id}"))]).await.0
    }

    pub(super) async fn rejections(&self, reason: &str) -> Option<u64> {
        let text = self.get("127.0.0.1:1", "/metrics", &[]).await.1;
        let prefix = format!("sluice_debug_refused{{reason=\"{reason}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&prefix)).map(|count| count.parse().expect("a count"))
    }
}

#[tokio::test]
async fn the_loopback_sees_every_page_but_other_origins_do_not() {
    let pages = DebugPages::new();
    for peer in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        let (status, text) = pages.get(peer, "/debug/syncz", &[]).await;
        assert_eq!(status, StatusCode::OK, "{peer}");
        assert!(text.contains("web.orchard") && text.contains("till.shop"), "{text}");
    }
    for headers in [
        [("host", "evil.example")],
        [("host", "localhost.evil.example:8080")],
        [("origin", "http://evil.example")],
        [("origin", "null")],
    ] {
        let (status, text) = pages.get("127.0.0.1:1", "/debug/syncz", &headers).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{headers:?}");
        assert!(!text.contains("web.orchard"), "{text}");
    }
    assert_eq!(pages.rejections("origin").await, Some(4));
    let monitoring = DebugPages { router: monitoring_router(pages.state.clone()), ..pages };
    assert_eq!(monitoring.get("127.0.0.1:1", "/debug/syncz", &[]).await.0, StatusCode::OK);
    assert_eq!(monitoring.get(REMOTE_PEER, "/debug/syncz", &[]).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn syncz_can_be_limited_to_a_namespace() {
    let pages = DebugPages::new();
    for (query, proxies) in [
        ("", vec!["web.orchard", "till.shop"]),
        ("?namespace=", vec!["web.orchard", "till.shop"]),
        ("?namespace=shop", vec!["till.shop"]),
        ("?namespace=nowhere", vec![]),
    ] {
        let (status, text) = pages.get("127.0.0.1:1", &format!("/debug/syncz{query}"), &[]).await;
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let shown: Vec<&str> = shown.as_array().expect("a list").iter().filter_map(|it| it["proxy"].as_str()).collect();
        assert_eq!((status, shown), (StatusCode::OK, proxies), "{query}");
    }
}

#[tokio::test]
async fn an_unauthenticated_remote_caller_sees_no_page() {
    let pages = DebugPages::new();
    let good = "spiffe://cluster.local/ns/istio-system/sa/operator";
    assert_eq!(
        pages.get_as(good, "/debug/syncz").await,
        StatusCode::UNAUTHORIZED,
        "callers cannot be authenticated yet"
    );
    let pages = pages.with_authentication();
    assert_eq!(pages.get_as(good, "/debug/syncz").await, StatusCode::OK);
    let list = pages.get("127.0.0.1:1", "/debug/list", &[]).await.1;
    let names: Vec<String> = serde_json::from_str(&list).expect("names");
    assert!(names.len() > 10);
    let paths = names.iter().map(|page| format!("/debug/{page}"));
    let paths: Vec<String> = paths.chain(["/debug".to_owned(), "/debug/collections/services".to_owned()]).collect();
    for path in &paths {
        for peer in [REMOTE_PEER, "[2001:db8::1]:1", "[::ffff:10.0.0.9]:1"] {
            let (status, text) = pages.get(peer, path, &[]).await;
            assert_eq!((status, text.lines().count()), (StatusCode::UNAUTHORIZED, 1), "{path} for {peer}");
        }
        assert_eq!(pages.get_as("nonsense", path).await, StatusCode::UNAUTHORIZED, "{path}");
        // A host or an origin that claims to be local does not make a caller local.
        let (status, _) =
            pages.get(REMOTE_PEER, path, &[("host", "localhost"), ("x-forwarded-for", "127.0.0.1")]).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        let other = "spiffe://other.domain/ns/istio-system/sa/operator";
        assert_eq!(pages.get_as(other, path).await, StatusCode::FORBIDDEN, "{path} for another mesh");
    }
    let count = u64::try_from(paths.len()).expect("a few");
    assert_eq!(pages.rejections("unauthenticated").await, Some(1 + 5 * count));
    assert_eq!(pages.rejections("forbidden").await, Some(count));
}

#[tokio::test]
async fn a_namespace_sees_only_the_configuration_of_its_own_proxies() {
    let pages = DebugPages::new().with_authentication();
    let shop = "spiffe://cluster.local/ns/shop/sa/till";
    for (path, expect) in [
        ("/debug/config_dump?proxyID=till.shop", StatusCode::OK),
        ("/debug/edsz?proxyID=till.shop", StatusCode::OK),
        ("/debug/ndsz?proxyID=till.shop", StatusCode::OK),
        ("/debug/config_dump?proxyID=web.orchard", StatusCode::NOT_FOUND),
        ("/debug/edsz?proxyID=web.orchard", StatusCode::NOT_FOUND),
        ("/debug/ndsz?proxyID=web.orchard", StatusCode::NOT_FOUND),
        ("/debug/config_dump?proxyID=absent.shop", StatusCode::NOT_FOUND),
        ("/debug/config_dump", StatusCode::BAD_REQUEST),
        ("/debug/ecdsz?proxyID=till.shop", StatusCode::FORBIDDEN),
        ("/debug/syncz", StatusCode::FORBIDDEN),
        ("/debug/adsz", StatusCode::FORBIDDEN),
        ("/debug/collections", StatusCode::FORBIDDEN),
        ("/debug/registryz", StatusCode::FORBIDDEN),
        ("/debug/list", StatusCode::FORBIDDEN),
        ("/debug", StatusCode::FORBIDDEN),
        ("/debug/config_dump/../syncz", StatusCode::FORBIDDEN),
        ("/debug/config_dump%2f..%2fsyncz", StatusCode::FORBIDDEN),
    ] {
        assert_eq!(pages.get_as(shop, path).await, expect, "{path}");
    }
    let bearer = format!("Bearer {shop}");
    let (status, _) = pages.send(Method::PUT, REMOTE_PEER, "/debug/log", &[("authorization", &bearer)]).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "only operators may change log levels");
    // The namespaces of operators: the root namespace, that of the control plane, and the configured ones.
    for namespace in ["istio-system", "control", "ops", "other-ops"] {
        let operator = format!("spiffe://cluster.local/ns/{namespace}/sa/a");
        for path in ["/debug/syncz", "/debug/config_dump?proxyID=web.orchard", "/debug/ecdsz?proxyID=till.shop"] {
            assert_eq!(pages.get_as(&operator, path).await, StatusCode::OK, "{path} for {namespace}");
        }
    }
}

#[tokio::test]
async fn only_operators_reach_controlz_from_outside_the_loopback() {
    let pages = DebugPages::new().with_authentication();
    let pages = DebugPages { router: sluice_admin::controlz_router(pages.state.clone(), |_| true), ..pages };
    for path in ["/", "/homej/", "/scopej/", "/scopej/ads", "/scopez/", "/envj/", "/memz/", "/epochj/"] {
        assert_eq!(pages.get("127.0.0.1:1", path, &[]).await.0, StatusCode::OK, "{path}");
        let evil = [("host", "evil.example")];
        assert_eq!(pages.get("127.0.0.1:1", path, &evil).await.0, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(pages.get(REMOTE_PEER, path, &[]).await.0, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(pages.get_as("spiffe://cluster.local/ns/shop/sa/till", path).await, StatusCode::FORBIDDEN, "{path}");
        assert_eq!(pages.get_as("spiffe://cluster.local/ns/ops/sa/a", path).await, StatusCode::OK, "{path}");
    }
    let (status, _) = pages.send(Method::PUT, REMOTE_PEER, "/scopej/ads", &[]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "levels are not changed");
}

#[tokio::test]
async fn controlz_has_the_topics_and_fields_that_istiod_has() {
    let pages = DebugPages::new();
    let is_shown = |name: &str| name != "PATH";
    let pages = DebugPages { router: sluice_admin::controlz_router(pages.state.clone(), is_shown), ..pages };
    let home = pages.get("127.0.0.1:1", "/", &[]).await.1;
    for (prefix, fields) in [
        ("home", vec!["CurrentTime", "HeapSize", "Hostname", "IP", "NumGC", "ProcessName"]),
        ("mem", vec!["Alloc", "HeapInuse", "HeapSys", "Mallocs", "NumGC", "Sys"]),
        ("proc", vec!["egid", "euid", "goroutines", "hostname", "pid", "ppid", "tempdir", "threads", "uid", "wd"]),
        ("version", vec!["revision", "status", "tag", "version"]),
        ("env", vec!["name", "value"]),
        ("collection", vec!["name", "parents"]),
        ("scope", vec!["name", "output_level"]),
    ] {
        let (status, text) = pages.get("127.0.0.1:1", &format!("/{prefix}j/"), &[]).await;
        assert_eq!(status, StatusCode::OK, "{prefix}");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let object = value.get(0).unwrap_or(&value);
        let missing: Vec<_> = fields.iter().filter(|field| object.get(**field).is_none()).collect();
        assert!(missing.is_empty(), "{prefix} has no {missing:?}: {text}");
    }
    for prefix in ["arg", "collection", "env", "epoch", "mem", "metric", "proc", "scope", "signal", "version"] {
        assert!(home.contains(&format!("href=\"/{prefix}z/\"")), "{prefix}: {home}");
        let (status, page) = pages.get("127.0.0.1:1", &format!("/{prefix}z/"), &[]).await;
        assert!(status == StatusCode::OK && page.contains("<title>ControlZ / "), "{prefix}: {status} {page}");
    }
    let variables = pages.get("127.0.0.1:1", "/envj/", &[]).await.1;
    let path = std::env::var("PATH").expect("it is set");
    assert!(variables.contains("PATH") && !variables.contains(&path), "{variables}");
    assert_eq!(pages.get("127.0.0.1:1", "/nonez/", &[]).await.0, StatusCode::NOT_FOUND);
    let (status, _) = pages.send(Method::PUT, "127.0.0.1:1", "/memj/forcecollection", &[]).await;
    assert_eq!(status, StatusCode::NOT_IMPLEMENTED);
}
