//! Control planes come and go while pods send requests. No request fails.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_kube::ROOTS_LOCK;
use sluice_testkit::ads::{Kind, Protocol};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::pods::balancer::Balancer;
use sluice_testkit::pods::cluster_mesh::ClusterMesh;
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::network::pods_are_permitted;
use sluice_testkit::pods::workload::{PodRole, Workload};

use crate::fixture::{ALL, RunningControlPlane, SYSTEM, service, start_with_crds, until};
use crate::replicas::holder;

/// Number of changes of objects while replicas are replaced.
const CHANGES: usize = 20;
/// Pause between these changes.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Time limit of the end of a terminated replica.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A response without resources is smaller, and one with resources larger.
const EMPTY_RESPONSE_BYTES: f64 = 120.0;

/// Time for which requests are sent after a control plane is removed.
const OBSERVED_AFTER_REMOVAL: Duration = Duration::from_secs(2);

pub(crate) const DELTA: PodRole = PodRole::Sidecar(Protocol::Delta);

/// Replicas of a control plane behind the address of their Service.
struct Replicas<'c> {
    cluster: &'c Cluster,
    revision: &'static str,
    balancer: Balancer,
    running: Vec<(String, RunningControlPlane)>,
    started: usize,
}

impl<'c> Replicas<'c> {
    async fn start(
        cluster: &'c Cluster,
        mesh: &ClusterMesh<'_>,
        revision: &'static str,
        number: usize,
    ) -> Result<Self> {
        let balancer = Balancer::start(SocketAddr::new(mesh.pods.host_ip().into(), 0)).await?;
        let mut replicas = Self { cluster, revision, balancer, running: Vec::new(), started: 0 };
        for _ in 0..number {
            replicas.add().await?;
        }
        Ok(replicas)
    }

    fn address(&self) -> SocketAddr {
        self.balancer.address
    }

    /// Starts one more replica.
    async fn add(&mut self) -> Result<()> {
        self.started += 1;
        let name = format!("istiod-{}-{}", self.revision, self.started);
        let variables = [("POD_NAME", name.as_str()), ("REVISION", self.revision)];
        let replica = RunningControlPlane::start_with(self.cluster, self.cluster.address(), &variables).await?;
        self.running.push((name, replica));
        self.balance()
    }

    /// Removes a replica from the Service, and returns it.
    fn remove(&mut self, index: usize) -> Result<(String, RunningControlPlane)> {
        let removed = self.running.remove(index);
        self.balance()?;
        Ok(removed)
    }

