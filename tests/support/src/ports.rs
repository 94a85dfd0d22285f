//! Ports for programs that have to be told theirs.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result};

/// Ports that were free a moment ago, of every address, and that no other process is given as long as this one lives.
/// They are below those that the kernel gives to connections: one of thousands may have a free port before the program
/// does.
///
/// # Errors
/// There are not as many.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(20_000 + (std::process::id() % 8000) as u16));
    let is_free = |port: &u16| claim(*port) && TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let ports = (0..4000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed)).filter(is_free).take(N).collect::<Vec<_>>();
    ports.try_into().ok().context("as many as asked")
}

/// Keeps a name that stands for the port; false if another process has it.
fn claim(port: u16) -> bool {
    static CLAIMS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let name = SocketAddr::from_abstract_name(format!("sluice-testkit-port-{port}"));
    let Ok(claimed) = name.and_then(|name| UnixListener::bind_addr(&name)) else { return false };
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).push(claimed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_out_once() {
        let [first, second] = free_ports().expect("two ports");
        assert_ne!(first, second);
        assert!(!claim(first) && !claim(second), "before the program listens");
    }
}
