//! Clusters on demand (ODCDS): Envoy receives the cluster of a route when the first request needs it, and no other.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, once, until, until_stable};

const TEA: Host = Host("tea", 1);
const COFFEE: Host = Host("coffee", 2);
const MIRROR: Host = Host("mirror", 3);
const RAW: Host = Host("raw", 4);
const DOOR: Host = Host("through-the-door", 5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_on_demand() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let options = MeshOptions {
        control_plane: vec![("SLUICE_ON_DEMAND_CLUSTERS", "true".to_owned())],
        agents: vec![("ISTIO_META_ON_DEMAND_CLUSTERS", "true".to_owned())],
    };
    let mut mesh = Mesh::start_with(&[], options).await?;
    let tea = |name, version| Workload::new(name, "tea", PodRole::Sidecar(Protocol::Delta)).version(version);
    mesh.deploy(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
        // This proxy requests clusters on demand too, but its protocol does not support it.
        Workload::new("whole", "whole", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("door", "door", PodRole::Gateway(Protocol::Delta, "door")),
        Workload::new("visitor", "visitor", PodRole::NoProxy),
        tea("tea-v1", "v1"),
        tea("tea-v2", "v2"),
    ])
    .await?;
    let services = [TEA, COFFEE, MIRROR, DOOR].map(|host| host.service("app: tea")).concat();
    let raw = RAW.service_with("app: tea", "[{name: tcp, port: 9000, targetPort: http}]");
    let mirrored = COFFEE.routes("  - route: [{destination: {host: coffee}}]\n    mirror: {host: mirror}");
    mesh.apply("services.yaml", &(services + &raw + &TEA.versions() + &mirrored))?;
    let mesh = &mesh;
    // One after the other, because each depends on the clusters that the ones before have requested.
    let in_order = async {
        first_request(mesh).await.context("a first request")?;
        changes(mesh).await.context("a cluster changes")?;
        gateway(mesh).await.context("a gateway")?;
        restart(mesh).await.context("the control plane restarts")
    };
    family::run(mesh, vec![("clusters on demand", Box::pin(in_order))]).await
}

/// The services of the outbound clusters that an Envoy holds, each as `NAME` or `NAME/SUBSET`.
async fn clusters(mesh: &Mesh, pod: &str) -> Result<Vec<String>> {
    let envoy = mesh.pods.pod(pod).envoy.as_ref().context("a proxy")?;
    let dump: serde_json::Value =
        serde_json::from_str(&envoy.admin("/config_dump?resource=dynamic_active_clusters").await?)?;
    let clusters = dump["configs"].as_array().context("clusters")?.iter();
    let names = clusters.filter_map(|cluster| cluster["cluster"]["name"].as_str()?.strip_prefix("outbound|"));
    let mut names: Vec<String> = names
        .filter_map(|name| {
            let mut parts = name.split('|').skip(1);
            let (subset, host) = (parts.next()?, parts.next()?);
            let service = host.strip_suffix(".shop.svc.cluster.local")?;
            Some(if subset.is_empty() { service.to_owned() } else { format!("{service}/{subset}") })
        })
        .collect();
    names.sort_unstable();
    Ok(names)
}

async fn first_request(mesh: &Mesh) -> Result<()> {
    // The listener of the TCP port has arrived, and with it everything that was sent before.
    let raw = AppRequest::get(vip(&RAW.ip(), 9000), "raw");
    until(mesh, "client", &raw, "tea", |reply| reply.responder().starts_with("tea ")).await?;
    until(mesh, "whole", &TEA.get(), "tea", |reply| reply.responder().starts_with("tea ")).await?;
    let whole = clusters(mesh, "whole").await?;
    ensure!(whole.contains(&"tea/v1".to_owned()) && whole.contains(&"coffee".to_owned()), "all clusters: {whole:?}");
    ensure!(
        clusters(mesh, "client").await? == ["mirror", "raw"],
        "only clusters of TCP and of mirrored requests: {:?}",
        clusters(mesh, "client").await?
    );
    // The first request waits for its cluster, also one with a body.
    let post = AppRequest { method: "POST".to_owned(), body: "leaves".repeat(1000), ..TEA.get() };
    once(mesh, "client", &post, "tea", |reply| reply.responder().starts_with("tea ")).await?;
    ensure!(clusters(mesh, "client").await? == ["mirror", "raw", "tea"], "{:?}", clusters(mesh, "client").await?);
    once(mesh, "client", &COFFEE.get(), "tea", |reply| reply.responder().starts_with("tea ")).await?;
    Ok(())
}

