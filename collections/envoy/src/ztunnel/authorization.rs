//! AuthorizationPolicies for connections (A04).

use std::collections::BTreeSet;
use std::net::IpAddr;

use bytes::Bytes;
use ipnet::IpNet;
use serde::Serialize;
use sluice_model::{
    AuthorizationCondition, AuthorizationOperation, AuthorizationPolicy, AuthorizationRule, AuthorizationSource,
    PolicyAction, PolicyValues, Text, check_service_account,
};
use sluice_proto::google::protobuf::Empty;
use sluice_proto::istio::security::string_match::MatchType;
use sluice_proto::istio::security::{
    Action, Address, Authorization, Group, Match, Rules, Scope, ServiceAccountMatch, StringMatch,
};

use super::octets;
use crate::string_match::WildcardValue;

/// Attributes of conditions that apply to connections.
const CONNECTION_ATTRIBUTES: [&str; 5] =
    ["source.ip", "source.namespace", "source.principal", "destination.ip", "destination.port"];

/// The policy in the form of ztunnel; `None` if it does not apply to ztunnel.
///
/// A rule of an ALLOW policy with HTTP attributes or invalid values never matches, so that it does not allow too much. A rule
/// of a DENY policy matches without HTTP attributes, and an invalid value of it may be any.
#[must_use]
pub fn build_authorization(policy: &AuthorizationPolicy, root_namespace: &str, with_dry_run: bool) -> Option<Bytes> {
    authorization(policy, root_namespace, with_dry_run).map(|policy| crate::wire::encode(&policy))
}

pub(super) fn authorization(
    policy: &AuthorizationPolicy,
    root_namespace: &str,
    with_dry_run: bool,
) -> Option<Authorization> {
    if policy.attachment.has_targets() || (policy.dry_run && !with_dry_run) {
        return None;
    }
    let action = match policy.action {
        PolicyAction::Allow => Action::Allow,
        PolicyAction::Deny | PolicyAction::Unreadable => Action::Deny,
        PolicyAction::Audit | PolicyAction::Custom => return None,
    };
    let scope = match (policy.attachment.selector.is_empty(), *policy.namespace == *root_namespace) {
        (false, _) => Scope::WorkloadSelector,
        (true, true) => Scope::Global,
        (true, false) => Scope::Namespace,
    };
    let allow = action == Action::Allow;
    let groups = if policy.action == PolicyAction::Unreadable {
        // It may be an ALLOW policy, which denies what no rule matches, or a DENY policy, which denies the rest.
        vec![Group::default()]
    } else {
        let expressible = policy.rules.iter().filter(|rule| !allow || !asks_for_http(rule));
        expressible.filter_map(|rule| Some(Group { rules: clauses(rule, &policy.namespace, allow)? })).collect()
    };
    Some(Authorization {
        name: policy.name.to_string(),
        namespace: policy.namespace.to_string(),
        scope: scope.into(),
        action: action.into(),
        groups,
        dry_run: policy.dry_run,
        extensions: Vec::new(),
    })
}

/// What ztunnel enforces of a policy.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct PolicyAcceptance {
    /// It receives the policy.
    pub is_accepted: bool,
    /// As one word: `Accepted`, or `UnsupportedValue` if a part is not supported.
    pub reason: &'static str,
    /// As a sentence.
    pub message: String,
}

impl PolicyAcceptance {
    fn unsupported(is_accepted: bool, message: String) -> Self {
        Self { is_accepted, reason: "UnsupportedValue", message }
    }
}

