//! The resources of one type in a stack of layers at one epoch, for all scopes that have these layers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use sluice_model::{Layer, ResourceType, Text};

use super::aliases::Aliases;
use super::assembly::Assembly;
use super::entry::{LayerSegments, WholeResource};
use super::layer_table::LayerTable;
use super::lock;
use super::response_item::RowPosition;
use crate::version::Version;

/// Maximum number of changed names that are remembered. There is a [`StackSnapshot`] for each proxy that has a separate
/// layer.
const MAX_REMEMBERED_NAMES: usize = 1024;
/// Maximum number of changed names for which it is remembered what the snapshots have.
const MAX_SHARED_LOOKUPS: usize = 64;
/// Maximum number of assembled resources whose versions are remembered.
const MAX_REMEMBERED_VERSIONS: usize = 1024;

/// The content of the layers of a type, for all scopes that have these layers.
#[derive(Debug)]
pub(super) struct StackSnapshot {
    pub(super) kind: ResourceType,
    pub(super) layers: Arc<[Layer]>,
    /// Whether a layer has resources that a subscription to all leaves out.
    pub(super) has_on_demand: bool,
    /// The table of each layer, in the order of the layers.
    pub(super) tables: Box<[Arc<LayerTable>]>,
    /// The aliases of each layer, for types that have aliases.
    pub(super) aliases: Box<[Arc<Aliases>]>,
    /// The latest result of [`Self::changed_since`]: most streams held the same snapshot before.
    changed: Mutex<Option<(Weak<Self>, Arc<ChangedNames>)>>,
    /// Versions of assembled resources by name: all streams with these layers need the same ones. They are computed outside of the
    /// lock.
    assembled: Mutex<HashMap<Text, Arc<OnceLock<Option<Version>>>>>,
}

/// Names whose resources may differ between an earlier and a later snapshot, in order.
#[derive(Debug, Default)]
pub(crate) struct ChangedNames {
    names: Box<[Text]>,
    /// What both have under each name, if the names are few: all streams with the same two snapshots look it up once.
    found: Box<[OnceLock<[FoundResource; 2]>]>,
}

/// One of [`ChangedNames`].
#[derive(Clone, Copy)]
pub(crate) struct ChangedName<'c> {
    pub(crate) name: &'c Text,
    pub(super) found: Option<&'c OnceLock<[FoundResource; 2]>>,
}

impl ChangedNames {
    /// These names, in any order and number.
    pub(super) fn new(mut names: Vec<Text>) -> Self {
        // They are some sequences that are in order.
        names.sort();
        names.dedup();
        let few = if names.len() <= MAX_SHARED_LOOKUPS { names.len() } else { 0 };
        Self { names: names.into(), found: (0..few).map(|_| OnceLock::new()).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ChangedName<'_>> {
        self.names.iter().enumerate().map(|(at, name)| ChangedName { name, found: self.found.get(at) })
    }
}

/// What a stack of layers has under a name, for all its scopes.
#[derive(Clone, Copy, Debug)]
pub(super) enum FoundResource {
    Absent,
    /// All scopes have this version. If all have a row of a table, this is its position.
    Version(Version, Option<RowPosition>),
    /// The version depends on the scope's values of slots.
    ByScope,
}

impl StackSnapshot {
    pub(super) fn new(
        kind: ResourceType,
        layers: Arc<[Layer]>,
        has_on_demand: bool,
        tables: Box<[Arc<LayerTable>]>,
        aliases: Box<[Arc<Aliases>]>,
    ) -> Self {
        let (changed, assembled) = Default::default();
        Self { kind, layers, has_on_demand, tables, aliases, changed, assembled }
    }

