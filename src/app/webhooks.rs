//! The webhooks: the configuration of the injector, and the port.

use std::path::Path;

use axum::Router;
use sluice_kube::KubeOptions;
use sluice_listen::BodyLimits;
use sluice_sources::MeshLayers;
use sluice_webhook::{follow_config_map, follow_directory, has_configuration};
use tokio::sync::watch;
use tracing::info;

use super::{App, AppError, options};

/// Directory of the configuration of the injector, which replaces the ConfigMap (W02).
const INJECTION_DIRECTORY: &str = "./var/lib/istio/inject";
/// Maximum size of a review. The API server limits objects to 3 MiB, and an update contains the old one as well.
const MAX_REVIEW_BYTES: usize = 8 << 20;
/// Size of the bodies of all reviews of more than 64 KiB that are in memory at a time. [`sluice_webhook::Webhooks`] limits the
/// memory of those that are decided at a time, which is up to 260 times as much.
const MAX_TOTAL_REVIEW_BYTES: usize = 16 << 20;

/// Limits of the bodies of webhook calls.
pub(super) fn body_limits() -> BodyLimits {
    BodyLimits::new(MAX_REVIEW_BYTES, MAX_TOTAL_REVIEW_BYTES)
}

impl App {
    /// Reads the configuration of the injector and the mesh config, and follows their changes.
    pub(super) fn follow_injection(&mut self, mesh: watch::Receiver<MeshLayers>) -> Result<(), AppError> {
        let pending = self.pending.injection.take();
        let Some(injection) = self.injection.clone() else { return Ok(()) };
        let (followed, shown) = (injection.clone(), injection.clone());
        let _ = self.admin.templates.set(Box::new(move || shown.templates()));
        self.tasks.spawn_restarted_until_stop("mesh config of the injector", move || {
            let (followed, mut mesh) = (followed.clone(), mesh.clone());
            async move {
                loop {
                    let layers = mesh.borrow_and_update().clone();
                    followed.set_mesh(layers);
                    if mesh.changed().await.is_err() {
                        // The sources have ended, which their task reports.
                        return std::future::pending().await;
                    }
                }
            }
        });
        let directory = Path::new(INJECTION_DIRECTORY);
        if has_configuration(directory) {
            let guard = follow_directory(directory, injection);
            self.follow(guard.map_err(AppError::runtime("follow the configuration of the injector"))?);
        } else if let Some(client) = self.local_client.clone() {
            let config_map = options::injector_config_map(&self.config.identity);
            let states = self.graph.metrics.watches.clone();
            let reading = injection.clone();
            let following = follow_config_map(client, config_map, KubeOptions::default(), states, injection);
            // Until it is read, pods would be denied.
            let first = async move {
                reading.read().await;
                drop(pending);
            };
            self.tasks.spawn_until_stop("injection configuration", async move {
                tokio::join!(following, first);
            });
        } else {
            info!(directory = INJECTION_DIRECTORY, "no pod is injected: there is no configuration of the injector");
        }
        Ok(())
    }

    /// Routes of the port for webhooks.
    pub(super) fn webhook_router(&self) -> Router {
        sluice_admin::ready_router(self.admin.clone()).merge(self.review_router())
    }

    /// Routes of the webhooks. Their requests go before pushes.
    pub(super) fn review_router(&self) -> Router {
        let short_requests = self.discovery.short_requests().clone();
        self.webhooks.clone().router().layer(axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
            short_requests.arrived();
            next.run(request)
        }))
    }
}
