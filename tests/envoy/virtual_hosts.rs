//! Route tables whose virtual hosts are separate resources (VHDS): Envoy accepts them, and only changed virtual hosts are
//! sent.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, always, eventually, until, until_counted, until_stable};

const TEA: Host = Host("tea", 1);
const LATER: Host = Host("later", 2);
const ELSEWHERE: Host = Host("elsewhere", 3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn virtual_hosts() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let options = MeshOptions {
        control_plane: vec![("SLUICE_VHDS", "true".to_owned())],
        agents: vec![("ISTIO_META_VHDS", "true".to_owned())],
    };
    let mut mesh = Mesh::start_with(&[], options).await?;
    let tea = |name, version| Workload::new(name, "tea", PodRole::Sidecar(Protocol::Delta)).version(version);
    mesh.deploy(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
        // This proxy requests VHDS too, but its protocol does not support it.
        Workload::new("whole", "whole", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("door", "door", PodRole::Gateway(Protocol::Delta, "door")),
        Workload::new("visitor", "visitor", PodRole::NoProxy),
        tea("tea-v1", "v1"),
        tea("tea-v2", "v2"),
    ])
    .await?;
    mesh.apply("tea.yaml", &(TEA.service("app: tea") + &TEA.versions()))?;
    let mesh = &mesh;
    // One after the other, because each reads counters that the others increase.
    for scenario in [
        family::run(mesh, vec![("a host changes", Box::pin(changed_virtual_host(mesh)))]).await,
        family::run(mesh, vec![("hosts are added and removed", Box::pin(added_and_removed_hosts(mesh)))]).await,
        family::run(mesh, vec![("a gateway, on demand", Box::pin(gateway_on_demand(mesh)))]).await,
        family::run(mesh, vec![("the control plane restarts", Box::pin(restarts(mesh)))]).await,
    ] {
        scenario?;
    }
    Ok(())
}

fn to(version: &str) -> String {
    TEA.routes(&format!("  - route: [{{destination: {{host: tea, subset: {version}}}}}]"))
}

/// The number of updates of a route table and of its virtual hosts that an Envoy has received. (Its `config_reload` of a
/// table counts both.)
async fn updates(mesh: &Mesh, pod: &str, table: &str) -> Result<(usize, usize)> {
    let envoy = mesh.pods.pod(pod).envoy.as_ref().context("a proxy")?;
    let count = async |kind: &str| -> Result<usize> {
        let lines = envoy.nonzero_stats(&format!("\\.{kind}\\.{table}\\.update_success$")).await?;
        Ok(lines.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum())
    };
    Ok((count("rds").await?, count("vhds").await?))
}

async fn changed_virtual_host(mesh: &Mesh) -> Result<()> {
    mesh.apply("routes.yaml", &to("v1"))?;
    for from in ["client", "whole"] {
        until_stable(mesh, from, &TEA.get(), "tea v1").await?;
    }
    let (tables, hosts) = updates(mesh, "client", "80").await?;
    ensure!(
        tables == 1 && hosts > 0,
        "one table, and then its virtual hosts: {tables} updates of the table, {hosts} of its virtual hosts"
    );
    let (tables_whole, hosts_whole) = updates(mesh, "whole", "80").await?;
    ensure!(
        tables_whole > 0 && hosts_whole == 0,
        "state of the world sends complete tables: {tables_whole}, {hosts_whole}"
    );

    mesh.apply("routes.yaml", &to("v2"))?;
    for from in ["client", "whole"] {
        until_stable(mesh, from, &TEA.get(), "tea v2").await?;
    }
    let (tables_after, hosts_after) = updates(mesh, "client", "80").await?;
    ensure!(tables_after == tables, "the table is not sent: {tables} updates before, {tables_after} after");
    ensure!(hosts_after == hosts + 1, "its virtual host is sent once: {hosts} updates before, {hosts_after} after");
    ensure!(updates(mesh, "whole", "80").await?.0 > tables_whole, "the complete table is sent");
    Ok(())
}

