//! `group` and `distinct`: one value per index key.

use std::rc::Rc;

use crate::collection::{Collection, Index};
use crate::node::Provenance;
use crate::operators::distinct::{RowCounts, distinct_logic};
use crate::spines::Reducer;
use crate::store::KeyedStoreRef;
use crate::value::{Erased, Key, Pair, Value};

impl<'s, I: Key, K: Key, R: Value> Index<'s, I, K, R> {
    /// One value per index key, made of all its rows, sorted by source key; by the reduce of differential dataflow. The
    /// closure reads all rows of a key each time one of them changes, so it is not for keys with very many rows.
    pub fn group<V2: Value>(
        &self,
        name: &str,
        f: impl Fn(&I, &[(&K, &R)]) -> Option<V2> + 'static,
    ) -> Collection<'s, I, V2> {
        let reducer: Reducer = Rc::new(move |key: &Erased, rows: &[(&Erased, isize)]| {
            let pairs = rows.iter().filter(|(_, count)| *count > 0).filter_map(|(row, _)| row.as_pair());
            let mut group: Vec<(&K, &R)> = pairs.map(|Pair(key, row)| (key.get(), row.get())).collect();
            group.sort_unstable();
            if group.is_empty() { None } else { f(key.get(), &group).map(Erased::new) }
        });
        let dataflow = &self.core.dataflow;
        let (id, gauges) = dataflow.add_node(name, "group", vec![self.core.id], Provenance::Grouped);
        let (logic, [grouped, values], state) = dataflow.build.differential.reduce(gauges.clone(), &reducer);
        dataflow.copied(state);
        let core = dataflow.core(id, gauges, dataflow.add_operator(vec![self.core.stream()], logic));
        core.set_arrangement(&values);
        dataflow.build.nodes.borrow_mut()[id].grouped = Some(grouped);
        Collection::of(core)
    }

    /// The rows of each index key, sorted by source key, as one value. Each change of a row copies all rows of its key, so
    /// it is not for keys with very many rows.
    pub fn collect(&self, name: &str) -> Collection<'s, I, Vec<(K, R)>> {
        self.group(name, |_, rows| Some(rows.iter().map(|(key, row)| ((*key).clone(), (*row).clone())).collect()))
    }

    /// The index keys that have a row. A change costs the same however many rows a key has.
    pub fn distinct(&self, name: &str) -> Collection<'s, I, ()> {
        let dataflow = &self.core.dataflow;
        let (id, gauges) = dataflow.add_node(name, "distinct", vec![self.core.id], Provenance::Grouped);
        let store = KeyedStoreRef::default();
        let counts = dataflow.copied(RowCounts::default());
        let logic = distinct_logic(counts, store.clone(), gauges.clone(), Erased::new(()));
        let stream = dataflow.add_operator(vec![self.core.stream()], logic);
        Collection::of(dataflow.core_with_store(id, gauges, stream, store))
    }
}
