//! The resources of one type in one scope at one epoch.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use sluice_model::{Layer, ResourceType, Scope, Text};

use super::aliases::{Aliases, ResourceAliases, named, on_node};
use super::assembly::Assembly;
use super::entry::{LayerEntry, LayerSegments, WholeResource};
use super::layer_table::LayerTable;
use super::lock;
use super::response_item::{ResolvedResource, ResponseItem, digest_of_rows};
use crate::chunked_map::Chunk;
use crate::name_set::NameSet;
use crate::version::{Digest, Version};

/// Maximum number of changed names that are remembered. There is a [`StackSnapshot`] for each proxy that has a separate
/// layer.
const MAX_REMEMBERED_NAMES: usize = 1024;
/// Maximum number of assembled resources whose versions are remembered.
const MAX_REMEMBERED_VERSIONS: usize = 1024;

/// The resources of one type in one scope at one epoch. An old snapshot needs memory only for the changes since.
#[derive(Clone, Debug)]
pub struct TypeSnapshot {
    scope: Arc<Scope>,
    stack: Arc<StackSnapshot>,
}

/// The content of the layers of a type, for all scopes that have these layers.
#[derive(Debug)]
pub(super) struct StackSnapshot {
    kind: ResourceType,
    layers: Arc<[Layer]>,
    /// Whether a layer has resources that a subscription to all leaves out.
    has_on_demand: bool,
    /// The table of each layer, in the order of the layers.
    pub(super) tables: Box<[Arc<LayerTable>]>,
    /// The aliases of each layer, for types that have aliases.
    aliases: Box<[Arc<Aliases>]>,
    /// The latest result of [`Self::changed_since`]: most streams held the same snapshot before.
    changed: Mutex<Option<ChangedNames>>,
    /// Versions of assembled resources by name: all streams with these layers need the same ones. They are computed outside of the
    /// lock.
    assembled: Mutex<HashMap<Text, Arc<OnceLock<Option<Version>>>>>,
}

/// Names that differ from an earlier snapshot.
type ChangedNames = (Weak<StackSnapshot>, Arc<[ChangedName]>);

/// A name whose resource may differ between an earlier and a later snapshot.
#[derive(Debug)]
pub(crate) struct ChangedName {
    pub(crate) name: Text,
    /// What both have under the name. All streams with the same two snapshots look it up once, see [`Comparison`].
    found: OnceLock<[FoundResource; 2]>,
}

impl ChangedName {
    /// These names in order, each once.
    fn all_of(mut names: Vec<Text>) -> Arc<[Self]> {
        // They are some sequences that are in order.
        names.sort();
        names.dedup();
        names.into_iter().map(|name| Self { name, found: OnceLock::new() }).collect()
    }
}

/// What a stack of layers has under a name, for all its scopes.
#[derive(Clone, Copy, Debug)]
enum FoundResource {
    Absent,
    /// All scopes have this version. If all have a row of a table, this is its position.
    Version(Version, Option<RowPosition>),
    /// The version depends on the scope's values of slots.
    ByScope,
}

/// Position of a row in a stack: table, chunk, row.
type RowPosition = (usize, usize, usize);

impl StackSnapshot {
    pub(super) fn new(
        kind: ResourceType,
        layers: Arc<[Layer]>,
        tables: Box<[Arc<LayerTable>]>,
        aliases: Box<[Arc<Aliases>]>,
    ) -> Self {
        let has_on_demand = layers.iter().any(Layer::is_on_demand);
        let (changed, assembled) = Default::default();
        Self { kind, layers, has_on_demand, tables, aliases, changed, assembled }
    }

    /// The snapshot of a scope without layers of the type.
    pub(super) fn empty(kind: ResourceType) -> Self {
        Self::new(kind, Arc::default(), Box::default(), Box::default())
    }

