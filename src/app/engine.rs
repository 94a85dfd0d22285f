//! The engine with the graph, and the metrics of all components.

use prometheus_client::registry::Registry;
use sluice_admin::{AdminMetrics, Refusals};
use sluice_auth::ReviewMetrics;
use sluice_authority::AuthorityMetrics;
use sluice_config::Config;
use sluice_engine::{Engine, EngineOptions, HistoryLimits};
use sluice_graph::{GraphOptions, Handles};
use sluice_jwks::JwksMetrics;
use sluice_model::MeshConfig;
use sluice_sources::SourceMetrics;
use sluice_sources::configuration::ConfigSourceStates;
use sluice_sources::kube::{ClusterMetrics, RegistrationMetrics, WatchStates};
use sluice_webhook::WebhookMetrics;
use tokio_util::sync::CancellationToken;

/// The running engine.
pub(super) struct GraphEngine {
    pub(super) engine: Engine,
    /// Inputs and outputs of the graph.
    pub(super) handles: Handles,
    pub(super) metrics: Metrics,
}

/// Metrics of all components, registered.
#[derive(Default)]
pub(super) struct Metrics {
    pub(super) registry: Registry,
    pub(super) sources: SourceMetrics,
    pub(super) clusters: ClusterMetrics,
    pub(super) config_sources: ConfigSourceStates,
    pub(super) registration: RegistrationMetrics,
    pub(super) watches: WatchStates,
    pub(super) xds: sluice_xds::Metrics,
    pub(super) jwks: JwksMetrics,
    pub(super) authority: AuthorityMetrics,
    pub(super) reviews: ReviewMetrics,
    pub(super) refusals: Refusals,
    pub(super) webhooks: WebhookMetrics,
}

impl GraphEngine {
    /// Builds the graph and starts the dataflow thread.
    pub(super) fn start(config: &Config, options: GraphOptions) -> Self {
        let history = HistoryLimits { age: config.limits.history_age, bytes: config.limits.history_bytes };
        let engine_options = EngineOptions { history, ..EngineOptions::default() };
        let (engine, handles) = Engine::start(engine_options, move |builder| sluice_graph::build(builder, &options));
        let metrics = Metrics::registered(&engine);
        Self { engine, handles, metrics }
    }

    /// Fails when the dataflow thread ends, and succeeds when `stop` is cancelled.
    pub(super) fn watch(&self, stop: CancellationToken) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        let engine = self.engine.clone();
        async move {
            tokio::select! {
                panic = engine.stopped() => match panic {
                    Some(panic) => Err(anyhow::anyhow!("the dataflow thread panicked: {panic}")),
                    None => Err(anyhow::anyhow!("the dataflow thread has ended")),
                },
                () = stop.cancelled() => Ok(()),
            }
        }
    }

    /// Waits until every input is synced. If the engine stops first, it waits forever: the task `engine` reports the stop.
    pub(super) fn synced(&self) -> impl Future<Output = ()> + use<> {
        let mut feed = self.engine.feed().only(&self.handles.mesh);
        async move {
            while let Some(batch) = feed.next().await {
                if batch.all_synced() {
                    return;
                }
            }
            std::future::pending().await
        }
    }

    /// The current mesh config.
    pub(super) fn mesh_config(&self) -> MeshConfig {
        self.engine.snapshot().get(&self.handles.mesh, &()).map(|mesh| (*mesh).clone()).unwrap_or_default()
    }

    /// Calls `apply` with the mesh config now and after each change, until the engine stops.
    pub(super) fn follow_mesh_config<F: FnMut(&MeshConfig) + Send + 'static>(
        &self,
        mut apply: F,
    ) -> impl Future<Output = ()> + Send + use<F> {
        let published = self.handles.mesh.clone();
        let mut feed = self.engine.feed().only(&published);
        async move {
            while let Some(batch) = feed.next().await {
                for mesh in batch.events(&published).filter_map(|event| event.new) {
                    apply(&mesh);
                }
            }
        }
    }
}

impl Metrics {
    fn registered(engine: &Engine) -> Self {
        let mut metrics = Self::default();
        let registry = &mut metrics.registry;
        AdminMetrics::register(engine.clone(), registry);
        metrics.sources.register(registry);
        metrics.clusters.register(registry);
        metrics.config_sources.register(registry);
        metrics.registration.register(registry);
        metrics.watches.register(registry);
        metrics.xds.register(registry);
        metrics.jwks.register(registry);
        metrics.authority.register(registry);
        metrics.reviews.register(registry);
        metrics.refusals.register(registry);
        metrics.webhooks.register(registry);
        sluice_tasks::register(registry);
        sluice_telemetry::register(registry);
        metrics
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use sluice_engine::{Clock, EngineOptions};
    use sluice_tasks::Tasks;

    use super::*;

    #[tokio::test]
    async fn panic_of_the_dataflow_thread_ends_the_wait_for_synced_inputs() {
        let broken = Arc::new(AtomicBool::new(false));
        let seam = broken.clone();
        // The dataflow thread reads the clock in each epoch.
        let clock = Clock::new(move || {
            assert!(!seam.load(Ordering::SeqCst), "the clock is broken");
            Duration::ZERO
        });
        let build = |builder: &mut sluice_engine::GraphBuilder| sluice_graph::build(builder, &GraphOptions::default());
        let (engine, handles) = Engine::start(EngineOptions { clock, ..EngineOptions::default() }, build);
        let graph = GraphEngine { metrics: Metrics::registered(&engine), engine, handles };
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn_fallible("engine", graph.watch(tasks.stop()));
        broken.store(true, Ordering::SeqCst);
        graph.handles.inputs.jwks.mark_synced();
        let failure = tasks.wait_for(graph.synced()).await.expect_err("the engine has stopped").to_string();
        assert_eq!(failure, "task engine: the dataflow thread panicked: the clock is broken");
    }
}
