//! Configuration of the whole mesh (C12 to C15, C19).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ClientTls, ConfigSource, ConnectionPool, DEFAULT_TRUST_DOMAIN, ExportTo, ExtensionProvider, HttpRetry, Labels,
    LocalityLb, OutlierDetection, ProviderKind, ProxyConfig, TcpKeepalive, Text, ZoneAwareLb,
};

/// Policy for traffic to unknown hosts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum OutboundPolicy {
    /// It is blocked.
    RegistryOnly,
    /// It goes to its original destination.
    #[default]
    AllowAny,
    /// It goes to the addresses of its host in DNS.
    AllowAnyDynamicDns,
}

/// Policy for inbound traffic to ports that no service declares.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum InboundPolicy {
    /// It goes to its original destination address.
    #[default]
    Passthrough,
    /// It goes to the loopback address.
    Localhost,
}

/// Encoding of a file access log.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum AccessLogEncoding {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Normalization of paths before they are matched.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum PathNormalization {
    /// As `Base`.
    #[default]
    Default,
    /// No normalization.
    None,
    /// As in RFC 3986.
    Base,
    /// In addition, adjacent slashes are merged.
    MergeSlashes,
    /// In addition, escaped slashes are unescaped first.
    DecodeAndMergeSlashes,
}

/// Lowest TLS version.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum TlsVersion {
    /// The default.
    #[default]
    Auto,
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// TLS parameters.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct TlsSettings {
    /// Lowest version.
    pub min_protocol_version: TlsVersion,
    /// Curves in order of preference; empty is the default.
    pub ecdh_curves: Vec<Text>,
    /// Cipher suites; empty is the default.
    pub cipher_suites: Vec<Text>,
}

/// Label selector of Kubernetes.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct LabelSelector {
    /// All must match.
    pub match_labels: BTreeMap<Text, Text>,
    /// All must be satisfied.
    pub match_expressions: Vec<LabelRequirement>,
}

impl LabelSelector {
    /// Whether the labels satisfy it; the empty selector matches everything, an invalid condition nothing.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_labels_of(|key| labels.get(key).map(Text::as_str))
    }

    /// As [`Self::matches`], for labels that are looked up by key.
    #[must_use]
    pub fn matches_labels_of<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        self.match_labels.iter().all(|(key, value)| label(key) == Some(value.as_str()))
            && self.match_expressions.iter().all(|expression| expression.matches(label(&expression.key)))
    }

    /// Whether it has no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

/// One condition of a [`LabelSelector`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct LabelRequirement {
    /// The label.
    pub key: Text,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: Text,
    /// Values of the first two.
    pub values: Vec<Text>,
}

impl LabelRequirement {
    /// Whether Kubernetes accepts the operator with this number of values.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match self.operator.as_str() {
            "In" | "NotIn" => !self.values.is_empty(),
            "Exists" | "DoesNotExist" => self.values.is_empty(),
            _ => false,
        }
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let is_listed = value.is_some_and(|value| self.values.iter().any(|listed| listed.as_str() == value));
        self.is_valid()
            && match self.operator.as_str() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
    }
}

/// Whether hosts are limited to their own cluster (S21).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceSettings {
    /// Only endpoints in the cluster of the client are used.
    pub cluster_local: bool,
    /// Hosts, wildcards allowed.
    pub hosts: Vec<Text>,
}

/// Limit on the visibility of a ServiceEntry (S11).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum Visibility {
    /// As in its `exportTo`.
    #[default]
    Public,
    /// At most its own namespace.
    Namespace,
    /// It is blocked.
    None,
}

/// Limits on the visibility of ServiceEntries by namespace (S11).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ServiceEntryVisibility {
    /// Default when no policy matches.
    pub default_visibility: Visibility,
    /// Whether it applies to sidecars too.
    pub apply_to_sidecars: bool,
    /// Policies; the first one whose rules all match the namespace applies. A policy without rules matches all
    /// namespaces, a rule without a selector matches none.
    pub policies: Vec<(Visibility, Vec<Option<LabelSelector>>)>,
}

/// Kubernetes Services that clients in other networks of an ambient mesh may reach (`serviceScopeConfigs`).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct GlobalServices {
    /// Labels of their namespaces.
    pub namespaces: LabelSelector,
    /// Labels of the Services.
    pub services: LabelSelector,
}

impl GlobalServices {
    /// Whether a Service with these labels, in a namespace with these labels, is one of them.
    #[must_use]
    pub fn contain(&self, namespace: &Labels, service: &Labels) -> bool {
        self.namespaces.matches(namespace) && self.services.matches(service)
    }
}

/// Providers that are used unless a Telemetry names others.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct DefaultProviders {
    /// For tracing.
    pub tracing: Vec<Text>,
    /// For metrics.
    pub metrics: Vec<Text>,
    /// For access logs.
    pub access_logging: Vec<Text>,
}

