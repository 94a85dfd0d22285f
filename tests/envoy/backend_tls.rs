//! BackendTLSPolicies whose root certificates cannot be used: requests fail, and none is sent in plaintext.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, until};

/// Longest time until a policy applies. Envoy keeps its previous cluster for 15 s while it waits for a Secret.
const APPLIES_WITHIN: Duration = Duration::from_secs(8);

const ABSENT: Host = Host("absent", 1);
const EMPTY: Host = Host("empty", 2);
const LATE: Host = Host("late", 3);
const MALFORMED: Host = Host("malformed", 4);

/// A client of the gateway, and one with a sidecar. The xDS protocols of both proxies differ.
const CLIENTS: [&str; 2] = ["visitor", "insider"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_without_usable_roots() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let mesh = family::mesh_of(&[
        Workload::new("door", "door", PodRole::Gateway(Protocol::Delta, "door")),
        Workload::new("visitor", "visitor", PodRole::NoProxy),
        Workload::new("insider", "insider", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("tea", "tea", PodRole::NoProxy).port("http", 8080, PortProtocol::Http).port(
            "https",
            8443,
            PortProtocol::Https,
        ),
    ])
    .await?;
    mesh.pods.write_certificate("server", &["tea.example.com".to_owned()])?;
    let mut objects = String::new();
    for host in [ABSENT, EMPTY, LATE, MALFORMED] {
        // The port accepts plaintext only, so that a request without TLS succeeds.
        objects += &host.service_with("app: tea", "[{name: http, port: 80, targetPort: http}]");
    }
    mesh.apply("services.yaml", &objects)?;
    mesh.apply("gateway.yaml", &gateway())?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("no ConfigMap", Box::pin(fails(mesh, ABSENT, None))),
            ("a ConfigMap without roots", Box::pin(fails(mesh, EMPTY, Some(json!({}))))),
            ("a ConfigMap that is created later", Box::pin(late(mesh))),
        ],
    )
    .await?;
    // Envoy rejects this Secret, which `family::run` would report.
    fails(mesh, MALFORMED, Some(json!({"ca.crt": "no certificate"}))).await
}

/// The gateway, with a route for each host.
fn gateway() -> String {
    let mut text =
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: door, namespace: shop}\nspec:\n  \
                    selector: {istio: door}\n  servers:\n  \
                    - {port: {number: 8080, name: http, protocol: HTTP}, hosts: [\"*\"]}\n---\n"
            .to_owned();
    for Host(name, _) in [ABSENT, EMPTY, LATE, MALFORMED] {
        text += &format!(
            "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec:\n  hosts: [{name}.example.com]\n  gateways: [door]\n  \
             http: [{{route: [{{destination: {{host: {name}}}}}]}}]\n---\n"
        );
    }
    text
}

/// A policy for a Service whose roots are in the ConfigMap of the same name.
fn policy(Host(name, _): Host) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": name}],
            "validation": {
                "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": name}], "hostname": "tea.example.com",
            },
        },
    })
}

fn config_map(Host(name, _): Host, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"}, "data": data})
}

fn call(mesh: &Mesh, client: &str, host: Host) -> AppRequest {
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

/// Adds a policy to a Service that is called in plaintext. All requests fail at once, and none is sent in plaintext afterwards.
async fn fails(mesh: &Mesh, host: Host, data: Option<Value>) -> Result<()> {
    let roots = data.map(|data| config_map(host, &data)).into_iter();
    for client in CLIENTS {
        until(mesh, client, &call(mesh, client, host), "tea, in plaintext", |reply| reply.responder() == "tea v1")
            .await?;
    }
    let objects: Vec<String> = roots.chain([policy(host)]).map(|object| object.to_string()).collect();
    mesh.apply(&format!("policy-{}.yaml", host.0), &objects.join("\n---\n"))?;
    refused(mesh, host).await
}

/// Waits until all requests to a host fail.
async fn refused(mesh: &Mesh, host: Host) -> Result<()> {
    for client in CLIENTS {
        let call = call(mesh, client, host);
        let failure = until(mesh, client, &call, "a failure", is_failure);
        let in_time = tokio::time::timeout(APPLIES_WITHIN, failure).await;
        ensure!(in_time.is_ok(), "{client} sends in plaintext to {} for more than {APPLIES_WITHIN:?}", host.0);
        in_time??;
        always(mesh, client, &call, 20, "status 503").await?;
    }
    Ok(())
}

/// The roots arrive after the policy: requests fail until then, and use TLS afterwards.
async fn late(mesh: &Mesh) -> Result<()> {
    fails(mesh, LATE, None).await?;
    let secure = LATE.service_with("app: tea", "[{name: http, port: 80, targetPort: https}]");
    let services = [ABSENT, EMPTY, MALFORMED].map(|host| host.service("app: tea")).concat() + &secure;
    mesh.apply("services.yaml", &services)?;
    refused(mesh, LATE).await?;
    let roots = config_map(LATE, &json!({"ca.crt": mesh.pods.authority.root()}));
    mesh.apply("late-roots.yaml", &roots.to_string())?;
    for client in CLIENTS {
        until(mesh, client, &call(mesh, client, LATE), "tea, over TLS", |reply| reply.responder() == "tea v1").await?;
    }
    // Without the roots, requests fail again.
    mesh.apply("late-roots.yaml", "")?;
    refused(mesh, LATE).await
}
