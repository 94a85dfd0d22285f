//! BackendTLSPolicies whose root certificates cannot be used: requests fail, and none is sent in plaintext.

use anyhow::Result;
use serde_json::{Value, json};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::network::pods_are_permitted;

use crate::family;
use crate::requests::{Host, until};
use crate::upstream_tls::{self, CLIENTS, call, gateway, is_tea, refused, workloads};

const ABSENT: Host = Host("absent", 1);
const EMPTY: Host = Host("empty", 2);
const LATE: Host = Host("late", 3);
const MALFORMED: Host = Host("malformed", 4);

const HOSTS: [Host; 4] = [ABSENT, EMPTY, LATE, MALFORMED];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_without_usable_roots() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let mesh = family::mesh_of(&workloads(Protocol::Delta, Protocol::Sotw)).await?;
    mesh.pods.write_certificate("server", &["tea.example.com".to_owned()])?;
    let mut objects = String::new();
    for host in HOSTS {
        // The port accepts plaintext only, so that a request without TLS succeeds.
        objects += &host.service_with("app: tea", "[{name: http, port: 80, targetPort: http}]");
    }
    mesh.apply("services.yaml", &objects)?;
    mesh.apply("gateway.yaml", &gateway(&HOSTS))?;
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

/// Adds a policy to a Service, with these roots.
async fn fails(mesh: &Mesh, host: Host, data: Option<Value>) -> Result<()> {
    let roots = data.map(|data| config_map(host, &data)).into_iter();
    let objects: Vec<String> = roots.chain([policy(host)]).map(|object| object.to_string()).collect();
    upstream_tls::fails(mesh, host, objects.join("\n---\n")).await
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
        until(mesh, client, &call(mesh, client, LATE), "tea, over TLS", is_tea).await?;
    }
    // Without the roots, requests fail again.
    mesh.apply("late-roots.yaml", "")?;
    refused(mesh, LATE).await
}
