//! HTTP for operators: readiness, `/debug`, metrics, version (O05 to O11).
//!
//! The pages show collections of the engine at one epoch, resources of streams, and metrics. They are read-only, except
//! `PUT /debug/log`, which sets the log levels.

mod access;
mod answer;
mod config_dump;
mod debug;
mod metrics;
mod over_xds;
mod process;
mod proxies;
mod readiness;
mod refusals;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

pub use metrics::AdminMetrics;
pub use over_xds::PagesOverXds;
pub use readiness::{Readiness, ReadinessGuard};
pub use refusals::Refusals;
pub use state::{AdminOptions, AdminState};

/// Routes of the HTTP port: readiness, and those of the monitoring port.
pub fn http_router(state: Arc<AdminState>) -> Router {
    monitoring_router(state.clone()).route("/ready", get(ready).with_state(state))
}

/// Routes of the monitoring port: metrics, version and, if [`AdminOptions::debug_on_http`] is set, `/debug` with access
/// control.
pub fn monitoring_router(state: Arc<AdminState>) -> Router {
    let router = Router::new().route("/metrics", get(metrics::serve)).route("/version", get(version));
    let router = router.with_state(state.clone());
    if state.options.debug_on_http { router.merge(debug::router(state)) } else { router }
}

async fn ready(State(state): State<Arc<AdminState>>) -> (StatusCode, String) {
    match state.readiness.pending().as_slice() {
        [] => (StatusCode::OK, "ready\n".to_owned()),
        pending => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", pending.join(", "))),
    }
}

async fn version() -> String {
    format!("sluice {}\n", env!("CARGO_PKG_VERSION"))
}
