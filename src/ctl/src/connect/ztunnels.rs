//! The ztunnel pods of a cluster.

use serde_json::Value;

use super::error::QueryError;
use super::kubernetes::{ClusterFlags, KubeconfigCluster, PodReference, is_running, items, pod_of};
use crate::similar_name::similar;

const SELECTOR: &str = "app=ztunnel";

/// Which ztunnel is asked.
#[derive(Clone, Copy)]
pub(crate) struct ZtunnelTarget<'a> {
    /// A ztunnel pod, or another pod: then the ztunnel of its node.
    pub(crate) pod: Option<&'a str>,
    /// Namespace of a pod that is named without one; empty for that of the control plane.
    pub(crate) namespace: &'a str,
    /// The ztunnel of this node.
    pub(crate) node: Option<&'a str>,
    /// Port of the admin interface.
    pub(crate) port: u16,
    pub(crate) cluster: &'a ClusterFlags,
}

/// A ztunnel pod with its node.
pub(super) struct ZtunnelPod {
    pub(super) pod: PodReference,
    node: String,
}

/// A ztunnel that was found, and the name and namespace of the pod that was named in its place.
pub(super) struct FoundPod {
    pub(super) pod: PodReference,
    pub(super) workload: Option<(String, String)>,
}

impl KubeconfigCluster {
    /// The running ztunnel pods of a namespace.
    pub(super) async fn ztunnels(&self, namespace: &str) -> Result<Vec<ZtunnelPod>, QueryError> {
        let list = self.pods(namespace, SELECTOR).await?;
        let ztunnel = |pod: &Value| ZtunnelPod { pod: pod_of(pod), node: node_of(pod) };
        let ztunnels: Vec<ZtunnelPod> = items(&list).iter().filter(|pod| is_running(pod)).map(ztunnel).collect();
        if ztunnels.is_empty() {
            let reason = format!(
                "no running pods in {namespace:?} have the label {SELECTOR}; --istioNamespace is their namespace"
            );
            return Err(QueryError::Cluster(reason));
        }
        Ok(ztunnels)
    }

    /// The ztunnel that the flags name.
    pub(super) async fn find_ztunnel(&self, target: &ZtunnelTarget<'_>, only: bool) -> Result<FoundPod, QueryError> {
        let namespace = target.cluster.istio_namespace.as_str();
        if let Some(node) = target.node {
            let pod = of_node(self.ztunnels(namespace).await?, node)?;
            return Ok(FoundPod { pod, workload: None });
        }
        let Some(named) = target.pod else {
            let mut ztunnels = self.ztunnels(namespace).await?;
            if only && ztunnels.len() > 1 {
                let names: Vec<&str> = ztunnels.iter().map(|it| it.pod.name.as_str()).collect();
                let reason = format!("there are several ztunnels: name one, or use --node: {}", names.join(", "));
                return Err(QueryError::Flags(reason));
            }
            return Ok(FoundPod { pod: ztunnels.swap_remove(0).pod, workload: None });
        };
        let default = if target.namespace.is_empty() { namespace } else { target.namespace };
        let pod = self.pod_of_proxy(named, default).await?;
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        let object = self.read(&path).await?;
        if object["metadata"]["labels"]["app"] == "ztunnel" {
            return Ok(FoundPod { pod, workload: None });
        }
        let node = node_of(&object);
        if node.is_empty() {
            return Err(QueryError::NotFound(format!("pod {}.{} is on no node yet", pod.name, pod.namespace)));
        }
        let ztunnel = of_node(self.ztunnels(namespace).await?, &node)?;
        Ok(FoundPod { pod: ztunnel, workload: Some((pod.name, pod.namespace)) })
    }
}

fn node_of(pod: &Value) -> String {
    pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

/// The ztunnel of a node.
fn of_node(ztunnels: Vec<ZtunnelPod>, node: &str) -> Result<PodReference, QueryError> {
    if let Some(found) = ztunnels.iter().find(|it| it.node == node) {
        return Ok(found.pod.clone());
    }
    let hint = similar(node, ztunnels.iter().map(|it| it.node.as_str()));
    let hint = hint.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
    Err(QueryError::NotFound(format!("no ztunnel runs on node {node:?}{hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ztunnel_of_an_unknown_node_is_reported_with_a_similar_name() {
        let ztunnels = || {
            let pod = PodReference {
                name: "ztunnel-a".to_owned(),
                namespace: "istio-system".to_owned(),
                revision: String::new(),
            };
            vec![ZtunnelPod { pod, node: "worker-1".to_owned() }]
        };
        assert_eq!(of_node(ztunnels(), "worker-1").map(|pod| pod.name).ok().as_deref(), Some("ztunnel-a"));
        let error = of_node(ztunnels(), "worker-2").expect_err("no such node");
        assert_eq!(error.to_string(), "no ztunnel runs on node \"worker-2\"; did you mean \"worker-1\"?");
    }
}
