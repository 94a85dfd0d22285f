//! Services: what clients address by host and port.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::{Host, Labels, Text, TextMap, Timestamp};

/// A service is known by its namespace and host: the same host may be declared in several namespaces.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ServiceKey {
    /// Namespace it was declared in.
    pub namespace: Text,
    /// Fully qualified host, may be a wildcard for a ServiceEntry.
    pub host: Host,
}

/// The protocol of a port (S02).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum Protocol {
    /// Not declared: sniffed.
    #[default]
    Unsupported,
    /// HTTP/1.1.
    Http,
    /// HTTP/2.
    Http2,
    /// HTTPS, opaque to a sidecar.
    Https,
    /// gRPC.
    Grpc,
    /// gRPC-Web.
    GrpcWeb,
    /// TCP.
    Tcp,
    /// TLS, routed by SNI.
    Tls,
    /// UDP, not proxied.
    Udp,
    /// MongoDB.
    Mongo,
    /// Redis.
    Redis,
    /// MySQL.
    Mysql,
    /// HBONE.
    Hbone,
    /// HTTP over a forward proxy.
    HttpProxy,
}

impl Protocol {
    /// HTTP, HTTP/2, gRPC and their variants.
    #[must_use]
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2 | Self::Grpc | Self::GrpcWeb | Self::HttpProxy)
    }

    /// Spoken over HTTP/2.
    #[must_use]
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// Opaque streams, TLS included.
    #[must_use]
    pub fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Https | Self::Tls | Self::Mongo | Self::Redis | Self::Mysql)
    }

    /// TLS by declaration.
    #[must_use]
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// What is left when TLS has ended.
    #[must_use]
    pub fn after_tls(self) -> Self {
        match self {
            Self::Https => Self::Http,
            Self::Tls => Self::Tcp,
            other => other,
        }
    }

    /// Sniffed at run time.
    #[must_use]
    pub fn is_unsupported(self) -> bool {
        self == Self::Unsupported
    }
}

/// How a client finds the addresses behind a service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum Resolution {
    /// Known endpoints, sent by EDS (Kubernetes ClusterIP; ServiceEntry STATIC).
    #[default]
    ClientSideLb,
    /// DNS, every answer used (ServiceEntry DNS).
    DnsLb,
    /// DNS, one answer at a time (ServiceEntry DNS_ROUND_ROBIN).
    DnsRoundRobinLb,
    /// Wildcard host resolved per request (ServiceEntry DYNAMIC_DNS).
    DynamicDns,
    /// The original destination (headless; ServiceEntry NONE).
    Passthrough,
    /// An alias of another host (ExternalName).
    Alias,
}

/// What declared a service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ServiceSource {
    /// A Kubernetes Service.
    #[default]
    Kubernetes,
    /// A ServiceEntry.
    ServiceEntry,
}

/// Where a service, rule or route is visible (C25).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ExportTo {
    /// Everywhere (`*`).
    #[default]
    All,
    /// Nowhere (`~`).
    None,
    /// These namespaces; `.` is already resolved to the object's own.
    Namespaces(BTreeSet<Text>),
}

impl ExportTo {
    /// From the words of an `exportTo` list: `*` anywhere in it is everywhere, else `~` is nowhere, `.` is `namespace`,
    /// and an empty list is everywhere.
    #[must_use]
    pub fn resolve(words: &[Text], namespace: &str) -> Self {
        if words.is_empty() || words.iter().any(|word| *word == *"*") {
            return Self::All;
        }
        if words.iter().any(|word| *word == *"~") {
            return Self::None;
        }
        Self::Namespaces(words.iter().map(|word| if *word == *"." { namespace.into() } else { word.clone() }).collect())
    }

    /// Whether a client in `namespace` may see it.
    #[must_use]
    pub fn allows(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// Preference for near endpoints (S03).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum TrafficDistribution {
    /// No preference.
    #[default]
    Any,
    /// Same zone first (`PreferClose`, `PreferSameZone`).
    PreferSameZone,
    /// Same node first.
    PreferSameNode,
}

/// One port of a service.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ServicePort {
    /// The number clients use.
    pub port: u16,
    /// Its name, empty if unnamed.
    pub name: Text,
    /// Its protocol after S02.
    pub protocol: Protocol,
    /// Where the workload listens, as declared: a number or a named container port; empty if the same as `port`.
    pub target_port: Text,
}

/// A service, merged over the clusters that declare it (S01, S09, S23).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Service {
    /// Namespace it was declared in.
    pub namespace: Text,
    /// Fully qualified host.
    pub host: Host,
    /// Name of the Kubernetes Service; the host of a ServiceEntry's service.
    pub name: Text,
    /// What declared it.
    pub source: ServiceSource,
    /// Cluster of the declaring object; the config cluster wins.
    pub cluster: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Virtual addresses a cluster id, first one primary; `0.0.0.0` is never stored, headless is empty. Those of a
    /// ServiceEntry hold in every cluster and stand under the empty id; they may be CIDR blocks.
    pub addresses: TextMap<Vec<Text>>,
    /// Addresses of automatic allocation (S10), empty unless allocated.
    pub auto_allocated_addresses: Vec<Text>,
    /// Load-balancer and external addresses a cluster id.
    pub external_addresses: TextMap<Vec<Text>>,
    /// Ports in declared order.
    pub ports: Vec<ServicePort>,
    /// How clients find endpoints.
    pub resolution: Resolution,
    /// Outside the mesh (ServiceEntry MESH_EXTERNAL, ExternalName).
    pub mesh_external: bool,
    /// Who sees it.
    pub export_to: ExportTo,
    /// Labels of the declaring object.
    pub labels: Labels,
    /// Labels its workloads must have; empty selects nothing.
    pub selector: Labels,
    /// Identities its workloads run as (SPIFFE), sorted: ServiceEntry `subjectAltNames` or service-account annotations.
    pub subject_alt_names: Vec<Text>,
    /// Target of an ExternalName.
    pub external_name: Option<Host>,
    /// `internalTrafficPolicy: Local`.
    pub node_local: bool,
    /// `publishNotReadyAddresses`.
    pub publish_not_ready: bool,
    /// Preference for near endpoints.
    pub traffic_distribution: TrafficDistribution,
    /// All answers of DNS are dialled at once and the first to connect is used (`istio.io/connect-strategy`).
    pub races_connects: bool,
    /// The Service, or its namespace, is not exported to other clusters (S21).
    pub cluster_local: bool,
    /// A ServiceEntry of the same host that came after the Kubernetes Service: in route tables it stands for it, on the
    /// ports it has.
    pub covered_by: Option<Box<Service>>,
}

impl Service {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ServiceKey {
        ServiceKey { namespace: self.namespace.clone(), host: self.host.clone() }
    }

    /// Virtual addresses for a client in `cluster`, the primary first: the cluster's own, else those of the cluster that
    /// declared it. Empty if it has none.
    #[must_use]
    pub fn addresses_for(&self, cluster: &str) -> &[Text] {
        let own = self.addresses.get(cluster).filter(|addresses| !addresses.is_empty());
        let declared = || self.addresses.get(&self.cluster).or_else(|| self.addresses.get(""));
        own.or_else(declared).map_or(&[], Vec::as_slice)
    }

    /// The port of that number.
    #[must_use]
    pub fn port(&self, port: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|p| p.port == port)
    }

    /// A Kubernetes Service without a virtual address.
    #[must_use]
    pub fn is_headless(&self) -> bool {
        self.source == ServiceSource::Kubernetes && self.resolution == Resolution::Passthrough
    }
}
