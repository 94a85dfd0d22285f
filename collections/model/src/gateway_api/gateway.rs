//! Gateways, their classes, and the listeners that ListenerSets add to them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{GroupKind, ObjectRef};
use crate::{LabelSelector, Labels, ObjectMeta, StoredStatus, Text};

/// A GatewayClass.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GatewayClass {
    /// Name, labels, annotations.
    pub meta: ObjectMeta,
    /// The controller of the class.
    pub controller: Text,
    /// Its status.
    pub status: StoredStatus,
}

/// A Gateway of the Gateway API.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Gateway {
    /// Name, labels, annotations, creation time.
    pub meta: ObjectMeta,
    /// Its GatewayClass.
    pub class: Text,
    /// Requested addresses.
    pub addresses: Vec<GatewayAddress>,
    /// Listeners in declared order.
    pub listeners: Vec<Listener>,
    /// Namespaces whose ListenerSets may add listeners.
    pub allowed_listeners: NamespaceSelection,
    /// Verification of client certificates, if configured.
    pub frontend_tls: Option<FrontendTls>,
    /// The client certificate for backends. Only agentgateways use it.
    pub backend_certificate: Option<ObjectRef>,
    /// What `spec.infrastructure` says about the deployed objects.
    pub infrastructure: Infrastructure,
    /// Its unique id, which its deployed objects refer to.
    pub uid: Text,
    /// Assigned addresses, from its status.
    pub assigned_addresses: Vec<GatewayAddress>,
    /// Its status.
    pub status: StoredStatus,
}

/// What is set on the objects that are deployed for a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Infrastructure {
    /// Labels; `None` if the field is absent, then they are those of the Gateway.
    pub labels: Option<Labels>,
    /// Annotations; `None` if the field is absent, then they are those of the Gateway.
    pub annotations: Option<Labels>,
    /// The ConfigMap with overlays of the deployed objects.
    pub parameters: Option<ObjectRef>,
}

/// Type of an address of a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum AddressKind {
    /// Unset, which means an IP address.
    #[default]
    Unset,
    /// An IP address.
    Ip,
    /// A host name, such as that of a Service.
    Hostname,
    /// A type that an implementation defines.
    Other(Text),
}

/// An address of a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GatewayAddress {
    /// Its type.
    pub kind: AddressKind,
    /// The address; may be empty.
    pub value: Text,
}

impl GatewayAddress {
    /// Whether clients can connect to it: it is an IP address or a host name.
    #[must_use]
    pub fn is_network_address(&self) -> bool {
        match self.kind {
            AddressKind::Unset | AddressKind::Ip => self.value.parse::<IpAddr>().is_ok(),
            AddressKind::Hostname => !self.value.is_empty(),
            AddressKind::Other(_) => false,
        }
    }
}

/// Listeners added to a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ListenerSet {
    /// Name, labels, creation time.
    pub meta: ObjectMeta,
    /// The Gateway.
    pub parent: ObjectRef,
    /// Listeners in declared order.
    pub listeners: Vec<Listener>,
    /// Its status.
    pub status: StoredStatus,
}

/// A listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Listener {
    /// Its name, unique in the object.
    pub name: Text,
    /// Host, wildcards allowed; empty is any.
    pub hostname: Text,
    /// Port, 0 if unset.
    pub port: u16,
    /// Protocol as declared: `HTTP`, `HTTPS`, `TLS`, `TCP`, `HBONE`.
    pub protocol: Text,
    /// TLS, if any.
    pub tls: Option<ListenerTls>,
    /// Routes that may be attached.
    pub allowed_routes: AllowedRoutes,
}

/// TLS mode of a listener.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ListenerTlsMode {
    /// The listener terminates TLS.
    Terminate,
    /// TLS is passed through and routed by server name.
    Passthrough,
}

/// TLS of a listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ListenerTls {
    /// Mode; `None` terminates.
    pub mode: Option<ListenerTlsMode>,
    /// Certificates.
    pub certificates: Vec<ObjectRef>,
    /// Options that an implementation defines.
    pub options: BTreeMap<Text, Text>,
}

/// Routes that may be attached to a listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct AllowedRoutes {
    /// Namespaces of the routes.
    pub namespaces: NamespaceSelection,
    /// Kinds; empty is every kind that is valid for the protocol.
    pub kinds: Vec<GroupKind>,
}

/// Namespaces from which objects may be attached.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum NamespaceSelection {
    /// Unset: the default of the field.
    #[default]
    Unset,
    /// No namespace.
    None,
    /// The namespace of the object.
    Same,
    /// All namespaces.
    All,
    /// Namespaces that match the selector; `None` if the selector is absent.
    Selected(Option<LabelSelector>),
}

/// Verification of the client certificates of listeners.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct FrontendTls {
    /// For listeners on ports without their own setting.
    pub default: FrontendValidation,
    /// For listeners on a port.
    pub per_port: BTreeMap<u16, FrontendValidation>,
}

/// Verification of client certificates.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct FrontendValidation {
    /// Root certificates; without them, clients present no certificate.
    pub roots: Vec<ObjectRef>,
    /// Clients without a valid certificate are accepted too.
    pub allows_insecure: bool,
}
