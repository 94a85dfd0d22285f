//! The mesh of the demo: traffic follows a VirtualService that is edited, made invalid and removed.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family::every_envoy_holds_what_it_was_served;
use crate::requests::{eventually, until_counted};

const KETTLE: &str = "10.96.40.12";
const MENU: &str = "10.96.40.11";

fn sample(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "manifests/demo", name].iter().collect()
}

const fn shop(name: &'static str, app: &'static str, version: &'static str, proxy: PodRole) -> Workload {
    Workload::new(name, app, proxy).version(version).namespace("teashop")
}

async fn tea_shop(protocol: Protocol) -> Result<Mesh> {
    let objects = ["services.yaml", "kettle-versions.yaml", "kettle-routes.yaml", "front-door.yaml"];
    let mut mesh = Mesh::start(&objects.map(sample)).await?;
    mesh.deploy(&[
        shop("counter", "counter", "v1", PodRole::Sidecar(protocol)),
        shop("menu", "menu", "v1", PodRole::NoProxy),
        shop("kettle-v1", "kettle", "v1", PodRole::Sidecar(protocol)),
        shop("kettle-v2", "kettle", "v2", PodRole::Sidecar(protocol)),
        shop("front-door", "front-door", "v1", PodRole::Gateway(protocol, "front-door")),
    ])
    .await?;
    Ok(mesh)
}

async fn traffic_follows_the_objects(protocol: Protocol) -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let mesh = tea_shop(protocol).await?;

    // Sidecar to sidecar, over mutual TLS: the application receives the identity of its caller.
    let reply = eventually(&mesh, "counter", &AppRequest::get(vip(KETTLE, 80), "kettle"), "kettle v1").await?;
    let body: serde_json::Value = serde_json::from_str(&reply.outcome.map_err(anyhow::Error::msg)?.body)?;
    let certificate = body["headers"]["x-forwarded-client-cert"].as_str().unwrap_or_default().to_owned();
    ensure!(
        certificate.contains("URI=spiffe://cluster.local/ns/teashop/sa/counter"),
        "the call is mutually authenticated, but the application received {body}"
    );

    // Sidecar to a pod without one: plaintext.
    eventually(&mesh, "counter", &AppRequest::get(vip(MENU, 80), "menu"), "menu v1").await?;
    // From a pod without a sidecar to one with a sidecar: PERMISSIVE accepts plaintext.
    let kettle = mesh.pods.pod("kettle-v2").net.ip.to_string();
    eventually(&mesh, "menu", &AppRequest::get(vip(&kettle, 8080), "kettle"), "kettle v2").await?;

    // Through the gateway.
    let door = vip(&mesh.pods.pod("front-door").net.ip.to_string(), 8080);
    for (path, expected) in [("/", "counter v1"), ("/menu", "menu v1"), ("/kettle", "kettle v1")] {
        eventually(&mesh, "menu", &AppRequest::get(door, "tea.example.com").path(path), expected).await?;
    }
    eventually(&mesh, "menu", &AppRequest::get(door, "other.example.com"), "status 404").await?;

    // The VirtualService is edited: a header routes one user to v2, all others to v1.
    mesh.write("kettle-routes.yaml", &std::fs::read_to_string(sample("../demo-edits/kettle-canary.yaml"))?)?;
    let plain = AppRequest::get(vip(KETTLE, 80), "kettle");
    let maya = plain.clone().header("x-user", "maya");
    eventually(&mesh, "counter", &maya, "kettle v2").await?;
    for _ in 0..20 {
        ensure!(mesh.pods.pod("counter").call(plain.clone()).await?.responder() == "kettle v1");
        ensure!(mesh.pods.pod("counter").call(maya.clone()).await?.responder() == "kettle v2");
    }

    // An invalid edit is rejected. The last valid state stays in effect.
    mesh.write("kettle-routes.yaml", "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: [")?;
    until_counted("reports of the broken file", 1, async || {
        let log = mesh.server_log();
        Ok(log.lines().filter(|line| line.contains("not read") || line.contains("cannot read")).count())
    })
    .await?;
    ensure!(mesh.pods.pod("counter").call(maya.clone()).await?.responder() == "kettle v2");

    // The object is deleted: without a rule, both versions respond.
    std::fs::remove_file(mesh.config_file("kettle-routes.yaml"))?;
    eventually(&mesh, "counter", &plain, "kettle v2").await?;
    eventually(&mesh, "counter", &plain, "kettle v1").await?;

    every_envoy_holds_what_it_was_served(&mesh).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_follows_the_objects_over_delta() -> Result<()> {
    traffic_follows_the_objects(Protocol::Delta).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_follows_the_objects_over_state_of_the_world() -> Result<()> {
    traffic_follows_the_objects(Protocol::Sotw).await
}
