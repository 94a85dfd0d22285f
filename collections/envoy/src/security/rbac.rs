//! RBAC filters of AuthorizationPolicies (P16).

mod condition;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use envoy_types::pb::envoy::config::listener::v3::Filter;
use envoy_types::pb::envoy::config::rbac::v3::{
    Permission, Policy, Principal, Rbac, permission, principal, rbac::Action,
};
use envoy_types::pb::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::envoy::extensions::filters::network::rbac::v3::Rbac as TcpRbac;
use sluice_model::{AuthorizationPolicy, AuthorizationRule, PolicyAction};

use super::ext_authz::{EXT_AUTHZ_HTTP, EXT_AUTHZ_TCP, ext_authz};
use super::filter_names::{CUSTOM, CUSTOM_PREFIX, RBAC_HTTP, RBAC_HTTP_DENY, RBAC_TCP};
use super::purpose::Purpose;
use super::trust_domain::TrustDomains;
use super::{Inexpressible, SecurityInputs};
use crate::filter_config::{http_filter, network_filter};
use crate::wire::any;

const BAD_CUSTOM: &str = "-deny-due-to-bad-CUSTOM-action";
const STAT_PREFIX: &str = "tcp.";

/// Enforced rules and dry-run rules, each only if such policies exist.
#[derive(Default)]
struct Built {
    rules: Option<Rbac>,
    dry: Option<Rbac>,
}

/// Filters of `AUDIT`, `DENY` and `ALLOW` policies, in this order.
pub(super) fn build_local(inputs: &SecurityInputs<'_>) -> (Vec<HttpFilter>, Vec<Filter>) {
    let (mut http, mut tcp) = (Vec::new(), Vec::new());
    let actions =
        [(PolicyAction::Audit, Action::Log), (PolicyAction::Deny, Action::Deny), (PolicyAction::Allow, Action::Allow)];
    for (of, action) in actions {
        let counts = |policy: &&AuthorizationPolicy| {
            // An unreadable action may be ALLOW or DENY.
            policy.action == of || (policy.action == PolicyAction::Unreadable && of != PolicyAction::Audit)
        };
        let policies: Vec<_> = inputs.authorization.iter().copied().filter(counts).collect();
        if policies.is_empty() {
            continue;
        }
        let built = |tcp| build(inputs, &policies, Purpose::of(inputs.settings, action, tcp));
        let Built { rules, dry } = built(false);
        let shadow_rules_stat_prefix = dry_run_prefix(dry.as_ref()).to_owned();
        http.push(http_rbac(&HttpRbac { rules, shadow_rules: dry, shadow_rules_stat_prefix, ..HttpRbac::default() }));
        let Built { rules, dry } = built(true);
        let shadow_rules_stat_prefix = dry_run_prefix(dry.as_ref()).to_owned();
        tcp.push(tcp_rbac(TcpRbac { rules, shadow_rules: dry, shadow_rules_stat_prefix, ..TcpRbac::default() }));
    }
    (http, tcp)
}

/// Filters of `DENY` and `ALLOW` policies at a gRPC server without an Envoy (X28), in this order. gRPC has no other actions,
/// and no dry runs.
///
/// Istio leaves the filter of `ALLOW` policies without rules out, so that they allow every request. Here they allow none.
pub(super) fn build_grpc(inputs: &SecurityInputs<'_>) -> Vec<HttpFilter> {
    let domains = TrustDomains::of(&inputs.settings.mesh);
    let mut filters = Vec::new();
    let actions = [(PolicyAction::Deny, Action::Deny, RBAC_HTTP_DENY), (PolicyAction::Allow, Action::Allow, RBAC_HTTP)];
    for (of, action, filter) in actions {
        // An unreadable action may be ALLOW or DENY.
        let counts = |policy: &&AuthorizationPolicy| {
            !policy.dry_run && (policy.action == of || policy.action == PolicyAction::Unreadable)
        };
        let purpose = Purpose { grpc: true, ..Purpose::of(inputs.settings, action, false) };
        let mut policies = inputs.authorization.iter().copied().filter(counts).peekable();
        if policies.peek().is_none() {
            continue;
        }
        let mut rules = rbac(action, HashMap::new());
        for policy in policies {
            for (n, rule) in written(policy, &domains, purpose) {
                let mut name = format!("{}-{}-{n}", policy.namespace, policy.name);
                // The hyphens of two policies may give the same name. No rule is lost.
                while rules.policies.contains_key(&name) {
                    name.push('-');
                }
                rules.policies.insert(name, rule);
            }
        }
        // Without rules, DENY denies nothing, and ALLOW allows nothing.
        if action == Action::Allow || !rules.policies.is_empty() {
            filters.push(http_filter(filter, any(&HttpRbac { rules: Some(rules), ..HttpRbac::default() })));
        }
    }
    filters
}

