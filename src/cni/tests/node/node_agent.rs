//! The agent and the plugin as processes.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node_directory::NodeDirectory;
use sluice_testkit::wait::until_async;

use crate::network::{Network, POD, file};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sluice-cni");
const NODE: &str = "node-1";
/// The number of the process of the pod in the `/proc` of the node.
const POD_PROCESS: usize = 4000;

/// A real API server. `None`, with a message, where its programs are not built.
pub(crate) async fn start_cluster() -> Result<Option<Cluster>> {
    let Some(programs) = Cluster::programs() else {
        eprintln!("skipped: `make test-cluster` runs this with a real Kubernetes API server");
        return Ok(None);
    };
    Ok(Some(Cluster::start(&programs).await?))
}

pub(crate) struct NodeAgent<'c> {
    cluster: &'c Cluster,
    directory: NodeDirectory,
    process: Child,
}

impl<'c> NodeAgent<'c> {
    /// Starts the agent with a service account that has the rights of the chart, and waits until it is ready.
    pub(crate) async fn start(cluster: &'c Cluster, network: &Network) -> Result<Self> {
        let directory = NodeDirectory::new(&file(&network.node_name))?;
        let pod = file(&network.pod_name);
        symlink(&pod, directory.path("host/run/netns").join(&network.pod_name))?;
        directory.add_process(POD_PROCESS, &pod)?;

        let token = account(cluster).await?;
        let kubeconfig = cluster.kubeconfig(cluster.address(), &token);
        let kubeconfig_file = directory.path("kubeconfig");
        std::fs::write(&kubeconfig_file, kubeconfig.to_string())?;
        std::fs::write(directory.path("account/token"), &token)?;
        std::fs::write(directory.path("account/ca.crt"), roots(&kubeconfig)?)?;
        let more = [("kubeconfig", kubeconfig_file.as_path()), ("ambient-dns-capture", "true".as_ref())];
        let process = directory.start_agent(PROGRAM.as_ref(), cluster, NODE, &more)?;
        let agent = Self { cluster, directory, process };
        until_async("the plugin is installed", async || {
            agent.chain().ok().filter(|chain| chain.to_string().contains("istio-cni"))
        })
        .await;
        Ok(agent)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path(name)
    }

    pub(crate) fn log(&self) -> Result<String> {
        self.directory.log()
    }

    pub(crate) fn ztunnel_socket(&self) -> PathBuf {
        self.directory.ztunnel_socket()
    }

    /// The configuration of the primary plugin.
    pub(crate) fn chain(&self) -> Result<Value> {
        self.directory.chain()
    }

    /// Creates a pod on the node, which has no address yet, and returns its UID.
    pub(crate) async fn create_pod(&self, name: &str, annotations: Value, containers: &[&str]) -> Result<String> {
        let container = |name: &str| json!({"name": name, "image": "test", "args": ["proxy", "sidecar"]});
        let containers: Vec<_> = std::iter::once("app").chain(containers.iter().copied()).map(container).collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
            "spec": {"nodeName": NODE, "serviceAccountName": "default", "containers": containers},
        });
        // The service account of a new namespace is created by a controller.
        let pod = until_async("the pod is created", async || self.cluster.apply(&pod).await.ok()).await;
        Ok(pod["metadata"]["uid"].as_str().context("a UID")?.to_owned())
    }

    /// The same for one that runs: it has an address and a process.
    pub(crate) async fn run_pod(&self, name: &str, annotations: Value, containers: &[&str]) -> Result<String> {
        let uid = self.create_pod(name, annotations, containers).await?;
        self.directory.set_pod_of_process(POD_PROCESS, &uid)?;
        self.cluster.report_pod(("shop", name), POD, true).await?;
        Ok(uid)
    }

    /// The annotation that the agent writes.
    pub(crate) async fn redirection(&self, name: &str) -> Result<Option<String>> {
        let pod = self.cluster.get("v1", "Pod", "shop", name).await?.context("the pod")?;
        Ok(pod["metadata"]["annotations"]["ambient.istio.io/redirection"].as_str().map(str::to_owned))
    }

    pub(crate) async fn label_namespace(&self, mode: &str) -> Result<()> {
        let patch = json!({"metadata": {"labels": {"istio.io/dataplane-mode": mode}}});
        self.cluster.patch("v1", "Namespace", ("", "shop"), &patch).await.map(drop)
    }

    /// Runs the installed plugin as a container runtime does, and returns whether it succeeds, and its output.
    pub(crate) fn run_plugin(&self, entry: &Value, pod: &str, namespace: &str) -> Result<(bool, Value)> {
        let mut config = entry.clone();
        config["cniVersion"] = "1.0.0".into();
        config["name"] = "net".into();
        config["prevResult"] = json!({
            "cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": format!("{POD}/24")}],
        });
        // The agent opens the namespace below its root, the plugin at its own path.
        let netns = format!("/run/netns/{namespace}");
        let mut plugin = Command::new(self.path("bin/istio-cni"))
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", "5ca1e")
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", self.path("bin"))
            .env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::options().create(true).append(true).open(self.path("plugin.log"))?)
            .spawn()?;
        plugin.stdin.take().context("standard input")?.write_all(config.to_string().as_bytes())?;
        let output = plugin.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = serde_json::from_str(&text).with_context(|| format!("the output {text:?}"))?;
        Ok((output.status.success(), value))
    }

    /// Ends the agent, and returns the configuration of the primary plugin.
    pub(crate) async fn stop_and_read_chain(mut self) -> Result<Value> {
        self.terminate();
        let status = self.process.wait()?;
        ensure!(status.success(), "the agent fails: {status}");
        self.chain()
    }

    fn terminate(&self) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
    }
}

impl Drop for NodeAgent<'_> {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        if std::thread::panicking() {
            for log in ["agent.log", "plugin.log"] {
                eprintln!("{log}:\n{}", std::fs::read_to_string(self.path(log)).unwrap_or_default());
            }
        }
    }
}

/// Creates the service account with the rights of the chart, and returns a token.
async fn account(cluster: &Cluster) -> Result<String> {
    cluster.create_namespace("istio-system", json!({})).await?;
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/charts/cni");
    let values = ["--set", "ambient.enabled=true", "--namespace", "istio-system"];
    let templates = ["--show-only", "templates/rights.yaml", "--show-only", "templates/serviceaccount.yaml"];
    let rights = cluster.helm().render(("istio-cni", &chart), &[&values[..], &templates[..]].concat())?;
    cluster.apply_yaml(&rights).await?;
    cluster.create_token(("istio-system", "istio-cni"), None, None).await
}

/// The roots in a kubeconfig.
fn roots(kubeconfig: &Value) -> Result<Vec<u8>> {
    use base64::Engine as _;
    let cluster = &kubeconfig["clusters"][0]["cluster"];
    let text = cluster["certificate-authority-data"].as_str().context("roots")?;
    Ok(base64::engine::general_purpose::STANDARD.decode(text)?)
}