/// What ztunnel enforces of a policy; `None` if the policy is for waypoints and gateways. Reasons and messages are those of the
/// reference (`pilot/pkg/serviceregistry/ambient/authorization.go`).
#[must_use]
pub fn policy_acceptance(policy: &AuthorizationPolicy, with_dry_run: bool) -> Option<PolicyAcceptance> {
    let AuthorizationPolicy { namespace, name, .. } = policy;
    if policy.dry_run && !with_dry_run {
        let message = format!(
            "found policy \"{namespace}/{name}\" using dry-run annotation, but support for ambient dry-run \
             authorizationPolicies isn't enabled"
        );
        return Some(PolicyAcceptance::unsupported(false, message));
    }
    if policy.attachment.has_targets() {
        return None;
    }
    let Some(sent) = authorization(policy, "", with_dry_run) else {
        let action = if policy.action == PolicyAction::Custom { "CUSTOM" } else { "AUDIT" };
        return Some(PolicyAcceptance::unsupported(false, format!("ztunnel does not support the {action} action")));
    };
    let found: BTreeSet<&str> = policy.rules.iter().flat_map(http_attributes).collect();
    if found.is_empty() {
        let message = "attached to ztunnel".to_owned();
        return Some(PolicyAcceptance { is_accepted: true, reason: "Accepted", message });
    }
    let effect = match policy.action {
        PolicyAction::Deny if !sent.groups.iter().any(may_match) => {
            "After omitting unsupported HTTP attributes, this DENY policy has no enforceable rules at ztunnel and will have no \
             effect. Deploy a waypoint proxy and use a targetRef to enforce this policy."
        }
        PolicyAction::Deny => {
            "DENY policy with HTTP attributes is enforced without the HTTP rules. This will be more restrictive than requested."
        }
        _ => {
            "Within an ALLOW policy, rules matching HTTP attributes are omitted. This will be more restrictive than requested."
        }
    };
    let found: Vec<&str> = found.into_iter().collect();
    let message = format!(
        "ztunnel does not support HTTP attributes (found: {}). In ambient mode you must use a waypoint proxy to enforce HTTP \
         rules. {effect}",
        found.join(", ")
    );
    Some(PolicyAcceptance::unsupported(true, message))
}

/// Whether a connection may match: ztunnel skips matches without fields.
fn may_match(group: &Group) -> bool {
    group.rules.iter().all(|clause| clause.matches.iter().any(|one| *one != Match::default()))
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
    http_attributes(rule).next().is_some()
}

/// The fields of a rule that apply to HTTP requests only, by their names in the policy.
fn http_attributes(rule: &AuthorizationRule) -> impl Iterator<Item = &str> {
    let of_sources = rule.from.iter().flat_map(|source| {
        [
            (&source.remote_ip_blocks.any, "remoteIpBlocks"),
            (&source.remote_ip_blocks.none, "notRemoteIpBlocks"),
            (&source.request_principals.any, "requestPrincipals"),
            (&source.request_principals.none, "notRequestPrincipals"),
        ]
    });
    let of_operations = rule.to.iter().flat_map(|operation| {
        [
            (&operation.hosts.any, "hosts"),
            (&operation.hosts.none, "notHosts"),
            (&operation.methods.any, "methods"),
            (&operation.methods.none, "notMethods"),
            (&operation.paths.any, "paths"),
            (&operation.paths.none, "notPaths"),
        ]
    });
    let fields = of_sources.chain(of_operations).filter(|(values, _)| !values.is_empty()).map(|(_, name)| name);
    let keys = rule.when.iter().map(|condition| condition.key.as_str());
    fields.chain(keys.filter(|key| !CONNECTION_ATTRIBUTES.contains(key)))
}

/// Clauses, all of which must match, each by one of its matches. `None` for an ALLOW rule with an invalid value.
fn clauses(rule: &AuthorizationRule, namespace: &str, allow: bool) -> Option<Vec<Rules>> {
    let mut clauses = Vec::new();
    let clause = |matches: Option<Vec<Match>>| matches.map(|matches| Rules { matches });
    if !rule.to.is_empty() {
        clauses.push(clause(rule.to.iter().map(|to| operation(to, allow)).collect())?);
    }
    if !rule.from.is_empty() {
        clauses.push(clause(rule.from.iter().map(|from| source(from, namespace, allow)).collect())?);
    }
    for condition in &rule.when {
        clauses.push(Rules { matches: vec![self::condition(condition, allow)?] });
    }
    Some(clauses)
}

fn operation(operation: &AuthorizationOperation, allow: bool) -> Option<Match> {
    let mut reader = ValueReader { allow, invalid: operation.unreadable };
    let made = Match {
        destination_ports: reader.accepted(&operation.ports.any, port),
        not_destination_ports: reader.excluded(&operation.ports.none, port),
        ..Match::default()
    };
    reader.finish(made)
}

