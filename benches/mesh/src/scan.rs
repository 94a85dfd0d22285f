//! Reads the few fields of Envoy's messages that decide what a proxy asks for next, without decoding the rest.

use bytes::Bytes;
use sluice_proto::wire::{contents, fields};

/// The types a proxy subscribes, in order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Type {
    Cds,
    Eds,
    Lds,
    Rds,
}

impl Type {
    pub(crate) const ALL: [Self; 4] = [Self::Cds, Self::Eds, Self::Lds, Self::Rds];

    pub(crate) fn url(self) -> &'static str {
        match self {
            Self::Cds => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Eds => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Lds => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Rds => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    pub(crate) fn of_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// The type whose names are found in resources of this one.
    pub(crate) fn leads_to(self) -> Option<Self> {
        match self {
            Self::Cds => Some(Self::Eds),
            Self::Lds => Some(Self::Rds),
            Self::Eds | Self::Rds => None,
        }
    }

    /// Whether it is subscribed as a whole, not by names.
    pub(crate) fn is_wildcard(self) -> bool {
        self.leads_to().is_some()
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

/// Field 1 of a message: the name of every resource type but assignments, and theirs too.
pub(crate) fn name(resource: &[u8]) -> Option<String> {
    contents(resource, 1).next().and_then(text)
}

/// The assignment a cluster asks for, if its endpoints come by EDS.
fn assignment(cluster: &[u8]) -> Option<String> {
    const EDS: u64 = 3;
    let mut discovered = false;
    let (mut own, mut service) = (None, None);
    for field in fields(cluster) {
        match field.number {
            1 => own = field.content(),
            2 => discovered = field.varint() == Some(EDS),
            3 => service = field.content().and_then(|config| contents(config, 2).find(|name| !name.is_empty())),
            _ => {}
        }
    }
    discovered.then(|| service.or(own)).flatten().and_then(text)
}

/// The route tables a listener asks for.
fn tables(listener: &[u8]) -> Vec<String> {
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

/// What a resource makes its proxy ask for.
pub(crate) fn asks_for(kind: Type, resource: &Bytes) -> Vec<String> {
    match kind {
        Type::Cds => assignment(resource).into_iter().collect(),
        Type::Lds => tables(resource),
        Type::Eds | Type::Rds => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use sluice_proto::envoy::config::cluster::v3::Cluster;
    use sluice_proto::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
    use sluice_proto::envoy::config::listener::v3::filter::ConfigType;
    use sluice_proto::envoy::config::listener::v3::{Filter, FilterChain, Listener};
    use sluice_proto::envoy::extensions::filters::network::http_connection_manager::v3::{
        HttpConnectionManager, Rds, http_connection_manager::RouteSpecifier,
    };
    use sluice_proto::google::protobuf::Any;

    use super::*;

    #[test]
    fn a_cluster_asks_for_its_assignment_only_by_eds() {
        let cluster = |kind: DiscoveryType, service: &str| Cluster {
            name: "own".into(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(kind.into())),
            eds_cluster_config: Some(EdsClusterConfig { service_name: service.into(), ..Default::default() }),
            ..Default::default()
        };
        let asks = |cluster: &Cluster| asks_for(Type::Cds, &cluster.encode_to_vec().into());
        assert_eq!(asks(&cluster(DiscoveryType::Eds, "service")), ["service"]);
        assert_eq!(asks(&cluster(DiscoveryType::Eds, "")), ["own"]);
        assert!(asks(&cluster(DiscoveryType::StrictDns, "service")).is_empty());
    }

    #[test]
    fn a_listener_asks_for_the_tables_of_its_chains() {
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
        assert_eq!(asks_for(Type::Lds, &bytes), ["80", "81"]);
        assert_eq!(name(&bytes).as_deref(), Some("l"));
    }
}
