//! The server under measurement: one this tool starts, or a running one.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluice_testkit::ports::free_ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::process::Process;

/// A name in the certificate of a server.
pub(crate) const SERVER_NAME: &str = "istiod.istio-system.svc";

/// Directory of the authority of a server with webhooks, in its directory.
const AUTHORITY: &str = "authority";
/// Directory of the configuration of the injector, in the working directory of a server.
const INJECTION: &str = "var/lib/istio/inject";
/// The templates of the chart.
const TEMPLATES: &str = include_str!("../../../manifests/charts/sluice/files/injection.yaml");
/// The values of the chart.
const VALUES: &str = include_str!("../../../manifests/charts/sluice/values.yaml");
/// File name of the started server's log.
const LOG: &str = ".sluiced.log";
/// Lines of the log in an error.
const LAST_LINES: usize = 5;

/// How a server is started.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions {
    pub(crate) binary: PathBuf,
    pub(crate) source: ObjectSource,
    /// Directory of its log.
    pub(crate) directory: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// VHDS is enabled.
    pub(crate) virtual_hosts: bool,
    /// ODCDS is enabled.
    pub(crate) endpoints_by_locality: bool,
    pub(crate) on_demand_clusters: bool,
    /// It serves webhooks over TLS. Pods are injected by the chart's templates.
    pub(crate) webhooks: bool,
    /// It serves proxies and webhooks over TLS as well. Without `webhooks`, no pod is injected.
    pub(crate) secure: bool,
    /// The file that its log is written to; one in `directory` if none.
    pub(crate) log: Option<PathBuf>,
    /// Further variables of its environment.
    pub(crate) environment: Vec<(String, OsString)>,
}

impl ServerOptions {
    /// The file with the root of its server certificate, if it serves webhooks.
    pub(crate) fn root_certificate(&self) -> PathBuf {
        self.directory.join(AUTHORITY).join("root-cert.pem")
    }

    /// The file that its log is appended to.
    fn log(&self) -> PathBuf {
        self.log.clone().unwrap_or_else(|| self.directory.join(LOG))
    }
}

/// Where a server reads objects.
#[derive(Clone, Debug)]
pub(crate) enum ObjectSource {
    Directory(PathBuf),
    Kubeconfig(PathBuf),
}

/// A server and its process, if that is known.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) process: Option<Process>,
    started: Option<Started>,
}

struct Started {
    child: Child,
    /// Its HTTP port.
    http: SocketAddr,
    monitoring: SocketAddr,
    /// Its port for webhooks, if it serves them.
    https: Option<SocketAddr>,
    /// Its port for proxies over TLS, if it serves them.
    secure: Option<SocketAddr>,
    was_ready: bool,
    server_options: ServerOptions,
}

impl Server {
    /// A server that is already running.
    pub(crate) fn running(address: SocketAddr, pid: Option<u32>) -> Result<Self> {
        Ok(Self { address, process: pid.map(Process::new).transpose()?, started: None })
    }

