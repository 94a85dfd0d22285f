//! The definition of a pod, its Kubernetes objects, and the environment of its agent.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::network::PodNet;
use crate::ads::Protocol;

/// The definition of a pod.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name of the pod and of its workload.
    pub name: &'static str,
    /// Value of its `app` label, its service account, and the name in its responses.
    pub app: &'static str,
    /// Value of its `version` label.
    pub version: &'static str,
    /// Namespace.
    pub namespace: &'static str,
    /// Ports that the application listens on; if empty, HTTP on 8080, or none with a gRPC library.
    pub ports: Vec<Port>,
    /// Region and zone of its node, if set.
    pub zone: Option<(&'static str, &'static str)>,
    /// Its proxy.
    pub proxy: PodRole,
    /// Its sidecar receives HBONE, and others send it HBONE.
    pub hbone: bool,
}

/// The proxy of a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PodRole {
    /// No Envoy: the application has a gRPC library that reads the configuration of the mesh, and the pod has an agent.
    Grpc(GrpcLibrary),
    /// A sidecar, with redirected traffic.
    Sidecar(Protocol),
    /// No proxy.
    NoProxy,
    /// The pod is a gateway: an Envoy and no application. The text is the value of its `istio` label.
    Gateway(Protocol, &'static str),
    /// The pod is the waypoint of the Gateway with the name of its `app`: an Envoy and no application.
    Waypoint(Protocol),
    /// The pod is the east-west gateway of the Gateway with the name of its `app`: an Envoy and no application.
    EastWest(Protocol),
    /// An external service: it has no objects in the cluster, and these names resolve to it.
    External(&'static [&'static str]),
}

/// An implementation of gRPC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrpcLibrary {
    /// That of C++, for Python.
    Python,
    /// That of Go.
    Go,
}

impl PodRole {
    /// Protocol of ADS. A gRPC library has its own.
    pub(super) fn protocol(self) -> Protocol {
        match self {
            Self::Sidecar(protocol) | Self::Gateway(protocol, _) => protocol,
            Self::Waypoint(protocol) | Self::EastWest(protocol) => protocol,
            Self::NoProxy | Self::External(_) | Self::Grpc(_) => Protocol::Sotw,
        }
    }
}

/// A port of an application.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Port {
    /// Name of the container port.
    pub name: &'static str,
    /// Number.
    pub number: u16,
    /// Protocol.
    pub protocol: PortProtocol,
}

impl Port {
    /// Its transport, as Kubernetes names it.
    const fn transport(&self) -> &'static str {
        match self.protocol {
            PortProtocol::Datagrams => "UDP",
            _ => "TCP",
        }
    }
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PortProtocol {
    /// HTTP/1.1 and HTTP/2 in plaintext.
    Http,
    /// HTTP/1.1 and HTTP/2 over TLS.
    Https,
    /// Raw TCP: the application reads a line and answers with a line.
    Lines,
    /// UDP: the application answers each datagram with one.
    Datagrams,
    /// gRPC, by an application with a gRPC library.
    Grpc,
    /// The same, but the server does not read the configuration of the mesh.
    PlainGrpc,
    /// The gRPC API of external authorization. A request with `x-permit: yes` is permitted.
    Authorization,
}

impl Workload {
    /// A pod `name` of `app`, v1, in namespace `shop`.
    #[must_use]
    pub const fn new(name: &'static str, app: &'static str, proxy: PodRole) -> Self {
        Self { name, app, version: "v1", namespace: "shop", ports: Vec::new(), zone: None, proxy, hbone: false }
    }

    /// With another version.
    #[must_use]
    pub const fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// In another namespace.
    #[must_use]
    pub const fn namespace(mut self, namespace: &'static str) -> Self {
        self.namespace = namespace;
        self
    }

    /// With one more port.
    #[must_use]
    pub fn port(mut self, name: &'static str, number: u16, protocol: PortProtocol) -> Self {
        self.ports.push(Port { name, number, protocol });
        self
    }

    /// On a node of this region and zone.
    #[must_use]
    pub const fn zone(mut self, region: &'static str, zone: &'static str) -> Self {
        self.zone = Some((region, zone));
        self
    }

    /// With a sidecar that receives HBONE.
    #[must_use]
    pub const fn hbone(mut self) -> Self {
        self.hbone = true;
        self
    }

    /// The ports it listens on.
    #[must_use]
    pub fn listening(&self) -> Vec<Port> {
        if self.ports.is_empty() && self.has_app() {
            return vec![Port { name: "http", number: 8080, protocol: PortProtocol::Http }];
        }
        self.ports.clone()
    }

    /// Whether an application that speaks HTTP runs in it.
    pub(super) fn has_app(&self) -> bool {
        match self.proxy {
            PodRole::Gateway(..) | PodRole::Waypoint(_) | PodRole::EastWest(_) | PodRole::Grpc(_) => false,
            PodRole::Sidecar(_) | PodRole::NoProxy | PodRole::External(_) => true,
        }
    }

