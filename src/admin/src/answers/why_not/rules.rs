//! Why a DestinationRule, a Sidecar or a policy has no effect at a proxy.

use std::sync::Arc;

use serde_json::Value as Json;
use sluice_graph::Inputs;
use sluice_model::{DestinationRule, Kind, Labels, ObjectKey, Service, Sidecar, match_labels};

use super::facts::Facts;
use super::reach::followed_rule;
use super::{AbsenceReason, ReasonCode};

/// Adds the reasons why the proxy does not follow a rule for a service.
pub(super) fn check_rule(
    facts: &Facts<'_>,
    key: &ObjectKey,
    rule: &Arc<DestinationRule>,
    service: &Service,
    findings: &mut Vec<AbsenceReason>,
) {
    let client = (facts.namespace(), &facts.proxy.labels);
    let object = || facts.object(Kind::DestinationRule, key);
    // A rule of a namespace that is none of the three never applies.
    let root = facts.mesh.root_namespace.as_str();
    let considered = [facts.namespace(), service.namespace.as_str(), root];
    if !considered.contains(&key.namespace.as_str()) {
        let text = format!(
            "rules for {} are taken from namespaces {} (the proxy's), {} (the service's) and {root} (the root) only",
            service.host, considered[0], considered[1]
        );
        findings.push(AbsenceReason::of(ReasonCode::NotSelected, object(), text));
        return;
    }
    if let Some(selector) =
        rule.workload_selector.as_ref().filter(|selector| !match_labels(selector, &facts.proxy.labels))
    {
        findings.push(not_selected(object(), selector));
        return;
    }
    if sluice_graph::followed_rule(std::slice::from_ref(rule), &facts.mesh, service, client).is_none() {
        let words: Vec<&str> = rule.export_to.iter().map(|word| word.as_str()).collect();
        let words = if words.is_empty() { "the default of the mesh config".to_owned() } else { words.join(", ") };
        let text = format!("exportTo ({words}) does not include namespace {} of the proxy", facts.namespace());
        findings.push(AbsenceReason::of(ReasonCode::NotExported, object(), text));
        return;
    }
    let Some(followed) = followed_rule(facts, service) else { return };
    // Rules of the same host in one namespace are merged: the result has the name of the first.
    if (&followed.namespace, &followed.host) != (&rule.namespace, &rule.host) {
        let text = format!(
            "the proxy follows DestinationRule/{}/{} for {} instead: a rule of its own namespace, then of the service's, with the most specific host has precedence",
            followed.namespace, followed.name, service.host
        );
        findings.push(AbsenceReason::of(ReasonCode::Shadowed, object(), text));
    } else if *followed.name != *key.name {
        let text = format!(
            "it is merged into the older DestinationRule/{}/{} of the same host: only subsets with other names are added",
            followed.namespace, followed.name
        );
        findings.push(AbsenceReason::of(ReasonCode::Shadowed, object(), text));
    }
}

/// Adds the reasons why a Sidecar is not that of the proxy.
pub(super) fn check_sidecar(facts: &Facts<'_>, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) {
    if facts.proxy.sidecar.as_ref().is_some_and(|chosen| chosen.scope.sidecar == *key) {
        return;
    }
    let object = facts.object(Kind::Sidecar, key);
    let sidecar = facts.all::<Sidecar>(Kind::Sidecar).into_iter().find(|(known, _)| known == key);
    let Some((_, sidecar)) = sidecar else { return };
    if facts.proxy.proxy_type != sluice_model::ProxyType::Sidecar {
        let text = format!("the proxy is a {:?}: a Sidecar applies to sidecars only", facts.proxy.proxy_type);
        findings.push(AbsenceReason::of(ReasonCode::NotSelected, object, text));
    } else if key.namespace != facts.mesh.root_namespace && *key.namespace != *facts.namespace() {
        findings.push(other_namespace(facts, object, key));
    } else if let Some(selector) =
        sidecar.workload_selector.filter(|selector| !match_labels(selector, &facts.proxy.labels))
    {
        findings.push(not_selected(object, &selector));
    } else if let Some(chosen) = facts.sidecar() {
        let text = format!(
            "the proxy has {}: the oldest with a matching selector of its namespace, then the oldest without a selector, then that of the root namespace has precedence",
            chosen.object
        );
        findings.push(AbsenceReason::of(ReasonCode::Shadowed, object, text));
    }
}

fn not_selected(object: super::ObjectVersion, selector: &Labels) -> AbsenceReason {
    let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let text = format!("its selector {} does not match the labels of the proxy", labels.join(","));
    AbsenceReason::of(ReasonCode::NotSelected, object, text)
}

fn other_namespace(facts: &Facts<'_>, object: super::ObjectVersion, key: &ObjectKey) -> AbsenceReason {
    let text = format!(
        "it is in namespace {}: it applies to proxies of this namespace only, and the proxy is in {}",
        key.namespace,
        facts.namespace()
    );
    AbsenceReason::of(ReasonCode::NotSelected, object, text)
}

/// Kinds that apply to the proxies of their namespace, or of all if it is the root namespace, and to those that a selector
/// matches: with the field of the selector in the model.
const SELECTING: &[(Kind, &[&str])] = &[
    (Kind::AuthorizationPolicy, &["/attachment/selector", "/selector"]),
    (Kind::EnvoyFilter, &["/selector", "/workload_selector"]),
    (Kind::PeerAuthentication, &["/selector"]),
    (Kind::RequestAuthentication, &["/attachment/selector", "/selector"]),
    (Kind::Telemetry, &["/attachment/selector", "/selector"]),
    (Kind::TrafficExtension, &["/attachment/selector", "/selector"]),
    (Kind::WasmPlugin, &["/attachment/selector", "/selector"]),
];

/// Adds the reasons why an object with a selector does not apply to the proxy.
pub(super) fn check_selector(facts: &Facts<'_>, kind: Kind, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) {
    let Some((_, fields)) = SELECTING.iter().find(|(known, _)| *known == kind) else { return };
    let object = facts.object(kind, key);
    if key.namespace != facts.mesh.root_namespace && *key.namespace != *facts.namespace() {
        findings.push(other_namespace(facts, object, key));
        return;
    }
    let dump = Inputs::collection(kind).and_then(|name| facts.state.engine.dump(name));
    let wanted = serde_json::to_value(key).unwrap_or_default();
    let value = dump.iter().flat_map(|dump| dump.records()).find(|(key, _)| *key == wanted).map(|(_, value)| value);
    let selector = value.iter().find_map(|value| fields.iter().find_map(|field| value.pointer(field)));
    let Some(Json::Object(selector)) = selector else { return };
    let labels: Labels =
        selector.iter().filter_map(|(label, value)| Some((label.as_str().into(), value.as_str()?.into()))).collect();
    if !match_labels(&labels, &facts.proxy.labels) {
        findings.push(not_selected(object, &labels));
    }
}
