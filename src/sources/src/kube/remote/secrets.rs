//! Secrets with kubeconfigs of remote clusters.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sluice_kube::{Receiver, WatchEvent};
use sluice_model::{Redacted, Text};
use tokio::sync::watch;

use super::state::ClusterMetrics;
use crate::kube::publish;

/// A Secret with kubeconfigs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ClusterSecret {
    /// Its creationTimestamp.
    pub(super) created: Text,
    /// Kubeconfigs by cluster id; `None` if the value is not base64.
    pub(super) kubeconfigs: BTreeMap<Text, Option<Redacted>>,
}

/// The Secrets by name; `None` before the first list.
pub(super) type ClusterSecrets = Option<BTreeMap<Text, ClusterSecret>>;

/// Publishes the Secrets.
pub(super) struct SecretsReceiver {
    secrets: BTreeMap<Text, ClusterSecret>,
    /// Secrets that the list in progress has not contained yet.
    not_listed: BTreeMap<Text, ClusterSecret>,
    sender: watch::Sender<ClusterSecrets>,
    metrics: ClusterMetrics,
}

impl SecretsReceiver {
    pub(super) fn new(sender: watch::Sender<ClusterSecrets>, metrics: ClusterMetrics) -> Self {
        Self { secrets: BTreeMap::new(), not_listed: BTreeMap::new(), sender, metrics }
    }

    fn set(&mut self, object: &Value) {
        let Some(name) = name(object) else { return };
        let secret = parse(object);
        let old = self.secrets.insert(name.clone(), secret.clone()).or(self.not_listed.remove(&name));
        match old {
            None => self.metrics.count_event("add"),
            Some(old) if old != secret => self.metrics.count_event("update"),
            Some(_) => {}
        }
    }

    fn publish(&self) {
        publish(&self.sender, &self.secrets);
    }
}

impl Receiver for SecretsReceiver {
    fn begin_list(&mut self) {
        self.not_listed.append(&mut self.secrets);
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        for _ in std::mem::take(&mut self.not_listed) {
            self.metrics.count_event("delete");
        }
        self.publish();
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.set(&object),
                WatchEvent::Delete(object) => {
                    if name(&object).is_some_and(|name| self.secrets.remove(&name).is_some()) {
                        self.metrics.count_event("delete");
                    }
                }
            }
        }
        self.publish();
    }

    fn absent(&mut self) {
        self.begin_list();
        self.end_list();
    }
}

fn name(object: &Value) -> Option<Text> {
    object.pointer("/metadata/name").and_then(Value::as_str).map(Text::from)
}

fn parse(object: &Value) -> ClusterSecret {
    let created = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str).unwrap_or_default();
    let data = object.get("data").and_then(Value::as_object).into_iter().flatten();
    let decode = |value: &Value| STANDARD.decode(value.as_str()?).ok().map(|bytes| Redacted(bytes.into()));
    let kubeconfigs = data.map(|(cluster, value)| (cluster.as_str().into(), decode(value)));
    ClusterSecret { created: created.into(), kubeconfigs: kubeconfigs.collect() }
}
