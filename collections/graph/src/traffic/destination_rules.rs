//! The DestinationRule that a client follows for a service (N15).
//!
//! Rules of the client's namespace have precedence, then those of the service's namespace, then those of the root
//! namespace. Within a namespace the most specific host has precedence, and rules with the same host are merged. The
//! result is a function of the rules whose host covers the service's host, so a change of a rule concerns only the
//! services that its host covers.

mod merge;
mod parts;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluice_engine::{Collection, Context, Deps, IndexDep};
use sluice_model::{DestinationRule, Host, Labels, MeshConfig, ObjectKey, Text, match_labels};

pub(crate) use merge::MergedRule;
use merge::merge;
pub(crate) use parts::{RuleIndex, RuleIndexes};

use crate::host_patterns::covering_hosts;

/// The values of `exportTo` with a special meaning.
const EVERYWHERE: &str = "*";
const OWN: &str = ".";

/// The fields of the mesh config that decide which rules apply.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(crate) struct RulePolicy {
    /// Namespace whose rules are for the whole mesh.
    pub(crate) root_namespace: Text,
    /// Rules without `exportTo` apply only in their own namespace.
    pub(crate) private_by_default: bool,
}

impl RulePolicy {
    /// Reads the fields from the mesh config.
    #[must_use]
    pub(crate) fn new(mesh: &MeshConfig) -> Self {
        Self {
            root_namespace: mesh.root_namespace.clone(),
            private_by_default: mesh.default_destination_rule_export_to.iter().any(|word| *word == *OWN),
        }
    }
}

/// The fields of the mesh config that decide which rules apply.
/// Key: none, one record. From: `mesh_config`. Changes when: its root namespace or default visibility of rules does.
/// Size: 1. Rejects: none.
pub(crate) fn derive_rule_policy<'s>(mesh: &Collection<'s, (), MeshConfig>) -> Collection<'s, (), RulePolicy> {
    mesh.map("rule_policy", |(), mesh| RulePolicy::new(mesh))
}

/// The client that follows a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleClient<'a> {
    /// Its namespace; empty is any client without rules of its own.
    pub(crate) namespace: &'a str,
    /// Its labels. For `None`, as for a workload's own inbound side, rules that select clients do not apply.
    pub(crate) labels: Option<&'a Labels>,
}

/// Looks up rules, inside a `derive`. Without an index there are none.
#[derive(Clone, Copy)]
pub(crate) struct RuleLookup(Option<IndexDep<Host, ObjectKey, DestinationRule>>);

impl RuleLookup {
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, by_host: Option<&RuleIndex<'s>>) -> Self {
        Self(by_host.map(|by_host| deps.by(by_host)))
    }

    /// The rules whose host covers `host`.
    pub(crate) fn covering(self, cx: &Context, host: &Host) -> Vec<Arc<DestinationRule>> {
        let Some(by_host) = self.0 else { return Vec::new() };
        covering_hosts(host).flat_map(|covering| cx.by(&by_host, &covering)).map(|(_, rule)| rule).collect()
    }
}

/// The rule that a client follows for a service, out of all rules whose host covers the service's host.
#[must_use]
pub(crate) fn select_rule(
    rules: &[Arc<DestinationRule>],
    policy: &RulePolicy,
    host: &Host,
    service_namespace: &str,
    client: RuleClient<'_>,
) -> Option<DestinationRule> {
    let candidates = candidates(rules, policy, service_namespace, client.namespace);
    debug_assert!(candidates.iter().all(|found| found.rule.host.contains(host)));
    choose(candidates, client)
}

/// The rules of which clients of a namespace follow one, by their labels: those of the first namespace that has any.
pub(crate) fn candidates<'a>(
    rules: &'a [Arc<DestinationRule>],
    policy: &RulePolicy,
    service_namespace: &str,
    client: &str,
) -> Vec<MergedRule<'a>> {
    let root = policy.root_namespace.as_str();
    let own = if client == root {
        // Rules of the root namespace apply to the whole mesh; here only those that are private to it count.
        merge(rules.iter().filter(|rule| rule.namespace == *root && is_private(rule, policy)))
    } else if client.is_empty() {
        Vec::new()
    } else {
        merge(rules.iter().filter(|rule| rule.namespace == *client && is_own(rule)))
    };
    if !own.is_empty() {
        return own;
    }
    let exported = |namespace: &str| {
        let found = merge(rules.iter().filter(|rule| rule.namespace == *namespace && !is_private(rule, policy)));
        found.into_iter().filter(|rule| is_exported(rule, client)).collect::<Vec<_>>()
    };
    let of_service = exported(service_namespace);
    if of_service.is_empty() { exported(root) } else { of_service }
}

/// Of the rules of one host: the first that selects the client, else the last without a selector.
fn choose(candidates: Vec<MergedRule<'_>>, client: RuleClient<'_>) -> Option<DestinationRule> {
    let mut of_all = None;
    for MergedRule { rule, .. } in candidates {
        match (&rule.workload_selector, client.labels) {
            (None, _) => of_all = Some(rule),
            (Some(selector), Some(labels)) if rule.namespace == *client.namespace && match_labels(selector, labels) => {
                return Some(rule);
            }
            (Some(_), _) => {}
        }
    }
    of_all
}

/// Namespaces whose clients may follow another rule than the base.
#[must_use]
pub(crate) fn special_namespaces(rules: &[Arc<DestinationRule>]) -> BTreeSet<Text> {
    let named = |rule: &DestinationRule| {
        let words = rule.export_to.iter().filter(|word| !matches!(word.as_str(), EVERYWHERE | OWN | "~"));
        words.cloned().collect::<Vec<_>>()
    };
    rules.iter().flat_map(|rule| named(rule).into_iter().chain([rule.namespace.clone()])).collect()
}

/// Whether some rule in a namespace selects clients.
#[must_use]
pub(crate) fn selects_clients(rules: &[Arc<DestinationRule>], namespace: &str) -> bool {
    rules.iter().any(|rule| rule.namespace == *namespace && rule.workload_selector.is_some())
}

/// Whether clients in the rule's own namespace follow it.
fn is_own(rule: &DestinationRule) -> bool {
    let words = merge::words(rule);
    words.is_empty() || words.contains(EVERYWHERE) || words.contains(OWN) || words.contains(&rule.namespace)
}

/// Whether only clients in the rule's own namespace follow it.
fn is_private(rule: &DestinationRule, policy: &RulePolicy) -> bool {
    let words = merge::words(rule);
    match words.len() {
        0 => policy.private_by_default,
        1 => words.contains(OWN) || words.contains(&rule.namespace),
        _ => false,
    }
}

fn is_exported(rule: &MergedRule<'_>, namespace: &str) -> bool {
    let words = &rule.words;
    words.is_empty() || words.contains(EVERYWHERE) || (!namespace.is_empty() && words.contains(namespace))
}

#[cfg(test)]
mod tests;
