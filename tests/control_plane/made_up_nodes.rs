//! Clients that make up what they are: nothing that they choose multiplies what the server holds, or stays after them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::memory::MemoryWatch;
use sluice_testkit::server::{Options, Sluiced, get};
use tempfile::TempDir;

/// Number of Services of a mesh.
const SERVICES: usize = 500;
/// Time limit for a response.
const LIMIT: Duration = Duration::from_secs(60);

/// A mesh of many services, and the memory of its server with one proxy connected.
struct LargeMesh {
    server: Sluiced,
    memory: MemoryWatch,
    _proxy: AdsStream,
    _objects: TempDir,
}

/// The result of an attack by many streams.
#[derive(Default)]
struct Streams {
    accepted: Vec<AdsStream>,
    refusals: Vec<String>,
}

impl LargeMesh {
    async fn start(env: &[(&str, &str)]) -> Result<Self> {
        let objects = tempfile::tempdir()?;
        let mut yaml = String::new();
        for number in 0..SERVICES {
            writeln!(
                yaml,
                "---\n{{apiVersion: v1, kind: Service, metadata: {{name: s{number}, namespace: town}}, \
                 spec: {{clusterIP: 10.1.{}.{}, ports: [{{name: http, port: {}}}, {{name: tcp, port: 9000}}]}}}}\n\
                 ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
                 metadata: {{name: s{number}, namespace: town, labels: {{kubernetes.io/service-name: s{number}}}}}, \
                 ports: [{{name: http, port: 80}}, {{name: tcp, port: 90}}], endpoints: [{{addresses: [10.2.{}.{}]}}]}}",
                number / 250,
                number % 250 + 1,
                8000 + number % 4,
                number / 250,
                number % 250 + 1,
            )?;
        }
        std::fs::write(objects.path().join("mesh.yaml"), yaml)?;
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let server = Sluiced::start(&Options { env, ..Options::new(objects.path()) }).await?;
        let mut proxy = open(&server, 0, json!({"CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.30.0"})).await?;
        answer_all(&mut proxy).await?;
        let memory = server.watch_memory()?;
        Ok(Self { server, memory, _proxy: proxy, _objects: objects })
    }

    /// Opens a stream for each number, with the metadata that `metadata` makes up.
    async fn attack(&self, count: usize, metadata: impl Fn(usize) -> Value) -> Result<Streams> {
        let mut streams = Streams::default();
        for number in 1..=count {
            let mut stream = open(&self.server, number, metadata(number)).await?;
            match answer_all(&mut stream).await {
                Ok(()) => streams.accepted.push(stream),
                Err(refusal) => streams.refusals.push(format!("{refusal:#}")),
            }
        }
        Ok(streams)
    }

    async fn metrics(&self) -> Result<String> {
        Ok(get(self.server.monitoring, "/metrics").await?.1)
    }

    /// The rows of a metric.
    async fn rows(&self, name: &str) -> Result<Vec<String>> {
        let text = self.metrics().await?;
        let is_row = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        Ok(text.lines().filter(is_row).map(str::to_owned).collect())
    }
}

/// A delta stream of a sidecar.
async fn open(server: &Sluiced, number: usize, mut metadata: Value) -> Result<AdsStream> {
    if metadata["NAMESPACE"].is_null() {
        metadata["NAMESPACE"] = "town".into();
    }
    metadata["DNS_CAPTURE"] = "true".into();
    let id = format!("sidecar~10.3.{}.{}~p{number}.town~town.svc.cluster.local", number / 250, number % 250 + 1);
    let identity = Identity::of_node(&json!({"id": id, "metadata": metadata}))?;
    AdsStream::open(connect(server.grpc).await?, Protocol::Delta, identity)
}