    fn balance(&self) -> Result<()> {
        let ports = self.running.iter().map(|(_, replica)| replica.server.secure.context("the port of xDS over TLS"));
        self.balancer.set_targets(ports.collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    /// Whether a replica has a connected proxy of a pod.
    async fn serve(&self, pod: &str, namespace: &str) -> Result<bool> {
        for (_, replica) in &self.running {
            let page = format!("/debug/config_dump?proxyID={pod}.{namespace}");
            if replica.server.get(&page).await?.0 == 200 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A mesh with strict mutual TLS, in which `client` sends requests to `tea`.
pub(crate) async fn tea_mesh<'c>(cluster: &'c Cluster, namespaces: &[&str]) -> Result<ClusterMesh<'c>> {
    for namespace in namespaces {
        cluster.create_namespace(namespace, json!({})).await?;
    }
    cluster.apply(&service("shop", "tea")).await?;
    let strict = json!({
        "apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication",
        "metadata": {"name": "default", "namespace": SYSTEM}, "spec": {"mtls": {"mode": "STRICT"}},
    });
    cluster.apply(&strict).await?;
    ClusterMesh::new(cluster)
}

/// The types of which a replica has sent resources, with their size.
async fn sent_types(replica: &RunningControlPlane) -> Result<BTreeMap<&'static str, String>> {
    let (_, metrics) = sluice_testkit::server::get(replica.server.monitoring, "/metrics").await?;
    let value = |name: &str, kind: Kind| {
        let row = format!("pilot_xds_config_size_bytes_{name}{{type=\"{}\"}} ", kind.type_url());
        metrics.lines().find_map(|line| line.strip_prefix(&row)?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let mut types = BTreeMap::new();
    for kind in [Kind::Cds, Kind::Eds, Kind::Lds, Kind::Rds] {
        let (count, sum) = (value("count", kind), value("sum", kind));
        if sum > count * EMPTY_RESPONSE_BYTES {
            types.insert(kind.type_url(), format!("{sum} bytes in {count} responses"));
        }
    }
    Ok(types)
}

/// A VirtualService that adds a header to responses.
pub(crate) async fn change_route(cluster: &Cluster, number: usize) -> Result<()> {
    let headers = json!({"response": {"set": {"x-number": number.to_string()}}});
    let object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"name": "tea", "namespace": "shop"},
        "spec": {"hosts": ["tea"], "http": [{"headers": headers, "route": [{"destination": {"host": "tea"}}]}]},
    });
    cluster.apply(&object).await.map(drop)
}

/// Waits until the client's proxy has the route of a change.
pub(crate) async fn has_route(mesh: &ClusterMesh<'_>, number: usize) -> Result<()> {
    let call = mesh.get("shop", "tea").await?;
    until(&format!("the client has the route of change {number}"), async || {
        let reply = mesh.pods.pod("client").call(call.clone()).await?;
        let answer = reply.outcome.map_err(anyhow::Error::msg)?;
        Ok(answer.headers.get("x-number").is_some_and(|value| *value == number.to_string()))
    })
    .await
}

pub(crate) async fn reaches_tea(mesh: &ClusterMesh<'_>, pod: &str) -> Result<()> {
    let call = mesh.get("shop", "tea").await?;
    until(&format!("{pod} reaches the application"), async || {
        Ok(mesh.pods.pod(pod).call(call.clone()).await?.responder() == "tea v1")
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_replaced_without_a_failed_request() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let mut mesh = tea_mesh(&cluster, &["shop"]).await?;
    let mut replicas = Replicas::start(&cluster, &mesh, "default", 3).await?;
    let workloads = [Workload::new("client", "client", DELTA), Workload::new("tea", "tea", DELTA)];
    mesh.deploy(&workloads, replicas.address()).await?;
    change_route(&cluster, 0).await?;
    has_route(&mesh, 0).await?;
    reaches_tea(&mesh, "client").await?;
    let mut sent = BTreeSet::new();
    for (_, replica) in &replicas.running {
        sent.extend(sent_types(replica).await?.into_keys());
    }
    ensure!(sent.len() == 4, "proxies that hold nothing are sent all types: {sent:?}");

    // The leader is killed while objects change.
    let streams = [Stream::new(mesh.pods.shared("client"), mesh.get("shop", "tea").await?, "tea v1")];
    let churn = async {
        for number in 1..=CHANGES {
            change_route(&cluster, number).await?;
            tokio::time::sleep(PAUSE).await;
        }
        anyhow::Ok(())
    };
    let failover = async {
        let leader = holder(&cluster, &ROOTS_LOCK).await?;
        let index = replicas.running.iter().position(|(name, _)| *name == leader).context("a replica leads")?;
        let (_, killed) = replicas.remove(index)?;
        killed.server.kill().await?;
        let another = async || {
            let holder = holder(&cluster, &ROOTS_LOCK).await?;
            Ok(holder != leader && replicas.running.iter().any(|(name, _)| *name == holder))
        };
        until("another replica leads", another).await?;
        has_route(&mesh, CHANGES).await
    };
    let changes = async { tokio::try_join!(churn, failover) };
    let (_, requests) = under_load(&streams, changes).await?;
    eprintln!("{requests} requests while the leader was killed");

    // All replicas are replaced, one after the other, while nothing changes: proxies that move receive nothing.
    replicas.add().await?;
    for (name, _) in mesh.pods.iter() {
        until(&format!("{name} is connected"), async || replicas.serve(name, "shop").await).await?;
    }
    let streams = [Stream::new(mesh.pods.shared("client"), mesh.get("shop", "tea").await?, "tea v1")];
    let restart = async {
        for _ in 0..3 {
            replicas.add().await?;
            let (name, old) = replicas.remove(0)?;
            let code = old.server.stop(STOP_TIMEOUT).await?;
            ensure!(code == Some(0), "{name} ended with {code:?}");
            for (name, _) in mesh.pods.iter() {
                until(&format!("{name} is connected again"), async || replicas.serve(name, "shop").await).await?;
            }
        }
        Ok(())
    };
    let ((), requests) = under_load(&streams, restart).await?;
    eprintln!("{requests} requests while all replicas were replaced");
    for (name, replica) in &replicas.running {
        let sent = sent_types(replica).await?;
        ensure!(sent.is_empty(), "{name} has sent what the proxies held already: {sent:?}");
    }
    for (name, pod) in mesh.pods.iter() {
        let rejected = pod.envoy.as_ref().context("the pod has an Envoy")?.rejected().await?;
        ensure!(rejected.is_empty(), "{name} has rejected updates: {rejected:?}");
    }

    // Changes still arrive.
    change_route(&cluster, CHANGES + 1).await?;
    has_route(&mesh, CHANGES + 1).await
}

/// Replaces a pod, so that its proxy connects to another control plane. A pod with an application gets no request from its end
/// until its proxy is ready: `senders` are the pods whose proxies send requests to it.
async fn move_pod(mesh: &mut ClusterMesh<'_>, name: &str, senders: &[&str], discovery: SocketAddr) -> Result<()> {
    mesh.set_ready(name, false).await?;
    let senders: Vec<_> = senders.iter().map(|sender| mesh.pods.shared(sender)).collect();
    let observed = async |ip: Ipv4Addr, is_expected: bool| -> Result<()> {
        let healthy = format!("{ip}:8080::health_flags::healthy");
        for sender in &senders {
            let envoy = sender.envoy.as_ref().context("the sender has an Envoy")?;
            let step = format!("the endpoint of {name} is healthy for {}: {is_expected}", sender.workload.name);
            until(&step, async || Ok(envoy.admin("/clusters").await?.contains(&healthy) == is_expected)).await?;
        }
        Ok(())
    };
    observed(mesh.pods.pod(name).net.ip, false).await?;
    mesh.replace(name, discovery).await?;
    observed(mesh.pods.pod(name).net.ip, true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_move_between_revisions_and_back_without_a_failed_request() -> Result<()> {
    let Some(cluster) = start_with_crds(ALL).await? else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let mut mesh = tea_mesh(&cluster, &["shop", "street"]).await?;
    let old = Replicas::start(&cluster, &mesh, "default", 1).await?;
    let client = |name| Workload::new(name, "client", DELTA).namespace("street");
    let workloads = [
        client("client-1"),
        client("client-2"),
        Workload::new("tea-1", "tea", DELTA),
        Workload::new("tea-2", "tea", DELTA),
    ];
    mesh.deploy(&workloads, old.address()).await?;
    let clients = ["client-1", "client-2"];
    for name in clients {
        reaches_tea(&mesh, name).await?;
    }
    let call = mesh.get("shop", "tea").await?;
    let new = Replicas::start(&cluster, &mesh, "next", 1).await?;
    for (to, from) in [(&new, &old), (&old, &new)] {
        // The namespace of the application: each pod in turn, while both clients send requests.
        let mut requests = 0;
        for name in ["tea-1", "tea-2", "client-1", "client-2"] {
            let is_client = clients.contains(&name);
            let senders: Vec<&str> = clients.into_iter().filter(|sender| *sender != name).collect();
            let streams: Vec<Stream> =
                senders.iter().map(|sender| Stream::new(mesh.pods.shared(sender), call.clone(), "tea v1")).collect();
            let observers = if is_client { &[][..] } else { &senders[..] };
            let moving = move_pod(&mut mesh, name, observers, to.address());
            requests += under_load(&streams, moving).await?.1;
            let namespace = mesh.pods.pod(name).workload.namespace;
            until(&format!("{name} is connected to the other revision"), async || to.serve(name, namespace).await)
                .await?;
        }
        for (name, pod) in mesh.pods.iter() {
            // The stream of a pod that has just ended may outlast it by a moment.
            let gone = async || Ok(!from.serve(name, pod.workload.namespace).await?);
            until(&format!("{name} has left revision {}", from.revision), gone).await?;
        }
        eprintln!("{requests} requests while both namespaces moved to revision {}", to.revision);
    }

    // The other revision is removed.
    let streams = clients.map(|name| Stream::new(mesh.pods.shared(name), call.clone(), "tea v1"));
    let removed = async {
        for (name, replica) in new.running {
            let code = replica.server.stop(STOP_TIMEOUT).await?;
            ensure!(code == Some(0), "{name} ended with {code:?}");
        }
        change_route(&cluster, 1).await?;
        tokio::time::sleep(OBSERVED_AFTER_REMOVAL).await;
        Ok(())
    };
    under_load(&streams, removed).await.map(drop)
}