/// Filters of `CUSTOM` policies: per provider one RBAC filter that selects requests and one that calls the provider.
pub(super) fn build_custom(inputs: &SecurityInputs<'_>) -> (Vec<HttpFilter>, Vec<Filter>) {
    let mut by_provider: BTreeMap<&str, Vec<&AuthorizationPolicy>> = BTreeMap::new();
    for policy in custom_policies(inputs) {
        by_provider.entry(&policy.provider).or_default().push(policy);
    }
    let unusable = unusable_providers(inputs);
    let (mut http, mut tcp) = (Vec::new(), Vec::new());
    for (provider, policies) in by_provider {
        let built = |tcp| {
            let built = build(inputs, &policies, Purpose::of(inputs.settings, Action::Deny, tcp));
            (built.rules.unwrap_or_else(|| rbac(Action::Deny, HashMap::new())), built.dry)
        };
        let ((http_rules, http_dry), (tcp_rules, tcp_dry)) = (built(false), built(true));
        let filters = if unusable.contains(provider) { None } else { ext_authz(inputs.settings, provider).ok() };
        let Some(provider_filters) = filters else {
            // Requests without a usable provider are denied.
            http.push(http_rbac(&HttpRbac { rules: Some(refuse(http_rules)), ..HttpRbac::default() }));
            tcp.push(tcp_rbac(TcpRbac { rules: Some(refuse(tcp_rules)), ..TcpRbac::default() }));
            continue;
        };
        http.push(http_rbac(&HttpRbac {
            rules: http_dry,
            shadow_rules: Some(http_rules),
            shadow_rules_stat_prefix: CUSTOM_PREFIX.to_owned(),
            ..HttpRbac::default()
        }));
        http.push(http_filter(EXT_AUTHZ_HTTP, any(&provider_filters.http)));
        if let Some(provider_filters) = provider_filters.tcp {
            tcp.push(tcp_rbac(TcpRbac {
                rules: tcp_dry,
                shadow_rules: Some(tcp_rules),
                shadow_rules_stat_prefix: CUSTOM_PREFIX.to_owned(),
                ..TcpRbac::default()
            }));
            tcp.push(network_filter(EXT_AUTHZ_TCP, any(&provider_filters)));
        }
    }
    (http, tcp)
}

fn custom_policies<'a>(inputs: &SecurityInputs<'a>) -> impl Iterator<Item = &'a AuthorizationPolicy> {
    inputs.authorization.iter().copied().filter(|policy| policy.action == PolicyAction::Custom)
}

/// The providers of `CUSTOM` policies that cannot be called: what their rules match is denied.
pub(super) fn unusable_providers<'a>(inputs: &SecurityInputs<'a>) -> BTreeSet<&'a str> {
    let providers: BTreeSet<&str> = custom_policies(inputs).map(|policy| policy.provider.as_str()).collect();
    let named = providers.iter().filter(|name| !name.is_empty()).count();
    let too_many = named > 1 && !inputs.settings.security.multiple_custom_providers;
    providers.into_iter().filter(|provider| too_many || ext_authz(inputs.settings, provider).is_err()).collect()
}

fn build(inputs: &SecurityInputs<'_>, policies: &[&AuthorizationPolicy], purpose: Purpose) -> Built {
    let domains = TrustDomains::of(&inputs.settings.mesh);
    let mut built = Built::default();
    for policy in policies {
        let into = if policy.dry_run { &mut built.dry } else { &mut built.rules };
        let rules = into.get_or_insert_with(|| rbac(purpose.action, HashMap::new()));
        for (n, written) in written(policy, &domains, purpose) {
            rules.policies.insert(name(policy, n), written);
        }
        if applied_rules(policy, purpose).is_empty() {
            rules.policies.insert(name(policy, 0), never());
        }
    }
    built
}

