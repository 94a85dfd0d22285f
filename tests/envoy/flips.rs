//! An AuthorizationPolicy changes a thousand times while requests are sent. At no moment is a request permitted that all
//! states deny, or a request denied that all states permit.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, eventually};

const CHANGES: usize = 1_000;
/// Timeout until a policy takes effect, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);
const SAFE: Host = Host("safe", 1);

/// The states, which follow each other in a cycle. In each, the client may request `/always` and the path of the state.
/// Every other request is denied: to `/never`, from another workload, in plaintext.
const STATES: [&str; 4] = [
    r"
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {paths: [/always, /turn-0]}}]
",
    r"
  action: DENY
  rules:
  - from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/client]}}]
  - to: [{operation: {notPaths: [/always, /turn-1]}}]
",
    r"
  action: ALLOW
  rules:
  - from: [{source: {namespaces: [shop], notPrincipals: [cluster.local/ns/shop/sa/friend]}}]
    to: [{operation: {paths: [/always, /turn-2]}}]
",
    r"
  action: DENY
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/friend]}}, {source: {notNamespaces: [shop]}}]
  - to: [{operation: {notPaths: [/always, /turn-3]}}]
",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_flips() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let app = |name, protocol| Workload::new(name, name, PodRole::Sidecar(protocol));
    let mesh = family::mesh_of(&[
        app("client", Protocol::Delta),
        app("friend", Protocol::Sotw),
        Workload::new("stranger", "stranger", PodRole::NoProxy),
        app("safe", Protocol::Delta),
    ])
    .await?;
    family::run(&mesh, vec![("a thousand policies", Box::pin(flips(&mesh)))]).await
}

fn apply_state(mesh: &Mesh, state: usize) -> Result<()> {
    let head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: safe, namespace: shop}\n\
                spec:\n  selector: {matchLabels: {app: safe}}";
    mesh.write("policy.yaml", &format!("{head}{}", STATES[state]))
}

async fn flips(mesh: &Mesh) -> Result<()> {
    apply_state(mesh, 0)?;
    mesh.apply("safe.yaml", &SAFE.service("app: safe"))?;
    let get = |path: &str| SAFE.get().path(path);
    let plaintext = AppRequest::get(vip(&mesh.pods.pod("safe").net.ip.to_string(), 8080), "safe");
    eventually(mesh, "client", &get("/turn-0"), "safe v1").await?;
    eventually(mesh, "friend", &get("/always?friend"), "status 403").await?;
    let streams = [
        Stream::new(mesh.pods.shared("client"), get("/always"), "safe v1"),
        Stream::new(mesh.pods.shared("client"), get("/never"), "status 403"),
        Stream::new(mesh.pods.shared("friend"), get("/always?friend"), "status 403"),
        Stream::new(mesh.pods.shared("stranger"), plaintext.path("/always?stranger"), "status 403"),
    ];
    let change = async {
        let mut durations = Vec::with_capacity(CHANGES);
        for number in 1..=CHANGES {
            let state = number % STATES.len();
            let started = Instant::now();
            apply_state(mesh, state)?;
            let call = get(&format!("/turn-{state}")).reuse_connection();
            while mesh.pods.pod("client").call(call.clone()).await?.responder() != "safe v1" {
                ensure!(started.elapsed() < TIMEOUT, "policy {number} has not taken effect after {TIMEOUT:?}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            durations.push(started.elapsed());
        }
        Ok(durations)
    };
    let (mut durations, requests) = under_load(&streams, change).await?;
    for marker in ["never", "friend", "stranger"] {
        let passed = mesh.pods.pod("safe").received(marker).await?;
        ensure!(passed.is_empty(), "requests that are always denied have reached the application: {passed:?}");
    }
    durations.sort_unstable();
    let at = |percent: usize| durations.get(durations.len() * percent / 100).copied().unwrap_or(Duration::ZERO);
    let (half, most, last) = (at(50), at(99), durations.last());
    eprintln!(
        "{CHANGES} changes during {requests} requests: in effect after {half:?} (p50), {most:?} (p99), {last:?} (max)"
    );
    Ok(())
}
