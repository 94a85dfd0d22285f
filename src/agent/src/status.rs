//! The agent's own HTTP server (D05), by default on port 15020.
//!
//! | path | method | response | allowed callers |
//! |---|---|---|---|
//! | `/healthz/ready` | any | 200 while Envoy serves the configuration of the control plane and gRPC libraries have their files, else 503 | any client |
//! | `/app-health/..`, `/app-lifecycle/..` | any | the result of a probe of the application, as the kubelet would send it | any client |
//! | `/stats/prometheus`, `/metrics` | any | metrics of the agent, Envoy and the application | any client; with `METRICS_LOCALHOST_ACCESS_ONLY` the loopback |
//! | `/quitquitquit` | POST | terminates Envoy and the agent without draining | the loopback |
//! | `/drain` | POST | drains Envoy, if the agent runs it; a later termination does not drain again | the loopback |
//! | `/debug/ndsz` | GET | the name table of the DNS proxy | the loopback |

mod app_probes;
mod https_probe;
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
use sluice_listen::{BodyLimits, ListenMetrics, Listener, serve_http};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::args::Role;
use crate::dns::NameTableStore;
use crate::envoy::ShutdownTokens;
use crate::envoy::admin::Admin;
use crate::metrics::Metrics;
use crate::ports;
use crate::serving::keep_serving;
use crate::settings::Settings;
use app_probes::AppProbes;
use merge::Scraper;
pub(crate) use probe::{Probe, Prober, Target};
pub(crate) use readiness::{NotReady, Readiness};

/// The state of the status server.
pub(crate) struct StatusState {
    pub(crate) role: Role,
    pub(crate) readiness: Arc<Readiness>,
    /// `None` without Envoy.
    pub(crate) admin: Option<Admin>,
    pub(crate) stop: ShutdownTokens,
    pub(crate) names: Option<NameTableStore>,
    probes: AppProbes,
    scraper: Scraper,
}

impl StatusState {
    /// # Errors
    /// The description of the application's probes or metrics is malformed.
    pub(crate) fn new(
        settings: &Settings,
        readiness: Arc<Readiness>,
        admin: Option<Admin>,
        stop: ShutdownTokens,
        names: Option<NameTableStore>,
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
/// The agent cannot listen on the port.
pub(crate) async fn serve(status: StatusState, port: u16, metrics: ListenMetrics) -> Result<()> {
    // IPv4 and IPv6 where the machine has both.
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind((IpAddr::from([0, 0, 0, 0]), port))
            .await
            .with_context(|| format!("listen on port {port} for the status server"))?,
    };
    info!(target: "status", port, "listening");
    let address = listener.local_addr().context("read the address of the status server")?;
    let router = router(Arc::new(status));
    keep_serving(
        "status server",
        listener,
        move || TcpListener::bind(address),
        move |listener| {
            let listener = Listener::new(listener, ports::options("status", metrics.clone()));
            let serving = serve_http(listener, router.clone(), BodyLimits::default(), CancellationToken::new());
            async move {
                serving.await;
                Ok(())
            }
        },
    );
    Ok(())
}

fn router(status: Arc<StatusState>) -> Router {
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

type Shared = State<Arc<StatusState>>;
type Peer = ConnectInfo<SocketAddr>;

/// Whether the address is the loopback, also as an IPv4-mapped IPv6 address.
fn is_local(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

fn reject(path: &str, peer: SocketAddr) -> Response {
    warn!(target: "status", path, peer = %peer, "request rejected: only the loopback is allowed");
    (StatusCode::FORBIDDEN, "only requests from the loopback are allowed\n").into_response()
}

async fn ready(State(status): Shared) -> StatusCode {
    match status.readiness.check().await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn app_probe(State(status): Shared, request: Request) -> Response {
    status.probes.respond(request.uri().path(), request.headers()).await
}

async fn metrics(State(status): Shared, ConnectInfo(peer): Peer, request: Request) -> Response {
    if status.scraper.only_local && !is_local(peer) {
        return reject(request.uri().path(), peer);
    }
    status.scraper.respond(request.uri().query(), request.headers()).await
}

async fn quit(State(status): Shared, ConnectInfo(peer): Peer) -> Response {
    if !is_local(peer) {
        return reject("/quitquitquit", peer);
    }
    info!(target: "status", "termination without draining requested");
    status.stop.at_once.cancel();
    status.stop.requested.cancel();
    "OK".into_response()
}

async fn drain(State(status): Shared, ConnectInfo(peer): Peer) -> Response {
    if !is_local(peer) {
        return reject("/drain", peer);
    }
    info!(target: "status", "draining requested");
    if let Some(admin) = &status.admin
        && let Err(error) = admin.drain(status.role, true).await
    {
        warn!(target: "status", error = format!("{error:#}"), "failed to drain Envoy");
        return (StatusCode::BAD_GATEWAY, "Envoy does not respond\n").into_response();
    }
    // Envoy is drained: the termination need not drain it again.
    status.stop.at_once.cancel();
    "OK".into_response()
}

async fn names(State(status): Shared, ConnectInfo(peer): Peer) -> Response {
    if !is_local(peer) {
        return reject("/debug/ndsz", peer);
    }
    match status.names.as_ref().and_then(NameTableStore::dump) {
        Some(table) => Json(table).into_response(),
        None => (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, "application/json")], "{}").into_response(),
    }
}

#[cfg(test)]
mod tests;
