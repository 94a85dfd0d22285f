//! The inbound settings of a Sidecar.

use std::net::IpAddr;

use serde::Serialize;
use sluice_model::{
    CaptureMode, ConnectionPool, InterceptionMode, IpFamilies, LocalEndpoint, Sidecar, SidecarIngress, SidecarScope,
    Text,
};

use crate::proxies::workloads::WorkloadSidecar;

/// The inbound settings of a Sidecar.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct SidecarInbound {
    /// Its ingress listeners; if empty, the ports of the workload's services are used.
    pub(crate) ingress: Vec<SidecarIngress>,
    connection_pool: Option<ConnectionPool>,
}

impl SidecarInbound {
    pub(super) fn of(sidecar: &Sidecar) -> Self {
        Self { ingress: sidecar.ingress.clone(), connection_pool: sidecar.inbound_connection_pool.clone() }
    }

    /// The connection pool of a port: that of its listener, else that of the Sidecar.
    #[must_use]
    pub(crate) fn connection_pool(&self, port: u32) -> Option<&ConnectionPool> {
        let listener = self.ingress.iter().find(|listener| u32::from(listener.port.number) == port);
        listener.and_then(|listener| listener.connection_pool.as_ref()).or(self.connection_pool.as_ref())
    }
}

/// The host of a Sidecar's proxies in telemetry, if they have no service.
#[must_use]
pub(crate) fn synthetic_host(scope: &SidecarScope) -> Text {
    format!("{}.{}", scope.sidecar.name, scope.namespace).into()
}

/// Whether a listener has a socket of its own.
#[must_use]
pub(crate) fn has_socket(listener: &SidecarIngress, interception: InterceptionMode) -> bool {
    match listener.capture {
        CaptureMode::Default => interception == InterceptionMode::None,
        CaptureMode::Iptables => false,
        CaptureMode::None => true,
    }
}

/// The address of a listener: the declared one, else the proxy's own if only that is reachable; `None` is the wildcard.
#[must_use]
pub(crate) fn ingress_address(listener: &SidecarIngress, workload: &WorkloadSidecar) -> Option<Text> {
    if !listener.bind.is_empty() {
        return Some(listener.bind.clone());
    }
    workload.addresses.iter().find(|address| address.parse().is_ok_and(is_global)).cloned()
}

fn is_global(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// The address and port of the application of a listener; port 0 is a socket in the file system. `None` keeps the
/// original destination.
#[must_use]
pub(crate) fn ingress_endpoint(
    listener: &SidecarIngress,
    workload: &WorkloadSidecar,
    families: IpFamilies,
) -> Option<(Text, u32)> {
    const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
    match &listener.endpoint {
        LocalEndpoint::Original => None,
        LocalEndpoint::Socket(path) => Some((path.clone(), 0)),
        LocalEndpoint::Loopback { v6, port } => {
            let v6 = match families {
                IpFamilies::V4 => false,
                IpFamilies::V6 => true,
                IpFamilies::Dual => *v6,
            };
            Some((LOOPBACK[usize::from(v6)].into(), u32::from(*port)))
        }
        LocalEndpoint::Instance { v6, port } => {
            let of_family = |address: &&Text| address.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6() == *v6);
            let own = workload.addresses.iter().find(of_family).cloned();
            Some((own.unwrap_or_else(|| LOOPBACK[usize::from(*v6)].into()), u32::from(*port)))
        }
    }
}
