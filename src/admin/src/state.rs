//! The state that the handlers read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use prometheus_client::registry::Registry;
use serde_json::Value;
use sluice_auth::{Authenticators, Viewer, ViewerRules};
use sluice_engine::Engine;
use sluice_graph::{GraphOptions, Handles};
use sluice_model::{Identity, Text};
use sluice_sources::configuration::ConfigSourceStates;
use sluice_sources::kube::{RemoteStates, WatchStates};
use sluice_sources::{Cluster, CurrentMesh, Originals, Reporter};
use sluice_telemetry::LogControl;
use sluice_xds::StatusReader;

use crate::readiness::Readiness;
use crate::refusals::Refusals;
use crate::second_graph::PreviewTurns;
use crate::sessions::Sessions;
use crate::update_rates::UpdateRates;

/// How the objects of a preview are read.
#[derive(Clone, Debug)]
pub struct PreviewOptions {
    /// The cluster that they would be applied to.
    pub cluster: Cluster,
    /// The objects of this cluster are read from files, without admission. Otherwise a refused object changes nothing.
    pub from_files: bool,
}

/// Settings of the pages.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// The cluster of the control plane.
    pub cluster: Text,
    /// The namespace of the control plane. Its service accounts see all pages.
    pub namespace: Text,
    /// The pod of the control plane. It names the replica in responses to istioctl.
    pub pod_name: Text,
    /// Additional namespaces whose service accounts see all pages (`DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES`).
    pub debug_namespaces: BTreeSet<Text>,
    /// The identity of a caller limits the pages that it sees (`ENABLE_DEBUG_ENDPOINT_AUTH`).
    pub debug_auth: bool,
    /// The HTTP and the monitoring port serve `/debug` (`ENABLE_DEBUG_ON_HTTP`).
    pub debug_on_http: bool,
    /// There are pages that change something: `force_disconnect` (`UNSAFE_ENABLE_ADMIN_ENDPOINTS`).
    pub changing_pages: bool,
    /// There are profiles of the process (`--profile`).
    pub profiles: bool,
    /// How the objects of previews are read.
    pub preview: PreviewOptions,
}

/// Reads the mesh config in use as JSON, or returns why it does not decode.
pub type MeshConfigReader = Box<dyn Fn() -> Result<Value, String> + Send + Sync>;

/// Reads the templates of the injector by name; `None` before a configuration is read.
pub type TemplatesReader = Box<dyn Fn() -> Option<BTreeMap<String, Value>> + Send + Sync>;

/// Handles to everything that the pages show.
pub struct AdminState {
    /// All collections.
    pub engine: Engine,
    /// The inputs and published collections of the graph.
    pub handles: Handles,
    /// All streams.
    pub status: StatusReader,
    /// Whether proxies can be served.
    pub readiness: Arc<Readiness>,
    /// All metrics.
    pub metrics: Mutex<Registry>,
    /// Problems of files that cannot be read.
    pub reporter: Reporter,
    /// The objects of configuration as they were written.
    pub originals: Originals,
    /// The mesh config, once sources are read.
    pub mesh_config: OnceLock<MeshConfigReader>,
    /// The mesh settings that previews change, once sources are read.
    pub current_mesh: OnceLock<CurrentMesh>,
    /// The templates of the injector, if there is one.
    pub templates: OnceLock<TemplatesReader>,
    /// The log.
    pub log: LogControl,
    /// Settings of the pages.
    pub options: AdminOptions,
    /// Settings of the graph.
    pub graph: GraphOptions,
    /// The turns of previews.
    pub preview_turns: PreviewTurns,
    /// Remote clusters.
    pub remotes: RemoteStates,
    /// The sources of configuration that the mesh config lists.
    pub config_sources: ConfigSourceStates,
    /// The collections that are read from API servers.
    pub watches: WatchStates,
    /// Authenticators of callers that are not on the loopback; such callers are rejected until it is set.
    pub callers: OnceLock<Authenticators>,
    /// Counters of rejected requests for debug pages.
    pub refusals: Refusals,
    /// The sessions of browsers.
    pub sessions: Sessions,
    /// Samples of the counters of collections.
    pub update_rates: UpdateRates,
}

impl AdminState {
    /// The access to the debug pages of a caller with these identities.
    pub(crate) fn viewer(&self, identities: &[Identity]) -> Option<Viewer> {
        let mut namespaces = self.options.debug_namespaces.clone();
        namespaces.insert(self.options.namespace.clone());
        let rules = ViewerRules { by_identity: self.options.debug_auth, namespaces };
        let mesh = self.engine.snapshot().get(&self.handles.mesh, &()).unwrap_or_default();
        rules.viewer(identities, &mesh.trust_domain, &mesh.root_namespace)
    }

    /// The ids of all clusters, the own one first.
    pub(crate) fn cluster_ids(&self) -> Vec<Text> {
        let remotes = self.remotes.all().into_iter().map(|remote| remote.id);
        std::iter::once(self.options.cluster.clone()).chain(remotes).collect()
    }
}
