//! `merge_members`: one collection from a changing set of collections.

use crate::collection::Collection;
use crate::value::{Key, Value};

impl<'s, M: Key, K: Key, V: Value> Collection<'s, (M, K), V> {
    /// One value per key `K`, made of the values that the present members `M` have for it, in the order of the members.
    ///
    /// This collection has the records of all members, under (member, key). Only those count whose member is a key of
    /// `members`. Members are added and removed while the engine runs: the records of a member that is removed disappear
    /// with it, in the same epoch, and cost work for these only. [`DataflowBuilder::members`](crate::DataflowBuilder::members)
    /// makes both collections and their writing ends.
    pub fn merge_members<O: Value, V2: Value>(
        &self,
        name: &str,
        members: &Collection<'s, M, O>,
        f: impl Fn(&K, &[(&M, &V)]) -> Option<V2> + 'static,
    ) -> Collection<'s, K, V2> {
        let present = members.flat_map(&format!("{name}/members"), |member, _| [(Some(member.clone()), ())]);
        let records = self.restrict(&format!("{name}/records"), &present, |(member, _)| member.clone());
        let by_key = records.index(&format!("{name}/by-key"), |(_, key), value| [(key.clone(), value.clone())]);
        by_key.group(name, move |key, rows| {
            let values: Vec<(&M, &V)> = rows.iter().map(|((member, _), value)| (member, *value)).collect();
            f(key, &values)
        })
    }
}
