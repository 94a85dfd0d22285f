//! The latest outputs, by layer, and what each scope sees of them.
//!
//! One writer applies whole epochs; readers take a [`Cut`], which is of one epoch for all types and stays as it is. The
//! bytes of a resource are kept once for all scopes, and a session that waits costs nothing.

mod aliases;
mod assembly;
mod changes;
mod entry;
mod place;
mod table;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use sluice_model::{Layer, ProxyKey, ResourceType, Scope, Text};

pub(crate) use aliases::has_aliases;
pub(crate) use assembly::put_pieces;
pub use changes::{Changes, Stamp};
pub(crate) use entry::Entry;
use entry::{Piece, Whole};
pub(crate) use place::Sight;
use place::{Place, Places};
use table::Table;
pub(crate) use view::Item;
pub use view::{Found, View};

use crate::xds::kinds::Kinds;
use crate::xds::metrics::Metrics;
use crate::xds::wake::Wake;

/// What a new scope counts as, in changed resources: everything the proxy sees may be another.
const WHOLE_SCOPE: usize = 1 << 16;

/// Epochs whose stamps are remembered.
const STAMPS: usize = 1024;

/// Latest outputs by layer.
#[derive(Debug, Default)]
pub struct Store {
    state: RwLock<State>,
    /// Who wants to know when a proxy's scope changes.
    watching: Mutex<HashMap<ProxyKey, BTreeMap<u64, Arc<Wake>>>>,
    metrics: OnceLock<Metrics>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts applied batches; not the engine's epoch.
    epoch: u64,
    /// By type: the epoch that last changed a layer of it.
    changed: [u64; ResourceType::ALL.len()],
    /// The epoch that last changed the scope of any proxy.
    scoped: u64,
    ready: bool,
    places: Places,
    scopes: HashMap<ProxyKey, Arc<Sight>>,
    /// One copy of equal scopes.
    interned: HashMap<Arc<Scope>, Arc<Sight>>,
    purge_at: usize,
    stamps: VecDeque<(u64, Stamp)>,
}

/// What a proxy sees, at one epoch.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    /// Number of the batch after which this is.
    pub epoch: u64,
    /// When the changes of that batch came in.
    stamp: Option<Stamp>,
    /// The proxy's scope; nothing until it has been derived.
    pub(crate) sight: Option<Arc<Sight>>,
    views: [Option<View>; ResourceType::ALL.len()],
}

impl Cut {
    /// What the proxy sees of a type; nothing if it has no scope yet or the cut was not asked for the type.
    #[must_use]
    pub fn view(&self, kind: ResourceType) -> Option<&View> {
        self.views.get(kind as usize)?.as_ref()
    }

    /// Whether it is decided which layers of a type the proxy sees.
    pub(crate) fn knows(&self, kind: ResourceType) -> bool {
        self.sight.as_ref().is_some_and(|sight| sight.scope().layers.contains_key(&kind))
    }

    /// When the changes of `epoch` came in, if this is of it.
    pub(crate) fn stamp(&self, epoch: u64) -> Option<Stamp> {
        self.stamp.filter(|_| self.epoch == epoch)
    }

    /// Takes everything out of it, for whoever may see nothing yet.
    pub(crate) fn blind(&mut self) {
        *self = Self { epoch: self.epoch, ..Self::default() };
    }
}

impl Store {
    /// Applies all changes of an epoch at once and wakes who may be concerned.
    pub fn apply(&self, changes: Changes) {
        let (epoch, layers, proxies) = self.state.write().unwrap_or_else(PoisonError::into_inner).apply(changes);
        if let Some(metrics) = self.metrics.get() {
            match (layers.keys().next(), layers.len()) {
                (Some(ResourceType::Endpoint), 1) => metrics.triggered("endpoint"),
                (Some(_), _) => metrics.triggered("config"),
                (None, _) if !proxies.is_empty() => metrics.triggered("proxy"),
                (None, _) => {}
            }
        }
        let now = Instant::now();
        for (place, changed) in layers.into_values().flatten() {
            place.wake(epoch, changed, now);
        }
        let watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        for wake in proxies.iter().filter_map(|proxy| watching.get(proxy)).flat_map(BTreeMap::values) {
            wake.wake(epoch, WHOLE_SCOPE, now);
        }
    }

