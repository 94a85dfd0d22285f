//! A directory with the files of a container, the agent in it, and clients of its Envoy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use sluice_testkit::memory::MemoryWatch;
use sluice_testkit::ports::free_ports;
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

/// Time limit of each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

const XDS_SOCKET: &str = "etc/istio/proxy/XDS";

/// Repeats a check until it has a result.
pub(crate) async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + STEP_TIMEOUT;
    loop {
        if let Some(result) = check().await {
            return Ok(result);
        }
        ensure!(Instant::now() < deadline, "not within {STEP_TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The control plane of a pod.
pub(crate) struct ControlPlaneAddress {
    pub(crate) address: SocketAddr,
    pub(crate) secure: bool,
    /// Roots of the mesh.
    pub(crate) root: String,
    pub(crate) token: String,
    /// Port of Envoy's listener.
    pub(crate) listener: u16,
}

/// A pod with one proxy.
pub(crate) struct TestPod {
    directory: tempfile::TempDir,
    upstream: ControlPlaneAddress,
    role: &'static str,
    pub(crate) variables: BTreeMap<&'static str, String>,
    pub(crate) proxy_config: Value,
    status_port: u16,
    envoy_status_port: u16,
    debug_port: u16,
    child: Option<Child>,
}

/// The certificate of a server.
pub(crate) struct PeerCertificate {
    pub(crate) serial: Vec<u8>,
    pub(crate) uris: Vec<String>,
}

impl Drop for TestPod {
    /// Terminates Envoy too, which is in the agent's process group.
    fn drop(&mut self) {
        if let Some(id) = self.child.as_ref().and_then(Child::id) {
            let _ = std::process::Command::new("kill").args(["-KILL", "--", &format!("-{id}")]).status();
        }
    }
}

impl TestPod {
    pub(crate) fn new(role: &'static str, upstream: ControlPlaneAddress) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory")?;
        put(directory.path(), "var/run/secrets/tokens/istio-token", &upstream.token)?;
        put(directory.path(), "var/run/secrets/istio/root-cert.pem", &upstream.root)?;
        let [admin, status_port, envoy_status_port, prometheus, dns, debug_port] = free_ports()?;
        let mut proxy_config = json!({
            "binaryPath": sluice_testkit::pods::envoy::binary()?,
            "discoveryAddress": upstream.address.to_string(),
            "proxyAdminPort": admin,
            "statusPort": status_port,
            "concurrency": 1,
            "drainDuration": "1s",
            "terminationDrainDuration": "2s",
        });
        if !upstream.secure {
            proxy_config["controlPlaneAuthPolicy"] = "NONE".into();
        }
        let variables = [
            ("POD_NAME", "tea-1".to_owned()),
            ("POD_NAMESPACE", "shop".to_owned()),
            ("INSTANCE_IP", "127.0.0.1".to_owned()),
            ("SERVICE_ACCOUNT", "tea".to_owned()),
            ("ISTIO_META_CLUSTER_ID", "cluster-1".to_owned()),
            ("ISTIOD_SAN", "istiod.istio-system.svc".to_owned()),
            ("ENVOY_STATUS_PORT", envoy_status_port.to_string()),
            ("ENVOY_PROMETHEUS_PORT", prometheus.to_string()),
            ("DNS_PROXY_ADDR", format!("127.0.0.1:{dns}")),
            ("PROXY_XDS_DEBUG_VIA_AGENT_PORT", debug_port.to_string()),
        ];
        Ok(Self {
            directory,
            upstream,
            role,
            variables: variables.into(),
            proxy_config,
            status_port,
            envoy_status_port,
            debug_port,
            child: None,
        })
    }

    /// Writes a file of the container.
    pub(crate) fn put(&self, path: &str, content: &str) -> Result<()> {
        put(self.directory.path(), path, content)
    }

    /// A script that replaces Envoy.
    pub(crate) fn script(&self, text: &str) -> Result<Value> {
        let path = self.directory.path().join("script");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(json!(path))
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let log = std::fs::File::create(self.log_path()).context("make the log")?;
        let child = Command::new(env!("CARGO_BIN_EXE_sluice-agent"))
            .args([
                "proxy",
                self.role,
                "--log_output_level=default:debug,grpc:debug",
                "--proxyLogLevel=info,misc:error",
            ])
            .current_dir(self.directory.path())
            .env_clear()
            .envs(&self.variables)
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("PROXY_CONFIG", self.proxy_config.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("start the agent")?;
        self.child = Some(child);
        Ok(())
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until the readiness listener of Envoy responds with 200.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let port = self.envoy_status_port;
        let is_ready = async || {
            let mut client = HttpConnection::connect(port).await.ok()?;
            (client.send("GET", "/healthz/ready").await.ok()?.0 == 200).then_some(())
        };
        until("the proxy is ready", is_ready).await.with_context(|| self.log())
    }

    /// Waits until the agent reports that gRPC libraries have their files.
    pub(crate) async fn ready_without_envoy(&self) -> Result<()> {
        let is_ready = async || (self.status("/healthz/ready").await.ok()?.0 == 200).then_some(());
        until("the files are there", is_ready).await.with_context(|| self.log())
    }

    /// Reads a file of the container: its text and its permissions.
    pub(crate) fn read(&self, path: &str) -> Result<(String, u32)> {
        let path = self.directory.path().join(path);
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok((text, mode(&path)?))
    }

    /// Permissions of the xDS socket.
    pub(crate) fn xds_socket_mode(&self) -> Result<u32> {
        mode(&self.directory.path().join(XDS_SOCKET))
    }

    /// Requests a page of the agent's status server.
    pub(crate) async fn status(&self, path: &str) -> Result<(u16, String)> {
        let (status, _, body) = HttpConnection::connect(self.status_port).await?.send("GET", path).await?;
        Ok((status, body))
    }

    /// Requests a debug page of the control plane through the agent.
    pub(crate) async fn debug(&self, method: &str, path: &str) -> Result<(u16, String)> {
        let (status, _, body) = HttpConnection::connect(self.debug_port).await?.send(method, path).await?;
        Ok((status, body))
    }

    /// The ports of the agent's HTTP servers.
    pub(crate) fn agent_ports(&self) -> [u16; 2] {
        [self.status_port, self.debug_port]
    }

    /// Connects to a port from an address of the loopback.
    pub(crate) async fn connect_from(address: [u8; 4], port: u16) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((address, 0).into())?;
        Ok(socket.connect(([127, 0, 0, 1], port).into()).await?)
    }

    /// Starts to watch the memory of the agent.
    pub(crate) fn watch_agent_memory(&self) -> Result<MemoryWatch> {
        MemoryWatch::start(self.child.as_ref().and_then(Child::id).context("the agent runs")?)
    }

    /// Sends a request to a listener of Envoy.
    pub(crate) async fn request(&self, port: u16) -> Result<(u16, String)> {
        let (status, _, body) = HttpConnection::connect(port).await?.send("GET", "/").await?;
        Ok((status, body))
    }

    pub(crate) async fn post(&self, path: &str) -> Result<()> {
        let (status, _, _) = HttpConnection::connect(self.status_port).await?.send("POST", path).await?;
        ensure!(status == 200, "{path}: {status}");
        Ok(())
    }

    /// Requests a page of Envoy's admin interface.
    pub(crate) async fn admin(&self, path: &str) -> Result<String> {
        let port = self.proxy_config["proxyAdminPort"].as_u64().and_then(|port| u16::try_from(port).ok());
        let mut client = HttpConnection::connect(port.context("a port")?).await?;
        Ok(client.send("GET", path).await?.2)
    }

    /// The number of active connections of Envoy's listener.
    pub(crate) async fn connections(&self) -> Result<u64> {
        let name = format!("listener.127.0.0.1_{}.downstream_cx_active: ", self.upstream.listener);
        let text = self.admin("/stats?filter=downstream_cx_active").await?;
        let value = text.lines().find_map(|line| line.strip_prefix(&name)).context("the count")?;
        Ok(value.trim().parse()?)
    }

    /// A client of Envoy's listener that trusts the authority.
    pub(crate) async fn client(&self) -> Result<HttpConnection> {
        Ok(HttpConnection { sender: http1(self.tls().await?).await? })
    }

    pub(crate) async fn plain_client(&self, port: u16) -> Result<HttpConnection> {
        HttpConnection::connect(port).await
    }

    /// The certificate that Envoy presents.
    pub(crate) async fn certificate(&self) -> Result<PeerCertificate> {
        let stream = self.tls().await?;
        let certificates = stream.get_ref().1.peer_certificates().context("certificates")?;
        let (_, leaf) = X509Certificate::from_der(certificates.first().context("a certificate")?)?;
        let mut uris = Vec::new();
        for extension in leaf.extensions() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() {
                let uri = |name: &GeneralName<'_>| match name {
                    GeneralName::URI(uri) => Some((*uri).to_owned()),
                    _ => None,
                };
                uris.extend(names.general_names.iter().filter_map(uri));
            }
        }
        Ok(PeerCertificate { serial: leaf.raw_serial().to_vec(), uris })
    }

    async fn tls(&self) -> Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let root = CertificateDer::from_pem_slice(self.upstream.root.as_bytes())?;
        let provider = sluice_crypto::provider(None);
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            // Certificates of the test expire within seconds, so only the issuer is verified.
            .with_custom_certificate_verifier(std::sync::Arc::new(crate::control_plane::IssuerVerifier(root)))
            .with_no_client_auth();
        let stream = TcpStream::connect(("127.0.0.1", self.upstream.listener)).await.context("connect to Envoy")?;
        let name = ServerName::try_from("tea.shop")?;
        Ok(TlsConnector::from(std::sync::Arc::new(config)).connect(name, stream).await?)
    }

    pub(crate) async fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.as_ref().and_then(Child::id).context("the agent runs")?;
        let status = Command::new("kill").arg(format!("-{name}")).arg(id.to_string()).status().await?;
        ensure!(status.success(), "signal the agent");
        Ok(())
    }

    /// Waits until the agent exits. Returns the exit code.
    pub(crate) async fn exit_code(&mut self) -> Result<Option<i32>> {
        let child = self.child.as_mut().context("the agent was started")?;
        match tokio::time::timeout(STEP_TIMEOUT, child.wait()).await {
            Ok(status) => Ok(status?.code()),
            Err(_) => bail!("the agent does not exit:\n{}", self.log()),
        }
    }

    /// Checks that neither the log nor the bootstrap holds the token or a key.
    pub(crate) fn assert_no_secrets(&self) -> Result<()> {
        let log = self.log();
        ensure!(log.contains("listening"), "there is a log:\n{log}");
        let bootstrap = std::fs::read_to_string(self.directory.path().join("etc/istio/proxy/envoy-rev.json"))?;
        for (name, text) in [("the log", &log), ("the bootstrap", &bootstrap)] {
            for secret in [self.upstream.token.as_str(), "PRIVATE KEY"] {
                ensure!(!text.contains(secret), "{name} has a secret:\n{text}");
            }
        }
        for socket in ["var/run/secrets/workload-spiffe-uds/socket", XDS_SOCKET] {
            ensure!(mode(&self.directory.path().join(socket))? == 0o600, "{socket} is open to others");
        }
        Ok(())
    }
}

