//! Where layers are kept, so that looking at them needs no search.
//!
//! A scope names its layers by long texts. They are looked up once, when the scope comes; after that a proxy's layers are
//! pointers. All who see the same layers of a type share their [`Stack`], and with it what is there now.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Instant;

use arc_swap::ArcSwap;
use sluice_model::{Layer, ResourceType, Scope};

use super::aliases::{Aliases, has_aliases};
use super::table::Table;
use super::view::{Seen, View};
use crate::xds::wake::Wake;

/// What a layer has before it has anything. Every proxy has some layers of its own, and most of those never do.
static NOTHING: LazyLock<(Arc<Table>, Arc<Aliases>)> = LazyLock::new(Default::default);

/// One layer of one type: what it has now, and which stacks it is in.
#[derive(Debug)]
pub(super) struct Place {
    table: ArcSwap<Table>,
    /// By which other names its rows are known.
    aliases: ArcSwap<Aliases>,
    stacks: Mutex<Vec<Weak<Stack>>>,
}

impl Default for Place {
    fn default() -> Self {
        let (table, aliases) = NOTHING.clone();
        Self { table: table.into(), aliases: aliases.into(), stacks: Mutex::default() }
    }
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

    /// Tells everyone who looks at it of the epoch, in which so many rows change.
    pub(super) fn wake(&self, epoch: u64, changed: usize, now: Instant) {
        let stacks: Vec<Arc<Stack>> = {
            let stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
            stacks.iter().filter_map(Weak::upgrade).collect()
        };
        stacks.iter().for_each(|stack| stack.wake(epoch, changed, now));
    }

    fn is_in(&self, stack: &Arc<Stack>) {
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        if stacks.len() == stacks.capacity() {
            stacks.retain(|stack| stack.strong_count() > 0);
        }
        stacks.push(Arc::downgrade(stack));
    }
}

/// The places of all layers that have content or are in some scope, and the stacks they are in.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: BTreeMap<ResourceType, HashMap<Layer, Arc<Place>>>,
    stacks: BTreeMap<ResourceType, HashMap<Arc<[Layer]>, Arc<Stack>>>,
}

impl Places {
    /// The place of a layer, made if there is none.
    pub(super) fn of(&mut self, kind: ResourceType, layer: &Layer) -> &Arc<Place> {
        let places = self.places.entry(kind).or_default();
        if !places.contains_key(layer) {
            places.insert(layer.clone(), Arc::default());
        }
        &places[layer]
    }

    /// The stack of these layers, made if there is none.
    fn stack(&mut self, kind: ResourceType, layers: &Arc<[Layer]>) -> Arc<Stack> {
        if let Some(stack) = self.stacks.entry(kind).or_default().get(layers) {
            return stack.clone();
        }
        let places: Box<[Arc<Place>]> = layers.iter().map(|layer| self.of(kind, layer).clone()).collect();
        let (seen, watching) = Default::default();
        let stack = Arc::new(Stack { kind, layers: layers.clone(), places, seen, watching });
        stack.places.iter().for_each(|place| place.is_in(&stack));
        self.stacks.entry(kind).or_default().insert(layers.clone(), stack.clone());
        stack
    }

    /// Every layer with its content.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ResourceType, &Layer, Arc<Table>)> {
        let all = self.places.iter();
        all.flat_map(|(kind, places)| places.iter().map(move |(layer, place)| (*kind, layer, place.table())))
    }

    /// Number of layers and stacks.
    pub(super) fn len(&self) -> usize {
        self.places.values().map(HashMap::len).sum::<usize>() + self.stacks.values().map(HashMap::len).sum::<usize>()
    }

    /// Forgets the stacks that no scope has, and the layers without content in none.
    pub(super) fn purge(&mut self) {
        for stacks in self.stacks.values_mut() {
            stacks.retain(|_, stack| Arc::strong_count(stack) > 1);
        }
        for places in self.places.values_mut() {
            places.retain(|_, place| Arc::strong_count(place) > 1 || !place.table.load().is_empty());
        }
    }
}

/// Layers of a type in an order in which some scopes see them. Equal ones are one.
#[derive(Debug)]
struct Stack {
    kind: ResourceType,
    layers: Arc<[Layer]>,
    places: Box<[Arc<Place>]>,
    /// What was seen last, and the store's epoch up to which that is known to be the latest.
    seen: Mutex<Option<(u64, Arc<Seen>)>>,
    watching: Mutex<BTreeMap<u64, Arc<Wake>>>,
}

impl Stack {
    /// What is there at this epoch. Only under the store's lock.
    fn seen(&self, epoch: u64) -> Arc<Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, latest)) = &mut *seen
            && (*known == epoch || self.has(&latest.tables))
        {
            *known = epoch;
            return latest.clone();
        }
        let latest = Arc::new(self.look());
        *seen = Some((epoch, latest.clone()));
        latest
    }

    fn has(&self, tables: &[Arc<Table>]) -> bool {
        tables.iter().zip(&self.places).all(|(table, place)| place.has(table))
    }

    fn look(&self) -> Seen {
        let tables = self.places.iter().map(|place| place.table()).collect();
        let aliased = if has_aliases(self.kind) { &self.places[..] } else { &[] };
        let aliases = aliased.iter().map(|place| place.aliases()).collect();
        Seen::new(self.kind, self.layers.clone(), tables, aliases)
    }

    fn wake(&self, epoch: u64, changed: usize, now: Instant) {
        for wake in self.watching.lock().unwrap_or_else(PoisonError::into_inner).values() {
            wake.wake(epoch, changed, now);
        }
    }
}

/// A scope with the stacks of its layers. Equal scopes are one.
#[derive(Debug)]
pub(crate) struct Sight {
    scope: Arc<Scope>,
    stacks: [Option<Arc<Stack>>; ResourceType::ALL.len()],
}

impl Sight {
    pub(super) fn new(scope: Arc<Scope>, places: &mut Places) -> Self {
        let stack = |kind: ResourceType| scope.layers.get(&kind).map(|layers| places.stack(kind, layers));
        let stacks = ResourceType::ALL.map(stack);
        Self { scope, stacks }
    }

    /// The scope itself.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    fn stack(&self, kind: ResourceType) -> Option<&Arc<Stack>> {
        self.stacks.get(kind as usize)?.as_ref()
    }

    /// What the scope sees of a type at this epoch. Only under the store's lock.
    pub(super) fn view(&self, kind: ResourceType, epoch: u64) -> View {
        let seen = self.stack(kind).map_or_else(|| Arc::new(Seen::nothing(kind)), |stack| stack.seen(epoch));
        View::new(self.scope.clone(), seen)
    }

    /// Wakes `wake` when layers of that type change, until [`Self::unwatch`].
    pub(crate) fn watch(&self, kind: ResourceType, id: u64, wake: &Arc<Wake>) {
        if let Some(stack) = self.stack(kind) {
            stack.watching.lock().unwrap_or_else(PoisonError::into_inner).insert(id, wake.clone());
        }
    }

    pub(crate) fn unwatch(&self, kind: ResourceType, id: u64) {
        if let Some(stack) = self.stack(kind) {
            stack.watching.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }
}