    /// Counts what is applied; the first call counts.
    pub(crate) fn measure(&self, metrics: &Metrics) {
        self.metrics.get_or_init(|| metrics.clone());
    }

    /// Declares that what has been applied is complete, so that clients may be answered (S25).
    pub fn set_ready(&self) {
        self.state.write().unwrap_or_else(PoisonError::into_inner).ready = true;
    }

    /// Whether clients may be answered.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state.read().unwrap_or_else(PoisonError::into_inner).ready
    }

    /// Number of batches applied.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.state.read().unwrap_or_else(PoisonError::into_inner).epoch
    }

    /// What the proxy sees of these types now.
    pub fn cut(&self, proxy: &ProxyKey, kinds: impl IntoIterator<Item = ResourceType>) -> Cut {
        let mut cut = Cut::default();
        self.renew(&mut cut, proxy, kinds.into_iter().collect());
        cut
    }

    /// Makes an earlier cut of the same proxy the present one. What has not changed since is not looked at.
    pub(crate) fn renew(&self, cut: &mut Cut, proxy: &ProxyKey, kinds: Kinds) {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        if cut.sight.is_none() || state.scoped > cut.epoch {
            let sight = state.scopes.get(proxy);
            if cut.sight.as_ref().map(Arc::as_ptr) != sight.map(Arc::as_ptr) {
                *cut = Cut { sight: sight.cloned(), ..Cut::default() };
            }
        }
        let before = std::mem::replace(&mut cut.epoch, state.epoch);
        cut.stamp = state.stamps.back().map(|(_, stamp)| *stamp);
        let Some(sight) = &cut.sight else { return };
        for kind in ResourceType::ALL {
            let (Some(view), Some(changed)) = (cut.views.get_mut(kind as usize), state.changed.get(kind as usize))
            else {
                continue;
            };
            if !kinds.contains(kind) {
                // It is not kept up from here on; whoever asks for it again begins anew.
                *view = None;
            } else if view.is_none() || *changed > before {
                *view = Some(sight.view(kind, state.epoch));
            }
        }
    }

    /// Number of resources and segments in each layer, by type.
    #[must_use]
    pub fn sizes(&self) -> BTreeMap<(ResourceType, Layer), usize> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let rows = |table: &Table| {
            table.iter().map(|(_, entry)| entry.segments.as_ref().map_or(1, |segments| segments.run.len())).sum()
        };
        let all = state.places.iter().filter(|(_, _, table)| !table.is_empty());
        all.map(|(kind, layer, table)| ((kind, layer.clone()), rows(&table))).collect()
    }

    /// Gives back what was encoded for clients that came and has not been sent lately; to be called now and then.
    pub(crate) fn forget_unused(&self, now: Instant) {
        let tables: Vec<_> = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            state.places.iter().map(|(_, _, table)| table).collect()
        };
        for chunk in tables.iter().flat_map(|table| table.chunks()) {
            chunk.forget_unused(now);
            for segments in chunk.rows().iter().filter_map(|(_, entry)| entry.segments.as_ref()) {
                segments.run.chunks().iter().for_each(|chunk| chunk.forget_unused(now));
            }
        }
    }

    /// When the changes of `epoch` came in, or of the first after it that is remembered.
    #[must_use]
    pub fn stamp(&self, epoch: u64) -> Option<Stamp> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let at = state.stamps.partition_point(|(have, _)| *have < epoch);
        state.stamps.get(at).map(|(_, stamp)| *stamp)
    }

    /// Wakes `wake` when the proxy's scope changes, until [`Self::unwatch_proxy`].
    pub(crate) fn watch_proxy(&self, proxy: &ProxyKey, id: u64, wake: &Arc<Wake>) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.entry(proxy.clone()).or_default().insert(id, wake.clone());
    }

    pub(crate) fn unwatch_proxy(&self, proxy: &ProxyKey, id: u64) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wakes) = watching.get_mut(proxy) {
            wakes.remove(&id);
            if wakes.is_empty() {
                watching.remove(proxy);
            }
        }
    }
}

