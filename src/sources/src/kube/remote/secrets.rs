//! Secrets with kubeconfigs of remote clusters.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sluice_kube::ObjectsByKey;
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
pub(super) struct PublishedSecrets {
    secrets: BTreeMap<Text, ClusterSecret>,
    sender: watch::Sender<ClusterSecrets>,
    metrics: ClusterMetrics,
}

impl PublishedSecrets {
    pub(super) fn new(sender: watch::Sender<ClusterSecrets>, metrics: ClusterMetrics) -> Self {
        Self { secrets: BTreeMap::new(), sender, metrics }
    }
}

impl ObjectsByKey for PublishedSecrets {
    type Key = Text;

    fn key(&self, object: &Value) -> Option<Text> {
        object.pointer("/metadata/name").and_then(Value::as_str).map(Text::from)
    }

    fn set(&mut self, name: Text, object: &Value) {
        let secret = parse(object);
        match self.secrets.insert(name, secret.clone()) {
            None => self.metrics.count_event("add"),
            Some(old) if old != secret => self.metrics.count_event("update"),
            Some(_) => {}
        }
    }

    fn remove(&mut self, name: &Text) {
        self.secrets.remove(name);
        self.metrics.count_event("delete");
    }

    fn changed(&mut self) {
        publish(&self.sender, &self.secrets);
    }
}

fn parse(object: &Value) -> ClusterSecret {
    let created = object.pointer("/metadata/creationTimestamp").and_then(Value::as_str).unwrap_or_default();
    let data = object.get("data").and_then(Value::as_object).into_iter().flatten();
    let decode = |value: &Value| STANDARD.decode(value.as_str()?).ok().map(|bytes| Redacted(bytes.into()));
    let kubeconfigs = data.map(|(cluster, value)| (cluster.as_str().into(), decode(value)));
    ClusterSecret { created: created.into(), kubeconfigs: kubeconfigs.collect() }
}
