//! DestinationRules whose Secret cannot be used, for a gateway and for a sidecar that the rule selects: requests fail, and none is
//! sent in plaintext or to a server that is not verified.

use anyhow::Result;
use serde_json::{Value, json};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::identity::Authority;
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::Host;
use crate::upstream_tls::{fails, gateway, in_time, is_tea, refused, workloads};

const ABSENT: Host = Host("absent", 1);
const ELSEWHERE: Host = Host("elsewhere", 2);
const LATE: Host = Host("late", 3);
const MALFORMED: Host = Host("malformed", 4);
const ROOTLESS: Host = Host("rootless", 5);
const UNCERTIFIED: Host = Host("uncertified", 6);

const HOSTS: [Host; 6] = [ABSENT, ELSEWHERE, LATE, MALFORMED, ROOTLESS, UNCERTIFIED];

/// The name in the certificate of the server.
const SERVER: &str = "tea.shop.svc.cluster.local";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_without_usable_secrets() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let mut workloads = workloads(Protocol::Sotw, Protocol::Delta);
    workloads.push(Workload::new("stranger", "stranger", PodRole::NoProxy).namespace("bank"));
    let mesh = family::mesh_of(&workloads).await?;
    mesh.apply("gateway.yaml", &gateway(&HOSTS))?;
    for host in HOSTS {
        serve(&mesh, host, "http")?;
    }
    let mesh = &mesh;
    let roots = json!({"cacert": mesh.pods.authority.root()});
    let pair = |(chain, key): &(String, String)| json!({"tls.crt": chain, "tls.key": key});
    let client = mesh.pods.authority.issue_hosts(&["client.example.com".to_owned()])?;
    let elsewhere = rules(ELSEWHERE, "SIMPLE", "kubernetes://bank/elsewhere");
    let foreign = secret("bank", ELSEWHERE.0, &roots);
    let rootless = [secret("shop", ROOTLESS.0, &pair(&client)), rules(ROOTLESS, "MUTUAL", ROOTLESS.0)];
    let uncertified = [secret("shop", UNCERTIFIED.0, &roots), rules(UNCERTIFIED, "MUTUAL", UNCERTIFIED.0)];
    family::run(
        mesh,
        vec![
            ("no Secret", Box::pin(fails(mesh, ABSENT, rules(ABSENT, "SIMPLE", ABSENT.0)))),
            ("a Secret of another namespace", Box::pin(fails(mesh, ELSEWHERE, foreign + &elsewhere))),
            ("a Secret without roots", Box::pin(fails(mesh, ROOTLESS, rootless.concat()))),
            ("a Secret without a client certificate", Box::pin(fails(mesh, UNCERTIFIED, uncertified.concat()))),
            ("a Secret that is created later", Box::pin(late(mesh))),
        ],
    )
    .await?;
    // Envoy rejects this Secret, which `family::run` would report.
    let malformed = secret("shop", MALFORMED.0, &json!({"cacert": "no certificate"}));
    fails(mesh, MALFORMED, malformed + &rules(MALFORMED, "SIMPLE", MALFORMED.0)).await
}

/// Writes the Service of a host. Its port accepts plaintext only, so that a request without TLS succeeds, or TLS only.
fn serve(mesh: &Mesh, host: Host, target: &str) -> Result<()> {
    let service = host.service_with("app: tea", &format!("[{{name: http, port: 80, targetPort: {target}}}]"));
    mesh.apply(&format!("service-{}.yaml", host.0), &service)
}

/// The rules of a host for gateways, and for a sidecar.
fn rules(host: Host, mode: &str, credential: &str) -> String {
    let rule = |name: &str, selector: Value| {
        let mut spec = json!({
            "host": host.0,
            "trafficPolicy": {
                "tls": {"mode": mode, "credentialName": credential, "sni": SERVER, "subjectAltNames": [SERVER]},
                // Envoy keeps established connections when roots are replaced.
                "connectionPool": {"http": {"maxRequestsPerConnection": 1}},
            },
        });
        if !selector.is_null() {
            spec["workloadSelector"] = selector;
        }
        let rule = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": {"name": format!("{}-{name}", host.0), "namespace": "shop"}, "spec": spec,
        });
        format!("{rule}\n---\n")
    };
    rule("all", Value::Null) + &rule("insider", json!({"matchLabels": {"app": "insider"}}))
}

fn secret(namespace: &str, name: &str, data: &Value) -> String {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "stringData": data,
    });
    format!("{object}\n---\n")
}

/// The Secret is created after the rule, then its roots are replaced, then it is deleted. Requests succeed only while it verifies
/// the server.
async fn late(mesh: &Mesh) -> Result<()> {
    fails(mesh, LATE, rules(LATE, "MUTUAL", LATE.0)).await?;
    serve(mesh, LATE, "https")?;
    refused(mesh, LATE).await?;
    let (chain, key) = mesh.pods.authority.issue_hosts(&["client.example.com".to_owned()])?;
    let with_roots = |roots: &str| secret("shop", LATE.0, &json!({"tls.crt": chain, "tls.key": key, "ca.crt": roots}));
    mesh.apply("late-secret.yaml", &with_roots(mesh.pods.authority.root()))?;
    in_time(mesh, LATE, "tea, over TLS", is_tea).await?;
    mesh.apply("late-secret.yaml", &with_roots(Authority::new()?.root()))?;
    refused(mesh, LATE).await?;
    mesh.apply("late-secret.yaml", &with_roots(mesh.pods.authority.root()))?;
    in_time(mesh, LATE, "tea, over TLS", is_tea).await?;
    mesh.apply("late-secret.yaml", "")?;
    refused(mesh, LATE).await
}
