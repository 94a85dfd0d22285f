//! What one scope sees of one type at one epoch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use sluice_model::{Layer, ResourceType, Scope, Text};

use super::aliases::{Aliases, Known, named, on_node};
use super::assembly::Assembly;
use super::entry::{Entry, Segments, Whole};
use super::table::Table;
use crate::xds::names::NameSet;
use crate::xds::run::Chunk;
use crate::xds::version::{Digest, Version};

/// What one scope sees of one type at one epoch. Keeping it costs what changed since.
#[derive(Clone, Debug)]
pub struct View {
    scope: Arc<Scope>,
    seen: Arc<Seen>,
}

/// What there is to see for all whose scopes have the same layers of a type.
#[derive(Debug)]
pub(super) struct Seen {
    kind: ResourceType,
    layers: Arc<[Layer]>,
    /// One a layer, in their order.
    pub(super) tables: Box<[Arc<Table>]>,
    /// Other names of what the tables have, for types that have any.
    aliases: Box<[Arc<Aliases>]>,
    /// What differs from what somebody saw before: most come from the same.
    changed: Mutex<Option<Changed>>,
}

/// Names that differ from what somebody saw before.
type Changed = (Weak<Seen>, Arc<BTreeSet<Text>>);

/// The most names that are remembered: there is a [`Seen`] for each proxy of types in which it has a layer of its own.
const REMEMBERED: usize = 1024;

impl Seen {
    pub(super) fn new(
        kind: ResourceType,
        layers: Arc<[Layer]>,
        tables: Box<[Arc<Table>]>,
        aliases: Box<[Arc<Aliases>]>,
    ) -> Self {
        Self { kind, layers, tables, aliases, changed: Mutex::default() }
    }

    /// Of a scope without layers of the type.
    pub(super) fn nothing(kind: ResourceType) -> Self {
        Self::new(kind, Arc::default(), Box::default(), Box::default())
    }

    fn is_same(&self, other: &Self) -> bool {
        self.tables.len() == other.tables.len() && self.tables.iter().zip(&other.tables).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Names that differ in what others of the same layers saw earlier, in order.
    fn changed_since(&self, old: &Arc<Self>) -> Arc<BTreeSet<Text>> {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        match &*changed {
            Some((from, names)) if std::ptr::eq(from.as_ptr(), Arc::as_ptr(old)) => names.clone(),
            _ => {
                let mut names = BTreeSet::new();
                self.tables.iter().zip(&old.tables).for_each(|(new, old)| new.differing(old, &mut names));
                let names = Arc::new(names);
                *changed = (names.len() <= REMEMBERED).then(|| (Arc::downgrade(old), names.clone()));
                names
            }
        }
    }
}

/// A resource as a scope sees it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name.
    pub name: Text,
    /// Its content version.
    pub version: Version,
    /// Other names it may have been asked for by; only said to a client that asks as it needs.
    pub aliases: Vec<Text>,
    pub(crate) pieces: Vec<Bytes>,
}

impl Found {
    /// One that is known by its name only.
    fn new(name: &Text, version: Version, pieces: Vec<Bytes>) -> Self {
        Self { name: name.clone(), version, aliases: Vec::new(), pieces }
    }

    /// Size of the encoded message.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// Whether the message has no field set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The encoded message in one piece.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self.pieces.as_slice() {
            [one] => one.clone(),
            pieces => pieces.concat().into(),
        }
    }
}

/// Resources to send: a stretch of a layer's chunk, shared with everyone who gets it, or one on its own.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Stretch { chunk: Arc<Chunk<Entry>>, rows: Range<usize> },
    One(Found),
}

impl Item {
    /// Number of resources.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Stretch { rows, .. } => rows.len(),
            Self::One(_) => 1,
        }
    }

    /// What the resources add to a digest of names and versions.
    pub(crate) fn digest(&self) -> Digest {
        match self {
            Self::Stretch { chunk, rows } => digest_of(chunk, rows.clone()),
            Self::One(found) => {
                let mut digest = Digest::default();
                digest.add(found.name.as_bytes(), found.version);
                digest
            }
        }
    }

    /// Names and versions of the resources.
    pub(crate) fn versions(&self) -> Vec<(&Text, Version)> {
        match self {
            Self::Stretch { chunk, rows } => chunk
                .rows()
                .get(rows.clone())
                .unwrap_or_default()
                .iter()
                .filter_map(|(name, entry)| entry.shared().map(|(version, _)| (name, version)))
                .collect(),
            Self::One(found) => vec![(&found.name, found.version)],
        }
    }
}

