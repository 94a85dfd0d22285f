//! The listeners of the process.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use sluice_config::{Config, ListenAddress};
use sluice_listen::{ListenLimits, ListenMetrics, Listener, PortOptions};
use tokio::net::{TcpSocket, lookup_host};
use tracing::{info, warn};

use super::{AppError, open_files};

/// The shares of the open files that a gRPC port and an HTTP port use at most.
const GRPC_PORT_FILES: (usize, usize) = (3, 8);
const HTTP_PORT_FILES: (usize, usize) = (1, 16);

/// The ports of the process; `None` is a disabled port. Those of proxies and webhooks are open only once they can be served: until
/// then a connection is refused at once, and the client can try another replica.
pub(super) struct Listeners {
    pub(super) http: Option<Listener>,
    pub(super) grpc: Option<ReservedPort>,
    pub(super) secure_grpc: Option<ReservedPort>,
    pub(super) monitoring: Option<Listener>,
    pub(super) https: Option<ReservedPort>,
    pub(super) controlz: Option<Listener>,
}

/// A port that is bound, so that a port in use is reported at the start, and that refuses connections.
pub(super) struct ReservedPort {
    socket: TcpSocket,
    options: PortOptions,
    flag: &'static str,
    address: String,
}

impl Listeners {
    /// Binds every configured port, and listens on those for operators.
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
            grpc: reserve(grpc("grpc"), "--grpcAddr", ports.grpc.as_ref()).await?,
            secure_grpc: reserve(grpc("secure grpc"), "--secureGRPCAddr", ports.secure_grpc.as_ref()).await?,
            monitoring: bind(http("monitoring"), "--monitoringAddr", ports.monitoring.as_ref()).await?,
            https: reserve(http("https"), "--httpsAddr", ports.https.as_ref()).await?,
            // As in istiod: a port that another process uses on this host does not stop the control plane.
            controlz: bind(http("controlz"), "--ctrlz_port", ports.controlz.as_ref()).await.unwrap_or_else(|error| {
                warn!(%error, "ControlZ is not served");
                None
            }),
        })
    }
}

async fn bind(
    options: PortOptions,
    flag: &'static str,
    address: Option<&ListenAddress>,
) -> Result<Option<Listener>, AppError> {
    reserve(options, flag, address).await?.map(ReservedPort::listen).transpose()
}

async fn reserve(
    options: PortOptions,
    flag: &'static str,
    address: Option<&ListenAddress>,
) -> Result<Option<ReservedPort>, AppError> {
    let Some(address) = address else { return Ok(None) };
    let fail = |error| AppError::Listen { flag, address: address.to_string(), error };
    let socket = bind_address(address).await.map_err(fail)?;
    Ok(Some(ReservedPort { socket, options, flag, address: address.to_string() }))
}

/// Length of the accept queue: all proxies of a mesh can connect at once. The kernel limits it to `net.core.somaxconn`;
/// further connections are retried by their clients after a second.
const BACKLOG: u32 = 65_535;

impl ReservedPort {
    /// Accepts connections.
    ///
    /// # Errors
    /// Another process, which was starting at the same time, listens on the port.
    pub(super) fn listen(self) -> Result<Listener, AppError> {
        let Self { socket, options, flag, address } = self;
        let listening = socket.listen(BACKLOG).and_then(|tcp| Ok((tcp.local_addr()?, tcp)));
        let (bound, tcp) = listening.map_err(|error| AppError::Listen { flag, address, error })?;
        // Tests and scripts read the port from this line.
        info!(name = options.name, address = %bound, "listening");
        Ok(Listener::new(tcp, options))
    }
}

/// Binds an address. All interfaces are IPv6 and IPv4 where there is IPv6, else IPv4.
///
/// # Errors
/// The operating system refuses, or the name has no address.
async fn bind_address(address: &ListenAddress) -> io::Result<TcpSocket> {
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
    // Of `localhost`, clients use the IPv4 address first.
    let mut found: Vec<SocketAddr> = lookup_host((address.host(), address.port())).await?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    for found in found {
        match bind_socket(found) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As in std: a restarted server can bind the port of its predecessor.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn more_connect_at_once_than_std_lets_wait() {
        let address = ListenAddress::parse("127.0.0.1:0").expect("an address").expect("one");
        let listener = bind_address(&address).await.and_then(|socket| socket.listen(BACKLOG)).expect("bound");
        let to = listener.local_addr().expect("an address");
        let waiting =
            (0..200).map(|_| std::net::TcpStream::connect_timeout(&to, std::time::Duration::from_millis(500)));
        assert_eq!(waiting.filter_map(Result::ok).count(), 200, "no connection is accepted, and all wait");
    }

    #[tokio::test]
    async fn reserved_port_refuses_connections_until_it_listens() {
        let address = ListenAddress::parse("127.0.0.1:0").expect("an address");
        let limits = ListenLimits::default().within(1024, GRPC_PORT_FILES);
        let options =
            PortOptions { name: "grpc", limits, unlimited_addresses: Vec::new(), metrics: ListenMetrics::default() };
        let port = reserve(options, "--grpcAddr", address.as_ref()).await.expect("bound").expect("a port");
        let to = port.socket.local_addr().expect("an address");
        let refused = std::net::TcpStream::connect(to).expect_err("not open");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let again = bind_socket(to).and_then(|socket| socket.listen(BACKLOG));
        let listener = again.expect("two processes can reserve a port");
        let error = port.listen().map(|_| ()).expect_err("one of them listens").to_string();
        assert!(error.contains("--grpcAddr"), "{error}");
        drop(listener);
    }
}
