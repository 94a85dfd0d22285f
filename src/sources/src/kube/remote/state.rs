//! Sync states of remote clusters, for `/debug/clusterz` and for metrics under istiod's names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use arc_swap::ArcSwap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use sluice_model::Text;
use sluice_telemetry::Count;

/// The sync state of a cluster.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncStatus {
    /// All kinds are synced.
    Synced,
    /// Some kinds have not been listed yet with the current kubeconfig.
    Syncing,
    /// Some kinds were not synced within `PILOT_REMOTE_CLUSTER_TIMEOUT`; proxies are served without them.
    Timeout,
}

/// A cluster in `/debug/clusterz`.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Its id.
    pub id: Text,
    /// NAMESPACE/NAME of the Secret with its kubeconfig, or path of the file; empty if it has none.
    pub secret_name: Text,
    /// Its sync state.
    pub sync_status: SyncStatus,
}

/// Sync states of the remote clusters. A clone is another handle.
#[derive(Clone, Debug, Default)]
pub struct RemoteStates {
    /// Clusters that Secrets declare, by id.
    of_secrets: Arc<ArcSwap<BTreeMap<Text, ClusterInfo>>>,
    /// Clusters that `--remoteConfigDir` declares.
    configured: BTreeSet<Text>,
}

impl RemoteStates {
    /// With the clusters that `--remoteConfigDir` declares, and without clusters of Secrets yet.
    #[must_use]
    pub fn new(configured: BTreeSet<Text>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// The configured clusters, whose status is always `Synced`, and the clusters of Secrets.
    #[must_use]
    pub fn all(&self) -> Vec<ClusterInfo> {
        let configured = self.configured.iter().map(|id| ClusterInfo {
            id: id.clone(),
            secret_name: Text::default(),
            sync_status: SyncStatus::Synced,
        });
        configured.chain(self.of_secrets.load().values().cloned()).collect()
    }

    pub(super) fn set(&self, of_secrets: BTreeMap<Text, ClusterInfo>) {
        self.of_secrets.store(Arc::new(of_secrets));
    }
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct TypeLabel {
    cluster_type: &'static str,
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ClusterLabel {
    cluster: String,
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct StatusLabel {
    cluster: String,
    cluster_type: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct EventLabel {
    event: &'static str,
}

/// Metrics of remote clusters. A clone is another handle.
#[derive(Clone, Default)]
pub struct ClusterMetrics {
    managed: Family<TypeLabel, Gauge<i64, AtomicI64>>,
    timeouts: Family<ClusterLabel, Count>,
    statuses: Family<StatusLabel, Gauge<i64, AtomicI64>>,
    events: Family<EventLabel, Count>,
}

impl ClusterMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.set_clusters(&BTreeMap::new(), 0);
        registry.register("istiod_managed_clusters", "Clusters that are read, by type", self.managed.clone());
        registry.register(
            "remote_cluster_sync_timeouts_total",
            "Remote clusters that were not synced within PILOT_REMOTE_CLUSTER_TIMEOUT",
            self.timeouts.clone(),
        );
        registry.register(
            "istiod_remote_cluster_sync_status",
            "Sync status of each remote cluster: 1 for its current status, 0 for the others",
            self.statuses.clone(),
        );
        registry.register(
            "remote_cluster_secret_events_total",
            "Changes of Secrets with kubeconfigs of remote clusters",
            self.events.clone(),
        );
    }

    pub(super) fn count_event(&self, event: &'static str) {
        self.events.get_or_create(&EventLabel { event }).inc();
    }

    pub(super) fn count_timeout(&self, cluster: &str) {
        self.timeouts.get_or_create(&ClusterLabel { cluster: cluster.to_owned() }).inc();
    }

    /// Sets the gauges: the clusters of Secrets, and the number of clusters that `--remoteConfigDir` declares.
    pub(super) fn set_clusters(&self, of_secrets: &BTreeMap<Text, ClusterInfo>, configured: usize) {
        self.managed.get_or_create(&TypeLabel { cluster_type: "local" }).set(1);
        let remote = i64::try_from(of_secrets.len() + configured).unwrap_or(i64::MAX);
        self.managed.get_or_create(&TypeLabel { cluster_type: "remote" }).set(remote);
        self.statuses.clear();
        for info in of_secrets.values() {
            let statuses =
                [(SyncStatus::Synced, "synced"), (SyncStatus::Syncing, "syncing"), (SyncStatus::Timeout, "timeout")];
            for (sync_status, status) in statuses {
                let label = StatusLabel { cluster: info.id.to_string(), cluster_type: "remote", status };
                self.statuses.get_or_create(&label).set(i64::from(info.sync_status == sync_status));
            }
        }
    }
}

impl fmt::Debug for ClusterMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterMetrics")
    }
}
