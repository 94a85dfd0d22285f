//! An agent whose threads and tasks panic. It needs neither network namespaces nor an API server.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sluice_testkit::wait::until;
use tempfile::TempDir;

/// The configuration of the primary plugin, with the entry of an earlier agent.
const CHAIN: &str =
    r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"},{"type":"istio-cni","name":"istio-cni"}]}"#;
/// The thread that installs the plugin.
const INSTALL_THREAD: &str = "install-plugin";
/// The task that waits for SIGTERM.
const SIGNAL_TASK: &str = "signals";

/// The agent outside the ambient mesh, with a directory as its node. It is killed when this is dropped.
struct Agent {
    directory: TempDir,
    process: Child,
}

impl Agent {
    /// Starts an agent in which these tasks panic once.
    fn start(panics: &[&str]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        for name in ["host", "net.d", "bin", "run", "account", "faults"] {
            std::fs::create_dir(path(name))?;
        }
        std::fs::write(path("net.d/10-net.conflist"), CHAIN)?;
        std::fs::write(path("account/token"), "token")?;
        std::fs::write(path("account/ca.crt"), "roots")?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "test", "user": {}}],
        });
        std::fs::write(path("kubeconfig"), kubeconfig.to_string())?;
        // Threads panic at their start.
        std::fs::write(path("faults/panics"), panics.join("\n"))?;
        let flags = [
            ("kubeconfig", path("kubeconfig")),
            ("host-root", path("host")),
            ("mounted-cni-net-dir", path("net.d")),
            ("cni-bin-dir", path("bin")),
            ("cni-agent-run-dir", path("run")),
            ("service-account-dir", path("account")),
            ("ambient-enabled", "false".into()),
            ("repair-enabled", "false".into()),
            ("monitoring-port", "0".into()),
            ("readiness-port", "0".into()),
        ];
        let log = std::fs::File::create(path("agent.log"))?;
        let process = Command::new(env!("CARGO_BIN_EXE_sluice-cni"))
            .args(flags.iter().map(|(name, value)| format!("--{name}={}", value.display())))
            .env("SLUICE_TEST_FAULTS", path("faults"))
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", "1")
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Self { directory, process })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }

    /// Waits until the panic of a task has been logged.
    async fn wait_for_panic(&self, task: &str) {
        let name = format!("task={task} ");
        let is_of_task = |line: &str| line.contains("task failed and is restarted") && line.contains(&name);
        until(&format!("{task} panics"), || self.log().lines().any(is_of_task).then_some(())).await;
    }

    fn chain(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.path("net.d/10-net.conflist"))?)
    }

    /// Ends the agent with SIGTERM.
    async fn terminate(&mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).context("a process")?;
        kill_process(pid, Signal::TERM)?;
        Ok(until("the agent ends", || self.process.try_wait().transpose()).await?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        if std::thread::panicking() {
            eprintln!("agent.log:\n{}", self.log());
        }
    }
}

#[tokio::test]
async fn agent_whose_tasks_have_panicked_installs_the_plugin_and_removes_it_at_sigterm() -> Result<()> {
    let mut agent = Agent::start(&[INSTALL_THREAD, SIGNAL_TASK])?;
    agent.wait_for_panic(INSTALL_THREAD).await;
    agent.wait_for_panic(SIGNAL_TASK).await;
    let executable = agent.path("bin/istio-cni");
    until("the plugin is installed", || executable.exists().then_some(())).await;
    let status = agent.terminate().await?;
    ensure!(status.success(), "{status}: {}", agent.log());
    ensure!(!agent.chain()?.contains("istio-cni"), "the entry is removed: {}", agent.chain()?);
    ensure!(!executable.exists(), "the executable is removed");
    Ok(())
}

#[tokio::test]
async fn agent_that_is_terminated_while_its_installer_waits_for_its_restart_removes_the_plugin() -> Result<()> {
    let mut agent = Agent::start(&[INSTALL_THREAD])?;
    agent.wait_for_panic(INSTALL_THREAD).await;
    let status = agent.terminate().await?;
    ensure!(status.success(), "{status}: {}", agent.log());
    ensure!(!agent.chain()?.contains("istio-cni"), "the entry of the earlier agent is removed: {}", agent.chain()?);
    Ok(())
}
