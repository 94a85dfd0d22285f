//! Builds the next state of the store from the changes of an epoch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use sluice_model::{Layer, ProxyKey, ResourceType, Scope, Text};

use super::PushTrigger;
use super::aliases::{self, has_aliases};
use super::entry::{EncodedSegment, LayerEntry, WholeResource};
use super::epoch_changes::{ChangeTimes, EpochChanges};
use super::layer_stack::{LayerCell, LayerIndex, ProxyScope};
use super::layer_table::LayerTable;
use super::layers::{LayerContent, Layers};
use super::state::StoreState;

/// Number of epochs whose [`ChangeTimes`] are remembered.
const MAX_REMEMBERED_EPOCHS: usize = 1024;

/// The state that only the writer needs.
#[derive(Debug, Default)]
pub(super) struct Writer {
    layers: LayerIndex,
    /// One copy of equal scopes.
    scopes: HashMap<Arc<Scope>, Arc<ProxyScope>>,
    /// Unused layers and scopes are purged when there are more than this.
    purge_at: usize,
}

/// The streams that an epoch concerns.
#[derive(Debug)]
pub(super) struct AppliedEpoch {
    pub(super) epoch: u64,
    /// By type: the changed layers, each with its number of changed rows.
    pub(super) layers: BTreeMap<ResourceType, Vec<(Arc<LayerCell>, usize)>>,
    /// The proxies whose scope changed.
    pub(super) proxies: BTreeSet<ProxyKey>,
}

impl AppliedEpoch {
    /// The kind of the epoch's changes; `None` if nothing changed.
    pub(super) fn trigger(&self) -> Option<PushTrigger> {
        let of_endpoints = |kind: &ResourceType| matches!(kind, ResourceType::Endpoint | ResourceType::LbEndpoint);
        if self.layers.is_empty() {
            (!self.proxies.is_empty()).then_some(PushTrigger::Proxy)
        } else if self.layers.keys().all(of_endpoints) {
            Some(PushTrigger::Endpoint)
        } else {
            Some(PushTrigger::Config)
        }
    }
}

impl Writer {
    /// The state after `current`, with the changes of one epoch.
    pub(super) fn apply(
        &mut self,
        current: &StoreState,
        changes: EpochChanges,
        now: Instant,
    ) -> (StoreState, AppliedEpoch) {
        let mut next = current.clone();
        next.layers.epoch += 1;
        if next.times.len() == MAX_REMEMBERED_EPOCHS {
            next.times.pop_front();
        }
        next.times.push_back((next.epoch(), changes.times.unwrap_or_else(|| ChangeTimes::at(now))));
        let mut rows: BTreeMap<(ResourceType, Layer), BTreeMap<Text, EntryChange>> = BTreeMap::new();
        for (key, resource) in changes.resources {
            let change = rows.entry((key.resource_type, key.layer)).or_default().entry(key.name).or_default();
            change.whole = Some(resource.as_ref().map(WholeResource::new));
        }
        for (key, segment) in changes.segments {
            let change = rows.entry((key.resource_type, key.layer)).or_default().entry(key.name).or_default();
            change.segments.insert(key.segment, segment.as_ref().map(EncodedSegment::new));
        }
        let mut layers: BTreeMap<ResourceType, Vec<(Arc<LayerCell>, usize)>> = BTreeMap::new();
        for ((kind, layer), rows) in rows {
            let cell = self.layers.cell(kind, &layer, &mut next.layers);
            let Some((content, changed)) = apply_rows(kind, next.layers.get(cell.id()), rows) else { continue };
            layers.entry(kind).or_default().push((cell.clone(), changed));
            next.layers.set(cell.id(), content);
            if let Some(changed) = next.changed.get_mut(kind as usize) {
                *changed = next.layers.epoch;
            }
        }
        let mut proxies = BTreeSet::new();
        if !changes.scopes.is_empty() {
            next.scopes_changed = next.epoch();
        }
        for (proxy, scope) in changes.scopes {
            match scope {
                Some(scope) => {
                    let scope = self.proxy_scope(scope, &mut next.layers);
                    next.scopes.insert(proxy.clone(), scope);
                }
                None => {
                    next.scopes.remove(&proxy);
                }
            }
            proxies.insert(proxy);
        }
        self.purge(&next.layers);
        let applied = AppliedEpoch { epoch: next.epoch(), layers, proxies };
        (next, applied)
    }

    /// The one copy of a scope.
    fn proxy_scope(&mut self, scope: Arc<Scope>, layers: &mut Layers) -> Arc<ProxyScope> {
        if let Some(known) = self.scopes.get(&scope) {
            return known.clone();
        }
        let new = Arc::new(ProxyScope::new(scope.clone(), &mut self.layers, layers));
        self.scopes.insert(scope, new.clone());
        new
    }

    fn purge(&mut self, layers: &Layers) {
        if self.scopes.len() + self.layers.len() > self.purge_at {
            self.scopes.retain(|_, scope| Arc::strong_count(scope) > 1);
            self.layers.purge(layers);
            self.purge_at = ((self.scopes.len() + self.layers.len()) * 2).max(256);
        }
    }
}

