use std::sync::Arc;

use sluice_model::{DestinationRule, Host, Labels, Subset, Text};

use super::{RuleClient, RulePolicy, select_rule, special_namespaces};
use crate::host_patterns::covering_hosts;

const HOST: &str = "cart.shop.svc.cluster.local";

struct TestRules(Vec<Arc<DestinationRule>>);

impl TestRules {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(mut self, namespace: &str, name: &str, host: &str, export_to: &[&str]) -> Self {
        self.0.push(Arc::new(DestinationRule {
            namespace: namespace.into(),
            name: name.into(),
            host: host.into(),
            created: i64::try_from(self.0.len()).unwrap(),
            export_to: export_to.iter().map(|word| Text::from(*word)).collect(),
            subsets: vec![Subset { name: name.into(), ..Subset::default() }],
            ..DestinationRule::default()
        }));
        self
    }

    fn selecting(mut self, key: &str, value: &str) -> Self {
        let rule = Arc::make_mut(self.0.last_mut().unwrap());
        rule.workload_selector = Some(Labels::from([(key.into(), value.into())]));
        self
    }

    /// Names of the subsets of the rule a client follows.
    fn check(&self, client: &str, labels: &[(&str, &str)], expected: &[&str]) {
        let policy = RulePolicy { root_namespace: "root".into(), private_by_default: false };
        let labels: Labels = labels.iter().map(|(key, value)| (Text::from(*key), Text::from(*value))).collect();
        let client = RuleClient { namespace: client, labels: Some(&labels) };
        let rule = select_rule(&self.0, &policy, &HOST.into(), "shop", client);
        let subsets = rule.iter().flat_map(|rule| &rule.subsets).map(|subset| subset.name.as_str());
        assert_eq!(subsets.collect::<Vec<_>>(), expected, "client {client:?}");
    }
}

#[test]
fn the_clients_namespace_comes_before_the_services_before_the_root() {
    let rules = TestRules::new().add("root", "r", HOST, &[]).add("shop", "s", HOST, &[]).add("app", "a", HOST, &[]);
    rules.check("app", &[], &["a"]);
    rules.check("shop", &[], &["s"]);
    rules.check("other", &[], &["s"]);
    rules.check("", &[], &["s"]);
    // Clients in the root namespace follow the service's own rules before those for the whole mesh.
    rules.check("root", &[], &["s"]);
    TestRules::new().add("root", "r", HOST, &[]).check("other", &[], &["r"]);
    TestRules::new().add("root", "r", HOST, &["."]).add("shop", "s", HOST, &[]).check("root", &[], &["r"]);
    TestRules::new().add("stranger", "x", HOST, &[]).check("other", &[], &[]);
}

#[test]
fn the_most_specific_host_wins_within_a_namespace() {
    let rules = TestRules::new()
        .add("shop", "all", "*", &[])
        .add("shop", "domain", "*.shop.svc.cluster.local", &[])
        .add("shop", "exact", HOST, &["."]);
    rules.check("shop", &[], &["exact"]);
    // The exact rule is not exported, so the wildcard rule applies to clients of other namespaces.
    rules.check("other", &[], &["domain"]);
}

#[test]
fn visibility_follows_export_to() {
    let rules = TestRules::new().add("shop", "s", HOST, &["app", "."]).add("root", "r", HOST, &[]);
    rules.check("app", &[], &["s"]);
    rules.check("shop", &[], &["s"]);
    rules.check("other", &[], &["r"]);
    TestRules::new().add("app", "a", HOST, &["other"]).add("shop", "s", HOST, &[]).check("app", &[], &["s"]);
}

#[test]
fn rules_of_one_host_are_merged_if_they_are_for_the_same_clients() {
    let rules = TestRules::new().add("shop", "one", HOST, &[]).add("shop", "two", HOST, &[]);
    rules.check("other", &[], &["one", "two"]);
    let rules = TestRules::new().add("shop", "few", HOST, &["app"]).add("shop", "more", HOST, &["app", "web"]);
    // The public rule is merged into the private one and no longer applies by itself. istiod does so, and configurations
    // rely on it.
    rules.check("app", &[], &["few", "more"]);
    rules.check("web", &[], &[]);
    let rules = TestRules::new().add("shop", "private", HOST, &["."]).add("shop", "public", HOST, &["*"]);
    rules.check("other", &[], &["public"]);
    rules.check("shop", &[], &["public"]);
}

#[test]
fn a_rule_that_selects_clients_is_for_them_alone() {
    let rules = TestRules::new()
        .add("app", "all", HOST, &[])
        .add("app", "chosen", HOST, &[])
        .selecting("role", "edge")
        .add("app", "again", HOST, &[])
        .selecting("role", "edge");
    rules.check("app", &[("role", "edge")], &["chosen", "again"]);
    rules.check("app", &[("role", "core")], &["all"]);
    rules.check("other", &[("role", "edge")], &[]);
    let unlabelled = RuleClient { namespace: "app", labels: None };
    let policy = RulePolicy { root_namespace: "root".into(), private_by_default: false };
    assert_eq!(select_rule(&rules.0, &policy, &HOST.into(), "shop", unlabelled).unwrap().subsets[0].name, "all");
}

#[test]
fn covering_hosts_are_the_wildcards_over_a_name() {
    let covering = |name: &str| covering_hosts(&Host::from(name)).map(|host| host.to_string()).collect::<Vec<_>>();
    assert_eq!(covering("a-b.c.d"), ["a-b.c.d", "*-b.c.d", "*.c.d", "*.d", "*"]);
    assert_eq!(covering("*.c.d"), ["*.c.d", "*.d", "*"]);
    assert_eq!(covering("*"), ["*"]);
}

#[test]
fn namespaces_with_rules_or_in_export_to_are_special() {
    let rules = TestRules::new().add("shop", "s", HOST, &["app", ".", "~"]).add("root", "r", HOST, &["*"]);
    let special = special_namespaces(&rules.0);
    assert_eq!(special.iter().map(|n| n.as_str()).collect::<Vec<_>>(), ["app", "root", "shop"]);
}
