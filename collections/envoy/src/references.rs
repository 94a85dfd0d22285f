//! Which outbound clusters encoded resources refer to.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::route::v3::route::Action;
use envoy_types::pb::envoy::config::route::v3::route_action::ClusterSpecifier;
use envoy_types::pb::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use prost::Message as _;

/// How the names of the clusters begin that send to services.
pub const OUTBOUND_PREFIX: &str = "outbound|";

/// The outbound clusters that an encoded listener refers to. The result may have other texts that begin like the name of one.
#[must_use]
pub fn clusters_of_listener(listener: &[u8]) -> BTreeSet<String> {
    names_in(listener)
}

/// The outbound clusters that an encoded `RouteConfiguration` refers to, other than as the destinations of its routes.
#[must_use]
pub fn clusters_besides_destinations(table: &[u8]) -> BTreeSet<String> {
    let Ok(mut table) = RouteConfiguration::decode(table) else { return names_in(table) };
    table.virtual_hosts.iter_mut().for_each(remove_destinations);
    names_in(&table.encode_to_vec())
}

/// The same for an encoded `VirtualHost`.
#[must_use]
pub fn clusters_of_host_besides_destinations(host: &[u8]) -> BTreeSet<String> {
    let Ok(mut host) = VirtualHost::decode(host) else { return names_in(host) };
    remove_destinations(&mut host);
    names_in(&host.encode_to_vec())
}

/// Removes the clusters that routes send requests to: Envoy requests these.
fn remove_destinations(host: &mut VirtualHost) {
    for route in &mut host.routes {
        let Some(Action::Route(action)) = &mut route.action else { continue };
        match &mut action.cluster_specifier {
            Some(ClusterSpecifier::Cluster(name)) => name.clear(),
            Some(ClusterSpecifier::WeightedClusters(weighted)) => {
                weighted.clusters.iter_mut().for_each(|cluster| cluster.name.clear());
            }
            _ => {}
        }
    }
}

/// The names of outbound clusters in an encoded message, and possibly other texts that begin like one.
fn names_in(message: &[u8]) -> BTreeSet<String> {
    let starts = memchr::memmem::find_iter(message, OUTBOUND_PREFIX);
    starts.flat_map(|start| names_at(message, start)).map(str::to_owned).collect()
}

/// The texts at a position that may be the name of a cluster: the string that begins there by its length in protobuf, and the
/// characters up to one that no name has, for a name in a longer text.
fn names_at(message: &[u8], start: usize) -> impl Iterator<Item = &str> {
    let rest = &message[start..];
    let run = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"|._-*".contains(byte)).count();
    let byte = |back: usize| start.checked_sub(back).map(|at| usize::from(message[at]));
    let short = byte(1).filter(|length| *length < 0x80);
    let long = byte(2).zip(byte(1)).filter(|(low, _)| *low >= 0x80).map(|(low, high)| (low & 0x7f) | (high << 7));
    let lengths = [short, long, Some(run)].into_iter().flatten().filter(move |length| *length <= run);
    lengths.filter_map(|length| std::str::from_utf8(&rest[..length]).ok())
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::route::v3::route_action::RequestMirrorPolicy;
    use envoy_types::pb::envoy::config::route::v3::{Route, RouteAction, WeightedCluster, weighted_cluster};

    use super::*;

    fn names(message: &[u8]) -> Vec<String> {
        names_in(message).into_iter().collect()
    }

    #[test]
    fn names_are_found_by_their_length_and_in_longer_texts() {
        let long = format!("outbound|80||{}.shop", "x".repeat(150));
        for name in ["outbound|80||a.shop", &long] {
            let action = RouteAction {
                cluster_specifier: Some(ClusterSpecifier::Cluster(name.to_owned())),
                ..Default::default()
            };
            // The field after the name has a tag that could be a character of it.
            let message = [action.encode_to_vec(), b"2\x01x".to_vec()].concat();
            assert!(names(&message).contains(&name.to_owned()), "{:?}", names(&message));
        }
        assert!(names(br#"{"cluster":"outbound|443|v1|b.shop"}"#).contains(&"outbound|443|v1|b.shop".to_owned()));
        assert!(names(b"outbound").is_empty());
    }

    #[test]
    fn destinations_of_routes_are_not_required_and_mirrors_are() {
        let weighted = WeightedCluster {
            clusters: vec![weighted_cluster::ClusterWeight {
                name: "outbound|80||b.shop".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let to = |specifier| {
            let mirror = RequestMirrorPolicy { cluster: "outbound|80||mirror.shop".into(), ..Default::default() };
            let action = RouteAction {
                cluster_specifier: Some(specifier),
                request_mirror_policies: vec![mirror],
                ..Default::default()
            };
            Route { action: Some(Action::Route(action)), ..Default::default() }
        };
        let routes = vec![
            to(ClusterSpecifier::Cluster("outbound|80||a.shop".into())),
            to(ClusterSpecifier::WeightedClusters(weighted)),
        ];
        let host = VirtualHost { routes, ..Default::default() };
        let only_mirror = BTreeSet::from(["outbound|80||mirror.shop".to_owned()]);
        assert_eq!(clusters_of_host_besides_destinations(&host.encode_to_vec()), only_mirror);
        let table = RouteConfiguration { virtual_hosts: vec![host], ..Default::default() };
        assert_eq!(clusters_besides_destinations(&table.encode_to_vec()), only_mirror);
    }
}
