//! Objects with their origin.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::value::{map, text};

/// Group and kind of an object. The version is not part of it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GroupKind<'k> {
    /// API group, empty for the core group.
    pub group: &'k str,
    /// Name, such as `Service`.
    pub name: &'k str,
}

impl<'k> GroupKind<'k> {
    pub(crate) const fn new(group: &'k str, name: &'k str) -> Self {
        Self { group, name }
    }
}

pub(crate) const NETWORKING: &str = "networking.istio.io";
pub(crate) const EXTENSIONS: &str = "extensions.istio.io";
pub(crate) const SECURITY: &str = "security.istio.io";
pub(crate) const GATEWAY_API: &str = "gateway.networking.k8s.io";

pub(crate) const AUTHORIZATION_POLICY: GroupKind<'static> = GroupKind::new(SECURITY, "AuthorizationPolicy");
pub(crate) const CONFIG_MAP: GroupKind<'static> = GroupKind::new("", "ConfigMap");
pub(crate) const CUSTOM_RESOURCE_DEFINITION: GroupKind<'static> =
    GroupKind::new("apiextensions.k8s.io", "CustomResourceDefinition");
pub(crate) const DEPLOYMENT: GroupKind<'static> = GroupKind::new("apps", "Deployment");
pub(crate) const DESTINATION_RULE: GroupKind<'static> = GroupKind::new(NETWORKING, "DestinationRule");
pub(crate) const ENVOY_FILTER: GroupKind<'static> = GroupKind::new(NETWORKING, "EnvoyFilter");
pub(crate) const GATEWAY: GroupKind<'static> = GroupKind::new(NETWORKING, "Gateway");
pub(crate) const GRPC_ROUTE: GroupKind<'static> = GroupKind::new(GATEWAY_API, "GRPCRoute");
pub(crate) const HTTP_ROUTE: GroupKind<'static> = GroupKind::new(GATEWAY_API, "HTTPRoute");
pub(crate) const KUBERNETES_GATEWAY: GroupKind<'static> = GroupKind::new(GATEWAY_API, "Gateway");
pub(crate) const MUTATING_WEBHOOKS: GroupKind<'static> =
    GroupKind::new("admissionregistration.k8s.io", "MutatingWebhookConfiguration");
pub(crate) const NAMESPACE: GroupKind<'static> = GroupKind::new("", "Namespace");
pub(crate) const NODE: GroupKind<'static> = GroupKind::new("", "Node");
pub(crate) const PEER_AUTHENTICATION: GroupKind<'static> = GroupKind::new(SECURITY, "PeerAuthentication");
pub(crate) const POD: GroupKind<'static> = GroupKind::new("", "Pod");
pub(crate) const PROXY_CONFIG: GroupKind<'static> = GroupKind::new(NETWORKING, "ProxyConfig");
pub(crate) const REQUEST_AUTHENTICATION: GroupKind<'static> = GroupKind::new(SECURITY, "RequestAuthentication");
pub(crate) const SECRET: GroupKind<'static> = GroupKind::new("", "Secret");
pub(crate) const SERVICE: GroupKind<'static> = GroupKind::new("", "Service");
pub(crate) const SERVICE_ENTRY: GroupKind<'static> = GroupKind::new(NETWORKING, "ServiceEntry");
pub(crate) const SIDECAR: GroupKind<'static> = GroupKind::new(NETWORKING, "Sidecar");
pub(crate) const TELEMETRY: GroupKind<'static> = GroupKind::new("telemetry.istio.io", "Telemetry");
pub(crate) const TRAFFIC_EXTENSION: GroupKind<'static> = GroupKind::new(EXTENSIONS, "TrafficExtension");
pub(crate) const VALIDATING_WEBHOOKS: GroupKind<'static> =
    GroupKind::new("admissionregistration.k8s.io", "ValidatingWebhookConfiguration");
pub(crate) const VIRTUAL_SERVICE: GroupKind<'static> = GroupKind::new(NETWORKING, "VirtualService");
pub(crate) const WASM_PLUGIN: GroupKind<'static> = GroupKind::new(EXTENSIONS, "WasmPlugin");
pub(crate) const WORKLOAD_ENTRY: GroupKind<'static> = GroupKind::new(NETWORKING, "WorkloadEntry");
pub(crate) const WORKLOAD_GROUP: GroupKind<'static> = GroupKind::new(NETWORKING, "WorkloadGroup");

/// Kinds without a namespace.
const CLUSTER_SCOPED: &[&str] = &[
    "Namespace",
    "Node",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "GatewayClass",
    "IngressClass",
    "ClusterRole",
    "ClusterRoleBinding",
];

/// Where an object was read.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Origin {
    /// In a file.
    File {
        /// Name of the file.
        name: String,
        /// Line where the object begins, counted from 1.
        line: usize,
    },
    /// In the cluster of the control plane.
    Cluster,
    /// In another cluster of the mesh.
    RemoteCluster(String),
    /// Made up for an analysis without a cluster.
    Default,
}

impl Origin {
    /// Name of the cluster: `default` for that of the control plane, to which files are applied.
    #[must_use]
    pub fn cluster(&self) -> &str {
        match self {
            Self::RemoteCluster(name) => name,
            Self::File { .. } | Self::Cluster | Self::Default => "default",
        }
    }
}

/// An object with its origin.
#[derive(Clone, Debug)]
pub struct AnalyzedObject {
    /// The object as JSON.
    pub value: Value,
    /// Where it was read.
    pub origin: Origin,
    namespace: String,
}

impl AnalyzedObject {
    /// An object. Namespaced objects that name no namespace are in `default_namespace`.
    #[must_use]
    pub fn new(value: Value, origin: Origin, default_namespace: &str) -> Self {
        let namespace = match text(&value, "metadata.namespace") {
            _ if CLUSTER_SCOPED.contains(&text(&value, "kind")) => "",
            "" => default_namespace,
            namespace => namespace,
        };
        Self { namespace: namespace.to_owned(), value, origin }
    }

    /// Group and kind.
    #[must_use]
    pub fn kind(&self) -> GroupKind<'_> {
        let group = text(&self.value, "apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
        GroupKind { group, name: text(&self.value, "kind") }
    }

    /// Namespace, empty if it has none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &str {
        text(&self.value, "metadata.name")
    }

    /// `namespace/name`, or the name alone.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.namespace.is_empty() { self.name().to_owned() } else { format!("{}/{}", self.namespace, self.name()) }
    }

    /// Labels.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<&str, &str> {
        map(&self.value, "metadata.labels")
    }

    /// Annotations.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<&str, &str> {
        map(&self.value, "metadata.annotations")
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.value.get("metadata")?.get("labels")?.get(key)?.as_str()
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.value.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    pub(crate) fn spec(&self) -> &Value {
        crate::value::at(&self.value, "spec")
    }

    /// The namespace whose analysis includes this object: for a Namespace its own name.
    pub(crate) fn analyzed_namespace(&self) -> &str {
        if self.kind() == NAMESPACE { self.name() } else { &self.namespace }
    }
}

impl fmt::Display for AnalyzedObject {
    /// `GroupKind name.namespace`, as suppressions name objects, or `GroupKind name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", text(&self.value, "kind"), self.name())?;
        if self.namespace.is_empty() { Ok(()) } else { write!(f, ".{}", self.namespace) }
    }
}
