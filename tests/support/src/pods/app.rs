//! The application in a pod: started by the test, told to send requests over its standard input.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex, oneshot};

/// One HTTP request to send from inside the pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Echoed in the reply.
    pub id: u64,
    /// Where to connect.
    pub address: SocketAddr,
    /// `Host` header.
    pub host: String,
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Further headers.
    pub headers: BTreeMap<String, String>,
    /// Body, may be empty.
    pub body: String,
    /// Give up after so many milliseconds.
    pub timeout_ms: u64,
}

impl Call {
    /// `GET /` of a host at an address, five seconds at most.
    #[must_use]
    pub fn get(address: SocketAddr, host: &str) -> Self {
        Self {
            id: 0,
            address,
            host: host.to_owned(),
            method: "GET".to_owned(),
            path: "/".to_owned(),
            headers: BTreeMap::new(),
            body: String::new(),
            timeout_ms: 5000,
        }
    }

    /// With another path.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// With one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.to_owned(), value.to_owned());
        self
    }
}

/// An HTTP answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Headers, the last of a name.
    pub headers: BTreeMap<String, String>,
    /// Body as text.
    pub body: String,
}

impl Answer {
    /// `name version` of the application that answered, empty if the body is not from one.
    #[must_use]
    pub fn who(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.body).unwrap_or_default();
        match (body["name"].as_str(), body["version"].as_str()) {
            (Some(name), Some(version)) => format!("{name} {version}"),
            _ => String::new(),
        }
    }
}

/// What came of a call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// Of the call; 0 is the application saying that it is ready.
    pub id: u64,
    /// From the start of the connect to the end of the body.
    pub elapsed_us: u64,
    /// The answer, or why there is none.
    pub outcome: Result<Answer, String>,
}

impl Reply {
    /// The first line of an application: its listeners are open.
    #[must_use]
    pub fn ready() -> Self {
        Self { id: 0, elapsed_us: 0, outcome: Err("ready".to_owned()) }
    }
}

type Waiting = Arc<std::sync::Mutex<BTreeMap<u64, oneshot::Sender<Reply>>>>;

/// A running application. It ends when this is dropped.
pub struct App {
    _child: Child,
    stdin: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
}

impl App {
    /// Starts `command` (a `sluice-testapp`, perhaps inside a pod) and waits until it listens.
    ///
    /// # Errors
    /// It does not start, or is not ready within ten seconds.
    pub async fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let stdin = child.stdin.take().context("take the application's input")?;
        let stdout = child.stdout.take().context("take the application's output")?;
        let waiting = Waiting::default();
        let (ready, is_ready) = oneshot::channel();
        waiting.lock().map_err(|_| anyhow!("poisoned"))?.insert(0, ready);
        let inbox = waiting.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(reply) = serde_json::from_str::<Reply>(&line) else { continue };
                let waiter = inbox.lock().ok().and_then(|mut waiting| waiting.remove(&reply.id));
                if let Some(waiter) = waiter {
                    let _ = waiter.send(reply);
                }
            }
        });
        tokio::time::timeout(Duration::from_secs(10), is_ready)
            .await
            .context("wait for the application")?
            .context("the application ended before it was ready")?;
        Ok(Self { _child: child, stdin: Mutex::new(stdin), waiting, next: AtomicU64::new(1) })
    }

    /// Sends one request from inside the pod.
    ///
    /// # Errors
    /// The application is gone; a request that fails is an `Err` in the reply's outcome.
    pub async fn call(&self, mut call: Call) -> Result<Reply> {
        call.id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        self.waiting.lock().map_err(|_| anyhow!("poisoned"))?.insert(call.id, sender);
        let mut line = serde_json::to_vec(&call).context("encode the call")?;
        line.push(b'\n');
        self.stdin.lock().await.write_all(&line).await.context("tell the application")?;
        reply.await.context("the application is gone")
    }
}
