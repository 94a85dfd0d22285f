//! `sluiced` as a child process of the test: the real binary, on free ports of the loopback or a given address.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::memory::MemoryWatch;

/// Timeout of a response: some pages have as much as they are asked for.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of the start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of objects.
    pub config_dir: PathBuf,
    /// The kubeconfig of a cluster to read instead of the directory.
    pub kubeconfig: Option<PathBuf>,
    /// The recording to replay instead of the directory.
    pub replay_file: Option<PathBuf>,
    /// Address to serve proxies on. Debug pages and metrics are on the loopback.
    pub ip: IpAddr,
    /// Further arguments.
    pub args: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// File for its log.
    pub log: Option<PathBuf>,
}

impl Options {
    /// Options of a server on the loopback with the objects of one directory.
    #[must_use]
    pub fn new(config_dir: &Path) -> Self {
        Self {
            config_dir: config_dir.to_owned(),
            kubeconfig: None,
            replay_file: None,
            ip: IpAddr::from([127, 0, 0, 1]),
            args: Vec::new(),
            env: Vec::new(),
            log: None,
        }
    }
}

/// A running `sluiced`. It ends when this is dropped.
pub struct Sluiced {
    process: Mutex<Option<Process>>,
    options: Options,
    /// Plaintext ADS.
    pub grpc: SocketAddr,
    /// Readiness and debug.
    pub http: SocketAddr,
    /// Metrics.
    pub monitoring: SocketAddr,
    /// ADS and certificates over TLS, if the arguments open that port.
    pub secure: Option<SocketAddr>,
    /// Webhooks over TLS, if the arguments open that port.
    pub https: Option<SocketAddr>,
    /// Log levels.
    pub controlz: SocketAddr,
}

/// The process, and the task that writes its log.
struct Process {
    child: Child,
    log_writer: JoinHandle<()>,
}

impl Sluiced {
    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// The process ends, or is not ready within 30 seconds. The message has its last log lines.
    pub async fn start(options: &Options) -> Result<Self> {
        if let Some(log) = &options.log {
            std::fs::File::create(log).context("make the log")?;
        }
        let (process, listening) = launch(options, &[]).await?;
        let address = |name: &str| listening.get(name).copied();
        let server = Self {
            process: Mutex::new(Some(process)),
            options: options.clone(),
            grpc: address("grpc").context("sluiced does not serve xDS")?,
            http: address("http").context("sluiced does not serve debug pages")?,
            monitoring: address("monitoring").context("sluiced does not serve metrics")?,
            secure: address("secure grpc"),
            https: address("https"),
            controlz: address("controlz").context("sluiced does not serve ControlZ")?,
        };
        server.ready().await?;
        Ok(server)
    }

    /// Kills the process (SIGKILL).
    ///
    /// # Errors
    /// The process does not run.
    pub async fn kill(&self) -> Result<()> {
        let mut process = self.take().context("sluiced runs")?;
        process.child.kill().await.context("kill sluiced")
    }

