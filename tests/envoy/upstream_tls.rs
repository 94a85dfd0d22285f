//! Clients of hosts whose server accepts plaintext on one port and TLS on another: a gateway, and a sidecar. For rules and
//! policies whose certificates cannot be used, after which no request may be sent in plaintext.

use std::time::Duration;

use anyhow::{Result, bail};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::requests::{Host, always, until};

/// Longest time until a rule, policy or Secret applies. Envoy keeps its previous cluster for 15 s while it waits for a Secret.
const APPLIES_WITHIN: Duration = Duration::from_secs(8);

/// A client of the gateway, and one with a sidecar.
pub(crate) const CLIENTS: [&str; 2] = ["visitor", "insider"];

/// The server, the gateway, the clients. The xDS protocols are those of the gateway and of the sidecar.
pub(crate) fn workloads(of_gateway: Protocol, of_sidecar: Protocol) -> Vec<Workload> {
    vec![
        Workload::new("door", "door", PodRole::Gateway(of_gateway, "door")),
        Workload::new("visitor", "visitor", PodRole::NoProxy),
        Workload::new("insider", "insider", PodRole::Sidecar(of_sidecar)),
        Workload::new("tea", "tea", PodRole::NoProxy).port("http", 8080, PortProtocol::Http).port(
            "https",
            8443,
            PortProtocol::Https,
        ),
    ]
}

/// The gateway, with a route for each host.
pub(crate) fn gateway(hosts: &[Host]) -> String {
    let mut text =
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: door, namespace: shop}\nspec:\n  \
                    selector: {istio: door}\n  servers:\n  \
                    - {port: {number: 8080, name: http, protocol: HTTP}, hosts: [\"*\"]}\n---\n"
            .to_owned();
    for Host(name, _) in hosts {
        text += &format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec:\n  hosts: [{name}.example.com]\n  gateways: [door]\n  \
             http: [{{route: [{{destination: {{host: {name}}}}}]}}]\n---\n"
        );
    }
    text
}

/// The request of a client to a host.
pub(crate) fn call(mesh: &Mesh, client: &str, host: Host) -> AppRequest {
    match client {
        "visitor" => {
            AppRequest::get(vip(&mesh.pods.pod("door").net.ip.to_string(), 8080), &format!("{}.example.com", host.0))
        }
        _ => host.get(),
    }
}

fn is_failure(reply: &AppReply) -> bool {
    reply.responder() == "status 503"
}

pub(crate) fn is_tea(reply: &AppReply) -> bool {
    reply.responder() == "tea v1"
}

/// Applies objects to a host that is called in plaintext. All requests fail at once, and none is sent in plaintext afterwards.
pub(crate) async fn fails(mesh: &Mesh, host: Host, objects: String) -> Result<()> {
    for client in CLIENTS {
        until(mesh, client, &call(mesh, client, host), "tea, in plaintext", is_tea).await?;
    }
    mesh.apply(&format!("rules-{}.yaml", host.0), &objects)?;
    refused(mesh, host).await
}

/// Waits until all requests to a host fail.
pub(crate) async fn refused(mesh: &Mesh, host: Host) -> Result<()> {
    in_time(mesh, host, "a failure", is_failure).await?;
    for client in CLIENTS {
        always(mesh, client, &call(mesh, client, host), 20, "status 503").await?;
    }
    Ok(())
}

/// Waits until the clients of a host receive an expected reply.
pub(crate) async fn in_time(mesh: &Mesh, host: Host, expected: &str, test: fn(&AppReply) -> bool) -> Result<()> {
    for client in CLIENTS {
        let call = call(mesh, client, host);
        match tokio::time::timeout(APPLIES_WITHIN, until(mesh, client, &call, expected, test)).await {
            Ok(reply) => drop(reply?),
            Err(_) => {
                let last = mesh.pods.pod(client).call(call).await?.outcome;
                bail!("{client} does not receive {expected} of {} in {APPLIES_WITHIN:?}, but {last:?}", host.0);
            }
        }
    }
    Ok(())
}