    fn is_same(&self, other: &Self) -> bool {
        self.tables.len() == other.tables.len() && self.tables.iter().zip(&other.tables).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// The version of the resource of this name that these layers assemble.
    fn assembled_version(&self, name: &Text, layers: &[&LayerSegments]) -> Option<Version> {
        let remembered = {
            let mut known = lock(&self.assembled);
            if known.len() >= MAX_REMEMBERED_VERSIONS && !known.contains_key(name) {
                known.clear();
            }
            known.entry(name.clone()).or_default().clone()
        };
        *remembered.get_or_init(|| Assembly::new(self.kind, layers).version())
    }

    /// Names that differ from an earlier snapshot of the same layers, in order.
    fn changed_since(&self, old: &Arc<Self>) -> Arc<[ChangedName]> {
        let mut changed = lock(&self.changed);
        match &*changed {
            Some((from, names)) if std::ptr::eq(from.as_ptr(), Arc::as_ptr(old)) => names.clone(),
            _ => {
                let mut names = Vec::new();
                self.tables.iter().zip(&old.tables).for_each(|(new, old)| new.differing(old, &mut names));
                let names = ChangedName::all_of(names);
                *changed = (names.len() <= MAX_REMEMBERED_NAMES).then(|| (Arc::downgrade(old), names.clone()));
                names
            }
        }
    }

    fn resolve(&self, name: &str) -> NameResolution<'_> {
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
enum NameResolution<'a> {
    Absent,
    /// With the position of its row, if that is the same for all scopes.
    Whole(&'a Text, &'a WholeResource, Option<RowPosition>),
    Assembled(&'a Text, Vec<&'a LayerSegments>),
}

impl NameResolution<'_> {
    fn row(&self) -> Option<RowPosition> {
        match self {
            Self::Whole(_, _, row) => *row,
            Self::Absent | Self::Assembled(..) => None,
        }
    }
}

impl TypeSnapshot {
    pub(super) fn new(scope: Arc<Scope>, stack: Arc<StackSnapshot>) -> Self {
        Self { scope, stack }
    }

