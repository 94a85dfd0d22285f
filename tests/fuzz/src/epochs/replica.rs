//! The sum of the changes that a feed delivers, as the store of the xDS server applies them.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::{Batch, Key, Published, Snapshot, Value};
use sluice_graph::Handles;
use sluice_model::{ProxyKey, Resource, ResourceKey, Scope, Segment, SegmentKey};

use crate::violation::Violation;

type Records<K, V> = BTreeMap<Arc<K>, Arc<V>>;

/// Published records, by the changes of a feed.
#[derive(Default)]
pub(super) struct Replica {
    resources: BTreeMap<usize, Records<ResourceKey, Resource>>,
    segments: BTreeMap<usize, Records<SegmentKey, Segment>>,
    scopes: Records<ProxyKey, Scope>,
}

impl Replica {
    /// Applies the changes of a batch. Returns whether there are any.
    pub(super) fn apply(&mut self, batch: &Batch, handles: &Handles) -> Result<bool, Violation> {
        let mut has_changed = false;
        for (number, of) in handles.resources.iter().enumerate() {
            has_changed |= apply(self.resources.entry(number).or_default(), batch, of)?;
        }
        for (number, of) in handles.segments.iter().enumerate() {
            has_changed |= apply(self.segments.entry(number).or_default(), batch, of)?;
        }
        Ok(apply(&mut self.scopes, batch, &handles.scopes)? || has_changed)
    }

    /// Checks that the records are those of the snapshot.
    pub(super) fn compare(&self, now: &Snapshot, handles: &Handles) -> Result<(), Violation> {
        for (number, of) in handles.resources.iter().enumerate() {
            compare(self.resources.get(&number), now, of)?;
        }
        for (number, of) in handles.segments.iter().enumerate() {
            compare(self.segments.get(&number), now, of)?;
        }
        compare(Some(&self.scopes), now, &handles.scopes)
    }
}

fn apply<K: Key, V: Value>(
    records: &mut Records<K, V>,
    batch: &Batch,
    of: &Published<K, V>,
) -> Result<bool, Violation> {
    let mut has_changed = false;
    for event in batch.events(of) {
        has_changed = true;
        let last = match &event.new {
            Some(new) => records.insert(event.key.clone(), new.clone()),
            None => records.remove(&event.key),
        };
        if last != event.old {
            let signature = format!("a change in {} replaces another value than the last one", of.name());
            return Err(Violation::new(signature, format!("{:?}", event.key)));
        }
    }
    Ok(has_changed)
}

fn compare<K: Key, V: Value>(
    records: Option<&Records<K, V>>,
    now: &Snapshot,
    of: &Published<K, V>,
) -> Result<(), Violation> {
    let own = records.into_iter().flatten().map(|(key, value)| (&**key, &**value));
    let mut published: Vec<(&K, &V)> = now.iter(of).collect();
    published.sort();
    if own.eq(published) {
        return Ok(());
    }
    let signature = format!("the changes of {} do not add up to its state", of.name());
    Err(Violation::new(signature, of.name()))
}
