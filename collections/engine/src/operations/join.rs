//! Joins, by the join of differential dataflow.

use std::rc::Rc;

use crate::build::CollectionCore;
use crate::collection::{Collection, Index};
use crate::node::Provenance;
use crate::operators::record::KeyOwners;
use crate::update::Row;
use crate::value::{Erased, Key, Pair, Value};

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// The keys that both collections have, with a value made of both.
    pub fn join<V2: Value, V3: Value>(
        &self,
        name: &str,
        other: &Collection<'s, K, V2>,
        f: impl Fn(&K, &V, &V2) -> Option<V3> + 'static,
    ) -> Collection<'s, K, V3> {
        let expand = move |key: &Erased, value: &Erased, out: &mut Vec<Row>| {
            let Some(Pair(a, b)) = value.as_pair() else { return };
            out.extend(f(key.get(), a.get(), b.get()).map(|made| (key.clone(), Erased::new(made))));
        };
        let sides = (&self.core, &other.core);
        Collection::of(CollectionCore::joined(sides, (name, "join"), Provenance::SameKey, Rc::new(expand), pair_values))
    }
}

impl<'s, I: Key, K: Key, R: Value> Index<'s, I, K, R> {
    /// The rows whose index key is a key of `other`, each with the value there. The new keys must be unique over all
    /// rows: make the source key a part of them.
    pub fn join<V2: Value, K3: Key, V3: Value>(
        &self,
        name: &str,
        other: &Collection<'s, I, V2>,
        f: impl Fn(&I, &K, &R, &V2) -> Option<(K3, V3)> + 'static,
    ) -> Collection<'s, K3, V3> {
        let expand = move |key: &Erased, value: &Erased, out: &mut Vec<Row>| {
            let (Some(Pair(index, source)), Some(Pair(row, other))) = (key.as_pair(), value.as_pair()) else { return };
            let made = f(index.get(), source.get(), row.get(), other.get());
            out.extend(made.map(|(key, value)| (Erased::new(key), Erased::new(value))));
        };
        let provenance = Provenance::JoinedRows(KeyOwners::default());
        let sides = (&self.core, &other.core);
        Collection::of(CollectionCore::joined(sides, (name, "index_join"), provenance, Rc::new(expand), pair_row))
    }
}

fn pair_values(key: &Erased, left: &Erased, right: &Erased) -> Row {
    (key.clone(), Erased::pair(left, right))
}

fn pair_row(index: &Erased, row: &Erased, other: &Erased) -> Row {
    let Some(Pair(source, row)) = row.as_pair() else { return (index.clone(), row.clone()) };
    (Erased::pair(index, source), Erased::pair(row, other))
}
