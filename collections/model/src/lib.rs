//! The model values of the mesh: plain, ordered data that parsing makes from objects, and that configuration derives
//! from.
//!
//! This crate has no I/O, no clock and no protobuf. Types derive `Eq + Ord + Hash + Serialize` and contain no floats
//! and no hash maps, so that equal content is equal everywhere and dumps are reproducible. Secrets are redacted in
//! `Debug` and `Serialize`.

mod ambient;
mod any_object;
mod attachment;
mod authorization_policy;
mod claim_header;
mod compliance;
mod condition_request;
mod config_source;
mod decimal;
mod destination_rule;
mod endpoint;
mod envoy_filter;
mod extension_provider;
mod gateway;
pub mod gateway_api;
mod host;
mod identity;
mod ingress;
mod kubernetes;
pub mod label;
pub mod lb_endpoint;
mod load_balancer;
mod mesh_config;
mod mesh_networks;
mod multi_cluster;
mod network_gateway;
mod object;
mod path_template;
mod peer_authentication;
mod policy_value;
mod proxy;
mod proxy_config;
mod proxy_config_resource;
mod reject;
mod request_authentication;
mod resource;
mod resource_type;
mod secret;
mod service;
mod service_entry;
mod session;
mod sidecar;
mod stored_status;
mod telemetry;
mod template;
mod text;
mod text_map;
mod traffic_extension;
mod traffic_policy;
mod unix_socket;
mod version_pattern;
mod view;
mod virtual_service;
mod webhook_configuration;
mod workload;

