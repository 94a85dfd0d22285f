//! The kubeconfig of the plugin, with the token of the agent.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

/// Access to the API server.
#[derive(Clone, Debug)]
pub(crate) struct KubeconfigSettings {
    /// Directory with `token` and `ca.crt` of the service account.
    pub(crate) service_account_dir: PathBuf,
    /// File with the roots of the API server, instead of `ca.crt`.
    pub(crate) ca_file: Option<PathBuf>,
    /// The certificate of the API server is not verified.
    pub(crate) skip_verification: bool,
    /// `KUBERNETES_SERVICE_PROTOCOL`.
    pub(crate) protocol: String,
    /// `KUBERNETES_SERVICE_HOST`.
    pub(crate) host: String,
    /// `KUBERNETES_SERVICE_PORT`.
    pub(crate) port: String,
    /// Mode of the file.
    pub(crate) mode: u32,
}

impl KubeconfigSettings {
    /// The text of the file: JSON, which is YAML.
    pub(super) fn render(&self) -> Result<String> {
        ensure!(!self.host.is_empty(), "KUBERNETES_SERVICE_HOST is not set");
        ensure!(!self.port.is_empty(), "KUBERNETES_SERVICE_PORT is not set");
        let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let mut cluster = json!({"server": format!("{}://{host}:{}", self.protocol, self.port)});
        if self.skip_verification {
            cluster["insecure-skip-tls-verify"] = true.into();
        } else {
            let file = self.ca_file.clone().unwrap_or_else(|| self.service_account_dir.join("ca.crt"));
            cluster["certificate-authority-data"] = base64(&read(&file)?).into();
        }
        let token = String::from_utf8(read(&self.service_account_dir.join("token"))?).context("token: not text")?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "istio-cni", "user": {"token": token}}],
            "contexts": [{"name": "istio-cni-context", "context": {"cluster": "local", "user": "istio-cni"}}],
            "current-context": "istio-cni-context",
        });
        Ok(format!("{config:#}\n"))
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
