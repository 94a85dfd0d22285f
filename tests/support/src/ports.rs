//! Ports for programs that have to be told theirs.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// Ports that were free a moment ago, of every address. They are below those that the kernel gives to connections: one of
/// thousands may have a free port before the program does.
///
/// # Errors
/// There are not as many.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(20_000 + (std::process::id() % 8000) as u16));
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let ports = (0..4000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed)).filter(is_free).take(N).collect::<Vec<_>>();
    ports.try_into().ok().context("as many as asked")
}
