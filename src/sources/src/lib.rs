//! Sources of objects: files and the Kubernetes API. Each passes parsed objects to a [`Sink`].

mod backlog;
pub mod configuration;
pub mod files;
#[cfg(test)]
mod full_lane;
pub mod gateway_names;
mod inputs;
pub mod kube;
mod lane_order;
mod mesh_files;
mod mesh_override;
mod metrics;
mod originals;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use sluice_model::{ConditionRequest, Kind, MultiClusterApi, ObjectKey, ParsedObject, Text, label};
use sluice_parse::{KINDS, KindInfo};
use tokio::sync::oneshot;

pub use inputs::InputSink;
pub use mesh_files::{MeshFileError, MeshFiles};
pub use mesh_override::{CurrentMesh, MeshLayers, MeshOverride};
pub use metrics::SourceMetrics;
pub use originals::{ChangesByKind, Original, Originals};
pub use report::{Duplicate, Problem, Reporter, log_rejects};

/// The origin of a change.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct ChangeOrigin {
    /// Location of the object: `FILE:LINE`, or empty for the Kubernetes API.
    pub place: Text,
    /// Its resourceVersion, empty if it has none.
    pub version: Text,
    /// Its generation, if it has one.
    pub generation: Option<i64>,
    /// When the source read it, since the Unix epoch.
    pub received: Duration,
    /// The object itself, if it is one of configuration.
    #[serde(skip)]
    pub original: Option<Original>,
    /// What the object asks about its condition `Reconciled`, if it is stored in an API server.
    #[serde(skip)]
    pub condition_request: Option<Box<ConditionRequest>>,
}

/// A change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its kind.
    pub kind: Kind,
    /// Its cluster, namespace and name.
    pub key: ObjectKey,
    /// Its new state; `None` if it was deleted.
    pub object: Option<Box<ParsedObject>>,
    /// The origin of the change.
    pub origin: ChangeOrigin,
}

/// Receives the objects of all sources.
pub trait Sink: Send + Sync + 'static {
    /// Makes changes visible together, except that changes of endpoints go before a large backlog. Equal values are no change.
    /// Blocks while too many changes of the same sort wait.
    fn commit(&self, changes: Vec<Change>);

    /// Reports that all current objects of the kinds have been committed for the cluster.
    fn synced(&self, cluster: &Text, kinds: &[Kind]);

    /// Reports that the cluster begins or ends to serve a kind of a CustomResourceDefinition.
    fn served(&self, _cluster: &Text, _kind: Kind, _is_served: bool) {}

    /// Notifies `done` when all earlier commits are applied.
    fn settle(&self, done: oneshot::Sender<()>) {
        // The receiver may have ended.
        let _ = done.send(());
    }
}

/// Kinds that are read from every remote cluster: services and workloads. Configuration is read from the local cluster only.
const REMOTE_KINDS: &[Kind] = &[
    Kind::EndpointSlice,
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::Secret,
    Kind::Service,
    Kind::ServiceAccount,
    Kind::ServiceExport,
    Kind::ServiceImport,
    Kind::WorkloadEntry,
];

/// A cluster whose objects are read.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its id.
    pub id: Text,
    /// DNS domain of its services.
    pub domain: Text,
    /// It is not the cluster of the control plane.
    pub is_remote: bool,
    /// Gateways of the Gateway API are read from a remote cluster, because they may lead into its network.
    pub reads_remote_gateways: bool,
    /// Kinds that are not read.
    pub ignored: BTreeSet<Kind>,
    /// Configuration for other revisions than this one is not read; empty reads all.
    pub revision: Text,
    /// API group and version of ServiceExports and ServiceImports.
    pub multi_cluster_api: MultiClusterApi,
}

impl Cluster {
    /// Whether objects of the kind are read from this cluster.
    #[must_use]
    pub fn reads(&self, kind: Kind) -> bool {
        let is_gateway = kind == Kind::KubernetesGateway && self.reads_remote_gateways;
        (!self.is_remote || REMOTE_KINDS.contains(&kind) || is_gateway) && !self.ignored.contains(&kind)
    }

    /// Whether objects of the kind in this cluster are configuration of the mesh. Gateways of a remote cluster are not: they
    /// only tell how its network is reached.
    #[must_use]
    pub fn configures(&self, info: &KindInfo) -> bool {
        info.is_configuration() && !(self.is_remote && info.is_gateway_api())
    }

    /// Whether an object applies to the cluster's revision. Configuration with a label applies to the revision of the label
    /// only, and other objects apply to all revisions. So do Gateways of the Gateway API: their label, which may be a tag, tells
    /// who deploys them and writes their status.
    #[must_use]
    pub fn reads_revision_of(&self, info: &KindInfo, object: &Value) -> bool {
        let label = object["metadata"]["labels"][label::REVISION].as_str();
        let is_of_all = !self.configures(info) || info.kind == Kind::KubernetesGateway;
        is_of_all || self.revision.is_empty() || label.is_none_or(|label| *self.revision == *label)
    }

    /// API group and supported versions of a kind in this cluster, the preferred version first.
    pub(crate) fn api_of<'a>(&'a self, info: &KindInfo) -> (&'a str, Vec<&'a str>) {
        match info.is_multi_cluster() {
            true => (&self.multi_cluster_api.group, vec![&self.multi_cluster_api.version]),
            false => (info.group, info.versions.to_vec()),
        }
    }

    /// The kinds that are read from the cluster.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        KINDS.iter().map(|info| info.kind).filter(|kind| self.reads(*kind)).collect()
    }
}