async fn added_and_removed_hosts(mesh: &Mesh) -> Result<()> {
    // One host in an existing table, and one in a new table.
    let elsewhere = ELSEWHERE.service_with("app: tea", "[{name: http, port: 8090, targetPort: http}]");
    // A request without a route times out: detect that soon.
    let elsewhere_call = AppRequest { timeout_ms: 1000, ..AppRequest::get(vip(&ELSEWHERE.ip(), 8090), "elsewhere") };
    let aborted = LATER.routes(
        "  - fault: {abort: {httpStatus: 418, percentage: {value: 100}}}\n    route: [{destination: {host: later}}]",
    );
    let before = updates(mesh, "client", "80").await?;
    mesh.apply("more.yaml", &(LATER.service("app: tea") + &aborted + &elsewhere))?;
    eventually(mesh, "client", &LATER.get(), "status 418").await?;
    until(mesh, "client", &elsewhere_call, "tea", |reply| reply.responder().starts_with("tea ")).await?;
    until_counted("hosts of the new table", 1, async || Ok(updates(mesh, "client", "8090").await?.1)).await?;
    ensure!(updates(mesh, "client", "80").await?.0 == before.0, "the table is not sent");
    // The host is removed from the table of its port.
    mesh.apply("more.yaml", &elsewhere)?;
    let removed = AppRequest { address: vip(&TEA.ip(), 80), timeout_ms: 1000, ..LATER.get() };
    until(mesh, "client", &removed, "no 418", |reply| reply.responder() != "status 418").await?;
    let envoy = mesh.pods.pod("client").envoy.as_ref().context("a proxy")?;
    let dump = envoy.admin("/config_dump?resource=dynamic_route_configs").await?;
    ensure!(!dump.contains("later.shop") && dump.contains("80/tea.shop"), "the virtual host is removed: {dump}");
    ensure!(updates(mesh, "client", "80").await?.0 == before.0, "the table is not sent");
    // A table that is removed and added again with its listener gets its virtual hosts again.
    mesh.apply("more.yaml", "")?;
    until(mesh, "client", &elsewhere_call, "no tea", |reply| !reply.responder().starts_with("tea ")).await?;
    mesh.apply("more.yaml", &elsewhere)?;
    until(mesh, "client", &elsewhere_call, "tea", |reply| reply.responder().starts_with("tea ")).await?;
    Ok(())
}

/// A request for a host that a gateway does not know waits until the control plane answers that the host does not
/// exist.
async fn gateway_on_demand(mesh: &Mesh) -> Result<()> {
    const GATEWAY: &str = r"
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
  http: [{route: [{destination: {host: tea, subset: v1}}]}]
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: on-demand, namespace: shop}
spec:
  workloadSelector: {labels: {istio: door}}
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: GATEWAY
      listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: envoy.filters.http.on_demand
        typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand}
";
    mesh.apply("door.yaml", GATEWAY)?;
    let at = |host| AppRequest::get(vip(&mesh.pods.pod("door").net.ip.to_string(), 8080), host);
    eventually(mesh, "visitor", &at("shop.example.com"), "tea v1").await?;
    eventually(mesh, "visitor", &at("absent.example.com"), "status 404").await?;
    let (_, hosts) = updates(mesh, "door", "http\\.8080").await?;
    always(mesh, "visitor", &at("also-absent.example.com"), 3, "status 404").await?;
    let requested = || async { Ok(updates(mesh, "door", "http\\.8080").await?.1) };
    until_counted("updates of virtual hosts on demand", hosts + 1, requested).await?;
    always(mesh, "visitor", &at("shop.example.com"), 3, "tea v1").await
}

async fn restarts(mesh: &Mesh) -> Result<()> {
    let (tables, _) = updates(mesh, "client", "80").await?;
    mesh.server.kill().await?;
    always(mesh, "client", &TEA.get(), 5, "tea v2").await?;
    mesh.server.start_again().await?;
    mesh.apply("routes.yaml", &to("v1"))?;
    until_stable(mesh, "client", &TEA.get(), "tea v1").await?;
    let shop = AppRequest::get(vip(&mesh.pods.pod("door").net.ip.to_string(), 8080), "shop.example.com");
    eventually(mesh, "visitor", &shop, "tea v1").await?;
    // A proxy that has requested a host on demand is also sent hosts that it has not requested.
    let later = "apiVersion: networking.istio.io/v1\nkind: VirtualService\n\
                 metadata: {name: later, namespace: shop}\nspec:\n  hosts: [later.example.com]\n  gateways: [door]\n  \
                 http: [{route: [{destination: {host: tea, subset: v2}}]}]\n";
    mesh.apply("later.yaml", later)?;
    eventually(mesh, "visitor", &AppRequest { host: "later.example.com".to_owned(), ..shop }, "tea v2").await?;
    ensure!(updates(mesh, "client", "80").await?.0 == tables, "the table is not sent");
    Ok(())
}
