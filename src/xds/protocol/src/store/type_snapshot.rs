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
type ChangedNames = (Weak<StackSnapshot>, Arc<[Text]>);

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
    fn changed_since(&self, old: &Arc<Self>) -> Arc<[Text]> {
        let mut changed = lock(&self.changed);
        match &*changed {
            Some((from, names)) if std::ptr::eq(from.as_ptr(), Arc::as_ptr(old)) => names.clone(),
            _ => {
                let mut names = Vec::new();
                self.tables.iter().zip(&old.tables).for_each(|(new, old)| new.differing(old, &mut names));
                let names = in_order(names);
                *changed = (names.len() <= MAX_REMEMBERED_NAMES).then(|| (Arc::downgrade(old), names.clone()));
                names
            }
        }
    }
}

/// How a name resolves in the layers of a scope.
enum NameResolution<'a> {
    Absent,
    Whole(&'a Text, &'a WholeResource),
    Assembled(&'a Text, Vec<&'a LayerSegments>),
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
        self.version_of(self.resolve(name))
    }

    /// Looks up names in order.
    pub(crate) fn ordered(&self) -> OrderedLookup<'_> {
        OrderedLookup { view: self, positions: vec![None; self.stack.tables.len()] }
    }

    fn version_of(&self, resolution: NameResolution<'_>) -> Option<Version> {
        match resolution {
            NameResolution::Absent => None,
            NameResolution::Whole(_, whole) => whole.version_for(&self.scope),
            NameResolution::Assembled(name, layers) => self.stack.assembled_version(name, &layers),
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
        match self.resolve(name) {
            NameResolution::Absent => None,
            NameResolution::Whole(name, whole) => {
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
        let tables = self.stack.tables.iter().enumerate();
        for (name, entry) in tables.filter_map(|(at, table)| table.at(position(at, table)?)) {
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
                    return NameResolution::Whole(name, whole);
                }
            }
        }
        match stored_name {
            Some(name) if !layers.is_empty() => NameResolution::Assembled(name, layers),
            _ => NameResolution::Absent,
        }
    }

    /// Whether both are of the same scope.
    pub(crate) fn is_of_scope(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.scope, &other.scope)
    }

    /// Names whose resource may differ between an earlier snapshot and this one, in order.
    pub(crate) fn changed_since(&self, old: &Self) -> Arc<[Text]> {
        if self.is_of_scope(old) {
            return self.stack.changed_since(&old.stack);
        }
        in_order(self.changed_with_scope(old))
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
        let mut items = Vec::new();
        let mut picked: BTreeMap<(usize, usize), Vec<Range<usize>>> = BTreeMap::new();
        let mut ordered = self.ordered();
        for name in names {
            let Some((table, chunk, row)) = ordered.shared(name) else {
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

/// Looks up names in order, which takes fewer comparisons than a search for each.
pub(crate) struct OrderedLookup<'v> {
    view: &'v TypeSnapshot,
    /// Of each table, where the last search ended.
    positions: Vec<Option<(usize, usize)>>,
}

impl OrderedLookup<'_> {
    /// The snapshot.
    pub(crate) fn view(&self) -> &TypeSnapshot {
        self.view
    }

    /// The version of the resource with this name, if the scope has one.
    pub(crate) fn version(&mut self, name: &str) -> Option<Version> {
        let Self { view, positions } = self;
        let resolution = view.resolve_with(|at, table| table.next_position(name, positions.get_mut(at)?));
        view.version_of(resolution)
    }

    /// Position of the resource of this name (table, chunk, row), if it is the same for all scopes that see its layer.
    fn shared(&mut self, name: &str) -> Option<(usize, usize, usize)> {
        let mut tables = self.view.stack.tables.iter().zip(&mut self.positions).enumerate();
        let (at, table, found) =
            tables.find_map(|(at, (table, last))| Some((at, table, table.next_position(name, last)?)))?;
        table.at(found)?.1.shared().map(|_| (at, found.0, found.1))
    }
}

/// The names in order, each once.
fn in_order(mut names: Vec<Text>) -> Arc<[Text]> {
    // They are some sequences that are in order.
    names.sort();
    names.dedup();
    names.into()
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
