//! Indexes: the rows of a collection under other keys.

use std::marker::PhantomData;
use std::rc::Rc;

use crate::collection::{Collection, reduced};
use crate::flow::Core;
use crate::gather;
use crate::spines::{Reducer, Row};
use crate::transform::Owners;
use crate::value::{Dyn, Key, Pair, Types, Value};
use crate::why::Provenance;

/// Rows `R` of records `K`, found by `I`. One store serves every `derive` that looks into it.
pub struct Index<'s, I, K, R> {
    pub(crate) core: Rc<Core>,
    types: Types<(&'s (), I, K, R)>,
}

impl<I, K, R> Clone for Index<'_, I, K, R> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), types: PhantomData }
    }
}

impl<'s, I: Key, K: Key, R: Value> Index<'s, I, K, R> {
    pub(crate) fn of(core: Rc<Core>) -> Self {
        Self { core, types: PhantomData }
    }

    /// Its name, unique in the engine.
    #[must_use]
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// One value an index key, made of all its rows, sorted by source key. The closure sees all rows of a key each time
    /// one changes: no keys with very many rows.
    pub fn group<V2: Value>(
        &self,
        name: &str,
        f: impl Fn(&I, &[(&K, &R)]) -> Option<V2> + 'static,
    ) -> Collection<'s, I, V2> {
        let reducer: Reducer = Rc::new(move |key: &Dyn, rows: &[(&Dyn, isize)]| {
            let pairs = rows.iter().filter(|(_, n)| *n > 0).filter_map(|(row, _)| row.as_pair()).collect();
            let group = typed_group(pairs);
            if group.is_empty() { None } else { f(key.get(), &group).map(Dyn::new) }
        });
        let core = &self.core;
        Collection::of(reduced(core, (name, "group"), vec![core.id], Provenance::Grouped, core.stream(), &reducer))
    }

    /// Each row whose index key `other` has, with its value there. The new keys must be unique over all rows: make the
    /// source key a part of them.
    pub fn join<V2: Value, K3: Key, V3: Value>(
        &self,
        name: &str,
        other: &Collection<'s, I, V2>,
        f: impl Fn(&I, &K, &R, &V2) -> Option<(K3, V3)> + 'static,
    ) -> Collection<'s, K3, V3> {
        let expand = move |key: &Dyn, value: &Dyn, out: &mut Vec<Row>| {
            let (Some(Pair(index, source)), Some(Pair(row, found))) = (key.as_pair(), value.as_pair()) else { return };
            let made = f(index.get(), source.get(), row.get(), found.get());
            out.extend(made.map(|(key, value)| (Dyn::new(key), Dyn::new(value))));
        };
        let provenance = Provenance::JoinedRows(Owners::default());
        let sides = (&self.core, &other.core);
        Collection::of(Core::joined(sides, (name, "index_join"), provenance, Rc::new(expand), pair_row))
    }

    /// How many rows each index key has. A change costs the same however many those are.
    pub fn count(&self, name: &str) -> Collection<'s, I, u64> {
        self.tallied(name, "count", |count| Dyn::new(u64::try_from(count).unwrap_or(0)))
    }

    /// The index keys that have a row. A change costs the same however many there are.
    pub fn distinct(&self, name: &str) -> Collection<'s, I, ()> {
        let unit = Dyn::new(());
        self.tallied(name, "distinct", move |_| unit.clone())
    }

    fn tallied<V2: Value>(
        &self,
        name: &str,
        kind: &'static str,
        f: impl Fn(isize) -> Dyn + 'static,
    ) -> Collection<'s, I, V2> {
        Collection::of(gather::tallied((name, kind), &self.core, f))
    }
}

fn pair_row(index: &Dyn, row: &Dyn, found: &Dyn) -> Row {
    let Some(Pair(source, row)) = row.as_pair() else { return (index.clone(), row.clone()) };
    (Dyn::pair(index, source), Dyn::pair(row, found))
}

/// Rows of an index with their types, sorted by source key and row.
pub(crate) fn typed_group<K: Key, R: Value>(pairs: Vec<&Pair>) -> Vec<(&K, &R)> {
    let mut group: Vec<(&K, &R)> = pairs.into_iter().map(|Pair(key, row)| (key.get(), row.get())).collect();
    group.sort_unstable();
    group
}
