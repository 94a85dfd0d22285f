//! HBONE: connections through an internal listener, which tunnels them to the peer proxy (N25).

use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    DiscoveryType, LbConfig, LbPolicy, OriginalDstLbConfig, TransportSocketMatch,
};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::core::v3::{
    Http2ProtocolOptions, HttpProtocolOptions as CommonOptions, TransportSocket,
};
use envoy_types::pb::envoy::extensions::transport_sockets::internal_upstream::v3::InternalUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::internal_upstream::v3::internal_upstream_transport::MetadataValueSource;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CombinedCertificateValidationContext, ValidationContextType,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::tls_parameters::TlsProtocol;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher, TlsParameters, UpstreamTlsContext,
};
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::r#type::metadata::v3::metadata_key::PathSegment;
use envoy_types::pb::envoy::r#type::metadata::v3::metadata_key::path_segment::Segment;
use envoy_types::pb::envoy::r#type::metadata::v3::metadata_kind::{Cluster as OfCluster, Host as OfHost, Kind};
use envoy_types::pb::envoy::r#type::metadata::v3::{MetadataKey, MetadataKind};
use envoy_types::pb::google::protobuf::UInt32Value;
use serde::Serialize;
use sluice_model::{ClientTlsMode, CompliancePolicy, HBONE_PORT, MeshConfig, Text};

use super::draft::{Draft, explicit};
use super::traffic_policy::unlimited;
use super::transport_socket::{RAW_BUFFER, by_tls_mode, plain_match, raw_buffer};
use super::{ClusterSettings, ClusterSwitches, metadata};
use crate::compliance::enforce;
use crate::name::{CONNECT_ORIGINATE, stat_prefix};
use crate::sds::{MESH_ROOTS, WORKLOAD_CERTIFICATE, agent_secret};
use crate::socket_match::{MTLS_MATCH, by_hbone};
use crate::string_match::{in_trust_domain, prefix};
use crate::wire::{any, duration, uint32};

/// Metadata key of the original destination.
pub(crate) const ORIGINAL_DST: &str = "envoy.filters.listener.original_dst";
/// Default idle timeout.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// Cleanup interval of unused original destinations.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// Settings of the mesh for HBONE.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct HboneSettings {
    /// Idle timeout of a connection.
    pub idle_timeout: Option<Duration>,
    /// Accepted trust domains of the peer: that of the mesh, then its aliases.
    pub trust_domains: Vec<Text>,
    /// Initial window of streams in bytes, 0 for the default of Envoy.
    stream_window: u32,
    /// Initial window of connections in bytes, 0 for the default of Envoy.
    connection_window: u32,
}

impl HboneSettings {
    /// Settings from `MeshConfig` and the options of the server.
    #[must_use]
    pub fn new(mesh: &MeshConfig, switches: ClusterSwitches) -> Self {
        Self {
            idle_timeout: mesh.hbone_idle_timeout,
            trust_domains: tunnel_trust_domains(mesh),
            stream_window: switches.hbone_stream_window,
            connection_window: switches.hbone_connection_window,
        }
    }
}

/// The accepted trust domains of the peers of tunnels: that of the mesh, then its aliases.
pub(crate) fn tunnel_trust_domains(mesh: &MeshConfig) -> Vec<Text> {
    let mut trust_domains = vec![mesh.trust_domain.clone()];
    for alias in &mesh.trust_domain_aliases {
        if !trust_domains.contains(alias) {
            trust_domains.push(alias.clone());
        }
    }
    trust_domains
}

/// The cluster behind the internal listener: to the proxy of the destination, or to the waypoint in the metadata.
#[must_use]
pub fn build_connect_originate(settings: &ClusterSettings, hbone: &HboneSettings) -> Cluster {
    let tls = mutual_tls(settings.compliance, &hbone.trust_domains, None);
    tunnel_cluster(settings, hbone, CONNECT_ORIGINATE, tls, true).finish()
}

