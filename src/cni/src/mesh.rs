//! Enrols pods in the ambient mesh, and withdraws them.
//!
//! In order: rules in the namespace of the pod, ztunnel, probes, the annotation. The annotation says to the control plane
//! that the pod is reachable over HBONE, so it is written last. A pod whose traffic is redirected while no ztunnel serves
//! it has no connections: it has the annotation `pending`, and is tried again.

use std::net::IpAddr;
use std::sync::Arc;

use kube::Client;
use serde_json::{Value, json};
use sluice_kube::{ObjectPath, RequestError};
use sluice_proto::istio::workload::zds::WorkloadInfo;
use sluice_redirection::namespace::NetworkNamespace;
use sluice_redirection::{ambient, annotations};
use tracing::{info, warn};

use crate::node_network::{NetworkError, NodeNetwork};
use crate::pod::{ENABLED, NodePod, PENDING, REDIRECTION};
use crate::zds::{ZdsError, ZdsServer};

const PODS: ObjectPath = ObjectPath::new("/api/v1", "pods");

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
    /// Enrols a pod. A repeated call replaces its rules. `namespace` is the path of the container runtime; without one, it
    /// is found by the processes of the pod.
    pub(crate) async fn enrol(
        &self,
        pod: &NodePod,
        addresses: &[IpAddr],
        namespace: Option<String>,
    ) -> Result<(), MeshError> {
        let namespace = self.redirect(pod, namespace).await?;
        if let Err(error) = self.zds.add(&pod.uid, workload(pod), namespace).await {
            if pod.redirection() != Some(PENDING) {
                self.annotate(pod, Some(PENDING)).await?;
            }
            return Err(error.into());
        }
        let (network, uid, probed) = (Arc::clone(&self.network), pod.uid.clone(), addresses.to_vec());
        blocking(move || network.probe(&uid, &probed)).await??;
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
        let (network, restored) = (Arc::clone(&self.network), pod.clone());
        blocking(move || {
            if let (true, Some(namespace)) = (reconcile, namespace) {
                redirect_in(&network, &restored, &namespace)?;
            }
            network.probe(&restored.uid, &restored.addresses)
        })
        .await??;
        Ok(())
    }

    /// Withdraws a pod. The rules of one that has ended need no removal.
    pub(crate) async fn withdraw(&self, pod: &NodePod, has_ended: bool) -> Result<(), MeshError> {
        let (network, zds, withdrawn) = (Arc::clone(&self.network), Arc::clone(&self.zds), pod.clone());
        blocking(move || {
            network.forget(&withdrawn.uid)?;
            if has_ended {
                return Ok(());
            }
            let namespace = match zds.namespace(&withdrawn.uid) {
                Some(namespace) => namespace,
                None => match network.find(&withdrawn) {
                    Ok(namespace) => Arc::new(namespace),
                    Err(NetworkError::NotFound) => return Ok(()),
                    Err(error) => return Err(error),
                },
            };
            Ok(namespace.run(ambient::withdraw)??)
        })
        .await??;
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

    /// Writes the rules of a pod, and returns its namespace.
    async fn redirect(&self, pod: &NodePod, namespace: Option<String>) -> Result<Arc<NetworkNamespace>, MeshError> {
        let known = self.zds.namespace(&pod.uid);
        let (network, pod) = (Arc::clone(&self.network), pod.clone());
        let redirect = move || {
            let namespace = match (namespace, known) {
                (Some(path), _) => Arc::new(network.open_pod(&path)?),
                (None, Some(known)) => known,
                (None, None) => Arc::new(network.find(&pod)?),
            };
            redirect_in(&network, &pod, &namespace)?;
            Ok::<_, NetworkError>(namespace)
        };
        Ok(blocking(redirect).await??)
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

fn redirect_in(network: &NodeNetwork, pod: &NodePod, namespace: &NetworkNamespace) -> Result<(), NetworkError> {
    let (settings, errors) = annotations::ambient(&pod.annotations);
    for error in errors {
        warn!(pod = %pod.name, %error, "annotation is ignored");
    }
    Ok(namespace.run(|| ambient::enrol(network.settings(), &settings))??)
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
