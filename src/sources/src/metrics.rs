//! Metrics of changed objects, with istiod's names (O13).

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use sluice_model::Kind;
use sluice_telemetry::Count;

use crate::Change;

/// Labels of `pilot_k8s_cfg_events` and `pilot_k8s_reg_events`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct EventLabel {
    r#type: String,
    event: &'static str,
}

/// Label of `pilot_inbound_updates`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct UpdateLabel {
    r#type: &'static str,
}

/// Number of changed objects, by kind. Clones share it.
#[derive(Clone, Default)]
pub struct SourceMetrics {
    configuration: Family<EventLabel, Count>,
    registry: Family<EventLabel, Count>,
    updates: Family<UpdateLabel, Count>,
}

/// The objects that exist, as hashes, to tell a new object from a changed one.
#[derive(Default)]
pub(crate) struct KnownObjects {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl KnownObjects {
    /// What a change does to its object; the object is known, or not, from then on.
    fn event(&mut self, change: &Change) -> &'static str {
        let hash = self.hasher.hash_one((change.kind, &change.key));
        match (change.object.is_some(), self.hashes.contains(&hash)) {
            (true, false) => {
                self.hashes.insert(hash);
                "add"
            }
            (true, true) => "update",
            (false, _) => {
                self.hashes.remove(&hash);
                "delete"
            }
        }
    }
}

impl SourceMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pilot_k8s_cfg_events", "Configuration objects that changed", self.configuration.clone());
        registry.register("pilot_k8s_reg_events", "Other objects that changed", self.registry.clone());
        registry.register(
            "pilot_inbound_updates",
            "Changes of endpoints (eds), Services (svc, svcdelete) and configuration (config)",
            self.updates.clone(),
        );
    }

    pub(crate) fn count(&self, change: &Change, known: &mut KnownObjects) {
        let event = known.event(change);
        let custom = sluice_parse::kind_info(change.kind).is_some_and(sluice_parse::KindInfo::is_configuration);
        let (family, name) = match custom {
            true => (&self.configuration, change.kind.to_string()),
            false => (&self.registry, registry_name(change.kind)),
        };
        family.get_or_create(&EventLabel { r#type: name, event }).inc();
        let update = match change.kind {
            Kind::EndpointSlice => "eds",
            Kind::Service if event == "delete" => "svcdelete",
            Kind::Service => "svc",
            _ if custom => "config",
            _ => return,
        };
        self.updates.get_or_create(&UpdateLabel { r#type: update }).inc();
    }
}

/// The name of a kind in `pilot_k8s_reg_events`: istiod has plurals there, except for EndpointSlice.
fn registry_name(kind: Kind) -> String {
    match kind {
        Kind::Namespace | Kind::Node | Kind::Pod | Kind::Service => format!("{kind}s"),
        _ => kind.to_string(),
    }
}

impl fmt::Debug for SourceMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SourceMetrics")
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::ObjectKey;

    use super::*;
    use crate::ChangeOrigin;

    #[test]
    fn changes_are_counted_under_the_labels_of_istiod() {
        let (metrics, mut known) = (SourceMetrics::default(), KnownObjects::default());
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut count = |kind: Kind, exists: bool| {
            let key = ObjectKey::new("Kubernetes", "shop", "web");
            let object = exists.then(|| {
                let parsed = sluice_model::ParsedObject { kind, key: key.clone(), object: None, rejects: Vec::new() };
                Box::new(parsed)
            });
            metrics.count(&Change { kind, key, object, origin: ChangeOrigin::default() }, &mut known);
        };
        for exists in [true, true, false, true] {
            count(Kind::Service, exists);
        }
        count(Kind::VirtualService, true);
        count(Kind::EndpointSlice, true);
        count(Kind::Pod, true);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string");
        for line in [
            "pilot_k8s_reg_events{type=\"Services\",event=\"add\"} 2",
            "pilot_k8s_reg_events{type=\"Services\",event=\"update\"} 1",
            "pilot_k8s_reg_events{type=\"Services\",event=\"delete\"} 1",
            "pilot_k8s_reg_events{type=\"EndpointSlice\",event=\"add\"} 1",
            "pilot_k8s_cfg_events{type=\"VirtualService\",event=\"add\"} 1",
            "pilot_inbound_updates{type=\"svc\"} 3",
            "pilot_inbound_updates{type=\"svcdelete\"} 1",
            "pilot_inbound_updates{type=\"eds\"} 1",
            "pilot_inbound_updates{type=\"config\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }
}
