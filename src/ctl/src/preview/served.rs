//! The resources of one proxy, as a server would serve them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sluice_engine::{Key, Published, Snapshot, Value};
use sluice_graph::Handles;
use sluice_model::{ProxyKey, ResourceType, Text};
use sluice_xds_protocol::{EpochChanges, ScopeSnapshot, Store};

/// Encoded resources by name.
pub(super) type ResourceSet = BTreeMap<Text, Vec<u8>>;

/// The state that a server serves to a proxy; `None` if the proxy has no scope.
pub(super) fn scope_of(snapshot: &Snapshot, handles: &Handles, proxy: &ProxyKey) -> Option<ScopeSnapshot> {
    let scope = Arc::new(snapshot.get(&handles.scopes, proxy)?.as_ref().clone());
    let changes = EpochChanges {
        resources: rows(snapshot, &handles.resources),
        segments: rows(snapshot, &handles.segments),
        scopes: vec![(proxy.clone(), Some(scope))],
        times: None,
    };
    let store = Store::default();
    store.apply(changes, Instant::now());
    Some(store.snapshot(proxy, ResourceType::ALL))
}

/// All resources of a type.
pub(super) fn resources(scope: &ScopeSnapshot, kind: ResourceType) -> ResourceSet {
    let Some(view) = scope.view(kind) else { return ResourceSet::new() };
    let names = view.names();
    names.into_iter().filter_map(|name| view.find(&name).map(|resource| (name, resource.bytes().to_vec()))).collect()
}

fn rows<K: Key, V: Value>(snapshot: &Snapshot, collections: &[Published<K, V>]) -> Vec<(K, Option<V>)> {
    let rows = collections.iter().flat_map(|collection| snapshot.iter(collection));
    rows.map(|(key, value)| (key.clone(), Some(value.clone()))).collect()
}
