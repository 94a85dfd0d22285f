//! Load balancing by DestinationRules: sticky hashing, round robin, locality.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use sluice_testkit::ads::Protocol;
use sluice_testkit::pods::app::AppRequest;
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::family;
use crate::requests::{Host, always, answer, count, eventually, once, share, until, until_counted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_policy() -> Result<()> {
    if !pods_are_permitted() {
        return Ok(());
    }
    let tea = |name, version, zone: (_, _)| {
        Workload::new(name, "tea", PodRole::Sidecar(Protocol::Delta)).version(version).zone(zone.0, zone.1)
    };
    let mesh = family::mesh_of(&[
        Workload::new("client", "client", PodRole::Sidecar(Protocol::Delta)).zone("north", "n1"),
        tea("tea-near", "near", ("north", "n1")),
        tea("tea-next", "next", ("north", "n2")),
        tea("tea-far", "far", ("south", "s1")),
    ])
    .await?;
    let mesh = &mesh;
    family::run(
        mesh,
        vec![
            ("sticky by header", Box::pin(sticky_by_header(mesh))),
            ("sticky by cookie", Box::pin(sticky_by_cookie(mesh))),
            ("sticky by address and query", Box::pin(sticky_by_address_and_query(mesh))),
            ("round robin", Box::pin(round_robin(mesh))),
            ("locality failover", Box::pin(locality_failover(mesh))),
            ("locality distribution", Box::pin(locality_distribution(mesh))),
            ("failover priority", Box::pin(failover_priority(mesh))),
            ("policies of ports and subsets", Box::pin(ports_and_subsets(mesh))),
        ],
    )
    .await
}

const ALL: [&str; 3] = ["tea near", "tea next", "tea far"];

/// Waits until each of these has answered.
async fn wait_for_all(mesh: &Mesh, call: &AppRequest, expected: &[&str]) -> Result<()> {
    for responder in expected {
        eventually(mesh, "client", call, responder).await?;
    }
    Ok(())
}

/// Sends requests that one endpoint must answer, and returns its name.
async fn single_responder(mesh: &Mesh, call: &AppRequest) -> Result<String> {
    let counts = count(mesh, "client", call, 12).await?;
    ensure!(
        counts.len() == 1,
        "{} with {:?} always goes to one endpoint, but {counts:?}\n{}",
        call.path,
        call.headers,
        mesh.pods.pod("client").stats_of(&call.host).await
    );
    counts.into_keys().next().context("no endpoint answered")
}

async fn sticky_by_header(mesh: &Mesh) -> Result<()> {
    for (host, ring) in [(Host("ring", 1), ""), (Host("maglev", 2), ", maglev: {tableSize: 251}")] {
        let policy = format!("loadBalancer: {{consistentHash: {{httpHeaderName: x-session{ring}}}}}");
        mesh.apply(&format!("{}.yaml", host.0), &(host.service("app: tea") + &host.policy(&policy)))?;
        // Without the header any endpoint answers.
        wait_for_all(mesh, &host.get(), &ALL).await?;
        let mut responders = BTreeSet::new();
        for session in 0..16 {
            let call = host.get().header("x-session", &format!("session-{session}"));
            let responder = single_responder(mesh, &call).await?;
            ensure!(ALL.contains(&responder.as_str()), "{responder} answered");
            responders.insert(responder);
        }
        ensure!(responders.len() > 1, "16 sessions use several endpoints, but all went to {responders:?}");
    }
    Ok(())
}

async fn sticky_by_cookie(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("cookies", 3);
    let policy = "loadBalancer: {consistentHash: {httpCookie: {name: seat, path: /, ttl: 60s}}}";
    mesh.apply("cookies.yaml", &(HOST.service("app: tea") + &HOST.policy(policy)))?;
    let mut responders = BTreeSet::new();
    for _ in 0..8 {
        let reply = until(mesh, "client", &HOST.get(), "a cookie", |reply| {
            reply.outcome.as_ref().is_ok_and(|answer| answer.headers.contains_key("set-cookie"))
        })
        .await?;
        let responder = reply.responder();
        let answer = answer(reply)?;
        let cookie = answer.headers.get("set-cookie").context("a cookie")?.clone();
        ensure!(cookie.starts_with("seat=") && cookie.contains("Max-Age=60"), "the cookie is {cookie}");
        let cookie = cookie.split(';').next().unwrap_or_default();
        let later = single_responder(mesh, &HOST.get().header("cookie", cookie)).await?;
        ensure!(later == responder, "{cookie} came from {responder}, but later {later} answered");
        responders.insert(responder);
    }
    ensure!(responders.len() > 1, "8 cookies use several endpoints, but all went to {responders:?}");
    Ok(())
}

async fn sticky_by_address_and_query(mesh: &Mesh) -> Result<()> {
    const ADDRESS: Host = Host("address", 4);
    const QUERY: Host = Host("query", 5);
    let by_address = ADDRESS.policy("loadBalancer: {consistentHash: {useSourceIp: true}}");
    let by_query = QUERY.policy("loadBalancer: {consistentHash: {httpQueryParameterName: user}}");
    mesh.apply("address.yaml", &(ADDRESS.service("app: tea") + &by_address))?;
    mesh.apply("query.yaml", &(QUERY.service("app: tea") + &by_query))?;
    let answers = |reply: &sluice_testkit::pods::app::AppReply| ALL.contains(&reply.responder().as_str());
    until(mesh, "client", &ADDRESS.get(), "tea", answers).await?;
    until(mesh, "client", &QUERY.get(), "tea", answers).await?;
    // Envoy has all three endpoints when requests without a key reach each of them.
    wait_for_all(mesh, &QUERY.get(), &ALL).await?;
    single_responder(mesh, &ADDRESS.get()).await?;
    let mut responders = BTreeSet::new();
    for user in 0..16 {
        responders.insert(single_responder(mesh, &QUERY.get().path(&format!("/?user={user}"))).await?);
    }
    ensure!(responders.len() > 1, "16 users use several endpoints, but all went to {responders:?}");
    Ok(())
}

async fn round_robin(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("robin", 6);
    let policy = HOST.policy("loadBalancer: {simple: ROUND_ROBIN}");
    mesh.apply("robin.yaml", &(HOST.service("app: tea") + &policy))?;
    wait_for_all(mesh, &HOST.get(), &ALL).await?;
    let counts = count(mesh, "client", &HOST.get(), 90).await?;
    // One worker distributes requests exactly. Starting in the middle of a round shifts the counts by one.
    ensure!(
        ALL.iter().all(|responder| counts.get(*responder).is_some_and(|times| (29..=31).contains(times))),
        "90 requests in round robin, but {counts:?}"
    );
    Ok(())
}

/// Hosts that respond with 500 three times are ejected for a long time.
const OUTLIERS: &str =
    "outlierDetection: {consecutive5xxErrors: 3, interval: 1s, baseEjectionTime: 90s, maxEjectionPercent: 100}";

/// Sends requests that fail at one version until Envoy has ejected that many hosts. Its workers may apply that up to a
/// second later.
async fn eject(mesh: &Mesh, host: Host, version: &str, ejected: usize) -> Result<()> {
    let bad = host.get().path(&format!("/?status=500&only={version}"));
    until_counted(&format!("hosts ejected of {}", host.0), ejected, async || {
        mesh.pods.pod("client").call(bad.clone()).await?;
        let envoy = mesh.pods.pod("client").envoy.as_ref().context("a sidecar")?;
        let name =
            format!("cluster.outbound|80||{}.shop.svc.cluster.local;.outlier_detection.ejections_active", host.0);
        Ok(usize::try_from(envoy.stat(&name).await?).unwrap_or(0))
    })
    .await
}

async fn locality_failover(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("failover", 7);
    let policy = HOST.policy(OUTLIERS);
    let rules = HOST.routes("  - retries: {attempts: 0}\n    route: [{destination: {host: failover}}]");
    mesh.apply("failover.yaml", &(HOST.service("app: tea") + &policy + &rules))?;
    // The same zone, then the same region, then anywhere.
    eventually(mesh, "client", &HOST.get(), "tea near").await?;
    always(mesh, "client", &HOST.get(), 30, "tea near").await?;
    eject(mesh, HOST, "near", 1).await?;
    eventually(mesh, "client", &HOST.get(), "tea next").await?;
    always(mesh, "client", &HOST.get(), 30, "tea next").await?;
    eject(mesh, HOST, "next", 2).await?;
    eventually(mesh, "client", &HOST.get(), "tea far").await?;
    always(mesh, "client", &HOST.get(), 30, "tea far").await
}

async fn failover_priority(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("priority", 8);
    let policy = HOST.policy(&format!(
        "loadBalancer: {{localityLbSetting: {{failoverPriority: [\"version=far\", topology.kubernetes.io/region]}}}}, \
         {OUTLIERS}"
    ));
    let rules = HOST.routes("  - retries: {attempts: 0}\n    route: [{destination: {host: priority}}]");
    mesh.apply("priority.yaml", &(HOST.service("app: tea") + &policy + &rules))?;
    // The label gives the far endpoint the highest priority. The region is compared after the label.
    eventually(mesh, "client", &HOST.get(), "tea far").await?;
    always(mesh, "client", &HOST.get(), 30, "tea far").await
}

async fn locality_distribution(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("distribution", 9);
    let policy = HOST.policy(&format!(
        "loadBalancer: {{localityLbSetting: {{distribute: [{{from: north/*, \
         to: {{north/n2/*: 75, south/*: 25}}}}]}}}}, {OUTLIERS}"
    ));
    mesh.apply("distribution.yaml", &(HOST.service("app: tea") + &policy))?;
    wait_for_all(mesh, &HOST.get(), &["tea next", "tea far"]).await?;
    share(mesh, "client", &HOST.get(), 600, &[("tea next", 75), ("tea far", 25)]).await?;
    Ok(())
}

async fn ports_and_subsets(mesh: &Mesh) -> Result<()> {
    const HOST: Host = Host("levels", 10);
    let service = HOST.service_with(
        "app: tea",
        "[{name: http, port: 80, targetPort: http}, {name: http-sticky, port: 8000, targetPort: 8080}]",
    );
    let rule = r"
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: levels, namespace: shop}
spec:
  host: levels
  trafficPolicy:
    loadBalancer: {simple: ROUND_ROBIN}
    portLevelSettings:
    - port: {number: 8000}
      loadBalancer: {consistentHash: {httpHeaderName: x-session}}
  subsets:
  - name: breakable
    labels: {version: far}
    trafficPolicy: {connectionPool: {http: {http2MaxRequests: 1}}}
---
";
    let rules = HOST.routes(
        r"
  - match: [{uri: {prefix: /far}, port: 80}]
    route: [{destination: {host: levels, subset: breakable, port: {number: 80}}}]
  - match: [{port: 8000}]
    route: [{destination: {host: levels, port: {number: 8000}}}]
  - route: [{destination: {host: levels, port: {number: 80}}}]",
    );
    mesh.apply("levels.yaml", &(service + rule + &rules))?;
    wait_for_all(mesh, &HOST.get(), &ALL).await?;
    let sticky = AppRequest { address: (HOST.get().address.ip(), 8000).into(), ..HOST.get() };
    wait_for_all(mesh, &sticky, &ALL).await?;
    let counts = count(mesh, "client", &HOST.get().header("x-session", "1"), 30).await?;
    ensure!(counts.len() == 3, "port 80 uses all endpoints, but {counts:?}");
    single_responder(mesh, &sticky.clone().header("x-session", "1")).await?;
    once(mesh, "client", &HOST.get().path("/far"), "tea far", |reply| reply.responder() == "tea far").await?;
    Ok(())
}