pub use ambient::{
    AmbientLoadBalancing, AmbientPort, AmbientService, HBONE_PORT, HboneAddress, HboneDestination, InboundBinding,
    ServiceWaypoints, TunnelSwitches, Waypoint, WaypointClients, WaypointProblem, WaypointProblemKind,
};
pub use any_object::{MeshSettings, Object, ParsedObject};
pub use attachment::{Attachment, TargetRef, WaypointTarget};
pub use authorization_policy::{
    AuthorizationCondition, AuthorizationOperation, AuthorizationPolicy, AuthorizationRule, AuthorizationSource,
    PolicyAction, PolicyValues,
};
pub use claim_header::{CLAIM_PREFIX, claim_path};
pub use compliance::CompliancePolicy;
pub use condition_request::{ConditionRequest, RECONCILED, Reconciliation, ReconciliationState};
pub use config_source::{ConfigSource, ConfigSourceKind};
pub use decimal::Decimal;
pub use destination_rule::{DestinationRule, PortTrafficPolicy, RetryBudget, Subset, TrafficPolicy, Tunnel};
pub use endpoint::{Endpoint, Health, TlsMode};
pub use envoy_filter::{
    ApplyTo, ClusterMatch, EnvoyFilter, EnvoyPatch, FilterChainMatch, FilterMatch, HTTP_CONNECTION_MANAGER,
    ListenerMatch, ObjectMatch, PatchContext, PatchOperation, PatchValue, RouteActionMatch, RouteMatch,
    RouteTableMatch, VIRTUAL_INBOUND, VIRTUAL_OUTBOUND, VersionMatch, VirtualHostMatch,
};
pub use extension_provider::{
    DynatraceSampler, ExtAuthz, ExtAuthzHttp, ExtAuthzRequestBody, ExtensionProvider, GrpcExporter, HeaderValue,
    HttpExporter, LogFormat, OpenTelemetryTracing, ProviderHeader, ProviderKind, ProviderService,
};
pub use gateway::{
    Gateway, GatewayOwner, GatewayServer, ServerTls, ServerTlsMode, TlsCertificateFiles, TlsProtocol, is_cipher_suite,
};
pub use host::{Host, match_labels};
pub use identity::{DEFAULT_TRUST_DOMAIN, Identity, ParseIdentityError, SPIFFE_SCHEME};
pub use ingress::{Ingress, IngressBackend, IngressClass, IngressPath, IngressRule, IngressTls, PathType};
pub use kubernetes::{KubernetesService, KubernetesServicePort, Namespace, ServiceType};
pub use load_balancer::{ConsistentHash, HashAlgorithm, HashKey, LoadBalancer, SimpleLb, Warmup};
pub use mesh_config::{
    AccessLogEncoding, CaCertificate, DefaultProviders, GlobalServices, InboundPolicy, LabelRequirement, LabelSelector,
    MeshConfig, OutboundPolicy, PathNormalization, ServiceEntryVisibility, ServiceSettings, TlsSettings, TlsVersion,
    Visibility, is_cluster_local,
};
pub use mesh_networks::{MeshNetworks, Network, NetworkEndpoints, NetworkGatewayAddress, NetworkGatewayConfig};
pub use multi_cluster::{CLUSTER_SET_DOMAIN, MULTI_CLUSTER_GROUP, MultiClusterApi, ServiceExport, ServiceImport};
pub use network_gateway::NetworkGateway;
pub use object::{Kind, NETWORKING_GROUP, ObjectKey, ObjectMeta, Timestamp};
pub use path_template::{PathTemplateError, check_path_template, is_path_template};
pub use peer_authentication::{PeerAuthentication, PeerMtls};
pub use policy_value::{PolicyValueError, check_service_account, check_trust_domain, check_wildcard};
pub use proxy::{
    ClientLocation, ClientProfile, EnvoyExtensions, InterceptionMode, IpFamilies, MAX_NODE_VALUES, OtherNetworks,
    Proxy, ProxyKey, ProxySidecar, ProxyType, UNKNOWN_LOCATION,
};
pub use proxy_config::{
    ConnectionSettings, CurrentClientCert, CustomTag, EscapedSlashes, ForwardClientCert, HeadersWithUnderscores,
    PrivateKeyProvider, ProxyConfig, ProxyHeaders, RemoteService, Topology, Tracer, Tracing, TracingServiceName,
};
pub use proxy_config_resource::ProxyConfigResource;
pub use reject::{Reject, RejectCause, Severity};
pub use request_authentication::{Jwks, JwksKey, JwtKeys, JwtRule, RequestAuthentication, WantedJwks};
pub use resource::{Resource, ResourceKey, Segment, SegmentKey};
pub use resource_type::ResourceType;
pub use secret::{
    BUILTIN_CREDENTIAL, CertificateKeyPair, CredentialKind, CredentialName, FINGERPRINT_BYTES, INVALID_CREDENTIAL,
    ROOTS_SUFFIX, Redacted, RootCertificates, Secret, SecretReader,
};
pub use service::{
    ExportTo, Protocol, Resolution, Service, ServiceKey, ServicePort, ServiceSource, TrafficDistribution,
};
pub use service_entry::{ServiceEntry, ServiceEntryPort, WorkloadAddress, WorkloadEntry, WorkloadGroup};
pub use session::{PersistentSession, SessionLabels};
pub use sidecar::{CaptureMode, LocalEndpoint, OutboundTraffic, Sidecar, SidecarEgress, SidecarIngress, SidecarPort};
pub use stored_status::StoredStatus;
pub use telemetry::{
    MetricMatch, MetricsOverride, Telemetry, TelemetryLogging, TelemetryMetrics, TelemetryTracing, TraceTag,
    WorkloadMode,
};
pub use template::{SlotValues, Template, TemplatePart};
pub use text::{Text, is_true};
pub use text_map::{Labels, TextMap};
pub use traffic_extension::{
    ExtensionCode, ExtensionPhase, FailStrategy, PullPolicy, TrafficExtension, TrafficSelector, WasmConfig, WasmSource,
};
pub use traffic_policy::{
    ClientCredential, ClientTls, ClientTlsMode, ConnectionPool, H2Upgrade, HttpRetry, HttpSettings, LocalityDistribute,
    LocalityLb, OutlierDetection, TcpKeepalive, TcpSettings, ZoneAwareLb,
};
pub use unix_socket::UNIX_PREFIX;
pub use version_pattern::{MAX_VERSION_PROGRAM_BYTES, VersionPattern, remember_version};
pub use view::{Layer, Scope, SidecarScope, View};
pub use virtual_service::{
    AbortStatus, CorsPolicy, Destination, DirectResponse, DirectResponseBody, EndpointPicker, FaultAbort, FaultDelay,
    HeaderOperations, Headers, HttpDestination, HttpFault, HttpMatch, HttpMirror, HttpRedirect, HttpRewrite, HttpRoute,
    L4Match, MESH_GATEWAY, NamedMatches, RedirectPort, RouteDestination, RouteSemantics, StringMatch, TcpRoute,
    TlsMatch, TlsRoute, VirtualService,
};
pub use webhook_configuration::{DEFAULT_REVISION_WEBHOOK, DEFAULT_TAG_WEBHOOK, WebhookConfiguration};
pub use workload::{EndpointSlice, Locality, Node, Pod, SliceEndpoint, SlicePort};
