//! Pods whose objects are in a real API server. The tests are their kubelet.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::json;

use super::app::AppRequest;
use super::network::{BridgeNetwork, PodNet};
use super::pod_set::{ControlPlaneAccess, PodSet, ROOTS};
use super::workload::Workload;
use crate::cluster::Cluster;

/// Audience of the tokens of proxies.
const AUDIENCE: &str = "istio-ca";

/// Pods of a cluster. Each reaches the control plane that it is started with.
pub struct ClusterMesh<'c> {
    cluster: &'c Cluster,
    /// Further environment of the agents of pods that are started afterwards.
    pub variables: Vec<(&'static str, String)>,
    /// The pods.
    pub pods: PodSet,
}

impl<'c> ClusterMesh<'c> {
    /// A network without pods.
    ///
    /// # Errors
    /// Pods are not permitted here.
    pub fn new(cluster: &'c Cluster) -> Result<Self> {
        Ok(Self { cluster, variables: Vec::new(), pods: PodSet::new(Some(BridgeNetwork::new()?))? })
    }

    /// The same for the cluster with an id, whose pods are in a network of the mesh.
    ///
    /// # Errors
    /// As [`ClusterMesh::new`].
    pub fn in_network(cluster: &'c Cluster, id: &str, network: &str) -> Result<Self> {
        let variables = vec![("ISTIO_META_CLUSTER_ID", id.to_owned()), ("ISTIO_META_NETWORK", network.to_owned())];
        Ok(Self { variables, ..Self::new(cluster)? })
    }

    /// Creates pods with their service accounts, starts them with the control plane at an address, and waits until they are
    /// ready. Their namespaces exist.
    ///
    /// # Errors
    /// The API server rejects an object, a namespace gets no roots, or a pod does not start.
    pub async fn deploy(&mut self, workloads: &[Workload], discovery: SocketAddr) -> Result<()> {
        let nets: Result<Vec<PodNet>> = workloads.iter().map(|_| self.pods.add_network()).collect();
        self.start(workloads, nets?, discovery).await
    }

    /// Ends a pod that is not ready, and starts another of the same workload, with another address and the control plane at an
    /// address.
    ///
    /// # Errors
    /// As [`deploy`](Self::deploy).
    pub async fn replace(&mut self, name: &str, discovery: SocketAddr) -> Result<()> {
        let workload = self.pods.pod(name).workload.clone();
        let key = (workload.namespace, workload.name);
        self.pods.stop(name)?;
        let net = self.pods.add_network()?;
        self.cluster.delete("v1", "Pod", key.0, key.1).await?;
        self.start(&[workload], vec![net], discovery).await
    }

    async fn start(&mut self, workloads: &[Workload], nets: Vec<PodNet>, discovery: SocketAddr) -> Result<()> {
        for (workload, net) in workloads.iter().zip(&nets) {
            let account = json!({"namespace": workload.namespace, "name": workload.app});
            self.cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})).await?;
            // The EndpointSlice controller skips pods whose node does not exist.
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": workload.node()}});
            self.cluster.apply(&node).await?;
            for mut object in workload.objects(net) {
                if let Some(fields) = object.as_object_mut() {
                    fields.remove("status");
                }
                self.cluster
                    .apply(&object)
                    .await
                    .with_context(|| format!("create the objects of {}", workload.name))?;
            }
            let address = net.ip.to_string();
            self.cluster.report_pod((workload.namespace, workload.name), &address, false).await?;
            let namespace = workload.namespace;
            self.cluster.exists("v1", "ConfigMap", namespace, "istio-ca-root-cert").await?;
            let roots = self.cluster.get("v1", "ConfigMap", namespace, "istio-ca-root-cert").await?.unwrap_or_default();
            self.pods.replace(ROOTS, roots["data"]["root-cert.pem"].as_str().context("the ConfigMap has roots")?)?;
        }
        self.pods.set_external_names(std::iter::empty())?;
        let (cluster, variables) = (self.cluster, &self.variables);
        let access = async |workload: &Workload| {
            let account = (workload.namespace, workload.app);
            let token = cluster.create_token(account, Some(AUDIENCE), None).await?;
            Ok(ControlPlaneAccess { discovery, token, variables: variables.clone(), machine: None })
        };
        self.pods.start(workloads.iter().zip(nets), access).await?;
        for workload in workloads {
            self.set_ready(workload.name, true).await?;
        }
        Ok(())
    }

    /// Reports that a pod is ready, or that it is not.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn set_ready(&self, name: &str, is_ready: bool) -> Result<()> {
        let pod = self.pods.pod(name);
        let key = (pod.workload.namespace, pod.workload.name);
        self.cluster.report_pod(key, &pod.net.ip.to_string(), is_ready).await
    }

    /// `GET /` of a Service with a port 80, at its cluster IP.
    ///
    /// # Errors
    /// The Service does not exist.
    pub async fn get(&self, namespace: &str, service: &str) -> Result<AppRequest> {
        let object = self.cluster.get("v1", "Service", namespace, service).await?.context("the Service exists")?;
        let ip = object["spec"]["clusterIP"].as_str().context("it has a cluster IP")?;
        Ok(AppRequest::get(SocketAddr::new(ip.parse()?, 80), &format!("{service}.{namespace}")))
    }
}
