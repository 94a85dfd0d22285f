//! Receives traces over HTTP and drops them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A receiver on a free port of the loopback. It ends when this is dropped.
pub(super) struct TraceSink {
    pub(super) address: SocketAddr,
    received: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl TraceSink {
    pub(super) async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen for traces")?;
        let (address, received) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
        let counter = received.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counter = counter.clone();
                tokio::spawn(async move {
                    // The exporter opens another connection after an error.
                    let _ = answer(stream, &counter).await;
                });
            }
        });
        Ok(Self { address, received, task })
    }

    /// Requests so far.
    pub(super) fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for TraceSink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers each request of a connection. The exporter states the length of each body.
async fn answer(stream: TcpStream, counter: &AtomicUsize) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        counter.fetch_add(1, Ordering::Relaxed);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}