fn source(source: &AuthorizationSource, namespace: &str, allow: bool) -> Option<Match> {
    let mut reader = ValueReader { allow, invalid: source.unreadable };
    let made = Match {
        source_ips: reader.accepted(&source.ip_blocks.any, address),
        not_source_ips: reader.excluded(&source.ip_blocks.none, address),
        namespaces: reader.accepted(&source.namespaces.any, string),
        not_namespaces: reader.excluded(&source.namespaces.none, string),
        service_accounts: reader.accepted(&source.service_accounts.any, |value| account(value, namespace)),
        not_service_accounts: reader.excluded(&source.service_accounts.none, |value| account(value, namespace)),
        principals: reader.accepted(&source.principals.any, string),
        not_principals: reader.excluded(&source.principals.none, string),
        ..Match::default()
    };
    reader.finish(made)
}

fn condition(condition: &AuthorizationCondition, allow: bool) -> Option<Match> {
    let PolicyValues { any, none } = &condition.values;
    let mut reader = ValueReader { allow, invalid: false };
    let mut made = Match::default();
    match condition.key.as_str() {
        "source.namespace" => {
            made.namespaces = reader.accepted(any, string);
            made.not_namespaces = reader.excluded(none, string);
        }
        "source.principal" => {
            made.principals = reader.accepted(any, string);
            made.not_principals = reader.excluded(none, string);
        }
        "source.ip" => {
            made.source_ips = reader.accepted(any, address);
            made.not_source_ips = reader.excluded(none, address);
        }
        "destination.ip" => {
            made.destination_ips = reader.accepted(any, address);
            made.not_destination_ips = reader.excluded(none, address);
        }
        "destination.port" => {
            made.destination_ports = reader.accepted(any, port);
            made.not_destination_ports = reader.excluded(none, port);
        }
        _ => {}
    }
    reader.finish(made)
}

/// Reader of the values of a match, which may be invalid.
struct ValueReader {
    allow: bool,
    invalid: bool,
}

impl ValueReader {
    /// Values of which one must match. An invalid one may be any value, so a DENY rule has none, which matches anything.
    fn accepted<T>(&mut self, values: &[Text], read: impl Fn(&Text) -> Option<T>) -> Vec<T> {
        let mut valid: Vec<T> = values.iter().filter_map(read).collect();
        if valid.len() < values.len() {
            if !self.allow {
                valid.clear();
            }
            self.invalid |= valid.is_empty();
        }
        valid
    }

    /// Values of which none may match, without invalid ones.
    fn excluded<T>(&mut self, values: &[Text], read: impl Fn(&Text) -> Option<T>) -> Vec<T> {
        let valid: Vec<T> = values.iter().filter_map(read).collect();
        self.invalid |= valid.len() < values.len();
        valid
    }

    /// The match; `None` if it would allow more because of an invalid value.
    fn finish(self, made: Match) -> Option<Match> {
        match (self.invalid, self.allow) {
            (true, true) => None,
            // An empty match never matches.
            (true, false) if made == Match::default() => Some(Match { not_destination_ports: vec![0], ..made }),
            _ => Some(made),
        }
    }
}

fn string(value: &Text) -> Option<StringMatch> {
    let match_type = match WildcardValue::parse(value) {
        _ if value.is_empty() => return None,
        WildcardValue::Present => MatchType::Presence(Empty {}),
        WildcardValue::Suffix(suffix) => MatchType::Suffix(suffix.to_owned()),
        WildcardValue::Prefix(prefix) => MatchType::Prefix(prefix.to_owned()),
        WildcardValue::Exact(exact) => MatchType::Exact(exact.to_owned()),
    };
    Some(StringMatch { match_type: Some(match_type) })
}

/// A service account, in the policy's namespace unless it names another.
fn account(value: &Text, namespace: &str) -> Option<ServiceAccountMatch> {
    check_service_account(value).ok()?;
    let (namespace, account) = value.split_once('/').unwrap_or((namespace, value));
    Some(ServiceAccountMatch { namespace: namespace.to_owned(), service_account: account.to_owned() })
}

fn port(value: &Text) -> Option<u32> {
    value.parse::<u16>().ok().map(u32::from)
}

fn address(value: &Text) -> Option<Address> {
    let block = value.parse::<IpNet>().ok().or_else(|| value.parse::<IpAddr>().ok().map(IpNet::from))?;
    Some(Address { address: octets(block.addr()), length: u32::from(block.prefix_len()) })
}