/// A cluster that makes a tunnel to the original destination. With `to_waypoint`, a waypoint in the metadata of the
/// endpoint replaces it.
pub(super) fn tunnel_cluster(
    settings: &ClusterSettings,
    hbone: &HboneSettings,
    name: &str,
    tls: CommonTlsContext,
    to_waypoint: bool,
) -> Draft {
    let waypoint = || MetadataKey {
        key: ORIGINAL_DST.to_owned(),
        path: vec![PathSegment { segment: Some(Segment::Key("waypoint".to_owned())) }],
    };
    let mut draft = Draft {
        cluster: Cluster {
            name: name.to_owned(),
            alt_stat_name: stat_prefix(name),
            lb_policy: LbPolicy::ClusterProvided as i32,
            connect_timeout: Some(duration(settings.connect_timeout)),
            cleanup_interval: Some(duration(CLEANUP_INTERVAL)),
            circuit_breakers: Some(CircuitBreakers {
                thresholds: vec![unlimited(settings)],
                ..CircuitBreakers::default()
            }),
            lb_config: Some(LbConfig::OriginalDstLbConfig(OriginalDstLbConfig {
                upstream_port_override: Some(uint32(u32::from(HBONE_PORT))),
                metadata_key: to_waypoint.then(waypoint),
                ..OriginalDstLbConfig::default()
            })),
            transport_socket: Some(tunnel_socket(tls)),
            ..Cluster::default()
        },
        http: Some(connect_options(hbone)),
        ..Draft::default()
    };
    draft.set_type(DiscoveryType::OriginalDst);
    draft
}

/// The transport socket of a tunnel.
pub(super) fn tunnel_socket(tls: CommonTlsContext) -> TransportSocket {
    let context = UpstreamTlsContext { common_tls_context: Some(tls), ..UpstreamTlsContext::default() };
    TransportSocket { name: "tls".to_owned(), config_type: Some(ConfigType::TypedConfig(any(&context))) }
}

/// The HTTP options of a cluster that sends CONNECT requests.
pub(super) fn connect_options(hbone: &HboneSettings) -> HttpProtocolOptions {
    HttpProtocolOptions {
        common_http_protocol_options: Some(CommonOptions {
            idle_timeout: Some(duration(hbone.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT))),
            ..CommonOptions::default()
        }),
        upstream_protocol_options: Some(explicit(ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions {
            allow_connect: true,
            initial_stream_window_size: window(hbone.stream_window),
            initial_connection_window_size: window(hbone.connection_window),
            ..Http2ProtocolOptions::default()
        }))),
        ..HttpProtocolOptions::default()
    }
}

fn window(bytes: u32) -> Option<UInt32Value> {
    (bytes > 0).then(|| uint32(bytes))
}

/// Mutual TLS of HBONE with the mesh certificate, which accepts any identity of the trust domains, or with the prefix
/// `peers`. Envoy accepts an identity that any of the matchers matches.
pub(crate) fn mutual_tls(
    compliance: Option<CompliancePolicy>,
    trust_domains: &[Text],
    peers: Option<&str>,
) -> CommonTlsContext {
    let identity = |matcher| SubjectAltNameMatcher {
        san_type: SanType::Uri as i32,
        matcher: Some(matcher),
        ..SubjectAltNameMatcher::default()
    };
    let identities = trust_domains.iter().map(|domain| in_trust_domain(domain)).chain(peers.map(prefix));
    let mut common = CommonTlsContext {
        tls_params: Some(TlsParameters {
            tls_minimum_protocol_version: TlsProtocol::TlSv13 as i32,
            tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
            ..TlsParameters::default()
        }),
        alpn_protocols: vec!["h2".to_owned()],
        tls_certificate_sds_secret_configs: vec![agent_secret(WORKLOAD_CERTIFICATE)],
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(
            CombinedCertificateValidationContext {
                default_validation_context: Some(CertificateValidationContext {
                    match_typed_subject_alt_names: identities.map(identity).collect(),
                    ..CertificateValidationContext::default()
                }),
                validation_context_sds_secret_config: Some(agent_secret(MESH_ROOTS)),
                ..CombinedCertificateValidationContext::default()
            },
        )),
        ..CommonTlsContext::default()
    };
    enforce(compliance, &mut common);
    common
}

