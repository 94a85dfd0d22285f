//! Tokens with keys from an issuer's JWKS, which the control plane fetches and refreshes.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::json;
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::keys::KeyServer;
use sluice_testkit::pods::mesh::{Mesh, MeshOptions, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, always, eventually};

const TEA: Host = Host("tea", 1);
const ISSUER: &str = "https://tea.example.com";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_by_jwks_uri() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let control_plane = vec![("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "500ms".to_owned())];
    let mut mesh = Mesh::start_with(&[], MeshOptions { control_plane, ..MeshOptions::default() }).await?;
    mesh.deploy(&[
        Workload::new("client", "client", PodRole::NoProxy),
        Workload::new("tea", "tea", PodRole::Sidecar(Protocol::Delta)),
    ])
    .await?;
    family::run(&mesh, vec![("keys that rotate", Box::pin(keys_that_rotate(&mesh)))]).await
}

async fn keys_that_rotate(mesh: &Mesh) -> Result<()> {
    let (first, second) = (TokenIssuer::with_id("first")?, TokenIssuer::with_id("second")?);
    // Its tokens name the first key, but are signed with another one.
    let forger = TokenIssuer::with_id("first")?;
    let keys = KeyServer::start(&[&first]).await?;
    let policy = format!(
        "
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: tea, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: tea}}}}
  jwtRules: [{{issuer: {ISSUER:?}, jwksUri: {:?}}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: tea, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: tea}}}}
  rules: [{{from: [{{source: {{requestPrincipals: ['{ISSUER}/maya']}}}}]}}]
",
        keys.uri()
    );
    mesh.apply("tea.yaml", &(TEA.service("app: tea") + &policy))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let claims = |begins: u64, ends: u64| json!({ "iss": ISSUER, "sub": "maya", "nbf": begins, "exp": ends });
    let good = claims(now - 600, now + 3600);
    let call = AppRequest::get(vip(&mesh.pods.pod("tea").net.ip.to_string(), 8080), "tea");
    let with = |token: String| call.clone().header("authorization", &format!("Bearer {token}"));
    let (by_first, by_second) = (with(first.sign(&good)?), with(second.sign(&good)?));

    eventually(mesh, "client", &call, "status 403").await?;
    eventually(mesh, "client", &by_first, "tea v1").await?;
    // A clock skew of one minute is accepted.
    for (call, expected) in [
        (by_first.clone(), "tea v1"),
        (call.clone(), "status 403"),
        (with(first.sign(&claims(now - 3600, now - 300))?), "status 401"),
        (with(first.sign(&claims(now + 1800, now + 3600))?), "status 401"),
        (with(forger.sign(&good)?), "status 401"),
        (by_second.clone(), "status 401"),
        (with("nonsense".to_owned()), "status 401"),
    ] {
        always(mesh, "client", &call, 3, expected).await?;
    }

    // The second key is added, then the first is removed.
    keys.serve(&[&first, &second]);
    eventually(mesh, "client", &by_second, "tea v1").await?;
    always(mesh, "client", &by_first, 5, "tea v1").await?;
    keys.serve(&[&second]);
    eventually(mesh, "client", &by_first, "status 401").await?;
    always(mesh, "client", &by_second, 5, "tea v1").await?;
    Ok(())
}
