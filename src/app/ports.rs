//! The listeners of the process.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use sluice_config::{Config, ListenAddress};
use sluice_listen::{ListenLimits, ListenMetrics, Listener, PortOptions};
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tracing::info;

use super::{AppError, open_files};

/// The shares of the open files that a gRPC port and an HTTP port use at most.
const GRPC_PORT_FILES: (usize, usize) = (3, 8);
const HTTP_PORT_FILES: (usize, usize) = (1, 16);

/// Bound listeners; `None` is a disabled port.
pub(super) struct Listeners {
    pub(super) http: Option<Listener>,
    pub(super) grpc: Option<Listener>,
    pub(super) secure_grpc: Option<Listener>,
    pub(super) monitoring: Option<Listener>,
}

impl Listeners {
    /// Binds every configured port.
    ///
    /// # Errors
    /// The first address that cannot be listened on.
    pub(super) async fn bind(config: &Config, metrics: &ListenMetrics) -> Result<Self, AppError> {
        let open_files = open_files::raise_limit();
        let options = |name, limits: ListenLimits, share| PortOptions {
            name,
            limits: limits.within(open_files, share),
            unlimited_addresses: config.features.trusted_gateways.clone(),
            metrics: metrics.clone(),
        };
        let grpc = |name| options(name, config.limits.grpc, GRPC_PORT_FILES);
        let http = |name| options(name, config.limits.http, HTTP_PORT_FILES);
        let ports = &config.ports;
        Ok(Self {
            http: bind(http("http"), "--httpAddr", ports.http.as_ref()).await?,
            grpc: bind(grpc("grpc"), "--grpcAddr", ports.grpc.as_ref()).await?,
            secure_grpc: bind(grpc("secure grpc"), "--secureGRPCAddr", ports.secure_grpc.as_ref()).await?,
            monitoring: bind(http("monitoring"), "--monitoringAddr", ports.monitoring.as_ref()).await?,
        })
    }
}

async fn bind(
    options: PortOptions,
    flag: &'static str,
    address: Option<&ListenAddress>,
) -> Result<Option<Listener>, AppError> {
    let Some(address) = address else { return Ok(None) };
    let name = options.name;
    let fail = |error| AppError::Listen { flag, address: address.to_string(), error };
    let listener = listen(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    // Tests and scripts read the port from this line.
    info!(name, address = %bound, "listening");
    Ok(Some(Listener::new(listener, options)))
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
