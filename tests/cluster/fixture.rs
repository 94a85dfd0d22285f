//! A cluster with objects of the chart, a `sluiced` with exactly the rights of the chart, and streams of proxies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sluice_testkit::ads::{self, AdsStream, Identity, Kind, Protocol};
use sluice_testkit::cluster::{Cluster, Helm};
use sluice_testkit::server::{Options, Sluiced};
use tempfile::TempDir;

/// The namespace of the mesh's control plane.
pub(crate) const SYSTEM: &str = "istio-system";
/// The user name of `sluiced`.
pub(crate) const USER: &str = "system:serviceaccount:istio-system:istiod";
/// The chart of the control plane.
pub(crate) const CHART: &str = "manifests/charts/sluice";
/// Prefixes that select all CRDs.
pub(crate) const ALL: &[&str] = &[""];

/// API servers open connections to webhooks that they do not use.
const SPARE_CONNECTION: &str = "connection closed: no request arrived in time";
/// Failures while the API server begins to serve a kind or a group, or to call webhooks. They are retried.
const DURING_INSTALLATION: [&str; 3] = [
    "storage is (re)initializing",
    "no discovery that the kind is not served",
    // The API server calls a webhook before its configuration has the roots.
    "TLS handshake of a webhook call failed",
];
/// Time in which a change has to take effect.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two reads of a state that is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The directory of the programs of a cluster. `None`, with a message, if they are not built.
pub(crate) fn programs() -> Option<PathBuf> {
    let programs = Cluster::programs();
    if programs.is_none() {
        eprintln!("skipped: `make test-cluster` runs this with a real Kubernetes API server");
    }
    programs
}

/// Starts a cluster with the rights and the mesh config of the chart. `None` if the programs are not built.
pub(crate) async fn start() -> Result<Option<Cluster>> {
    start_with_values(&[]).await
}

/// The same with values of the chart: arguments of helm.
pub(crate) async fn start_with_values(values: &[&str]) -> Result<Option<Cluster>> {
    let Some(programs) = programs() else { return Ok(None) };
    let cluster = Cluster::start(&programs).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    apply_templates(&cluster, &["serviceaccount", "rights", "mesh"], values).await?;
    Ok(Some(cluster))
}

/// Applies objects of templates of the chart.
pub(crate) async fn apply_templates(cluster: &Cluster, templates: &[&str], values: &[&str]) -> Result<()> {
    cluster.apply_yaml(&render_templates(&cluster.helm(), templates, values)?).await
}

/// The objects of templates of the chart as YAML.
pub(crate) fn render_templates(helm: &Helm, templates: &[&str], values: &[&str]) -> Result<String> {
    let files: Vec<String> = templates.iter().map(|name| format!("templates/{name}.yaml")).collect();
    let mut arguments = vec!["--namespace", SYSTEM];
    arguments.extend(files.iter().flat_map(|file| ["--show-only", file]));
    arguments.extend(values);
    helm.render(("istiod", &manifest(CHART)), &arguments)
}

/// The same with CRDs of Istio whose names begin with one of the prefixes.
pub(crate) async fn start_with_crds(prefixes: &[&str]) -> Result<Option<Cluster>> {
    let cluster = start().await?;
    if let Some(cluster) = &cluster {
        cluster.install_crds("istio.yaml", prefixes).await?;
    }
    Ok(cluster)
}

