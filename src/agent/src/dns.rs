//! DNS proxy: it resolves names of the mesh, and forwards other requests to the pod's name servers (D06).

mod forward;
mod resolv_conf;
mod response;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sluice_listen::{AcceptedConnection, Listener};
use sluice_tasks::restart;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tracing::{debug, info};

use crate::metrics::Metrics;
use crate::ports;
use crate::serving::keep_serving;
use crate::settings::{DnsSettings, host_and_port};
use forward::Forwarder;
use resolv_conf::ResolvConf;
use response::Resolution;
pub(crate) use table::NameTableStore;

/// Limit on concurrent requests. Further ones wait over TCP and are dropped over UDP.
const MAX_CONCURRENT_REQUESTS: usize = 1024;
/// Size limit of a request over UDP.
const MAX_UDP_REQUEST_BYTES: usize = 4096;
/// Time limit for a request over TCP to arrive and to be answered. The connection is closed then.
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A DNS proxy that does not serve yet. Its name table can be used already.
pub(crate) struct DnsProxy {
    pub(crate) names: NameTableStore,
    resolv_conf: ResolvConf,
    settings: DnsSettings,
}

impl DnsProxy {
    /// # Errors
    /// The system's `resolv.conf` cannot be read.
    pub(crate) fn new(settings: DnsSettings, namespace: &str, domain: &str) -> Result<Self> {
        // The original file: the injector may have replaced it by one that names the agent.
        let saved = Path::new("/var/lib/istio/resolv.conf");
        let use_saved = settings.address.ends_with(":53") && saved.exists();
        let resolv_conf = ResolvConf::read(if use_saved { saved } else { Path::new("/etc/resolv.conf") })?;
        let names = NameTableStore::new(namespace, domain, resolv_conf.search.first().map(String::as_str));
        Ok(Self { names, resolv_conf, settings })
    }

    /// Serves over UDP and TCP until the process ends.
    ///
    /// # Errors
    /// The agent cannot listen on the address.
    pub(crate) async fn serve(self, metrics: Metrics) -> Result<()> {
        let forwarder = Forwarder {
            servers: self.resolv_conf.servers.clone(),
            parallel: self.settings.parallel,
            timeout: self.settings.timeout,
        };
        let request_slots = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
        let listen_metrics = metrics.listen();
        let resolver = Arc::new(Resolver { names: self.names, forwarder, metrics, request_slots });
        for address in listen_addresses(&self.settings.address, &self.resolv_conf.servers)? {
            let udp = UdpSocket::bind(address).await.with_context(|| format!("listen on {address} for DNS"))?;
            let tcp = TcpListener::bind(address).await.with_context(|| format!("listen on {address} for DNS"))?;
            info!(target: "dns", %address, servers = ?self.resolv_conf.servers, "listening");
            let (udp, for_udp) = (Arc::new(udp), Arc::clone(&resolver));
            tokio::spawn(restart("DNS over UDP", move || serve_udp(Arc::clone(&for_udp), Arc::clone(&udp))));
            let (for_tcp, listen_metrics) = (Arc::clone(&resolver), listen_metrics.clone());
            keep_serving(
                "DNS over TCP",
                tcp,
                move || TcpListener::bind(address),
                move |tcp| {
                    let tcp = Listener::new(tcp, ports::options("dns", listen_metrics.clone()));
                    serve_tcp(Arc::clone(&for_tcp), tcp)
                },
            );
        }
        Ok(())
    }
}

/// The addresses to listen on: `localhost` is the loopback of each family that a name server has.
fn listen_addresses(address: &str, servers: &[SocketAddr]) -> Result<Vec<SocketAddr>> {
    let Some((host, port)) = host_and_port(address) else { bail!("DNS_PROXY_ADDR: {address:?} is not HOST:PORT") };
    if host != "localhost" {
        let ip: IpAddr =
            host.parse().with_context(|| format!("DNS_PROXY_ADDR: {host:?} is neither localhost nor an IP address"))?;
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let v4 = servers.iter().any(SocketAddr::is_ipv4) || servers.is_empty();
    let v6 = servers.iter().any(SocketAddr::is_ipv6);
    let loopbacks = [(v4, IpAddr::from([127, 0, 0, 1])), (v6, IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]))];
    Ok(loopbacks.into_iter().filter(|(used, _)| *used).map(|(_, ip)| SocketAddr::new(ip, port)).collect())
}

struct Resolver {
    names: NameTableStore,
    forwarder: Forwarder,
    metrics: Metrics,
    request_slots: Arc<Semaphore>,
}

impl Resolver {
    /// The response to a request; `None` if the bytes are not a request.
    async fn resolve(&self, request: &[u8], udp: bool) -> Option<Vec<u8>> {
        self.metrics.dns_request();
        match response::resolve(&self.names, request, udp) {
            Resolution::Ready(response) => Some(response),
            Resolution::Ignore => None,
            Resolution::Forward => {
                let response = self.forwarder.forward(request, udp).await;
                self.metrics.dns_forwarded(response.is_some());
                response.or_else(|| response::failure(request))
            }
        }
    }
}

async fn serve_udp(resolver: Arc<Resolver>, socket: Arc<UdpSocket>) -> Result<()> {
    let mut buffer = vec![0; MAX_UDP_REQUEST_BYTES];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // For example, a client has closed its port.
                debug!(target: "dns", %error, "failed to receive a UDP message");
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&resolver.request_slots).try_acquire_owned() else { continue };
        let (resolver, socket, request) = (Arc::clone(&resolver), Arc::clone(&socket), buffer[..length].to_vec());
        tokio::spawn(async move {
            if let Some(response) = resolver.resolve(&request, true).await {
                let _ = socket.send_to(&response, peer).await;
            }
            drop(permit);
        });
    }
}

async fn serve_tcp(resolver: Arc<Resolver>, mut listener: Listener) -> Result<()> {
    loop {
        let AcceptedConnection { mut stream, slot, .. } = listener.accept().await;
        let resolver = Arc::clone(&resolver);
        tokio::spawn(async move {
            loop {
                let served = tokio::time::timeout(TCP_IDLE_TIMEOUT, serve_request(&resolver, &mut stream)).await;
                if !matches!(served, Ok(Ok(()))) {
                    break;
                }
            }
            drop(slot);
        });
    }
}

async fn serve_request(resolver: &Resolver, stream: &mut TcpStream) -> std::io::Result<()> {
    let mut request = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut request).await?;
    let closed = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    // Connections without a request take no slots of requests over UDP.
    let _permit = resolver.request_slots.acquire().await.map_err(|_| closed())?;
    let response = resolver.resolve(&request, false).await.ok_or_else(closed)?;
    stream.write_u16(u16::try_from(response.len()).map_err(|_| closed())?).await?;
    stream.write_all(&response).await
}

#[cfg(test)]
mod tests;
