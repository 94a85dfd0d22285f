//! `union_disjoint`: the records of several collections without common keys.

use std::rc::Rc;

use crate::build::CollectionCore;
use crate::collection::Collection;
use crate::node::{NodeId, Provenance};
use crate::operators::disjoint::disjoint_logic;
use crate::value::{Key, Value};

impl<'s, K: Key, V: Value> Collection<'s, K, V> {
    /// The records of all the collections, of which no two may have the same key. This is not checked, so that the union
    /// keeps no rows and costs nothing for each key. If two collections have a key nevertheless, the smallest value wins,
    /// and [`CollectionMetrics::conflicts`](crate::CollectionMetrics::conflicts) counts it where the union is read.
    ///
    /// Collections that may have common keys: [`Self::union`], [`Self::union_merge`].
    pub fn union_disjoint<C: AsRef<Self>>(&self, name: &str, others: &[C]) -> Self {
        let others = others.iter().map(|other| &other.as_ref().core);
        let parents: Vec<&Rc<CollectionCore>> = std::iter::once(&self.core).chain(others).collect();
        let dataflow = &self.core.dataflow;
        let ids: Vec<NodeId> = parents.iter().map(|parent| parent.id).collect();
        let (id, gauges) = dataflow.add_node(name, "union_disjoint", ids, Provenance::SameKey);
        let logic = disjoint_logic(gauges.clone());
        let stream = dataflow.add_operator(parents.iter().map(|parent| parent.stream()).collect(), logic);
        Self::of(dataflow.core(id, gauges, stream))
    }
}
