//! Enrols pods in the ambient mesh, and withdraws them.
//!
//! A running pod is enrolled in this order: ztunnel, probes, rules in its namespace, the annotation. ztunnel acknowledges when it
//! listens there, so that no connection is redirected to a closed port. Without ztunnel, the pod stays as it is, and is tried
//! again. Istio's agent writes the rules first: until ztunnel listens, connections are refused.
//!
//! A starting pod has the rules first: it has no connections yet, and none may leave it unless it is redirected. Without ztunnel,
//! it does not start, and has the annotation `pending`.
//!
//! The annotation says to the control plane that the pod is reachable over HBONE, so it is written last. A pod is withdrawn in the
//! opposite order, and ztunnel accepts tunnels until clients know.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};
use sluice_kube::{ObjectPath, RequestError};
use sluice_proto::istio::workload::zds::WorkloadInfo;
use sluice_redirection::ambient::{self, NodeSettings, PodSettings};
use sluice_redirection::namespace::NetworkNamespace;
use sluice_redirection::{ApplyError, annotations};
use tracing::{info, warn};

use crate::node_network::{NetworkError, NodeNetwork};
use crate::pod::{ENABLED, NodePod, PENDING, REDIRECTION};
use crate::zds::{ZdsError, ZdsServer};

const PODS: ObjectPath = ObjectPath::new("/api/v1", "pods");

/// Time in which clients learn that a pod accepts no tunnels any more, and in which its open connections may end.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Whether the containers of a pod have started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum PodStart {
    /// They have not. The container runtime names the path of the network namespace.
    Starting(String),
    /// They may have. The network namespace is found by the processes of the pod.
    Running,
}

/// Why a pod is not enrolled or withdrawn.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeshError {
    /// Namespace or rules.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// ztunnel.
    #[error(transparent)]
    Zds(#[from] ZdsError),
    /// The annotation cannot be written.
    #[error("annotate the pod: {0}")]
    Annotate(RequestError),
    /// The process ends.
    #[error("interrupted")]
    Interrupted,
}

/// The ambient mesh on this node.
pub(crate) struct AmbientMesh {
    pub(crate) network: Arc<NodeNetwork>,
    pub(crate) zds: Arc<ZdsServer>,
    pub(crate) client: Client,
}

impl AmbientMesh {
    /// Enrols a pod. A repeated call replaces its rules.
    ///
    /// # Errors
    /// A step fails. ztunnel may have the pod: the caller has to repeat the call, or to withdraw the pod.
    pub(crate) async fn enrol(&self, pod: &NodePod, start: PodStart) -> Result<(), MeshError> {
        let is_starting = start != PodStart::Running;
        let namespace = self.namespace(pod, start).await?;
        if is_starting {
            self.redirect(pod, &namespace).await?;
        }
        if let Err(error) = self.zds.add(&pod.uid, workload(pod), Arc::clone(&namespace)).await {
            if is_starting && pod.redirection() != Some(PENDING) {
                self.annotate(pod, Some(PENDING)).await?;
            }
            return Err(error.into());
        }
        self.probe(pod).await?;
        if !is_starting {
            self.redirect(pod, &namespace).await?;
        }
        self.annotate(pod, Some(ENABLED)).await?;
        info!(pod = %pod.name, "enrolled in the ambient mesh");
        Ok(())
    }

    /// Restores the state of a pod that an earlier run of the agent enrolled. ztunnel may be connected to no agent
    /// meanwhile, and continues to serve the pod.
    pub(crate) async fn restore(&self, pod: &NodePod, reconcile: bool) -> Result<(), MeshError> {
        let (network, sought) = (Arc::clone(&self.network), pod.clone());
        let found = blocking(move || network.find(&sought)).await?;
        let namespace = match found {
            Ok(namespace) => Some(Arc::new(namespace)),
            Err(error) => {
                warn!(pod = %pod.name, %error, "ztunnel keeps the network namespace that it has");
                None
            }
        };
        self.zds.restore(&pod.uid, workload(pod), namespace.clone());
        if let (true, Some(namespace)) = (reconcile, &namespace) {
            self.redirect(pod, namespace).await?;
        }
        self.probe(pod).await
    }

    /// Marks probes of the addresses of a pod, so that they are not redirected.
    pub(crate) async fn probe(&self, pod: &NodePod) -> Result<(), MeshError> {
        let (network, probed) = (Arc::clone(&self.network), pod.clone());
        Ok(blocking(move || network.probe(&probed.uid, &probed.addresses)).await??)
    }

