//! Names of the mesh, answered on this machine; others are passed on to the name servers the pod had (D06).

mod answer;
mod forward;
mod resolv_conf;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

use crate::metrics::Metrics;
use crate::settings::DnsSettings;
use answer::Reply;
use forward::Forwarder;
use resolv_conf::ResolvConf;
pub(crate) use table::Names;

/// Requests that are worked on at once; more wait or, over UDP, are dropped.
const MOST_AT_ONCE: usize = 1024;
/// Biggest message over UDP.
const MOST_UDP: usize = 4096;

/// A DNS proxy that is being set up: its names are known to others before it serves.
pub(crate) struct DnsProxy {
    pub(crate) names: Names,
    resolv_conf: ResolvConf,
    settings: DnsSettings,
}

impl DnsProxy {
    /// # Errors
    /// The machine's own settings cannot be read.
    pub(crate) fn new(settings: DnsSettings, namespace: &str, domain: &str) -> Result<Self> {
        // What the file was before the agent was put into it.
        let saved = Path::new("/var/lib/istio/resolv.conf");
        let own = settings.address.ends_with(":53") && saved.exists();
        let resolv_conf = ResolvConf::read(if own { saved } else { Path::new("/etc/resolv.conf") })?;
        let names = Names::new(namespace, domain, resolv_conf.search.first().map(String::as_str));
        Ok(Self { names, resolv_conf, settings })
    }

    /// Serves over UDP and TCP until the process ends.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub(crate) async fn serve(self, metrics: Metrics) -> Result<()> {
        let forwarder = Forwarder {
            servers: self.resolv_conf.servers.clone(),
            parallel: self.settings.parallel,
            timeout: self.settings.timeout,
        };
        let at_once = Arc::new(Semaphore::new(MOST_AT_ONCE));
        let resolver = Arc::new(Resolver { names: self.names, forwarder, metrics, at_once });
        for address in addresses(&self.settings.address, &self.resolv_conf.servers)? {
            let udp = UdpSocket::bind(address).await.with_context(|| format!("listen on {address} for DNS"))?;
            let tcp = TcpListener::bind(address).await.with_context(|| format!("listen on {address} for DNS"))?;
            info!(target: "dns", %address, servers = ?self.resolv_conf.servers, "listening");
            tokio::spawn(serve_udp(Arc::clone(&resolver), Arc::new(udp)));
            tokio::spawn(serve_tcp(Arc::clone(&resolver), tcp));
        }
        Ok(())
    }
}

/// `localhost` is the loopback of each family that a name server has.
fn addresses(address: &str, servers: &[SocketAddr]) -> Result<Vec<SocketAddr>> {
    let split = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let Some((host, port)) = split else { bail!("DNS_PROXY_ADDR: {address:?} is not a host and a port") };
    if host != "localhost" {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = host.parse().with_context(|| format!("DNS_PROXY_ADDR: {host:?} is no address"))?;
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let v4 = servers.iter().any(SocketAddr::is_ipv4) || servers.is_empty();
    let v6 = servers.iter().any(SocketAddr::is_ipv6);
    let loopbacks = [(v4, IpAddr::from([127, 0, 0, 1])), (v6, IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]))];
    Ok(loopbacks.into_iter().filter(|(used, _)| *used).map(|(_, ip)| SocketAddr::new(ip, port)).collect())
}

struct Resolver {
    names: Names,
    forwarder: Forwarder,
    metrics: Metrics,
    at_once: Arc<Semaphore>,
}

impl Resolver {
    /// The answer to a request; nothing to what is none.
    async fn answer(&self, request: &[u8], udp: bool) -> Option<Vec<u8>> {
        self.metrics.dns_request();
        match answer::answer(&self.names, request, udp) {
            Reply::Ready(answer) => Some(answer),
            Reply::None => None,
            Reply::Forward => {
                let answer = self.forwarder.ask(request, udp).await;
                self.metrics.dns_upstream(answer.is_some());
                answer.or_else(|| answer::failure(request))
            }
        }
    }
}

async fn serve_udp(resolver: Arc<Resolver>, socket: Arc<UdpSocket>) {
    let mut buffer = vec![0; MOST_UDP];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // Such as that a client is gone.
                debug!(target: "dns", "receive: {error}");
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&resolver.at_once).try_acquire_owned() else { continue };
        let (resolver, socket, request) = (Arc::clone(&resolver), Arc::clone(&socket), buffer[..length].to_vec());
        tokio::spawn(async move {
            if let Some(answer) = resolver.answer(&request, true).await {
                let _ = socket.send_to(&answer, peer).await;
            }
            drop(permit);
        });
    }
}

async fn serve_tcp(resolver: Arc<Resolver>, listener: TcpListener) {
    loop {
        let Ok(permit) = Arc::clone(&resolver.at_once).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(target: "dns", "accept a connection: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let resolver = Arc::clone(&resolver);
        tokio::spawn(async move {
            // One that says nothing is not kept.
            let idle = std::time::Duration::from_secs(10);
            let mut stream = stream;
            while let Ok(Ok(())) = tokio::time::timeout(idle, serve_one(&resolver, &mut stream)).await {}
            drop(permit);
        });
    }
}

async fn serve_one(resolver: &Resolver, stream: &mut TcpStream) -> std::io::Result<()> {
    let mut request = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut request).await?;
    let ended = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let answer = resolver.answer(&request, false).await.ok_or_else(ended)?;
    stream.write_u16(u16::try_from(answer.len()).map_err(|_| ended())?).await?;
    stream.write_all(&answer).await
}

#[cfg(test)]
mod tests;
