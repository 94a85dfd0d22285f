//! Routes and their parents.
//!
//! The actions of a rule are parsed to the values of VirtualServices. Its destinations are resolved
//! later, because they may not exist or not be allowed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GroupKind, ObjectRef};
use crate::{Decimal, Headers, HttpMatch, ObjectMeta, StoredStatus, Text};

/// A parent of a route.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ParentRef {
    /// Kind; a Gateway if unset.
    pub kind: GroupKind,
    /// Namespace; that of the route if unset.
    pub namespace: Text,
    /// The reference names the namespace.
    pub has_namespace: bool,
    /// Name.
    pub name: Text,
    /// Name of a listener, empty for all.
    pub section: Text,
    /// Port, 0 for all.
    pub port: u16,
}

/// A weighted reference to a backend.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct BackendRef {
    /// The object; a Service if the kind is unset.
    pub target: ObjectRef,
    /// Its port.
    pub port: Option<u16>,
    /// Share among the rule's backends.
    pub weight: i32,
}

/// An HTTPRoute or GRPCRoute.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpRoute {
    /// Name, creation time.
    pub meta: ObjectMeta,
    /// Its parents.
    pub parents: Vec<ParentRef>,
    /// Hosts, wildcards allowed; empty is any.
    pub hostnames: Vec<Text>,
    /// Rules in declared order.
    pub rules: Vec<HttpRule>,
    /// Its status.
    pub status: StoredStatus,
}

/// A rule for requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpRule {
    /// Conditions, any of which suffices; empty matches everything.
    pub matches: Vec<HttpMatch>,
    /// Actions, without conditions and destinations.
    pub action: crate::HttpRoute,
    /// Fields that `action` has in another form.
    pub declared: DeclaredRule,
    /// Destinations of requests.
    pub backends: Vec<HttpBackend>,
    /// Destinations of mirrored requests.
    pub mirrors: Vec<Mirror>,
    /// Type of a filter that is not supported: the route does not apply.
    pub unsupported_filter: Option<Text>,
}

/// Fields of a rule as they are declared. Proxies other than Envoy get them in this form.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct DeclaredRule {
    /// Name of the rule, empty if it has none.
    pub name: Text,
    /// Time for the whole request; `None` is unlimited.
    pub request_timeout: Option<Duration>,
    /// Time for one request to a backend; `None` is unlimited.
    pub backend_request_timeout: Option<Duration>,
    /// Number of retries; `None` if it is unset.
    pub retry_attempts: Option<i32>,
    /// Statuses of responses that are retried.
    pub retry_codes: Vec<u32>,
    /// Origins that CORS allows, in which `*` stands for any characters.
    pub allow_origins: Vec<Text>,
    /// Servers that decide about requests. Envoys do not ask them: the route does not apply there.
    pub external_auths: Vec<ExternalAuth>,
}

/// A filter of the type `ExternalAuth`: a server that decides about requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ExternalAuth {
    /// The server.
    pub backend: BackendRef,
    /// How it is asked.
    pub protocol: ExternalAuthProtocol,
    /// Headers of the request that it gets, besides those that it gets in any case.
    pub request_headers: Vec<Text>,
    /// Maximum size of the body that it gets, in bytes. Requests with a larger one are denied. 0 if it gets no body.
    pub max_body_bytes: u16,
}

/// How a server is asked that decides about requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum ExternalAuthProtocol {
    /// By Envoy's gRPC API.
    #[default]
    Grpc,
    /// By an HTTP request.
    Http {
        /// What the path begins with, before that of the request; empty for the path of the request.
        path: Text,
        /// Headers of the response that are added to the request.
        response_headers: Vec<Text>,
    },
}

/// Destinations of requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpBackend {
    /// The backend.
    pub backend: BackendRef,
    /// Header changes for this backend.
    pub headers: Option<Headers>,
    /// Type of a filter that is not supported: the route does not apply.
    pub unsupported_filter: Option<Text>,
}

/// A destination of mirrored requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Mirror {
    /// The backend.
    pub backend: BackendRef,
    /// Share of requests, in percent; `None` is all.
    pub percentage: Option<Decimal>,
}

/// A TLSRoute, TCPRoute or UDPRoute.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct L4Route {
    /// Name, creation time.
    pub meta: ObjectMeta,
    /// Its parents.
    pub parents: Vec<ParentRef>,
    /// Server names, wildcards allowed; always empty for a TCPRoute or UDPRoute.
    pub hostnames: Vec<Text>,
    /// Destinations of each rule.
    pub rules: Vec<Vec<BackendRef>>,
    /// Its status.
    pub status: StoredStatus,
}