    /// Starts a server on free ports. Returns it when it is ready, with the seconds until then.
    pub(crate) async fn start(server_options: &ServerOptions) -> Result<(Self, f64)> {
        let start = Instant::now();
        let mut server = Self::spawn(server_options)?;
        loop {
            let started = server.started.as_mut().context("the server was started")?;
            if is_ready(started.http).await {
                started.was_ready = true;
                return Ok((server, start.elapsed().as_secs_f64()));
            }
            let ended = started.child.try_wait()?;
            ensure!(ended.is_none(), "the server ended, see {}", server_options.log().display());
            ensure!(start.elapsed() < Duration::from_secs(300), "the server is not ready after 300 s");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Starts a server on free ports, and does not wait until it is ready.
    pub(crate) fn spawn(server_options: &ServerOptions) -> Result<Self> {
        let [grpc, http, monitoring, https, secure] =
            free_ports()?.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let log_path = server_options.log();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&log_path);
        let log = log.with_context(|| format!("open {} as the log file", log_path.display()))?;
        let objects = match &server_options.source {
            ObjectSource::Directory(path) => format!("--configDir={}", path.display()),
            ObjectSource::Kubeconfig(path) => format!("--kubeconfig={}", path.display()),
        };
        let mut command = Command::new(std::path::absolute(&server_options.binary)?);
        // Gateways authenticate by the certificates that the loopback forwards.
        command.env("TRUSTED_GATEWAY_CIDR", "127.0.0.0/8");
        if server_options.virtual_hosts {
            command.env("SLUICE_VHDS", "true");
        }
        if server_options.endpoints_by_locality {
            command.env("SLUICE_LEDS", "true");
        }
        if server_options.on_demand_clusters {
            command.env("SLUICE_ON_DEMAND_CLUSTERS", "true");
        }
        let https = (server_options.webhooks || server_options.secure).then_some(https);
        if server_options.webhooks {
            let injection = server_options.directory.join(INJECTION);
            std::fs::create_dir_all(&injection).context("make the directory of the injector")?;
            for (name, content) in injection_files()? {
                std::fs::write(injection.join(name), content).context("write the configuration of the injector")?;
            }
            command.current_dir(&server_options.directory);
            command.env("ROOT_CA_DIR", server_options.directory.join(AUTHORITY)).arg("--createCA");
        }
        let secure = server_options.secure.then_some(secure);
        let text = |address: Option<SocketAddr>| address.map(|address| address.to_string()).unwrap_or_default();
        let child = command
            .arg("discovery")
            .arg(objects)
            .arg("--ctrlz_address=")
            .arg(format!("--secureGRPCAddr={}", text(secure)))
            .arg(format!("--httpsAddr={}", text(https)))
            .arg(format!("--grpcAddr={grpc}"))
            .arg(format!("--httpAddr={http}"))
            .arg(format!("--monitoringAddr={monitoring}"))
            .args(&server_options.arguments)
            .envs(server_options.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", server_options.binary.display()))?;
        let process = child.id().map(Process::new).transpose()?;
        let server_options = server_options.clone();
        let started = Started { child, http, monitoring, https, secure, was_ready: false, server_options };
        Ok(Self { address: grpc, process, started: Some(started) })
    }

    /// Sends SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// The server does not end in time, or not with exit code 0. Before it is ready, the signal itself may end it.
    pub(crate) async fn terminate(&mut self, limit: Duration) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let started = self.started.as_mut().context("the server was started here")?;
        let ended = tokio::time::timeout(limit, started.child.wait()).await;
        let status = ended.with_context(|| format!("the server did not end within {} s", limit.as_secs()))??;
        let by_signal = !started.was_ready && status.signal() == Some(Signal::SIGTERM as i32);
        ensure!(status.success() || by_signal, "a terminated server ended with {status}");
        Ok(())
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// It does not end in time, or not with the exit code of a failure.
    pub(crate) async fn wait_for_failure(&mut self, limit: Duration) -> Result<()> {
        let started = self.started.as_mut().context("the server was started here")?;
        let ended = tokio::time::timeout(limit, started.child.wait()).await;
        let status = ended.with_context(|| format!("the server did not end within {} s", limit.as_secs()))??;
        ensure!(status.code() == Some(1), "the server ended with {status}, and not with exit code 1");
        Ok(())
    }

    /// Its HTTP port.
    ///
    /// # Errors
    /// It was not started here.
    pub(crate) fn http(&self) -> Result<SocketAddr> {
        self.started.as_ref().map(|started| started.http).context("the server was started here")
    }

    /// Its ports without TLS: for proxies, HTTP and monitoring.
    ///
    /// # Errors
    /// It was not started here.
    pub(crate) fn plain_ports(&self) -> Result<[SocketAddr; 3]> {
        let started = self.started.as_ref().context("the server was started here")?;
        Ok([self.address, started.http, started.monitoring])
    }

    /// Its port for webhooks.
    ///
    /// # Errors
    /// It was not started with that port.
    pub(crate) fn webhooks(&self) -> Result<SocketAddr> {
        self.started.as_ref().and_then(|started| started.https).context("the server serves webhooks")
    }

    /// Its port for proxies over TLS.
    ///
    /// # Errors
    /// It was not started with that port.
    pub(crate) fn secure(&self) -> Result<SocketAddr> {
        self.started.as_ref().and_then(|started| started.secure).context("the server serves proxies over TLS")
    }

    /// The last lines of its log.
    pub(crate) fn last_log(&self) -> String {
        // A given log, such as a device that is always full, cannot be read.
        let started = self.started.as_ref().filter(|started| started.server_options.log.is_none());
        let log = started.and_then(|started| std::fs::read_to_string(started.server_options.log()).ok());
        let log = log.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let started = self.started.as_ref().context("the server was started here")?;
        let pid = started.child.id().context("the server runs")?;
        kill(Pid::from_raw(i32::try_from(pid)?), signal).with_context(|| format!("send {signal}"))
    }

    /// Stops the server and starts it again on other ports.
    pub(crate) async fn restart(&mut self) -> Result<f64> {
        let mut started = self.started.take().context("a restart needs --sluiced")?;
        started.child.kill().await?;
        let (server, seconds) = Self::start(&started.server_options).await?;
        *self = server;
        Ok(seconds)
    }
}

/// The configuration of the injector as the chart's ConfigMap has it with default values.
fn injection_files() -> Result<[(&'static str, String); 2]> {
    let mut config: Value = serde_yaml_ng::from_str(TEMPLATES).context("read the templates of the chart")?;
    let mut values: Value = serde_yaml_ng::from_str(VALUES).context("read the values of the chart")?;
    let mut values = values["defaults"].take();
    config["policy"] = values["global"]["proxy"]["autoInject"].clone();
    values["global"]["istioNamespace"] = "istio-system".into();
    Ok([("config", config.to_string()), ("values", values.to_string())])
}

async fn is_ready(http: SocketAddr) -> bool {
    let request = async {
        let mut stream = TcpStream::connect(http).await?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: ready\r\nConnection: close\r\n\r\n").await?;
        let mut response = [0; 12];
        stream.read_exact(&mut response).await?;
        std::io::Result::Ok(response.ends_with(b" 200"))
    };
    request.await.unwrap_or(false)
}
