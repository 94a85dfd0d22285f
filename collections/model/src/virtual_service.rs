//! VirtualServices: how requests to a host are routed (N18).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::{Decimal, ExportTo, Host, HttpRetry, Labels, Text, Timestamp};

/// Name of the gateway that stands for all sidecars.
pub const MESH_GATEWAY: &str = "mesh";

/// Whose rules of matching and failing a VirtualService follows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum RouteSemantics {
    /// Those of Istio's own API.
    #[default]
    Istio,
    /// Those of Kubernetes Ingress: prefixes end at path segments.
    Ingress,
    /// Those of Gateway API: as Ingress, and a route without a backend answers 500.
    GatewayApi,
}

/// A VirtualService with short names resolved; one without hosts is a delegate (C23).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct VirtualService {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Fully qualified hosts, wildcards allowed; empty for a delegate.
    pub hosts: Vec<Host>,
    /// Gateways as `namespace/name`, or [`MESH_GATEWAY`]; never empty unless a delegate.
    pub gateways: Vec<Text>,
    /// Where it is visible; `None` is as the mesh says.
    pub export_to: Option<ExportTo>,
    /// HTTP routes, first match wins.
    pub http: Vec<HttpRoute>,
    /// Routes of TLS that is passed through, by server name.
    pub tls: Vec<TlsRoute>,
    /// Routes of opaque TCP.
    pub tcp: Vec<TcpRoute>,
    /// Whose rules it follows.
    pub semantics: RouteSemantics,
}

impl VirtualService {
    /// Whether sidecars are concerned.
    #[must_use]
    pub fn is_mesh(&self) -> bool {
        self.gateways.iter().any(|gateway| gateway.as_str() == MESH_GATEWAY)
    }

    /// Whether other VirtualServices hand part of their routing to it.
    #[must_use]
    pub fn is_delegate(&self) -> bool {
        self.hosts.is_empty()
    }
}

/// How a text is matched.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StringMatch {
    /// Equal.
    Exact(Text),
    /// Begins with.
    Prefix(Text),
    /// Matches all of the RE2 expression; `*` alone means present.
    Regex(Text),
}

/// Matches by name; `None` means the name must be present.
pub type NamedMatches = BTreeMap<Text, Option<StringMatch>>;

/// An HTTP route: conditions, any of which suffices, and what is done.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpRoute {
    /// Its name, may be empty.
    pub name: Text,
    /// Conditions; empty matches everything.
    pub matches: Vec<HttpMatch>,
    /// Weighted destinations.
    pub route: Vec<HttpDestination>,
    /// Answer with a redirect.
    pub redirect: Option<HttpRedirect>,
    /// Answer at once.
    pub direct_response: Option<DirectResponse>,
    /// Hand on to another VirtualService: (namespace, name).
    pub delegate: Option<(Text, Text)>,
    /// Change of path or authority.
    pub rewrite: Option<HttpRewrite>,
    /// Time for the answer; `None` and zero are unlimited.
    pub timeout: Option<Duration>,
    /// Retries; `None` is as the mesh says.
    pub retries: Option<HttpRetry>,
    /// Faults to inject.
    pub fault: Option<HttpFault>,
    /// Where a copy goes.
    pub mirror: Option<Destination>,
    /// Share of requests copied, in percent; `None` is all.
    pub mirror_percentage: Option<Decimal>,
    /// Old form of `mirror_percentage`.
    pub mirror_percent: Option<u32>,
    /// Where more copies go.
    pub mirrors: Vec<HttpMirror>,
    /// Cross-origin rules.
    pub cors: Option<CorsPolicy>,
    /// Changes of headers.
    pub headers: Option<Headers>,
}

/// Conditions of an HTTP route, all of which must hold.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpMatch {
    /// Its name, may be empty.
    pub name: Text,
    /// Path.
    pub uri: Option<StringMatch>,
    /// The path's case does not matter (exact and prefix).
    pub ignore_uri_case: bool,
    /// Scheme.
    pub scheme: Option<StringMatch>,
    /// Method.
    pub method: Option<StringMatch>,
    /// Authority.
    pub authority: Option<StringMatch>,
    /// Headers, and `@request.auth.claims…` for claims of a token.
    pub headers: NamedMatches,
    /// Headers that must not match.
    pub without_headers: NamedMatches,
    /// Query parameters.
    pub query_params: NamedMatches,
    /// Port the client addressed, 0 if any.
    pub port: u32,
    /// Labels the client's workload must have.
    pub source_labels: Labels,
    /// Namespace of the client, empty if any.
    pub source_namespace: Text,
    /// Gateways this condition is limited to, in the form of [`VirtualService::gateways`].
    pub gateways: Vec<Text>,
    /// Prefix of the route's own statistics, empty if none.
    pub stat_prefix: Text,
}

/// A destination: a host and perhaps a subset and port of it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Destination {
    /// Fully qualified host.
    pub host: Host,
    /// Subset, empty if none.
    pub subset: Text,
    /// Port; `None` is inferred.
    pub port: Option<u32>,
}

/// A weighted destination of an HTTP route.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpDestination {
    /// Where.
    pub destination: Destination,
    /// Share among the route's destinations.
    pub weight: i32,
    /// Changes of headers for this destination.
    pub headers: Option<Headers>,
}

