//! A program of the cluster as a child process.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::POLL_INTERVAL;

/// Runs its arguments as a command, and kills it when the standard input ends. So the programs end with the process of the
/// test, even if that is killed.
const GUARD: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- &
program=$!
(read -r _ <&3; kill -KILL $program) 2>/dev/null &
exec 3<&-
wait $program
"#;
/// Removes a directory when the standard input ends, and the programs that use it have ended.
const REMOVER: &str = r#"read -r _; for _ in 1 2 3; do sleep 1; rm -rf "$1" && exit; done"#;
/// Lines of a log in an error message.
const TAIL_LINES: usize = 30;

/// A running program. It is killed when this is dropped.
pub(super) struct Program {
    name: &'static str,
    log: PathBuf,
    shell: Mutex<Child>,
}

impl Program {
    /// Starts a program of a directory. Its log is appended to `NAME.log` in the directory `data`.
    pub(super) fn start(programs: &Path, name: &'static str, data: &Path, arguments: &[String]) -> Result<Self> {
        let program = programs.join(name);
        if !program.exists() {
            bail!("{} is not built: run `make cluster` first", program.display());
        }
        let log = data.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).context("open a log")?;
        let shell = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .arg(program)
            .args(arguments)
            .current_dir(data)
            // They run for seconds: garbage collection would take a sixth of their CPU time.
            .env("GOGC", "400")
            .stdin(Stdio::piped())
            .stdout(output.try_clone().context("open a log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self { name, log, shell: Mutex::new(shell) })
    }

    /// Polls until the program is ready.
    pub(super) async fn wait_until(&self, what: &str, limit: Duration, is_ready: impl AsyncFn() -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if is_ready().await {
                return Ok(());
            }
            let status = self.shell.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
            if let Some(status) = status.with_context(|| format!("wait for {}", self.name))? {
                bail!("{} ended with {status}:\n{}", self.name, log_tail(&self.log));
            }
            if Instant::now() > deadline {
                bail!("{} runs for {limit:?}, but not so that {what}:\n{}", self.name, log_tail(&self.log));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        drop(shell.stdin.take());
        let _ = shell.wait();
    }
}

/// Removes a directory when the process of the test ends.
pub(super) fn remove_at_exit(directory: &Path) -> Result<()> {
    let remover = Command::new("sh")
        .args(["-c", REMOVER, "sh"])
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start the process that removes a directory")?;
    // Its standard input ends with this process.
    std::mem::forget(remover);
    Ok(())
}

/// The last lines of a log.
pub(super) fn log_tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// POST of a JSON text: status and body.
pub(super) async fn post(address: SocketAddr, path: &str, body: &Value) -> Result<(u16, String)> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::post(path)
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    let response = sender.send_request(request).await.with_context(|| format!("post {path}"))?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.with_context(|| format!("read {path}"))?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
