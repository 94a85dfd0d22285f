//! The agent's own HTTP server (D05), by default on port 15020.
//!
//! | path | method | what | who may call |
//! |---|---|---|---|
//! | `/healthz/ready` | any | 200 while Envoy serves what the control plane sent, else 503 | anyone who reaches it |
//! | `/app-health/..`, `/app-lifecycle/..` | any | a probe of the application, as Kubernetes would have sent it | anyone who reaches it |
//! | `/stats/prometheus`, `/metrics` | any | metrics of the agent, Envoy and the application | anyone who reaches it, or only the loopback |
//! | `/quitquitquit` | POST | ends Envoy and the agent without draining | the loopback |
//! | `/drain` | POST | drains; the end then comes at once | the loopback |
//! | `/debug/ndsz` | GET | the names the DNS proxy knows | the loopback |

mod app_probes;
mod merge;
mod probe;
mod readiness;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::args::Role;
use crate::dns::Names;
use crate::envoy::Stop;
use crate::envoy::admin::Admin;
use crate::metrics::Metrics;
use crate::settings::Settings;
use app_probes::AppProbes;
use merge::Scraper;
pub(crate) use probe::{Probe, Target, probe};
pub(crate) use readiness::Readiness;

/// What the server works with.
pub(crate) struct Status {
    pub(crate) role: Role,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) admin: Admin,
    pub(crate) stop: Stop,
    pub(crate) names: Option<Names>,
    probes: AppProbes,
    scraper: Scraper,
}

impl Status {
    /// # Errors
    /// The application's probes or metrics are described wrongly.
    pub(crate) fn new(
        settings: &Settings,
        readiness: Arc<Readiness>,
        admin: Admin,
        stop: Stop,
        names: Option<Names>,
        metrics: Metrics,
    ) -> Result<Self> {
        Ok(Self {
            role: settings.role,
            readiness,
            admin,
            stop,
            names,
            probes: AppProbes::new(settings).context("variable ISTIO_KUBE_APP_PROBERS")?,
            scraper: Scraper::new(settings, metrics).context("variable ISTIO_PROMETHEUS_ANNOTATIONS")?,
        })
    }
}

/// Serves until the process ends.
///
/// # Errors
/// The port cannot be listened on.
pub(crate) async fn serve(status: Status, port: u16) -> Result<()> {
    // Both families, where the machine has both.
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind((IpAddr::from([0, 0, 0, 0]), port))
            .await
            .with_context(|| format!("listen on port {port} for the status server"))?,
    };
    info!(target: "status", port, "listening");
    let service = router(Arc::new(status)).into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, service).await {
            warn!(target: "status", "status is no longer served: {error}");
        }
    });
    Ok(())
}

fn router(status: Arc<Status>) -> Router {
    Router::new()
        .route("/healthz/ready", any(ready))
        .route("/app-health/{container}/{probe}", any(app_probe))
        .route("/app-lifecycle/{container}/{probe}", any(app_probe))
        .route("/stats/prometheus", any(metrics))
        .route("/metrics", any(metrics))
        .route("/quitquitquit", post(quit))
        .route("/drain", post(drain))
        .route("/debug/ndsz", get(names))
        .with_state(status)
}

type Shared = State<Arc<Status>>;
type Peer = ConnectInfo<SocketAddr>;

/// The loopback, also as one family sees the other's.
fn is_local(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

fn refuse(path: &str, peer: SocketAddr) -> Response {
    warn!(target: "status", path, peer = %peer, "refused: only the loopback may call this");
    (StatusCode::FORBIDDEN, "only requests from the loopback are allowed\n").into_response()
}

async fn ready(State(status): Shared) -> StatusCode {
    match status.readiness.check().await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn app_probe(State(status): Shared, request: Request) -> Response {
    status.probes.answer(request.uri().path(), request.headers()).await
}

async fn metrics(State(status): Shared, ConnectInfo(peer): Peer, request: Request) -> Response {
    if status.scraper.only_local && !is_local(peer) {
        return refuse(request.uri().path(), peer);
    }
    status.scraper.answer(request.uri().query(), request.headers()).await
}

async fn quit(State(status): Shared, ConnectInfo(peer): Peer) -> Response {
    if !is_local(peer) {
        return refuse("/quitquitquit", peer);
    }
    info!(target: "status", "asked to end at once");
    status.stop.at_once.cancel();
    status.stop.requested.cancel();
    "OK".into_response()
}

async fn drain(State(status): Shared, ConnectInfo(peer): Peer) -> Response {
    if !is_local(peer) {
        return refuse("/drain", peer);
    }
    info!(target: "status", "asked to drain");
    if let Err(error) = status.admin.drain(status.role, true).await {
        warn!(target: "status", "drain Envoy: {error:#}");
        return (StatusCode::BAD_GATEWAY, "Envoy does not answer\n").into_response();
    }
    // It has been done: the end need not wait again.
    status.stop.at_once.cancel();
    "OK".into_response()
}

async fn names(State(status): Shared, ConnectInfo(peer): Peer) -> Response {
    if !is_local(peer) {
        return refuse("/debug/ndsz", peer);
    }
    match status.names.as_ref().and_then(Names::dump) {
        Some(table) => Json(table).into_response(),
        None => (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, "application/json")], "{}").into_response(),
    }
}

#[cfg(test)]
mod tests;
