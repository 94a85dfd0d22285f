//! A node whose pods are network namespaces, with a directory in the role of its file system, for its CNI agent.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::cluster::Cluster;

const CHAIN_FILE: &str = "net.d/10-net.conflist";
/// The configuration of the primary plugin before the agent adds its own.
const CHAIN: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"}]}"#;
/// Which pods are enrolled: the default of the chart.
const SELECTORS: &str = "
- podSelector:
    matchExpressions: [{key: istio.io/dataplane-mode, operator: NotIn, values: [none]}]
  namespaceSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}
";

/// The directory. It is removed when this is dropped.
pub struct NodeDirectory(TempDir);

impl NodeDirectory {
    /// The directory of a node without pods. `own` is the file of the network namespace of the node.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(own: &Path) -> Result<Self> {
        let directory = Self(tempfile::tempdir()?);
        for name in ["net.d", "bin", "run", "account", "host/proc/1/ns", "host/run/netns"] {
            std::fs::create_dir_all(directory.path(name))?;
        }
        symlink(own, directory.path("host/proc/1/ns/net"))?;
        std::fs::write(directory.path(CHAIN_FILE), CHAIN)?;
        Ok(directory)
    }

    /// A path in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The socket for ztunnel.
    #[must_use]
    pub fn ztunnel_socket(&self) -> PathBuf {
        self.path("ztunnel.sock")
    }

    /// The configuration of the primary plugin.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn chain(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&std::fs::read_to_string(self.path(CHAIN_FILE))?)?)
    }

    /// The log of the agent.
    ///
    /// # Errors
    /// The agent has not been started.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.path("agent.log"))?)
    }

    /// Adds a process in a network namespace, which is a file.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_process(&self, number: usize, namespace: &Path) -> Result<()> {
        let process = self.process(number);
        std::fs::create_dir_all(process.join("ns"))?;
        symlink(namespace, process.join("ns/net"))?;
        std::fs::copy("/proc/self/stat", process.join("stat"))?;
        Ok(())
    }

    /// Makes a process one of the pod with this UID.
    ///
    /// # Errors
    /// The process does not exist.
    pub fn set_pod_of_process(&self, number: usize, uid: &str) -> Result<()> {
        let group = format!("0::/kubepods/besteffort/pod{uid}/5ca1e\n");
        std::fs::write(self.process(number).join("cgroup"), group).context("write the control group of a process")
    }

    fn process(&self, number: usize) -> PathBuf {
        self.path("host/proc").join(number.to_string())
    }

    /// Starts the agent of the node `node` in ambient mode, with more flags.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_agent(&self, program: &Path, cluster: &Cluster, node: &str, more: &[(&str, &Path)]) -> Result<Child> {
        let log = std::fs::File::create(self.path("agent.log"))?;
        let flags = [
            ("host-root", self.path("host")),
            ("allow-switch-to-host-ns", "true".into()),
            ("mounted-cni-net-dir", self.path("net.d")),
            ("cni-bin-dir", self.path("bin")),
            ("cni-agent-run-dir", self.path("run")),
            ("service-account-dir", self.path("account")),
            ("ztunnel-uds-address", self.ztunnel_socket()),
            ("ambient-enabled", "true".into()),
            ("ambient-enablement-selector", SELECTORS.into()),
            ("node-name", node.into()),
            ("pod-namespace", "istio-system".into()),
            ("monitoring-port", "0".into()),
            ("readiness-port", "0".into()),
        ];
        let flags = flags.iter().map(|(name, value)| (*name, value.as_path())).chain(more.iter().copied());
        Command::new(program)
            .args(flags.map(|(name, value)| format!("--{name}={}", value.display())))
            .env("KUBERNETES_SERVICE_HOST", cluster.address().ip().to_string())
            .env("KUBERNETES_SERVICE_PORT", cluster.address().port().to_string())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", program.display()))
    }
}
