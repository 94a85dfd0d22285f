//! A process that reads commands as JSON lines and answers each with a JSON line. The field `id` connects them.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

/// Timeout of the start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

type PendingReplies = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>>;

/// A running process. It ends when this is dropped.
pub(super) struct CommandProcess {
    _child: Child,
    stdin: tokio::sync::Mutex<ChildStdin>,
    pending: PendingReplies,
    next: AtomicU64,
}

impl CommandProcess {
    /// Starts `command` and waits until it is ready: until it answers with id 0.
    ///
    /// # Errors
    /// It does not start, or is not ready in time.
    pub(super) async fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let stdin = child.stdin.take().context("take the application's input")?;
        let stdout = child.stdout.take().context("take the application's output")?;
        let pending = PendingReplies::default();
        let is_ready = expect(&pending, 0);
        let inbox = pending.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let Ok(reply) = serde_json::from_str::<Value>(&line) else { continue };
                let sender = reply["id"].as_u64().and_then(|id| lock(&inbox).remove(&id));
                if let Some(sender) = sender {
                    let _ = sender.send(reply);
                }
            }
            // Commands without a reply fail.
            lock(&inbox).clear();
        });
        tokio::time::timeout(START_TIMEOUT, is_ready)
            .await
            .context("wait for the application")?
            .context("the application ended before it was ready")?;
        Ok(Self { _child: child, stdin: tokio::sync::Mutex::new(stdin), pending, next: AtomicU64::new(1) })
    }

    /// Sends a command, an object, and waits for the reply.
    ///
    /// # Errors
    /// The process has ended, or the reply has another form.
    pub(super) async fn run<R: DeserializeOwned>(&self, command: &impl Serialize) -> Result<R> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut command = serde_json::to_value(command).context("encode the command")?;
        command["id"] = id.into();
        let reply = expect(&self.pending, id);
        self.stdin
            .lock()
            .await
            .write_all(format!("{command}\n").as_bytes())
            .await
            .context("write to the application")?;
        let reply = reply.await.context("the application ended")?;
        serde_json::from_value(reply).context("read the reply of the application")
    }
}

fn expect(pending: &PendingReplies, id: u64) -> oneshot::Receiver<Value> {
    let (sender, reply) = oneshot::channel();
    lock(pending).insert(id, sender);
    reply
}

fn lock(pending: &PendingReplies) -> std::sync::MutexGuard<'_, BTreeMap<u64, oneshot::Sender<Value>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}
