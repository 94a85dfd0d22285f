//! AuthorizationPolicies, and RequestAuthentications with tokens.

use anyhow::{Result, ensure};
use serde_json::json;
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::mesh::{Mesh, vip};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::token::TokenIssuer;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, answer, eventually, once, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let app = |name| {
        Workload::new(name, name, PodRole::Sidecar(Protocol::Delta)).port("http", 8080, PortProtocol::Http).port(
            "lines",
            9000,
            PortProtocol::Lines,
        )
    };
    let mesh = family::mesh_of(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)),
        Workload::new("friend", "friend", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("stranger", "stranger", PodRole::NoProxy),
        app("allow"),
        app("deny"),
        app("lines"),
        app("tokens"),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("ALLOW", Box::pin(allow(mesh))),
            ("DENY", Box::pin(deny(mesh))),
            ("TCP", Box::pin(tcp(mesh))),
            ("tokens", Box::pin(tokens(mesh))),
        ],
    )
    .await
}

fn direct(mesh: &Mesh, pod: &str, port: u16) -> AppRequest {
    AppRequest::get(vip(&mesh.pods.pod(pod).net.ip.to_string(), port), pod)
}

async fn allow(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("allow", 1);
    let policy = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow, namespace: shop}
spec:
  selector: {matchLabels: {app: allow}}
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {methods: [GET], paths: [/public*, "/cups/{*}/size"]}}]
  - to: [{operation: {paths: [/health]}}]
  - from: [{source: {namespaces: [shop]}}]
    when: [{key: "request.headers[x-pass]", values: [open]}]
"#;
    mesh.apply("allow.yaml", &(HOST.service("app: allow") + policy))?;
    eventually(mesh, "client", &HOST.get(), "status 403").await?;
    let get = |path: &str| HOST.get().path(path);
    for (from, call, expected) in [
        ("client", get("/public/x"), "allow v1"),
        ("client", get("/public/x").method("POST"), "status 403"),
        ("client", get("/cups/3/size"), "allow v1"),
        ("client", get("/cups/3/4/size"), "status 403"),
        ("client", get("/health"), "allow v1"),
        ("friend", get("/public/x"), "status 403"),
        ("friend", get("/health"), "allow v1"),
        ("friend", get("/secret").header("x-pass", "open"), "allow v1"),
        ("friend", get("/secret").header("x-pass", "closed"), "status 403"),
        ("stranger", direct(mesh, "allow", 8080).path("/public/x"), "status 403"),
        ("stranger", direct(mesh, "allow", 8080).path("/health"), "allow v1"),
        ("stranger", direct(mesh, "allow", 8080).path("/x").header("x-pass", "open"), "status 403"),
    ] {
        eventually(mesh, from, &call, expected).await?;
        always(mesh, from, &call, 5, expected).await?;
    }
    let received = mesh.pods.pod("allow").received("/secret").await?;
    ensure!(
        received.iter().all(|request| request["headers"]["x-pass"] == "open"),
        "a denied request reaches no application: {received:?}"
    );
    Ok(())
}

async fn deny(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("deny", 2);
    let policy = r"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: shop}
spec:
  selector: {matchLabels: {app: deny}}
  action: DENY
  rules:
  - from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/client]}}]
    to: [{operation: {paths: [/admin*]}}]
  - to: [{operation: {methods: [DELETE]}}]
";
    mesh.apply("deny.yaml", &(HOST.service("app: deny") + policy))?;
    eventually(mesh, "friend", &HOST.get().path("/admin"), "status 403").await?;
    for (from, call, expected) in [
        ("client", HOST.get().path("/admin"), "deny v1"),
        ("client", HOST.get().method("DELETE"), "status 403"),
        ("friend", HOST.get().path("/admin/x"), "status 403"),
        ("friend", HOST.get().path("/other"), "deny v1"),
        ("stranger", direct(mesh, "deny", 8080).path("/admin"), "status 403"),
        ("stranger", direct(mesh, "deny", 8080).path("/other"), "deny v1"),
    ] {
        eventually(mesh, from, &call, expected).await?;
        always(mesh, from, &call, 5, expected).await?;
    }
    // Without the policy the request is allowed.
    mesh.apply("deny.yaml", &HOST.service("app: deny"))?;
    eventually(mesh, "friend", &HOST.get().path("/admin/x"), "deny v1").await?;
    Ok(())
}

