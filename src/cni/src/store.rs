//! The Pods of this node and all Namespaces, as the API server reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sluice_kube::{ByKey, ObjectsByKey};
use tokio::sync::Notify;

use crate::pod::{NodePod, PodName, REDIRECTION, text_map};

/// The objects, shared by their receivers and readers.
#[derive(Clone, Default)]
pub(crate) struct Store(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    pods: BTreeMap<PodName, NodePod>,
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Pods that have to be looked at.
    dirty: BTreeSet<PodName>,
    pods_listed: bool,
    namespaces_listed: bool,
}

impl Store {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod with the labels of its namespace; `None` until both are known.
    pub(crate) fn get(&self, name: &PodName) -> Option<(NodePod, BTreeMap<String, String>)> {
        let state = self.state();
        let labels = state.namespaces.get(&name.namespace)?.clone();
        Some((state.pods.get(name)?.clone(), labels))
    }

    /// A pod.
    pub(crate) fn pod(&self, name: &PodName) -> Option<NodePod> {
        self.state().pods.get(name).cloned()
    }

    /// Whether a pod is known, with or without its namespace.
    pub(crate) fn has(&self, name: &PodName) -> bool {
        self.state().pods.contains_key(name)
    }

    /// The names of all pods.
    pub(crate) fn names(&self) -> Vec<PodName> {
        self.state().pods.keys().cloned().collect()
    }

    /// Waits until both collections have been listed.
    pub(crate) async fn listed(&self) {
        loop {
            let changed = self.0.changed.notified();
            {
                let state = self.state();
                if state.pods_listed && state.namespaces_listed {
                    // The notification may be the only one of a change.
                    drop(state);
                    self.0.changed.notify_one();
                    return;
                }
            }
            changed.await;
        }
    }

    /// Waits until pods have to be looked at, and takes their names.
    pub(crate) async fn dirty(&self) -> BTreeSet<PodName> {
        loop {
            let changed = self.0.changed.notified();
            let dirty = std::mem::take(&mut self.state().dirty);
            if !dirty.is_empty() {
                return dirty;
            }
            changed.await;
        }
    }

    /// Changes the annotation [`REDIRECTION`] as it was written. The watch reports it later.
    pub(crate) fn set_redirection(&self, written: &NodePod, value: Option<&str>) {
        let mut state = self.state();
        let pod = state.pods.get_mut(&written.name);
        let Some(pod) = pod.filter(|pod| pod.uid == written.uid) else { return };
        match value {
            Some(value) => drop(pod.annotations.insert(REDIRECTION.to_owned(), value.to_owned())),
            None => drop(pod.annotations.remove(REDIRECTION)),
        }
    }

    /// A receiver of the pods.
    pub(crate) fn pods(&self) -> ByKey<Pods> {
        ByKey::new(Pods(self.clone()))
    }

    /// A receiver of the namespaces.
    pub(crate) fn namespaces(&self) -> ByKey<Namespaces> {
        ByKey::new(Namespaces(self.clone()))
    }
}

/// Receives Pods.
pub(crate) struct Pods(Store);

impl ObjectsByKey for Pods {
    type Key = PodName;

    fn key(&self, object: &Value) -> Option<PodName> {
        NodePod::read(object).map(|pod| pod.name)
    }

    fn set(&mut self, name: PodName, object: &Value) {
        let Some(pod) = NodePod::read(object) else { return };
        let mut state = self.0.state();
        state.pods.insert(name.clone(), pod);
        state.dirty.insert(name);
    }

    fn remove(&mut self, name: &PodName) {
        let mut state = self.0.state();
        state.pods.remove(name);
        state.dirty.insert(name.clone());
    }

    fn listed(&mut self) {
        self.0.state().pods_listed = true;
    }

    fn changed(&mut self) {
        self.0.0.changed.notify_one();
    }
}

/// Receives Namespaces.
pub(crate) struct Namespaces(Store);

impl ObjectsByKey for Namespaces {
    type Key = String;

    fn key(&self, object: &Value) -> Option<String> {
        object["metadata"]["name"].as_str().map(str::to_owned)
    }

    fn set(&mut self, name: String, object: &Value) {
        let labels = text_map(&object["metadata"]["labels"]);
        let mut state = self.0.state();
        if state.namespaces.get(&name) != Some(&labels) {
            let pods: Vec<_> = state.pods.keys().filter(|pod| pod.namespace == name).cloned().collect();
            state.dirty.extend(pods);
            state.namespaces.insert(name, labels);
        }
    }

    // Its pods are deleted before it.
    fn remove(&mut self, name: &String) {
        self.0.state().namespaces.remove(name);
    }

    fn listed(&mut self) {
        self.0.state().namespaces_listed = true;
    }

    fn changed(&mut self) {
        self.0.0.changed.notify_one();
    }
}
