//! Telemetry objects: workloads and providers (IST0002, IST0101, IST0157, IST0159, IST0160).

use std::collections::{BTreeMap, BTreeSet};

use crate::codes::{
    CONFLICTING_TELEMETRY_SELECTORS, DEPRECATED, INVALID_TELEMETRY_PROVIDER, MULTIPLE_DEFAULT_TELEMETRIES, MessageType,
    REFERENCED_RESOURCE_NOT_FOUND,
};
use crate::resource::TELEMETRY;
use crate::selector::show;
use crate::value::{at, has, items, map, text};
use crate::{AnalyzedObject, MeshObjects, MessageList};

use super::sidecar::names;

pub(crate) fn defaults<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut by_namespace: BTreeMap<&str, Vec<&'m AnalyzedObject>> = BTreeMap::new();
    // An object with targets applies to these only.
    let whole =
        |telemetry: &&&AnalyzedObject| !has(telemetry.spec(), "selector") && !has(telemetry.spec(), "targetRefs");
    for telemetry in mesh.all(TELEMETRY).iter().filter(whole) {
        by_namespace.entry(telemetry.namespace()).or_default().push(telemetry);
    }
    for (namespace, list) in by_namespace {
        let conflict = format!("of namespace {namespace} have no workload selector");
        report_conflict(&list, &MULTIPLE_DEFAULT_TELEMETRIES, "", &conflict, report);
    }
}

/// Reports each of several objects of which only one applies.
fn report_conflict<'m>(
    list: &[&'m AnalyzedObject],
    message_type: &'static MessageType,
    field: &str,
    conflict: &str,
    report: &mut MessageList<'m>,
) {
    for telemetry in list.iter().filter(|_| list.len() > 1) {
        let text = format!("Telemetry objects {} {conflict}; only one of them applies", names(list));
        report.add(message_type, telemetry, field, text);
    }
}

pub(crate) fn selectors<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let mut by_pod: BTreeMap<(&str, &str), Vec<&'m AnalyzedObject>> = BTreeMap::new();
    for telemetry in mesh.all(TELEMETRY) {
        let selector = map(telemetry.spec(), "selector.matchLabels");
        if selector.is_empty() {
            continue;
        }
        let mut has_pods = false;
        for pod in mesh.pods(&selector).into_iter().filter(|pod| pod.namespace() == telemetry.namespace()) {
            has_pods = true;
            by_pod.entry((pod.namespace(), pod.name())).or_default().push(telemetry);
        }
        if !has_pods {
            let text = super::not_found("selector", &show(&selector));
            report.add(&REFERENCED_RESOURCE_NOT_FOUND, telemetry, "spec.selector.matchLabels", text);
        }
    }
    for ((namespace, pod), list) in by_pod {
        let conflict = format!("of namespace {namespace} select pod {pod}");
        report_conflict(&list, &CONFLICTING_TELEMETRY_SELECTORS, "spec.selector", &conflict, report);
    }
}

pub(crate) fn providers<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    if !items(&mesh.mesh_config, "defaultProviders.accessLogging").is_empty() {
        return;
    }
    for telemetry in mesh.all(TELEMETRY) {
        for (n, log) in items(telemetry.spec(), "accessLogging").iter().enumerate() {
            let is_disabled = at(log, "disabled").as_bool().unwrap_or(false);
            if !is_disabled && items(log, "providers").is_empty() {
                let text = format!(
                    "Telemetry {} names no provider of access logs, and the mesh config has no default; it has no effect",
                    telemetry.full_name()
                );
                report.add(&INVALID_TELEMETRY_PROVIDER, telemetry, format!("spec.accessLogging[{n}]"), text);
            }
        }
    }
}

pub(crate) fn lightstep<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    let providers = items(&mesh.mesh_config, "extensionProviders").iter();
    let names: BTreeSet<&str> =
        providers.filter(|provider| has(provider, "lightstep")).map(|provider| text(provider, "name")).collect();
    for telemetry in mesh.all(TELEMETRY) {
        for (n, tracing) in items(telemetry.spec(), "tracing").iter().enumerate() {
            for (of, provider) in items(tracing, "providers").iter().enumerate() {
                let name = text(provider, "name");
                if names.contains(name) {
                    let text = format!("provider {name} is of type lightstep, which is deprecated; use opentelemetry");
                    report.add(&DEPRECATED, telemetry, format!("spec.tracing[{n}].providers[{of}].name"), text);
                }
            }
        }
    }
}
