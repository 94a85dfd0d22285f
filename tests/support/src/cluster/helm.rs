//! The real helm.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The name of the kubeconfig of an administrator.
pub(super) const KUBECONFIG: &str = "admin.kubeconfig";

/// The program helm. It keeps its files in a directory of the test.
pub struct Helm {
    program: PathBuf,
    directory: PathBuf,
}

/// Writes the kubeconfig that [`Helm`] uses.
pub(super) fn write_kubeconfig(directory: &Path, kubeconfig: &Value) -> Result<()> {
    std::fs::write(directory.join(KUBECONFIG), kubeconfig.to_string()).context("write the kubeconfig of helm")
}

impl Helm {
    /// Helm in a directory of programs.
    #[must_use]
    pub fn new(programs: &Path, directory: &Path) -> Self {
        Self { program: programs.join("helm"), directory: directory.to_owned() }
    }

    /// Runs a command, and returns its output.
    ///
    /// # Errors
    /// Helm cannot be started, or fails. The message has what it prints.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", self.directory.join(KUBECONFIG))
            .env("HOME", &self.directory)
            .env_remove("HELM_NAMESPACE")
            .output()
            .with_context(|| format!("start {}", self.program.display()))?;
        if !output.status.success() {
            bail!("helm {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).context("the output of helm is UTF-8")
    }

    /// Renders a chart without a cluster, for the version of Kubernetes of the tests.
    ///
    /// # Errors
    /// As [`Helm::run`].
    pub fn render(&self, (release, chart): (&str, &Path), arguments: &[&str]) -> Result<String> {
        let chart = chart.display().to_string();
        let mut all = vec!["template", release, chart.as_str(), "--kube-version", "1.29.0"];
        all.extend(arguments);
        self.run(&all)
    }
}
