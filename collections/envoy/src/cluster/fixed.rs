//! Clusters of every proxy, independent of services (N04).

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
use envoy_types::pb::envoy::config::core::v3::{BindConfig, ExtraSourceAddress, Http2ProtocolOptions};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use sluice_model::IpFamilies;

use super::draft::{Draft, explicit};
use super::http_protocol::passthrough_options;
use super::traffic_policy::apply_connection_pool;
use super::{ClusterProfile, ClusterSettings, metadata};
use crate::address::{address, socket_address};
use crate::name::{BLACK_HOLE, INBOUND_PASSTHROUGH, PASSTHROUGH, SDS_EXTERNAL_CLUSTER, stat_prefix};
use crate::wire::duration;

/// Source addresses of inbound traffic from the proxy. Traffic redirection ignores them.
const BIND_V4: &str = "127.0.0.6";
const BIND_V6: &str = "::6";
/// Path of the socket of an SDS server for credentials.
const CREDENTIAL_SOCKET: &str = "./var/run/secrets/credential-uds/socket";

/// The cluster that blocks traffic.
#[must_use]
pub fn build_black_hole(settings: &ClusterSettings) -> Cluster {
    Cluster {
        name: BLACK_HOLE.to_owned(),
        alt_stat_name: stat_prefix(BLACK_HOLE),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Static as i32)),
        connect_timeout: Some(duration(settings.connect_timeout)),
        lb_policy: LbPolicy::RoundRobin as i32,
        ..Cluster::default()
    }
}

/// The cluster for outbound traffic to its original destination.
#[must_use]
pub fn build_passthrough(settings: &ClusterSettings, profile: &ClusterProfile) -> Cluster {
    let mut draft = Draft {
        cluster: Cluster {
            name: PASSTHROUGH.to_owned(),
            alt_stat_name: stat_prefix(PASSTHROUGH),
            lb_policy: LbPolicy::ClusterProvided as i32,
            ..Cluster::default()
        },
        http: Some(passthrough_options(profile, settings)),
        ..Draft::default()
    };
    draft.set_type(DiscoveryType::OriginalDst);
    // The HTTP options are those of passthrough traffic, independent of the connection pool of the mesh.
    let options = draft.http.clone();
    let pool = settings.connection_pool.clone().unwrap_or_default();
    apply_connection_pool(&mut draft, settings, &pool, None);
    draft.http = options;
    if !profile.no_metadata_exchange {
        draft.cluster.filters.push(metadata::metadata_exchange());
    }
    draft.finish()
}

/// The cluster for inbound traffic to its original destination. It has the statistics name of the outbound one.
#[must_use]
pub fn build_inbound_passthrough(settings: &ClusterSettings, profile: &ClusterProfile) -> Cluster {
    let mut cluster = build_passthrough(settings, profile);
    cluster.name = INBOUND_PASSTHROUGH.to_owned();
    cluster.filters.clear();
    // Envoy selects the source address by the address family of the destination.
    cluster.upstream_bind_config = Some(inbound_bind(profile.ip_families, profile.ip_families == IpFamilies::Dual));
    cluster
}

/// The source address of inbound traffic, and that of the second address family, if any.
pub(super) fn inbound_bind(families: IpFamilies, both: bool) -> BindConfig {
    let first = if families == IpFamilies::V6 { BIND_V6 } else { BIND_V4 };
    BindConfig {
        source_address: Some(socket_address(first, 0)),
        extra_source_addresses: both
            .then(|| ExtraSourceAddress { address: Some(socket_address(BIND_V6, 0)), ..ExtraSourceAddress::default() })
            .into_iter()
            .collect(),
        ..BindConfig::default()
    }
}

/// The cluster of the SDS server on the credential socket.
#[must_use]
pub fn build_sds_external(settings: &ClusterSettings) -> Cluster {
    let endpoint = LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address: Some(address(CREDENTIAL_SOCKET, 0)),
            ..Endpoint::default()
        })),
        ..LbEndpoint::default()
    };
    let mut draft = Draft {
        cluster: Cluster {
            name: SDS_EXTERNAL_CLUSTER.to_owned(),
            alt_stat_name: stat_prefix(SDS_EXTERNAL_CLUSTER),
            connect_timeout: Some(duration(settings.connect_timeout)),
            load_assignment: Some(ClusterLoadAssignment {
                cluster_name: SDS_EXTERNAL_CLUSTER.to_owned(),
                endpoints: vec![LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..LocalityLbEndpoints::default() }],
                ..ClusterLoadAssignment::default()
            }),
            ..Cluster::default()
        },
        http: Some(HttpProtocolOptions {
            upstream_protocol_options: Some(explicit(ProtocolConfig::Http2ProtocolOptions(
                Http2ProtocolOptions::default(),
            ))),
            ..HttpProtocolOptions::default()
        }),
        ..Draft::default()
    };
    draft.set_type(DiscoveryType::Static);
    draft.finish()
}
