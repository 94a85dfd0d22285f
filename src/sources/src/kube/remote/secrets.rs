//! Secrets that say how clusters are reached.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sluice_model::{Redacted, Text};
use tokio::sync::watch;

use super::state::ClusterMetrics;
use sluice_kube::Receiver;
use sluice_kube::WatchEvent;

/// A Secret, as far as it says how clusters are reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ClusterSecret {
    /// When it was made, as Kubernetes writes times.
    pub(super) created: Text,
    /// Kubeconfigs by the ids of their clusters; nothing where one is not encoded as it has to be.
    pub(super) kubeconfigs: BTreeMap<Text, Option<Redacted>>,
}

/// The Secrets by name; nothing before they were listed.
pub(super) type ClusterSecrets = Option<BTreeMap<Text, ClusterSecret>>;

/// Reads the Secrets.
pub(super) struct SecretReader {
    secrets: BTreeMap<Text, ClusterSecret>,
    /// Those that a list in progress has not named yet.
    unnamed: BTreeMap<Text, ClusterSecret>,
    tell: watch::Sender<ClusterSecrets>,
    metrics: ClusterMetrics,
}

impl SecretReader {
    pub(super) fn new(tell: watch::Sender<ClusterSecrets>, metrics: ClusterMetrics) -> Self {
        Self { secrets: BTreeMap::new(), unnamed: BTreeMap::new(), tell, metrics }
    }

    fn set(&mut self, object: &Value) {
        let Some(name) = name(object) else { return };
        let secret = read(object);
        let before = self.secrets.insert(name.clone(), secret.clone()).or(self.unnamed.remove(&name));
        match before {
            None => self.metrics.count_event("add"),
            Some(before) if before != secret => self.metrics.count_event("update"),
            Some(_) => {}
        }
    }

    fn tell(&self) {
        self.tell.send_if_modified(|told| {
            let is_new = told.as_ref() != Some(&self.secrets);
            if is_new {
                *told = Some(self.secrets.clone());
            }
            is_new
        });
    }
}

impl Receiver for SecretReader {
    fn begin_list(&mut self) {
        self.unnamed.append(&mut self.secrets);
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        for _ in std::mem::take(&mut self.unnamed) {
            self.metrics.count_event("delete");
        }
        self.tell();
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
        self.tell();
    }

    fn absent(&mut self) {
        self.begin_list();
        self.end_list();
    }
}

fn name(object: &Value) -> Option<Text> {
    object.pointer("/metadata/name").and_then(Value::as_str).map(Text::from)
}

fn read(object: &Value) -> ClusterSecret {
    let created = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str).unwrap_or_default();
    let data = object.get("data").and_then(Value::as_object).into_iter().flatten();
    let decode = |value: &Value| STANDARD.decode(value.as_str()?).ok().map(|bytes| Redacted(bytes.into()));
    let kubeconfigs = data.map(|(cluster, value)| (cluster.as_str().into(), decode(value)));
    ClusterSecret { created: created.into(), kubeconfigs: kubeconfigs.collect() }
}
