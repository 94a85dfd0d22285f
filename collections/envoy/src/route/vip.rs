//! Destinations of routes at a waypoint (N23).

use std::collections::BTreeMap;

use sluice_model::{Destination, Service};

use crate::name;

/// How a waypoint proxies each port of a service that it serves, as in the names of its clusters: detected protocols
/// are HTTP.
#[must_use]
pub fn vip_kinds(service: &Service) -> BTreeMap<u32, &'static str> {
    let kind = |http| if http { "http" } else { "tcp" };
    let ports = service.ports.iter();
    ports.map(|port| (u32::from(port.port), kind(port.protocol.is_http() || port.protocol.is_unsupported()))).collect()
}

/// The service of a destination, as a waypoint sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum WaypointDestination<'a> {
    /// There is no such service.
    Unknown,
    /// The waypoint does not serve it.
    Other {
        /// Its only port; `None` if it has several.
        only_port: Option<u32>,
    },
    /// The waypoint serves it.
    Served {
        /// Its only port; `None` if it has several.
        only_port: Option<u32>,
        /// How each port is proxied.
        kinds: &'a BTreeMap<u32, &'static str>,
    },
}

impl WaypointDestination<'_> {
    /// The cluster of a destination: that of the service itself if the waypoint serves it, so that its policies apply
    /// only once. `listen_port` is the port of a destination without one.
    #[must_use]
    pub fn cluster(&self, destination: &Destination, listen_port: u32) -> String {
        let Destination { host, subset, .. } = destination;
        if host.as_str().is_empty() {
            return name::UNKNOWN_SERVICE.to_owned();
        }
        let (only_port, kinds) = match self {
            Self::Unknown => (None, None),
            Self::Other { only_port } => (*only_port, None),
            Self::Served { only_port, kinds } => (*only_port, Some(*kinds)),
        };
        let port = destination.port.or(only_port).unwrap_or(listen_port);
        if matches!(self, Self::Other { .. }) {
            return name::outbound_cluster(port, subset, host.as_str());
        }
        let kind = kinds.and_then(|kinds| kinds.get(&port)).copied().unwrap_or("http");
        name::inbound_vip_cluster(port, &name::vip_subset(kind, subset), host.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_lead_to_clusters_of_the_waypoint_or_to_outbound_ones() {
        let to = |port, subset: &str| Destination { host: "coral.reef".into(), port, subset: subset.into() };
        let kinds = BTreeMap::from([(80, "http"), (70, "tcp")]);
        let served = WaypointDestination::Served { only_port: None, kinds: &kinds };
        assert_eq!(served.cluster(&to(Some(80), "v1"), 70), "inbound-vip|80|http/v1|coral.reef");
        assert_eq!(served.cluster(&to(None, ""), 70), "inbound-vip|70|tcp|coral.reef");
        assert_eq!(served.cluster(&to(Some(9), ""), 70), "inbound-vip|9|http|coral.reef");
        let other = WaypointDestination::Other { only_port: Some(8080) };
        assert_eq!(other.cluster(&to(None, "v1"), 70), "outbound|8080|v1|coral.reef");
        assert_eq!(WaypointDestination::Unknown.cluster(&to(None, ""), 70), "inbound-vip|70|http|coral.reef");
        assert_eq!(WaypointDestination::Unknown.cluster(&Destination::default(), 70), "UnknownService");
    }
}
