//! What the handlers read.

use std::sync::{Arc, Mutex, OnceLock};

use prometheus_client::registry::Registry;
use sluice_auth::{Authenticators, Viewer, ViewerRules};
use sluice_engine::Engine;
use sluice_graph::Handles;
use sluice_sources::Reporter;
use sluice_sources::kube::RemoteStates;
use sluice_telemetry::LogControl;
use sluice_xds::StatusReader;

use crate::admin::{Readiness, Refusals};
use crate::config::{Features, Identity};

/// Handles to everything that the pages show.
pub struct AdminState {
    /// All collections.
    pub engine: Engine,
    /// Those of them that have names in code.
    pub handles: Handles,
    /// All streams.
    pub status: StatusReader,
    /// Whether proxies can be served.
    pub readiness: Arc<Readiness>,
    /// All metrics.
    pub metrics: Mutex<Registry>,
    /// Problems of files that cannot be read.
    pub reporter: Reporter,
    /// The log.
    pub log: LogControl,
    /// The identity of the control plane.
    pub identity: Identity,
    /// Switches of the environment.
    pub features: Features,
    /// Remote clusters.
    pub remotes: RemoteStates,
    /// Authenticators of callers that are not on the loopback; such callers are rejected before it is set.
    pub callers: OnceLock<Authenticators>,
    /// Counters of rejected callers.
    pub refusals: Refusals,
}

impl AdminState {
    /// The access to the debug pages of a caller with these identities.
    pub(super) fn viewer(&self, identities: &[sluice_model::Identity]) -> Option<Viewer> {
        let mut namespaces = self.features.debug_namespaces.clone();
        namespaces.insert(self.identity.namespace.clone());
        let rules = ViewerRules { by_identity: self.features.debug_auth, namespaces };
        let mesh = self.engine.snapshot().get(&self.handles.mesh, &()).unwrap_or_default();
        rules.viewer(identities, &mesh.trust_domain, &mesh.root_namespace)
    }
}
