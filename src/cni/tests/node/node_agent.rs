//! The agent and the plugin as processes, with a directory in the role of the file system of the node.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sluice_testkit::cluster::Cluster;
use sluice_testkit::wait::until_async;
use tempfile::TempDir;

use crate::network::{Network, POD, file};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sluice-cni");
const NODE: &str = "node-1";
const SELECTORS: &str = "
- podSelector:
    matchExpressions: [{key: istio.io/dataplane-mode, operator: NotIn, values: [none]}]
  namespaceSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}
";
const CHAIN: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"}]}"#;
/// The number of the process of the pod in the `/proc` of the node.
const POD_PROCESS: &str = "4000";

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
    directory: TempDir,
    process: Child,
}

impl<'c> NodeAgent<'c> {
    /// Starts the agent with a service account that has the rights of the chart, and waits until it is ready.
    pub(crate) async fn start(cluster: &'c Cluster, network: &Network) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let root = directory.path();
        for name in ["net.d", "bin", "run", "account", "host/proc/1/ns", "host/run/netns"] {
            std::fs::create_dir_all(root.join(name))?;
        }
        symlink(file(&network.node_name), root.join("host/proc/1/ns/net"))?;
        symlink(file(&network.pod_name), root.join("host/run/netns").join(&network.pod_name))?;
        let process = root.join("host/proc").join(POD_PROCESS);
        std::fs::create_dir_all(process.join("ns"))?;
        symlink(file(&network.pod_name), process.join("ns/net"))?;
        std::fs::copy("/proc/self/stat", process.join("stat"))?;
        std::fs::write(root.join("net.d/10-net.conflist"), CHAIN)?;

        let token = account(cluster).await?;
        let kubeconfig = cluster.kubeconfig(cluster.address(), &token);
        std::fs::write(root.join("kubeconfig"), kubeconfig.to_string())?;
        std::fs::write(root.join("account/token"), &token)?;
        std::fs::write(root.join("account/ca.crt"), roots(&kubeconfig)?)?;
        let log = std::fs::File::create(root.join("agent.log"))?;
        let path = |name: &str| root.join(name).display().to_string();
        let flag = |name: &str, value: String| format!("--{name}={value}");
        let process = Command::new(PROGRAM)
            .args([
                flag("kubeconfig", path("kubeconfig")),
                flag("host-root", path("host")),
                flag("allow-switch-to-host-ns", "true".to_owned()),
                flag("mounted-cni-net-dir", path("net.d")),
                flag("cni-bin-dir", path("bin")),
                flag("cni-agent-run-dir", path("run")),
                flag("service-account-dir", path("account")),
                flag("ztunnel-uds-address", path("ztunnel.sock")),
                flag("ambient-enabled", "true".to_owned()),
                flag("ambient-dns-capture", "true".to_owned()),
                flag("ambient-enablement-selector", SELECTORS.to_owned()),
                flag("node-name", NODE.to_owned()),
                flag("pod-namespace", "istio-system".to_owned()),
                flag("monitoring-port", "0".to_owned()),
                flag("readiness-port", "0".to_owned()),
            ])
            .env("KUBERNETES_SERVICE_HOST", cluster.address().ip().to_string())
            .env("KUBERNETES_SERVICE_PORT", cluster.address().port().to_string())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let agent = Self { cluster, directory, process };
        until_async("the plugin is installed", async || {
            agent.chain().ok().filter(|chain| chain.to_string().contains("istio-cni"))
        })
        .await;
        Ok(agent)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn ztunnel_socket(&self) -> PathBuf {
        self.path("ztunnel.sock")
    }

    /// The configuration of the primary plugin.
    pub(crate) fn chain(&self) -> Result<Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(self.path("net.d/10-net.conflist"))?)?)
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
        let process = self.path("host/proc").join(POD_PROCESS);
        std::fs::write(process.join("cgroup"), format!("0::/kubepods/besteffort/pod{uid}/5ca1e\n"))?;
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
