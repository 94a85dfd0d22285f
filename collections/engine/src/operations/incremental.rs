//! `incremental`: outputs that depend on all records.

use crate::collection::Collection;
use crate::node::Provenance;
use crate::operators::incremental::{ErasedIncremental, Incremental, IncrementalState, Settled, incremental_logic};
use crate::operators::record::KeyOwners;
use crate::store::KeyedStoreRef;
use crate::value::{Erased, Key, TypeMarker, Value};

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// Outputs that depend on all records, at the cost of what a change moves; `make` makes the state without records.
    /// Prefer the other operators: they need no state of the user.
    pub fn incremental<S: Incremental<K, V>>(
        &self,
        name: &str,
        make: impl Fn() -> S + 'static,
    ) -> Collection<'s, S::Key, S::Value> {
        let (records, updates) = self.core.store();
        let dataflow = &self.core.dataflow;
        let owners = dataflow.copied(KeyOwners::default());
        let provenance = Provenance::Renamed(owners.clone());
        let (id, gauges) = dataflow.add_node(name, "incremental", vec![self.core.id], provenance);
        let store = KeyedStoreRef::default();
        let make = move || -> Box<dyn ErasedIncremental> {
            Box::new(ErasedState { state: make(), types: TypeMarker::<(K, V)>::default() })
        };
        let state = dataflow.copied(IncrementalState::default());
        let logic = incremental_logic(Box::new(make), state, records, store.clone(), gauges.clone(), owners);
        let stream = dataflow.add_operator(vec![updates], logic);
        Collection::of(dataflow.core_with_store(id, gauges, stream, store))
    }
}

/// A state of the user, with the types of its records.
struct ErasedState<K, V, S> {
    state: S,
    types: TypeMarker<(K, V)>,
}

impl<K: Key, V: Value, S: Incremental<K, V>> ErasedIncremental for ErasedState<K, V, S> {
    fn change(&mut self, key: &Erased, old: Option<&Erased>, new: Option<&Erased>) {
        self.state.change(key.get(), old.map(Erased::get), new.map(Erased::get));
    }

    fn settle(&mut self) -> Settled {
        let settled = self.state.settle().into_iter();
        settled
            .map(|(key, value)| {
                let owner = S::owner(&key).map(Erased::new);
                (Erased::new(key), value.map(Erased::new), owner)
            })
            .collect()
    }
}