/// Adds a transport socket match for endpoints that accept HBONE; the others keep the transport socket of the cluster.
/// `mutual` is whether endpoints select mutual TLS by their metadata; `mode` is `None` without TLS settings. `baggage`: the peer
/// states its metadata in the tunnel.
pub(super) fn apply_hbone(draft: &mut Draft, mode: Option<ClientTlsMode>, mutual: bool, baggage: bool) {
    if mode.is_some() && draft.is(DiscoveryType::OriginalDst) {
        return;
    }
    let plain = || raw_buffer(RAW_BUFFER);
    let over_hbone = |inner| over_hbone(baggage, inner);
    let otherwise = |name: &str, socket: TransportSocket| TransportSocketMatch {
        name: name.to_owned(),
        r#match: None,
        transport_socket: Some(socket),
    };
    let cluster = &mut draft.cluster;
    cluster.transport_socket_matches = match (cluster.transport_socket.take(), mode) {
        (Some(socket), _) if mutual => vec![over_hbone(plain()), by_tls_mode(socket), plain_match()],
        (Some(socket), Some(ClientTlsMode::IstioMutual)) => {
            vec![over_hbone(plain()), otherwise(MTLS_MATCH, socket)]
        }
        // User-defined TLS is terminated by the application, so it is inside of the tunnel.
        (Some(socket), _) => {
            if baggage {
                metadata::add_no_baggage(cluster);
            }
            vec![over_hbone(socket.clone()), otherwise("user", socket)]
        }
        (None, _) => vec![over_hbone(plain()), plain_match()],
    };
}

fn over_hbone(baggage: bool, inner: TransportSocket) -> TransportSocketMatch {
    TransportSocketMatch {
        name: "hbone".to_owned(),
        r#match: Some(by_hbone()),
        transport_socket: Some(full_socket(baggage, inner)),
    }
}

/// The transport socket of a connection to an internal listener, which gets all metadata of endpoint and cluster. `baggage`:
/// also those of peers.
pub(super) fn full_socket(baggage: bool, inner: TransportSocket) -> TransportSocket {
    let mut passed = vec![
        passed_metadata(Kind::Host(OfHost {}), ORIGINAL_DST),
        passed_metadata(Kind::Cluster(OfCluster {}), "istio"),
        passed_metadata(Kind::Host(OfHost {}), "istio"),
    ];
    passed.extend(peer_metadata().into_iter().filter(|_| baggage));
    internal_socket("envoy.transport_sockets.internal_upstream", passed, inner)
}

/// The metadata of a waypoint's endpoints that its listener for tunnels reads. `baggage`: also those of peers.
pub(super) fn endpoint_metadata(baggage: bool) -> Vec<MetadataValueSource> {
    let passed = [ORIGINAL_DST, "istio"].map(|name| passed_metadata(Kind::Host(OfHost {}), name));
    passed.into_iter().chain(peer_metadata().into_iter().filter(|_| baggage)).collect()
}

/// What cluster and endpoint say about the metadata of peers.
fn peer_metadata() -> [MetadataValueSource; 2] {
    [Kind::Cluster(OfCluster {}), Kind::Host(OfHost {})].map(|kind| passed_metadata(kind, metadata::PEER_METADATA))
}

fn passed_metadata(kind: Kind, name: &str) -> MetadataValueSource {
    MetadataValueSource { kind: Some(MetadataKind { kind: Some(kind) }), name: name.to_owned() }
}

/// The transport socket of a connection to an internal listener, which gets the metadata.
pub(super) fn internal_socket(
    name: &str,
    passthrough_metadata: Vec<MetadataValueSource>,
    inner: TransportSocket,
) -> TransportSocket {
    let transport = InternalUpstreamTransport { passthrough_metadata, transport_socket: Some(inner) };
    TransportSocket { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(any(&transport))) }
}
