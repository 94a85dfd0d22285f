//! What the control plane writes to a cluster.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sluice_testkit::cluster::{AuditedRequest, Cluster};

use crate::fixture::{RunningControlPlane, USER, start_with_crds, until};

const ROOTS: &str = "istio-ca-root-cert";

async fn roots(cluster: &Cluster, namespace: &str) -> Result<Option<String>> {
    let config_map = cluster.get("v1", "ConfigMap", namespace, ROOTS).await?;
    Ok(config_map.and_then(|it| it["data"]["root-cert.pem"].as_str().map(str::to_owned)))
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_are_written_to_new_namespaces_and_repaired() -> Result<()> {
    let Some(cluster) = start_with_crds(&["serviceentries."]).await? else { return Ok(()) };
    let control_plane = RunningControlPlane::start(&cluster).await?;
    cluster.create_namespace("shop", json!({})).await?;
    cluster.exists("v1", "ConfigMap", "shop", ROOTS).await?;
    let written = roots(&cluster, "shop").await?.context("it has the roots")?;
    assert!(written.starts_with("-----BEGIN CERTIFICATE-----"), "{written}");

    cluster.patch("v1", "ConfigMap", ("shop", ROOTS), &json!({"data": {"root-cert.pem": "other"}})).await?;
    until("a changed ConfigMap is repaired", async || Ok(roots(&cluster, "shop").await?.as_ref() == Some(&written)))
        .await?;
    cluster.delete("v1", "ConfigMap", "shop", ROOTS).await?;
    until("a deleted ConfigMap is written again", async || {
        Ok(roots(&cluster, "shop").await?.as_ref() == Some(&written))
    })
    .await?;

    // The namespace controller deletes the objects of the namespace first, and the API server refuses new ones. A finalizer
    // lets this last.
    let held = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "held", "namespace": "shop", "finalizers": ["example.com/held"]},
    });
    cluster.apply(&held).await?;
    cluster.delete("v1", "Namespace", "", "shop").await?;
    until("the API server refuses the ConfigMap", async || {
        let is_refused = |it: &AuditedRequest| it.user == USER && it.namespace == "shop" && it.code == 403;
        Ok(cluster.audited()?.iter().any(is_refused))
    })
    .await?;
    let release = json!({"metadata": {"finalizers": null}});
    cluster.patch("v1", "ConfigMap", ("shop", "held"), &release).await?;
    until("the namespace is gone", async || Ok(cluster.get("v1", "Namespace", "", "shop").await?.is_none())).await?;
    cluster.create_namespace("shop", json!({})).await?;
    until("a namespace of the same name has the roots", async || {
        Ok(roots(&cluster, "shop").await?.as_ref() == Some(&written))
    })
    .await?;

    // Allocated addresses.
    let entry = |name: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"hosts": [format!("{name}.example")], "resolution": "DNS",
                     "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]},
        })
    };
    cluster.apply(&entry("fresh")).await?;
    let addresses = async |name: &str| -> Result<Value> {
        let entry = cluster.get("networking.istio.io/v1", "ServiceEntry", "shop", name).await?.context("it exists")?;
        Ok(entry["status"]["addresses"].clone())
    };
    let has_two = |addresses: &Value| addresses.as_array().is_some_and(|addresses| addresses.len() == 2);
    until("addresses are allocated", async || Ok(has_two(&addresses("fresh").await?))).await?;
    cluster.apply(&entry("emptied")).await?;
    until("addresses are allocated", async || Ok(has_two(&addresses("emptied").await?))).await?;
    let allocated = addresses("emptied").await?;
    let emptied = json!({"addresses": [], "conditions": []});
    cluster.write_status("networking.istio.io/v1", "ServiceEntry", ("shop", "emptied"), emptied).await?;
    until("removed addresses are written again", async || Ok(addresses("emptied").await? == allocated)).await?;
    assert_ne!(allocated, addresses("fresh").await?);
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}