    /// Starts the server again after [`Sluiced::kill`], on the same addresses.
    ///
    /// # Errors
    /// As [`Sluiced::start`].
    pub async fn start_again(&self) -> Result<()> {
        let addresses = [
            ("grpcAddr", Some(self.grpc)),
            ("httpAddr", Some(self.http)),
            ("monitoringAddr", Some(self.monitoring)),
            ("secureGRPCAddr", self.secure),
            ("httpsAddr", self.https),
        ];
        let flags = addresses.into_iter().filter_map(|(flag, address)| Some(format!("--{flag}={}", address?)));
        let (process, _) = launch(&self.options, &flags.collect::<Vec<_>>()).await?;
        *self.process() = Some(process);
        self.ready().await
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Process> {
        self.process().take()
    }

    async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.get("/ready").await.is_ok_and(|(status, _)| status == 200) {
            if let Some(process) = &mut *self.process()
                && let Some(status) = process.child.try_wait().context("read the exit status of sluiced")?
            {
                bail!("sluiced ended with {status}");
            }
            if Instant::now() > deadline {
                bail!("sluiced is not ready after {START_TIMEOUT:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// GET of a path on the HTTP port: status and body.
    ///
    /// # Errors
    /// The server does not respond.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        get(self.http, path).await
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().and_then(|process| process.child.id())
    }

    /// Starts to watch the memory of the process.
    ///
    /// # Errors
    /// As [`MemoryWatch::start`].
    pub fn watch_memory(&self) -> Result<MemoryWatch> {
        MemoryWatch::start(self.pid().context("the server runs")?)
    }

    /// Stops the process (SIGTERM) and returns its exit code. The log is complete then.
    ///
    /// # Errors
    /// The process does not stop within `limit`.
    pub async fn stop(self, limit: Duration) -> Result<Option<i32>> {
        let Process { mut child, log_writer } = self.take().context("sluiced runs")?;
        let pid = child.id().context("sluiced runs")?;
        Command::new("kill").arg(pid.to_string()).status().await.context("signal sluiced")?;
        let status = tokio::time::timeout(limit, child.wait()).await.context("wait for sluiced to stop")??;
        // A process that outlives sluiced can keep its output open.
        tokio::time::timeout(limit, log_writer).await.context("wait for the end of sluiced's output")??;
        Ok(status.code())
    }
}

/// Starts the process with further arguments. Returns it and its addresses by listener name.
async fn launch(options: &Options, arguments: &[String]) -> Result<(Process, BTreeMap<String, SocketAddr>)> {
    let binary = crate::binary::workspace_binary("sluiced")?;
    let listen = SocketAddr::new(options.ip, 0);
    // Debug pages are served on the loopback only.
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut child = Command::new(binary)
        .arg("discovery")
        .args(match (&options.replay_file, &options.kubeconfig) {
            (Some(recording), _) => [OsStr::new("--replayFile"), recording.as_os_str()],
            (None, Some(kubeconfig)) => [OsStr::new("--kubeconfig"), kubeconfig.as_os_str()],
            (None, None) => [OsStr::new("--configDir"), options.config_dir.as_os_str()],
        })
        .args(["--log_as_json", "--secureGRPCAddr=", "--httpsAddr=", "--ctrlz_port=0"])
        .arg(format!("--grpcAddr={listen}"))
        .arg(format!("--httpAddr={loopback}"))
        .arg(format!("--monitoringAddr={loopback}"))
        .args(&options.args)
        .args(arguments)
        .envs(options.env.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start sluiced")?;
    let (lines, mut log) = mpsc::unbounded_channel::<String>();
    let stdout = child.stdout.take().context("take sluiced's output")?;
    let stderr = child.stderr.take().context("take sluiced's errors")?;
    forward(BufReader::new(stdout), lines.clone());
    forward(BufReader::new(stderr), lines);
    let mut expected = vec!["grpc", "http", "monitoring", "controlz"];
    for (flag, name) in [("--secureGRPCAddr=", "secure grpc"), ("--httpsAddr=", "https")] {
        if options.args.iter().any(|argument| argument.strip_prefix(flag).is_some_and(|it| !it.is_empty())) {
            expected.push(name);
        }
    }
    let mut lines_so_far = Vec::new();
    let mut addresses = BTreeMap::new();
    let deadline = Instant::now() + START_TIMEOUT;
    while !expected.iter().all(|name| addresses.contains_key(*name)) {
        let line = tokio::time::timeout_at(deadline.into(), log.recv()).await;
        let Ok(Some(line)) = line else {
            // If the process has ended, its exit status gives the reason.
            let ended = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
            let status = match ended {
                Ok(Ok(status)) => status.to_string(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it is running".to_owned(),
            };
            bail!("sluiced did not log its addresses ({status}):\n{}", lines_so_far.join("\n"));
        };
        addresses.extend(listening(&line));
        lines_so_far.push(line);
    }
    let file = options.log.clone();
    let log_writer = tokio::spawn(async move {
        let open = |path| std::fs::OpenOptions::new().append(true).create(true).open(path).ok();
        let mut file = file.and_then(open);
        let write = |file: &mut Option<std::fs::File>, line: &str| {
            if let Some(file) = file {
                let _ = std::io::Write::write_all(file, format!("{line}\n").as_bytes());
            }
        };
        for line in lines_so_far {
            write(&mut file, &line);
        }
        while let Some(line) = log.recv().await {
            write(&mut file, &line);
        }
    });
    Ok((Process { child, log_writer }, addresses))
}

/// GET of a path: status and body.
///
/// # Errors
/// The server does not respond.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let response = request(address, "GET", path, &[], "").await?;
    Ok((response.status, response.body))
}

/// The response to a request.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: http::HeaderMap,
    /// The body.
    pub body: String,
}

impl HttpResponse {
    /// The text of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Sends one request, and does not follow redirects.
///
/// # Errors
/// The server does not respond in time.
pub async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<HttpResponse> {
    let sent = send(address, method, path, headers, body);
    tokio::time::timeout(RESPONSE_TIMEOUT, sent)
        .await
        .with_context(|| format!("{method} {path}: no response in time"))?
}

async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<HttpResponse> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::builder().method(method).uri(path).header("host", address.to_string());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
    let response = sender.send_request(request).await.with_context(|| format!("{method} {path}"))?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.with_context(|| format!("read {path}"))?.to_bytes();
    Ok(HttpResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

fn forward<R: tokio::io::AsyncRead + Send + Unpin + 'static>(
    reader: BufReader<R>,
    lines: mpsc::UnboundedSender<String>,
) {
    tokio::spawn(async move {
        let mut reader = reader.lines();
        while let Ok(Some(line)) = reader.next_line().await {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
}

/// The name and the address of a listener, if the log line reports one.
fn listening(line: &str) -> Option<(String, SocketAddr)> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    if line["msg"] != "listening" {
        return None;
    }
    Some((line["name"].as_str()?.to_owned(), line["address"].as_str()?.parse().ok()?))
}
