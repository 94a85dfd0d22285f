//! The engine with the graph, and the metrics of all components.

use prometheus_client::registry::Registry;
use sluice_admin::{AdminMetrics, Refusals};
use sluice_auth::ReviewMetrics;
use sluice_authority::AuthorityMetrics;
use sluice_config::Config;
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::Handles;
use sluice_jwks::JwksMetrics;
use sluice_model::MeshConfig;
use sluice_sources::SourceMetrics;
use sluice_sources::kube::{ClusterMetrics, WatchStates};

use super::options;

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
    pub(super) watches: WatchStates,
    pub(super) xds: sluice_xds::Metrics,
    pub(super) jwks: JwksMetrics,
    pub(super) authority: AuthorityMetrics,
    pub(super) reviews: ReviewMetrics,
    pub(super) refusals: Refusals,
}

impl GraphEngine {
    /// Builds the graph and starts the dataflow thread.
    pub(super) fn start(config: &Config) -> Self {
        let options = options::graph_options(config);
        let (engine, handles) =
            Engine::start(EngineOptions::default(), move |builder| sluice_graph::build(builder, &options));
        let metrics = Metrics::registered(&engine);
        Self { engine, handles, metrics }
    }

    /// Waits until every input is synced. If the engine stops first, it waits forever; other tasks report the stop.
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
        metrics.watches.register(registry);
        metrics.xds.register(registry);
        metrics.jwks.register(registry);
        metrics.authority.register(registry);
        metrics.reviews.register(registry);
        metrics.refusals.register(registry);
        metrics
    }
}
