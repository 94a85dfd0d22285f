//! Listeners of gateways for UDP (G02): each relays datagrams to the destinations of a UDPRoute. The reference has none.

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::listener_filter::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::{Listener, ListenerFilter, UdpListenerConfig};
use envoy_types::pb::envoy::extensions::filters::udp::udp_proxy::v3::udp_proxy_config::RouteSpecifier;
use envoy_types::pb::envoy::extensions::filters::udp::udp_proxy::v3::{Route, UdpProxyConfig};
use envoy_types::pb::envoy::extensions::matching::common_inputs::network::v3::SourcePortInput;
use envoy_types::pb::envoy::extensions::matching::input_matchers::consistent_hashing::v3::ConsistentHashing;
use envoy_types::pb::xds::core::v3::TypedExtensionConfig;
use envoy_types::pb::xds::r#type::matcher::v3::Matcher;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::matcher_list::predicate::single_predicate::Matcher as InputMatcher;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::matcher_list::predicate::{MatchType, SinglePredicate};
use envoy_types::pb::xds::r#type::matcher::v3::matcher::matcher_list::{FieldMatcher, Predicate};
use envoy_types::pb::xds::r#type::matcher::v3::matcher::on_match::OnMatch as Outcome;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::{MatcherList, MatcherType, OnMatch};
use sluice_model::{Destination, RouteDestination, Text};

use super::address::{additional, bind_over_udp};
use super::gateway::gateway_addresses;
use crate::address::address;
use crate::filter::{listener_access_log, tcp_access_logs};
use crate::listener_settings::{ListenerClass, ListenerSettings};
use crate::name::{UNKNOWN_SERVICE, udp_cluster, udp_listener};
use crate::wire::any;

/// A port of a gateway for datagrams.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UdpListener {
    /// Port number.
    pub port: u32,
    /// Address to bind to; empty for all addresses.
    pub bind: Text,
    /// Weighted destinations. One without a host does not exist: its datagrams are dropped.
    pub route: Vec<RouteDestination>,
}

/// The listener of a port for datagrams; `None` without destinations, or if the gateway may not bind to the port.
#[must_use]
pub fn build_udp_listener(settings: &ListenerSettings, of: &UdpListener) -> Option<Listener> {
    let addresses = gateway_addresses(settings, of.port, &of.bind)?;
    let (primary, extra) = addresses.split_first()?;
    let matcher = by_weight(&of.route)?;
    let name = udp_listener(primary, of.port);
    let proxy = UdpProxyConfig {
        stat_prefix: name.clone(),
        route_specifier: Some(RouteSpecifier::Matcher(matcher)),
        access_log: tcp_access_logs(settings, ListenerClass::Gateway),
        ..UdpProxyConfig::default()
    };
    let mut listener = Listener {
        address: Some(address(primary, of.port)),
        additional_addresses: additional(extra, of.port),
        traffic_direction: TrafficDirection::Outbound as i32,
        listener_filters: vec![ListenerFilter {
            name: "envoy.filters.udp_listener.udp_proxy".to_owned(),
            config_type: Some(ConfigType::TypedConfig(any(&proxy))),
            ..ListenerFilter::default()
        }],
        access_log: listener_access_log(settings, ListenerClass::Gateway),
        name,
        ..Listener::default()
    };
    bind_over_udp(&mut listener, UdpListenerConfig::default());
    Some(listener)
}

/// Selects a destination for each session by a hash of the port of the client, in proportion to the weights. Envoy has no weighted
/// clusters for datagrams, and all datagrams of a session have to go to one destination.
fn by_weight(route: &[RouteDestination]) -> Option<Matcher> {
    let weight = |to: &RouteDestination| u32::try_from(to.weight).unwrap_or(0);
    let (last, others) = route.split_last()?;
    let total = route.iter().fold(0, |total: u32, to| total.saturating_add(weight(to)));
    // The hash modulo the total is at or above the threshold: for the first destination, in the uppermost part.
    let mut threshold = total;
    let mut matchers = Vec::new();
    for to in others {
        threshold = threshold.saturating_sub(weight(to));
        matchers.push(FieldMatcher {
            predicate: Some(hashed_from(threshold, total)),
            on_match: Some(to_cluster(&to.destination)),
        });
    }
    Some(Matcher {
        matcher_type: (!matchers.is_empty()).then_some(MatcherType::MatcherList(MatcherList { matchers })),
        on_no_match: Some(Box::new(to_cluster(&last.destination))),
    })
}

fn hashed_from(threshold: u32, total: u32) -> Predicate {
    let by_hash = ConsistentHashing { threshold, modulo: total.max(1), seed: 0 };
    let extension = |name: &str, config| TypedExtensionConfig { name: name.to_owned(), typed_config: Some(config) };
    Predicate {
        match_type: Some(MatchType::SinglePredicate(SinglePredicate {
            input: Some(extension("source-port", any(&SourcePortInput {}))),
            matcher: Some(InputMatcher::CustomMatch(extension("consistent-hashing", any(&by_hash)))),
        })),
    }
}

fn to_cluster(destination: &Destination) -> OnMatch {
    let cluster = match destination.host.as_str() {
        "" => UNKNOWN_SERVICE.to_owned(),
        host => udp_cluster(destination.port.unwrap_or_default(), host),
    };
    let action = TypedExtensionConfig { name: cluster.clone(), typed_config: Some(any(&Route { cluster })) };
    OnMatch { on_match: Some(Outcome::Action(action)), ..OnMatch::default() }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use sluice_model::Host;

    use super::*;

    fn to(host: &str, weight: i32) -> RouteDestination {
        let destination = Destination { host: Host::new(host), port: Some(53), ..Destination::default() };
        RouteDestination { destination, weight }
    }

    fn cluster(on_match: &OnMatch) -> &str {
        match &on_match.on_match {
            Some(Outcome::Action(action)) => &action.name,
            _ => "",
        }
    }

    #[test]
    fn destinations_share_sessions_by_their_weights() {
        assert_eq!(by_weight(&[]), None);
        let only = by_weight(&[to("a.b", 0)]).expect("a matcher");
        assert!(only.matcher_type.is_none(), "Envoy rejects empty lists");
        assert_eq!(only.on_no_match.as_deref().map(cluster), Some("outbound_udp|53||a.b"));
        let matcher = by_weight(&[to("a.b", 1), to("", 3), to("c.d", 6)]).expect("a matcher");
        let Some(MatcherType::MatcherList(list)) = &matcher.matcher_type else { panic!("a list") };
        let thresholds = |field: &FieldMatcher| {
            let Some(MatchType::SinglePredicate(predicate)) = field.predicate.as_ref()?.match_type.as_ref() else {
                return None;
            };
            let Some(InputMatcher::CustomMatch(custom)) = &predicate.matcher else { return None };
            let hash = ConsistentHashing::decode(custom.typed_config.as_ref()?.value.as_slice()).ok()?;
            Some((hash.threshold, hash.modulo, field.on_match.as_ref().map(|to| cluster(to).to_owned())?))
        };
        let thresholds: Vec<_> = list.matchers.iter().filter_map(thresholds).collect();
        // Of hashes 0 to 9, 9 leads to the first, 6 to 8 to the second, and the others to the third.
        assert_eq!(thresholds, [(9, 10, "outbound_udp|53||a.b".to_owned()), (6, 10, UNKNOWN_SERVICE.to_owned())]);
        assert_eq!(matcher.on_no_match.as_deref().map(cluster), Some("outbound_udp|53||c.d"));
    }
}