pub(crate) fn manifest(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// A `sluiced` that reads a cluster with the token of its service account.
pub(crate) struct RunningControlPlane {
    pub(crate) server: Sluiced,
    directory: TempDir,
}

impl RunningControlPlane {
    pub(crate) async fn start(cluster: &Cluster) -> Result<Self> {
        Self::start_as(cluster, cluster.address(), "istiod-1").await
    }

    /// A replica of this pod name that reaches the API server at an address.
    pub(crate) async fn start_as(cluster: &Cluster, api_server: SocketAddr, pod: &str) -> Result<Self> {
        Self::start_with(cluster, api_server, &[("POD_NAME", pod)]).await
    }

    /// The same with any environment variables.
    pub(crate) async fn start_with(
        cluster: &Cluster,
        api_server: SocketAddr,
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        Self::start_in_pod(cluster, api_server, ("istiod", loopback), variables).await
    }

    /// The same with any service account. `address` is the one of the webhooks.
    pub(crate) async fn start_in_pod(
        cluster: &Cluster,
        api_server: SocketAddr,
        (account, address): (&str, IpAddr),
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let token = cluster.create_token((SYSTEM, account), None, None).await?;
        let directory = tempfile::tempdir().context("make a directory")?;
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, cluster.kubeconfig(api_server, &token).to_string())?;
        let authority = directory.path().join("cacerts").display().to_string();
        let own = [("POD_NAMESPACE", SYSTEM), ("ROOT_CA_DIR", authority.as_str())];
        let variables = own.iter().chain(variables);
        let options = Options {
            kubeconfig: Some(kubeconfig),
            args: vec!["--secureGRPCAddr=127.0.0.1:0".to_owned(), format!("--httpsAddr={address}:0")],
            env: variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            log: Some(directory.path().join("log")),
            ..Options::new(directory.path())
        };
        let server = Sluiced::start(&options).await.with_context(|| {
            let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
            format!("start sluiced:\n{log}")
        })?;
        Ok(Self { server, directory })
    }

    pub(crate) fn log(&self) -> Result<String> {
        std::fs::read_to_string(self.directory.path().join("log")).context("read the log")
    }

    /// The lines of the log that report a problem.
    pub(crate) fn warnings(&self) -> Result<Vec<String>> {
        let is_problem = |text: &&str| {
            let line: Value = serde_json::from_str(text).unwrap_or_default();
            matches!(line["level"].as_str(), Some("warn" | "error"))
                && !DURING_INSTALLATION.iter().any(|it| text.contains(it))
                && !text.contains(SPARE_CONNECTION)
        };
        Ok(self.log()?.lines().filter(is_problem).map(str::to_owned).collect())
    }

    /// The text of a page.
    pub(crate) async fn page(&self, path: &str) -> Result<String> {
        let (status, text) = self.server.get(path).await.with_context(|| {
            let log = self.log().unwrap_or_default();
            format!("log of sluiced:\n{}", &log[log.ceil_char_boundary(log.len().saturating_sub(4000))..])
        })?;
        ensure!(status == 200, "{path}: {status} {text}");
        Ok(text)
    }

    /// Waits until a page meets a condition.
    pub(crate) async fn shows(&self, path: &str, what: &str, is_met: impl Fn(&str) -> bool) -> Result<()> {
        let mut last = String::new();
        let outcome = until(what, async || {
            last = self.page(path).await?;
            Ok(is_met(&last))
        });
        outcome.await.with_context(|| format!("{path}: {}", &last[..last.floor_char_boundary(4000)]))
    }

    /// A proxy that subscribes to resources on the plaintext port.
    pub(crate) async fn proxy(&self, namespace: &str) -> Result<Proxy> {
        let channel = ads::connect(self.server.grpc).await?;
        Ok(Proxy::new(AdsStream::open(channel, Protocol::Delta, node("sidecar", namespace, "client")?)?))
    }
}

/// The identity of the proxy of a pod.
pub(crate) fn node(role: &str, namespace: &str, account: &str) -> Result<Identity> {
    Identity::of_node(&json!({
        "id": format!("{role}~10.244.0.200~{account}-1.{namespace}~{namespace}.svc.cluster.local"),
        "metadata": {"NAMESPACE": namespace, "SERVICE_ACCOUNT": account, "CLUSTER_ID": "Kubernetes"},
    }))
}

/// A proxy and the resources that it has received.
pub(crate) struct Proxy {
    stream: AdsStream,
    resources: BTreeMap<String, Value>,
}

impl Proxy {
    pub(crate) fn new(stream: AdsStream) -> Self {
        Self { stream, resources: BTreeMap::new() }
    }

    pub(crate) fn subscribe(&mut self, kind: Kind, names: &[&str]) -> Result<()> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.stream.subscribe(kind.type_url(), &names, BTreeMap::new())
    }

    /// Waits until a resource meets a condition. A resource that does not exist is `null`.
    pub(crate) async fn receives(&mut self, name: &str, what: &str, is_met: impl Fn(&Value) -> bool) -> Result<()> {
        let deadline = Instant::now() + EFFECT_TIMEOUT;
        loop {
            let resource = self.resources.get(name).unwrap_or(&Value::Null);
            if is_met(resource) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(update) = self.stream.next_within(left).await? else {
                bail!("{what}: not after {EFFECT_TIMEOUT:?}; {name} is {resource}");
            };
            self.stream.ack(&update)?;
            for (name, _, any) in &update.resources {
                self.resources.insert(name.clone(), sluice_proto::json::encode_any(&any.type_url, &any.value));
            }
            for name in &update.removed {
                self.resources.remove(name);
            }
        }
    }
}

/// Polls until a condition is met.
pub(crate) async fn until(what: &str, mut is_met: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + EFFECT_TIMEOUT;
    while !is_met().await? {
        ensure!(Instant::now() < deadline, "{what}: not after {EFFECT_TIMEOUT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

pub(crate) fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    })
}

/// A VirtualService that routes a host to another, which the cluster has as a Service.
pub(crate) fn virtual_service(namespace: &str, name: &str, destination: &str) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hosts": [name], "http": [{"route": [{"destination": {"host": destination}}]}]},
    })
}

/// Creates a pod on a node, and returns its UID. There is no kubelet, so it has no address yet.
pub(crate) async fn create_pod(cluster: &Cluster, namespace: &str, name: &str, app: &str) -> Result<String> {
    let pod = cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "app"}]},
        }))
        .await?;
    pod["metadata"]["uid"].as_str().map(str::to_owned).context("the pod has a UID")
}

/// Creates a node in a zone.
pub(crate) async fn create_node(cluster: &Cluster, name: &str) -> Result<()> {
    let labels = json!({"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z"});
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})).await?;
    Ok(())
}