/// The content of a layer after these changes, with the number of changed rows; `None` if nothing differs.
fn apply_rows(
    kind: ResourceType,
    old: &LayerContent,
    rows: BTreeMap<Text, EntryChange>,
) -> Option<(LayerContent, usize)> {
    let entry = |name: &Text| old.table.get(name).map(|(_, entry)| entry);
    let rows: Vec<(Text, Option<LayerEntry>)> =
        rows.into_iter().filter_map(|(name, change)| change.apply(kind, entry(&name), name)).collect();
    if rows.is_empty() {
        return None;
    }
    let mut aliases = old.aliases.clone();
    if has_aliases(kind) {
        let changed = |(name, new): &(Text, Option<LayerEntry>)| aliases::change(kind, name, entry(name), new.as_ref());
        let mut changes: Vec<_> = rows.iter().flat_map(changed).collect();
        changes.sort_unstable();
        aliases = Arc::new(aliases.apply(changes));
    }
    let changed = rows.len();
    Some((LayerContent { table: Arc::new(LayerTable::after(&old.table, rows)), aliases }, changed))
}

/// The change of one name of a layer in an epoch.
#[derive(Default)]
struct EntryChange {
    whole: Option<Option<WholeResource>>,
    segments: BTreeMap<Text, Option<EncodedSegment>>,
}

impl EntryChange {
    /// The row after the change; `None` if the row does not change.
    fn apply(self, kind: ResourceType, old: Option<&LayerEntry>, name: Text) -> Option<(Text, Option<LayerEntry>)> {
        let mut entry = old.cloned().unwrap_or_default();
        if let Some(whole) = self.whole {
            entry.whole = whole;
        }
        if !self.segments.is_empty() {
            let segments = entry.segments.take().unwrap_or_default();
            let segments = segments.apply(kind, self.segments.into_iter().collect());
            entry.segments = (!segments.rows.is_empty()).then(|| Arc::new(segments));
        }
        match old {
            None if entry.is_empty() => None,
            Some(old) if old.same(&entry) => None,
            _ if entry.is_empty() => Some((name, None)),
            _ => Some((name, Some(entry))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use sluice_model::{Resource, ResourceKey};

    use super::super::Store;
    use super::*;

    fn layer(name: &str) -> Layer {
        Layer { profile: name.into(), ..Layer::default() }
    }

    fn set(layer: &Layer, kind: ResourceType, name: &str, content: &str) -> (ResourceKey, Option<Resource>) {
        let key = ResourceKey { resource_type: kind, layer: layer.clone(), name: name.into() };
        (key, Some(Resource::Encoded(content.as_bytes().to_vec().into())))
    }

    fn scope(layers: &[Layer]) -> Arc<Scope> {
        let layers = [ResourceType::Cluster, ResourceType::Listener].map(|kind| (kind, layers.into()));
        Arc::new(Scope { layers: layers.into(), ..Scope::default() })
    }

    #[test]
    fn snapshot_has_one_epoch_for_all_types_while_the_writer_works() {
        const EPOCHS: u64 = 2000;
        let (store, proxy, own) = (Store::default(), ProxyKey("web".into()), layer("own"));
        let kinds = [ResourceType::Cluster, ResourceType::Listener];
        let write = |epoch: u64| {
            let content = epoch.to_string();
            let resources = kinds.map(|kind| set(&own, kind, "name", &content)).into();
            store.apply(EpochChanges { resources, ..EpochChanges::default() }, Instant::now());
        };
        let scopes = vec![(proxy.clone(), Some(scope(&[own.clone(), Layer::default()])))];
        store.apply(EpochChanges { scopes, ..EpochChanges::default() }, Instant::now());
        write(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let reader = || {
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let snapshot = store.snapshot(&proxy, kinds);
                    let [cluster, listener] = kinds.map(|kind| {
                        let resource = snapshot.view(kind).and_then(|view| view.find("name")).expect("the resource");
                        String::from_utf8(resource.bytes().to_vec()).expect("text").parse::<u64>().expect("a number")
                    });
                    assert_eq!(cluster, listener);
                    assert!(cluster >= last, "epochs never go back");
                    last = cluster;
                }
            };
            threads.spawn(reader);
            threads.spawn(reader);
            (1..=EPOCHS).for_each(write);
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(store.epoch(), EPOCHS + 2);
    }

    #[test]
    fn ids_of_unused_layers_are_reused() {
        let (mut writer, mut state) = (Writer::default(), StoreState::default());
        for round in 0..2000 {
            let scopes = vec![(ProxyKey("web".into()), Some(scope(&[layer(&round.to_string())])))];
            state = writer.apply(&state, EpochChanges { scopes, ..EpochChanges::default() }, Instant::now()).0;
        }
        assert!(state.layers.len() < 1000, "{} layers", state.layers.len());
    }

    #[test]
    fn change_times_are_found_by_epoch() {
        let (mut writer, mut state) = (Writer::default(), StoreState::default());
        assert_eq!(state.change_times(1), None);
        let start = Instant::now();
        let at = |epoch: u64| start + std::time::Duration::from_secs(epoch);
        for epoch in 1..=MAX_REMEMBERED_EPOCHS as u64 + 10 {
            state = writer.apply(&state, EpochChanges::default(), at(epoch)).0;
        }
        let source = |epoch: u64| state.change_times(epoch).map(|times| times.source);
        assert_eq!(source(1), Some(at(11)), "the first that is remembered");
        assert_eq!(source(500), Some(at(500)));
        assert_eq!(source(state.epoch()), Some(at(state.epoch())));
        assert_eq!(source(state.epoch() + 1), None);
    }
}
