//! Layers and their order in scopes.
//!
//! A scope names its layers by long texts. They are looked up once, when the scope arrives; after that a proxy's layers are
//! indices into [`Layers`]. Proxies that see the same layers of a type share a [`LayerStack`] and its latest snapshot.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use sluice_model::{Layer, ResourceType, Scope};

use super::aliases::has_aliases;
use super::layer_table::LayerTable;
use super::layers::{LayerId, Layers};
use super::lock;
use super::stack_snapshot::StackSnapshot;
use super::type_snapshot::TypeSnapshot;
use crate::change_signal::ChangeSignal;

/// One layer of one type: the index of its content, and the stacks that contain it.
#[derive(Debug)]
pub(super) struct LayerCell {
    id: LayerId,
    stacks: Mutex<Vec<Weak<LayerStack>>>,
}

impl LayerCell {
    pub(super) fn id(&self) -> LayerId {
        self.id
    }

    /// Notifies all streams that see the layer of an epoch that changes this many of its rows.
    pub(super) fn notify(&self, epoch: u64, changed: usize, now: Instant) {
        let stacks: Vec<Arc<LayerStack>> = lock(&self.stacks).iter().filter_map(Weak::upgrade).collect();
        stacks.iter().for_each(|stack| stack.notify(epoch, changed, now));
    }

    fn add_stack(&self, stack: &Arc<LayerStack>) {
        let mut stacks = lock(&self.stacks);
        if stacks.len() == stacks.capacity() {
            stacks.retain(|stack| stack.strong_count() > 0);
        }
        stacks.push(Arc::downgrade(stack));
    }
}

/// All layers that have content or are part of a scope, and all stacks.
#[derive(Debug, Default)]
pub(super) struct LayerIndex {
    cells: BTreeMap<ResourceType, HashMap<Layer, Arc<LayerCell>>>,
    stacks: BTreeMap<ResourceType, HashMap<Arc<[Layer]>, Arc<LayerStack>>>,
    unused_ids: Vec<LayerId>,
}

impl LayerIndex {
    /// The cell of a layer; a new layer is added to `contents` without content.
    pub(super) fn cell(&mut self, kind: ResourceType, layer: &Layer, contents: &mut Layers) -> Arc<LayerCell> {
        let cells = self.cells.entry(kind).or_default();
        if let Some(cell) = cells.get(layer) {
            return cell.clone();
        }
        let id = self.unused_ids.pop().unwrap_or_else(|| contents.add());
        let cell = Arc::new(LayerCell { id, stacks: Mutex::default() });
        cells.insert(layer.clone(), cell.clone());
        cell
    }

    /// The stack of these layers.
    fn stack(&mut self, kind: ResourceType, layers: &Arc<[Layer]>, contents: &mut Layers) -> Arc<LayerStack> {
        if let Some(stack) = self.stacks.entry(kind).or_default().get(layers) {
            return stack.clone();
        }
        let cells: Box<[Arc<LayerCell>]> = layers.iter().map(|layer| self.cell(kind, layer, contents)).collect();
        let has_on_demand = layers.iter().any(Layer::is_on_demand);
        let (latest, watchers) = Default::default();
        let stack = Arc::new(LayerStack { kind, layers: layers.clone(), has_on_demand, cells, latest, watchers });
        stack.cells.iter().for_each(|cell| cell.add_stack(&stack));
        self.stacks.entry(kind).or_default().insert(layers.clone(), stack.clone());
        stack
    }

    /// Number of layers and stacks.
    pub(super) fn len(&self) -> usize {
        self.cells.values().map(HashMap::len).sum::<usize>() + self.stacks.values().map(HashMap::len).sum::<usize>()
    }

    /// Removes the stacks that no scope has, and the layers without content that no stack has.
    ///
    /// A reader of an older state has a scope, its scope has the stack and the stack has the cell. So the id of a layer is not
    /// reused while a reader can look it up.
    pub(super) fn purge(&mut self, contents: &Layers) {
        for stacks in self.stacks.values_mut() {
            stacks.retain(|_, stack| Arc::strong_count(stack) > 1);
        }
        for cells in self.cells.values_mut() {
            cells.retain(|_, cell| {
                let used = Arc::strong_count(cell) > 1 || !contents.get(cell.id).table.is_empty();
                if !used {
                    self.unused_ids.push(cell.id);
                }
                used
            });
        }
    }
}

