//! Webhooks of injection (IST0139).

use std::collections::BTreeSet;

use serde_json::Value;

use crate::codes::INVALID_WEBHOOK;
use crate::resource::{MUTATING_WEBHOOKS, SERVICE};
use crate::selector::{Labels, label_selector_matches};
use crate::value::{at, has, items, map, text, texts};
use crate::{AnalyzedObject, MeshObjects, MessageList};

const REVISION: &str = "istio.io/rev";

/// A webhook of a configuration.
struct Hook<'m> {
    configuration: &'m AnalyzedObject,
    value: &'m Value,
    field: String,
}

impl Hook<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.configuration.name(), text(self.value, "name"))
    }
}

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let (mut hooks, mut all_revisions) = (Vec::new(), BTreeSet::new());
    for configuration in mesh.all(MUTATING_WEBHOOKS) {
        let own = items(&configuration.value, "webhooks");
        let revisions = revisions(configuration, own);
        if revisions.is_empty() && !own.iter().any(|hook| text(hook, "name").ends_with("istio.io")) {
            continue;
        }
        all_revisions.extend(revisions);
        hooks.extend(own.iter().enumerate().map(|(n, value)| Hook {
            configuration,
            value,
            field: format!("webhooks[{n}]"),
        }));
    }
    overlaps(&hooks, &all_revisions, report);
    for hook in &hooks {
        let service = at(hook.value, "clientConfig.service");
        let (namespace, name) = (text(service, "namespace"), text(service, "name"));
        if has(hook.value, "clientConfig.service") && mesh.find(SERVICE, namespace, name).is_none() {
            let text = format!("webhook {} refers to Service {namespace}/{name}, which does not exist", hook.name());
            report.add(&INVALID_WEBHOOK, hook.configuration, format!("{}.clientConfig.service", hook.field), text);
        }
    }
}

/// The revisions that labels and selectors of a configuration name.
fn revisions<'m>(configuration: &'m AnalyzedObject, hooks: &'m [Value]) -> BTreeSet<&'m str> {
    let mut found: BTreeSet<&str> = configuration.label(REVISION).into_iter().collect();
    for hook in hooks {
        for selector in ["namespaceSelector", "objectSelector"].map(|name| at(hook, name)) {
            found.extend(map(selector, "matchLabels").get(REVISION));
            let expressions = items(selector, "matchExpressions").iter();
            found.extend(
                expressions.filter(|part| text(part, "key") == REVISION).flat_map(|part| texts(part, "values")),
            );
        }
    }
    found
}

/// Webhooks that some namespace and pod have in common.
fn overlaps<'m>(hooks: &[Hook<'m>], revisions: &BTreeSet<&str>, report: &mut MessageList<'m>) {
    let namespaces = label_sets("istio-injection", ["enabled", "disabled"], revisions);
    let objects = label_sets("sidecar.istio.io/inject", ["true", "false"], revisions);
    for namespace in &namespaces {
        for object in &objects {
            let selects = |hook: &&Hook<'_>| {
                label_selector_matches(at(hook.value, "namespaceSelector"), namespace)
                    && label_selector_matches(at(hook.value, "objectSelector"), object)
            };
            let matching: Vec<&Hook<'m>> = hooks.iter().filter(selects).collect();
            for hook in matching.iter().filter(|_| matching.len() > 1) {
                let others = matching.iter().map(|other| other.name()).filter(|name| *name != hook.name());
                let others: BTreeSet<String> = others.collect();
                if !others.is_empty() {
                    let text = format!(
                        "webhook {} selects pods that {} also select, so that they may be injected twice",
                        hook.name(),
                        super::join(&others)
                    );
                    report.add(&INVALID_WEBHOOK, hook.configuration, hook.field.as_str(), text);
                }
            }
        }
    }
}

/// Combinations of no label, each value of a label, and each revision.
fn label_sets<'l>(key: &'l str, values: [&'l str; 2], revisions: &BTreeSet<&'l str>) -> Vec<Labels<'l>> {
    let mut sets = vec![Labels::new()];
    sets.extend(values.map(|value| Labels::from([(key, value)])));
    for base in sets.clone() {
        for revision in revisions {
            let mut set = base.clone();
            set.insert(REVISION, revision);
            sets.push(set);
        }
    }
    sets
}