    /// Host names in its certificate.
    pub(super) fn hosts(&self) -> Vec<String> {
        match self.proxy {
            PodRole::External(hosts) => hosts.iter().map(ToString::to_string).collect(),
            _ => vec![format!("{}.{}.svc.cluster.local", self.app, self.namespace)],
        }
    }

    /// The name of its node.
    pub(super) fn node(&self) -> String {
        self.zone.map_or_else(|| "machine".to_owned(), |(region, zone)| format!("machine-{region}-{zone}"))
    }

    pub(super) fn labels(&self) -> BTreeMap<&'static str, &'static str> {
        let mut labels = BTreeMap::from([
            ("app", self.app),
            ("version", self.version),
            ("service.istio.io/canonical-name", self.app),
            ("service.istio.io/canonical-revision", self.version),
        ]);
        match self.proxy {
            PodRole::Sidecar(_) => labels.insert("security.istio.io/tlsMode", "istio"),
            PodRole::Gateway(_, name) => labels.insert("istio", name),
            PodRole::Waypoint(_) => labels.insert("gateway.networking.k8s.io/gateway-name", self.app),
            PodRole::EastWest(_) => {
                labels.insert("gateway.istio.io/managed", "istio.io-eastwest-controller");
                labels.insert("gateway.networking.k8s.io/gateway-name", self.app)
            }
            PodRole::NoProxy | PodRole::External(_) | PodRole::Grpc(_) => None,
        };
        if self.hbone {
            labels.insert("networking.istio.io/tunnel", "http");
        }
        labels
    }

    /// Environment of its agent that becomes node metadata (X05).
    pub(super) fn metadata(&self) -> [(&'static str, String); 7] {
        let port =
            |port: &Port| json!({ "name": port.name, "containerPort": port.number, "protocol": port.transport() });
        let ports: Vec<Value> = self.listening().iter().map(port).collect();
        [
            ("ISTIO_META_WORKLOAD_NAME", self.name.to_owned()),
            ("ISTIO_META_CLUSTER_ID", "Kubernetes".to_owned()),
            ("ISTIO_META_MESH_ID", "cluster.local".to_owned()),
            ("ISTIO_META_NODE_NAME", self.node()),
            ("ISTIO_META_INTERCEPTION_MODE", "REDIRECT".to_owned()),
            ("ISTIO_META_ENABLE_HBONE", self.hbone.to_string()),
            ("ISTIO_META_POD_PORTS", Value::Array(ports).to_string()),
        ]
    }

    /// The Pod and its Node as an API server has them; none for an external service.
    pub(super) fn objects(&self, net: &PodNet) -> Vec<Value> {
        if matches!(self.proxy, PodRole::External(_)) {
            return Vec::new();
        }
        let address = net.ip.to_string();
        let port =
            |port: &Port| json!({ "name": port.name, "containerPort": port.number, "protocol": port.transport() });
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "namespace": self.namespace, "labels": self.labels() },
            "spec": {
                "serviceAccountName": self.app,
                "nodeName": self.node(),
                "containers": [{
                    "name": "app", "image": "app",
                    "ports": self.listening().iter().map(port).collect::<Vec<_>>(),
                }],
            },
            "status": {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{ "ip": address }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        let node = self.zone.map(|(region, zone)| {
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": { "name": self.node(), "labels": {
                    "topology.kubernetes.io/region": region, "topology.kubernetes.io/zone": zone,
                } },
            })
        });
        [Some(pod), node].into_iter().flatten().collect()
    }

    /// The EndpointSlice of this pod for a Service whose selector matches it, as the EndpointSlice controller writes it.
    pub(super) fn slice(&self, net: &PodNet, service: &Value) -> Option<Value> {
        let metadata = &service["metadata"];
        let selector = service["spec"]["selector"].as_object().filter(|selector| !selector.is_empty())?;
        let labels = self.labels();
        let matches = |(name, value): (&String, &Value)| labels.get(name.as_str()).copied() == value.as_str();
        let is_external = matches!(self.proxy, PodRole::External(_));
        if is_external || metadata["namespace"].as_str() != Some(self.namespace) || !selector.iter().all(matches) {
            return None;
        }
        let ports = service["spec"]["ports"].as_array().into_iter().flatten().filter_map(|port| {
            let target = if port["targetPort"].is_null() { &port["port"] } else { &port["targetPort"] };
            let number = match target.as_str() {
                Some(name) => self.listening().iter().find(|port| port.name == name)?.number.into(),
                None => target.as_u64()?,
            };
            let transport = port["protocol"].as_str().unwrap_or("TCP");
            Some(json!({ "name": port["name"].as_str().unwrap_or_default(), "port": number, "protocol": transport }))
        });
        let name = metadata["name"].as_str()?;
        Some(json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{}", self.name),
                "namespace": self.namespace,
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": "IPv4",
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": [{
                "addresses": [net.ip.to_string()],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": self.node(),
                "targetRef": { "kind": "Pod", "name": self.name, "namespace": self.namespace },
            }],
        }))
    }
}
