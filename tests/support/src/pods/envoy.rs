//! A real Envoy, as a sidecar or a gateway, and the agent that starts it; or an agent without an Envoy.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::process::Child;

use super::agent::{Container, ProxyPorts};
use super::network::PodNet;
use super::workload::PodRole;

/// Environment variable with the path of an Envoy binary to use instead of the pinned one.
const ENVOY_BINARY: &str = "SLUICE_ENVOY";

/// Name of the secret with a workload's certificate.
pub const CERTIFICATE: &str = "default";
/// Name of the secret with the trusted roots.
pub const ROOTS: &str = "ROOTCA";

/// The pinned Envoy that `make envoy` installed, or the one the environment names.
///
/// # Errors
/// The binary does not exist.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENVOY_BINARY) {
        return Ok(path.into());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/bin/envoy");
    if !path.exists() {
        bail!("{} is missing: run `make envoy` first", path.display());
    }
    Ok(path)
}

/// Percent-encodes a text for a query.
fn escape(text: &str) -> String {
    let escape =
        |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

/// The decoded inline bytes at a place of a secret.
fn inline_text(secret: &Value, place: &str) -> Option<Result<String>> {
    let encoded = secret.pointer(place)?["inline_bytes"].as_str()?;
    let decode = || String::from_utf8(STANDARD.decode(encoded)?).map_err(anyhow::Error::from);
    Some(decode().with_context(|| format!("read {place} of a secret")))
}

/// A running agent with its Envoy, if it has one. They end when this is dropped.
pub struct Envoy {
    child: Child,
    net: PodNet,
    ports: ProxyPorts,
    /// Port that reports whether the proxy is ready: that of Envoy, or that of the agent without an Envoy.
    readiness_port: u16,
    log: PathBuf,
}

impl Drop for Envoy {
    /// A killed agent cannot stop its Envoy, so both are in one process group.
    fn drop(&mut self) {
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = killpg(Pid::from_raw(id), Signal::SIGKILL);
        }
    }
}

impl Envoy {
    /// Starts the agent of a container, which starts Envoy.
    ///
    /// # Errors
    /// A file cannot be written, or it does not start.
    pub fn start(container: &Container<'_>) -> Result<Self> {
        container.write_files()?;
        let log = container.directory.join("proxy.log");
        let child = container.command(&log)?.spawn().context("start the agent")?;
        let ports = container.ports;
        let readiness_port = match container.workload.proxy {
            PodRole::Grpc(_) => ports.status,
            _ => ports.envoy_status,
        };
        Ok(Self { child, net: container.net.clone(), ports, readiness_port, log })
    }

    /// GET of a path of Envoy's admin interface.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn admin(&self, path: &str) -> Result<String> {
        Ok(self.get(self.ports.admin, path).await.context("request Envoy's admin interface")?.1)
    }

    /// GET of a path of the agent's own server: status and body.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn agent(&self, path: &str) -> Result<(u16, String)> {
        self.get(self.ports.status, path).await.context("request the agent")
    }

    async fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        let stream = self.net.connect(port).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = http::Request::get(path).header("host", "localhost").body(Empty::<Bytes>::new())?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((head.status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
    }

    /// The value of one counter or gauge, 0 if it does not exist yet.
    ///
    /// # Errors
    /// The admin interface does not respond.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let exact: String =
            name.chars().map(|c| if c.is_alphanumeric() { c.to_string() } else { format!("\\{c}") }).collect();
        let text = self.admin(&format!("/stats?filter={}", escape(&format!("^{exact}$")))).await?;
        Ok(text.trim().rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or(0))
    }

    /// The counters of updates that Envoy has rejected, one line for each that is not zero.
    ///
    /// # Errors
    /// The admin interface does not respond.
    pub async fn rejected(&self) -> Result<Vec<String>> {
        self.nonzero_stats("(update_rejected|listener_create_failure)$").await
    }

    /// The counters and gauges whose names match `pattern` and that are not zero, one on each line.
    ///
    /// # Errors
    /// The admin interface does not respond.
    pub async fn nonzero_stats(&self, pattern: &str) -> Result<Vec<String>> {
        let text = self.admin(&format!("/stats?usedonly&type=Counters&filter={}", escape(pattern))).await?;
        let gauges = self.admin(&format!("/stats?usedonly&type=Gauges&filter={}", escape(pattern))).await?;
        let text = text + &gauges;
        let is_nonzero = |line: &&str| !line.ends_with(": 0");
        Ok(text.lines().filter(is_nonzero).map(ToOwned::to_owned).collect())
    }

    /// Waits until the agent reports that the proxy is ready.
    ///
    /// # Errors
    /// The proxy is not ready within `limit`, or the agent has ended. The message has the end of the log.
    pub async fn ready(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if self.get(self.readiness_port, "/healthz/ready").await.is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().context("read the agent's exit status")? {
                bail!("the agent ended with {status}: {}", self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("the proxy is not ready after {limit:?}: {}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The certificates of a secret that Envoy holds, as PEM.
    ///
    /// # Errors
    /// The admin interface does not respond, or Envoy has no such secret.
    pub async fn secret(&self, name: &str) -> Result<String> {
        let secrets = self.secrets(name).await?;
        let secret = secrets.first().with_context(|| format!("Envoy has no secret {name}"))?;
        let places = ["/tls_certificate/certificate_chain", "/validation_context/trusted_ca"];
        places
            .iter()
            .find_map(|place| inline_text(secret, place))
            .with_context(|| format!("{name} has no certificate"))?
    }

    /// The revocation lists with the trusted roots that Envoy holds, as PEM: one entry for each of its secrets of this name.
    /// Once they are held, they apply to each connection that is opened.
    ///
    /// # Errors
    /// The admin interface does not respond, or lists are malformed.
    pub async fn revocation_lists(&self) -> Result<Vec<Option<String>>> {
        let secrets = self.secrets(ROOTS).await?;
        secrets.iter().map(|secret| inline_text(secret, "/validation_context/crl").transpose()).collect()
    }

    /// The secrets of a name that Envoy holds. There are several if resources refer to it with different options.
    async fn secrets(&self, name: &str) -> Result<Vec<Value>> {
        let dump = self.admin("/config_dump?resource=dynamic_active_secrets").await?;
        let dump: Value = serde_json::from_str(&dump).context("read Envoy's secrets")?;
        let all = dump["configs"].as_array().into_iter().flatten().map(|entry| &entry["secret"]);
        Ok(all.filter(|secret| secret["name"] == name).cloned().collect())
    }

    /// The log of the agent and Envoy so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines of the log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
