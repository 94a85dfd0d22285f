//! Endpoints of localities as resources (LEDS): Envoy uses them as those of assignments, and forgets those that are removed while the
//! control plane is absent.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, until, until_stable};

const TEA: Host = Host("tea", 1);
const COFFEE: Host = Host("coffee", 2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_by_locality() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let options = MeshOptions {
        control_plane: vec![("SLUICE_LEDS", "true".to_owned())],
        agents: vec![("ISTIO_META_LEDS", "true".to_owned())],
    };
    let mut mesh = Mesh::start_with(&[], options).await?;
    let tea = |name, version| Workload::new(name, "tea", PodRole::Sidecar(Protocol::Delta)).version(version);
    mesh.deploy(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
        // This proxy has the metadata too, but its protocol does not support it.
        Workload::new("whole", "whole", PodRole::Sidecar(Protocol::Sotw)),
        tea("tea-v1", "v1").zone("east", "east-1"),
        tea("tea-v2", "v2").zone("west", "west-1"),
        tea("tea-v3", "v3").zone("west", "west-1"),
    ])
    .await?;
    let mesh = &mesh;
    // One after the other, because each changes the same Services.
    let in_order = async {
        requests(mesh).await.context("requests")?;
        changes(mesh).await.context("endpoints and clusters change")?;
        restart(mesh).await.context("the control plane restarts")
    };
    family::run(mesh, vec![("endpoints by locality", Box::pin(in_order))]).await
}

/// A Service with these endpoints, each a pod.
fn service(host: Host, pods: &[&str]) -> String {
    let (name, ip) = (host.0, host.ip());
    let slices = pods.iter().map(|pod| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-{pod}, namespace: shop, \
             labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\nports: [{{name: http, port: 8080}}]\n\
             endpoints: [{{addresses: [$IP_OF_{pod}], conditions: {{ready: true}}, \
             targetRef: {{kind: Pod, name: {pod}, namespace: shop}}}}]\n---\n"
        )
    });
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  clusterIP: {ip}\n  \
         clusterIPs: [{ip}]\n  ports: [{{name: http, port: 80, targetPort: http}}]\n---\n{}",
        slices.collect::<String>()
    )
}

/// The addresses that an Envoy has of a Service, and whether it gets them by LEDS.
async fn endpoints(mesh: &Mesh, pod: &str, host: Host) -> Result<(BTreeSet<String>, bool)> {
    let envoy = mesh.pods.pod(pod).envoy.as_ref().context("a proxy")?;
    let cluster = format!("outbound|80||{}.shop.svc.cluster.local", host.0);
    let clusters: serde_json::Value = serde_json::from_str(&envoy.admin("/clusters?format=json").await?)?;
    let all = clusters["cluster_statuses"].as_array().context("clusters")?;
    let own = all.iter().find(|status| status["name"] == *cluster).context("the cluster")?;
    let hosts = own["host_statuses"].as_array().into_iter().flatten();
    let addresses = hosts.filter_map(|host| host["address"]["socket_address"]["address"].as_str().map(str::to_owned));
    let stats =
        envoy.admin(&format!("/stats?filter=^cluster.{}.*leds.update_success", cluster.replace('|', "\\|"))).await?;
    Ok((addresses.collect(), !stats.trim().is_empty()))
}

fn addresses(mesh: &Mesh, pods: &[&str]) -> BTreeSet<String> {
    pods.iter().map(|pod| mesh.pods.pod(pod).net.ip.to_string()).collect()
}

