//! The outcome of a replay: the resources that each proxy can subscribe to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use sluice_engine::{Key, Published, Snapshot, Value};
use sluice_graph::Handles;
use sluice_model::{ProxyKey, ResourceType, Text};
use sluice_xds_protocol::{EpochChanges, Store};

/// The resources of all proxies.
pub struct Outcome {
    store: Store,
    proxies: Vec<ProxyKey>,
}

/// A resource of a proxy.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct OutcomeResource {
    /// Its version: a hash of its content, as the control plane sends it.
    pub version: String,
    /// Its size in bytes.
    pub bytes: usize,
}

/// A resource that differs between two outcomes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DifferentResource {
    /// The proxy.
    pub proxy: ProxyKey,
    /// The type of the resource.
    pub kind: ResourceType,
    /// Its name.
    pub name: Text,
    /// Its encoded message in the first outcome; `None` if it is absent.
    pub first: Option<Vec<u8>>,
    /// Its encoded message in the second outcome.
    pub second: Option<Vec<u8>>,
}

impl Outcome {
    pub(crate) fn of(snapshot: &Snapshot, handles: &Handles) -> Self {
        let scopes: Vec<_> =
            snapshot.iter(&handles.scopes).map(|(key, scope)| (key.clone(), Some(Arc::new(scope.clone())))).collect();
        let proxies = scopes.iter().map(|(key, _)| key.clone()).collect();
        let store = Store::default();
        let changes = EpochChanges {
            resources: rows(snapshot, &handles.resources),
            segments: rows(snapshot, &handles.segments),
            scopes,
            times: None,
        };
        store.apply(changes, Instant::now());
        Self { store, proxies }
    }

    /// The proxies, in order.
    #[must_use]
    pub fn proxies(&self) -> &[ProxyKey] {
        &self.proxies
    }

    /// The resources of a type that a proxy can subscribe to, by name.
    #[must_use]
    pub fn resources(&self, proxy: &ProxyKey, kind: ResourceType) -> BTreeMap<Text, OutcomeResource> {
        let snapshot = self.store.snapshot(proxy, [kind]);
        let Some(view) = snapshot.view(kind) else { return BTreeMap::new() };
        let resource = |name: Text| {
            let found = view.find(&name)?;
            Some((name, OutcomeResource { version: found.version.to_string(), bytes: found.bytes().len() }))
        };
        view.names().into_iter().filter_map(resource).collect()
    }

    /// The encoded message of a resource.
    #[must_use]
    pub fn message(&self, proxy: &ProxyKey, kind: ResourceType, name: &str) -> Option<Vec<u8>> {
        let snapshot = self.store.snapshot(proxy, [kind]);
        snapshot.view(kind)?.find(name).map(|resource| resource.bytes().to_vec())
    }
}

fn rows<K: Key, V: Value>(snapshot: &Snapshot, collections: &[Published<K, V>]) -> Vec<(K, Option<V>)> {
    let rows = collections.iter().flat_map(|collection| snapshot.iter(collection));
    rows.map(|(key, value)| (key.clone(), Some(value.clone()))).collect()
}

/// The resources that differ, by proxy, type and name; this many at most.
#[must_use]
pub fn differences(first: &Outcome, second: &Outcome, limit: usize) -> Vec<DifferentResource> {
    let proxies: BTreeSet<&ProxyKey> = first.proxies.iter().chain(&second.proxies).collect();
    let mut found = Vec::new();
    for (proxy, kind) in proxies.into_iter().flat_map(|proxy| ResourceType::ALL.map(|kind| (proxy, kind))) {
        let (one, other) = (first.resources(proxy, kind), second.resources(proxy, kind));
        let names: BTreeSet<&Text> = one.keys().chain(other.keys()).collect();
        for name in names.into_iter().filter(|name| one.get(*name) != other.get(*name)) {
            if found.len() == limit {
                return found;
            }
            found.push(DifferentResource {
                proxy: proxy.clone(),
                kind,
                name: name.clone(),
                first: first.message(proxy, kind, name),
                second: second.message(proxy, kind, name),
            });
        }
    }
    found
}
