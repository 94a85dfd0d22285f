//! Sync states of clusters, for the debug page and for metrics under istiod's names.

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
    /// All its objects have been read.
    Synced,
    /// They are being read for the first time, by this kubeconfig.
    Syncing,
    /// The first read exceeded its timeout; proxies are served without it.
    Timeout,
}

/// A cluster, as `/debug/clusterz` shows it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Its id.
    pub id: Text,
    /// NAMESPACE/NAME of the Secret with its kubeconfig; empty if flags name the cluster.
    pub secret_name: Text,
    /// Its sync state.
    pub sync_status: SyncStatus,
}

/// The remote clusters. A clone is another handle.
#[derive(Clone, Debug, Default)]
pub struct RemoteStates {
    /// Clusters that Secrets name, by id.
    by_secrets: Arc<ArcSwap<BTreeMap<Text, ClusterInfo>>>,
    elsewhere: BTreeSet<Text>,
}

impl RemoteStates {
    /// With the clusters that flags name, and without clusters of Secrets yet.
    #[must_use]
    pub fn new(elsewhere: BTreeSet<Text>) -> Self {
        Self { elsewhere, ..Self::default() }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<ClusterInfo> {
        let elsewhere = self.elsewhere.iter().map(|id| ClusterInfo {
            id: id.clone(),
            secret_name: Text::default(),
            sync_status: SyncStatus::Synced,
        });
        elsewhere.chain(self.by_secrets.load().values().cloned()).collect()
    }

    pub(super) fn set(&self, all: BTreeMap<Text, ClusterInfo>) {
        self.by_secrets.store(Arc::new(all));
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

/// Metrics of clusters. A clone is another handle.
#[derive(Clone, Default)]
pub struct ClusterMetrics {
    managed: Family<TypeLabel, Gauge<i64, AtomicI64>>,
    timeouts: Family<ClusterLabel, Count>,
    statuses: Family<StatusLabel, Gauge<i64, AtomicI64>>,
    events: Family<EventLabel, Count>,
}

impl ClusterMetrics {
    /// Adds everything to the registry.
    pub fn register(&self, registry: &mut Registry) {
        self.show(&BTreeMap::new(), 0);
        registry.register("istiod_managed_clusters", "Clusters that are read, by type", self.managed.clone());
        registry.register(
            "remote_cluster_sync_timeouts_total",
            "Times that a remote cluster could not be read within PILOT_REMOTE_CLUSTER_TIMEOUT",
            self.timeouts.clone(),
        );
        registry.register(
            "istiod_remote_cluster_sync_status",
            "How far each remote cluster is: 1 for the state it is in",
            self.statuses.clone(),
        );
        registry.register(
            "remote_cluster_secret_events_total",
            "Changes of Secrets that say how remote clusters are reached",
            self.events.clone(),
        );
    }

    pub(super) fn count_event(&self, event: &'static str) {
        self.events.get_or_create(&EventLabel { event }).inc();
    }

    pub(super) fn count_timeout(&self, cluster: &str) {
        self.timeouts.get_or_create(&ClusterLabel { cluster: cluster.to_owned() }).inc();
    }

    /// Shows the remote clusters, and as many that are read from elsewhere.
    pub(super) fn show(&self, all: &BTreeMap<Text, ClusterInfo>, elsewhere: usize) {
        self.managed.get_or_create(&TypeLabel { cluster_type: "local" }).set(1);
        let remote = i64::try_from(all.len() + elsewhere).unwrap_or(i64::MAX);
        self.managed.get_or_create(&TypeLabel { cluster_type: "remote" }).set(remote);
        self.statuses.clear();
        for info in all.values() {
            let states =
                [(SyncStatus::Synced, "synced"), (SyncStatus::Syncing, "syncing"), (SyncStatus::Timeout, "timeout")];
            for (state, status) in states {
                let label = StatusLabel { cluster: info.id.to_string(), cluster_type: "remote", status };
                self.statuses.get_or_create(&label).set(i64::from(info.sync_status == state));
            }
        }
    }
}

impl fmt::Debug for ClusterMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterMetrics")
    }
}
