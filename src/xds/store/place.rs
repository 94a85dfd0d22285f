//! Where layers are kept, so that looking at them needs no search.
//!
//! A scope names its layers by long texts. They are looked up once, when the scope comes; after that a proxy's layers are
//! pointers, and all proxies of a scope share one [`View`] as long as nothing in it changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sluice_model::{Layer, ResourceType, Scope};

use super::aliases::{Aliases, has_aliases};
use super::view::{Table, View};
use crate::xds::wake::Wake;

/// One layer of one type: what it has now, and who wants to know when that changes.
#[derive(Debug, Default)]
pub(super) struct Place {
    table: ArcSwap<Table>,
    /// By which other names its rows are known.
    aliases: ArcSwap<Aliases>,
    watching: Mutex<BTreeMap<u64, Arc<Wake>>>,
}

impl Place {
    pub(super) fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// Only under the store's lock, or readers see layers of different epochs.
    pub(super) fn set_table(&self, table: Arc<Table>) {
        self.table.store(table);
    }

    pub(super) fn aliases(&self) -> Arc<Aliases> {
        self.aliases.load_full()
    }

    /// Only together with [`Self::set_table`].
    pub(super) fn set_aliases(&self, aliases: Arc<Aliases>) {
        self.aliases.store(aliases);
    }

    fn has(&self, table: &Arc<Table>) -> bool {
        Arc::ptr_eq(&self.table.load(), table)
    }

    /// Tells everyone who watches of the epoch.
    pub(super) fn wake(&self, epoch: u64) {
        for wake in self.watching.lock().unwrap_or_else(PoisonError::into_inner).values() {
            wake.wake(epoch);
        }
    }

    fn watch(&self, id: u64, wake: &Arc<Wake>) {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner).insert(id, wake.clone());
    }

    fn unwatch(&self, id: u64) {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// The places of all layers that have content or are in some scope.
#[derive(Debug, Default)]
pub(super) struct Places(BTreeMap<ResourceType, HashMap<Layer, Arc<Place>>>);

impl Places {
    /// The place of a layer, made if there is none.
    pub(super) fn of(&mut self, kind: ResourceType, layer: &Layer) -> &Arc<Place> {
        let places = self.0.entry(kind).or_default();
        if !places.contains_key(layer) {
            places.insert(layer.clone(), Arc::default());
        }
        &places[layer]
    }

    /// Every layer with its content.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ResourceType, &Layer, Arc<Table>)> {
        self.0.iter().flat_map(|(kind, places)| places.iter().map(move |(layer, place)| (*kind, layer, place.table())))
    }

    /// Number of layers.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(HashMap::len).sum()
    }

    /// Forgets the layers without content that no scope has.
    pub(super) fn purge(&mut self) {
        for places in self.0.values_mut() {
            places.retain(|_, place| Arc::strong_count(place) > 1 || !place.table.load().is_empty());
        }
    }
}

/// A scope with the places of its layers. Equal scopes are one.
#[derive(Debug)]
pub(crate) struct Sight {
    scope: Arc<Scope>,
    places: BTreeMap<ResourceType, Box<[Arc<Place>]>>,
    /// The latest view of each type that was asked for.
    views: Mutex<BTreeMap<ResourceType, Arc<View>>>,
}

impl Sight {
    pub(super) fn new(scope: Arc<Scope>, places: &mut Places) -> Self {
        let of = |(kind, layers): (&ResourceType, &Vec<Layer>)| {
            (*kind, layers.iter().map(|layer| places.of(*kind, layer).clone()).collect())
        };
        let places = scope.layers.iter().map(of).collect();
        Self { scope, places, views: Mutex::default() }
    }

    /// The scope itself.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    fn places(&self, kind: ResourceType) -> &[Arc<Place>] {
        self.places.get(&kind).map_or(&[], |places| places)
    }

    /// What the scope sees of a type now. Only under the store's lock.
    pub(super) fn view(&self, kind: ResourceType) -> Arc<View> {
        let places = self.places(kind);
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = views.get(&kind)
            && view.tables.iter().zip(places).all(|(table, place)| place.has(table))
        {
            return view.clone();
        }
        let tables = places.iter().map(|place| place.table()).collect();
        let aliased = if has_aliases(kind) { places } else { &[] };
        let aliases = aliased.iter().map(|place| place.aliases()).collect();
        let view = Arc::new(View { scope: self.scope.clone(), kind, tables, aliases });
        views.insert(kind, view.clone());
        view
    }

    /// Wakes `wake` when layers of that type change, until [`Self::unwatch`].
    pub(crate) fn watch(&self, kind: ResourceType, id: u64, wake: &Arc<Wake>) {
        self.places(kind).iter().for_each(|place| place.watch(id, wake));
    }

    pub(crate) fn unwatch(&self, kind: ResourceType, id: u64) {
        self.places(kind).iter().for_each(|place| place.unwatch(id));
    }
}
