//! The resources of one type in one scope at one epoch.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use sluice_model::{Layer, Scope, Text};

use super::aliases::{ResourceAliases, named, on_node};
use super::assembly::Assembly;
use super::entry::LayerEntry;
use super::layer_table::LayerTable;
use super::response_item::{PickedResources, ResolvedResource, ResponseItem, RowPosition, digest_of_rows};
use super::stack_snapshot::{ChangedName, ChangedNames, FoundResource, NameResolution, OrderedLookup, StackSnapshot};
use crate::chunked_map::Chunk;
use crate::name_set::NameSet;
use crate::version::{Digest, Version};

/// The resources of one type in one scope at one epoch. An old snapshot needs memory only for the changes since.
#[derive(Clone, Debug)]
pub struct TypeSnapshot {
    scope: Arc<Scope>,
    stack: Arc<StackSnapshot>,
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
        self.resource(self.stack.resolve(name))
    }

    fn resource(&self, resolution: NameResolution<'_>) -> Option<ResolvedResource> {
        match resolution {
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

    /// Names whose resource may differ between an earlier snapshot and this one.
    pub(crate) fn changed_since(&self, old: &Self) -> Arc<ChangedNames> {
        if self.is_of_scope(old) {
            return self.stack.changed_since(&old.stack);
        }
        Arc::new(ChangedNames::new(self.changed_with_scope(old)))
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
        self.pick_existing(names, |_| {})
    }

    /// [`Self::pick`] that passes on the names without a resource.
    pub(crate) fn pick_existing<'a>(
        &self,
        names: impl Iterator<Item = &'a Text>,
        mut absent: impl FnMut(&'a Text),
    ) -> Vec<ResponseItem> {
        let (mut ordered, mut picked) = (OrderedLookup::new(&self.stack), PickedResources::default());
        for name in names {
            let resolution = ordered.resolve(name);
            match resolution.row() {
                Some(row) => picked.add_row(row),
                None => match self.resource(resolution) {
                    Some(resource) => picked.add(resource),
                    None => absent(name),
                },
            }
        }
        picked.into_items(&self.stack.tables)
    }

    /// [`Self::pick`] of names that were compared with an earlier snapshot.
    pub(crate) fn pick_compared(&self, names: &[ComparedName<'_>]) -> Vec<ResponseItem> {
        let mut picked = PickedResources::default();
        for compared in names {
            match compared.row {
                Some(row) => picked.add_row(row),
                None => self.find(compared.name).into_iter().for_each(|resource| picked.add(resource)),
            }
        }
        picked.into_items(&self.stack.tables)
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
    pub(crate) fn compare<'c>(&mut self, changed: ChangedName<'c>) -> ComparedName<'c> {
        let name = changed.name;
        let mut find = || self.lookups.each_mut().map(|lookup| lookup.find(name));
        let [before, after] = match changed.found {
            Some(found) => *found.get_or_init(find),
            None => find(),
        };
        let row = match after {
            FoundResource::Version(_, row) => row,
            FoundResource::Absent | FoundResource::ByScope => None,
        };
        let (before, after) = (self.before.version_found(name, before), self.after.version_found(name, after));
        ComparedName { name, before, after, row }
    }
}

/// A name with its versions in two snapshots.
pub(crate) struct ComparedName<'c> {
    pub(crate) name: &'c Text,
    pub(crate) before: Option<Version>,
    pub(crate) after: Option<Version>,
    /// Its row in the later snapshot, if all scopes with these layers have it.
    row: Option<RowPosition>,
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
