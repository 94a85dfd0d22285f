//! The shape of a mesh, and the names of its objects.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The size of the mesh.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Shape {
    pub(crate) services: usize,
    pub(crate) namespaces: usize,
    pub(crate) endpoints: usize,
    pub(crate) service_entries: usize,
    /// Gateways, in addition to the sidecars.
    #[serde(default)]
    pub(crate) gateways: usize,
    /// Waypoints, each of which serves an equal part of the services.
    #[serde(default)]
    pub(crate) waypoints: usize,
    /// Clients that are ztunnel.
    #[serde(default)]
    pub(crate) ztunnels: usize,
    #[serde(default)]
    pub(crate) layout: Layout,
}

/// Visibility between namespaces.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    /// Every proxy sees every service: there are no Sidecar resources.
    #[default]
    Flat,
    /// Every namespace has a Sidecar: its proxies see it and the next namespace.
    Scoped,
}

/// Nodes, spread over [`ZONES`].
pub(crate) const NODES: usize = 20;
/// Zones of one region.
pub(crate) const ZONES: usize = 3;
/// Ports of HTTP services.
const HTTP_PORTS: [u16; 4] = [80, 8080, 8000, 9080];
/// Port of TCP services.
const TCP_PORT: u16 = 9000;

/// The role of a proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// The sidecar of the endpoint of that number in the shape.
    Sidecar(usize),
    /// The gateway of that number.
    Gateway(usize),
    /// The waypoint of that number.
    Waypoint(usize),
    /// The ztunnel of that number.
    Ztunnel(usize),
}

/// A service of the shape by its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Service {
    pub(crate) number: usize,
    namespaces: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} services × {} endpoints in {} namespaces", self.services, self.endpoints, self.namespaces)?;
        if self.layout == Layout::Scoped {
            f.write_str(" with Sidecars")?;
        }
        if self.service_entries > 0 {
            write!(f, ", {} service entries", self.service_entries)?;
        }
        if self.gateways > 0 {
            write!(f, ", {} gateways", self.gateways)?;
        }
        if self.waypoints > 0 {
            write!(f, ", {} waypoints", self.waypoints)?;
        }
        if self.ztunnels > 0 {
            write!(f, ", {} ztunnels", self.ztunnels)?;
        }
        Ok(())
    }
}

impl Shape {
    pub(crate) fn service(&self, number: usize) -> Service {
        Service { number, namespaces: self.namespaces }
    }

    pub(crate) fn namespace(number: usize) -> String {
        format!("sb-{number:02}")
    }

    /// Number of the namespace that the Sidecar of a namespace imports besides its own.
    pub(crate) fn neighbour(&self, namespace: usize) -> usize {
        (namespace + 1) % self.namespaces
    }

    /// Whether the mesh is in ambient mode.
    pub(crate) fn is_ambient(&self) -> bool {
        self.waypoints > 0 || self.ztunnels > 0
    }

    /// Number of the waypoint that a service uses.
    pub(crate) fn waypoint(&self, service: Service) -> Option<usize> {
        service.number.checked_rem(self.waypoints)
    }

    /// Pods in all.
    pub(crate) fn pods(&self) -> usize {
        self.services * self.endpoints
    }

    /// The service and the endpoint whose sidecar is the proxy of that number: first the first endpoint of each service.
    pub(crate) fn proxy(&self, number: usize) -> (Service, usize) {
        (self.service(number % self.services), number / self.services)
    }

    /// The first HTTP service of a namespace from `from` on.
    pub(crate) fn http_service(&self, from: usize) -> Service {
        let mut service = self.service(from % self.services);
        while service.is_tcp() {
            service = self.service((service.number + self.namespaces) % self.services);
        }
        service
    }
}

impl Service {
    pub(crate) fn name(self) -> String {
        format!("svc-{:04}", self.number)
    }

    pub(crate) fn namespace(self) -> String {
        Shape::namespace(self.namespace_number())
    }

    pub(crate) fn host(self) -> String {
        format!("{}.{}.svc.cluster.local", self.name(), self.namespace())
    }

    /// Whether it is TCP, as every tenth service of a namespace.
    pub(crate) fn is_tcp(self) -> bool {
        (self.number / self.namespaces) % 10 == 9
    }

    /// Number of its namespace.
    pub(crate) fn namespace_number(self) -> usize {
        self.number % self.namespaces
    }

    pub(crate) fn port(self) -> u16 {
        if self.is_tcp() { TCP_PORT } else { HTTP_PORTS[(self.number / self.namespaces) % HTTP_PORTS.len()] }
    }

    /// Its virtual host, as VHDS names it.
    pub(crate) fn virtual_host(self) -> String {
        format!("{port}/{host}:{port}", port = self.port(), host = self.host())
    }

    pub(crate) fn cluster(self) -> String {
        format!("outbound|{}||{}", self.port(), self.host())
    }

    pub(crate) fn vip(self) -> String {
        let number = self.number + 1;
        format!("10.{}.{}.{}", 96 + number / 62_500, number / 250 % 250, number % 250 + 1)
    }

    /// Address of an endpoint. Each generation gives the same pod another address.
    pub(crate) fn address(self, endpoint: usize, generation: usize) -> String {
        // Numbers below eight million are for the first 128 endpoints of 62,500 services. Above, each service has
        // 131,072 numbers for further endpoints.
        let number = match endpoint {
            0..128 => self.number * 128 + endpoint,
            _ => 8_000_000 + self.number * 131_072 + endpoint,
        };
        let network = 16 + number / 16_000_000 * 32;
        let rest = number % 16_000_000;
        format!("{}.{}.{}.{}", network + generation * 2, rest / 62_500, rest / 250 % 250, rest % 250 + 1)
    }

    pub(crate) fn pod(self, endpoint: usize) -> String {
        format!("{}-{endpoint}", self.name())
    }

    pub(crate) fn node(self, endpoint: usize) -> usize {
        (self.number + endpoint) % NODES
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SHAPE: Shape = Shape {
        services: 12_000,
        namespaces: 20,
        endpoints: 5,
        service_entries: 0,
        gateways: 0,
        waypoints: 0,
        ztunnels: 0,
        layout: Layout::Flat,
    };

    #[test]
    fn addresses_are_distinct() {
        let all = (0..SHAPE.services).map(|number| SHAPE.service(number));
        let vips: BTreeSet<String> = all.clone().map(Service::vip).collect();
        assert_eq!(vips.len(), SHAPE.services);
        let pods: BTreeSet<String> = all.flat_map(|s| (0..5).map(move |e| s.address(e, 0))).collect();
        assert_eq!(pods.len(), SHAPE.pods());
        let large = Shape { services: 40, endpoints: 100_000, ..SHAPE };
        for service in [large.service(0), large.service(39)] {
            let pods: BTreeSet<String> = (0..large.endpoints).map(|e| service.address(e, 0)).collect();
            assert_eq!(pods.len(), large.endpoints);
            assert!(pods.iter().all(|address| address.parse::<std::net::Ipv4Addr>().is_ok()));
        }
    }

    #[test]
    fn a_tenth_of_services_is_tcp_in_every_namespace() {
        let tcp: Vec<Service> = (0..SHAPE.services).map(|n| SHAPE.service(n)).filter(|s| s.is_tcp()).collect();
        assert_eq!(tcp.len(), SHAPE.services / 10);
        let namespaces: BTreeSet<String> = tcp.iter().map(|s| s.namespace()).collect();
        assert_eq!(namespaces.len(), SHAPE.namespaces);
    }
}
