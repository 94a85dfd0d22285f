//! `sluiced` itself as a process of the test: the real binary on free ports of the loopback or a given address.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// How to start it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of objects.
    pub config_dir: PathBuf,
    /// Address to serve proxies on; debug and metrics are on the loopback.
    pub ip: IpAddr,
    /// Further arguments.
    pub args: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// File that gets its log.
    pub log: Option<PathBuf>,
}

impl Options {
    /// On the loopback, of one directory.
    #[must_use]
    pub fn new(config_dir: &Path) -> Self {
        Self {
            config_dir: config_dir.to_owned(),
            ip: IpAddr::from([127, 0, 0, 1]),
            args: Vec::new(),
            env: Vec::new(),
            log: None,
        }
    }
}

/// A running `sluiced`. It ends when this is dropped.
pub struct Sluiced {
    child: Child,
    /// Plaintext ADS.
    pub grpc: SocketAddr,
    /// Readiness and debug.
    pub http: SocketAddr,
    /// Metrics.
    pub monitoring: SocketAddr,
    /// ADS and certificates over TLS, if the arguments open that port.
    pub secure: Option<SocketAddr>,
}

impl Sluiced {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// It ends or is not ready within 30 seconds; the message has its last log lines.
    pub async fn start(options: &Options) -> Result<Self> {
        let binary = crate::pods::network::workspace_binary("sluiced")?;
        let listen = SocketAddr::new(options.ip, 0);
        // Only the loopback may look at debug pages.
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut child = Command::new(binary)
            .arg("discovery")
            .arg("--configDir")
            .arg(&options.config_dir)
            .args(["--log_as_json", "--secureGRPCAddr=", "--httpsAddr="])
            .arg(format!("--grpcAddr={listen}"))
            .arg(format!("--httpAddr={loopback}"))
            .arg(format!("--monitoringAddr={loopback}"))
            .args(&options.args)
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
        let mut seen = Vec::new();
        let (mut grpc, mut http, mut monitoring, mut secure) = (None, None, None, None);
        let deadline = Instant::now() + Duration::from_secs(30);
        while grpc.is_none() || http.is_none() || monitoring.is_none() {
            let line = tokio::time::timeout_at(deadline.into(), log.recv()).await;
            let Ok(Some(line)) = line else {
                bail!("sluiced did not say where it listens:\n{}", seen.join("\n"));
            };
            if let Some((name, address)) = listening(&line) {
                match name.as_str() {
                    "grpc" => grpc = Some(address),
                    "http" => http = Some(address),
                    "secure grpc" => secure = Some(address),
                    "monitoring" => monitoring = Some(address),
                    _ => {}
                }
            }
            seen.push(line);
        }
        let (Some(grpc), Some(http), Some(monitoring)) = (grpc, http, monitoring) else {
            bail!("sluiced did not say where it listens");
        };
        let file = options.log.clone();
        tokio::spawn(async move {
            let mut file = file.and_then(|path| std::fs::File::create(path).ok());
            let write = |file: &mut Option<std::fs::File>, line: &str| {
                if let Some(file) = file {
                    let _ = std::io::Write::write_all(file, format!("{line}\n").as_bytes());
                }
            };
            for line in seen {
                write(&mut file, &line);
            }
            while let Some(line) = log.recv().await {
                write(&mut file, &line);
            }
        });
        let mut server = Self { child, grpc, http, monitoring, secure };
        while !server.get("/ready").await.is_ok_and(|(status, _)| status == 200) {
            if let Some(status) = server.child.try_wait().context("look after sluiced")? {
                bail!("sluiced ended with {status}");
            }
            if Instant::now() > deadline {
                bail!("sluiced is not ready after 30 seconds");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(server)
    }

    /// GET of a path on the HTTP port: status and body.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        get(self.http, path).await
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Resident memory, in KiB.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident_kib(&self) -> Result<u64> {
        let pid = self.pid().context("the server runs")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("find the memory")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Asks it to stop (SIGTERM) and waits for its exit code.
    ///
    /// # Errors
    /// It does not stop within `limit`.
    pub async fn stop(mut self, limit: Duration) -> Result<Option<i32>> {
        let pid = self.child.id().context("sluiced runs")?;
        Command::new("kill").arg(pid.to_string()).status().await.context("signal sluiced")?;
        let status = tokio::time::timeout(limit, self.child.wait()).await.context("wait for sluiced to stop")??;
        Ok(status.code())
    }
}

/// GET of a path: status and body.
///
/// # Errors
/// The server does not answer.
pub async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::get(path).header("host", address.to_string()).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.with_context(|| format!("get {path}"))?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.with_context(|| format!("read {path}"))?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
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

/// The server's name and address, if the log line says that one is listening.
fn listening(line: &str) -> Option<(String, SocketAddr)> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    // Fields stand beside the message or in an object of their own, as the formatter likes.
    let field = |name: &str| line[name].as_str().or_else(|| line["fields"][name].as_str()).map(ToOwned::to_owned);
    if !["message", "msg"].iter().any(|name| field(name).is_some_and(|text| text == "listening")) {
        return None;
    }
    let name = field("server").or_else(|| field("name"))?;
    Some((name, field("address")?.parse().ok()?))
}