async fn tcp(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("lines", 3);
    let policy = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: lines, namespace: shop}
spec:
  selector: {matchLabels: {app: lines}}
  action: DENY
  rules:
  - from: [{source: {principals: ["*/sa/friend"]}}]
    to: [{operation: {ports: ["9000"]}}]
"#;
    let ports = "[{name: tcp, port: 9000, targetPort: lines}, {name: http, port: 80, targetPort: http}]";
    mesh.apply("lines.yaml", &(HOST.service_with("app: lines", ports) + policy))?;
    let call = AppRequest::raw(vip(&HOST.ip(), 9000));
    eventually(mesh, "client", &call, "lines v1").await?;
    until(mesh, "friend", &call, "a closed connection", |reply| reply.outcome.is_err()).await?;
    always(mesh, "client", &call, 10, "lines v1").await?;
    eventually(mesh, "friend", &HOST.get(), "lines v1").await?;
    Ok(())
}

async fn tokens(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("tokens", 4);
    let (issuer, other) = (TokenIssuer::new()?, TokenIssuer::new()?);
    let policy = format!(
        r"
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {{name: tokens, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: tokens}}}}
  jwtRules:
  - issuer: tea@example.com
    audiences: [shop]
    jwks: '{}'
    forwardOriginalToken: true
    outputClaimToHeaders: [{{header: x-group, claim: group}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: tokens, namespace: shop}}
spec:
  selector: {{matchLabels: {{app: tokens}}}}
  action: ALLOW
  rules:
  - to: [{{operation: {{paths: [/open]}}}}]
  - from: [{{source: {{requestPrincipals: [tea@example.com/maya]}}}}]
    to: [{{operation: {{paths: [/maya]}}}}]
  - to: [{{operation: {{paths: [/brewers]}}}}]
    when: [{{key: 'request.auth.claims[group]', values: [brewers]}}]
",
        issuer.key_set()
    );
    mesh.apply("tokens.yaml", &(HOST.service("app: tokens") + &policy))?;
    let claims = |subject: &str, group: &str| json!({ "iss": "tea@example.com", "aud": "shop", "sub": subject, "group": group, "exp": 4_000_000_000_u64 });
    let with = |path: &str, token: &str| HOST.get().path(path).header("authorization", &format!("Bearer {token}"));
    let maya = issuer.sign(&claims("maya", "guests"))?;
    let brewer = issuer.sign(&claims("theo", "brewers"))?;
    let forged = other.sign(&claims("maya", "brewers"))?;
    let stale = issuer.sign(&json!({ "iss": "tea@example.com", "aud": "shop", "sub": "maya", "exp": 1_000_000 }))?;
    let elsewhere =
        issuer.sign(&json!({ "iss": "tea@example.com", "aud": "other", "sub": "maya", "exp": 4_000_000_000_u64 }))?;
    eventually(mesh, "client", &HOST.get().path("/maya"), "status 403").await?;
    for (call, expected) in [
        (HOST.get().path("/open"), "tokens v1"),
        (HOST.get().path("/brewers"), "status 403"),
        (with("/maya", &maya), "tokens v1"),
        (with("/brewers", &maya), "status 403"),
        (with("/brewers", &brewer), "tokens v1"),
        (with("/maya", &brewer), "status 403"),
        (with("/open", &forged), "status 401"),
        (with("/maya", &stale), "status 401"),
        (with("/maya", &elsewhere), "status 403"),
        (with("/open", "nonsense"), "status 401"),
    ] {
        eventually(mesh, "client", &call, expected).await?;
        always(mesh, "client", &call, 3, expected).await?;
    }
    let reply =
        once(mesh, "client", &with("/brewers", &brewer), "tokens v1", |reply| reply.responder() == "tokens v1").await?;
    let received = answer(reply)?.received_request();
    ensure!(
        received["headers"]["x-group"] == "brewers",
        "the claim is a header, but the application received {received}"
    );
    Ok(())
}
