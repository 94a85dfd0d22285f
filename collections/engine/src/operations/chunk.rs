//! `group_chunks`: values of chunks of neighbouring records.

use std::rc::Rc;

use crate::collection::Collection;
use crate::node::Provenance;
use crate::operators::chunk::{ChunkRule, ChunkStateRef, RecordPlace, chunk_logic};
use crate::store::KeyedStoreRef;
use crate::value::{Erased, Key, Value};

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// Groups the records, and makes one value per chunk of records with neighbouring positions in their group. This is
    /// for groups with very many records: the closure reads only the chunks in which a record changes.
    ///
    /// `place` returns the group of a key and its position there; records are in the order of (position, key). A chunk
    /// starts at each position for which `starts` returns true. Thus chunks depend on the records only, and not on the
    /// order of changes. The new key is the group with that position; the records before the first start have `None`.
    pub fn group_chunks<G: Key, P: Key, V2: Value>(
        &self,
        name: &str,
        place: impl Fn(&K) -> (G, P) + 'static,
        starts: impl Fn(&P) -> bool + 'static,
        f: impl Fn(&G, &[(&K, &V)]) -> Option<V2> + 'static,
    ) -> Collection<'s, (G, Option<P>), V2> {
        let (records, updates) = self.core.store();
        let rule = Rc::new(ChunkRule {
            records,
            place: Box::new(move |key| {
                let (group, position) = place(key.get());
                let is_start = starts(&position);
                RecordPlace { group: Erased::new(group), position: Erased::new(position), is_start }
            }),
            key: |group, start| Erased::new((group.get::<G>().clone(), start.map(|start| start.get::<P>().clone()))),
            parts: |chunk| {
                let (group, start) = chunk.get::<(G, Option<P>)>();
                (Erased::new(group.clone()), start.clone().map(Erased::new))
            },
            value: Box::new(move |group, records| {
                let records: Vec<(&K, &V)> = records.iter().map(|(key, value)| (key.get(), value.get())).collect();
                f(group.get(), &records).map(Erased::new)
            }),
        });
        let dataflow = &self.core.dataflow;
        let state = dataflow.copied(ChunkStateRef::default());
        let provenance = Provenance::Chunked(rule.clone(), state.clone());
        let (id, gauges) = dataflow.add_node(name, "group_chunks", vec![self.core.id], provenance);
        let store = KeyedStoreRef::default();
        let logic = chunk_logic(rule, state, store.clone(), gauges.clone());
        let stream = dataflow.add_operator(vec![updates], logic);
        Collection::of(dataflow.core_with_store(id, gauges, stream, store))
    }
}
