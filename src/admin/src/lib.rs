//! HTTP for operators: readiness, `/debug`, metrics, version (O05 to O11).
//!
//! The pages show collections of the engine at one epoch, resources of streams, and metrics. They are read-only, except
//! `PUT /debug/log`, which sets the log levels, and `force_disconnect` (`UNSAFE_ENABLE_ADMIN_ENDPOINTS`).
//! `POST /debug/preview` has a graph of its own.

mod access;
mod ambient;
mod answer;
mod answers;
mod config_dump;
mod configuration;
mod console;
mod controlz;
mod debug;
mod endpoints;
mod epoch_times;
mod findings;
mod html;
mod index;
mod krtz;
mod metrics;
mod over_xds;
mod preview;
mod process;
mod profiles;
mod proxies;
mod readiness;
mod reconciliation;
mod record;
mod refusals;
mod second_graph;
mod services;
mod sessions;
mod sidecar_scope;
mod state;
mod traces;
mod update_rates;
mod version;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

pub use controlz::controlz_router;
pub use metrics::AdminMetrics;
pub use over_xds::PagesOverXds;
pub use preview::MAX_PREVIEW_BYTES;
pub use readiness::{Readiness, ReadinessGuard};
pub use reconciliation::ReconciliationTracker;
pub use refusals::Refusals;
pub use second_graph::PreviewTurns;
pub use sessions::Sessions;
pub use state::{AdminOptions, AdminState, MeshConfigReader, PreviewOptions, TemplatesReader};
pub use traces::ChangeTracer;
pub use update_rates::UpdateRates;

/// Routes of the HTTP port: readiness, and those of the monitoring port.
pub fn http_router(state: Arc<AdminState>) -> Router {
    // The last router has the answer to unknown pages, with access control.
    ready_router(state.clone()).merge(monitoring_router(state))
}

/// The route of readiness.
pub fn ready_router(state: Arc<AdminState>) -> Router {
    Router::new().route("/ready", get(ready)).with_state(state)
}

/// Routes of the monitoring port: metrics, version and, if [`AdminOptions::debug_on_http`] is set, `/debug` with access
/// control.
pub fn monitoring_router(state: Arc<AdminState>) -> Router {
    let router = Router::new().route("/metrics", get(metrics::serve)).route("/version", get(version::serve));
    let router = router.with_state(state.clone());
    match state.options.debug_on_http {
        true => router.merge(debug::router(state)),
        false => router.fallback(version::without_repeated_slashes),
    }
}

async fn ready(State(state): State<Arc<AdminState>>) -> (StatusCode, String) {
    // These tasks do not stop proxies from being served: their last results stay.
    let restarting = sluice_tasks::restarting().into_iter().map(|task| format!("task {task} is restarted\n"));
    let restarting: String = restarting.collect();
    let components = state.readiness.list();
    match state.readiness.pending().is_empty() {
        true => (StatusCode::OK, format!("ready\n{restarting}{components}")),
        false => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready\n{restarting}{components}")),
    }
}
