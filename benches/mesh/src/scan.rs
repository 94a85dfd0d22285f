//! Reads the few fields of Envoy's messages that decide what a proxy subscribes to next, without decoding the rest.

use bytes::Bytes;
use sluice_proto::wire::{contents, fields};

/// The types that a proxy subscribes to, in order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Type {
    Cds,
    Eds,
    Lds,
    Rds,
    /// Virtual hosts, of route tables that use VHDS.
    Vhds,
    /// Secrets, of gateways.
    Sds,
    /// Workloads and services, of ztunnel.
    Address,
    /// Policies, of ztunnel.
    Authorization,
    /// Endpoints, of assignments that use LEDS. The last one, because results list counts in this order.
    Leds,
}

/// Number of types.
pub(crate) const TYPES: usize = Type::ALL.len();

impl Type {
    pub(crate) const ALL: [Self; 9] = [
        Self::Cds,
        Self::Eds,
        Self::Lds,
        Self::Rds,
        Self::Vhds,
        Self::Sds,
        Self::Address,
        Self::Authorization,
        Self::Leds,
    ];

    pub(crate) fn url(self) -> &'static str {
        match self {
            Self::Cds => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Eds => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Leds => "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint",
            Self::Lds => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Rds => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Vhds => "type.googleapis.com/envoy.config.route.v3.VirtualHost",
            Self::Sds => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::Address => "type.googleapis.com/istio.workload.Address",
            Self::Authorization => "type.googleapis.com/istio.security.Authorization",
        }
    }

    pub(crate) fn of_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// Whether its subscription is a wildcard.
    pub(crate) fn is_wildcard(self) -> bool {
        matches!(self, Self::Cds | Self::Lds | Self::Address | Self::Authorization)
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The name of a resource: field 1 of every type.
pub(crate) fn name(resource: &[u8]) -> Option<&str> {
    contents(resource, 1).next().and_then(text)
}

/// The assignment that a cluster refers to, if it uses EDS.
fn assignment<'a>(own_name: &'a str, cluster: &'a [u8]) -> Option<&'a str> {
    const EDS: u64 = 3;
    let mut is_eds = false;
    let mut service = None;
    for field in fields(cluster) {
        match field.number {
            2 => is_eds = field.varint() == Some(EDS),
            3 => service = field.content().and_then(|config| contents(config, 2).find(|name| !name.is_empty())),
            _ => {}
        }
    }
    is_eds.then(|| service.and_then(text).unwrap_or(own_name))
}

/// The route tables that a listener refers to.
fn tables(listener: &[u8]) -> Vec<&str> {
    const MANAGER: &[u8] = b"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let mut names = Vec::new();
    for chain in contents(listener, 3).chain(contents(listener, 25)) {
        for filter in contents(chain, 3) {
            for config in contents(filter, 4) {
                if !contents(config, 1).any(|url| url.ends_with(MANAGER)) {
                    continue;
                }
                let rds = contents(config, 2).flat_map(|manager| contents(manager, 3));
                names.extend(rds.filter_map(|rds| contents(rds, 2).next().and_then(text)));
            }
        }
    }
    names
}

/// The secrets that the TLS contexts of a listener refer to.
fn secrets(listener: &[u8]) -> Vec<&str> {
    let mut names = Vec::new();
    for chain in contents(listener, 3).chain(contents(listener, 25)) {
        // `FilterChain.transport_socket`, `TransportSocket.typed_config`, `Any.value`.
        let contexts = contents(chain, 6).flat_map(|socket| contents(socket, 3)).flat_map(|config| contents(config, 2));
        for common in contexts.flat_map(|context| contents(context, 1)) {
            // `tls_certificate_sds_secret_configs` and `validation_context_sds_secret_config`.
            let configs = contents(common, 6).chain(contents(common, 7));
            names.extend(configs.filter_map(|config| contents(config, 1).next().and_then(text)));
        }
    }
    // Secrets of the agent are not requested from the control plane.
    names.retain(|name| name.contains("://"));
    names
}

/// Whether a route table, or some fields of one, uses VHDS.
fn uses_vhds(table: &[u8]) -> bool {
    contents(table, 9).next().is_some()
}

/// The collections of endpoints that an assignment, or some fields of one, refers to.
fn collections(assignment: &[u8]) -> impl Iterator<Item = &str> {
    // `endpoints`, `leds_cluster_locality_config`, `leds_collection_name`.
    let configs = contents(assignment, 2).flat_map(|locality| contents(locality, 8));
    configs.flat_map(|config| contents(config, 2)).filter_map(text)
}

/// The names that a resource refers to and that a proxy subscribes to. Of a route table or an assignment, `resource` may be some of its
/// fields.
pub(crate) fn referenced_names<'a>(kind: Type, own_name: &'a str, resource: &'a Bytes) -> Vec<(Type, &'a str)> {
    match kind {
        Type::Cds => assignment(own_name, resource).map(|name| (Type::Eds, name)).into_iter().collect(),
        Type::Lds => {
            let tables = tables(resource).into_iter().map(|name| (Type::Rds, name));
            tables.chain(secrets(resource).into_iter().map(|name| (Type::Sds, name))).collect()
        }
        Type::Rds => uses_vhds(resource).then_some((Type::Vhds, own_name)).into_iter().collect(),
        Type::Eds => collections(resource).map(|name| (Type::Leds, name)).collect(),
        Type::Leds | Type::Vhds | Type::Sds | Type::Address | Type::Authorization => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use sluice_proto::envoy::config::cluster::v3::Cluster;
    use sluice_proto::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
    use sluice_proto::envoy::config::core::v3::{TransportSocket, transport_socket};
    use sluice_proto::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
    use sluice_proto::envoy::config::endpoint::v3::{
        ClusterLoadAssignment, LedsClusterLocalityConfig, LocalityLbEndpoints,
    };
    use sluice_proto::envoy::config::listener::v3::filter::ConfigType;
    use sluice_proto::envoy::config::listener::v3::{Filter, FilterChain, Listener};
    use sluice_proto::envoy::config::route::v3::{RouteConfiguration, Vhds};
    use sluice_proto::envoy::extensions::filters::network::http_connection_manager::v3::{
        HttpConnectionManager, Rds, http_connection_manager::RouteSpecifier,
    };
    use sluice_proto::envoy::extensions::transport_sockets::tls::v3::{
        CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
    };
    use sluice_proto::google::protobuf::Any;

    use super::*;

    fn names(kind: Type, references: Vec<(Type, &str)>) -> Vec<String> {
        assert!(references.iter().all(|(of, _)| *of == kind));
        references.into_iter().map(|(_, name)| name.to_owned()).collect()
    }

    #[test]
    fn a_table_with_vhds_subscribes_its_virtual_hosts() {
        let whole = RouteConfiguration { name: "80".into(), ..Default::default() };
        let with_vhds = RouteConfiguration { vhds: Some(Vhds::default()), ..whole.clone() };
        let referenced = |table: &RouteConfiguration| {
            names(Type::Vhds, referenced_names(Type::Rds, "80", &table.encode_to_vec().into()))
        };
        assert_eq!(referenced(&with_vhds), ["80"]);
        assert!(referenced(&whole).is_empty());
    }

    #[test]
    fn an_assignment_with_leds_subscribes_its_endpoints() {
        let config = LedsClusterLocalityConfig { leds_collection_name: "xdstp:///a/*".into(), ..Default::default() };
        let locality =
            LocalityLbEndpoints { lb_config: Some(LbConfig::LedsClusterLocalityConfig(config)), ..Default::default() };
        let endpoints = vec![LocalityLbEndpoints::default(), locality];
        let assignment = ClusterLoadAssignment { cluster_name: "a".into(), endpoints, ..Default::default() };
        let bytes = assignment.encode_to_vec().into();
        assert_eq!(names(Type::Leds, referenced_names(Type::Eds, "a", &bytes)), ["xdstp:///a/*"]);
    }

    #[test]
    fn a_listener_subscribes_the_secrets_of_its_tls() {
        let secret = |name: &str| SdsSecretConfig { name: name.into(), ..Default::default() };
        let common = CommonTlsContext {
            tls_certificate_sds_secret_configs: vec![secret("default"), secret("kubernetes://shop")],
            ..Default::default()
        };
        let context = DownstreamTlsContext { common_tls_context: Some(common), ..Default::default() };
        let config = Any { type_url: "type.googleapis.com/tls".into(), value: context.encode_to_vec() };
        let socket = TransportSocket {
            name: "tls".into(),
            config_type: Some(transport_socket::ConfigType::TypedConfig(config)),
        };
        let chain = FilterChain { transport_socket: Some(socket), ..Default::default() };
        let listener = Listener { name: "l".into(), filter_chains: vec![chain], ..Default::default() };
        let bytes: Bytes = listener.encode_to_vec().into();
        assert_eq!(names(Type::Sds, referenced_names(Type::Lds, "l", &bytes)), ["kubernetes://shop"]);
    }

    #[test]
    fn only_an_eds_cluster_subscribes_its_assignment() {
        let cluster = |kind: DiscoveryType, service: &str| Cluster {
            name: "own".into(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(kind.into())),
            eds_cluster_config: Some(EdsClusterConfig { service_name: service.into(), ..Default::default() }),
            ..Default::default()
        };
        let referenced =
            |cluster: &Cluster| names(Type::Eds, referenced_names(Type::Cds, "own", &cluster.encode_to_vec().into()));
        assert_eq!(referenced(&cluster(DiscoveryType::Eds, "service")), ["service"]);
        assert_eq!(referenced(&cluster(DiscoveryType::Eds, "")), ["own"]);
        assert!(referenced(&cluster(DiscoveryType::StrictDns, "service")).is_empty());
    }

    #[test]
    fn a_listener_subscribes_the_route_tables_of_its_chains() {
        let chain = |table: &str| {
            let rds = Rds { route_config_name: table.into(), ..Default::default() };
            let manager =
                HttpConnectionManager { route_specifier: Some(RouteSpecifier::Rds(rds)), ..Default::default() };
            let url =
                "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
            let config = Any { type_url: url.into(), value: manager.encode_to_vec() };
            let filter = Filter { name: "http".into(), config_type: Some(ConfigType::TypedConfig(config)) };
            FilterChain { filters: vec![filter], ..Default::default() }
        };
        let listener = Listener {
            name: "l".into(),
            filter_chains: vec![chain("80"), FilterChain::default()],
            default_filter_chain: Some(chain("81")),
            ..Default::default()
        };
        let bytes: Bytes = listener.encode_to_vec().into();
        assert_eq!(names(Type::Rds, referenced_names(Type::Lds, "l", &bytes)), ["80", "81"]);
        assert_eq!(name(&bytes), Some("l"));
    }
}