async fn changes(mesh: &Mesh) -> Result<()> {
    let to = |version: &str| TEA.routes(&format!("  - route: [{{destination: {{host: tea, subset: {version}}}}}]"));
    for version in ["v1", "v2"] {
        mesh.apply("routes.yaml", &to(version))?;
        until_stable(mesh, "client", &TEA.get(), &format!("tea {version}")).await?;
    }
    ensure!(clusters(mesh, "client").await?.contains(&"tea/v2".to_owned()));
    // A request for a cluster that does not exist fails as with an Envoy that has all.
    mesh.apply("routes.yaml", &to("v3"))?;
    eventually(mesh, "client", &TEA.get(), "status 503").await?;
    // A change of a cluster that the proxy has requested reaches it.
    let to_v3 = TEA.versions().replace("subsets:", "subsets:\n  - {name: v3, labels: {version: v1}}");
    mesh.apply("services.yaml", &(TEA.service("app: tea") + &to_v3))?;
    eventually(mesh, "client", &TEA.get(), "tea v1").await?;
    // A service that is removed takes its cluster with it.
    until(mesh, "client", &COFFEE.get(), "no coffee", |reply| !reply.responder().starts_with("tea ")).await?;
    let held = clusters(mesh, "client").await?;
    ensure!(held.iter().all(|name| name.starts_with("tea")), "{held:?}");
    Ok(())
}

async fn gateway(mesh: &Mesh) -> Result<()> {
    let objects = DOOR.service("app: tea")
        + r"
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: door, namespace: shop}
spec:
  selector: {istio: door}
  servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*.example.com']}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: door, namespace: shop}
spec:
  hosts: [shop.example.com]
  gateways: [door]
  http: [{route: [{destination: {host: through-the-door}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: more, namespace: shop}
spec:
  hosts: [tea.example.com]
  gateways: [door]
  http: [{route: [{destination: {host: tea, subset: v1}, weight: 50}, {destination: {host: tea, subset: v2}, weight: 50}]}]
";
    mesh.apply("door.yaml", &objects)?;
    let at = AppRequest::get(vip(&mesh.pods.pod("door").net.ip.to_string(), 8080), "shop.example.com");
    until(mesh, "visitor", &at, "tea", |reply| reply.responder().starts_with("tea ")).await?;
    ensure!(clusters(mesh, "door").await? == [DOOR.0], "{:?}", clusters(mesh, "door").await?);
    for version in ["tea v1", "tea v2"] {
        let tea = AppRequest { host: "tea.example.com".to_owned(), ..at.clone() };
        until(mesh, "visitor", &tea, version, |reply| reply.responder() == version).await?;
    }
    let held = clusters(mesh, "door").await?;
    ensure!(held == ["tea/v1", "tea/v2", DOOR.0], "{held:?}");
    Ok(())
}

async fn restart(mesh: &Mesh) -> Result<()> {
    mesh.server.kill().await?;
    always(mesh, "client", &TEA.get(), 5, "tea v1").await?;
    mesh.server.start_again().await?;
    // The proxy names the clusters that it holds, and they are kept up to date.
    let to_v2 = TEA.versions().replace("subsets:", "subsets:\n  - {name: v3, labels: {version: v2}}");
    mesh.apply("services.yaml", &([TEA, COFFEE].map(|host| host.service("app: tea")).concat() + &to_v2))?;
    eventually(mesh, "client", &TEA.get(), "tea v2").await?;
    until(mesh, "client", &COFFEE.get(), "tea", |reply| reply.responder().starts_with("tea ")).await?;
    let held = clusters(mesh, "client").await?;
    ensure!(held.iter().all(|name| name.starts_with("tea") || name == COFFEE.0), "{held:?}");
    Ok(())
}
