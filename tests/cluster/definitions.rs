//! Kinds are read while their CRD is installed, whenever that happens.

use anyhow::Result;
use serde_json::json;
use sluice_testkit::cluster::Cluster;

use crate::fixture::{ALL, RunningControlPlane, start, virtual_service};

const PAGE: &str = "/debug/configz";
const VIRTUAL_SERVICES: &[&str] = &["virtualservices."];

async fn has_virtual_service(control_plane: &RunningControlPlane, what: &str, expect: bool) -> Result<()> {
    control_plane.shows(PAGE, what, |page| page.contains("cart-routes") == expect).await
}

async fn apply_http_route(cluster: &Cluster) -> Result<()> {
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "edge-routes", "namespace": "shop"},
        "spec": {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "cart", "port": 80}]}]},
    });
    cluster.apply(&route).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_read_while_their_definition_is_installed() -> Result<()> {
    let Some(cluster) = start().await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({})).await?;
    // The server becomes ready without any definition.
    let control_plane = RunningControlPlane::start(&cluster).await?;
    assert!(!control_plane.page(PAGE).await?.contains("cart-routes"));

    for round in 0..2 {
        cluster.install_crds("istio.yaml", VIRTUAL_SERVICES).await?;
        cluster.apply(&virtual_service("shop", "cart-routes", "cart")).await?;
        has_virtual_service(&control_plane, &format!("installed after the start, round {round}"), true).await?;
        cluster.delete("networking.istio.io/v1", "VirtualService", "shop", "cart-routes").await?;
        has_virtual_service(&control_plane, "the object is deleted", false).await?;
        cluster.apply(&virtual_service("shop", "cart-routes", "cart")).await?;
        has_virtual_service(&control_plane, "the object is created again", true).await?;
        cluster.remove_crds("istio.yaml", VIRTUAL_SERVICES).await?;
        has_virtual_service(&control_plane, "the definition is removed with its objects", false).await?;
    }

    // Another group, while the control plane runs.
    let count = cluster.install_crds("gateway-api.yaml", ALL).await?;
    assert!(count > 10, "{count} definitions of the Gateway API");
    apply_http_route(&cluster).await?;
    control_plane.shows(PAGE, "a route of the Gateway API", |page| page.contains("edge-routes")).await?;
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());

    // What was installed before the start is there when the server is ready.
    cluster.install_crds("istio.yaml", ALL).await?;
    cluster.apply(&virtual_service("shop", "cart-routes", "cart")).await?;
    let second = RunningControlPlane::start(&cluster).await?;
    let page = second.page(PAGE).await?;
    assert!(page.contains("edge-routes") && page.contains("cart-routes"), "{page}");
    Ok(())
}
