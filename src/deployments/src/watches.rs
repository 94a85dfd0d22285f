//! Watches of the managed objects of all kinds.

use std::collections::BTreeSet;

use futures::FutureExt as _;
use serde_json::Value;
use sluice_kube::{Api, KubeOptions, ListWatch, Receiver, WatchEvent};
use sluice_model::Text;
use sluice_model::gateway_api::DeployedKind;
use sluice_tasks::restart_with;
use tokio::task::JoinSet;

use crate::kinds::managed_resource;
use crate::stored::{DeployedId, StoredObject, StoredObjects};

/// Starts the watches. They end when the set is dropped.
pub(crate) fn start(api: &Api, options: KubeOptions, stored: &StoredObjects) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for kind in DeployedKind::ALL {
        let receiver =
            ManagedReceiver { kind, stored: stored.clone(), known: BTreeSet::new(), not_listed: BTreeSet::new() };
        let mut watch = ListWatch::new(api.clone(), managed_resource(kind), options.backoff(), receiver);
        tasks.spawn(async move {
            let (_, name) = kind.names();
            let task = format!("watch of deployed {name}");
            restart_with(&task, &mut watch, |watch| watch.run().boxed()).await;
        });
    }
    tasks
}

/// Passes the objects of a kind to the stored objects.
struct ManagedReceiver {
    kind: DeployedKind,
    stored: StoredObjects,
    /// The objects that have been read.
    known: BTreeSet<DeployedId>,
    /// Those that the list in progress has not contained yet.
    not_listed: BTreeSet<DeployedId>,
}

impl ManagedReceiver {
    fn id(&self, object: &Value) -> DeployedId {
        let text = |field: &str| Text::from(object["metadata"][field].as_str().unwrap_or_default());
        DeployedId { kind: self.kind, namespace: text("namespace"), name: text("name") }
    }

    fn set(&mut self, object: &Value) {
        let id = self.id(object);
        self.not_listed.remove(&id);
        self.known.insert(id.clone());
        self.stored.observe(id, StoredObject::of(object));
    }

    fn remove(&mut self, id: &DeployedId) {
        self.known.remove(id);
        self.stored.remove(id);
    }
}

impl Receiver for ManagedReceiver {
    fn begin_list(&mut self) {
        self.not_listed.clone_from(&self.known);
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        for id in std::mem::take(&mut self.not_listed) {
            self.remove(&id);
        }
        self.stored.listed(self.kind);
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.set(&object),
                WatchEvent::Delete(object) => {
                    let id = self.id(&object);
                    self.remove(&id);
                }
            }
        }
    }

    fn absent(&mut self) {
        self.begin_list();
        self.end_list();
    }
}
