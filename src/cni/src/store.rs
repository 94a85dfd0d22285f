//! The Pods of this node and all Namespaces, as the API server reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sluice_kube::{Receiver, WatchEvent};
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

    /// Removes the annotation of an enrolled pod that has been withdrawn. The watch reports it later.
    pub(crate) fn forget_annotation(&self, withdrawn: &NodePod) {
        let mut state = self.state();
        let pod = state.pods.get_mut(&withdrawn.name);
        if let Some(pod) = pod.filter(|pod| pod.uid == withdrawn.uid) {
            pod.annotations.remove(REDIRECTION);
        }
    }

    /// A receiver of the pods.
    pub(crate) fn pods(&self) -> PodReceiver {
        PodReceiver { store: self.clone(), not_listed: BTreeSet::new() }
    }

    /// A receiver of the namespaces.
    pub(crate) fn namespaces(&self) -> NamespaceReceiver {
        NamespaceReceiver { store: self.clone(), not_listed: BTreeSet::new() }
    }
}

/// Receives Pods.
pub(crate) struct PodReceiver {
    store: Store,
    not_listed: BTreeSet<PodName>,
}

impl PodReceiver {
    fn set(&mut self, object: &Value) {
        let Some(pod) = NodePod::read(object) else { return };
        self.not_listed.remove(&pod.name);
        let mut state = self.store.state();
        state.dirty.insert(pod.name.clone());
        state.pods.insert(pod.name.clone(), pod);
    }

    fn remove(&self, name: PodName) {
        let mut state = self.store.state();
        state.pods.remove(&name);
        state.dirty.insert(name);
    }
}

impl Receiver for PodReceiver {
    fn begin_list(&mut self) {
        self.not_listed = self.store.state().pods.keys().cloned().collect();
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        for name in std::mem::take(&mut self.not_listed) {
            self.remove(name);
        }
        self.store.state().pods_listed = true;
        self.store.0.changed.notify_one();
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.set(&object),
                WatchEvent::Delete(object) => {
                    if let Some(pod) = NodePod::read(&object) {
                        self.remove(pod.name);
                    }
                }
            }
        }
        self.store.0.changed.notify_one();
    }

    fn absent(&mut self) {}
}

/// Receives Namespaces.
pub(crate) struct NamespaceReceiver {
    store: Store,
    not_listed: BTreeSet<String>,
}

impl NamespaceReceiver {
    fn set(&mut self, object: &Value) {
        let metadata = &object["metadata"];
        let Some(name) = metadata["name"].as_str() else { return };
        self.not_listed.remove(name);
        let labels = text_map(&metadata["labels"]);
        let mut state = self.store.state();
        if state.namespaces.get(name) != Some(&labels) {
            let pods: Vec<_> = state.pods.keys().filter(|pod| pod.namespace == name).cloned().collect();
            state.dirty.extend(pods);
            state.namespaces.insert(name.to_owned(), labels);
        }
    }
}

impl Receiver for NamespaceReceiver {
    fn begin_list(&mut self) {
        self.not_listed = self.store.state().namespaces.keys().cloned().collect();
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        let mut state = self.store.state();
        for name in std::mem::take(&mut self.not_listed) {
            state.namespaces.remove(&name);
        }
        state.namespaces_listed = true;
        drop(state);
        self.store.0.changed.notify_one();
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.set(&object),
                // Its pods are deleted before it.
                WatchEvent::Delete(object) => {
                    if let Some(name) = object["metadata"]["name"].as_str() {
                        self.store.state().namespaces.remove(name);
                    }
                }
            }
        }
        self.store.0.changed.notify_one();
    }

    fn absent(&mut self) {}
}
