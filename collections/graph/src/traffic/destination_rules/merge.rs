//! Rules of one namespace: the most specific host, and its rules merged.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_model::{DestinationRule, Text};

/// A rule, or several made one.
#[derive(Clone, Debug)]
pub(super) struct Merged {
    /// The oldest, with what younger ones added.
    pub(super) rule: DestinationRule,
    /// Where all of them are visible, in the words of `exportTo`.
    pub(super) words: BTreeSet<Text>,
}

/// Words of `exportTo` as they count: a rule for selected clients is for its own namespace.
pub(super) fn words(rule: &DestinationRule) -> BTreeSet<Text> {
    if rule.workload_selector.is_some() { [Text::from(".")].into() } else { rule.export_to.clone() }
}

/// The rules of the most specific host, those for selected clients first, then older ones, merged where they are for the
/// same clients. All rules given cover one host.
pub(super) fn merge<'a>(rules: impl Iterator<Item = &'a Arc<DestinationRule>>) -> Vec<Merged> {
    let mut rules: Vec<&DestinationRule> = rules.map(AsRef::as_ref).collect();
    // An exact host beats every wildcard, and of wildcards over one host the longer is below the shorter.
    let rank = |rule: &DestinationRule| (!rule.host.is_wildcard(), rule.host.as_str().len());
    let Some(best) = rules.iter().map(|rule| rank(rule)).max() else { return Vec::new() };
    rules.retain(|rule| rank(rule) == best);
    rules.sort_by_key(|rule| (rule.workload_selector.is_none(), rule.created, &rule.name, &rule.namespace));
    let mut merged: Vec<Merged> = Vec::new();
    for rule in rules {
        add(&mut merged, rule);
    }
    merged
}

fn add(merged: &mut Vec<Merged>, rule: &DestinationRule) {
    let words = words(rule);
    let mut stands_alone = true;
    for older in merged.iter_mut() {
        // A rule for the same clients, or for more, adds to the older one.
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
    }
    if stands_alone {
        merged.push(Merged { rule: rule.clone(), words });
    }
}
