//! VirtualServices: routing of requests to a host (N18).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Decimal, ExportTo, Host, HttpRetry, Labels, Text, Timestamp};

/// Name of the gateway that represents all sidecars.
pub const MESH_GATEWAY: &str = "mesh";

/// The API whose matching and failure rules a VirtualService follows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum RouteSemantics {
    /// Istio's own API.
    #[default]
    Istio,
    /// Kubernetes Ingress: prefixes match whole path segments.
    Ingress,
    /// Gateway API: as Ingress, and a route without a valid backend responds with 500.
    GatewayApi,
}

/// A VirtualService with resolved short names. A VirtualService without hosts is a delegate (C23).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
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
    /// Visibility; `None` is the default of the mesh.
    pub export_to: Option<ExportTo>,
    /// HTTP routes, first match wins.
    pub http: Vec<HttpRoute>,
    /// Routes for TLS passthrough, by server name.
    pub tls: Vec<TlsRoute>,
    /// Routes of opaque TCP.
    pub tcp: Vec<TcpRoute>,
    /// The API whose rules it follows.
    pub semantics: RouteSemantics,
}

impl VirtualService {
    /// Whether it applies to sidecars.
    #[must_use]
    pub fn is_mesh(&self) -> bool {
        self.gateways.iter().any(|gateway| gateway.as_str() == MESH_GATEWAY)
    }

    /// Whether it is a delegate of other VirtualServices.
    #[must_use]
    pub fn is_delegate(&self) -> bool {
        self.hosts.is_empty()
    }
}

/// How a text is matched.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StringMatch {
    /// Equal.
    Exact(Text),
    /// Prefix.
    Prefix(Text),
    /// Matches all of the RE2 expression; `*` alone means present.
    Regex(Text),
}

impl StringMatch {
    /// An RE2 expression that matches exactly `text`.
    #[must_use]
    pub fn escape_regex(text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        for c in text.chars() {
            if r"\.+*?()|[]{}^$".contains(c) {
                escaped.push('\\');
            }
            escaped.push(c);
        }
        escaped
    }
}

/// Matches by name; `None` means the name must be present.
pub type NamedMatches = BTreeMap<Text, Option<StringMatch>>;

/// An HTTP route: conditions, of which one must match, and actions.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpRoute {
    /// Its name, may be empty.
    pub name: Text,
    /// Conditions; empty matches everything.
    pub matches: Vec<HttpMatch>,
    /// Weighted destinations.
    pub route: Vec<HttpDestination>,
    /// Respond with a redirect.
    pub redirect: Option<HttpRedirect>,
    /// Respond directly.
    pub direct_response: Option<DirectResponse>,
    /// Delegate to another VirtualService: (namespace, name).
    pub delegate: Option<(Text, Text)>,
    /// Change of path or authority.
    pub rewrite: Option<HttpRewrite>,
    /// Timeout; `None` and zero are unlimited.
    pub timeout: Option<Duration>,
    /// Retries; `None` is the default of the mesh.
    pub retries: Option<HttpRetry>,
    /// Faults to inject.
    pub fault: Option<HttpFault>,
    /// Destination of mirrored requests.
    pub mirror: Option<Destination>,
    /// Share of mirrored requests, in percent; `None` is all.
    pub mirror_percentage: Option<Decimal>,
    /// Old form of `mirror_percentage`.
    pub mirror_percent: Option<u32>,
    /// More destinations of mirrored requests.
    pub mirrors: Vec<HttpMirror>,
    /// CORS policy.
    pub cors: Option<Box<CorsPolicy>>,
    /// Header changes.
    pub headers: Option<Headers>,
    /// The service that picks an endpoint of the destination for each request: that of an InferencePool.
    pub endpoint_picker: Option<EndpointPicker>,
}

/// A service that picks endpoints of a destination (N31).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct EndpointPicker {
    /// Its host.
    pub host: Host,
    /// Its port.
    pub port: u16,
    /// While it fails, requests go to any endpoint. Otherwise they fail.
    pub fails_open: bool,
}

/// Conditions of an HTTP route, all of which must match.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpMatch {
    /// Its name, may be empty.
    pub name: Text,
    /// Path.
    pub uri: Option<StringMatch>,
    /// Whether the match of the path ignores case (exact and prefix).
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
    /// Destination port of the client, 0 if any.
    pub port: u32,
    /// Labels of the client workload.
    pub source_labels: Labels,
    /// Namespace of the client, empty if any.
    pub source_namespace: Text,
    /// Gateways that this condition is limited to, in the form of [`VirtualService::gateways`].
    pub gateways: Vec<Text>,
    /// Prefix of the route's own statistics, empty if none.
    pub stat_prefix: Text,
}

/// A destination: a host, and optionally a subset and a port.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Destination {
    /// Fully qualified host.
    pub host: Host,
    /// Subset, empty if none.
    pub subset: Text,
    /// Port; `None` if it is inferred.
    pub port: Option<u32>,
}

/// A weighted destination of an HTTP route.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpDestination {
    /// The destination.
    pub destination: Destination,
    /// Share among the route's destinations.
    pub weight: i32,
    /// Header changes for this destination.
    pub headers: Option<Headers>,
}