    /// Whether both certainly have the same content.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_of_scope(other) && (Arc::ptr_eq(&self.stack, &other.stack) || self.stack.is_same(&other.stack))
    }

    /// The version of the resource with this name, if the scope has one.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<Version> {
        match self.stack.resolve(name) {
            NameResolution::Absent => None,
            NameResolution::Whole(_, whole, _) => whole.version_for(&self.scope),
            NameResolution::Assembled(name, layers) => self.stack.assembled_version(name, &layers),
        }
    }

    /// The version of a resource that was looked up in the layers of the scope.
    fn version_found(&self, name: &str, found: FoundResource) -> Option<Version> {
        match found {
            FoundResource::Absent => None,
            FoundResource::Version(version, _) => Some(version),
            FoundResource::ByScope => self.version(name),
        }
    }

    /// Whether there are resources that a subscription to all leaves out.
    pub(crate) fn has_on_demand(&self) -> bool {
        self.stack.has_on_demand
    }

    /// Whether the resource with this name is one that a subscription to all leaves out.
    pub(crate) fn is_on_demand(&self, name: &str) -> bool {
        self.has_on_demand() && {
            let mut layers = self.stack.layers.iter().zip(&self.stack.tables);
            layers.find(|(_, table)| table.get(name).is_some()).is_some_and(|(layer, _)| layer.is_on_demand())
        }
    }

    /// The resource with this name, if the scope has one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ResolvedResource> {
        match self.stack.resolve(name) {
            NameResolution::Absent => None,
            NameResolution::Whole(name, whole, _) => {
                let version = whole.version_for(&self.scope)?;
                Some(ResolvedResource::new(name, version, vec![whole.bytes_for(&self.scope)?]))
            }
            NameResolution::Assembled(name, layers) => {
                let assembly = Assembly::new(self.stack.kind, &layers);
                Some(ResolvedResource::new(name, assembly.version()?, assembly.chunks()))
            }
        }
    }

    /// The resources that a name refers to: the resource of this name, those with this alias, and those that are part of them.
    pub(crate) fn known_as(&self, alias: &str) -> BTreeSet<Text> {
        let with_alias = |alias: &str| {
            let named = |aliases| named(aliases, alias).cloned().collect::<Vec<_>>();
            self.stack.aliases.iter().map(AsRef::as_ref).flat_map(named).collect::<Vec<_>>()
        };
        let called = self.version(alias).map(|_| Text::from(alias));
        let names: BTreeSet<Text> = with_alias(alias).into_iter().chain(called).collect();
        let parts: Vec<Text> = names.iter().flat_map(|name| with_alias(name)).collect();
        names.into_iter().chain(parts).collect()
    }

    /// The aliases of the resource of this name.
    pub(crate) fn aliases_of(&self, name: &str) -> Option<ResourceAliases> {
        self.find(name).map(|resource| ResourceAliases::of(self.stack.kind, &resource.bytes()))
    }

    /// The node of the client; empty if workloads of the node are not sent to it.
    pub(crate) fn own_node(&self) -> &str {
        &self.scope.node
    }

    /// The resources on the client's node.
    pub(crate) fn on_own_node(&self) -> BTreeSet<Text> {
        let node = Some(on_node(self.own_node())).filter(|_| !self.own_node().is_empty());
        node.map(|node| self.stack.aliases.iter().flat_map(|aliases| named(aliases, &node)).cloned().collect())
            .unwrap_or_default()
    }

    /// All names that the scope sees, in order.
    #[must_use]
    pub fn names(&self) -> BTreeSet<Text> {
        let named: BTreeSet<&Text> =
            self.stack.tables.iter().flat_map(|table| table.iter().map(|(name, _)| name)).collect();
        named.into_iter().filter(|name| self.version(name).is_some()).cloned().collect()
    }

    /// The names that the scope sees of the form `PREFIX/NAME` without a further slash, in order.
    pub(crate) fn names_below(&self, prefix: &str) -> BTreeSet<Text> {
        self.each_below(prefix).cloned().collect()
    }

    /// Whether the scope sees names of this form.
    pub(crate) fn has_below(&self, prefix: &str) -> bool {
        self.each_below(prefix).next().is_some()
    }

    /// The names of this form that the scope sees, of each layer in order.
    fn each_below(&self, prefix: &str) -> impl Iterator<Item = &Text> {
        let (start, end) = (format!("{prefix}/"), prefix.len());
        let in_tables = self.stack.tables.iter().flat_map(move |table| {
            let start = start.clone();
            table.from(&start).map(|(name, _)| name).take_while(move |name| name.starts_with(&start))
        });
        in_tables.filter(move |name| name.rfind('/') == Some(end) && self.version(name).is_some())
    }

    /// Whether both are of the same scope.
    pub(crate) fn is_of_scope(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.scope, &other.scope)
    }

    /// Names whose resource may differ between an earlier snapshot and this one, in order.
    pub(crate) fn changed_since(&self, old: &Self) -> Arc<[ChangedName]> {
        if self.is_of_scope(old) {
            return self.stack.changed_since(&old.stack);
        }
        ChangedName::all_of(self.changed_with_scope(old))
    }

    /// The same for another scope, not in order: layers may be added, removed or reordered.
    fn changed_with_scope(&self, old: &Self) -> Vec<Text> {
        let (new, old_scope, old) = (&*self.stack, &old.scope, &*old.stack);
        let mut names = Vec::new();
        let mut all = |table: &LayerTable| names.extend(table.iter().map(|(name, _)| name.clone()));
        let find = |layer: &Layer| old.layers.iter().position(|other| other == layer);
        let common: Vec<(usize, usize)> =
            new.layers.iter().enumerate().filter_map(|(at, layer)| Some((at, find(layer)?))).collect();
        let in_order = common.windows(2).all(|pair| pair[0].1 < pair[1].1);
        // If layers are reordered or the slots have other values, any resource may differ.
        if !in_order || self.scope.slots != old_scope.slots {
            new.tables.iter().chain(&old.tables).for_each(|table| all(table));
            return names;
        }
        for (at, table) in new.tables.iter().enumerate() {
            if !common.iter().any(|(new, _)| *new == at) {
                all(table);
            }
        }
        for (at, table) in old.tables.iter().enumerate() {
            if !common.iter().any(|(_, old)| *old == at) {
                all(table);
            }
        }
        for (at, before) in common {
            if let (Some(new), Some(old)) = (new.tables.get(at), old.tables.get(before)) {
                new.differing(old, &mut names);
            }
        }
        names
    }

    /// Whether the names are so few that looking up each is cheaper than a walk of all layers.
    pub(crate) fn is_few(&self, want: &NameSet) -> bool {
        want.len() * 8 < self.stack.tables.iter().map(|table| table.len()).sum::<usize>()
    }

    /// All resources that the scope sees, or the wanted ones of them, in as few items as possible.
    pub(crate) fn listing(&self, want: Option<&NameSet>) -> Vec<ResponseItem> {
        match want {
            Some(want) if self.is_few(want) => self.pick(want.iter()),
            want => self.listing_by(|| wanted(want)),
        }
    }

    /// The resources of these names, which are in order, if the scope sees them. Many names of one chunk become ranges, so that
    /// a change of thousands of resources is encoded once for all clients.
    pub(crate) fn pick<'a>(&self, names: impl Iterator<Item = &'a Text>) -> Vec<ResponseItem> {
        let mut ordered = OrderedLookup::new(&self.stack);
        self.pick_rows(names.map(|name| (name, ordered.resolve(name).row())))
    }

    /// [`Self::pick`] of names that changed between an earlier snapshot and this one, and were compared.
    pub(crate) fn pick_changed<'a>(&self, changed: impl Iterator<Item = &'a ChangedName>) -> Vec<ResponseItem> {
        let row = |[_, after]: &[FoundResource; 2]| match after {
            FoundResource::Version(_, row) => *row,
            FoundResource::Absent | FoundResource::ByScope => None,
        };
        self.pick_rows(changed.map(|changed| (&changed.name, changed.found.get().and_then(row))))
    }

    fn pick_rows<'a>(&self, names: impl Iterator<Item = (&'a Text, Option<RowPosition>)>) -> Vec<ResponseItem> {
        let mut items = Vec::new();
        let mut picked: BTreeMap<(usize, usize), Vec<Range<usize>>> = BTreeMap::new();
        for (name, row) in names {
            let Some((table, chunk, row)) = row else {
                items.extend(self.find(name).map(ResponseItem::Single));
                continue;
            };
            let ranges = picked.entry((table, chunk)).or_default();
            match ranges.last_mut() {
                Some(last) if last.end == row => last.end += 1,
                _ => ranges.push(row..row + 1),
            }
        }
        for ((table, chunk), ranges) in picked {
            ResponseItem::push_ranges(&self.stack.tables[table].chunks()[chunk], ranges, &mut items);
        }
        items
    }

    /// All resources that the scope sees and the filter accepts, in as few items as possible.
    pub(crate) fn listing_by<'a>(&self, want: impl Fn() -> NameFilter<'a>) -> Vec<ResponseItem> {
        let mut items = Vec::new();
        self.walk(want, |part| match part {
            WalkStep::Range(chunk, rows) => items.push(ResponseItem::Range { chunk: chunk.clone(), rows }),
            WalkStep::Name(name) => items.extend(self.find(name).map(ResponseItem::Single)),
        });
        items
    }

    /// The number of resources in [`Self::listing`], and the digest of their names and versions.
    pub(crate) fn digest(&self, want: Option<&NameSet>) -> (usize, Digest) {
        let mut sum = (0, Digest::default());
        match want {
            Some(want) if self.is_few(want) => want.iter().for_each(|name| self.add(name, &mut sum)),
            want => self.walk(
                || wanted(want),
                |part| match part {
                    WalkStep::Range(chunk, rows) => {
                        sum.0 += rows.len();
                        sum.1.join(digest_of_rows(chunk, rows));
                    }
                    WalkStep::Name(name) => self.add(name, &mut sum),
                },
            ),
        }
        sum
    }

    fn add(&self, name: &Text, (count, digest): &mut (usize, Digest)) {
        if let Some(version) = self.version(name) {
            *count += 1;
            digest.add(name.as_bytes(), version);
        }
    }

    /// Visits all resources that the scope sees and the filter accepts.
    fn walk<'a>(&self, want: impl Fn() -> NameFilter<'a>, mut take: impl FnMut(WalkStep<'_>)) {
        for (layer, table) in self.stack.tables.iter().enumerate() {
            let above = self.stack.tables.get(..layer).unwrap_or_default();
            let shadowed: BTreeSet<(usize, usize)> =
                above.iter().flat_map(|upper| upper.iter()).filter_map(|(name, _)| table.position(name)).collect();
            let mut shadowed = shadowed.into_iter().peekable();
            let mut want = want();
            for (at, chunk) in table.chunks().iter().enumerate() {
                let mut range: Option<Range<usize>> = None;
                for (row, (name, entry)) in chunk.rows().iter().enumerate() {
                    let hidden_by_above = shadowed.next_if_eq(&(at, row)).is_some();
                    let wanted = want(name);
                    let shared = entry.shared().is_some();
                    if wanted && shared && !hidden_by_above {
                        range.get_or_insert(row..row).end = row + 1;
                        continue;
                    }
                    if let Some(rows) = range.take() {
                        take(WalkStep::Range(chunk, rows));
                    }
                    if wanted && !hidden_by_above {
                        take(WalkStep::Name(name));
                    }
                }
                if let Some(rows) = range.take() {
                    take(WalkStep::Range(chunk, rows));
                }
            }
        }
    }
}

