//! The same bytes through bare sockets: no server on this machine can be faster.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::plot::short;
use crate::process::Process;

/// The result of one transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loopback {
    /// From the first write until the last reader has everything, in milliseconds.
    pub(crate) last_ms: f64,
    /// CPU time of writing and reading together.
    pub(crate) cpu_seconds: f64,
}

/// Sends that many bytes to each of that many readers.
pub(crate) async fn measure(bytes: usize, readers: usize) -> Result<Loopback> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen")?;
    let address = listener.local_addr()?;
    let mut pairs = Vec::new();
    for _ in 0..readers {
        let (reader, writer) = tokio::join!(TcpStream::connect(address), listener.accept());
        pairs.push((reader.context("connect")?, writer.context("accept")?.0));
    }
    let content: Arc<[u8]> = vec![7; bytes].into();
    let own = Process::new(std::process::id())?;
    let before = own.cpu()?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (mut reader, mut writer) in pairs {
        let content = content.clone();
        writer.set_nodelay(true)?;
        tasks.spawn(async move {
            writer.write_all(&content).await?;
            // Kept open: closing is not measured.
            std::io::Result::Ok((Instant::now(), Some(writer)))
        });
        tasks.spawn(async move {
            let mut buffer = vec![0; 64 << 10];
            let mut left = bytes;
            while left > 0 {
                let read = reader.read(&mut buffer).await?;
                if read == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                left -= read.min(left);
            }
            Ok((Instant::now(), None))
        });
    }
    let mut last = start;
    let mut writers = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (at, writer) = done?.context("send bytes")?;
        last = last.max(at);
        writers.extend(writer);
    }
    let last_ms = last.duration_since(start).as_secs_f64() * 1000.0;
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
