//! The listeners of the process.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use sluice_config::{ListenAddress, Ports};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tracing::info;

use super::AppError;

/// Bound listeners; `None` is a disabled port.
pub(super) struct Listeners {
    pub(super) http: Option<TcpListener>,
    pub(super) grpc: Option<TcpListener>,
    pub(super) secure_grpc: Option<TcpListener>,
    pub(super) monitoring: Option<TcpListener>,
}

impl Listeners {
    /// Binds every configured port.
    ///
    /// # Errors
    /// The first address that cannot be listened on.
    pub(super) async fn bind(ports: &Ports) -> Result<Self, AppError> {
        Ok(Self {
            http: bind("http", "--httpAddr", ports.http.as_ref()).await?,
            grpc: bind("grpc", "--grpcAddr", ports.grpc.as_ref()).await?,
            secure_grpc: bind("secure grpc", "--secureGRPCAddr", ports.secure_grpc.as_ref()).await?,
            monitoring: bind("monitoring", "--monitoringAddr", ports.monitoring.as_ref()).await?,
        })
    }
}

async fn bind(
    name: &'static str,
    flag: &'static str,
    address: Option<&ListenAddress>,
) -> Result<Option<TcpListener>, AppError> {
    let Some(address) = address else { return Ok(None) };
    let fail = |error| AppError::Listen { flag, address: address.to_string(), error };
    let listener = listen(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    // Tests and scripts read the port from this line.
    info!(name, address = %bound, "listening");
    Ok(Some(listener))
}

/// Listens on an address. All interfaces are IPv6 and IPv4 where there is IPv6, else IPv4.
///
/// # Errors
/// The operating system refuses, or the name has no address.
async fn listen(address: &ListenAddress) -> io::Result<TcpListener> {
    if address.host().is_empty() {
        let wildcard = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
        return match bind_socket(wildcard) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                bind_socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
            }
            bound => bound,
        };
    }
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for found in lookup_host((address.host(), address.port())).await? {
        match bind_socket(found) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Length of the accept queue: all proxies of a mesh can connect at once. The kernel limits it to `net.core.somaxconn`;
/// further connections are retried by their clients after a second.
const BACKLOG: u32 = 65_535;

fn bind_socket(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As in std: a restarted server can bind the port of its predecessor.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn more_connect_at_once_than_std_lets_wait() {
        let address = ListenAddress::parse("127.0.0.1:0").expect("an address").expect("one");
        let listener = listen(&address).await.expect("bound");
        let to = listener.local_addr().expect("an address");
        let waiting =
            (0..200).map(|_| std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_millis(500)));
        assert_eq!(waiting.filter_map(Result::ok).count(), 200, "no connection is accepted, and all wait");
    }
}
