//! `union` and `union_merge`: the keys of several collections.

use std::rc::Rc;

use crate::build::CollectionCore;
use crate::collection::Collection;
use crate::node::{NodeId, Provenance};
use crate::operators::merge::{MergedValues, merge_logic};
use crate::store::KeyedStoreRef;
use crate::value::{Erased, Key, Value};

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// The keys that any of the collections has. The value is that of the first collection with the key, in order (this
    /// one, then `others`).
    pub fn union<C: AsRef<Self>>(&self, name: &str, others: &[C]) -> Self {
        self.merged(name, "union", others, |_, values: &[&Erased]| values.first().map(|value| (*value).clone()))
    }

    /// The keys that any of the collections has, with a value made of all their values, in order (this one, then
    /// `others`).
    pub fn union_merge<V2: Value, C: AsRef<Self>>(
        &self,
        name: &str,
        others: &[C],
        f: impl Fn(&K, &[&V]) -> Option<V2> + 'static,
    ) -> Collection<'s, K, V2> {
        self.merged(name, "union_merge", others, move |key, values| {
            let values: Vec<&V> = values.iter().map(|value| value.get()).collect();
            f(key.get(), &values).map(Erased::new)
        })
    }

    fn merged<V2: Value, C: AsRef<Self>>(
        &self,
        name: &str,
        kind: &'static str,
        others: &[C],
        merge: impl Fn(&Erased, &[&Erased]) -> Option<Erased> + 'static,
    ) -> Collection<'s, K, V2> {
        let others = others.iter().map(|other| &other.as_ref().core);
        let parents: Vec<&Rc<CollectionCore>> = std::iter::once(&self.core).chain(others).collect();
        let dataflow = &self.core.dataflow;
        let ids: Vec<NodeId> = parents.iter().map(|parent| parent.id).collect();
        let (id, gauges) = dataflow.add_node(name, kind, ids, Provenance::SameKey);
        let store = KeyedStoreRef::default();
        let kept = dataflow.copied(MergedValues::default());
        let logic = merge_logic(kept, store.clone(), gauges.clone(), Box::new(merge));
        let stream = dataflow.add_operator(parents.iter().map(|parent| parent.stream()).collect(), logic);
        Collection::of(dataflow.core_with_store(id, gauges, stream, store))
    }
}
