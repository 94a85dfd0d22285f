//! Intermediate form of a filter chain: its match and its action.

use std::collections::BTreeSet;

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChainMatch};
use ipnet::IpNet;
use sluice_model::Text;

use crate::address::{cidr, parse_network};
use crate::filter::HttpChain;

/// Transport protocol of plain traffic.
pub(crate) const RAW_BUFFER: &str = "raw_buffer";
/// Transport protocol of TLS.
pub(crate) const TLS: &str = "tls";

/// Action of a filter chain.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// HTTP routing.
    Http(Box<HttpChain>),
    /// Network filters, already built.
    Network(Vec<Filter>),
}

/// An outbound filter chain.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) server_names: Vec<Text>,
    pub(crate) destinations: Vec<Text>,
    pub(crate) application_protocols: Vec<&'static str>,
    pub(crate) transport: &'static str,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) action: Action,
}

impl Chain {
    /// A chain that matches everything.
    pub(crate) fn new(action: Action) -> Self {
        Self {
            server_names: Vec::new(),
            destinations: Vec::new(),
            application_protocols: Vec::new(),
            transport: "",
            metadata: None,
            action,
        }
    }

    pub(crate) fn matches_all(&self) -> bool {
        (self.server_names.is_empty() || self.server_names.iter().any(|name| *name == *"*"))
            && self.application_protocols.is_empty()
            && self.transport.is_empty()
            && self.destinations.is_empty()
    }

    /// Whether both chains have the same match, which Envoy rejects.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let names = |chain: &Self| -> BTreeSet<Text> {
            chain.server_names.iter().filter(|name| **name != *"*").cloned().collect()
        };
        let networks = |chain: &Self| -> BTreeSet<IpNet> {
            let parsed = chain.destinations.iter().filter_map(|text| parse_network(text));
            parsed.filter(|network| network.addr().to_string() != "0.0.0.0").map(|network| network.trunc()).collect()
        };
        self.transport == other.transport
            && self.application_protocols == other.application_protocols
            && names(self) == names(other)
            && networks(self) == networks(other)
    }

    pub(crate) fn to_match(&self) -> Option<FilterChainMatch> {
        if self.matches_all() {
            return None;
        }
        let mut server_names: Vec<String> = Vec::new();
        if !self.server_names.iter().any(|name| *name == *"*") {
            server_names.extend(self.server_names.iter().map(Text::to_string));
            server_names.sort();
        }
        let mut destinations = self.destinations.clone();
        destinations.sort();
        Some(FilterChainMatch {
            server_names,
            prefix_ranges: destinations
                .iter()
                .filter_map(|text| cidr(text))
                .filter(|range| range.address_prefix != "0.0.0.0")
                .collect(),
            application_protocols: self.application_protocols.iter().map(|text| (*text).to_owned()).collect(),
            transport_protocol: self.transport.to_owned(),
            ..FilterChainMatch::default()
        })
    }
}
