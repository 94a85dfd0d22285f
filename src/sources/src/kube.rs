//! The Kubernetes API as the source of a cluster's objects (C03, C04).
//!
//! Each kind that the graph uses is listed and watched. This module passes parsed objects to the sink and keeps their keys only. A kind that a CustomResourceDefinition defines is read while the
//! definition exists.

mod definitions;
mod exports;
mod objects;
mod patches;
mod registration;
mod remote;
mod reviews;
mod secret;

use std::sync::Arc;

use futures::FutureExt as _;
use kube::Client;
use sluice_kube::{Api, ByKey, KubeOptions, ListWatch, Receiver, Resource};
pub use sluice_kube::{WatchStates, WatchSummary};
use sluice_model::{Kind, Text};
use sluice_parse::{KINDS, KindInfo};
use sluice_tasks::restart_with;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::{Cluster, Sink};
use definitions::Definitions;
pub use exports::ExportWriter;
use objects::ObjectsReceiver;
pub use patches::{PartUpdate, PartWrite, PartWriter};
pub use registration::{
    CleanupOptions, EntryCleaner, Refuse, RegistrarHandle, RegistrationMetrics, RegistrationOptions, WorkloadRegistrar,
    WorkloadStream,
};
pub use remote::{
    ClusterInfo, ClusterMetrics, KubeconfigSource, RemoteClusters, RemoteOptions, RemoteStates, SyncStatus,
};
pub use reviews::SecretReviewer;
pub use secret::read_secret;

/// A cluster behind the Kubernetes API.
pub struct KubeSource {
    /// Client of the cluster.
    pub client: Client,
    /// The cluster, and what is read from it.
    pub cluster: Cluster,
    /// Namespace of the control plane. Its ConfigMaps are read whatever `namespace` is.
    pub system_namespace: Text,
    /// The only namespace to read objects of; `None` is all.
    pub namespace: Option<Text>,
    /// Limits of lists and watches.
    pub options: KubeOptions,
    /// States of the watched collections.
    pub states: WatchStates,
}

impl KubeSource {
    /// Lists and watches every kind until `stop` is cancelled. Failures are retried without limit, and the objects of an
    /// unreachable cluster stay.
    pub async fn run(self, sink: Arc<dyn Sink>, stop: CancellationToken) {
        let api = Api::new(self.client.clone(), self.cluster.id.clone(), self.options, self.states.clone());
        let mut tasks = JoinSet::new();
        let (defined, definitions) = watch::channel(None);
        let crds = ByKey::new(Definitions::new(defined));
        let definitions_watch =
            ListWatch::new(api.clone(), Resource::custom_resource_definitions(), self.options.backoff(), crds);
        tasks.spawn(keep_watching("watch of CustomResourceDefinition".to_owned(), definitions_watch));
        let (used, unused): (Vec<_>, Vec<_>) = KINDS.iter().partition(|info| self.uses(info));
        // The graph does not use these kinds, so they are synced from the start.
        sink.synced(&self.cluster.id, &unused.iter().map(|info| info.kind).collect::<Vec<_>>());
        for info in used {
            let namespace = self.namespace_of(info);
            let objects = ObjectsReceiver::new(info, self.cluster.clone(), sink.clone());
            if info.is_custom() {
                let following = definitions::follow(
                    api.clone(),
                    info,
                    namespace,
                    self.options.backoff(),
                    objects,
                    definitions.clone(),
                );
                tasks.spawn(following);
            } else {
                let version = info.versions.first().copied().unwrap_or("v1");
                let resource = Resource::new(info, (info.group, version), namespace);
                let watching = ListWatch::new(api.clone(), resource, self.options.backoff(), objects);
                tasks.spawn(keep_watching(task_name(info), watching));
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            Some(ended) = tasks.join_next() => match ended {
                Ok(()) => error!(cluster = %self.cluster.id, "task of a Kubernetes source ended"),
                Err(error) => error!(cluster = %self.cluster.id, %error, "task of a Kubernetes source failed"),
            },
        }
        tasks.shutdown().await;
    }

    /// Whether the graph uses objects of the kind from this cluster.
    fn uses(&self, info: &KindInfo) -> bool {
        info.parse.is_some() && self.cluster.reads(info.kind)
    }

    fn namespace_of(&self, info: &KindInfo) -> Option<Text> {
        match info.kind {
            // The mesh config is in the namespace of the control plane.
            Kind::ConfigMap => self.namespace.as_ref().map(|_| self.system_namespace.clone()),
            _ if info.namespaced => self.namespace.clone(),
            _ => None,
        }
    }
}

/// Name of the task that watches a kind.
fn task_name(info: &KindInfo) -> String {
    format!("watch of {}", info.kind)
}

/// Lists and watches a collection, again after a panic: a new list contains what the panic has left out.
async fn keep_watching<R: Receiver + Sync>(name: String, mut watch: ListWatch<R>) {
    restart_with(&name, &mut watch, |watch| watch.run().boxed()).await;
}

/// Publishes a value if it differs from the published one.
fn publish<T: Clone + PartialEq>(sender: &watch::Sender<Option<T>>, value: &T) {
    sender.send_if_modified(|published| {
        let has_changed = published.as_ref() != Some(value);
        if has_changed {
            *published = Some(value.clone());
        }
        has_changed
    });
}
