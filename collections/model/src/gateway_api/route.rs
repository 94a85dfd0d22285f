//! Routes, and what they are attached to.
//!
//! What a rule does with requests is said with the values of VirtualServices right away; only where they go is looked up
//! later, because it may not exist or not be allowed.

use serde::Serialize;

use super::{GroupKind, ObjectRef};
use crate::{Decimal, Headers, HttpMatch, ObjectMeta, Text};

/// What a route is attached to.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ParentRef {
    /// Kind; a Gateway if none is said.
    pub kind: GroupKind,
    /// Namespace, that of the route if none is said.
    pub namespace: Text,
    /// Name.
    pub name: Text,
    /// Name of a listener, empty for all.
    pub section: Text,
    /// Port, 0 for all.
    pub port: u16,
}

/// A weighted reference to where something goes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct BackendRef {
    /// The object; a Service if no kind is said.
    pub target: ObjectRef,
    /// Port of it.
    pub port: Option<u16>,
    /// Share among the rule's backends.
    pub weight: i32,
}

/// An HTTPRoute or GRPCRoute.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpRoute {
    /// Name, creation time.
    pub meta: ObjectMeta,
    /// What it is attached to.
    pub parents: Vec<ParentRef>,
    /// Hosts it is for, wildcards allowed; empty is any.
    pub hostnames: Vec<Text>,
    /// Rules in declared order.
    pub rules: Vec<HttpRule>,
}

/// A rule for requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpRule {
    /// Conditions, any of which suffices; empty matches everything.
    pub matches: Vec<HttpMatch>,
    /// What is done, less conditions and destinations.
    pub action: crate::HttpRoute,
    /// Where requests go.
    pub backends: Vec<HttpBackend>,
    /// Where copies go.
    pub mirrors: Vec<Mirror>,
}

/// Where requests go.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpBackend {
    /// Where.
    pub backend: BackendRef,
    /// Changes of headers for it.
    pub headers: Option<Headers>,
}

/// Where a copy of requests goes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Mirror {
    /// Where.
    pub backend: BackendRef,
    /// Share of requests, in percent; `None` is all.
    pub percentage: Option<Decimal>,
}

/// A TLSRoute or TCPRoute.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct L4Route {
    /// Name, creation time.
    pub meta: ObjectMeta,
    /// What it is attached to.
    pub parents: Vec<ParentRef>,
    /// Server names it is for, wildcards allowed; always empty for a TCPRoute.
    pub hostnames: Vec<Text>,
    /// Where the connections of each rule go.
    pub rules: Vec<Vec<BackendRef>>,
}
