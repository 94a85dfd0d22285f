//! Rules of one namespace: the most specific host, and its rules merged.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_model::{DestinationRule, Text};

/// A rule, or several merged rules.
#[derive(Clone, Debug)]
pub(crate) struct MergedRule<'a> {
    /// The oldest, with the subsets and settings that younger ones add.
    pub(crate) rule: DestinationRule,
    /// The values of `exportTo` of all of them.
    pub(crate) words: BTreeSet<Text>,
    /// All of them, the oldest first.
    pub(crate) from: Vec<&'a DestinationRule>,
}

/// The effective `exportTo`: a rule that selects clients is for its own namespace.
pub(super) fn words(rule: &DestinationRule) -> BTreeSet<Text> {
    if rule.workload_selector.is_some() { [Text::from(".")].into() } else { rule.export_to.clone() }
}

/// The rules of the most specific host: those that select clients first, then older ones. Rules for the same clients
/// are merged. All given rules cover one host.
pub(super) fn merge<'a>(rules: impl Iterator<Item = &'a Arc<DestinationRule>>) -> Vec<MergedRule<'a>> {
    let mut rules: Vec<&'a DestinationRule> = rules.map(AsRef::as_ref).collect();
    // An exact host precedes every wildcard; of two wildcards that cover one host the longer is more specific.
    let rank = |rule: &DestinationRule| (!rule.host.is_wildcard(), rule.host.as_str().len());
    let Some(best) = rules.iter().map(|rule| rank(rule)).max() else { return Vec::new() };
    rules.retain(|rule| rank(rule) == best);
    rules.sort_by_key(|rule| (rule.workload_selector.is_none(), rule.created, &rule.name, &rule.namespace));
    let mut merged: Vec<MergedRule<'a>> = Vec::new();
    for rule in rules {
        add(&mut merged, rule);
    }
    merged
}

fn add<'a>(merged: &mut Vec<MergedRule<'a>>, rule: &'a DestinationRule) {
    let words = words(rule);
    let mut stands_alone = true;
    for older in merged.iter_mut() {
        // A rule for the same clients, or for more, is merged into the older one.
        if words == older.words {
            stands_alone = false;
        } else {
            stands_alone = true;
            if older.words.is_empty() || !words.is_superset(&older.words) {
                continue;
            }
        }
        match (&rule.workload_selector, &older.rule.workload_selector) {
            (Some(a), Some(b)) if a != b => {
                stands_alone = true;
                continue;
            }
            (Some(_), Some(_)) | (None, None) => stands_alone = false,
            _ => {}
        }
        older.rule.merge_younger(rule);
        older.from.push(rule);
    }
    if stands_alone {
        merged.push(MergedRule { rule: rule.clone(), words, from: vec![rule] });
    }
}
