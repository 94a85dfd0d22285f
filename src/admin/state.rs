//! What the handlers read.

use std::sync::{Arc, Mutex};

use prometheus_client::registry::Registry;
use sluice_engine::Engine;
use sluice_graph::Handles;

use crate::admin::Readiness;
use crate::config::{Features, Identity};
use crate::sources::Reporter;
use crate::telemetry::LogControl;
use crate::xds::Status;

/// Handles to everything there is to look at.
pub struct AdminState {
    /// All collections.
    pub engine: Engine,
    /// Those of them that have names in code.
    pub handles: Handles,
    /// All streams.
    pub status: Status,
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
}
