//! Kubernetes Ingress and IngressClass as declared.

use serde::{Deserialize, Serialize};

use crate::{ObjectMeta, Text};

/// An Ingress (C11).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Ingress {
    /// Name, annotations, creation time.
    pub meta: ObjectMeta,
    /// Its IngressClass, if set.
    pub class_name: Option<Text>,
    /// Hosts with their certificates.
    pub tls: Vec<IngressTls>,
    /// Rules in declared order.
    pub rules: Vec<IngressRule>,
    /// The addresses in its status, as JSON text; empty if there are none.
    pub status_addresses: Text,
}

/// Hosts and their certificate.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct IngressTls {
    /// Hosts; empty is all.
    pub hosts: Vec<Text>,
    /// Secret with the certificate; may be empty.
    pub secret_name: Text,
}

/// The routes of a host.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct IngressRule {
    /// The host; empty for any.
    pub host: Text,
    /// Paths in declared order; `None` where the rule has no `http` part.
    pub paths: Option<Vec<IngressPath>>,
}

/// How a path is matched.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum PathType {
    /// Implementation-specific: a trailing `*` matches any suffix.
    #[default]
    ImplementationSpecific,
    /// Equal.
    Exact,
    /// Prefix of whole path segments.
    Prefix,
}

/// A path and its backend.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct IngressPath {
    /// The path; may be empty.
    pub path: Text,
    /// How the path is matched.
    pub path_type: PathType,
    /// The Service; `None` for a backend of another kind.
    pub backend: Option<IngressBackend>,
}

/// A Service of the Ingress's namespace and one of its ports.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct IngressBackend {
    /// The Service.
    pub service: Text,
    /// Number of the port, 0 if it is named.
    pub port: u16,
    /// Name of the port.
    pub port_name: Text,
}

/// An IngressClass.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct IngressClass {
    /// The controller of the class.
    pub controller: Text,
}