/// What rows of a chunk add to a digest of names and versions.
fn digest_of(chunk: &Chunk<Entry>, rows: Range<usize>) -> Digest {
    let of = |rows: &[(Text, Entry)]| {
        let mut digest = Digest::default();
        for (name, entry) in rows {
            if let Some((version, _)) = entry.shared() {
                digest.add(name.as_bytes(), version);
            }
        }
        digest
    };
    let all = chunk.rows();
    if rows.len() == all.len() { chunk.digest(of) } else { of(all.get(rows).unwrap_or_default()) }
}

/// The share of a chunk, one in so many, from which on all of it is encoded for the sake of some of its rows.
const SHARE: usize = 4;

/// Adds stretches of a chunk, or their resources one by one where they are too few of it.
fn pick_of(chunk: &Arc<Chunk<Entry>>, stretches: Vec<Range<usize>>, items: &mut Vec<Item>) {
    let count: usize = stretches.iter().map(ExactSizeIterator::len).sum();
    if count > 1 && count * SHARE >= chunk.rows().len() {
        items.extend(stretches.into_iter().map(|rows| Item::Stretch { chunk: chunk.clone(), rows }));
        return;
    }
    let one = |(name, entry): &(Text, Entry)| {
        let (version, bytes) = entry.shared()?;
        Some(Item::One(Found::new(name, version, vec![bytes.clone()])))
    };
    items.extend(stretches.into_iter().flat_map(|rows| &chunk.rows()[rows]).filter_map(one));
}

enum Resolved<'a> {
    Nothing,
    Whole(&'a Text, &'a Whole),
    Assembled(&'a Text, Vec<&'a Segments>),
}

impl View {
    pub(super) fn new(scope: Arc<Scope>, seen: Arc<Seen>) -> Self {
        Self { scope, seen }
    }

