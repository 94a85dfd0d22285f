//! Free ports for programs that need port numbers as arguments.

use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result};

/// Ports that are free on every address, and that no other process gets from this function while this one runs. They
/// are below the kernel's range of ephemeral ports: otherwise one of thousands of connections could get a port before
/// the program listens on it.
///
/// # Errors
/// There are not enough free ports.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(20_000 + (std::process::id() % 8000) as u16));
    let is_free = |port: &u16| reserve(*port) && TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    let ports = (0..4000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed)).filter(is_free).take(N).collect::<Vec<_>>();
    ports.try_into().ok().context("not enough free ports")
}

/// Reserves a port for this process by binding an abstract socket named after it. Returns false if another process has
/// reserved the port.
fn reserve(port: u16) -> bool {
    static RESERVATIONS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let name = SocketAddr::from_abstract_name(format!("sluice-testkit-port-{port}"));
    let Ok(reservation) = name.and_then(|name| UnixListener::bind_addr(&name)) else { return false };
    RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_returned_once() {
        let [first, second] = free_ports().expect("two ports");
        assert_ne!(first, second);
        assert!(!reserve(first) && !reserve(second), "a port is reserved before the program listens");
    }
}
