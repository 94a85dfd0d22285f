//! What the control plane writes to nodes and has to know of them: taints to remove (S24), versions of kubelets (W07).

use serde::Serialize;
use sluice_engine::Collection;
use sluice_model::{Node, ObjectKey, Pod, Text};

use crate::options::GraphOptions;

/// Label of the pods of the CNI agent.
const CNI_AGENT: (&str, &str) = ("k8s-app", "istio-cni-node");

/// A node whose CNI agent is ready, and the taints that say that it is not.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TaintRemoval {
    /// Key of the taints to remove.
    pub taint: Text,
    /// Their positions in the list of taints, ascending.
    pub positions: Vec<usize>,
}

/// Nodes whose taints must be removed.
/// Key: the node. From: `nodes`, `nodes/with-ready-cni-agent`.
/// Changes when: the CNI agent of a node with the taint becomes ready, or the taint is removed.
/// Size: nodes whose taint is not removed yet; none once all are removed, and none if the option is not set. Rejects: none.
pub(crate) fn derive_taint_removals<'s>(
    nodes: &Collection<'s, ObjectKey, Node>,
    pods: &Collection<'s, ObjectKey, Pod>,
    options: &GraphOptions,
) -> Collection<'s, ObjectKey, TaintRemoval> {
    let (untaint, cluster) = (options.untaint.clone(), options.cluster.clone());
    let agents = pods.index("nodes/with-cni-agent", move |key, pod| {
        let (label, value) = CNI_AGENT;
        let is_agent = pod.labels.get(label).is_some_and(|it| *it == *value);
        let is_watched = untaint.as_ref().is_some_and(|untaint| key.namespace == untaint.cni_namespace);
        let is_ready = is_agent && is_watched && key.cluster == cluster && pod.ready && !pod.node.is_empty();
        is_ready.then(|| (ObjectKey::new(cluster.clone(), "", pod.node.clone()), ()))
    });
    let agents = agents.distinct("nodes/with-ready-cni-agent");
    let taint = options.untaint.as_ref().map(|untaint| untaint.taint.clone());
    nodes.derive("taint_removals", |deps| {
        let agents = deps.on(&agents);
        move |cx, key, node| {
            let taint = taint.clone()?;
            let positions: Vec<usize> =
                node.taints.iter().enumerate().filter(|(_, key)| **key == taint).map(|(n, _)| n).collect();
            if positions.is_empty() {
                return None;
            }
            cx.get(&agents, key).map(|_| TaintRemoval { taint, positions })
        }
    })
}

/// The versions of the kubelets of each cluster, each once.
/// Key: cluster. From: `nodes`. Changes when: the first kubelet of a version is added, or the last one is removed.
/// Size: clusters. Rejects: none.
pub(crate) fn derive_kubelet_versions<'s>(nodes: &Collection<'s, ObjectKey, Node>) -> Collection<'s, Text, Vec<Text>> {
    // A change costs the same however many nodes there are: the group has one row for each version.
    let versions = nodes
        .index("kubelet_versions/of-nodes", |key, node| [((key.cluster.clone(), node.kubelet_version.clone()), ())]);
    let versions = versions.distinct("kubelet_versions/distinct");
    let versions =
        versions.index("kubelet_versions/by-cluster", |(cluster, version), ()| [(cluster.clone(), version.clone())]);
    versions.group("kubelet_versions", |_, rows| Some(rows.iter().map(|(_, version)| (*version).clone()).collect()))
}