    /// Whether nothing can have changed between the two.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.is_of_scope(other) && (Arc::ptr_eq(&self.seen, &other.seen) || self.seen.is_same(&other.seen))
    }

    /// The version of the resource of that name, if the scope sees one.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<Version> {
        match self.resolve(name) {
            Resolved::Nothing => None,
            Resolved::Whole(_, whole) => whole.version_for(&self.scope),
            Resolved::Assembled(_, layers) => Assembly::new(self.seen.kind, &layers).version(),
        }
    }

    /// The resource of that name, if the scope sees one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Found> {
        match self.resolve(name) {
            Resolved::Nothing => None,
            Resolved::Whole(name, whole) => {
                let version = whole.version_for(&self.scope)?;
                Some(Found::new(name, version, vec![whole.bytes_for(&self.scope)?]))
            }
            Resolved::Assembled(name, layers) => {
                let assembly = Assembly::new(self.seen.kind, &layers);
                Some(Found::new(name, assembly.version()?, assembly.pieces()))
            }
        }
    }

    /// The resources that a name stands for: the one that is called so, those known by it, and what is part of them.
    pub(crate) fn known_as(&self, alias: &str) -> BTreeSet<Text> {
        let known = |alias: &str| {
            let named = |aliases| named(aliases, alias).cloned().collect::<Vec<_>>();
            self.seen.aliases.iter().map(AsRef::as_ref).flat_map(named).collect::<Vec<_>>()
        };
        let called = self.version(alias).map(|_| Text::from(alias));
        let found: BTreeSet<Text> = known(alias).into_iter().chain(called).collect();
        let parts: Vec<Text> = found.iter().flat_map(|name| known(name)).collect();
        found.into_iter().chain(parts).collect()
    }

    /// What the resource of that name is known by.
    pub(crate) fn known(&self, name: &str) -> Option<Known> {
        self.find(name).map(|found| Known::of(self.seen.kind, &found.bytes()))
    }

    /// The node of the client, if it is told what runs there.
    pub(crate) fn own_node(&self) -> &str {
        &self.scope.node
    }

    /// The resources on the client's node.
    pub(crate) fn on_own_node(&self) -> BTreeSet<Text> {
        let node = Some(on_node(self.own_node())).filter(|_| !self.own_node().is_empty());
        node.map(|node| self.seen.aliases.iter().flat_map(|aliases| named(aliases, &node)).cloned().collect())
            .unwrap_or_default()
    }

    /// Every name the scope sees, in order.
    #[must_use]
    pub fn names(&self) -> BTreeSet<Text> {
        let named: BTreeSet<&Text> =
            self.seen.tables.iter().flat_map(|table| table.iter().map(|(name, _)| name)).collect();
        named.into_iter().filter(|name| self.version(name).is_some()).cloned().collect()
    }

    /// Layers from the top as long as they leave something open.
    fn resolve(&self, name: &str) -> Resolved<'_> {
        let mut layers: Vec<&Segments> = Vec::new();
        let mut known: Option<&Text> = None;
        for (name, entry) in self.seen.tables.iter().filter_map(|table| table.get(name)) {
            known = known.or(Some(name));
            if let Some(segments) = &entry.segments {
                layers.push(segments);
            }
            match &entry.whole {
                None => {}
                Some(whole) => {
                    let own_part = layers.iter().any(|layer| layer.run.get("").is_some());
                    if own_part || matches!(whole, Whole::Hidden) {
                        break;
                    }
                    return Resolved::Whole(name, whole);
                }
            }
        }
        match known {
            Some(name) if !layers.is_empty() => Resolved::Assembled(name, layers),
            _ => Resolved::Nothing,
        }
    }

    /// Whether the same scope sees both.
    pub(crate) fn is_of_scope(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.scope, &other.scope)
    }

    /// Names whose resource may differ between the two views, in order.
    pub(crate) fn changed_since(&self, old: &Self) -> Arc<BTreeSet<Text>> {
        if self.is_of_scope(old) {
            return self.seen.changed_since(&old.seen);
        }
        Arc::new(self.changed_with_scope(old))
    }

    /// The same for another scope: layers may have come, gone, or changed places.
    fn changed_with_scope(&self, old: &Self) -> BTreeSet<Text> {
        let (new, old_scope, old) = (&*self.seen, &old.scope, &*old.seen);
        let mut names = BTreeSet::new();
        let mut all = |table: &Table| names.extend(table.iter().map(|(name, _)| name.clone()));
        let find = |layer: &Layer| old.layers.iter().position(|other| other == layer);
        let common: Vec<(usize, usize)> =
            new.layers.iter().enumerate().filter_map(|(at, layer)| Some((at, find(layer)?))).collect();
        let in_order = common.windows(2).all(|pair| pair[0].1 < pair[1].1);
        // If they changed places, or what fills templates is another, anything may differ.
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

    /// Whether that is so little of what the scope sees that it is best looked up name by name.
    pub(crate) fn is_few(&self, want: &NameSet) -> bool {
        want.len() * 8 < self.seen.tables.iter().map(|table| table.len()).sum::<usize>()
    }

    /// Everything the scope sees, or what of it is wanted, in as few stretches as possible.
    pub(crate) fn listing(&self, want: Option<&NameSet>) -> Vec<Item> {
        match want {
            Some(want) if self.is_few(want) => self.pick(want.iter()),
            want => self.listing_by(|| wanted(want)),
        }
    }

    /// The resources of these names, which are in order, as far as the scope sees them: in stretches where they are many
    /// of a chunk, so that a change of thousands is encoded once for all whom it concerns.
    pub(crate) fn pick<'a>(&self, names: impl Iterator<Item = &'a Text>) -> Vec<Item> {
        let mut items = Vec::new();
        let mut picked: BTreeMap<(usize, usize), Vec<Range<usize>>> = BTreeMap::new();
        for name in names {
            let Some((table, chunk, row)) = self.shared(name) else {
                items.extend(self.find(name).map(Item::One));
                continue;
            };
            let stretches = picked.entry((table, chunk)).or_default();
            match stretches.last_mut() {
                Some(last) if last.end == row => last.end += 1,
                _ => stretches.push(row..row + 1),
            }
        }
        for ((table, chunk), stretches) in picked {
            pick_of(&self.seen.tables[table].chunks()[chunk], stretches, &mut items);
        }
        items
    }

    /// Where the resource of that name is, if it is the same for all who see its layer: table, chunk, row.
    fn shared(&self, name: &str) -> Option<(usize, usize, usize)> {
        let mut tables = self.seen.tables.iter().enumerate();
        let (at, table, (chunk, row)) = tables.find_map(|(at, table)| Some((at, table, table.position(name)?)))?;
        let (_, entry) = table.chunks().get(chunk)?.rows().get(row)?;
        entry.shared().map(|_| (at, chunk, row))
    }

    /// Everything the scope sees that is wanted, in as few stretches as possible.
    pub(crate) fn listing_by<'a>(&self, want: impl Fn() -> Want<'a>) -> Vec<Item> {
        let mut items = Vec::new();
        self.walk(want, |part| match part {
            Part::Stretch(chunk, rows) => items.push(Item::Stretch { chunk: chunk.clone(), rows }),
            Part::Name(name) => items.extend(self.find(name).map(Item::One)),
        });
        items
    }

    /// How many resources [`Self::listing`] would give, and the digest of their names and versions.
    pub(crate) fn digest(&self, want: Option<&NameSet>) -> (usize, Digest) {
        let mut sum = (0, Digest::default());
        match want {
            Some(want) if self.is_few(want) => want.iter().for_each(|name| self.add(name, &mut sum)),
            want => self.walk(
                || wanted(want),
                |part| match part {
                    Part::Stretch(chunk, rows) => {
                        sum.0 += rows.len();
                        sum.1.join(digest_of(chunk, rows));
                    }
                    Part::Name(name) => self.add(name, &mut sum),
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

    /// Goes through everything the scope sees that is wanted.
    fn walk<'a>(&self, want: impl Fn() -> Want<'a>, mut take: impl FnMut(Part<'_>)) {
        for (layer, table) in self.seen.tables.iter().enumerate() {
            let above = self.seen.tables.get(..layer).unwrap_or_default();
            let shadowed: BTreeSet<(usize, usize)> =
                above.iter().flat_map(|upper| upper.iter()).filter_map(|(name, _)| table.position(name)).collect();
            let mut shadowed = shadowed.into_iter().peekable();
            let mut want = want();
            for (at, chunk) in table.chunks().iter().enumerate() {
                let mut stretch: Option<Range<usize>> = None;
                for (row, (name, entry)) in chunk.rows().iter().enumerate() {
                    let hidden_by_above = shadowed.next_if_eq(&(at, row)).is_some();
                    let wanted = want(name);
                    let shared = entry.shared().is_some();
                    if wanted && shared && !hidden_by_above {
                        stretch.get_or_insert(row..row).end = row + 1;
                        continue;
                    }
                    if let Some(rows) = stretch.take() {
                        take(Part::Stretch(chunk, rows));
                    }
                    if wanted && !hidden_by_above {
                        take(Part::Name(name));
                    }
                }
                if let Some(rows) = stretch.take() {
                    take(Part::Stretch(chunk, rows));
                }
            }
        }
    }
}

/// Says which names are wanted. It is made anew for each layer and asked in the order of names.
pub(crate) type Want<'a> = Box<dyn FnMut(&Text) -> bool + 'a>;

fn wanted(want: Option<&NameSet>) -> Want<'_> {
    let Some(want) = want else { return Box::new(|_| true) };
    let mut want = want.iter().peekable();
    Box::new(move |name| {
        while want.next_if(|have| *have < name).is_some() {}
        want.next_if(|have| *have == name).is_some()
    })
}

/// What is met while going through a view: rows that are the same for all who see their layer, or a name that is to be
/// resolved.
enum Part<'v> {
    Stretch(&'v Arc<Chunk<Entry>>, Range<usize>),
    Name(&'v Text),
}
