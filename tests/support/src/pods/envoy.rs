//! A real Envoy beside the application or as a gateway, bootstrapped against the control plane under test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Environment variable that names another Envoy binary than the pinned one.
pub const ENVOY_BINARY: &str = "SLUICE_ENVOY";

/// Which flavour of ADS the Envoy speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Incremental.
    Delta,
}

/// What the bootstrap says.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// Node id, such as `sidecar~10.64.0.10~pod.ns~ns.svc.cluster.local`.
    pub node_id: String,
    /// Who it is: what a gateway before the control plane would say that it has verified.
    pub spiffe_id: String,
    /// Node metadata as pilot-agent would send it.
    pub metadata: Value,
    /// The control plane's plaintext ADS address.
    pub discovery: SocketAddr,
    /// Flavour of ADS.
    pub protocol: Protocol,
    /// Directory of this Envoy's files: bootstrap, log, admin and SDS sockets. Envoy's user must be able to write here.
    pub directory: PathBuf,
}

impl Bootstrap {
    fn admin_socket(&self) -> PathBuf {
        self.directory.join("admin.sock")
    }

    fn to_json(&self) -> Value {
        let ads = json!({ "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" });
        let static_cluster = |name: &str, address: Value, extra: Value| {
            let mut cluster = json!({
                "name": name,
                "type": "STATIC",
                "connect_timeout": "1s",
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                        "explicit_http_config": { "http2_protocol_options": {} },
                    },
                },
                "load_assignment": {
                    "cluster_name": name,
                    "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
                },
            });
            if let (Some(cluster), Some(extra)) = (cluster.as_object_mut(), extra.as_object()) {
                cluster.extend(extra.clone());
            }
            cluster
        };
        json!({
            "node": { "id": self.node_id, "cluster": "sluice-test", "metadata": self.metadata },
            "admin": { "address": { "pipe": { "path": self.admin_socket(), "mode": 438 } } },
            "layered_runtime": { "layers": [{ "name": "fixed", "static_layer": {
                "overload.global_downstream_max_connections": 50_000,
            } }] },
            "dynamic_resources": {
                "lds_config": ads,
                "cds_config": ads,
                "ads_config": {
                    "api_type": match self.protocol { Protocol::Sotw => "GRPC", Protocol::Delta => "DELTA_GRPC" },
                    "transport_api_version": "V3",
                    "set_node_on_first_message_only": true,
                    "grpc_services": [{
                        "envoy_grpc": { "cluster_name": "xds-grpc" },
                        "initial_metadata": [{
                            "key": "x-forwarded-client-cert",
                            "value": format!("By=spiffe://cluster.local/ns/istio-system/sa/istiod;URI={}", self.spiffe_id),
                        }],
                    }],
                },
            },
            "static_resources": { "clusters": [
                static_cluster("xds-grpc",
                    json!({ "socket_address": {
                        "address": self.discovery.ip().to_string(), "port_value": self.discovery.port() } }),
                    json!({ "upstream_connection_options": { "tcp_keepalive": { "keepalive_time": 300 } } })),
                static_cluster("sds-grpc",
                    json!({ "pipe": { "path": super::identity::socket_path(&self.directory) } }), json!({})),
            ] },
        })
    }
}

/// The pinned Envoy that `make envoy` installed, or the one the environment names.
///
/// # Errors
/// There is none.
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

/// A text as it may stand in a query.
fn escape(text: &str) -> String {
    let escape =
        |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}

/// A running Envoy. It ends when this is dropped.
pub struct Envoy {
    child: Child,
    directory: PathBuf,
    admin: PathBuf,
}

impl Envoy {
    /// Starts Envoy by `command` (the Envoy binary, perhaps inside a pod) with this bootstrap.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(mut command: Command, bootstrap: &Bootstrap) -> Result<Self> {
        let file = bootstrap.directory.join("bootstrap.json");
        std::fs::write(&file, serde_json::to_vec_pretty(&bootstrap.to_json())?).context("write the bootstrap")?;
        let log = std::fs::File::create(bootstrap.directory.join("envoy.log")).context("open Envoy's log")?;
        let child = command
            .arg("-c")
            .arg(&file)
            .args(["--log-level", "warning", "--concurrency", "1", "--use-dynamic-base-id", "--disable-hot-restart"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        Ok(Self { child, directory: bootstrap.directory.clone(), admin: bootstrap.admin_socket() })
    }

    /// GET of an admin path.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub async fn admin(&self, path: &str) -> Result<String> {
        let stream = UnixStream::connect(&self.admin).await.context("connect to Envoy's admin socket")?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context("talk to Envoy's admin")?;
        tokio::spawn(connection);
        let request = http::Request::get(path).header("host", "admin").body(Empty::<bytes::Bytes>::new())?;
        let body = sender.send_request(request).await.context("ask Envoy's admin")?.into_body();
        let body = body.collect().await.context("read Envoy's admin")?.to_bytes();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// The value of one counter or gauge, 0 if it does not exist yet.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let exact: String =
            name.chars().map(|c| if c.is_alphanumeric() { c.to_string() } else { format!("\\{c}") }).collect();
        let text = self.admin(&format!("/stats?filter={}", escape(&format!("^{exact}$")))).await?;
        Ok(text.trim().rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or(0))
    }

    /// Everything Envoy refused so far: one line a counter that is not zero.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub async fn rejected(&self) -> Result<Vec<String>> {
        self.counted("(update_rejected|listener_create_failure)$").await
    }

    /// The counters and gauges whose names match `pattern` and that are not zero, a line each.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub async fn counted(&self, pattern: &str) -> Result<Vec<String>> {
        let text = self.admin(&format!("/stats?usedonly&type=Counters&filter={}", escape(pattern))).await?;
        let gauges = self.admin(&format!("/stats?usedonly&type=Gauges&filter={}", escape(pattern))).await?;
        let text = text + &gauges;
        let counted = |line: &&str| !line.ends_with(": 0");
        Ok(text.lines().filter(counted).map(ToOwned::to_owned).collect())
    }

    /// Waits until the listeners of the first LDS answer are live.
    ///
    /// # Errors
    /// Not within `limit`, or Envoy ended; the message has the tail of its log.
    pub async fn ready(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if self.admin("/ready").await.is_ok_and(|answer| answer.trim() == "LIVE") {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait().context("look after Envoy")? {
                bail!("Envoy ended with {status}: {}", self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("Envoy is not ready after {limit:?}: {}", self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The last lines of its log, without those about deprecated fields.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.directory.join("envoy.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().filter(|line| !line.contains("Deprecated field")).collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