/// An additional trusted root certificate of the mesh.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct CaCertificate {
    /// The certificate in PEM, or empty.
    pub pem: Text,
    /// URL of the bundle, or empty.
    pub spiffe_bundle_url: Text,
    /// Kubernetes signers it belongs to.
    pub cert_signers: Vec<Text>,
    /// Trust domains it belongs to; empty is that of the mesh.
    pub trust_domains: Vec<Text>,
}

/// Configuration of the whole mesh: the defaults of C14, with ConfigMap `istio` merged over them.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct MeshConfig {
    /// Port that outbound traffic is redirected to.
    pub proxy_listen_port: u16,
    /// Port that inbound traffic is redirected to.
    pub proxy_inbound_listen_port: u16,
    /// Port of the HTTP proxy, 0 if none.
    pub proxy_http_port: u16,
    /// Timeout of upstream connections.
    pub connect_timeout: Duration,
    /// Idle timeout of HBONE connections.
    pub hbone_idle_timeout: Option<Duration>,
    /// How long a listener waits for bytes to detect the protocol; zero is without limit.
    pub protocol_detection_timeout: Duration,
    /// Keepalive probes upstream.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Tracing is on.
    pub enable_tracing: bool,
    /// File of the access log, empty if none.
    pub access_log_file: Text,
    /// Its format, empty for the default.
    pub access_log_format: Text,
    /// Its encoding.
    pub access_log_encoding: AccessLogEncoding,
    /// Access logs also go to the service of `default_config.envoy_access_log_service`.
    pub enable_envoy_access_log_service: bool,
    /// Whether listeners skip logs for connections that match no filter chain.
    pub disable_envoy_listener_log: bool,
    /// Defaults of proxies.
    pub default_config: ProxyConfig,
    /// Traffic to unknown hosts.
    pub outbound_policy: OutboundPolicy,
    /// TLS of `AllowAnyDynamicDns`.
    pub outbound_tls: Option<ClientTls>,
    /// Traffic to unclaimed ports.
    pub inbound_policy: InboundPolicy,
    /// Automatic mutual TLS where both sides support it.
    pub enable_auto_mtls: bool,
    /// Trust domain of the mesh.
    pub trust_domain: Text,
    /// Its aliases, sorted.
    pub trust_domain_aliases: Vec<Text>,
    /// Additional root certificates.
    pub ca_certificates: Vec<CaCertificate>,
    /// `exportTo` of Services and ServiceEntries without one. `.` is the namespace of the object.
    pub default_service_export_to: Vec<Text>,
    /// `exportTo` of VirtualServices without one.
    pub default_virtual_service_export_to: Vec<Text>,
    /// `exportTo` of DestinationRules without one.
    pub default_destination_rule_export_to: Vec<Text>,
    /// Namespace whose configuration applies to the mesh.
    pub root_namespace: Text,
    /// Balancing by locality.
    pub locality_lb: LocalityLb,
    /// Envoy's zone-aware routing.
    pub zone_aware_lb: Option<ZoneAwareLb>,
    /// Time between DNS queries after a failure.
    pub dns_refresh_rate: Duration,
    /// Upgrade HTTP/1.1 to HTTP/2 upstream.
    pub h2_upgrade: bool,
    /// Pattern of the statistics names of inbound clusters, empty for the default.
    pub inbound_cluster_stat_name: Text,
    /// Pattern of the statistics names of outbound clusters, empty for the default.
    pub outbound_cluster_stat_name: Text,
    /// Hosts that stay in their cluster.
    pub service_settings: Vec<ServiceSettings>,
    /// Whether the agent merges the metrics of the application.
    pub enable_prometheus_merge: bool,
    /// Providers by name, in declared order.
    pub extension_providers: Vec<ExtensionProvider>,
    /// Names of the providers that are used by default.
    pub default_providers: DefaultProviders,
    /// Discovery selectors: the namespaces that the control plane reads; empty is all.
    pub discovery_selectors: Vec<LabelSelector>,
    /// Normalisation of paths.
    pub path_normalization: PathNormalization,
    /// Retries of routes without their own setting.
    pub default_http_retry_policy: Option<HttpRetry>,
    /// Retries of inbound routes.
    pub default_inbound_http_retry_policy: Option<HttpRetry>,
    /// TLS between proxies.
    pub mesh_mtls: Option<TlsSettings>,
    /// TLS in other places.
    pub tls_defaults: Option<TlsSettings>,
    /// Connection pool of services without their own setting.
    pub default_connection_pool: Option<ConnectionPool>,
    /// Outlier detection of services without their own setting.
    pub default_outlier_detection: Option<OutlierDetection>,
    /// Limits on the visibility of ServiceEntries.
    pub service_entry_visibility: Option<ServiceEntryVisibility>,
    /// Services with the scope `GLOBAL`; all others have the scope `LOCAL`.
    pub global_services: Vec<GlobalServices>,
    /// Ingress objects: `OFF`, `DEFAULT` or `STRICT`.
    pub ingress_controller_mode: Text,
    /// Class of the Ingress objects that are served.
    pub ingress_class: Text,
    /// Service of the ingress gateway.
    pub ingress_service: Text,
    /// `istio` label of the ingress gateway, empty for the default.
    pub ingress_selector: Text,
    /// Sources of configuration, the first of which that has an object decides; empty is the local cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_sources: Vec<ConfigSource>,
}

