//! `map`, `filter`, `filter_map`, `flat_map` and `index`: one record at a time.

use std::rc::Rc;

use crate::collection::{Collection, Index};
use crate::node::Provenance;
use crate::operators::record::KeyOwners;
use crate::update::Row;
use crate::value::{Erased, Key, Value};

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    fn expand<K2: Key, V2: Value>(
        &self,
        name: &str,
        kind: &'static str,
        provenance: Provenance,
        expand: impl Fn(&Erased, &Erased, &mut Vec<Row>) + 'static,
    ) -> Collection<'s, K2, V2> {
        Collection::of(self.core.expanded((name, kind), provenance, Rc::new(expand)))
    }

    /// The same keys with other values.
    pub fn map<V2: Value>(&self, name: &str, f: impl Fn(&K, &V) -> V2 + 'static) -> Collection<'s, K, V2> {
        self.expand(name, "map", Provenance::SameKey, move |key, value, out| {
            out.push((key.clone(), Erased::new(f(key.get(), value.get()))));
        })
    }

    /// The records for which `f` is true.
    pub fn filter(&self, name: &str, f: impl Fn(&K, &V) -> bool + 'static) -> Self {
        self.expand(name, "filter", Provenance::SameKey, move |key, value, out| {
            if f(key.get(), value.get()) {
                out.push((key.clone(), value.clone()));
            }
        })
    }

    /// The keys for which `f` returns a value, with that value.
    pub fn filter_map<V2: Value>(
        &self,
        name: &str,
        f: impl Fn(&K, &V) -> Option<V2> + 'static,
    ) -> Collection<'s, K, V2> {
        self.expand(name, "filter_map", Provenance::SameKey, move |key, value, out| {
            out.extend(f(key.get(), value.get()).map(|made| (key.clone(), Erased::new(made))));
        })
    }

    /// Any number of records for each record. The new keys must be unique over *all* records: make the parent's key a
    /// part of them. If two records make the same key, the smaller value wins and the metrics count a conflict.
    pub fn flat_map<K2: Key, V2: Value, I: IntoIterator<Item = (K2, V2)>>(
        &self,
        name: &str,
        f: impl Fn(&K, &V) -> I + 'static,
    ) -> Collection<'s, K2, V2> {
        self.expand(name, "flat_map", Provenance::Renamed(KeyOwners::default()), move |key, value, out| {
            out.extend(
                f(key.get(), value.get()).into_iter().map(|(key, value)| (Erased::new(key), Erased::new(value))),
            );
            out.sort_unstable();
            out.dedup();
        })
    }

    /// An index: for each record any number of (index key, row). Rows keep the source key, so equal rows of several
    /// records stay separate.
    pub fn index<I: Key, R: Value, Rows: IntoIterator<Item = (I, R)>>(
        &self,
        name: &str,
        f: impl Fn(&K, &V) -> Rows + 'static,
    ) -> Index<'s, I, K, R> {
        let expand = move |key: &Erased, value: &Erased, out: &mut Vec<Row>| {
            let rows = f(key.get(), value.get()).into_iter();
            out.extend(rows.map(|(index, row)| (Erased::new(index), Erased::pair(key, &Erased::new(row)))));
            out.sort_unstable();
            out.dedup();
        };
        Index::of(self.core.expanded((name, "index"), Provenance::IndexRows, Rc::new(expand)))
    }
}