/// Layers of a type in the order of some scopes. Equal stacks share one copy.
#[derive(Debug)]
struct LayerStack {
    kind: ResourceType,
    layers: Arc<[Layer]>,
    /// Whether a layer has resources that a subscription to all leaves out.
    has_on_demand: bool,
    cells: Box<[Arc<LayerCell>]>,
    /// The latest snapshot, and the last epoch at which it is known to be current.
    latest: Mutex<Option<(u64, Arc<StackSnapshot>)>>,
    watchers: Mutex<BTreeMap<u64, Arc<ChangeSignal>>>,
}

impl LayerStack {
    /// The content of the layers.
    fn snapshot(&self, contents: &Layers) -> Arc<StackSnapshot> {
        let mut latest = lock(&self.latest);
        if let Some((known, snapshot)) = &mut *latest
            && (*known == contents.epoch || self.is_current(&snapshot.tables, contents))
        {
            *known = contents.epoch;
            return snapshot.clone();
        }
        let snapshot = Arc::new(self.take_snapshot(contents));
        *latest = Some((contents.epoch, snapshot.clone()));
        snapshot
    }

    fn is_current(&self, tables: &[Arc<LayerTable>], contents: &Layers) -> bool {
        tables.iter().zip(&self.cells).all(|(table, cell)| Arc::ptr_eq(table, &contents.get(cell.id).table))
    }

    fn take_snapshot(&self, contents: &Layers) -> StackSnapshot {
        let tables = self.cells.iter().map(|cell| contents.get(cell.id).table.clone()).collect();
        let aliased = if has_aliases(self.kind) { &self.cells[..] } else { &[] };
        let aliases = aliased.iter().map(|cell| contents.get(cell.id).aliases.clone()).collect();
        StackSnapshot::new(self.kind, self.layers.clone(), self.has_on_demand, tables, aliases)
    }

    fn notify(&self, epoch: u64, changed: usize, now: Instant) {
        for signal in lock(&self.watchers).values() {
            signal.notify(epoch, changed, now);
        }
    }
}

/// A scope with the stacks of its layers. Equal scopes share one copy.
#[derive(Debug)]
pub struct ProxyScope {
    scope: Arc<Scope>,
    stacks: [Option<Arc<LayerStack>>; ResourceType::ALL.len()],
}

impl ProxyScope {
    pub(super) fn new(scope: Arc<Scope>, layers: &mut LayerIndex, contents: &mut Layers) -> Self {
        let stacks = ResourceType::ALL
            .map(|kind| scope.layers.get(&kind).map(|scope_layers| layers.stack(kind, scope_layers, contents)));
        Self { scope, stacks }
    }

    /// The scope itself.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    fn stack(&self, kind: ResourceType) -> Option<&Arc<LayerStack>> {
        self.stacks.get(kind as usize)?.as_ref()
    }

    /// The resources of a type in the scope.
    pub(super) fn view(&self, kind: ResourceType, contents: &Layers) -> TypeSnapshot {
        let stack =
            self.stack(kind).map_or_else(|| Arc::new(StackSnapshot::empty(kind)), |stack| stack.snapshot(contents));
        TypeSnapshot::new(self.scope.clone(), stack)
    }

    /// Notifies the signal when layers of this type change, until [`Self::unwatch`].
    pub fn watch(&self, kind: ResourceType, stream: u64, signal: &Arc<ChangeSignal>) {
        if let Some(stack) = self.stack(kind) {
            lock(&stack.watchers).insert(stream, signal.clone());
        }
    }

    /// Ends [`Self::watch`].
    pub fn unwatch(&self, kind: ResourceType, stream: u64) {
        if let Some(stack) = self.stack(kind) {
            lock(&stack.watchers).remove(&stream);
        }
    }
}