/// By type, the layers that change, each with the number of its rows that do.
type Changed = BTreeMap<ResourceType, Vec<(Arc<Place>, usize)>>;

impl State {
    /// Applies a batch; gives its epoch, the layers and the proxies whose content changed.
    fn apply(&mut self, changes: Changes) -> (u64, Changed, BTreeSet<ProxyKey>) {
        self.epoch += 1;
        if self.stamps.len() == STAMPS {
            self.stamps.pop_front();
        }
        let stamp = changes.stamp.unwrap_or_else(|| Stamp::now(Instant::now()));
        self.stamps.push_back((self.epoch, stamp));
        let mut rows: BTreeMap<(ResourceType, Layer), BTreeMap<Text, EntryChange>> = BTreeMap::new();
        for (key, resource) in changes.resources {
            let change = rows.entry((key.resource_type, key.layer)).or_default().entry(key.name).or_default();
            change.whole = Some(resource.as_ref().map(Whole::new));
        }
        for (key, segment) in changes.segments {
            let change = rows.entry((key.resource_type, key.layer)).or_default().entry(key.name).or_default();
            change.segments.insert(key.segment, segment.as_ref().map(Piece::new));
        }
        let mut changed = Changed::new();
        for ((kind, layer), rows) in rows {
            let place = self.places.of(kind, &layer);
            let old = place.table();
            let rows: Vec<(Text, Option<Entry>)> = rows
                .into_iter()
                .filter_map(|(name, change)| change.apply(old.get(&name).map(|(_, entry)| entry), name))
                .collect();
            if rows.is_empty() {
                continue;
            }
            if has_aliases(kind) {
                let changed = |(name, entry): &(Text, Option<Entry>)| {
                    aliases::change(kind, name, old.get(name).map(|(_, entry)| entry), entry.as_ref())
                };
                let mut changes: Vec<_> = rows.iter().flat_map(changed).collect();
                changes.sort_unstable();
                place.set_aliases(Arc::new(place.aliases().apply(changes)));
            }
            changed.entry(kind).or_default().push((place.clone(), rows.len()));
            place.set_table(Arc::new(Table::after(&old, rows)));
            if let Some(changed) = self.changed.get_mut(kind as usize) {
                *changed = self.epoch;
            }
        }
        let mut proxies = BTreeSet::new();
        if !changes.scopes.is_empty() {
            self.scoped = self.epoch;
        }
        for (proxy, scope) in changes.scopes {
            match scope {
                Some(scope) => {
                    let sight = match self.interned.get(&scope) {
                        Some(sight) => sight.clone(),
                        None => {
                            let sight = Arc::new(Sight::new(scope.clone(), &mut self.places));
                            self.interned.insert(scope, sight.clone());
                            sight
                        }
                    };
                    self.scopes.insert(proxy.clone(), sight);
                }
                None => {
                    self.scopes.remove(&proxy);
                }
            }
            proxies.insert(proxy);
        }
        if self.interned.len() + self.places.len() > self.purge_at {
            self.interned.retain(|_, sight| Arc::strong_count(sight) > 1);
            self.places.purge();
            self.purge_at = ((self.interned.len() + self.places.len()) * 2).max(256);
        }
        (self.epoch, changed, proxies)
    }
}

/// What a batch changes of one name of a layer.
#[derive(Default)]
struct EntryChange {
    whole: Option<Option<Whole>>,
    segments: BTreeMap<Text, Option<Piece>>,
}

impl EntryChange {
    /// The row afterwards; nothing if it stays as it was.
    fn apply(self, old: Option<&Entry>, name: Text) -> Option<(Text, Option<Entry>)> {
        let mut entry = old.cloned().unwrap_or_default();
        if let Some(whole) = self.whole {
            entry.whole = whole;
        }
        if !self.segments.is_empty() {
            let segments = entry.segments.take().unwrap_or_default();
            let segments = segments.apply(self.segments.into_iter().collect());
            entry.segments = (!segments.run.is_empty()).then(|| Arc::new(segments));
        }
        match old {
            None if entry.is_empty() => None,
            Some(old) if old.same(&entry) => None,
            _ if entry.is_empty() => Some((name, None)),
            _ => Some((name, Some(entry))),
        }
    }
}
