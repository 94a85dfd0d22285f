//! How the policies of a workload decide about one request (P16): the built rules are evaluated, as Envoy does.
//!
//! Steps are in the order of the filters: `CUSTOM`, `AUDIT`, `DENY`, `ALLOW`. An attribute that the request does not state makes
//! a rule that depends on it undecided.

mod matching;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use envoy_types::pb::envoy::config::rbac::v3::rbac::Action;
use serde::Serialize;
use sluice_model::{AuthorizationPolicy, PolicyAction, Text};

use super::SecurityInputs;
use super::purpose::Purpose;
use super::rbac::{unusable_providers, written};
use super::trust_domain::TrustDomains;
use matching::Evaluation;

/// A request to a workload, as the filters of its policies see it.
#[derive(Clone, Debug, Default)]
pub struct PolicyRequest {
    /// `None` if it is a connection whose protocol is not HTTP.
    pub http: Option<PolicyHttpRequest>,
    /// Identity in the client's certificate, with `spiffe://`; `None` without mutual TLS.
    pub principal: Option<String>,
    /// Address of the peer.
    pub source_ip: Option<IpAddr>,
    /// Address of the client, as trusted proxies report it.
    pub remote_ip: Option<IpAddr>,
    /// Address of the workload.
    pub destination_ip: Option<IpAddr>,
    /// Port of the workload.
    pub port: Option<u16>,
    /// Server name in the TLS handshake.
    pub server_name: Option<String>,
    /// Claims of a validated token, by path. A claim with several values is a list.
    pub claims: BTreeMap<Vec<String>, Vec<String>>,
}

/// The HTTP attributes of a request. Headers that are not listed are absent.
#[derive(Clone, Debug, Default)]
pub struct PolicyHttpRequest {
    /// Method.
    pub method: String,
    /// Path, with the query.
    pub path: String,
    /// Authority.
    pub host: Option<String>,
    /// Headers, with names in lower case.
    pub headers: BTreeMap<String, String>,
}

/// What follows for the request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyEffect {
    /// It is allowed.
    Allowed,
    /// It is denied.
    Denied,
    /// It is allowed if the external authorizers allow it.
    Provider,
    /// It depends on attributes that the request does not state.
    Undecided,
}

/// A step of the decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PolicyStep {
    /// External authorization.
    Custom,
    /// Audit: it decides nothing.
    Audit,
    /// Denial.
    Deny,
    /// Permission.
    Allow,
}

/// A rule that matches the request, or may match it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MatchedRule {
    /// Index of the policy in [`SecurityInputs::authorization`].
    pub policy: usize,
    /// Number of the rule, from 0.
    pub rule: usize,
    /// The step in which it counts.
    pub step: PolicyStep,
    /// The policy is evaluated and not enforced.
    pub dry_run: bool,
    /// Attributes that decide whether it matches, and that the request does not state; empty if it matches.
    pub depends_on: BTreeSet<&'static str>,
}

impl MatchedRule {
    fn is_certain(&self) -> bool {
        self.depends_on.is_empty()
    }
}

/// The decision about a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyDecision {
    /// What follows.
    pub effect: PolicyEffect,
    /// The rule that decides: an index in [`Self::matched`]. `None` if no rule matches: the request is then denied if there are
    /// `ALLOW` policies, and allowed otherwise.
    pub decided_by: Option<usize>,
    /// All rules that match or may match, in the order of the steps.
    pub matched: Vec<MatchedRule>,
    /// Whether there are enforced `ALLOW` policies, so that a request that none of them matches is denied.
    pub has_allow: bool,
    /// External authorizers that decide, too.
    pub providers: Vec<Text>,
    /// Attributes that the decision depends on, and that the request does not state.
    pub depends_on: BTreeSet<&'static str>,
}

