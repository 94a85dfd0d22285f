//! Matchers of a waypoint's listener that select a filter chain by destination and protocol.

use std::net::IpAddr;

use envoy_types::pb::envoy::extensions::matching::common_inputs::network::v3::{
    ApplicationProtocolInput, DestinationIpInput, DestinationPortInput, FilterStateInput,
};
use envoy_types::pb::google::protobuf::{Any, StringValue};
use envoy_types::pb::xds::core::v3::{CidrRange, TypedExtensionConfig};
use envoy_types::pb::xds::r#type::matcher::v3::Matcher;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::matcher_tree::{MatchMap, TreeType};
use envoy_types::pb::xds::r#type::matcher::v3::matcher::on_match::OnMatch as Outcome;
use envoy_types::pb::xds::r#type::matcher::v3::matcher::{MatcherTree, MatcherType, OnMatch};
use prost::{Message as _, Name as _};
use sluice_model::Text;
use sluice_proto::matchers::IpMatcher;
use sluice_proto::matchers::ip_matcher::IpRangeMatcher;

use super::protocol_detection::plain_http;
use crate::address::cidr;
use crate::filter_state::{CONNECT_AUTHORITY, REQUEST_SOURCE};
use crate::listener_settings::{ListenerSettings, ListenerSwitches};
use crate::wire::{any, encode};

/// Chain of HTTP requests to workloads.
pub(super) const DIRECT_HTTP: &str = "direct-http";
/// Chain of other connections to workloads.
pub(super) const DIRECT_TCP: &str = "direct-tcp";

/// Selects the filter chain of that name.
pub(super) fn to_chain(name: &str) -> OnMatch {
    let action = TypedExtensionConfig {
        name: name.to_owned(),
        typed_config: Some(any(&StringValue { value: name.to_owned() })),
    };
    OnMatch { on_match: Some(Outcome::Action(action)), ..OnMatch::default() }
}

/// Selects a chain by the detected protocol.
pub(super) fn by_protocol(switches: ListenerSwitches, http: &str, tcp: &str) -> OnMatch {
    let input = ("application-protocol", any(&ApplicationProtocolInput {}));
    // The values of this input are quoted, and separated by commas.
    let map = plain_http(switches).iter().map(|name| (format!("'{name}'"), to_chain(http)));
    let mut matcher = exact(input, map.collect());
    matcher.on_no_match = Some(Box::new(to_chain(tcp)));
    OnMatch { on_match: Some(Outcome::Matcher(Box::new(matcher))), ..OnMatch::default() }
}

/// The encoded matcher of a service's addresses: by port. Concatenated ones are the matcher of all. Without addresses
/// or ports it is empty, because Envoy rejects empty lists.
pub(super) fn service_ranges(addresses: &[Text], ports: Vec<(u16, OnMatch)>) -> Vec<u8> {
    if ports.is_empty() {
        return Vec::new();
    }
    let map = ports.into_iter().map(|(port, chain)| (port.to_string(), chain)).collect();
    let matcher = exact(("port", any(&DestinationPortInput {})), map);
    ranges(addresses, OnMatch { on_match: Some(Outcome::Matcher(Box::new(matcher))), ..OnMatch::default() })
}

/// The encoded matcher of the addresses of workloads: by detected protocol.
pub(super) fn workload_ranges(settings: &ListenerSettings, workloads: &[IpAddr]) -> Vec<u8> {
    let addresses: Vec<Text> = workloads.iter().map(|address| address.to_string().into()).collect();
    ranges(&addresses, by_protocol(settings.switches, DIRECT_HTTP, DIRECT_TCP))
}

fn ranges(addresses: &[Text], on_match: OnMatch) -> Vec<u8> {
    let range = |address: &Text| {
        let found = cidr(address)?;
        Some(CidrRange { address_prefix: found.address_prefix, prefix_len: found.prefix_len })
    };
    let ranges: Vec<CidrRange> = addresses.iter().filter_map(range).collect();
    if ranges.is_empty() {
        return Vec::new();
    }
    let range = IpRangeMatcher { ranges, on_match: Some(on_match), exclusive: false };
    encode(&IpMatcher { range_matchers: vec![range] }).to_vec()
}

