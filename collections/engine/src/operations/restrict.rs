//! `restrict`: the records of some groups.

use std::rc::Rc;

use crate::collection::Collection;
use crate::node::Provenance;
use crate::operators::restrict::{RestrictRule, RestrictStateRef, restrict_logic};
use crate::store::KeyedStoreRef;
use crate::value::{Erased, Key, Value};

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// The records of the groups that `groups` has; all records while it has `None`. Records keep their values, which are
    /// shared with this collection. A change of a group costs work for its records, and none for those of other groups.
    pub fn restrict<G: Key>(
        &self,
        name: &str,
        groups: &Collection<'s, Option<G>, ()>,
        group: impl Fn(&K) -> G + 'static,
    ) -> Self {
        let (named, changes) = groups.core.store();
        let group = Rc::new(move |key: &Erased| Erased::new(Some(group(key.get()))));
        let of_key = group.clone();
        let everything = Erased::new(None::<G>);
        let rule = RestrictRule { group: Box::new(move |key| of_key(key)), groups: named, everything };
        let dataflow = &self.core.dataflow;
        let provenance = Provenance::Restricted(group);
        let (id, gauges) = dataflow.add_node(name, "restrict", vec![self.core.id, groups.core.id], provenance);
        let store = KeyedStoreRef::default();
        let state = dataflow.copied(RestrictStateRef::default());
        let logic = restrict_logic(rule, state, store.clone(), gauges.clone());
        let stream = dataflow.add_operator(vec![self.core.stream(), changes], logic);
        Self::of(dataflow.core_with_store(id, gauges, stream, store))
    }
}
