//! What the handlers read.

use std::sync::{Arc, Mutex, OnceLock};

use prometheus_client::registry::Registry;
use sluice_auth::{Authenticators, Viewer, ViewerRules};
use sluice_engine::Engine;
use sluice_graph::Handles;
use sluice_sources::Reporter;
use sluice_sources::kube::RemoteStates;
use sluice_telemetry::LogControl;

use crate::admin::{Readiness, Refusals};
use crate::config::{Features, Identity};
use sluice_xds::StatusReader;

/// Handles to everything there is to look at.
pub struct AdminState {
    /// All collections.
    pub engine: Engine,
    /// Those of them that have names in code.
    pub handles: Handles,
    /// All streams.
    pub status: StatusReader,
    /// Whether proxies are served.
    pub readiness: Arc<Readiness>,
    /// All metrics.
    pub metrics: Mutex<Registry>,
    /// What sources could not read.
    pub reporter: Reporter,
    /// The log.
    pub log: LogControl,
    /// Who we are.
    pub identity: Identity,
    /// What is switched on.
    pub features: Features,
    /// Clusters other than the own one.
    pub remotes: RemoteStates,
    /// Whoever is not on the loopback proves with these who he is; before they are there, nobody does.
    pub callers: OnceLock<Authenticators>,
    /// Who was not let in.
    pub refusals: Refusals,
}

impl AdminState {
    /// What somebody may see of the debug pages who is proven to be these.
    pub(super) fn viewer(&self, identities: &[sluice_model::Identity]) -> Option<Viewer> {
        let mut namespaces = self.features.debug_namespaces.clone();
        namespaces.insert(self.identity.namespace.clone());
        let rules = ViewerRules { tells_apart: self.features.debug_auth, namespaces };
        let mesh = self.engine.snapshot().get(&self.handles.mesh, &()).unwrap_or_default();
        rules.viewer(identities, &mesh.trust_domain, &mesh.root_namespace)
    }
}
