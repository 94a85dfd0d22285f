//! HTTP for operators: readiness, `/debug`, metrics, version (O05 to O11).
//!
//! All pages only read: collections of the engine at one epoch, resources of streams, metrics. Only `PUT /debug/log`
//! changes anything, the log levels.

mod access;
mod answer;
mod config_dump;
mod debug;
mod metrics;
mod over_xds;
mod process;
mod proxies;
mod readiness;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use access::Refusals;
pub use metrics::AdminMetrics;
pub use over_xds::PagesOverXds;
pub use readiness::{Readiness, ReadinessGuard};
pub use state::AdminState;

/// Routes of the HTTP port: readiness, and those of the monitoring port.
pub fn http_router(state: Arc<AdminState>) -> Router {
    monitoring_router(state.clone()).route("/ready", get(readiness::ready).with_state(state))
}

/// Routes of the monitoring port: metrics, version, and `/debug` with access control unless it is switched off.
pub fn monitoring_router(state: Arc<AdminState>) -> Router {
    let router = Router::new().route("/metrics", get(metrics::serve)).route("/version", get(version));
    let router = router.with_state(state.clone());
    if state.features.debug_on_http { router.merge(debug::router(state)) } else { router }
}

/// Serves a router until the token is cancelled.
///
/// # Errors
/// The listener fails.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> anyhow::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await.context("serve HTTP")
}

async fn version() -> String {
    format!("sluice {}\n", env!("CARGO_PKG_VERSION"))
}
