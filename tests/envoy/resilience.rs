//! Retries, timeouts, faults, outlier ejection and circuit breaking, with backends whose failures the request selects.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::{AppReply, AppRequest};
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, PortProtocol, Workload};

use crate::family;
use crate::requests::{Host, always, count, eventually, once, share, until, until_counted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resilience() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let mesh = family::mesh_of(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Sotw)),
        Workload::new("tea-v1", "tea", PodRole::Sidecar(Protocol::Delta))
            .port("http", 8080, PortProtocol::Http)
            // The limits of a connection pool also apply at the server, to all requests of a port.
            .port("limited", 8082, PortProtocol::Http),
        Workload::new("tea-v2", "tea", PodRole::Sidecar(Protocol::Delta)).version("v2"),
        Workload::new("void", "void", PodRole::NoProxy),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("timeouts", Box::pin(timeouts(mesh))),
            ("retries", Box::pin(retries(mesh))),
            ("retries by default", Box::pin(default_retries(mesh))),
            ("fault injection", Box::pin(faults(mesh))),
            ("circuit breaking", Box::pin(circuit_breaking(mesh))),
            ("outlier ejection", Box::pin(outlier_ejection(mesh))),
        ],
    )
    .await
}

async fn timeouts(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("timeouts", 1);
    let rules = HOST.routes(
        r"
  - match: [{uri: {prefix: /patient}}]
    timeout: 0s
    route: [{destination: {host: timeouts}}]
  - timeout: 300ms
    retries: {attempts: 0}
    route: [{destination: {host: timeouts}}]",
    );
    mesh.apply("timeouts.yaml", &(HOST.service("app: tea") + &rules))?;
    until(mesh, "client", &HOST.get(), "tea", |reply| reply.responder().starts_with("tea")).await?;
    let reply = once(mesh, "client", &HOST.get().path("/?delay-ms=4000"), "a timeout after 300 ms", |reply| {
        reply.responder() == "status 504" && reply.elapsed() >= Duration::from_millis(290)
    })
    .await?;
    ensure!(reply.elapsed() < Duration::from_secs(3), "the response does not wait for the backend: {reply:?}");
    let call = HOST.get().path("/patient?delay-ms=700");
    let waits = |reply: &AppReply| reply.elapsed() >= Duration::from_millis(700);
    once(mesh, "client", &call, "the delayed response", |reply| reply.responder().starts_with("tea") && waits(reply))
        .await?;
    Ok(())
}

async fn retries(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("retries", 2);
    let rules = HOST.routes(
        r"
  - match: [{uri: {prefix: /never}}]
    retries: {attempts: 0}
    route: [{destination: {host: retries}}]
  - match: [{uri: {prefix: /slow}}]
    retries: {attempts: 2, perTryTimeout: 1s, retryOn: reset}
    route: [{destination: {host: retries}}]
  - match: [{uri: {prefix: /teapot}}]
    retries: {attempts: 2, retryOn: '418'}
    route: [{destination: {host: retries}}]
  - retries: {attempts: 3, retryOn: 5xx, backoff: 5ms}
    route: [{destination: {host: retries}}]",
    );
    // A single pod receives every attempt.
    mesh.apply("retries.yaml", &(HOST.service("app: tea, version: v1") + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    // Path, response, and the number of requests at the application.
    for (path, expected, attempts) in [
        ("/third-is-good?status=503&first=2", "tea v1", 3),
        ("/all-bad?status=503", "status 503", 4),
        ("/good?x=1", "tea v1", 1),
        ("/not-retried?status=404", "status 404", 1),
        ("/never?status=503&first=1", "status 503", 1),
        ("/slow?delay-ms=4000&first=1", "tea v1", 2),
        ("/teapot?status=418&first=1", "tea v1", 2),
    ] {
        once(mesh, "client", &HOST.get().path(path), expected, |reply| reply.responder() == expected).await?;
        let marker = path.split('?').next().unwrap_or_default();
        let received = mesh.pods.pod("tea-v1").received(marker).await?.len();
        ensure!(
            received == attempts,
            "{path} is tried {attempts} times, but the application received {received} requests\n{}",
            mesh.pods.pod("client").stats_of(HOST.0).await
        );
    }
    Ok(())
}

/// One of two endpoints refuses connections: every request succeeds.
async fn default_retries(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("half-dead", 3);
    // Round robin with one request at a time, so that the attempt after a failed one uses the other endpoint.
    let entry = format!(
        r"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: half-dead, namespace: shop}}
spec:
  hosts: [half-dead.example]
  addresses: [{}]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: 8080}}]
  endpoints:
  - address: $IP_OF_tea-v1
  - address: $IP_OF_void
    ports: {{http: 9}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: half-dead, namespace: shop}}
spec:
  host: half-dead.example
  trafficPolicy: {{loadBalancer: {{simple: ROUND_ROBIN}}}}
