//! EnvoyFilters and Telemetry: the filters that they add.

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppReply;
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, answer, count, eventually, once, until, until_counted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let app = |name, protocol| Workload::new(name, name, PodRole::Sidecar(protocol));
    let mesh = family::mesh_of(&[
        app("client", Protocol::Delta),
        app("lua", Protocol::Sotw),
        app("limited", Protocol::Delta),
        app("logged", Protocol::Delta),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("Lua", Box::pin(lua(mesh))),
            ("local rate limit", Box::pin(local_rate_limit(mesh))),
            ("patched routes and clusters", Box::pin(patches(mesh))),
            ("access logs", Box::pin(access_logs(mesh))),
        ],
    )
    .await
}

/// An EnvoyFilter that inserts an HTTP filter before the router in the inbound listener of an application.
fn before_router(app: &str, filter: &str) -> String {
    format!(
        r"
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {{name: {app}, namespace: shop}}
spec:
  workloadSelector: {{labels: {{app: {app}}}}}
  configPatches:
  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_INBOUND
      listener:
        filterChain:
          filter:
            name: envoy.filters.network.http_connection_manager
            subFilter: {{name: envoy.filters.http.router}}
    patch:
      operation: INSERT_BEFORE
      value:
{filter}
---
"
    )
}

fn header(reply: &AppReply, name: &str) -> String {
    reply.outcome.as_ref().ok().and_then(|answer| answer.headers.get(name).cloned()).unwrap_or_default()
}

async fn lua(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("lua", 1);
    let filter = r#"
        name: tea.lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code:
            inline_string: |
              function envoy_on_request(handle)
                handle:headers():add("x-lua", "was here")
              end
              function envoy_on_response(handle)
                handle:headers():add("x-lua-answer", "and here")
              end"#;
    mesh.apply("lua.yaml", &(HOST.service("app: lua") + &before_router("lua", filter)))?;
    let reply = until(mesh, "client", &HOST.get(), "a response modified by Lua", |reply| {
        reply.responder() == "lua v1" && header(reply, "x-lua-answer") == "and here"
    })
    .await?;
    let received = answer(reply)?.received_request();
    ensure!(received["headers"]["x-lua"] == "was here", "the application receives Lua's header, but {received}");
    // Without the EnvoyFilter the script does not run.
    mesh.apply("lua.yaml", &HOST.service("app: lua"))?;
    until(mesh, "client", &HOST.get(), "an unmodified response", |reply| {
        reply.responder() == "lua v1" && header(reply, "x-lua-answer").is_empty()
    })
    .await?;
    mesh.apply("lua.yaml", &(HOST.service("app: lua") + &before_router("lua", filter)))?;
    until(mesh, "client", &HOST.get(), "Lua again", |reply| header(reply, "x-lua-answer") == "and here").await?;
    Ok(())
}

async fn local_rate_limit(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("limited", 2);
    let filter = r#"
        name: envoy.filters.http.local_ratelimit
        typed_config:
          "@type": type.googleapis.com/udpa.type.v1.TypedStruct
          type_url: type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
          value:
            stat_prefix: tea_limit
            token_bucket: {max_tokens: 10, tokens_per_fill: 10, fill_interval: 600s}
            filter_enabled: {default_value: {numerator: 1000000, denominator: MILLION}}
            filter_enforced: {default_value: {numerator: 1000000, denominator: MILLION}}
            response_headers_to_add:
            - append_action: OVERWRITE_IF_EXISTS_OR_ADD
              header: {key: x-limited, value: "yes"}"#;
    // The Service is applied first. Requests before the limit applies are not counted.
    mesh.apply("limited.yaml", &HOST.service("app: limited"))?;
    eventually(mesh, "client", &HOST.get(), "limited v1").await?;
    mesh.apply("limited.yaml", &(HOST.service("app: limited") + &before_router("limited", filter)))?;
    let envoy = mesh.pods.pod("limited").envoy.as_ref().context("the pod has an Envoy")?;
    until_counted("rate limits in force", 1, async || {
        Ok(envoy.admin("/config_dump?resource=dynamic_listeners").await?.matches("local_ratelimit.v3").count())
    })
    .await?;
    // A connection to the draining listener has no rate limit until it closes.
    let counts = count(mesh, "client", &HOST.get(), 40).await?;
    ensure!(counts.get("limited v1").is_some_and(|passed| *passed >= 10), "10 requests pass, but {counts:?}");
    until_counted("refused requests of 10 beyond the limit", 10, async || {
        let counts = count(mesh, "client", &HOST.get(), 10).await?;
        Ok(counts.get("status 429").copied().unwrap_or_default())
    })
    .await?;
    once(mesh, "client", &HOST.get(), "429 with the filter's header", |reply| {
        reply.responder() == "status 429" && header(reply, "x-limited") == "yes"
    })
    .await?;
    Ok(())
}

/// Patches a route configuration, a virtual host and a cluster of one client.
async fn patches(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("patched", 3);
    let filter = r#"
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: patched, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  configPatches:
  - applyTo: VIRTUAL_HOST
    match:
      context: SIDECAR_OUTBOUND
      routeConfiguration: {vhost: {name: "patched.shop.svc.cluster.local:80"}}
    patch:
      operation: MERGE
      value:
        response_headers_to_add:
        - header: {key: x-patched, value: "host"}
  - applyTo: CLUSTER
    match:
      context: SIDECAR_OUTBOUND
      cluster: {service: patched.shop.svc.cluster.local}
    patch:
      operation: MERGE
      value: {connect_timeout: 4.5s}
"#;
    mesh.apply("patched.yaml", &(HOST.service("app: logged") + filter))?;
    until(mesh, "client", &HOST.get(), "the virtual host's header", |reply| {
        reply.responder() == "logged v1" && header(reply, "x-patched") == "host"
    })
    .await?;
    let envoy = mesh.pods.pod("client").envoy.as_ref().context("the pod has an Envoy")?;
    let clusters = envoy.admin("/config_dump?resource=dynamic_active_clusters").await?;
    ensure!(clusters.matches("\"4.500s\"").count() == 1, "one cluster has another connect timeout");
    Ok(())
}

async fn access_logs(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("logged", 4);
    let objects = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - name: tea-log
      envoyFileAccessLog:
        path: $DIRECTORY/logged/access.log
        logFormat: {text: "%REQ(:PATH)% %RESPONSE_CODE%\n"}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: logged, namespace: shop}
spec:
  selector: {matchLabels: {app: logged}}
  accessLogging: [{providers: [{name: tea-log}], filter: {expression: "response.code >= 400"}}]
"#;
    mesh.apply("logged.yaml", &(HOST.service("app: logged") + objects))?;
    eventually(mesh, "client", &HOST.get(), "logged v1").await?;
    let log = mesh.pods.file("logged/access.log");
    let bad = HOST.get().path("/bad?status=418");
    until_counted("lines of the access log", 1, async || {
        mesh.pods.pod("client").call(bad.clone()).await?;
        mesh.pods.pod("client").call(HOST.get().path("/good")).await?;
        Ok(std::fs::read_to_string(&log).unwrap_or_default().lines().count())
    })
    .await?;
    let text = std::fs::read_to_string(&log)?;
    ensure!(text.lines().all(|line| line == "/bad?status=418 418"), "only failed requests are logged, but:\n{text}");
    Ok(())
}
