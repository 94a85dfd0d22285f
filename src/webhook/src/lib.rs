//! The webhooks that the API server calls: injection of pods (W01 to W08), and validation of objects (W10, W11).
//!
//! [`Webhooks`] is the state of both. `inject.rs` and `validate.rs` answer requests, and `decision.rs` limits what is decided
//! at a time; `configuration.rs` keeps the configuration of the injector, which `config_map.rs` or `directory.rs` read;
//! `clusters.rs` shows the clusters to the injector.
//!
//! As many requests are decided at a time as there are CPUs, large ones on threads of their own and within a limit of
//! memory. A panic is answered with status 500, and concerns no other request.

#![forbid(unsafe_code)]

mod answer;
mod clusters;
mod config_map;
mod configuration;
mod decision;
mod directory;
mod inject;
mod metrics;
mod validate;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::any;
use sluice_engine::Engine;
use sluice_graph::Handles;

use crate::decision::DecisionLimits;

pub use clusters::NativeSidecars;
pub use config_map::follow_config_map;
pub use configuration::InjectionConfiguration;
pub use directory::{follow_directory, has_configuration};
pub use metrics::WebhookMetrics;

/// The webhooks of a control plane.
#[derive(Clone)]
pub struct Webhooks {
    engine: Engine,
    handles: Handles,
    native_sidecars: NativeSidecars,
    /// `None` if injection is disabled.
    injection: Option<Arc<InjectionConfiguration>>,
    metrics: WebhookMetrics,
    /// Limits of the requests that are decided at a time.
    deciding: DecisionLimits,
}

impl Webhooks {
    /// Webhooks that answer by the objects of the engine. Without `injection`, only validation is served.
    #[must_use]
    pub fn new(
        engine: Engine,
        handles: Handles,
        native_sidecars: NativeSidecars,
        injection: Option<Arc<InjectionConfiguration>>,
        metrics: WebhookMetrics,
    ) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { engine, handles, native_sidecars, injection, metrics, deciding: DecisionLimits::new(cpus) }
    }

    /// The routes `/inject` and `/validate`, with any path below them.
    pub fn router(self) -> Router {
        let mut router = Router::new();
        if self.injection.is_some() {
            for path in ["/inject", "/inject/", "/inject/{*variables}"] {
                router = router.route(path, any(inject::serve));
            }
        }
        for path in ["/validate", "/validate/", "/validate/{*rest}"] {
            router = router.route(path, any(validate::serve));
        }
        // The port limits bodies.
        router.layer(DefaultBodyLimit::disable()).with_state(self)
    }
}
