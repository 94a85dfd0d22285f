//! Gateways, their classes, and the listeners others add to them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{GroupKind, ObjectRef};
use crate::{LabelSelector, ObjectMeta, Text};

/// A GatewayClass.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GatewayClass {
    /// Name, labels, annotations.
    pub meta: ObjectMeta,
    /// Who serves Gateways of the class.
    pub controller: Text,
}

/// A Gateway of the Gateway API.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Gateway {
    /// Name, labels, annotations, creation time.
    pub meta: ObjectMeta,
    /// Its GatewayClass.
    pub class: Text,
    /// Addresses asked for.
    pub addresses: Vec<GatewayAddress>,
    /// Listeners in declared order.
    pub listeners: Vec<Listener>,
    /// From where listeners may be added to it.
    pub allowed_listeners: NamespaceSelection,
    /// What clients of its listeners have to show, if anything is said.
    pub frontend_tls: Option<FrontendTls>,
    /// Addresses it has, as its status says.
    pub assigned_addresses: Vec<GatewayAddress>,
}

/// What an address of a Gateway is.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum AddressKind {
    /// Nothing is said, which means an IP address.
    #[default]
    Unset,
    /// An IP address.
    Ip,
    /// A host name, that of a Service in particular.
    Hostname,
    /// Something an implementation made up.
    Other(Text),
}

/// An address of a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct GatewayAddress {
    /// What it is.
    pub kind: AddressKind,
    /// The address, may be empty.
    pub value: Text,
}

/// Listeners added to a Gateway.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerSet {
    /// Name, labels, creation time.
    pub meta: ObjectMeta,
    /// The Gateway.
    pub parent: ObjectRef,
    /// Listeners in declared order.
    pub listeners: Vec<Listener>,
}

/// A listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Listener {
    /// Its name, unique in the object.
    pub name: Text,
    /// Host it is for, wildcards allowed; empty is any.
    pub hostname: Text,
    /// Port, 0 if it is not said.
    pub port: u16,
    /// Protocol as written: `HTTP`, `HTTPS`, `TLS`, `TCP`, `HBONE`.
    pub protocol: Text,
    /// TLS, if any.
    pub tls: Option<ListenerTls>,
    /// What may be attached.
    pub allowed_routes: AllowedRoutes,
}

/// What becomes of TLS at a listener.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum ListenerTlsMode {
    /// It ends here.
    Terminate,
    /// It is routed by server name.
    Passthrough,
}

/// TLS of a listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ListenerTls {
    /// What becomes of it; unset terminates.
    pub mode: Option<ListenerTlsMode>,
    /// Certificates.
    pub certificates: Vec<ObjectRef>,
    /// Options of implementations.
    pub options: BTreeMap<Text, Text>,
}

/// What may be attached to a listener.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct AllowedRoutes {
    /// From where.
    pub namespaces: NamespaceSelection,
    /// Kinds; empty is every kind that suits the protocol.
    pub kinds: Vec<GroupKind>,
}

/// Namespaces from where something may be attached.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum NamespaceSelection {
    /// Nothing is said: the default of the field.
    #[default]
    Unset,
    /// Nowhere.
    None,
    /// The object's own.
    Same,
    /// Everywhere.
    All,
    /// Those with such labels; `None` is a selector that is missing.
    Selected(Option<LabelSelector>),
}

/// What clients of listeners have to show.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct FrontendTls {
    /// At listeners of ports that are not among the others.
    pub default: FrontendValidation,
    /// At listeners of a port.
    pub per_port: BTreeMap<u16, FrontendValidation>,
}

/// How certificates of clients are verified.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct FrontendValidation {
    /// Roots; without any, clients show nothing.
    pub roots: Vec<ObjectRef>,
    /// Clients without a good certificate are let in too.
    pub allows_insecure: bool,
}
