//! AuthorizationPolicies of action CUSTOM: an external server decides, over HTTP and gRPC.

use anyhow::{Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, answer, eventually, once};

const GUARD: Host = Host("guard", 9);

/// The authorization server: two ports, and one where it does not listen.
const PROVIDERS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: over-http
      envoyExtAuthzHttp:
        service: guard.shop.svc.cluster.local
        port: 80
        headersToDownstreamOnDeny: [content-type]
    - name: over-grpc
      envoyExtAuthzGrpc: {service: guard.shop.svc.cluster.local, port: 9100}
    - name: away
      envoyExtAuthzGrpc: {service: guard.shop.svc.cluster.local, port: 9999}
---
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_authorization() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let app = |name| Workload::new(name, name, PodRole::Sidecar(Protocol::Delta));
    let mesh = family::mesh_of(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("guard", "guard", PodRole::NoProxy).version("guard").port("http", 8080, PortProtocol::Http).port(
            "grpc",
            9100,
            PortProtocol::Authorization,
        ),
        app("web"),
        app("rpc"),
        app("lonely"),
    ])
    .await?;
    let ports = "[{name: http, port: 80, targetPort: http}, {name: grpc, port: 9100, targetPort: grpc}, \
                 {name: grpc-away, port: 9999, targetPort: 9999}]";
    mesh.apply("guard.yaml", &(PROVIDERS.to_owned() + &GUARD.service_with("app: guard", ports)))?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("CUSTOM over HTTP", Box::pin(over_http(mesh))),
            ("CUSTOM over gRPC", Box::pin(over_grpc(mesh))),
            ("CUSTOM without a server", Box::pin(unreachable_server(mesh))),
        ],
    )
    .await
}

/// The Service of an application, and a policy that delegates the paths below `/guarded` to a provider.
fn guarded(host: Host, provider: &str) -> String {
    let name = host.0;
    host.service(&format!("app: {name}"))
        + &format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: {name}, namespace: shop}}\nspec:\n  selector: {{matchLabels: {{app: {name}}}}}\n  \
             action: CUSTOM\n  provider: {{name: {provider}}}\n  \
             rules: [{{to: [{{operation: {{paths: [/guarded*]}}}}]}}]\n"
        )
}

async fn over_http(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("web", 1);
    mesh.apply("web.yaml", &guarded(HOST, "over-http"))?;
    // The authorization server receives the path of the request, whose query sets the response.
    let refused = HOST.get().path("/guarded/no?status=403&only=guard");
    eventually(mesh, "client", &refused, "status 403").await?;
    // The proxy of the client may have the Service before that of the application has the policy.
    let before = mesh.pods.pod("web").received("/guarded/no").await?.len();
    for (call, expected) in [
        (refused.clone(), "status 403"),
        (HOST.get().path("/guarded/yes"), "web v1"),
        (HOST.get().path("/free?status=403&only=guard"), "web v1"),
    ] {
        always(mesh, "client", &call, 5, expected).await?;
    }
    let reply = once(mesh, "client", &refused, "a refusal", |reply| reply.responder() == "status 403").await?;
    ensure!(answer(reply)?.received_request()["name"] == "guard", "the body is that of the authorization server");
    let received = mesh.pods.pod("web").received("/guarded/no").await?;
    ensure!(received.len() == before, "a denied request reaches no application");
    ensure!(
        mesh.pods.pod("guard").received("/free").await?.is_empty(),
        "the authorization server receives only guarded paths"
    );
    Ok(())
}

async fn over_grpc(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("rpc", 2);
    mesh.apply("rpc.yaml", &guarded(HOST, "over-grpc"))?;
    let call = HOST.get().path("/guarded");
    eventually(mesh, "client", &call, "status 403").await?;
    let before = mesh.pods.pod("rpc").received("/guarded").await?.len();
    let permitted = call.clone().header("x-permit", "yes");
    // No request is permitted until there is a connection to the authorization server.
    eventually(mesh, "client", &permitted, "rpc v1").await?;
    for (call, expected) in [
        (permitted.clone(), "rpc v1"),
        (call.clone(), "status 403"),
        (call.clone().header("x-permit", "perhaps"), "status 403"),
        (HOST.get(), "rpc v1"),
    ] {
        always(mesh, "client", &call, 5, expected).await?;
    }
    let refused = answer(once(mesh, "client", &call, "a refusal", |reply| reply.responder() == "status 403").await?)?;
    ensure!(
        refused.body == "denied by the external authorization service",
        "the body is that of the authorization server, but is {:?}",
        refused.body
    );
    let passed = answer(once(mesh, "client", &permitted, "rpc v1", |reply| reply.responder() == "rpc v1").await?)?;
    ensure!(
        passed.received_request()["headers"]["x-permitted-by"] == "guard",
        "the authorization server adds a header"
    );
    let received = mesh.pods.pod("rpc").received("/guarded").await?;
    ensure!(
        received.iter().skip(before).all(|request| request["headers"]["x-permit"] == "yes"),
        "a denied request reaches no application"
    );
    Ok(())
}

/// A proxy that cannot reach the server denies every request.
async fn unreachable_server(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("lonely", 3);
    mesh.apply("lonely.yaml", &guarded(HOST, "away"))?;
    let call = HOST.get().path("/guarded").header("x-permit", "yes");
    eventually(mesh, "client", &call, "status 403").await?;
    always(mesh, "client", &call, 10, "status 403").await?;
    eventually(mesh, "client", &HOST.get(), "lonely v1").await.map(drop)
}
