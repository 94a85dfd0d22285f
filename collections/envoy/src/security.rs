//! Filters of security policies (P13, P15, P16), one file per feature.
//!
//! [`build_policies`] builds all of them for one workload. `filter/policy.rs` defines their place in a filter chain.

mod ext_authz;
mod jwt;
mod matchers;
mod permission;
mod principal;
mod rbac;
mod trust_domain;

use serde::Serialize;
use sluice_model::{AuthorizationPolicy, CompliancePolicy, JwtRule, Text};

use crate::listener::{ListenerSettings, PolicyFilters, PolicySteps};

pub use ext_authz::authorizer_service;
pub use jwt::KeySource;
pub(crate) use matchers::claim;

/// Server options that change how policies are translated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SecurityOptions {
    /// A workload may have `CUSTOM` policies of several providers.
    pub multiple_custom_providers: bool,
    /// Only policies with a `targetRef` apply to gateways of the Gateway API, not those that select them by label.
    pub gateways_by_target_only: bool,
    /// Clients of any trust domain are accepted.
    pub any_trust_domain: bool,
    /// Limits of all TLS settings (`COMPLIANCE_POLICY`).
    pub compliance: Option<CompliancePolicy>,
}

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

/// The reason why a part of a policy cannot be expressed in a filter.
type Inexpressible = Text;

#[cfg(test)]
mod tests;
