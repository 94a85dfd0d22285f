//! What is written about nodes: taints that are removed (S24), and the addresses of routers in statuses of Ingresses (C11).

use anyhow::Result;
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;

use crate::fixture::{
    ALL, RunningControlPlane, SYSTEM, USER, apply_templates, create_node, start_with_crds, start_with_values, until,
};

/// The taint of nodes without a ready CNI agent.
const TAINT: &str = "cni.istio.io/not-ready";

/// Creates a pod with a label on a node, and reports it.
async fn create_pod(cluster: &Cluster, name: &str, node: &str, label: (&str, &str), ready: bool) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": SYSTEM, "labels": {label.0: label.1}},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "app"}],
                 "tolerations": [{"operator": "Exists"}]},
    });
    cluster.apply(&pod).await?;
    cluster.report_pod((SYSTEM, name), "10.244.0.9", ready).await
}

async fn taints(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let node = cluster.get("v1", "Node", "", node).await?.unwrap_or_default();
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    Ok(taints.iter().map(|taint| taint["key"].as_str().unwrap_or_default().to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn taint_of_a_node_is_removed_once_its_cni_agent_is_ready() -> Result<()> {
    let Some(cluster) = start_with_values(&["--set", "taint.enabled=true"]).await? else { return Ok(()) };
    let agent = ("k8s-app", "istio-cni-node");
    for name in ["node-1", "node-2"] {
        create_node(&cluster, name).await?;
        let taints = json!([
            {"key": TAINT, "effect": "NoSchedule"},
            {"key": "other", "effect": "NoSchedule"},
            {"key": TAINT, "effect": "NoExecute"},
        ]);
        cluster.patch("v1", "Node", ("", name), &json!({"spec": {"taints": taints}})).await?;
    }
    create_pod(&cluster, "agent-1", "node-1", agent, true).await?;
    create_pod(&cluster, "agent-2", "node-2", agent, false).await?;
    let variables = [("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", "true"), ("POD_NAME", "istiod-1")];
    let control_plane = RunningControlPlane::start_with(&cluster, cluster.address(), &variables).await?;
    until("the taint is removed", async || Ok(!taints(&cluster, "node-1").await?.contains(&TAINT.to_owned()))).await?;
    assert!(taints(&cluster, "node-1").await?.contains(&"other".to_owned()), "others stay");
    assert!(taints(&cluster, "node-2").await?.contains(&TAINT.to_owned()), "its agent is not ready");
    cluster.report_pod((SYSTEM, "agent-2"), "10.244.0.10", true).await?;
    until("the taint is removed", async || Ok(!taints(&cluster, "node-2").await?.contains(&TAINT.to_owned()))).await?;
    let lock = cluster.get("v1", "ConfigMap", SYSTEM, "istio-node-untaint").await?.unwrap_or_default();
    assert!(lock["metadata"]["annotations"].to_string().contains("istiod-1"), "{lock}");
    let mut refused = cluster.audited()?;
    refused.retain(|request| request.user == USER && matches!(request.code, 401 | 403));
    assert_eq!(refused, []);
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ingress_without_a_service_has_the_addresses_of_the_node_of_a_router() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    let mesh = ["--set", "meshConfig.ingressService=", "--set", "meshConfig.ingressSelector=edge"];
    apply_templates(&cluster, &["mesh"], &mesh).await?;
    cluster.create_namespace("shop", json!({})).await?;
    create_node(&cluster, "node-1").await?;
    let addresses = json!([
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "ExternalIP", "address": "192.0.2.9"},
        {"type": "ExternalIP", "address": "192.0.2.8"},
    ]);
    cluster.write_status("v1", "Node", ("", "node-1"), json!({"addresses": addresses})).await?;
    create_pod(&cluster, "edge-1", "node-1", ("istio", "edge"), true).await?;
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"namespace": "shop", "name": "web", "annotations": {"kubernetes.io/ingress.class": "istio"}},
        "spec": {"rules": [{"host": "web.example"}]},
    });
    cluster.apply(&ingress).await?;
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let written = async || -> Result<Value> {
        let ingress = cluster.get("networking.k8s.io/v1", "Ingress", "shop", "web").await?.unwrap_or_default();
        Ok(ingress["status"]["loadBalancer"]["ingress"].clone())
    };
    let expect = json!([{"ip": "192.0.2.8"}, {"ip": "192.0.2.9"}]);
    until("the addresses of the node are written", async || Ok(written().await? == expect)).await?;
    cluster.delete("v1", "Pod", SYSTEM, "edge-1").await?;
    until("they are removed", async || Ok(written().await?.as_array().is_none_or(Vec::is_empty))).await?;
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}
