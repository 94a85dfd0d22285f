//! Listener filters: protocol inspectors and original destination (N06).

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::listener::v3::{
    FilterChain, ListenerFilter, ListenerFilterChainMatchPredicate,
    listener_filter::ConfigType,
    listener_filter_chain_match_predicate::{MatchSet, Rule},
};
use envoy_types::pb::envoy::extensions::filters::listener::{
    http_inspector::v3::HttpInspector, original_dst::v3::OriginalDst, original_src::v3::OriginalSrc,
    tls_inspector::v3::TlsInspector,
};
use envoy_types::pb::envoy::r#type::v3::Int32Range;
use envoy_types::pb::google::protobuf::Any;
use sluice_model::InterceptionMode;

use super::chain::TLS;
use crate::listener_settings::ListenerSettings;
use crate::wire::{any, uint32};

/// Initial buffer of the TLS inspector.
const TLS_BUFFER_BYTES: u32 = 512;
/// Packet mark of TPROXY mode, which preserves the client address.
const TPROXY_MARK: u32 = 1337;

fn listener_filter(name: &str, config: Any) -> ListenerFilter {
    ListenerFilter {
        name: format!("envoy.filters.listener.{name}"),
        config_type: Some(ConfigType::TypedConfig(config)),
        ..ListenerFilter::default()
    }
}

pub(super) fn tls_inspector() -> ListenerFilter {
    let config = TlsInspector { initial_read_buffer_size: Some(uint32(TLS_BUFFER_BYTES)), ..TlsInspector::default() };
    listener_filter("tls_inspector", any(&config))
}

pub(super) fn http_inspector() -> ListenerFilter {
    listener_filter("http_inspector", any(&HttpInspector::default()))
}

/// Restores the original destination of redirected connections.
pub(super) fn original_dst() -> ListenerFilter {
    listener_filter("original_dst", any(&OriginalDst::default()))
}

#[derive(Clone, Copy, Default)]
struct InspectorNeeds {
    tls: bool,
    http: bool,
}

/// The listener filters of an inbound listener. Each inspector runs only for the ports that need it.
pub(super) fn inbound_filters(
    settings: &ListenerSettings,
    chains: &[FilterChain],
    to_port: bool,
) -> Vec<ListenerFilter> {
    let mut filters = Vec::new();
    if !to_port {
        filters.push(original_dst());
        if settings.profile.interception == InterceptionMode::Tproxy {
            let config = OriginalSrc { mark: TPROXY_MARK, ..OriginalSrc::default() };
            filters.push(listener_filter("original_src", any(&config)));
        }
    }
    // Port 0 stands for all ports without a chain of their own.
    let mut needs: BTreeMap<u32, InspectorNeeds> = BTreeMap::new();
    for chain in chains {
        let condition = chain.filter_chain_match.clone().unwrap_or_default();
        let port = condition.destination_port.map_or(0, |port| port.value);
        let entry = needs.entry(port).or_default();
        entry.tls |= condition.transport_protocol == TLS;
        entry.http |= condition.application_protocols.iter().any(|name| name == "http/1.1" || name == "h2c");
    }
    if needs.values().any(|needs| needs.tls) {
        filters.push(ListenerFilter { filter_disabled: tls_disabled(&needs), ..tls_inspector() });
    }
    if needs.values().any(|needs| needs.http) {
        let without: Vec<u32> = needs.iter().filter(|(_, needs)| !needs.http).map(|(port, _)| *port).collect();
        let disabled = (!without.is_empty()).then(|| any_of(&without));
        filters.push(ListenerFilter { filter_disabled: disabled, ..http_inspector() });
    }
    filters
}

/// The predicate that disables the TLS inspector: listed ports if other ports need it, otherwise all except the listed.
fn tls_disabled(needs: &BTreeMap<u32, InspectorNeeds>) -> Option<ListenerFilterChainMatchPredicate> {
    let by_default = needs.get(&0).is_some_and(|needs| needs.tls);
    let ports: Vec<u32> =
        needs.iter().filter(|(port, needs)| **port != 0 && needs.tls != by_default).map(|(port, _)| *port).collect();
    if ports.is_empty() {
        return None;
    }
    let listed = any_of(&ports);
    Some(if by_default {
        listed
    } else {
        ListenerFilterChainMatchPredicate { rule: Some(Rule::NotMatch(Box::new(listed))) }
    })
}

/// Matches connections to any of the ports, of which there is at least one.
pub(super) fn any_of(ports: &[u32]) -> ListenerFilterChainMatchPredicate {
    let range = |port: &u32| {
        let start = i32::try_from(*port).unwrap_or(i32::MAX);
        let range = Int32Range { start, end: start.saturating_add(1) };
        ListenerFilterChainMatchPredicate { rule: Some(Rule::DestinationPortRange(range)) }
    };
    let mut rules: Vec<ListenerFilterChainMatchPredicate> = ports.iter().map(range).collect();
    match (rules.len(), rules.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            rules.extend(last);
            ListenerFilterChainMatchPredicate { rule: Some(Rule::OrMatch(MatchSet { rules })) }
        }
    }
}
