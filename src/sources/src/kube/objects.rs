//! Passes the objects of one kind to the sink.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use sluice_kube::{Receiver, WatchEvent};
use sluice_model::{ObjectKey, Text};
use sluice_parse::{KindInfo, condition_request, identify, parse_object};
use sluice_telemetry::unix_time;
use tracing::warn;

use crate::report::log_rejects;
use crate::{Change, ChangeOrigin, Cluster, Original, Sink};

/// Passes changes of a kind's objects to the sink. It keeps the keys of the objects, so that a new list also yields the
/// deleted objects.
pub(super) struct ObjectsReceiver {
    info: &'static KindInfo,
    cluster: Cluster,
    sink: Arc<dyn Sink>,
    /// Keys of the existing objects.
    known: BTreeSet<ObjectKey>,
    /// Keys of deleted objects whose deletion is not committed yet. A new list after a panic deletes them.
    deleting: BTreeSet<ObjectKey>,
    /// Keys of those that the list in progress has not contained yet.
    not_listed: BTreeSet<ObjectKey>,
}

impl ObjectsReceiver {
    pub(super) fn new(info: &'static KindInfo, cluster: Cluster, sink: Arc<dyn Sink>) -> Self {
        Self { info, cluster, sink, known: BTreeSet::new(), deleting: BTreeSet::new(), not_listed: BTreeSet::new() }
    }

    fn commit(&mut self, changes: Vec<Change>) {
        self.sink.commit(changes);
        self.deleting.clear();
    }

    /// The cluster of the objects.
    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Reports that the cluster serves the kind.
    pub(super) fn served(&self) {
        self.sink.served(&self.cluster.id, self.info.kind, true);
    }

    /// Whether objects have been read and not been deleted.
    pub(super) fn has_objects(&self) -> bool {
        !self.known.is_empty()
    }

    fn change(&mut self, event: WatchEvent) -> Option<Change> {
        let (mut object, is_deleted) = match event {
            WatchEvent::Apply(object) => (object, false),
            WatchEvent::Delete(object) => (object, true),
        };
        // Items of lists have no apiVersion and kind.
        if let Some(fields) = object.as_object_mut() {
            if self.info.is_multi_cluster() {
                // The cluster may serve the kind in another group.
                fields.insert("apiVersion".to_owned(), self.info.api_version().into());
            }
            fields.entry("apiVersion").or_insert_with(|| self.info.api_version().into());
            fields.entry("kind").or_insert_with(|| self.info.name.into());
        }
        if is_deleted { self.delete(&object) } else { self.set(&object) }
    }

    fn set(&mut self, object: &Value) -> Option<Change> {
        let received = unix_time();
        let (version, generation) = (version(object), generation(object));
        if !self.cluster.reads_revision_of(self.info, object) {
            let key = identify(&self.cluster.id, object).ok()?.key;
            // The object may have applied to this revision before.
            self.not_listed.remove(&key);
            return self.known.remove(&key).then(|| {
                self.deleting.insert(key.clone());
                self.deletion(key, version)
            });
        }
        match parse_object(&self.cluster.id, &self.cluster.domain, object) {
            Ok(parsed) => {
                log_rejects(&parsed, "", |_| Vec::new());
                self.not_listed.remove(&parsed.key);
                self.known.insert(parsed.key.clone());
                let origin = ChangeOrigin {
                    place: Text::default(),
                    version,
                    generation,
                    received,
                    original: Original::of(&self.cluster, self.info, object),
                    condition_request: condition_request(self.info, object).map(Box::new),
                };
                Some(Change { kind: self.info.kind, key: parsed.key.clone(), object: Some(Box::new(parsed)), origin })
            }
            Err(error) => {
                warn!(kind = %self.info.kind, %error, "object of the API server is not read");
                None
            }
        }
    }

    fn delete(&mut self, object: &Value) -> Option<Change> {
        let key = identify(&self.cluster.id, object).ok()?.key;
        if self.known.remove(&key) {
            self.deleting.insert(key.clone());
        }
        self.not_listed.remove(&key);
        Some(self.deletion(key, version(object)))
    }

    fn deletion(&self, key: ObjectKey, version: Text) -> Change {
        let origin = ChangeOrigin { version, received: unix_time(), ..ChangeOrigin::default() };
        Change { kind: self.info.kind, key, object: None, origin }
    }
}

impl Receiver for ObjectsReceiver {
    fn begin_list(&mut self) {
        self.known.append(&mut self.deleting);
        self.not_listed.clone_from(&self.known);
    }

    fn listed(&mut self, objects: Vec<Value>) {
        let changes = objects.into_iter().filter_map(|object| self.change(WatchEvent::Apply(object))).collect();
        self.commit(changes);
    }

    fn end_list(&mut self) {
        let deleted = std::mem::take(&mut self.not_listed);
        self.sink.commit(deleted.iter().map(|key| self.deletion(key.clone(), Text::default())).collect());
        self.known.retain(|key| !deleted.contains(key));
        self.sink.synced(&self.cluster.id, &[self.info.kind]);
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        let changes = events.into_iter().filter_map(|event| self.change(event)).collect();
        self.commit(changes);
    }

    fn absent(&mut self) {
        self.sink.served(&self.cluster.id, self.info.kind, false);
        self.begin_list();
        self.end_list();
    }
}

fn generation(object: &Value) -> Option<i64> {
    object.pointer("/metadata/generation").and_then(Value::as_i64)
}

fn version(object: &Value) -> Text {
    object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().into()
}
