//! Sidecars and ambient mode: sidecars receive connections in tunnels (HBONE), and send such to pods that receive them.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::identity::Authority;
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, once, until};
use crate::tunnels::{ambient_mesh, tunnel};

const TEA: Host = Host("tea", 1);
const MILK: Host = Host("milk", 2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecars_send_and_receive_tunnels() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let (mut mesh, organization) = ambient_mesh(&["PILOT_PREFER_SENDING_HBONE"]).await?;
    let server = |name, protocol| {
        Workload::new(name, name, PodRole::Sidecar(protocol)).hbone().port("http", 8080, PortProtocol::Http).port(
            "lines",
            9000,
            PortProtocol::Lines,
        )
    };
    mesh.deploy(&[
        Workload::new("visitor", "visitor", PodRole::NoProxy),
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)).hbone(),
        // It sends tunnels, and does not receive them.
        Workload::new("other", "other", PodRole::Sidecar(Protocol::Sotw)),
        server("tea", Protocol::Delta),
        server("milk", Protocol::Sotw),
    ])
    .await?;
    mesh.apply("services.yaml", &(TEA.service("app: tea") + &MILK.service("app: milk")))?;
    family::run(
        &mesh,
        vec![
            ("receive", Box::pin(receive(&mesh, &organization))),
            ("policies", Box::pin(policies(&mesh, &organization))),
            ("send", Box::pin(send(&mesh))),
        ],
    )
    .await
}

/// A connection to a port of a pod.
fn port(mesh: &Mesh, pod: &str, port: u16) -> std::net::SocketAddr {
    vip(&mesh.pods.pod(pod).net.ip.to_string(), port)
}

fn is_refused(reply: &AppReply) -> bool {
    reply.outcome.is_err()
}

async fn receive(mesh: &Mesh, organization: &Authority) -> Result<()> {
    for server in ["tea", "milk"] {
        let is_server = |reply: &AppReply| reply.responder().starts_with(server);
        for call in [AppRequest::get(port(mesh, server, 8080), server), AppRequest::raw(port(mesh, server, 9000))] {
            let call = call.through(tunnel(mesh, organization, server, "visitor")?);
            until(mesh, "visitor", &call, server, is_server).await?;
            once(mesh, "visitor", &call, server, is_server).await?;
        }
    }
    // Its sidecar has no port for tunnels.
    let call =
        AppRequest::get(port(mesh, "other", 8080), "other").through(tunnel(mesh, organization, "other", "visitor")?);
    once(mesh, "visitor", &call, "no tunnel", is_refused).await?;
    let mut stranger =
        AppRequest::get(port(mesh, "tea", 8080), "tea").through(tunnel(mesh, organization, "tea", "visitor")?);
    if let Some(tunnel) = &mut stranger.tunnel {
        tunnel.certificate = Authority::new()?.issue("spiffe://cluster.local/ns/shop/sa/visitor")?;
    }
    once(mesh, "visitor", &stranger, "no tunnel for an unknown authority", is_refused).await?;
    Ok(())
}

async fn policies(mesh: &Mesh, organization: &Authority) -> Result<()> {
    let policy = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: milk, namespace: shop}
spec:
  selector: {matchLabels: {app: milk}}
  action: DENY
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/stranger]}}]
    to: [{operation: {paths: [/closed*]}}]
";
    mesh.apply("milk.yaml", policy)?;
    for (account, path, expected) in
        [("stranger", "/closed", "status 403"), ("stranger", "/open", "milk"), ("friend", "/closed", "milk")]
    {
        let call = AppRequest::get(port(mesh, "milk", 8080), "milk").path(path);
        let call = call.through(tunnel(mesh, organization, "milk", account)?);
        let is_expected = |reply: &AppReply| reply.responder().starts_with(expected);
        until(mesh, "visitor", &call, expected, is_expected).await?;
        once(mesh, "visitor", &call, expected, is_expected).await?;
    }
    Ok(())
}

async fn send(mesh: &Mesh) -> Result<()> {
    for client in ["client", "other"] {
        for (host, server) in [(TEA, "tea v1"), (MILK, "milk v1")] {
            let call = host.get();
            until(mesh, client, &call, server, |reply| reply.responder() == server).await?;
            always(mesh, client, &call, 5, server).await?;
            // The address of an endpoint shows how it is reached.
            let envoy = mesh.pods.pod(client).envoy.as_ref().context("the client has an Envoy")?;
            let clusters = envoy.admin("/clusters").await?;
            let cluster = format!("outbound|80||{}.shop.svc.cluster.local::", host.0);
            let endpoint = format!("{cluster}envoy://connect_originate/{}", port(mesh, host.0, 8080));
            let of_cluster: Vec<&str> = clusters.lines().filter(|line| line.starts_with(&cluster)).collect();
            let is_tunnel = of_cluster.iter().any(|line| line.starts_with(&endpoint));
            ensure!(is_tunnel, "{client} has no tunnel to {}: {of_cluster:#?}", host.0);
        }
    }
    Ok(())
}
