//! The Kubernetes API as the source of a cluster's objects (C03, C04).
//!
//! Each kind that something is derived from, or that a user may expect to have an effect, is listed in pages and then
//! watched. Only what parsing leaves of an object is
//! kept, and that by the sink: here are names only. Kinds of extensions begin when their definition appears and end when
//! it goes.

mod addresses;
mod api;
mod backoff;
mod clients;
mod cluster_bundle;
mod definitions;
mod leader;
mod list_watch;
mod objects;
mod remote;
mod remote_roots;
mod reviews;
mod trust_bundle;
mod turn;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use sluice_model::{Kind, Text};
use sluice_parse::{KINDS, KindInfo};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Cluster, Sink};
pub use addresses::AddressWriter;
use api::Api;
use backoff::Backoff;
pub use clients::Clients;
pub use cluster_bundle::TrustBundleWriter;
use definitions::Definitions;
pub use leader::{ADDRESSES_LEASE, Election, ROOTS_LEASE, TRUST_BUNDLE_LEASE};
use list_watch::ListWatch;
use objects::Objects;
pub use remote::{ClusterInfo, ClusterMetrics, RemoteClusters, RemoteOptions, RemoteStates, SyncStatus};
pub use remote_roots::{RemoteRoots, RootsOptions};
pub use reviews::SecretReviewer;
pub use trust_bundle::BundleWriter;

/// How the API is used.
#[derive(Clone, Copy, Debug)]
pub struct KubeOptions {
    /// Objects a page.
    pub page: usize,
    /// How long one watch lasts at most; the server ends it then and it goes on from there.
    pub watch: Duration,
    /// The first wait after a failure; each further one in a row is twice as long.
    pub first_retry: Duration,
    /// The longest wait.
    pub last_retry: Duration,
}

impl Default for KubeOptions {
    /// 500 objects, 5 minutes, 0.5 to 30 seconds.
    fn default() -> Self {
        Self {
            page: 500,
            watch: Duration::from_secs(290),
            first_retry: Duration::from_millis(500),
            last_retry: Duration::from_secs(30),
        }
    }
}

/// A client by a kubeconfig file, or by the pod's service account without one.
///
/// # Errors
/// Why there is none, a lower-case fragment. The server is not asked yet.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, String> {
    let config = match kubeconfig {
        Some(path) => {
            let fail =
                |error: kube::config::KubeconfigError| format!("kubeconfig {}: {}", path.display(), chain(&error));
            let kubeconfig = Kubeconfig::read_from(path).map_err(fail)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fail)?
        }
        None => Config::incluster().map_err(|error| {
            let hint = "this is no pod: name a cluster with --kubeconfig, or a directory with --configDir";
            format!("{} ({hint})", chain(&error))
        })?,
    };
    Client::try_from(config).map_err(|error| chain(&error))
}

/// An error with what caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text += ": ";
            text += &cause_text;
        }
        source = cause.source();
    }
    text
}

/// Why a request failed. What programs say that fetch credentials is left out: it may hold some.
pub(crate) fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Auth(_) => "no credentials can be got as the kubeconfig says".to_owned(),
        other => chain(other),
    }
}

/// A cluster behind the Kubernetes API.
pub struct KubeSource {
    /// How to reach it.
    pub client: Client,
    /// Which cluster it is.
    pub cluster: Cluster,
    /// Namespace of the control plane: its ConfigMaps are read, whichever `namespace` is.
    pub system_namespace: Text,
    /// The only namespace to read objects of; `None` is all.
    pub namespace: Option<Text>,
    /// How to use it.
    pub options: KubeOptions,
}

impl KubeSource {
    /// Lists and watches every kind until `stop` is cancelled. Failures are retried for ever: a cluster that is away keeps
    /// what was read of it.
    pub async fn run(self, sink: Arc<dyn Sink>, stop: CancellationToken) {
        let api = Api::new(self.client.clone(), self.options).of_cluster(self.cluster.id.clone());
        let mut tasks = JoinSet::new();
        let (defined, definitions) = watch::channel(None);
        let crds = Definitions::new(defined);
        let watching = ListWatch::new(api.clone(), Definitions::resource(), self.backoff(), crds);
        tasks.spawn(async move { drop(watching.run().await) });
        let (read, ignored): (Vec<_>, Vec<_>) = KINDS.iter().partition(|info| self.reads(info));
        // Nothing is derived from these, so there is nothing to wait for. Who writes them is told nevertheless that they
        // have no effect.
        sink.synced(&self.cluster.id, &ignored.iter().map(|info| info.kind).collect::<Vec<_>>());
        let told = ignored.into_iter().filter(|info| info.warn_unsupported && self.cluster.reads(info.kind));
        for info in read.into_iter().chain(told) {
            let namespace = self.namespace_of(info);
            let objects = Objects::new(info, self.cluster.clone(), sink.clone());
            if info.is_custom() && !is_built_in(info) {
                let following =
                    definitions::follow(api.clone(), info, namespace, self.backoff(), objects, definitions.clone());
                tasks.spawn(following);
            } else {
                let resource = api::Resource::new(info, info.versions.first().copied().unwrap_or("v1"), namespace);
                let watching = ListWatch::new(api.clone(), resource, self.backoff(), objects);
                tasks.spawn(async move { drop(watching.run().await) });
            }
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = async { while tasks.join_next().await.is_some() {} } => {}
        }
        tasks.shutdown().await;
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(self.options.first_retry, self.options.last_retry)
    }

    fn reads(&self, info: &KindInfo) -> bool {
        info.parse.is_some() && self.cluster.reads(info.kind)
    }

    fn namespace_of(&self, info: &KindInfo) -> Option<Text> {
        match info.kind {
            // That of the mesh is needed, whatever else is left out.
            Kind::ConfigMap => self.namespace.as_ref().map(|_| self.system_namespace.clone()),
            _ if info.namespaced => self.namespace.clone(),
            _ => None,
        }
    }
}

/// Whether every API server has the kind, although its group looks like an extension's.
fn is_built_in(info: &KindInfo) -> bool {
    info.group == "networking.k8s.io"
}