impl Default for MeshConfig {
    /// The defaults of C14.
    fn default() -> Self {
        let everywhere = || vec![Text::from("*")];
        let provider = |name: &str, kind| ExtensionProvider { name: name.into(), kind };
        Self {
            proxy_listen_port: 15001,
            proxy_inbound_listen_port: 15006,
            proxy_http_port: 0,
            connect_timeout: Duration::from_secs(10),
            hbone_idle_timeout: None,
            protocol_detection_timeout: Duration::ZERO,
            tcp_keepalive: None,
            enable_tracing: true,
            access_log_file: Text::default(),
            access_log_format: Text::default(),
            access_log_encoding: AccessLogEncoding::Text,
            enable_envoy_access_log_service: false,
            disable_envoy_listener_log: false,
            default_config: ProxyConfig::default(),
            outbound_policy: OutboundPolicy::AllowAny,
            outbound_tls: None,
            inbound_policy: InboundPolicy::Passthrough,
            enable_auto_mtls: true,
            trust_domain: DEFAULT_TRUST_DOMAIN.into(),
            trust_domain_aliases: Vec::new(),
            ca_certificates: Vec::new(),
            default_service_export_to: everywhere(),
            default_virtual_service_export_to: everywhere(),
            default_destination_rule_export_to: everywhere(),
            root_namespace: "istio-system".into(),
            locality_lb: LocalityLb { enabled: Some(true), ..LocalityLb::default() },
            zone_aware_lb: None,
            dns_refresh_rate: Duration::from_secs(60),
            h2_upgrade: false,
            inbound_cluster_stat_name: Text::default(),
            outbound_cluster_stat_name: Text::default(),
            service_settings: Vec::new(),
            enable_prometheus_merge: true,
            extension_providers: vec![
                provider("prometheus", ProviderKind::Prometheus),
                provider("stackdriver", ProviderKind::Stackdriver { max_tag_length: 0, logging_labels: None }),
                provider(
                    "envoy",
                    ProviderKind::FileAccessLog { path: "/dev/stdout".into(), format: None, omit_empty_values: false },
                ),
            ],
            default_providers: DefaultProviders::default(),
            discovery_selectors: Vec::new(),
            path_normalization: PathNormalization::Default,
            default_http_retry_policy: None,
            default_inbound_http_retry_policy: None,
            mesh_mtls: None,
            tls_defaults: None,
            default_connection_pool: None,
            default_outlier_detection: None,
            service_entry_visibility: None,
            global_services: Vec::new(),
            ingress_controller_mode: "STRICT".into(),
            ingress_class: "istio".into(),
            ingress_service: "istio-ingressgateway".into(),
            ingress_selector: Text::default(),
            config_sources: Vec::new(),
        }
    }
}

impl MeshConfig {
    /// Where a VirtualService of `namespace` without `exportTo` is visible.
    #[must_use]
    pub fn virtual_service_export_to(&self, namespace: &str) -> ExportTo {
        ExportTo::resolve(&self.default_virtual_service_export_to, namespace)
    }

    /// The provider with that name.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.extension_providers.iter().find(|provider| provider.name == *name)
    }
}

/// Whether clients of `host` use only endpoints in their own cluster (S21).
///
/// Namespace `kube-system` and `kubernetes.default.svc` are cluster-local by default; the setting with the most
/// specific pattern applies.
#[must_use]
pub fn is_cluster_local(settings: &[ServiceSettings], host: &str, domain: &str) -> bool {
    let defaults = [format!("*.kube-system.svc.{domain}"), format!("kubernetes.default.svc.{domain}")];
    let matches = |pattern: &str| match pattern.strip_prefix('*') {
        Some(suffix) => host.ends_with(suffix),
        None => host == pattern,
    };
    // An explicit setting takes precedence over a default with the same pattern.
    settings
        .iter()
        .flat_map(|setting| setting.hosts.iter().map(move |pattern| (pattern.as_str(), setting.cluster_local)))
        .chain(defaults.iter().map(|pattern| (pattern.as_str(), true)))
        .filter(|(pattern, _)| matches(pattern))
        .fold(None, |best: Option<(&str, bool)>, candidate| match best {
            Some(best) if rank(best.0) >= rank(candidate.0) => Some(best),
            _ => Some(candidate),
        })
        .is_some_and(|(_, local)| local)
}

/// Exact hosts before wildcards, longer wildcards before shorter.
fn rank(pattern: &str) -> (bool, usize) {
    (!pattern.starts_with('*'), pattern.len())
}