/// Compares what two snapshots have under the names that changed between them, in order.
pub(crate) struct Comparison<'v> {
    before: &'v TypeSnapshot,
    after: &'v TypeSnapshot,
    lookups: [OrderedLookup<'v>; 2],
}

impl<'v> Comparison<'v> {
    /// Of an earlier and a later snapshot.
    pub(crate) fn new(before: &'v TypeSnapshot, after: &'v TypeSnapshot) -> Self {
        Self { before, after, lookups: [before, after].map(|view| OrderedLookup::new(&view.stack)) }
    }

    /// The versions in both, as far as their scopes have the resource.
    pub(crate) fn versions(&mut self, changed: &ChangedName) -> [Option<Version>; 2] {
        let name = &changed.name;
        let [before, after] = changed.found.get_or_init(|| self.lookups.each_mut().map(|lookup| lookup.find(name)));
        [self.before.version_found(name, *before), self.after.version_found(name, *after)]
    }
}

/// Looks up names in order, which takes fewer comparisons than a search for each.
struct OrderedLookup<'v> {
    stack: &'v StackSnapshot,
    /// Of each table, where the last search ended; empty before the first one.
    positions: Vec<Option<(usize, usize)>>,
}

impl<'v> OrderedLookup<'v> {
    fn new(stack: &'v StackSnapshot) -> Self {
        Self { stack, positions: Vec::new() }
    }

    fn resolve(&mut self, name: &str) -> NameResolution<'v> {
        let Self { stack, positions } = self;
        positions.resize(stack.tables.len(), None);
        stack.resolve_with(|at, table| table.next_position(name, positions.get_mut(at)?))
    }

    fn find(&mut self, name: &str) -> FoundResource {
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

/// Accepts or rejects a name. A new filter is created for each layer, and called in the order of names.
pub(crate) type NameFilter<'a> = Box<dyn FnMut(&Text) -> bool + 'a>;

fn wanted(want: Option<&NameSet>) -> NameFilter<'_> {
    let Some(want) = want else { return Box::new(|_| true) };
    let mut want = want.iter().peekable();
    Box::new(move |name| {
        while want.next_if(|have| *have < name).is_some() {}
        want.next_if(|have| *have == name).is_some()
    })
}

/// A step of the walk: rows that are the same for all scopes that see their layer, or a name to resolve.
enum WalkStep<'v> {
    Range(&'v Arc<Chunk<LayerEntry>>, Range<usize>),
    Name(&'v Text),
}
