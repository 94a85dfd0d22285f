//! The same bytes through bare sockets: no server on this machine can be faster.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::fleet::{ProxyPriority, milliseconds, proxy_runtime};
use crate::plot::short;
use crate::process::Process;
use crate::socket::{Clock, TimestampedSocket};

/// The result of one transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loopback {
    /// From the first write until the kernel has received everything for the last reader, in milliseconds.
    pub(crate) last_ms: f64,
    /// CPU time of writing and reading together.
    pub(crate) cpu_seconds: f64,
}

/// Sends that many bytes to each of that many readers.
pub(crate) async fn measure(bytes: usize, readers: usize) -> Result<Loopback> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen")?;
    let address = listener.local_addr()?;
    let (clock, runtime) = (Clock::new(), proxy_runtime(ProxyPriority::Idle)?);
    let mut pairs = Vec::new();
    for _ in 0..readers {
        let (reader, writer) = tokio::join!(TimestampedSocket::connect(address, clock), listener.accept());
        pairs.push((reader.context("connect")?, writer.context("accept")?.0));
    }
    let content: Arc<[u8]> = vec![7; bytes].into();
    let own = Process::new(std::process::id())?;
    let before = own.cpu()?;
    let start = clock.now();
    let (mut writers, mut readers) = (JoinSet::new(), JoinSet::new());
    for (mut reader, mut writer) in pairs {
        let content = content.clone();
        writer.set_nodelay(true)?;
        writers.spawn(async move {
            writer.write_all(&content).await?;
            // Kept open: closing is not measured.
            std::io::Result::Ok(writer)
        });
        let read = async move {
            let mut buffer = vec![0; 64 << 10];
            let mut left = bytes;
            while left > 0 {
                let read = reader.read(&mut buffer).await?;
                if read == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                left -= read.min(left);
            }
            std::io::Result::Ok(reader.last_arrival().get())
        };
        readers.spawn_on(read, runtime.handle());
    }
    let mut open = Vec::new();
    while let Some(written) = writers.join_next().await {
        open.push(written?.context("send bytes")?);
    }
    let mut last = start;
    while let Some(arrival) = readers.join_next().await {
        last = last.max(arrival?.context("receive bytes")?);
    }
    let last_ms = milliseconds(last - start);
    Ok(Loopback { last_ms, cpu_seconds: own.cpu()? - before })
}

/// Measures several times, and prints the results.
pub(crate) async fn run(bytes: usize, readers: usize, repeat: usize) -> Result<()> {
    println!("| bytes each | readers | last ms | CPU s of both ends |\n|---|---|---|---|");
    for _ in 0..repeat {
        let Loopback { last_ms, cpu_seconds } = measure(bytes, readers).await?;
        println!("| {bytes} | {readers} | {} | {} |", short(last_ms), short(cpu_seconds));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_reader_receives_all_bytes() -> Result<()> {
        let measured = measure(300_000, 7).await?;
        assert!(measured.last_ms > 0.0 && measured.cpu_seconds > 0.0);
        Ok(())
    }
}
