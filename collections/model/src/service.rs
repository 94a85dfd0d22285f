//! Services: hosts and ports that clients address.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Host, Labels, Text, TextMap, Timestamp, label};

/// Key of a service: namespace and host. Several namespaces may declare the same host.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceKey {
    /// Namespace of the declaring object.
    pub namespace: Text,
    /// Fully qualified host; may be a wildcard for a ServiceEntry.
    pub host: Host,
}

/// The protocol of a port (S02).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// Not declared: detected at run time.
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
    /// Whether it is HTTP, HTTP/2, gRPC or a variant.
    #[must_use]
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2 | Self::Grpc | Self::GrpcWeb | Self::HttpProxy)
    }

    /// Whether it uses HTTP/2.
    #[must_use]
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// Whether it is an opaque stream, including TLS.
    #[must_use]
    pub fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Https | Self::Tls | Self::Mongo | Self::Redis | Self::Mysql)
    }

    /// Whether it is declared as TLS.
    #[must_use]
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// The protocol after TLS is terminated.
    #[must_use]
    pub fn after_tls(self) -> Self {
        match self {
            Self::Https => Self::Http,
            Self::Tls => Self::Tcp,
            other => other,
        }
    }

    /// Whether it is detected at run time.
    #[must_use]
    pub fn is_unsupported(self) -> bool {
        self == Self::Unsupported
    }
}

/// How clients find the endpoints of a service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum Resolution {
    /// Known endpoints, sent by EDS (Kubernetes ClusterIP; ServiceEntry STATIC).
    #[default]
    ClientSideLb,
    /// DNS, using all addresses (ServiceEntry DNS).
    DnsLb,
    /// DNS, using one address at a time (ServiceEntry DNS_ROUND_ROBIN).
    DnsRoundRobinLb,
    /// Wildcard host resolved per request (ServiceEntry DYNAMIC_DNS).
    DynamicDns,
    /// The original destination (headless; ServiceEntry NONE).
    Passthrough,
    /// An alias of another host (ExternalName).
    Alias,
}

impl Resolution {
    /// Whether clients resolve the host names of the endpoints by DNS.
    #[must_use]
    pub fn is_dns(self) -> bool {
        matches!(self, Self::DnsLb | Self::DnsRoundRobinLb)
    }
}

/// Kind of the declaring object.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ServiceSource {
    /// A Kubernetes Service.
    #[default]
    Kubernetes,
    /// A ServiceEntry.
    ServiceEntry,
}

/// Visibility of a service, rule or route (C25).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ExportTo {
    /// All namespaces (`*`).
    #[default]
    All,
    /// No namespace (`~`).
    None,
    /// These namespaces; `.` is already resolved to the namespace of the object.
    Namespaces(BTreeSet<Text>),
}

impl ExportTo {
    /// From an `exportTo` list. A `*` in it is all namespaces, otherwise a `~` is none; `.` is `namespace`, and an
    /// empty list is all namespaces.
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

    /// Whether it is visible to clients in `namespace`.
    #[must_use]
    pub fn allows(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// Preference for nearby endpoints (S03).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServicePort {
    /// The port number that clients use.
    pub port: u16,
    /// Its name, empty if unnamed.
    pub name: Text,
    /// Its protocol by the rules of S02.
    pub protocol: Protocol,
    /// Target port as declared: a number or the name of a container port; empty if the same as `port`.
    pub target_port: Text,
}

/// A service, merged from the clusters that declare it (S01, S09, S23).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Service {
    /// Namespace of the declaring object.
    pub namespace: Text,
    /// Fully qualified host.
    pub host: Host,
    /// Name of the Kubernetes Service; the host of a ServiceEntry's service.
    pub name: Text,
    /// Kind of the declaring object.
    pub source: ServiceSource,
    /// Cluster of the declaring object; the config cluster takes precedence.
    pub cluster: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Virtual addresses by cluster id, the primary first; never `0.0.0.0`, empty if headless. Those of a
    /// ServiceEntry apply in every cluster and have the empty id; they may be CIDR blocks.
    pub addresses: TextMap<Vec<Text>>,
    /// Automatically allocated addresses (S10), empty if none.
    pub auto_allocated_addresses: Vec<Text>,
    /// Load-balancer and external addresses by cluster id.
    pub external_addresses: TextMap<Vec<Text>>,
    /// Ports in declared order.
    pub ports: Vec<ServicePort>,
    /// How clients find its endpoints.
    pub resolution: Resolution,
    /// Whether it is outside the mesh (ServiceEntry MESH_EXTERNAL, ExternalName).
    pub mesh_external: bool,
    /// Its visibility.
    pub export_to: ExportTo,
    /// Labels of the declaring object.
    pub labels: Labels,
    /// Selector of its workloads; empty selects nothing.
    pub selector: Labels,
    /// SPIFFE identities of its workloads, sorted: ServiceEntry `subjectAltNames` or service-account annotations.
    pub subject_alt_names: Vec<Text>,
    /// Target of an ExternalName.
    pub external_name: Option<Host>,
    /// `internalTrafficPolicy: Local`.
    pub node_local: bool,
    /// `publishNotReadyAddresses`.
    pub publish_not_ready: bool,
    /// Preference for nearby endpoints.
    pub traffic_distribution: TrafficDistribution,
    /// Clients connect to all addresses from DNS at once and use the first connection (`istio.io/connect-strategy`).
    pub races_connects: bool,
    /// Whether it is limited to its own cluster (S21).
    pub cluster_local: bool,
    /// Whether endpoints of a cluster that does not export it are limited to clients of that cluster (S22).
    pub needs_export: bool,
    /// A younger ServiceEntry with the same host as this Kubernetes Service: it replaces the Service in route tables,
    /// on the ports that it has.
    pub covered_by: Option<Box<Service>>,
}

impl Service {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> ServiceKey {
        ServiceKey { namespace: self.namespace.clone(), host: self.host.clone() }
    }

    /// Virtual addresses for a client in `cluster`, the primary first: those of that cluster, or else of the cluster
    /// that declared the service. Empty if it has none.
    #[must_use]
    pub fn addresses_for(&self, cluster: &str) -> &[Text] {
        let own = self.addresses.get(cluster).filter(|addresses| !addresses.is_empty());
        let declared = || self.addresses.get(&self.cluster).or_else(|| self.addresses.get(""));
        own.or_else(declared).map_or(&[], Vec::as_slice)
    }

    /// The port with that number.
    #[must_use]
    pub fn port(&self, port: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|p| p.port == port)
    }

    /// The number of its port, if it has only one.
    #[must_use]
    pub fn only_port(&self) -> Option<u32> {
        match self.ports.as_slice() {
            [only] => Some(u32::from(only.port)),
            _ => None,
        }
    }

    /// Whether proxies resolve the host of each request by DNS.
    #[must_use]
    pub fn is_dynamic_dns(&self) -> bool {
        self.resolution == Resolution::DynamicDns && self.host.is_wildcard()
    }

    /// Whether it is the Service of an InferencePool: all its ports are one cluster, that of the first port (N31).
    #[must_use]
    pub fn is_inference_pool(&self) -> bool {
        self.labels.get(label::SERVICE_SEMANTICS).is_some_and(|semantics| *semantics == *label::POOL_SEMANTICS)
    }

    /// Whether it is a Kubernetes Service without a virtual address.
    #[must_use]
    pub fn is_headless(&self) -> bool {
        self.source == ServiceSource::Kubernetes && self.resolution == Resolution::Passthrough
    }
}