async fn requests(mesh: &Mesh) -> Result<()> {
    mesh.apply("services.yaml", &(service(TEA, &["tea-v1", "tea-v2"]) + &service(COFFEE, &["tea-v1"])))?;
    for client in ["client", "whole"] {
        for version in ["tea v1", "tea v2"] {
            until(mesh, client, &TEA.get(), version, |reply| reply.responder() == version).await?;
        }
    }
    let (found, by_leds) = endpoints(mesh, "client", TEA).await?;
    ensure!(found == addresses(mesh, &["tea-v1", "tea-v2"]) && by_leds, "{found:?}, by LEDS: {by_leds}");
    // The debug page has them in the format of Envoy, in their assignment.
    let (_, page) = mesh.server.get("/debug/config_dump?proxyID=client.shop&include_eds").await?;
    for address in addresses(mesh, &["tea-v1", "tea-v2"]) {
        ensure!(page.contains(&format!("\"{address}\"")), "{address}: {page}");
    }
    ensure!(!page.contains("ledsCollectionName"), "{page}");
    let (found, by_leds) = endpoints(mesh, "whole", TEA).await?;
    ensure!(found == addresses(mesh, &["tea-v1", "tea-v2"]) && !by_leds, "{found:?}, by LEDS: {by_leds}");
    Ok(())
}

async fn changes(mesh: &Mesh) -> Result<()> {
    let coffee = || service(COFFEE, &["tea-v1"]);
    // The only endpoint of a locality goes, and comes back.
    mesh.apply("services.yaml", &(service(TEA, &["tea-v1"]) + &coffee()))?;
    until_stable(mesh, "client", &TEA.get(), "tea v1").await?;
    mesh.apply("services.yaml", &(service(TEA, &["tea-v2"]) + &coffee()))?;
    until_stable(mesh, "client", &TEA.get(), "tea v2").await?;
    mesh.apply("services.yaml", &(service(TEA, &[]) + &coffee()))?;
    eventually(mesh, "client", &TEA.get(), "status 503").await?;
    mesh.apply("services.yaml", &(service(TEA, &["tea-v1", "tea-v2"]) + &coffee()))?;
    until(mesh, "client", &TEA.get(), "tea v2", |reply| reply.responder() == "tea v2").await?;
    // The cluster is replaced by another one, which gets the endpoints again.
    mesh.apply(
        "policy.yaml",
        &TEA.policy("connectionPool: {tcp: {connectTimeout: 7s}}, outlierDetection: {consecutive5xxErrors: 7}"),
    )?;
    for version in ["tea v1", "tea v2"] {
        always(mesh, "client", &COFFEE.get(), 1, "tea v1").await?;
        until(mesh, "client", &TEA.get(), version, |reply| reply.responder() == version).await?;
    }
    // A subset, whose endpoints are in collections of its own.
    mesh.apply("policy.yaml", &TEA.versions())?;
    let to_v2 = TEA.routes("  - route: [{destination: {host: tea, subset: v2}}]");
    mesh.apply("routes.yaml", &to_v2)?;
    until_stable(mesh, "client", &TEA.get(), "tea v2").await?;
    mesh.apply("routes.yaml", "")?;
    // Two endpoints of one locality.
    mesh.apply("services.yaml", &(service(TEA, &["tea-v2", "tea-v3"]) + &coffee()))?;
    for version in ["tea v2", "tea v3"] {
        until(mesh, "client", &TEA.get(), version, |reply| reply.responder() == version).await?;
    }
    Ok(())
}

async fn restart(mesh: &Mesh) -> Result<()> {
    mesh.server.kill().await?;
    always(mesh, "client", &COFFEE.get(), 5, "tea v1").await?;
    mesh.apply("services.yaml", &(service(TEA, &["tea-v2"]) + &service(COFFEE, &["tea-v1", "tea-v2"])))?;
    mesh.server.start_again().await?;
    until(mesh, "client", &COFFEE.get(), "tea v2", |reply| reply.responder() == "tea v2").await?;
    until_stable(mesh, "client", &TEA.get(), "tea v2").await?;
    let (found, by_leds) = endpoints(mesh, "client", TEA).await?;
    ensure!(
        found == addresses(mesh, &["tea-v2"]) && by_leds,
        "it holds a removed endpoint: {found:?}, by LEDS: {by_leds}"
    );
    let (found, _) = endpoints(mesh, "client", COFFEE).await?;
    ensure!(found == addresses(mesh, &["tea-v1", "tea-v2"]), "{found:?}");
    Ok(())
}
