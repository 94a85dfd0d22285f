//! Objects of a real cluster reach proxies.

use anyhow::Result;
use serde_json::{Value, json};
use sluice_testkit::ads::Kind;

use crate::fixture::{
    ALL, RunningControlPlane, SYSTEM, USER, create_node, create_pod, service, start, start_with_crds, until,
    virtual_service,
};

/// Whether a resource contains a text.
fn has(text: &str) -> impl Fn(&Value) -> bool + use<'_> {
    move |resource| resource.to_string().contains(text)
}

/// The health of the endpoint with an address.
fn health_of<'a>(endpoints: &'a Value, address: &str) -> Option<&'a str> {
    let localities = endpoints["endpoints"].as_array().into_iter().flatten();
    let mut all = localities.flat_map(|locality| locality["lbEndpoints"].as_array().into_iter().flatten());
    all.find(|endpoint| has(address)(endpoint)).and_then(|endpoint| endpoint["healthStatus"].as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_become_endpoints_through_slices_of_the_controller_manager() -> Result<()> {
    let Some(cluster) = start().await? else { return Ok(()) };
    create_node(&cluster, "node-1").await?;
    cluster.create_namespace("shop", json!({})).await?;
    cluster.apply(&service("shop", "cart")).await?;
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let mut proxy = control_plane.proxy("shop").await?;
    let name = "outbound|80||cart.shop.svc.cluster.local";
    proxy.subscribe(Kind::Cds, &[])?;
    proxy.receives(name, "the Service is a cluster", |cluster| cluster["type"] == "EDS").await?;
    proxy.subscribe(Kind::Eds, &[name])?;

    create_pod(&cluster, "shop", "cart-1", "cart").await?;
    cluster.report_pod(("shop", "cart-1"), "10.244.0.5", true).await?;
    proxy.receives(name, "the pod is an endpoint", has("10.244.0.5")).await?;
    let zone = |endpoints: &Value| endpoints.pointer("/endpoints/0/locality/zone") == Some(&json!("z"));
    proxy.receives(name, "the endpoint has the zone of its node", zone).await?;

    create_pod(&cluster, "shop", "cart-2", "cart").await?;
    cluster.report_pod(("shop", "cart-2"), "10.244.0.6", true).await?;
    proxy.receives(name, "another pod is an endpoint", has("10.244.0.6")).await?;
    cluster.report_pod(("shop", "cart-1"), "10.244.0.5", false).await?;
    let is = |health: &'static str| move |endpoints: &Value| health_of(endpoints, "10.244.0.5") == Some(health);
    proxy.receives(name, "a pod that is not ready is unhealthy", is("UNHEALTHY")).await?;
    cluster.delete("v1", "Pod", "shop", "cart-2").await?;
    proxy.receives(name, "a deleted pod is no endpoint", |it| !has("10.244.0.6")(it)).await?;
    cluster.report_pod(("shop", "cart-1"), "10.244.0.5", true).await?;
    proxy.receives(name, "a pod is ready again", is("HEALTHY")).await?;
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_virtual_service_reaches_a_proxy() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    cluster.create_namespace("shop", json!({})).await?;
    for name in ["cart", "cart-v1", "cart-v2"] {
        cluster.apply(&service("shop", name)).await?;
    }
    cluster.apply(&virtual_service("shop", "cart", "cart-v1")).await?;
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let mut proxy = control_plane.proxy("shop").await?;
    proxy.subscribe(Kind::Rds, &["80"])?;
    proxy.receives("80", "the first route", has("\"outbound|80||cart-v1.shop.svc.cluster.local\"")).await?;
    cluster.apply(&virtual_service("shop", "cart", "cart-v2")).await?;
    let is_second = |routes: &Value| {
        let route = |host: &Value| host["name"].as_str().is_some_and(|name| name.starts_with("cart.shop"));
        let hosts = routes["virtualHosts"].as_array().into_iter().flatten();
        hosts.filter(|host| route(host)).any(has("\"outbound|80||cart-v2.shop.svc.cluster.local\""))
    };
    proxy.receives("80", "the changed route", is_second).await?;
    cluster.delete("networking.istio.io/v1", "VirtualService", "shop", "cart").await?;
    proxy.receives("80", "the route of the Service", has("\"outbound|80||cart.shop.svc.cluster.local\"")).await?;

    // All of this was read by streaming lists: one request for each kind.
    let requests = cluster.audited()?;
    let of = |verb: &'static str| requests.iter().filter(move |it| it.user == USER && it.verb == verb);
    assert_eq!(of("list").map(|request| &request.uri).collect::<Vec<_>>(), Vec::<&String>::new());
    let streaming = of("watch").filter(|it| it.code == 200 && it.uri.contains("sendInitialEvents=true"));
    assert!(streaming.count() > 20, "each kind is listed by its watch");
    assert_eq!(control_plane.warnings()?, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_that_the_mesh_does_not_discover_have_no_services() -> Result<()> {
    let Some(cluster) = start().await? else { return Ok(()) };
    let mesh = "discoverySelectors: [{matchLabels: {mesh: enabled}}]";
    cluster.patch("v1", "ConfigMap", (SYSTEM, "istio"), &json!({"data": {"mesh": mesh}})).await?;
    cluster.create_namespace("shop", json!({"mesh": "enabled"})).await?;
    cluster.create_namespace("bank", json!({})).await?;
    for namespace in ["shop", "bank"] {
        cluster.apply(&service(namespace, "cart")).await?;
    }
    let control_plane = RunningControlPlane::start(&cluster).await?;
    let page = "/debug/registryz";
    control_plane.shows(page, "the discovered Service", |page| page.contains("cart.shop.svc")).await?;
    assert!(!control_plane.page(page).await?.contains("cart.bank.svc"));
    let label = |value: Value| json!({"metadata": {"labels": {"mesh": value}}});
    cluster.patch("v1", "Namespace", ("", "bank"), &label(json!("enabled"))).await?;
    cluster.patch("v1", "Namespace", ("", "shop"), &label(Value::Null)).await?;
    let is_swapped = |page: &str| page.contains("cart.bank.svc") && !page.contains("cart.shop.svc");
    control_plane.shows(page, "the labels have changed", is_swapped).await?;
    cluster.patch("v1", "ConfigMap", (SYSTEM, "istio"), &json!({"data": {"mesh": ""}})).await?;
    until("all namespaces are discovered", async || {
        let page = control_plane.page(page).await?;
        Ok(page.contains("cart.bank.svc") && page.contains("cart.shop.svc"))
    })
    .await
}