/// A weighted destination of a TCP or TLS route.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RouteDestination {
    /// The destination.
    pub destination: Destination,
    /// Share among the route's destinations.
    pub weight: i32,
}

/// Header changes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Headers {
    /// Changes of request headers.
    pub request: HeaderOperations,
    /// Changes of response headers.
    pub response: HeaderOperations,
}

/// Header changes of one message.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HeaderOperations {
    /// Replace or create.
    pub set: BTreeMap<Text, Text>,
    /// Append.
    pub add: BTreeMap<Text, Text>,
    /// Remove.
    pub remove: Vec<Text>,
}

/// Port of a redirect.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum RedirectPort {
    /// Unset, or the default of the scheme.
    #[default]
    FromProtocol,
    /// The port of the request.
    FromRequest,
    /// This port.
    Port(u32),
}

/// An HTTP redirect.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpRedirect {
    /// New path; empty keeps the path.
    pub uri: Text,
    /// New authority; empty keeps the authority.
    pub authority: Text,
    /// New port.
    pub port: RedirectPort,
    /// New scheme; empty keeps the scheme.
    pub scheme: Text,
    /// Status, 0 is 301.
    pub code: u32,
    /// Replacement of the matched prefix, empty if none.
    pub prefix_rewrite: Text,
}

/// Body of a direct response.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum DirectResponseBody {
    /// Text.
    Text(Text),
    /// Bytes that are not UTF-8 text.
    Bytes(Vec<u8>),
}

/// A direct response.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct DirectResponse {
    /// Status.
    pub status: u32,
    /// Body, at most 1 MiB.
    pub body: Option<DirectResponseBody>,
}

/// A change of path or authority.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpRewrite {
    /// Replacement of the matched path or prefix, empty if none.
    pub uri: Text,
    /// New authority; empty keeps the authority.
    pub authority: Text,
    /// Replacement by regular expression: (match, substitution).
    pub regex: Option<(Text, Text)>,
}

/// Faults injected into requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpFault {
    /// Delay.
    pub delay: Option<FaultDelay>,
    /// Abort.
    pub abort: Option<FaultAbort>,
}

/// An injected delay.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct FaultDelay {
    /// How long; `None` is no delay.
    pub fixed: Option<Duration>,
    /// Share of requests, in percent.
    pub percentage: Option<Decimal>,
    /// Old form of `percentage`.
    pub percent: u32,
}

/// Status of an injected error.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum AbortStatus {
    /// An HTTP status.
    Http(u32),
    /// A gRPC status by number.
    Grpc(u32),
}

/// An injected error.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct FaultAbort {
    /// The status; `None` is no fault.
    pub status: Option<AbortStatus>,
    /// Share of requests, in percent; `None` is unset.
    pub percentage: Option<Decimal>,
}

/// A destination of mirrored requests.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct HttpMirror {
    /// The destination.
    pub destination: Destination,
    /// Share of requests, in percent; `None` is all.
    pub percentage: Option<Decimal>,
}

/// CORS policy.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct CorsPolicy {
    /// Allowed origins.
    pub allow_origins: Vec<StringMatch>,
    /// Allowed methods.
    pub allow_methods: Vec<Text>,
    /// Allowed request headers.
    pub allow_headers: Vec<Text>,
    /// Exposed response headers.
    pub expose_headers: Vec<Text>,
    /// How long clients may cache the preflight response.
    pub max_age: Option<Duration>,
    /// Whether credentials are allowed.
    pub allow_credentials: Option<bool>,
    /// Whether preflights that match no origin are answered by the proxy instead of forwarded.
    pub ignore_unmatched_preflights: bool,
}

/// A route for TLS passthrough.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TlsRoute {
    /// Conditions, of which one must match; never empty.
    pub matches: Vec<TlsMatch>,
    /// Weighted destinations.
    pub route: Vec<RouteDestination>,
}

/// Conditions of a TLS route, all of which must match.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TlsMatch {
    /// Server names as declared, of which one must match; wildcards are allowed.
    pub sni_hosts: Vec<Text>,
    /// Destination addresses of the client.
    pub destination_subnets: Vec<Text>,
    /// Destination port of the client, 0 if any.
    pub port: u32,
    /// Labels of the client workload.
    pub source_labels: Labels,
    /// Gateways that this condition is limited to.
    pub gateways: Vec<Text>,
    /// Namespace of the client, empty if any.
    pub source_namespace: Text,
}

/// A route of opaque TCP.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TcpRoute {
    /// Conditions, of which one must match; empty matches everything.
    pub matches: Vec<L4Match>,
    /// Weighted destinations.
    pub route: Vec<RouteDestination>,
}

/// Conditions of a TCP route, all of which must match.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct L4Match {
    /// Destination addresses of the client.
    pub destination_subnets: Vec<Text>,
    /// Destination port of the client, 0 if any.
    pub port: u32,
    /// Source addresses of the client, empty if any.
    pub source_subnet: Text,
    /// Labels of the client workload.
    pub source_labels: Labels,
    /// Gateways that this condition is limited to.
    pub gateways: Vec<Text>,
    /// Namespace of the client, empty if any.
    pub source_namespace: Text,
}
