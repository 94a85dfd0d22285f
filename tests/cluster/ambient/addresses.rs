//! The workloads, services and policies that a node proxy has received, and where it sends a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use prost::Message;
use sluice_proto::istio::security::Authorization;
use sluice_proto::istio::workload::address::Type;
use sluice_proto::istio::workload::gateway_address::Destination;
use sluice_proto::istio::workload::load_balancing::HealthPolicy;
use sluice_proto::istio::workload::{
    Address, GatewayAddress, NetworkAddress, Service, TunnelProtocol, Workload, WorkloadStatus,
};
use sluice_testkit::ads::{Kind, Update};

/// The port of tunnels of workloads.
pub(crate) const TUNNEL_PORT: u16 = 15008;

/// What a node proxy has received.
#[derive(Default)]
pub(crate) struct Addresses {
    workloads: BTreeMap<String, Workload>,
    services: BTreeMap<String, Service>,
    pub(crate) policies: BTreeMap<String, Authorization>,
    /// Names that the control plane has answered as absent.
    absent: BTreeSet<String>,
    /// Number of endpoints that were chosen.
    chosen: AtomicUsize,
}

/// Where a connection goes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Route {
    /// To the destination itself.
    Plaintext(SocketAddr),
    /// Through a tunnel.
    Tunnel {
        /// A waypoint, or the node proxy of the destination.
        proxy: SocketAddr,
        /// The identity that it must have.
        identity: String,
        /// The destination: the authority of the CONNECT request.
        destination: SocketAddr,
    },
    /// Through two tunnels, one in the other.
    Remote(RemoteService),
    /// Not known before this name is requested.
    Unknown(String),
}

/// A service in another network.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RemoteService {
    /// The gateway of the network.
    pub(crate) gateway: SocketAddr,
    /// The identity that the gateway must have.
    pub(crate) gateway_identity: String,
    /// Host and port of the service: the authority of both CONNECT requests.
    pub(crate) authority: String,
    /// The identities that the proxies behind the gateway may have.
    pub(crate) identities: Vec<String>,
}

