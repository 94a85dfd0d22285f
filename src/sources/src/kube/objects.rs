//! Passes objects of one kind to the sink.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use sluice_kube::{Receiver, WatchEvent};
use sluice_model::{ObjectKey, Text};
use sluice_parse::{KindInfo, identify, parse_object};
use sluice_telemetry::unix_time;
use tracing::warn;

use crate::report::RejectLog;
use crate::{Change, ChangeOrigin, Cluster, Sink};

/// The keys of the known objects of a kind, so that a list becomes a diff.
pub(super) struct Objects {
    info: &'static KindInfo,
    cluster: Cluster,
    sink: Arc<dyn Sink>,
    known: BTreeSet<ObjectKey>,
    /// Keys that the list in progress has not contained yet.
    unnamed: BTreeSet<ObjectKey>,
    log: RejectLog,
}

impl Objects {
    pub(super) fn new(info: &'static KindInfo, cluster: Cluster, sink: Arc<dyn Sink>) -> Self {
        Self { info, cluster, sink, known: BTreeSet::new(), unnamed: BTreeSet::new(), log: RejectLog::default() }
    }

    fn set(&mut self, mut object: Value) -> Option<Change> {
        let received = unix_time();
        // Items of lists omit these fields.
        if let Some(fields) = object.as_object_mut() {
            fields.entry("apiVersion").or_insert_with(|| self.info.api_version().into());
            fields.entry("kind").or_insert_with(|| self.info.name.into());
        }
        let version = version(&object);
        if !self.cluster.follows(self.info, &object) {
            let key = identify(&self.cluster.id, &object).ok()?.key;
            // It may have applied to this revision before.
            self.unnamed.remove(&key);
            return self.known.remove(&key).then(|| self.gone(key, version));
        }
        match parse_object(&self.cluster.id, &self.cluster.domain, &object) {
            Ok(parsed) => {
                self.log.log(&parsed, "", |_| None);
                self.unnamed.remove(&parsed.key);
                self.known.insert(parsed.key.clone());
                let origin = ChangeOrigin { place: Text::default(), version, received };
                Some(Change { kind: self.info.kind, key: parsed.key.clone(), object: Some(Box::new(parsed)), origin })
            }
            Err(error) => {
                warn!(kind = %self.info.kind, %error, "API server sent an invalid object");
                None
            }
        }
    }

    fn delete(&mut self, mut object: Value) -> Option<Change> {
        if let Some(fields) = object.as_object_mut() {
            fields.entry("apiVersion").or_insert_with(|| self.info.api_version().into());
            fields.entry("kind").or_insert_with(|| self.info.name.into());
        }
        let key = identify(&self.cluster.id, &object).ok()?.key;
        self.known.remove(&key);
        self.unnamed.remove(&key);
        Some(self.gone(key, version(&object)))
    }

    fn gone(&self, key: ObjectKey, version: Text) -> Change {
        let origin = ChangeOrigin { place: Text::default(), version, received: unix_time() };
        Change { kind: self.info.kind, key, object: None, origin }
    }
}

impl Receiver for Objects {
    fn begin_list(&mut self) {
        self.unnamed.clone_from(&self.known);
    }

    fn listed(&mut self, objects: Vec<Value>) {
        let changes = objects.into_iter().filter_map(|object| self.set(object)).collect();
        self.sink.commit(changes);
    }

    fn end_list(&mut self) {
        let unnamed = std::mem::take(&mut self.unnamed);
        self.known.retain(|key| !unnamed.contains(key));
        self.sink.commit(unnamed.into_iter().map(|key| self.gone(key, Text::default())).collect());
        self.sink.synced(&self.cluster.id, &[self.info.kind]);
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        let change = |event| match event {
            WatchEvent::Apply(object) => self.set(object),
            WatchEvent::Delete(object) => self.delete(object),
        };
        let changes = events.into_iter().filter_map(change).collect();
        self.sink.commit(changes);
    }

    fn absent(&mut self) {
        self.begin_list();
        self.end_list();
    }
}

fn version(object: &Value) -> Text {
    object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().into()
}
