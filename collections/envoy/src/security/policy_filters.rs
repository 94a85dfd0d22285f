//! Filters of security policies by step. Extensions are placed between the steps (N07).

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;

/// Filters of a workload's security policies, by step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyFilters {
    /// HTTP filters, after metadata exchange.
    pub http: PolicySteps<HttpFilter>,
    /// Network filters before the TCP proxy, after metadata exchange.
    pub tcp: PolicySteps<Filter>,
}

/// Filters of security policies, ordered within each step.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySteps<F> {
    /// External authorization (`CUSTOM`).
    pub custom: Vec<F>,
    /// Authentication.
    pub authentication: Vec<F>,
    /// Authorization.
    pub authorization: Vec<F>,
}

impl<F> Default for PolicySteps<F> {
    fn default() -> Self {
        Self { custom: Vec::new(), authentication: Vec::new(), authorization: Vec::new() }
    }
}