",
        HOST.ip()
    );
    mesh.apply("half-dead.yaml", &entry)?;
    let call = AppRequest { host: "half-dead.example".into(), ..HOST.get() };
    eventually(mesh, "client", &call, "tea v1").await?;
    for _ in 0..30 {
        once(mesh, "client", &call, "tea v1", |reply| reply.responder() == "tea v1").await?;
    }
    let envoy = mesh.pods.pod("client").envoy.as_ref().context("a sidecar")?;
    let retried = envoy.nonzero_stats("^cluster\\..*half-dead.*upstream_rq_retry$").await?;
    ensure!(!retried.is_empty(), "some requests are retried\n{}", mesh.pods.pod("client").stats_of(HOST.0).await);
    Ok(())
}

async fn faults(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("faults", 4);
    let rules = HOST.routes(
        r"
  - match: [{uri: {prefix: /late}}]
    fault: {delay: {fixedDelay: 400ms, percentage: {value: 100}}}
    route: [{destination: {host: faults}}]
  - match: [{uri: {prefix: /broken}}]
    fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
    route: [{destination: {host: faults}}]
  - match: [{uri: {prefix: /half}}]
    fault: {abort: {httpStatus: 555, percentage: {value: 50}}}
    route: [{destination: {host: faults}}]
  - route: [{destination: {host: faults}}]",
    );
    mesh.apply("faults.yaml", &(HOST.service("app: tea, version: v1") + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    for _ in 0..3 {
        once(mesh, "client", &HOST.get().path("/late"), "an answer after 400 ms", |reply| {
            reply.responder() == "tea v1" && reply.elapsed() >= Duration::from_millis(390)
        })
        .await?;
    }
    always(mesh, "client", &HOST.get().path("/broken"), 20, "status 418").await?;
    share(mesh, "client", &HOST.get().path("/half"), 400, &[("status 555", 50), ("tea v1", 50)]).await?;
    let received = mesh.pods.pod("tea-v1").received("/broken").await?;
    ensure!(received.is_empty(), "an aborted request reaches no application, but it received {received:?}");
    Ok(())
}

async fn circuit_breaking(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("breaker", 5);
    let policy = HOST.policy(
        "connectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1, http2MaxRequests: 100}}",
    );
    let ports = "[{name: http, port: 80, targetPort: limited}]";
    mesh.apply("breaker.yaml", &(HOST.service_with("app: tea, version: v1", ports) + &policy))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    let pod = mesh.pods.pod("client");
    let call = HOST.get().path("/?delay-ms=500");
    let replies = try_join_all((0..12).map(|_| pod.call(call.clone()))).await?;
    let overloaded = |reply: &&AppReply| {
        let answer = reply.outcome.as_ref().ok();
        answer.is_some_and(|a| a.status == 503 && a.headers.get("x-envoy-overloaded").is_some_and(|v| v == "true"))
    };
    let broken = replies.iter().filter(overloaded).count();
    let good = replies.iter().filter(|reply| reply.responder() == "tea v1").count();
    ensure!(
        broken >= 8 && good >= 1 && broken + good == 12,
        "one connection and one pending request of 12 concurrent ones, but {good} succeeded and {broken} were overloaded: {replies:?}\n{}",
        mesh.pods.pod("client").stats_of(HOST.0).await
    );
    Ok(())
}

async fn outlier_ejection(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("outlier", 6);
    let policy = HOST.policy(
        "outlierDetection: {consecutive5xxErrors: 3, interval: 1s, baseEjectionTime: 60s, maxEjectionPercent: 50}",
    );
    let rules = HOST.routes("  - retries: {attempts: 0}\n    route: [{destination: {host: outlier}}]");
    mesh.apply("outlier.yaml", &(HOST.service("app: tea") + &policy + &rules))?;
    eventually(mesh, "client", &HOST.get(), "tea v1").await?;
    eventually(mesh, "client", &HOST.get(), "tea v2").await?;
    let bad: AppRequest = HOST.get().path("/?status=500&only=v2");
    until_counted("hosts ejected", 1, async || {
        mesh.pods.pod("client").call(bad.clone()).await?;
        let envoy = mesh.pods.pod("client").envoy.as_ref().context("a sidecar")?;
        Ok(envoy.nonzero_stats("^cluster\\..*outlier.*ejections_active$").await?.len())
    })
    .await?;
    // Envoy's workers apply the ejection within a second. So many consecutive responses of one endpoint are not random.
    let deadline = Instant::now() + Duration::from_secs(10);
    while count(mesh, "client", &HOST.get(), 20).await?.contains_key("tea v2") {
        ensure!(
            Instant::now() < deadline,
            "v2 is ejected, but it responds\n{}",
            mesh.pods.pod("client").stats_of(HOST.0).await
        );
    }
    always(mesh, "client", &HOST.get(), 60, "tea v1").await
}