/// Decides about a request by the policies of a workload.
#[must_use]
pub fn decide(inputs: &SecurityInputs<'_>, request: &PolicyRequest) -> PolicyDecision {
    let steps = [
        (PolicyStep::Custom, Action::Deny),
        (PolicyStep::Audit, Action::Log),
        (PolicyStep::Deny, Action::Deny),
        (PolicyStep::Allow, Action::Allow),
    ];
    let evaluation = Evaluation { request };
    let domains = TrustDomains::of(&inputs.settings.mesh);
    let mut matched = Vec::new();
    for (step, action) in steps {
        let purpose = Purpose { action, tcp: request.http.is_none(), grpc: false, peer_in_filter_state: false };
        for (policy, declared) in inputs.authorization.iter().enumerate().filter(|(_, policy)| counts(policy, step)) {
            for (rule, built) in written(declared, &domains, purpose) {
                if let Some(depends_on) = evaluation.policy(&built).matches() {
                    matched.push(MatchedRule { policy, rule, step, dry_run: declared.dry_run, depends_on });
                }
            }
        }
    }
    let has_allow = inputs.authorization.iter().any(|policy| !policy.dry_run && counts(policy, PolicyStep::Allow));
    conclude(inputs, matched, has_allow)
}

/// Whether a policy counts in a step. An action that cannot be read may be `DENY` or `ALLOW`.
fn counts(policy: &AuthorizationPolicy, step: PolicyStep) -> bool {
    match policy.action {
        PolicyAction::Custom => step == PolicyStep::Custom,
        PolicyAction::Audit => step == PolicyStep::Audit,
        PolicyAction::Deny => step == PolicyStep::Deny,
        PolicyAction::Allow => step == PolicyStep::Allow,
        PolicyAction::Unreadable => matches!(step, PolicyStep::Deny | PolicyStep::Allow),
    }
}

fn conclude(inputs: &SecurityInputs<'_>, matched: Vec<MatchedRule>, has_allow: bool) -> PolicyDecision {
    let unusable = unusable_providers(inputs);
    let provider = |rule: &MatchedRule| &inputs.authorization[rule.policy].provider;
    let denies = |rule: &MatchedRule| match rule.step {
        PolicyStep::Deny => true,
        PolicyStep::Custom => unusable.contains(provider(rule).as_str()),
        PolicyStep::Audit | PolicyStep::Allow => false,
    };
    let enforced = |rule: &&MatchedRule| !rule.dry_run;
    let find = |fits: &dyn Fn(&MatchedRule) -> bool| matched.iter().position(|rule| !rule.dry_run && fits(rule));
    let asked = |certain: bool| {
        let asks =
            move |rule: &&MatchedRule| rule.step == PolicyStep::Custom && !denies(rule) && rule.is_certain() == certain;
        matched.iter().filter(enforced).filter(asks).map(|rule| provider(rule).clone()).collect::<BTreeSet<Text>>()
    };
    let depends_on = |fits: &dyn Fn(&MatchedRule) -> bool| {
        let open = matched.iter().filter(enforced).filter(|rule| !rule.is_certain() && fits(rule));
        open.flat_map(|rule| rule.depends_on.iter().copied()).collect::<BTreeSet<&'static str>>()
    };
    let providers = asked(true);
    let denied = find(&|rule| denies(rule) && rule.is_certain());
    let allowed = find(&|rule| rule.step == PolicyStep::Allow && rule.is_certain());
    let may_deny = depends_on(&denies);
    let may_allow = depends_on(&|rule| rule.step == PolicyStep::Allow);
    let may_ask = depends_on(&|rule| rule.step == PolicyStep::Custom && !denies(rule));
    let is_default_allowed = !has_allow;
    let (effect, decided_by, open) = if denied.is_some() {
        (PolicyEffect::Denied, denied, BTreeSet::new())
    } else if has_allow && allowed.is_none() && may_allow.is_empty() {
        (PolicyEffect::Denied, None, BTreeSet::new())
    } else if !may_deny.is_empty() || !(is_default_allowed || allowed.is_some()) {
        let open = if is_default_allowed || allowed.is_some() { may_deny } else { &may_deny | &may_allow };
        (PolicyEffect::Undecided, None, open)
    } else if !providers.is_empty() {
        (PolicyEffect::Provider, find(&|rule| rule.step == PolicyStep::Custom && rule.is_certain()), may_ask)
    } else if !may_ask.is_empty() {
        (PolicyEffect::Undecided, None, may_ask)
    } else {
        (PolicyEffect::Allowed, allowed, BTreeSet::new())
    };
    let providers = providers.into_iter().collect();
    PolicyDecision { effect, decided_by, matched, has_allow, providers, depends_on: open }
}