/// A weighted destination of a TCP or TLS route.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct RouteDestination {
    /// Where.
    pub destination: Destination,
    /// Share among the route's destinations.
    pub weight: i32,
}

/// Changes of headers.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Headers {
    /// Of the request.
    pub request: HeaderOperations,
    /// Of the response.
    pub response: HeaderOperations,
}

/// Changes of the headers of one message.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HeaderOperations {
    /// Replace or create.
    pub set: BTreeMap<Text, Text>,
    /// Append.
    pub add: BTreeMap<Text, Text>,
    /// Remove.
    pub remove: Vec<Text>,
}

/// Port of a redirect.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum RedirectPort {
    /// Unset, or the default of the scheme.
    #[default]
    FromProtocol,
    /// The one the client used.
    FromRequest,
    /// This one.
    Port(u32),
}

/// An HTTP redirect.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpRedirect {
    /// New path, empty if kept.
    pub uri: Text,
    /// New authority, empty if kept.
    pub authority: Text,
    /// New port.
    pub port: RedirectPort,
    /// New scheme, empty if kept.
    pub scheme: Text,
    /// Status, 0 is 301.
    pub code: u32,
    /// Replacement of the matched prefix, empty if none.
    pub prefix_rewrite: Text,
}

/// Body of a direct response.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum DirectResponseBody {
    /// Text.
    Text(Text),
    /// Anything else.
    Bytes(Vec<u8>),
}

/// An answer given at once.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct DirectResponse {
    /// Status.
    pub status: u32,
    /// Body, at most 1 MiB.
    pub body: Option<DirectResponseBody>,
}

/// A change of path or authority.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpRewrite {
    /// Replacement of the matched path or prefix, empty if none.
    pub uri: Text,
    /// New authority, empty if kept.
    pub authority: Text,
    /// Replacement by expression: (match, substitution).
    pub regex: Option<(Text, Text)>,
}

/// Faults injected into requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpFault {
    /// Wait first.
    pub delay: Option<FaultDelay>,
    /// Answer with an error.
    pub abort: Option<FaultAbort>,
}

/// An injected delay.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct FaultDelay {
    /// How long; `None` is no delay.
    pub fixed: Option<Duration>,
    /// Share of requests, in percent.
    pub percentage: Option<Decimal>,
    /// Old form of `percentage`.
    pub percent: u32,
}

/// What an injected error answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum AbortStatus {
    /// An HTTP status.
    Http(u32),
    /// A gRPC status by number.
    Grpc(u32),
}

/// An injected error.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct FaultAbort {
    /// What is answered; `None` is no fault.
    pub status: Option<AbortStatus>,
    /// Share of requests, in percent; `None` is unset.
    pub percentage: Option<Decimal>,
}

/// Where a copy of a request goes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HttpMirror {
    /// Where.
    pub destination: Destination,
    /// Share of requests, in percent; `None` is all.
    pub percentage: Option<Decimal>,
}

/// Cross-origin rules.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct CorsPolicy {
    /// Origins that may ask.
    pub allow_origins: Vec<StringMatch>,
    /// Methods that may be used.
    pub allow_methods: Vec<Text>,
    /// Headers that may be sent.
    pub allow_headers: Vec<Text>,
    /// Headers that may be read.
    pub expose_headers: Vec<Text>,
    /// How long the answer of a preflight holds.
    pub max_age: Option<Duration>,
    /// Whether credentials may be sent.
    pub allow_credentials: Option<bool>,
    /// Preflights that match no origin are answered here instead of forwarded.
    pub ignore_unmatched_preflights: bool,
}

/// A route of TLS that is passed through.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TlsRoute {
    /// Conditions, any of which suffices; never empty.
    pub matches: Vec<TlsMatch>,
    /// Weighted destinations.
    pub route: Vec<RouteDestination>,
}

/// Conditions of a TLS route, all of which must hold.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TlsMatch {
    /// Server names, any of which suffices; as written, they may be wildcards.
    pub sni_hosts: Vec<Text>,
    /// Addresses the client asked for.
    pub destination_subnets: Vec<Text>,
    /// Port the client addressed, 0 if any.
    pub port: u32,
    /// Labels the client's workload must have.
    pub source_labels: Labels,
    /// Gateways this condition is limited to.
    pub gateways: Vec<Text>,
    /// Namespace of the client, empty if any.
    pub source_namespace: Text,
}

/// A route of opaque TCP.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct TcpRoute {
    /// Conditions, any of which suffices; empty matches everything.
    pub matches: Vec<L4Match>,
    /// Weighted destinations.
    pub route: Vec<RouteDestination>,
}

/// Conditions of a TCP route, all of which must hold.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct L4Match {
    /// Addresses the client asked for.
    pub destination_subnets: Vec<Text>,
    /// Port the client addressed, 0 if any.
    pub port: u32,
    /// Addresses of the client, empty if any.
    pub source_subnet: Text,
    /// Labels the client's workload must have.
    pub source_labels: Labels,
    /// Gateways this condition is limited to.
    pub gateways: Vec<Text>,
    /// Namespace of the client, empty if any.
    pub source_namespace: Text,
}
