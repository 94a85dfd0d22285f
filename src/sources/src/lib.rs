//! Where objects come from: files and the Kubernetes API. Each hands parsed objects to a [`Sink`].

mod backlog;
pub mod files;
pub mod gateway_names;
mod inputs;
pub mod kube;
mod mesh_files;
mod mesh_override;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use sluice_model::{Kind, ObjectKey, ParsedObject, Text};
use sluice_parse::{KINDS, KindInfo};
use tokio::sync::oneshot;

pub use inputs::{InputSink, SourceMetrics};
pub use mesh_files::{MeshFileError, MeshFiles};
pub use mesh_override::MeshOverride;
pub use report::{Problem, Reporter};

/// How a source came to know of a change.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Origin {
    /// Where the object stands: `FILE:LINE`, or empty for the Kubernetes API.
    pub place: Text,
    /// Its resourceVersion, empty if it has none.
    pub version: Text,
    /// When the source saw it, since the Unix epoch.
    pub received: Duration,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its kind.
    pub kind: Kind,
    /// Where it lives.
    pub key: ObjectKey,
    /// What it is now; `None` if it is gone.
    pub object: Option<Box<ParsedObject>>,
    /// How that came to be known.
    pub origin: Origin,
}

/// What takes the objects of all sources.
pub trait Sink: Send + Sync + 'static {
    /// Makes changes visible together. Equal values are no change. May wait when too much is queued.
    fn commit(&self, changes: Vec<Change>);

    /// Says that all objects of the kinds, as they are now, have been committed for the cluster.
    fn synced(&self, cluster: &Text, kinds: &[Kind]);

    /// Tells once everything that was committed before is in force.
    fn settle(&self, done: oneshot::Sender<()>) {
        // Nobody may be waiting any more.
        let _ = done.send(());
    }
}

/// The kinds read from clusters other than the own one: what runs there. Configuration is read in the own cluster only.
const REMOTE_KINDS: &[Kind] = &[
    Kind::EndpointSlice,
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::Secret,
    Kind::Service,
    Kind::ServiceAccount,
    Kind::WorkloadEntry,
];

/// A cluster whose objects are read.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its id.
    pub id: Text,
    /// DNS domain of its services.
    pub domain: Text,
    /// It is not the one the control plane runs in.
    pub is_remote: bool,
    /// Kinds that are switched off.
    pub ignored: BTreeSet<Kind>,
    /// Configuration for other revisions than this one is not read; empty reads all.
    pub revision: Text,
}

impl Cluster {
    /// Whether objects of that kind count in this cluster.
    #[must_use]
    pub fn reads(&self, kind: Kind) -> bool {
        (!self.is_remote || REMOTE_KINDS.contains(&kind)) && !self.ignored.contains(&kind)
    }

    /// Whether an object is for the revision: configuration may say for which it is, what runs in the cluster is for all.
    #[must_use]
    pub fn follows(&self, info: &KindInfo, object: &Value) -> bool {
        let wanted = object.pointer("/metadata/labels/istio.io~1rev").and_then(Value::as_str);
        !info.is_custom() || self.revision.is_empty() || wanted.is_none_or(|wanted| *self.revision == *wanted)
    }

    /// The kinds that are read.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        KINDS.iter().map(|info| info.kind).filter(|kind| self.reads(*kind)).collect()
    }
}