/// The rules of a policy that count for a filter. A policy whose action cannot be read allows nothing.
fn applied_rules(policy: &AuthorizationPolicy, purpose: Purpose) -> &[AuthorizationRule] {
    let allows_nothing = policy.action == PolicyAction::Unreadable && purpose.action == Action::Allow;
    if allows_nothing { &[] } else { policy.rules.as_slice() }
}

/// The rules of a policy in the form of a filter, by their number. Rules that it cannot express are left out.
pub(super) fn written(
    policy: &AuthorizationPolicy,
    domains: &TrustDomains<'_>,
    purpose: Purpose,
) -> Vec<(usize, Policy)> {
    let rules = applied_rules(policy, purpose).iter().enumerate();
    rules.filter_map(|(n, rule)| Some((n, write(rule, &policy.namespace, domains, purpose).ok()?))).collect()
}

fn write(
    rule: &AuthorizationRule,
    namespace: &str,
    domains: &TrustDomains<'_>,
    purpose: Purpose,
) -> Result<Policy, Inexpressible> {
    let conditions = condition::read(&rule.when, namespace, purpose)?;
    let sources: Vec<_> = if rule.from.is_empty() { vec![None] } else { rule.from.iter().map(Some).collect() };
    let operations: Vec<_> = if rule.to.is_empty() { vec![None] } else { rule.to.iter().map(Some).collect() };
    let permissions = operations
        .into_iter()
        .map(|operation| super::permission::permission(operation, &conditions.operation, purpose));
    let principals = sources
        .into_iter()
        .map(|source| super::principal::principal(source, &conditions.source, namespace, domains, purpose));
    Ok(Policy {
        permissions: permissions.collect::<Result<_, _>>()?,
        principals: principals.collect::<Result<_, _>>()?,
        ..Policy::default()
    })
}

/// The name of a rule in statistics and logs.
fn name(policy: &AuthorizationPolicy, rule: usize) -> String {
    let AuthorizationPolicy { namespace, name, provider, .. } = policy;
    let start = match policy.action {
        PolicyAction::Custom if provider.is_empty() => format!("{CUSTOM}-"),
        PolicyAction::Custom => format!("{CUSTOM}-{provider}-"),
        _ => String::new(),
    };
    format!("{start}ns[{namespace}]-policy[{name}]-rule[{rule}]")
}

/// An empty policy matches nothing.
fn never() -> Policy {
    let anything = Permission { rule: Some(permission::Rule::Any(true)) };
    let anyone = Principal { identifier: Some(principal::Identifier::Any(true)) };
    Policy {
        permissions: vec![Permission { rule: Some(permission::Rule::NotRule(Box::new(anything))) }],
        principals: vec![Principal { identifier: Some(principal::Identifier::NotId(Box::new(anyone))) }],
        ..Policy::default()
    }
}

fn refuse(rules: Rbac) -> Rbac {
    let renamed = rules.policies.into_iter().map(|(name, policy)| (format!("{name}{BAD_CUSTOM}"), policy));
    rbac(Action::Deny, renamed.collect())
}

fn rbac(action: Action, policies: HashMap<String, Policy>) -> Rbac {
    Rbac { action: action as i32, policies, ..Rbac::default() }
}

/// Prefix of the metadata of dry-run rules.
fn dry_run_prefix(dry: Option<&Rbac>) -> &'static str {
    match dry.map_or(Action::Allow, Rbac::action) {
        Action::Allow => "istio_dry_run_allow_",
        Action::Deny => "istio_dry_run_deny_",
        Action::Log => "",
    }
}

fn http_rbac(filter: &HttpRbac) -> HttpFilter {
    http_filter(RBAC_HTTP, any(filter))
}

fn tcp_rbac(filter: TcpRbac) -> Filter {
    network_filter(RBAC_TCP, any(&TcpRbac { stat_prefix: STAT_PREFIX.to_owned(), ..filter }))
}
