//! Typed collections: at most one value a key. A thin face on an erased core.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;

use crate::derive::{Context, Deps, derive};
use crate::flow::{Core, Feedstock, NodeId};
use crate::gather;
use crate::index::Index;
use crate::network::Stream;
use crate::output::{Published, Slot};
use crate::spines::{Delta, Reducer, Row};
use crate::transform::Owners;
use crate::value::{Dyn, Key, Pair, Types, Value};
use crate::why::Provenance;

/// A keyed set of values, kept up to date: an input, or derived from others by pure closures. Cloning is cheap and
/// shares everything. Closures must be pure functions of their arguments: they run again for old values too, and a
/// result that depends on anything else cannot be retracted.
pub struct Collection<'s, K, V> {
    pub(crate) core: Rc<Core>,
    types: Types<(&'s (), K, V)>,
}

impl<K, V> Clone for Collection<'_, K, V> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), types: PhantomData }
    }
}

impl<'s, K, V> AsRef<Collection<'s, K, V>> for Collection<'s, K, V> {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Names a collection of an earlier dataflow, for [`DataflowBuilder::import`](crate::DataflowBuilder::import).
pub struct Export<K, V> {
    pub(crate) core: Rc<Core>,
    types: Types<(K, V)>,
}

impl<K, V> Clone for Export<K, V> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), types: PhantomData }
    }
}

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    pub(crate) fn of(core: Rc<Core>) -> Self {
        Self { core, types: PhantomData }
    }

    /// Its name, unique in the engine.
    #[must_use]
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// Attaches a fact for the graph listing and the dump, such as the kind of object it holds.
    #[must_use]
    pub fn with_metadata(self, key: &str, value: &str) -> Self {
        self.core.flow.build.nodes.borrow_mut()[self.core.id].metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    fn expand<K2: Key, V2: Value>(
        &self,
        name: &str,
        kind: &'static str,
        provenance: Provenance,
        expand: impl Fn(&Dyn, &Dyn, &mut Vec<Row>) + 'static,
    ) -> Collection<'s, K2, V2> {
        let core = &self.core;
        let parents = vec![core.id];
        let input = |_: &_| (core.stream(), Feedstock::Parent);
        Collection::of(Core::expand(&core.flow, (name, kind), parents, provenance, Rc::new(expand), input))
    }

    /// The same keys with other values.
    pub fn map<V2: Value>(&self, name: &str, f: impl Fn(&K, &V) -> V2 + 'static) -> Collection<'s, K, V2> {
        self.expand(name, "map", Provenance::SameKey, move |key, value, out| {
            out.push((key.clone(), Dyn::new(f(key.get(), value.get()))));
        })
    }

    /// The records that satisfy `f`.
    pub fn filter(&self, name: &str, f: impl Fn(&K, &V) -> bool + 'static) -> Self {
        self.expand(name, "filter", Provenance::SameKey, move |key, value, out| {
            if f(key.get(), value.get()) {
                out.push((key.clone(), value.clone()));
            }
        })
    }

    /// The same keys with other values, or without.
    pub fn filter_map<V2: Value>(
        &self,
        name: &str,
        f: impl Fn(&K, &V) -> Option<V2> + 'static,
    ) -> Collection<'s, K, V2> {
        self.expand(name, "filter_map", Provenance::SameKey, move |key, value, out| {
            out.extend(f(key.get(), value.get()).map(|made| (key.clone(), Dyn::new(made))));
        })
    }

    /// Any number of records for each. The new keys must be unique over *all* records: make the parent's key a part of
    /// them. Should two records claim a key, the smaller value wins and the conflict shows in the metrics.
    pub fn flat_map<K2: Key, V2: Value, I: IntoIterator<Item = (K2, V2)>>(
        &self,
        name: &str,
        f: impl Fn(&K, &V) -> I + 'static,
    ) -> Collection<'s, K2, V2> {
        self.expand(name, "flat_map", Provenance::Renamed(Owners::default()), move |key, value, out| {
            out.extend(f(key.get(), value.get()).into_iter().map(|(key, value)| (Dyn::new(key), Dyn::new(value))));
            out.sort_unstable();
            out.dedup();
        })
    }

    /// The keys both have, with a value made of both.
    pub fn join<V2: Value, V3: Value>(
        &self,
        name: &str,
        other: &Collection<'s, K, V2>,
        f: impl Fn(&K, &V, &V2) -> Option<V3> + 'static,
    ) -> Collection<'s, K, V3> {
        let expand = move |key: &Dyn, value: &Dyn, out: &mut Vec<Row>| {
            let Some(Pair(a, b)) = value.as_pair() else { return };
            out.extend(f(key.get(), a.get(), b.get()).map(|made| (key.clone(), Dyn::new(made))));
        };
        let sides = (&self.core, &other.core);
        Collection::of(Core::joined(sides, (name, "join"), Provenance::SameKey, Rc::new(expand), pair_values))
    }

    /// The keys of this collection, with a value made of both, `None` where `other` lacks the key.
    pub fn left_join<V2: Value, V3: Value>(
        &self,
        name: &str,
        other: &Collection<'s, K, V2>,
        f: impl Fn(&K, &V, Option<&V2>) -> Option<V3> + 'static,
    ) -> Collection<'s, K, V3> {
        let rows = self.core.stream().and(tag(&other.core, 0));
        let reducer: Reducer = Rc::new(move |key: &Dyn, rows: &[(&Dyn, isize)]| {
            let (left, right) = split(rows);
            let right = right.iter().map(|pair| &pair.1).min_by(|a, b| a.by_content(b));
            f(key.get(), left?.get(), right.map(Dyn::get)).map(Dyn::new)
        });
        let parents = vec![self.core.id, other.core.id];
        Collection::of(reduced(&self.core, (name, "left_join"), parents, Provenance::SameKey, rows, &reducer))
    }

    /// An index: for each record any number of (index key, row). Rows keep the source key, so equal rows stay apart.
    pub fn index<I: Key, R: Value, Rows: IntoIterator<Item = (I, R)>>(
        &self,
        name: &str,
        f: impl Fn(&K, &V) -> Rows + 'static,
    ) -> Index<'s, I, K, R> {
        let core = &self.core;
        let expand = move |key: &Dyn, value: &Dyn, out: &mut Vec<Row>| {
            let rows = f(key.get(), value.get()).into_iter();
            out.extend(rows.map(|(index, row)| (Dyn::new(index), Dyn::pair(key, &Dyn::new(row)))));
            out.sort_unstable();
            out.dedup();
        };
        let input = |_: &_| (core.stream(), Feedstock::Parent);
        Index::of(Core::expand(
            &core.flow,
            (name, "index"),
            vec![core.id],
            Provenance::IndexRows,
            Rc::new(expand),
            input,
        ))
    }

    /// The keys of this collection, with a value made of its own and all rows the index has for the key, sorted by
    /// source key. The closure sees all rows of a key each time one changes: no keys with very many rows.
    pub fn join_group<K2: Key, R: Value, V3: Value>(
        &self,
        name: &str,
        index: &Index<'s, K, K2, R>,
        f: impl Fn(&K, &V, &[(&K2, &R)]) -> Option<V3> + 'static,
    ) -> Collection<'s, K, V3> {
        let rows = self.core.stream().and(index.core.stream());
        let reducer: Reducer = Rc::new(move |key: &Dyn, rows: &[(&Dyn, isize)]| {
            let (left, pairs) = split(rows);
            let group = crate::index::typed_group(pairs);
            f(key.get(), left?.get(), &group).map(Dyn::new)
        });
        let parents = vec![self.core.id, index.core.id];
        Collection::of(reduced(&self.core, (name, "join_group"), parents, Provenance::Grouped, rows, &reducer))
    }

    /// The keys any of them has; where several have it, the first in order (this, then `others`) wins.
    pub fn union<C: AsRef<Self>>(&self, name: &str, others: &[C]) -> Self {
        self.merged(name, "union", others, |_, values: &[&Dyn]| values.first().map(|value| (*value).clone()))
    }

    /// The keys any of them has, with a value made of all theirs, in order (this, then `others`).
    pub fn union_merge<V2: Value, C: AsRef<Self>>(
        &self,
        name: &str,
        others: &[C],
        f: impl Fn(&K, &[&V]) -> Option<V2> + 'static,
    ) -> Collection<'s, K, V2> {
        self.merged(name, "union_merge", others, move |key, values| {
            let values: Vec<&V> = values.iter().map(|value| value.get()).collect();
            f(key.get(), &values).map(Dyn::new)
        })
    }

    fn merged<V2: Value, C: AsRef<Self>>(
        &self,
        name: &str,
        kind: &'static str,
        others: &[C],
        pick: impl Fn(&Dyn, &[&Dyn]) -> Option<Dyn> + 'static,
    ) -> Collection<'s, K, V2> {
        let others = others.iter().map(|other| &other.as_ref().core);
        let parents: Vec<&Rc<Core>> = std::iter::once(&self.core).chain(others).collect();
        Collection::of(gather::merged((name, kind), &parents, Box::new(pick)))
    }

    /// One value a record, by a closure that may look other collections up. What it reads is recorded while it runs,
    /// and it runs again for a record when the record or anything it read for it changes.
    ///
    /// `setup` names the dependencies and returns the closure.
    pub fn derive<V2: Value, F>(&self, name: &str, setup: impl FnOnce(&mut Deps<'s>) -> F) -> Collection<'s, K, V2>
    where
        F: Fn(&Context, &K, &V) -> Option<V2> + 'static,
    {
        Collection::of(derive(&self.core, name, false, |deps| {
            let f = setup(deps);
            Box::new(move |cx, key, value, out| {
                out.extend(f(cx, key.get(), value.get()).map(|made| (key.clone(), Dyn::new(made))));
            })
        }))
    }

    /// As [`Self::derive`], with any number of records for each; keys as for [`Self::flat_map`].
    pub fn derive_many<K2: Key, V2: Value, F>(
        &self,
        name: &str,
        setup: impl FnOnce(&mut Deps<'s>) -> F,
    ) -> Collection<'s, K2, V2>
    where
        F: Fn(&Context, &K, &V) -> Vec<(K2, V2)> + 'static,
    {
        Collection::of(derive(&self.core, name, true, |deps| {
            let f = setup(deps);
            Box::new(move |cx, key, value, out| {
                let made = f(cx, key.get(), value.get()).into_iter();
                out.extend(made.map(|(key, value)| (Dyn::new(key), Dyn::new(value))));
            })
        }))
    }

    /// Lets later dataflows import it; they see each change in the epoch that made it.
    #[must_use]
    pub fn export(&self) -> Export<K, V> {
        Export { core: self.core.clone(), types: PhantomData }
    }

    /// Makes it readable from outside: in snapshots and feeds.
    #[must_use]
    pub fn publish(&self) -> Published<K, V> {
        let core = &self.core;
        let build = &core.flow.build;
        let known = build.nodes.borrow()[core.id].published;
        let slot = known.unwrap_or_else(|| {
            let buffer = Rc::new(RefCell::new(Vec::new()));
            let mut slots = build.slots.borrow_mut();
            slots.push(Slot::new(core.id, buffer.clone()));
            build.nodes.borrow_mut()[core.id].published = Some(slots.len() - 1);
            core.flow.sink(core.stream(), Box::new(move |deltas| buffer.borrow_mut().append(deltas)));
            slots.len() - 1
        });
        Published { slot, node: core.id, name: core.name().into(), types: PhantomData }
    }
}

fn pair_values(key: &Dyn, left: &Dyn, right: &Dyn) -> Row {
    (key.clone(), Dyn::pair(left, right))
}

/// A node whose values are made from all rows of a key.
pub(crate) fn reduced(
    of: &Core,
    (name, kind): (&str, &'static str),
    parents: Vec<NodeId>,
    provenance: Provenance,
    rows: Stream,
    reducer: &Reducer,
) -> Rc<Core> {
    let (id, gauge) = of.flow.node(name, kind, parents, provenance);
    let (logic, [grouped, made]) = of.flow.build.circuits.reduce(gauge.clone(), reducer);
    let core = of.flow.core(id, gauge, of.flow.operator(vec![rows], logic));
    core.arranged_at(&made);
    of.flow.build.nodes.borrow_mut()[id].grouped = Some(grouped);
    core
}

/// Marks the rows of a stream, to tell them apart among those of others under the same key.
fn tag(core: &Core, place: u32) -> Stream {
    let place = Dyn::new(place);
    let logic = move |_, deltas: &mut [Vec<Delta>], out: &mut Vec<Delta>| {
        out.extend(
            deltas[0].drain(..).map(|((key, value), time, diff)| ((key, Dyn::pair(&place, &value)), time, diff)),
        );
    };
    core.flow.operator(vec![core.stream()], Box::new(logic))
}

/// Parts the rows of a key into the plain one and the pairs. No user's value is a pair: the type is private.
fn split<'a>(rows: &[(&'a Dyn, isize)]) -> (Option<&'a Dyn>, Vec<&'a Pair>) {
    let mut left: Option<&Dyn> = None;
    let mut pairs = Vec::with_capacity(rows.len());
    for (row, _) in rows.iter().filter(|(_, count)| *count > 0) {
        match row.as_pair() {
            Some(pair) => pairs.push(pair),
            None if left.is_none_or(|first| row.by_content(first).is_lt()) => left = Some(row),
            None => {}
        }
    }
    (left, pairs)
}