impl Addresses {
    /// Applies a response.
    pub(crate) fn apply(&mut self, update: &Update) -> Result<()> {
        let is_policy = update.type_url == Kind::WdsAuthz.type_url();
        for (name, _, resource) in &update.resources {
            if is_policy {
                let policy = Authorization::decode(resource.value.as_slice()).context("decode a policy")?;
                self.policies.insert(name.clone(), policy);
                continue;
            }
            match Address::decode(resource.value.as_slice()).context("decode an address")?.r#type {
                Some(Type::Workload(workload)) => drop(self.workloads.insert(name.clone(), workload)),
                Some(Type::Service(service)) => drop(self.services.insert(name.clone(), service)),
                None => bail!("the address {name} is neither a workload nor a service"),
            }
        }
        for name in &update.removed {
            if is_policy {
                self.policies.remove(name);
            } else if self.workloads.remove(name).is_none() && self.services.remove(name).is_none() {
                self.absent.insert(name.clone());
            }
        }
        Ok(())
    }

    /// Whether a requested name (`/IP` or `NAMESPACE/HOST`) has been answered.
    pub(crate) fn is_answered(&self, name: &str) -> bool {
        let has = |ip: IpAddr| self.service_at(ip).is_some() || self.workload_at(ip).is_some();
        let is_known = match name.strip_prefix('/').map(str::parse) {
            Some(Ok(ip)) => has(ip),
            _ => self.services.contains_key(name),
        };
        is_known || self.absent.contains(name)
    }

    /// The workload with an address.
    pub(crate) fn workload_at(&self, ip: IpAddr) -> Option<&Workload> {
        self.workloads.values().find(|workload| workload.addresses.iter().any(|bytes| is_address(bytes, ip)))
    }

    fn service_at(&self, ip: IpAddr) -> Option<&Service> {
        let has = |address: &NetworkAddress| is_address(&address.address, ip);
        self.services.values().find(|service| service.addresses.iter().any(has))
    }

    /// Where a connection of an application goes.
    pub(crate) fn route(&self, to: SocketAddr) -> Result<Route> {
        let name = format!("/{}", to.ip());
        if !self.is_answered(&name) {
            return Ok(Route::Unknown(name));
        }
        if let Some(service) = self.service_at(to.ip()) {
            if let Some(waypoint) = &service.waypoint {
                return self.through(waypoint, to);
            }
            let (workload, address) = self.endpoint(service, to.port())?;
            if workload.network_gateway.is_none() {
                return Ok(to_workload(workload, address));
            }
            let gateway = self.workload_at(address.ip()).context("the gateway of a network is a workload")?;
            return Ok(Route::Remote(RemoteService {
                gateway: address,
                gateway_identity: identity_of(gateway),
                authority: format!("{}:{}", service.hostname, to.port()),
                identities: service.subject_alt_names.clone(),
            }));
        }
        match self.workload_at(to.ip()) {
            Some(Workload { waypoint: Some(waypoint), .. }) => self.through(waypoint, to),
            Some(workload) => Ok(to_workload(workload, to)),
            None => Ok(Route::Plaintext(to)),
        }
    }

    /// A tunnel through a waypoint.
    fn through(&self, waypoint: &GatewayAddress, to: SocketAddr) -> Result<Route> {
        let port = u16::try_from(waypoint.hbone_mtls_port).context("the port of a waypoint")?;
        let service = match waypoint.destination.as_ref().context("a waypoint has an address")? {
            Destination::Hostname(name) => {
                let name = format!("{}/{}", name.namespace, name.hostname);
                match self.services.get(&name) {
                    None if !self.absent.contains(&name) => return Ok(Route::Unknown(name)),
                    service => service.with_context(|| format!("the waypoint {name} is absent"))?,
                }
            }
            Destination::Address(address) => {
                let ip = ip_of(&address.address).context("the address of a waypoint")?;
                if !self.is_answered(&format!("/{ip}")) {
                    return Ok(Route::Unknown(format!("/{ip}")));
                }
                self.service_at(ip).with_context(|| format!("the waypoint at {ip} is absent"))?
            }
        };
        let (workload, proxy) = self.endpoint(service, port)?;
        Ok(Route::Tunnel { proxy, identity: identity_of(workload), destination: to })
    }

    /// The port of a workload that is one of a service, given as host and port.
    pub(crate) fn port_of(&self, ip: IpAddr, service: &str) -> Option<u16> {
        let (host, port) = service.rsplit_once(':')?;
        let port: u32 = port.parse().ok()?;
        let services = &self.workload_at(ip)?.services;
        let (_, ports) = services.iter().find(|(name, _)| name.split_once('/').is_some_and(|(_, of)| of == host))?;
        let found = ports.ports.iter().find(|it| it.service_port == port)?;
        u16::try_from(found.target_port).ok()
    }

    /// The next endpoint of a port of a service, and its address; for endpoints in another network, that of the gateway.
    fn endpoint(&self, service: &Service, port: u16) -> Result<(&Workload, SocketAddr)> {
        let name = format!("{}/{}", service.namespace, service.hostname);
        let allows_all = service
            .load_balancing
            .as_ref()
            .is_some_and(|balancing| balancing.health_policy == HealthPolicy::AllowAll as i32);
        let endpoints: Vec<(&Workload, SocketAddr)> = self
            .workloads
            .values()
            .filter(|workload| allows_all || workload.status == WorkloadStatus::Healthy as i32)
            .filter_map(|workload| {
                let ports = &workload.services.get(&name)?.ports;
                let target = ports.iter().find(|it| it.service_port == u32::from(port))?.target_port;
                if let Some(GatewayAddress { destination: Some(Destination::Address(at)), hbone_mtls_port }) =
                    &workload.network_gateway
                {
                    return Some((
                        workload,
                        SocketAddr::new(ip_of(&at.address)?, u16::try_from(*hbone_mtls_port).ok()?),
                    ));
                }
                let ip = ip_of(workload.addresses.first()?)?;
                Some((workload, SocketAddr::new(ip, u16::try_from(target).ok()?)))
            })
            .collect();
        let next = self.chosen.fetch_add(1, Ordering::Relaxed);
        let endpoint = next.checked_rem(endpoints.len()).and_then(|index| endpoints.get(index));
        endpoint.copied().with_context(|| format!("port {port} of {name} has a healthy endpoint"))
    }
}

fn to_workload(workload: &Workload, address: SocketAddr) -> Route {
    if workload.tunnel_protocol != TunnelProtocol::Hbone as i32 {
        return Route::Plaintext(address);
    }
    let proxy = SocketAddr::new(address.ip(), TUNNEL_PORT);
    Route::Tunnel { proxy, identity: identity_of(workload), destination: address }
}

/// The SPIFFE id of a workload.
fn identity_of(workload: &Workload) -> String {
    let trust_domain = if workload.trust_domain.is_empty() { "cluster.local" } else { &workload.trust_domain };
    format!("spiffe://{trust_domain}/ns/{}/sa/{}", workload.namespace, workload.service_account)
}

pub(crate) fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

fn is_address(bytes: &[u8], ip: IpAddr) -> bool {
    ip_of(bytes) == Some(ip)
}
