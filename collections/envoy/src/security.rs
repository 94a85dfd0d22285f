//! Filters of security policies (P13, P15, P16), one file per feature.
//!
//! [`build_policies`] builds all of them for one workload. [`PolicySteps`] defines their place in a filter chain.

mod decision;
mod ext_authz;
mod filter_names;
mod jwt;
mod matchers;
mod permission;
mod policy_filters;
mod principal;
mod purpose;
mod rbac;
mod trust_domain;

use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use sluice_model::{AuthorizationPolicy, JwtRule, Text};

use crate::listener_settings::ListenerSettings;

pub use decision::{MatchedRule, PolicyDecision, PolicyEffect, PolicyHttpRequest, PolicyRequest, PolicyStep, decide};
pub(crate) use filter_names::RBAC_HTTP;
pub use jwt::KeySource;
pub(crate) use matchers::claim;
pub use policy_filters::{PolicyFilters, PolicySteps};

/// Inputs of [`build_policies`].
#[derive(Clone, Copy, Debug)]
pub struct SecurityInputs<'a> {
    /// Settings of mesh and proxy.
    pub settings: &'a ListenerSettings,
    /// Authorization policies that apply, in order: first those of the root namespace, older before newer.
    pub authorization: &'a [&'a AuthorizationPolicy],
    /// Token issuers that apply, with the source of their keys, in order: first those of the workload's namespace.
    pub tokens: &'a [(&'a JwtRule, KeySource)],
    /// Routes may match claims, so the route is selected again after a token is validated.
    pub clear_route_cache: bool,
}

/// Builds the filters of a workload's policies.
#[must_use]
pub fn build_policies(inputs: &SecurityInputs<'_>) -> PolicyFilters {
    let (custom_http, custom_tcp) = rbac::build_custom(inputs);
    let (http, tcp) = rbac::build_local(inputs);
    PolicyFilters {
        http: PolicySteps {
            custom: custom_http,
            authentication: jwt::build_jwt(inputs.tokens, inputs.clear_route_cache).into_iter().collect(),
            authorization: http,
        },
        tcp: PolicySteps { custom: custom_tcp, authentication: Vec::new(), authorization: tcp },
    }
}

/// Builds the authorization filters of a gRPC server without an Envoy (X28). Policies with the action `CUSTOM` and
/// RequestAuthentications have no form in gRPC.
#[must_use]
pub fn build_grpc_policies(settings: &ListenerSettings, authorization: &[&AuthorizationPolicy]) -> Vec<HttpFilter> {
    rbac::build_grpc(&SecurityInputs { settings, authorization, tokens: &[], clear_route_cache: false })
}

/// The reason why a part of a policy cannot be expressed in a filter.
type Inexpressible = Text;

/// An error for an empty value of an attribute that is never empty.
fn check_present(value: &str) -> Result<(), Inexpressible> {
    if value.is_empty() { Err("the value must not be empty".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
