//! Filters of security policies (P13, P15, P16): a file a feature.
//!
//! [`build_policies`] makes all of them for one workload; what goes where in a chain is `filter/policy.rs`.

mod ext_authz;
mod jwt;
mod matchers;
mod permission;
mod principal;
mod rbac;
mod trust_domain;

use serde::Serialize;
use sluice_model::{AuthorizationPolicy, CompliancePolicy, JwtRule, Text};

use crate::listener::{PolicyFilters, PolicySteps, Settings};

pub use ext_authz::authorizer_service;
pub use jwt::KeySource;
pub(crate) use matchers::claim;

/// Switches that change what policies are made into.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct SecurityOptions {
    /// A workload may have `CUSTOM` policies of several providers.
    pub multiple_custom_providers: bool,
    /// Gateways of the Gateway API have the policies that target them only, not those that select them by label.
    pub gateways_by_target_only: bool,
    /// Clients may be of any trust domain.
    pub any_trust_domain: bool,
    /// What limits all TLS (`COMPLIANCE_POLICY`).
    pub compliance: Option<CompliancePolicy>,
}

/// All that the filters of a workload's policies depend on.
#[derive(Clone, Copy, Debug)]
pub struct SecurityInputs<'a> {
    /// Of mesh and proxy.
    pub settings: &'a Settings,
    /// Authorization policies that apply, in order: those of the root namespace first, older before newer.
    pub authorization: &'a [&'a AuthorizationPolicy],
    /// Issuers of tokens that apply, in order: those of the own namespace first; and where their keys are.
    pub tokens: &'a [(&'a JwtRule, KeySource)],
    /// A route may depend on claims, so it is chosen again when a token was read.
    pub clear_route_cache: bool,
}

/// The filters of a workload's policies.
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

/// Why a part of a policy has no place in a chain.
type Unfit = Text;

#[cfg(test)]
mod tests;