    /// Withdraws a pod. The rules of one that has ended need no removal.
    ///
    /// # Errors
    /// A step fails. The caller has to repeat the call.
    pub(crate) async fn withdraw(&self, pod: &NodePod, has_ended: bool) -> Result<(), MeshError> {
        if !has_ended {
            match self.namespace(pod, PodStart::Running).await {
                Ok(namespace) => {
                    self.drain(pod, &namespace).await?;
                    self.change_rules(pod, &namespace, |_, _| ambient::withdraw()).await?;
                }
                Err(MeshError::Network(NetworkError::NotFound)) => {}
                Err(error) => return Err(error),
            }
        }
        let (network, uid) = (Arc::clone(&self.network), pod.uid.clone());
        blocking(move || network.forget(&uid)).await??;
        self.zds.remove(&pod.uid).await?;
        if let Err(error) = self.annotate(pod, None).await {
            if !has_ended {
                return Err(error);
            }
            info!(pod = %pod.name, %error, "annotation of a pod that has ended");
        }
        info!(pod = %pod.name, "withdrawn from the ambient mesh");
        Ok(())
    }

    /// Ends the redirection of new connections of an enrolled pod. ztunnel serves open ones, and tunnels of clients that do not know
    /// yet, for [`DRAIN_TIME`]. Istio's agent ends them at once.
    async fn drain(&self, pod: &NodePod, namespace: &Arc<NetworkNamespace>) -> Result<(), MeshError> {
        let is_served = self.zds.namespace(&pod.uid).is_some() && self.zds.connected() > 0;
        if !is_served || pod.redirection() != Some(ENABLED) {
            return Ok(());
        }
        self.change_rules(pod, namespace, ambient::drain).await?;
        self.annotate(pod, Some(PENDING)).await?;
        tokio::time::sleep(DRAIN_TIME).await;
        Ok(())
    }

    /// The network namespace of a pod.
    async fn namespace(&self, pod: &NodePod, start: PodStart) -> Result<Arc<NetworkNamespace>, MeshError> {
        let known = self.zds.namespace(&pod.uid);
        let (network, pod) = (Arc::clone(&self.network), pod.clone());
        let open = move || match (start, known) {
            (PodStart::Starting(path), _) => Ok(Arc::new(network.open_pod(&path)?)),
            (PodStart::Running, Some(known)) => Ok(known),
            (PodStart::Running, None) => network.find(&pod).map(Arc::new),
        };
        Ok(blocking(open).await??)
    }

    /// Writes the rules of a pod.
    async fn redirect(&self, pod: &NodePod, namespace: &Arc<NetworkNamespace>) -> Result<(), MeshError> {
        self.change_rules(pod, namespace, ambient::enrol).await
    }

    async fn change_rules(
        &self,
        pod: &NodePod,
        namespace: &Arc<NetworkNamespace>,
        change: fn(&NodeSettings, &PodSettings) -> Result<(), ApplyError>,
    ) -> Result<(), MeshError> {
        let (network, namespace, settings) = (Arc::clone(&self.network), Arc::clone(namespace), settings(pod));
        let change = move || Ok::<_, NetworkError>(namespace.run(|| change(network.settings(), &settings))??);
        Ok(blocking(change).await??)
    }

    /// Writes or removes the annotation. `pods/status` is the smaller right, and suffices.
    async fn annotate(&self, pod: &NodePod, value: Option<&str>) -> Result<(), MeshError> {
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": {REDIRECTION: value}}});
        let path = PODS.of(&pod.name.namespace, &pod.name.name, "status");
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        let request = request.body(patch.to_string().into_bytes());
        let request = request.map_err(|error| MeshError::Annotate(RequestError::Malformed(error.to_string())))?;
        match sluice_kube::request::<Value>(&self.client, request).await.map_err(RequestError::from) {
            Ok(_) => Ok(()),
            // It has been deleted, or another pod has its name.
            Err(RequestError::Status { code: 404 | 409, .. }) if value.is_none() => Ok(()),
            Err(error) => Err(MeshError::Annotate(error)),
        }
    }
}

fn settings(pod: &NodePod) -> PodSettings {
    let (settings, errors) = annotations::ambient(&pod.annotations);
    for error in errors {
        warn!(pod = %pod.name, %error, "annotation is ignored");
    }
    settings
}

fn workload(pod: &NodePod) -> WorkloadInfo {
    WorkloadInfo {
        name: pod.name.name.clone(),
        namespace: pod.name.namespace.clone(),
        service_account: pod.service_account.clone(),
    }
}

/// Runs a function that waits for programs.
async fn blocking<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> Result<T, MeshError> {
    tokio::task::spawn_blocking(function).await.map_err(|_| MeshError::Interrupted)
}