    /// The snapshot of a scope without layers of the type.
    pub(super) fn empty(kind: ResourceType) -> Self {
        Self::new(kind, Arc::default(), false, Box::default(), Box::default())
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.tables.len() == other.tables.len() && self.tables.iter().zip(&other.tables).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// The version of the resource of this name that these layers assemble.
    pub(super) fn assembled_version(&self, name: &Text, layers: &[&LayerSegments]) -> Option<Version> {
        let remembered = {
            let mut known = lock(&self.assembled);
            if known.len() >= MAX_REMEMBERED_VERSIONS && !known.contains_key(name) {
                known.clear();
            }
            known.entry(name.clone()).or_default().clone()
        };
        *remembered.get_or_init(|| Assembly::new(self.kind, layers).version())
    }

    /// Names that differ from an earlier snapshot of the same layers.
    pub(super) fn changed_since(&self, old: &Arc<Self>) -> Arc<ChangedNames> {
        let mut changed = lock(&self.changed);
        match &*changed {
            Some((from, names)) if std::ptr::eq(from.as_ptr(), Arc::as_ptr(old)) => names.clone(),
            _ => {
                let mut names = Vec::new();
                self.tables.iter().zip(&old.tables).for_each(|(new, old)| new.differing(old, &mut names));
                let names = Arc::new(ChangedNames::new(names));
                *changed = (names.len() <= MAX_REMEMBERED_NAMES).then(|| (Arc::downgrade(old), names.clone()));
                names
            }
        }
    }

    pub(super) fn resolve(&self, name: &str) -> NameResolution<'_> {
        self.resolve_with(|_, table| table.position(name))
    }

    /// Visits the layers in order of precedence until the name is resolved, which `position` looks up in the table of a layer.
    fn resolve_with(
        &self,
        mut position: impl FnMut(usize, &LayerTable) -> Option<(usize, usize)>,
    ) -> NameResolution<'_> {
        let mut layers: Vec<&LayerSegments> = Vec::new();
        let mut stored_name: Option<&Text> = None;
        for (at, table) in self.tables.iter().enumerate() {
            let Some((chunk, row)) = position(at, table) else { continue };
            let Some((name, entry)) = table.at((chunk, row)) else { continue };
            stored_name = stored_name.or(Some(name));
            if let Some(segments) = &entry.segments {
                layers.push(segments);
            }
            match &entry.whole {
                None => {}
                Some(whole) => {
                    let has_head = layers.iter().any(|layer| layer.rows.get("").is_some());
                    if has_head || matches!(whole, WholeResource::Hidden) {
                        break;
                    }
                    let row = (layers.is_empty() && entry.shared().is_some()).then_some((at, chunk, row));
                    return NameResolution::Whole(name, whole, row);
                }
            }
        }
        match stored_name {
            Some(name) if !layers.is_empty() => NameResolution::Assembled(name, layers),
            _ => NameResolution::Absent,
        }
    }
}

/// How a name resolves in the layers of a scope.
pub(super) enum NameResolution<'a> {
    Absent,
    /// With the position of its row, if that is the same for all scopes.
    Whole(&'a Text, &'a WholeResource, Option<RowPosition>),
    Assembled(&'a Text, Vec<&'a LayerSegments>),
}

impl NameResolution<'_> {
    pub(super) fn row(&self) -> Option<RowPosition> {
        match self {
            Self::Whole(_, _, row) => *row,
            Self::Absent | Self::Assembled(..) => None,
        }
    }
}

/// Looks up names in order, which takes fewer comparisons than a search for each.
pub(super) struct OrderedLookup<'v> {
    stack: &'v StackSnapshot,
    /// Of each table, where the last search ended; empty before the first one.
    positions: Vec<Option<(usize, usize)>>,
}

impl<'v> OrderedLookup<'v> {
    pub(super) fn new(stack: &'v StackSnapshot) -> Self {
        Self { stack, positions: Vec::new() }
    }

    pub(super) fn resolve(&mut self, name: &str) -> NameResolution<'v> {
        let Self { stack, positions } = self;
        positions.resize(stack.tables.len(), None);
        stack.resolve_with(|at, table| table.next_position(name, positions.get_mut(at)?))
    }

    pub(super) fn find(&mut self, name: &str) -> FoundResource {
        let version = |version: Option<Version>, row| {
            version.map_or(FoundResource::Absent, |version| FoundResource::Version(version, row))
        };
        match self.resolve(name) {
            NameResolution::Absent => FoundResource::Absent,
            NameResolution::Whole(_, WholeResource::Template(_), _) => FoundResource::ByScope,
            NameResolution::Whole(_, whole, row) => version(whole.version(), row),
            NameResolution::Assembled(name, layers) => version(self.stack.assembled_version(name, &layers), None),
        }
    }
}