fn mode(path: &Path) -> Result<u32> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o777)
}

fn put(root: &Path, path: &str, content: &str) -> Result<()> {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().context("a directory")?)?;
    Ok(std::fs::write(path, content)?)
}

/// An HTTP client with one connection.
pub(crate) struct HttpConnection {
    sender: SendRequest<Empty<Bytes>>,
}

impl HttpConnection {
    async fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        Ok(Self { sender: http1(stream).await? })
    }

    async fn send(&mut self, method: &str, path: &str) -> Result<(u16, http::HeaderMap, String)> {
        self.sender.ready().await?;
        let request = http::Request::builder().method(method).uri(path).header("host", "test").body(Empty::new())?;
        let (head, body) = self.sender.send_request(request).await?.into_parts();
        let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
        Ok((head.status.as_u16(), head.headers, body))
    }

    /// Sends a request to Envoy's listener. Returns the header `Connection` of the response.
    pub(crate) async fn get(&mut self) -> Result<Option<String>> {
        let (status, headers, body) = self.send("GET", "/").await?;
        ensure!((status, body.as_str()) == (200, "served"), "{status} {body}");
        Ok(headers.get("connection").and_then(|value| value.to_str().ok()).map(ToOwned::to_owned))
    }
}

async fn http1<S>(stream: S) -> Result<SendRequest<Empty<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