/// The matcher of the listener: by destination address. `encoded` are the ranges.
pub(super) fn dispatch_by_address(encoded: Vec<u8>) -> Matcher {
    let by_range = Any { type_url: IpMatcher::type_url(), value: encoded };
    Matcher {
        on_no_match: None,
        matcher_type: Some(MatcherType::MatcherTree(MatcherTree {
            input: Some(TypedExtensionConfig {
                name: "ip".to_owned(),
                typed_config: Some(any(&DestinationIpInput {})),
            }),
            tree_type: Some(TreeType::CustomMatch(TypedExtensionConfig {
                name: "ip".to_owned(),
                typed_config: Some(by_range),
            })),
        })),
    }
}

/// Selects a chain by the kind of proxy that the request comes from; `otherwise` for other ones.
pub(super) fn by_request_source(chains: [(&str, &str); 2], otherwise: &str) -> OnMatch {
    let input = (
        "request-source-filter-state",
        any(&FilterStateInput { key: REQUEST_SOURCE.to_owned(), ..FilterStateInput::default() }),
    );
    let map = chains.into_iter().map(|(source, chain)| (source.to_owned(), to_chain(chain)));
    let mut matcher = exact(input, map.collect());
    matcher.on_no_match = Some(Box::new(to_chain(otherwise)));
    OnMatch { on_match: Some(Outcome::Matcher(Box::new(matcher))), ..OnMatch::default() }
}

/// The encoded matches of the host names and ports of a service. Concatenated ones are those of all.
pub(super) fn host_names(hosts: Vec<(String, OnMatch)>) -> Vec<u8> {
    encode(&MatchMap { map: hosts.into_iter().collect() }).to_vec()
}

/// Selects by the host name and port of the CONNECT request, which are unique over all networks, and then by `matcher`.
pub(super) fn dispatch_by_host(hosts: &[u8], matcher: Matcher) -> Matcher {
    // Only this crate encodes them, so they are readable.
    let map = MatchMap::decode(hosts).unwrap_or_default().map;
    if map.is_empty() {
        return matcher;
    }
    let mut by_host = exact(
        (
            "authority-filter-state",
            any(&FilterStateInput { key: CONNECT_AUTHORITY.to_owned(), ..FilterStateInput::default() }),
        ),
        map,
    );
    let otherwise = OnMatch { on_match: Some(Outcome::Matcher(Box::new(matcher))), ..OnMatch::default() };
    by_host.on_no_match = Some(Box::new(otherwise));
    by_host
}

/// A matcher of exact values of an input.
fn exact((name, input): (&str, Any), map: std::collections::HashMap<String, OnMatch>) -> Matcher {
    Matcher {
        on_no_match: None,
        matcher_type: Some(MatcherType::MatcherTree(MatcherTree {
            input: Some(TypedExtensionConfig { name: name.to_owned(), typed_config: Some(input) }),
            tree_type: Some(TreeType::ExactMatchMap(MatchMap { map })),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenated_ranges_are_one_matcher() {
        let service = |address: &str| service_ranges(&[address.into()], vec![(80, to_chain("c"))]);
        let both = [service("10.0.0.1"), service("2001:db8::/64")].concat();
        let matcher = IpMatcher::decode(both.as_slice()).expect("a matcher");
        let prefixes: Vec<_> = matcher.range_matchers.iter().flat_map(|range| &range.ranges).collect();
        let shown: Vec<_> = prefixes.iter().map(|range| (range.address_prefix.as_str(), range.prefix_len)).collect();
        let length = |value| Some(crate::wire::uint32(value));
        assert_eq!(shown, [("10.0.0.1", length(32)), ("2001:db8::", length(64))]);
    }

    #[test]
    fn without_addresses_or_ports_there_is_no_range() {
        assert!(service_ranges(&[], vec![(80, to_chain("c"))]).is_empty());
        assert!(service_ranges(&["10.0.0.1".into()], Vec::new()).is_empty());
        assert!(workload_ranges(&ListenerSettings::default(), &[]).is_empty());
    }
}
