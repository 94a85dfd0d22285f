//! The CNI agent of a node whose pods are network namespaces.

use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::{Context, Result};
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node_directory::NodeDirectory;
use sluice_testkit::pods::network::PodNet;
use sluice_testkit::pods::pod_set::Pod;
use sluice_testkit::pods::workload::Workload;

use crate::fixture::until;

/// The number of the process of the first pod in the `/proc` of the node.
const FIRST_PROCESS: usize = 4000;

/// An agent. It ends when this is dropped.
pub(crate) struct NodeAgent<'c> {
    cluster: &'c Cluster,
    directory: NodeDirectory,
    process: Child,
}

impl<'c> NodeAgent<'c> {
    /// Starts the agent of a node with these pods. Rules of the node itself are written in the namespace `own`.
    pub(crate) async fn start(cluster: &'c Cluster, node: &str, own: &PodNet, pods: &[&Pod]) -> Result<Self> {
        let directory = NodeDirectory::new(&namespace(own)?)?;
        for (process, pod) in (FIRST_PROCESS..).zip(pods) {
            directory.add_process(process, &namespace(&pod.net)?)?;
            let object = cluster.get("v1", "Pod", pod.workload.namespace, pod.workload.name).await?.unwrap_or_default();
            let uid = object["metadata"]["uid"].as_str();
            let uid = uid.with_context(|| format!("pod {} has no UID", pod.workload.name))?;
            directory.set_pod_of_process(process, uid)?;
        }
        std::fs::write(directory.path("account/token"), "the plugin does not run")?;
        let kubeconfig = cluster.admin_kubeconfig();
        let more = [("kubeconfig", kubeconfig.as_path()), ("skip-tls-verify", "true".as_ref())];
        let process = directory.start_agent(&workspace_binary("sluice-cni")?, cluster, node, &more)?;
        Ok(Self { cluster, directory, process })
    }

    /// The socket for ztunnel.
    pub(crate) fn ztunnel_socket(&self) -> PathBuf {
        self.directory.ztunnel_socket()
    }

    /// Waits until the annotation of a pod says whether it is enrolled.
    pub(crate) async fn has_annotated(&self, pod: &Pod, redirection: Option<&str>) -> Result<()> {
        let Workload { namespace, name, .. } = pod.workload;
        let waited = until("the agent annotates a pod", async || {
            let found = self.cluster.get("v1", "Pod", namespace, name).await?.unwrap_or_default();
            Ok(found["metadata"]["annotations"]["ambient.istio.io/redirection"].as_str() == redirection)
        });
        waited.await.with_context(|| format!("pod {name}, expected {redirection:?}:\n{}", self.log_tail()))
    }

    /// The end of its log.
    fn log_tail(&self) -> String {
        let log = self.directory.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// The file of a network namespace.
fn namespace(net: &PodNet) -> Result<PathBuf> {
    Ok(Path::new("/run/netns").join(net.namespace.as_ref().context("it has a network namespace")?))
}

impl Drop for NodeAgent<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
