//! AuthorizationPolicies for connections (A04).

use std::net::IpAddr;

use bytes::Bytes;
use ipnet::IpNet;
use sluice_model::{
    AuthorizationCondition, AuthorizationOperation, AuthorizationPolicy, AuthorizationRule, AuthorizationSource,
    PolicyAction, PolicyValues, Text,
};
use sluice_proto::google::protobuf::Empty;
use sluice_proto::istio::security::string_match::MatchType;
use sluice_proto::istio::security::{
    Action, Address, Authorization, Group, Match, Rules, Scope, ServiceAccountMatch, StringMatch,
};

use super::octets;
use crate::string_match::WildcardValue;

/// The policy in the form of ztunnel; `None` if it does not apply to ztunnel.
///
/// A rule of an ALLOW policy with HTTP attributes never matches, so that it does not allow too much. Such a rule of a DENY
/// policy matches without these attributes.
#[must_use]
pub fn build_authorization(policy: &AuthorizationPolicy, root_namespace: &str, with_dry_run: bool) -> Option<Bytes> {
    authorization(policy, root_namespace, with_dry_run).map(|policy| crate::wire::encode(&policy))
}

pub(super) fn authorization(
    policy: &AuthorizationPolicy,
    root_namespace: &str,
    with_dry_run: bool,
) -> Option<Authorization> {
    if !policy.attachment.targets.is_empty() || (policy.dry_run && !with_dry_run) {
        return None;
    }
    let action = match policy.action {
        PolicyAction::Allow => Action::Allow,
        PolicyAction::Deny => Action::Deny,
        PolicyAction::Audit | PolicyAction::Custom => return None,
    };
    let scope = match (policy.attachment.selector.is_empty(), *policy.namespace == *root_namespace) {
        (false, _) => Scope::WorkloadSelector,
        (true, true) => Scope::Global,
        (true, false) => Scope::Namespace,
    };
    let readable = policy.rules.iter().filter(|rule| action == Action::Deny || !asks_for_http(rule));
    Some(Authorization {
        name: policy.name.to_string(),
        namespace: policy.namespace.to_string(),
        scope: scope.into(),
        action: action.into(),
        groups: readable.map(|rule| Group { rules: clauses(rule, &policy.namespace) }).collect(),
        dry_run: policy.dry_run,
        extensions: Vec::new(),
    })
}

/// The ALLOW policy for the instances of a waypoint, which denies all others (`PILOT_AUTO_ALLOW_WAYPOINT_POLICY`).
#[must_use]
pub fn build_waypoint_authorization(name: &str, namespace: &str, principals: &[Text]) -> Bytes {
    let exact = |principal: &Text| StringMatch { match_type: Some(MatchType::Exact(principal.to_string())) };
    let instances = Match { principals: principals.iter().map(exact).collect(), ..Match::default() };
    crate::wire::encode(&Authorization {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        scope: Scope::WorkloadSelector.into(),
        action: Action::Allow.into(),
        groups: vec![Group { rules: vec![Rules { matches: vec![instances] }] }],
        ..Authorization::default()
    })
}

fn asks_for_http(rule: &AuthorizationRule) -> bool {
    let of_source =
        |source: &AuthorizationSource| !source.remote_ip_blocks.is_empty() || !source.request_principals.is_empty();
    let of_operation = |operation: &AuthorizationOperation| {
        !operation.hosts.is_empty() || !operation.methods.is_empty() || !operation.paths.is_empty()
    };
    let of_connections = ["source.ip", "source.namespace", "source.principal", "destination.ip", "destination.port"];
    rule.from.iter().any(of_source)
        || rule.to.iter().any(of_operation)
        || rule.when.iter().any(|condition| !of_connections.contains(&condition.key.as_str()))
}

/// Clauses, all of which must match, each by one of its matches.
fn clauses(rule: &AuthorizationRule, namespace: &str) -> Vec<Rules> {
    let mut clauses = Vec::new();
    if !rule.to.is_empty() {
        clauses.push(Rules { matches: rule.to.iter().map(operation).collect() });
    }
    if !rule.from.is_empty() {
        clauses.push(Rules { matches: rule.from.iter().map(|from| source(from, namespace)).collect() });
    }
    clauses.extend(rule.when.iter().map(|condition| Rules { matches: vec![self::condition(condition)] }));
    clauses
}

fn operation(operation: &AuthorizationOperation) -> Match {
    Match {
        destination_ports: ports(&operation.ports.any),
        not_destination_ports: ports(&operation.ports.none),
        ..Match::default()
    }
}

fn source(source: &AuthorizationSource, namespace: &str) -> Match {
    Match {
        source_ips: addresses(&source.ip_blocks.any),
        not_source_ips: addresses(&source.ip_blocks.none),
        namespaces: strings(&source.namespaces.any),
        not_namespaces: strings(&source.namespaces.none),
        service_accounts: accounts(&source.service_accounts.any, namespace),
        not_service_accounts: accounts(&source.service_accounts.none, namespace),
        principals: strings(&source.principals.any),
        not_principals: strings(&source.principals.none),
        ..Match::default()
    }
}

fn condition(condition: &AuthorizationCondition) -> Match {
    let PolicyValues { any, none } = &condition.values;
    let mut made = Match::default();
    match condition.key.as_str() {
        "source.namespace" => (made.namespaces, made.not_namespaces) = (strings(any), strings(none)),
        "source.principal" => (made.principals, made.not_principals) = (strings(any), strings(none)),
        "source.ip" => (made.source_ips, made.not_source_ips) = (addresses(any), addresses(none)),
        "destination.ip" => (made.destination_ips, made.not_destination_ips) = (addresses(any), addresses(none)),
        "destination.port" => (made.destination_ports, made.not_destination_ports) = (ports(any), ports(none)),
        _ => {}
    }
    made
}

fn strings(values: &[Text]) -> Vec<StringMatch> {
    let one = |value: &Text| {
        let match_type = match WildcardValue::parse(value) {
            WildcardValue::Present => MatchType::Presence(Empty {}),
            WildcardValue::Suffix(suffix) => MatchType::Suffix(suffix.to_owned()),
            WildcardValue::Prefix(prefix) => MatchType::Prefix(prefix.to_owned()),
            WildcardValue::Exact(exact) => MatchType::Exact(exact.to_owned()),
        };
        StringMatch { match_type: Some(match_type) }
    };
    values.iter().map(one).collect()
}

/// Service accounts, in the policy's namespace unless they name another.
fn accounts(values: &[Text], namespace: &str) -> Vec<ServiceAccountMatch> {
    let one = |value: &Text| {
        let (namespace, account) = value.split_once('/').unwrap_or((namespace, value));
        ServiceAccountMatch { namespace: namespace.to_owned(), service_account: account.to_owned() }
    };
    values.iter().map(one).collect()
}

fn ports(values: &[Text]) -> Vec<u32> {
    values.iter().filter_map(|value| value.parse::<u16>().ok()).map(u32::from).collect()
}

fn addresses(values: &[Text]) -> Vec<Address> {
    let one = |value: &Text| {
        let block = value.parse::<IpNet>().ok().or_else(|| value.parse::<IpAddr>().ok().map(IpNet::from))?;
        Some(Address { address: octets(block.addr()), length: u32::from(block.prefix_len()) })
    };
    values.iter().filter_map(one).collect()
}