/// Subscribes to what a sidecar does, and receives all of it.
async fn answer_all(stream: &mut AdsStream) -> Result<()> {
    for kind in [Kind::Cds, Kind::Lds, Kind::Nds] {
        // A refused stream may be closed before all is sent: reading says why.
        stream.subscribe(kind.type_url(), &[], BTreeMap::new()).ok();
    }
    let mut clusters = Vec::new();
    for _ in 0..3 {
        let update = stream.next_within(LIMIT).await?.context("the stream ended")?;
        if update.type_url == Kind::Cds.type_url() {
            clusters = update.resources.iter().map(|(name, ..)| name.clone()).collect();
            clusters.retain(|name| name.starts_with("outbound|"));
        }
        stream.ack(&update)?;
    }
    stream.subscribe(Kind::Eds.type_url(), &clusters, BTreeMap::new())?;
    let routes: Vec<String> = (8000..8004).map(|port| port.to_string()).collect();
    stream.subscribe(Kind::Rds.type_url(), &routes, BTreeMap::new())?;
    for _ in 0..2 {
        let update = stream.next_within(LIMIT).await?.context("the stream ended")?;
        ensure!(!update.resources.is_empty(), "{} has no resources", update.type_url);
        stream.ack(&update)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_clusters_networks_and_configs_do_not_multiply_the_mesh() -> Result<()> {
    let mesh = LargeMesh::start(&[("SLUICE_MAX_ANONYMOUS_LOCATIONS", "0")]).await?;
    let streams = mesh
        .attack(300, |number| {
            json!({
                "CLUSTER_ID": format!("cluster-{number}"), "NETWORK": format!("network-{number}"),
                "ISTIO_VERSION": format!("1.30.{number}"), format!("MADE_UP_{number}"): "x".repeat(1000),
                "ANNOTATIONS": {format!("made-up-{number}"): "x".repeat(1000)},
                "PROXY_CONFIG": {"proxyMetadata": {"MADE_UP": format!("{number}").repeat(500)}, "concurrency": number},
            })
        })
        .await?;
    ensure!(streams.accepted.len() == 300, "{} are accepted: {:?}", streams.accepted.len(), streams.refusals.first());
    mesh.memory.check_growth("300 made-up clusters, networks and configs")
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_namespaces_and_labels_do_not_multiply_the_mesh() -> Result<()> {
    let mesh = LargeMesh::start(&[]).await?;
    let streams = mesh
        .attack(300, |number| {
            json!({
                "NAMESPACE": format!("namespace-{number}"), "WORKLOAD_NAME": format!("workload-{number}"),
                "LABELS": {"app": format!("app-{number}"), format!("label-{number}"): "x".repeat(1000)},
                "POD_PORTS": format!("[{{\"name\":\"http\",\"containerPort\":{number},\"protocol\":\"TCP\"}}]"),
            })
        })
        .await?;
    ensure!(streams.accepted.len() == 300, "{} are accepted: {:?}", streams.accepted.len(), streams.refusals.first());
    mesh.memory.check_growth("300 made-up namespaces and labels")
}

#[tokio::test(flavor = "multi_thread")]
async fn profiles_of_anonymous_callers_are_limited() -> Result<()> {
    let mesh = LargeMesh::start(&[]).await?;
    let metadata = |number: usize| {
        let path = |file| format!("/made/up/{number}/{file}");
        json!({
            "TLS_CLIENT_CERT_CHAIN": path("chain"), "TLS_CLIENT_KEY": path("key"), "TLS_CLIENT_ROOT_CERT": path("root"),
            "PROXY_CONFIG": {"tracing": {"customTags": {"made-up": {"literal": {"value": path("tag")}}}}},
        })
    };
    let mut streams = mesh.attack(40, metadata).await?;
    ensure!(streams.accepted.len() == 7, "{} are accepted besides the proxy", streams.accepted.len());
    let refusal = streams.refusals.first().context("a refusal")?;
    let parts = ["anonymous callers", "8 different profiles", "--maxAnonymousProfiles"];
    ensure!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
    let refused = mesh.rows("sluice_xds_refused").await?;
    ensure!(
        refused.contains(&format!("sluice_xds_refused{{reason=\"profiles\"}} {}", streams.refusals.len())),
        "{refused:?}"
    );
    mesh.memory.check_growth("40 made-up certificates and tags")?;

    // A proxy that the server knows reconnects, and others with its profile connect.
    drop(streams.accepted.remove(0));
    for number in [1, 1000] {
        answer_all(&mut open(&mesh.server, number, metadata(1)).await?).await.context("a known profile")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn locations_of_anonymous_callers_are_limited() -> Result<()> {
    let mesh = LargeMesh::start(&[]).await?;
    let metadata =
        |number: usize| json!({"CLUSTER_ID": format!("cluster-{number}"), "NETWORK": format!("network-{number}")});
    let mut streams = mesh.attack(70, metadata).await?;
    ensure!(streams.accepted.len() == 63, "{} are accepted besides the proxy", streams.accepted.len());
    let refusal = streams.refusals.first().context("a refusal")?;
    let parts =
        ["anonymous callers", "64 different locations", "cluster, network, locality", "--maxAnonymousLocations"];
    ensure!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
    let refused = mesh.rows("sluice_xds_refused").await?;
    ensure!(refused == ["sluice_xds_refused{reason=\"locations\"} 7"], "{refused:?}");
    mesh.memory.check_growth("70 made-up clusters and networks")?;

    // A proxy that the server knows reconnects, and others in its location connect.
    drop(streams.accepted.remove(0));
    for number in [1, 1000] {
        answer_all(&mut open(&mesh.server, number, metadata(1)).await?).await.context("a known location")?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_of_anonymous_callers_are_limited() -> Result<()> {
    let mesh = LargeMesh::start(&[("SLUICE_MAX_ANONYMOUS_PROXIES", "20")]).await?;
    let streams = mesh.attack(30, |_| json!({})).await?;
    ensure!(streams.accepted.len() == 19, "{} are accepted besides the proxy", streams.accepted.len());
    let refusal = streams.refusals.first().context("a refusal")?;
    ensure!(refusal.contains("20 proxies") && refusal.contains("--maxAnonymousProxies"), "{refusal}");
    let refused = mesh.rows("sluice_xds_refused").await?;
    ensure!(refused == ["sluice_xds_refused{reason=\"proxies\"} 11"], "{refused:?}");
    mesh.memory.check_growth("30 proxies of anonymous callers")
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_versions_are_not_kept() -> Result<()> {
    let mesh = LargeMesh::start(&[]).await?;
    let long = "1.".repeat(50 << 10);
    let streams = mesh.attack(100, |number| json!({"ISTIO_VERSION": format!("{number}.{long}")})).await?;
    let refusal = streams.refusals.first().context("a refusal")?;
    ensure!(streams.accepted.is_empty() && refusal.contains("ISTIO_VERSION"), "{refusal}");

    let streams = mesh.attack(100, |number| json!({"ISTIO_VERSION": format!("1.30.{number}")})).await?;
    ensure!(streams.accepted.len() == 100, "{:?}", streams.refusals.first());
    let rows = mesh.rows("pilot_xds").await?;
    ensure!(rows.len() < 70 && rows.iter().any(|row| row.contains("other")), "{rows:?}");
    drop(streams);
    let only_proxy = ["pilot_xds{version=\"1.30.0\"} 1"];
    tokio::time::timeout(LIMIT, async {
        while mesh.rows("pilot_xds").await? != only_proxy {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    })
    .await
    .context("rows of versions without a proxy disappear")??;

    // Versions of held resources, and of secrets, which an anonymous client is never answered.
    let mut streams = Vec::new();
    for number in 0..300 {
        let mut stream = open(&mesh.server, number + 1, json!({})).await?;
        for kind in [Kind::Cds, Kind::Sds] {
            let held = (0..4).map(|of| (format!("made-up-{number}-{of}"), long.clone())).collect();
            stream.subscribe(kind.type_url(), &[], held)?;
        }
        let update = stream.next_within(LIMIT).await?.context("clusters")?;
        ensure!(update.type_url == Kind::Cds.type_url(), "{}", update.type_url);
        streams.push(stream);
    }
    mesh.memory.check_growth("300 clients that hold resources with versions of 100 KiB")
}
