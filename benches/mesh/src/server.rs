//! The server under measurement: one this tool starts, or a running one.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sluice_testkit::ports::free_ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::process::Process;

/// File name of the started server's log.
const LOG: &str = ".sluiced.log";

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
    server_options: ServerOptions,
}

impl Server {
    /// A server that is already running.
    pub(crate) fn running(address: SocketAddr, pid: Option<u32>) -> Result<Self> {
        Ok(Self { address, process: pid.map(Process::new).transpose()?, started: None })
    }

    /// Starts a server on free ports. Returns it when it is ready, with the seconds until then.
    pub(crate) async fn start(server_options: &ServerOptions) -> Result<(Self, f64)> {
        let [grpc, http, monitoring] = free_ports()?.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let log_path = server_options.directory.join(LOG);
        let log = std::fs::File::create(&log_path).context("make a log file")?;
        let objects = match &server_options.source {
            ObjectSource::Directory(path) => format!("--configDir={}", path.display()),
            ObjectSource::Kubeconfig(path) => format!("--kubeconfig={}", path.display()),
        };
        let start = Instant::now();
        let mut command = Command::new(&server_options.binary);
        if server_options.virtual_hosts {
            command.env("SLUICE_VHDS", "true");
        }
        let child = command
            .arg("discovery")
            .arg(objects)
            .args(["--secureGRPCAddr=", "--httpsAddr="])
            .arg(format!("--grpcAddr={grpc}"))
            .arg(format!("--httpAddr={http}"))
            .arg(format!("--monitoringAddr={monitoring}"))
            .args(&server_options.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", server_options.binary.display()))?;
        let process = child.id().map(Process::new).transpose()?;
        let mut server =
            Self { address: grpc, process, started: Some(Started { child, server_options: server_options.clone() }) };
        loop {
            if is_ready(http).await {
                return Ok((server, start.elapsed().as_secs_f64()));
            }
            if let Some(started) = &mut server.started {
                let ended = started.child.try_wait()?;
                ensure!(ended.is_none(), "the server ended, see {}", log_path.display());
            }
            ensure!(start.elapsed() < Duration::from_secs(300), "the server is not ready after 300 s");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
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
