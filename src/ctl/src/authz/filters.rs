//! AuthorizationPolicies in the RBAC filters of listeners.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::answer_output::{list, text};

/// The name of a filter without policies.
const MATCHES_NOTHING: &str = "_anonymous_match_nothing_";
/// Begins the names of rules that select requests for an external authorizer.
const CUSTOM_PREFIX: &str = "istio-ext-authz-";
const HTTP_RBAC: &str = "envoy.extensions.filters.http.rbac.v3.RBAC";
const TCP_RBAC: &str = "envoy.extensions.filters.network.rbac.v3.RBAC";
/// Actions in the order of the table.
const ACTIONS: [&str; 4] = ["DENY", "ALLOW", "LOG", "CUSTOM"];

/// A policy with an action.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct AppliedPolicy {
    pub(super) action: &'static str,
    /// `NAME.NAMESPACE`.
    pub(super) policy: String,
    /// Number of rules.
    pub(super) rules: usize,
}

/// The policies in all RBAC filters of these listeners, as istioctl lists them.
pub(super) fn policies(listeners: &[&Value]) -> Vec<AppliedPolicy> {
    let mut found: BTreeMap<&'static str, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    let mut add = |action: &'static str, (policy, rule): (String, String)| {
        found.entry(action).or_default().entry(policy).or_default().insert(rule);
    };
    for filter in listeners.iter().flat_map(|listener| rbac_filters(listener)) {
        let rules = &filter["rules"];
        // The first value of the enumeration is left out in JSON.
        let action = ACTIONS.into_iter().find(|action| text(rules, "action") == *action).unwrap_or("ALLOW");
        let names = |of: &Value| {
            of["policies"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let enforced = names(rules);
        if enforced.is_empty() {
            add(action, (MATCHES_NOTHING.to_owned(), "0".to_owned()));
        }
        for name in enforced {
            add(action, policy_and_rule(&name));
        }
        for name in names(&filter["shadowRules"]).into_iter().filter(|name| name.starts_with(CUSTOM_PREFIX)) {
            add("CUSTOM", policy_and_rule(&name));
        }
    }
    let of = |action: &'static str| {
        let policies = found.get(action).into_iter().flatten();
        policies.map(move |(policy, rules)| AppliedPolicy { action, policy: policy.clone(), rules: rules.len() })
    };
    ACTIONS.into_iter().flat_map(of).collect()
}

/// The RBAC filters of a listener, with the names of JSON.
fn rbac_filters(listener: &Value) -> Vec<&Value> {
    let is = |config: &Value, name: &str| text(config, "@type").ends_with(name);
    let default = std::iter::once(&listener["defaultFilterChain"]).filter(|chain| chain.is_object());
    let filters = list(listener, "filterChains").iter().chain(default).flat_map(|chain| list(chain, "filters"));
    let mut found = Vec::new();
    for config in filters.map(|filter| &filter["typedConfig"]) {
        if is(config, TCP_RBAC) {
            found.push(config);
        }
        let http = list(config, "httpFilters").iter().map(|filter| &filter["typedConfig"]);
        found.extend(http.filter(|config| is(config, HTTP_RBAC)));
    }
    found
}

/// `NAME.NAMESPACE` and the rule of `ns[NAMESPACE]-policy[NAME]-rule[N]`. Another name is its own policy.
fn policy_and_rule(name: &str) -> (String, String) {
    let parsed = || {
        let (_, rest) = name.split_once("ns[")?;
        let (namespace, rest) = rest.split_once("]-policy[")?;
        let (policy, rest) = rest.split_once("]-rule[")?;
        let (rule, _) = rest.split_once(']')?;
        Some((format!("{policy}.{namespace}"), rule.to_owned()))
    };
    parsed().unwrap_or_else(|| (name.to_owned(), "0".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policies_are_listed_by_action_with_the_number_of_their_rules() {
        let rbac = |kind: &str, config: Value| {
            let mut config = config;
            config["@type"] = json!(format!("type.googleapis.com/{kind}"));
            json!({"typedConfig": config})
        };
        let rules = |action: Option<&str>, names: &[&str]| {
            let policies: serde_json::Map<String, Value> =
                names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
            match action {
                Some(action) => json!({"action": action, "policies": policies}),
                None => json!({"policies": policies}),
            }
        };
        let http = [
            rbac(
                HTTP_RBAC,
                json!({"shadowRules": rules(Some("DENY"), &["istio-ext-authz-warden-ns[shop]-policy[ask]-rule[0]"]), "rules": {"action": "DENY"}}),
            ),
            rbac(
                HTTP_RBAC,
                json!({"rules": rules(Some("DENY"), &["ns[shop]-policy[no]-rule[0]", "ns[shop]-policy[no]-rule[1]"])}),
            ),
            rbac(HTTP_RBAC, json!({"rules": rules(None, &["ns[shop]-policy[yes]-rule[0]"])})),
        ];
        let listener = json!({"filterChains": [
            {"filters": [{"typedConfig": {"@type": "type.googleapis.com/HttpConnectionManager", "httpFilters": http}}]},
            {"filters": [rbac(TCP_RBAC, json!({"rules": rules(Some("DENY"), &["ns[shop]-policy[no]-rule[0]"])}))]},
        ]});
        let of = |action, policy: &str, rules| AppliedPolicy { action, policy: policy.to_owned(), rules };
        assert_eq!(
            policies(&[&listener]),
            [
                of("DENY", MATCHES_NOTHING, 1),
                of("DENY", "no.shop", 2),
                of("ALLOW", "yes.shop", 1),
                of("CUSTOM", "ask.shop", 1),
            ]
        );
        assert_eq!(policies(&[&json!({"name": "virtualInbound"})]), []);
    }
}
