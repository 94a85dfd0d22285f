//! Outputs that depend on all records, kept up to date by a state of the user.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use crate::copied_state::{CopiedState, OperatorStateCopy};
use crate::metrics::CollectionGauges;
use crate::operators::record::{KeyOwners, update_owners};
use crate::store::{KeyedStoreRef, apply};
use crate::update::{EpochLogic, by_key, size_change};
use crate::value::{Erased, Key, Value};

/// Outputs that depend on all records of a collection, such as a resource that is divided among them.
///
/// The outputs must be a function of the *set* of records: they must not depend on the order of changes.
pub trait Incremental<K: Key, V: Value>: 'static {
    /// Key of the outputs.
    type Key: Key;
    /// Value of the outputs.
    type Value: Value;

    /// A record changes: its old and its new value.
    fn change(&mut self, key: &K, old: Option<&V>, new: Option<&V>);

    /// The outputs that differ after all changes of an epoch. Outputs that are equal to those before may be among them.
    fn settle(&mut self) -> Vec<(Self::Key, Option<Self::Value>)>;

    /// The record that an output belongs to; `None` for an output of all records, such as a sum.
    fn owner(output: &Self::Key) -> Option<K>;
}

/// The outputs that differ, with the keys of the records that they belong to.
pub(crate) type Settled = Vec<(Erased, Option<Erased>, Option<Erased>)>;

/// An [`Incremental`] of erased type.
pub(crate) trait ErasedIncremental {
    fn change(&mut self, key: &Erased, old: Option<&Erased>, new: Option<&Erased>);
    fn settle(&mut self) -> Settled;
}

/// The state of the operator; `None` if it is to be made again from all records.
#[derive(Clone, Default)]
pub(crate) struct IncrementalState(Rc<RefCell<Option<Box<dyn ErasedIncremental>>>>);

/// A state of the user has no copy: a second engine makes it again.
impl CopiedState for IncrementalState {
    fn copy(&self) -> OperatorStateCopy {
        Box::new(())
    }

    fn restore(&self, _: OperatorStateCopy) {
        *self.0.borrow_mut() = None;
    }
}

/// Keeps the outputs in `store`. After a panic, the state is made again from all records in the next epoch that reaches
/// the operator; until then the outputs stay.
pub(crate) fn incremental_logic(
    make: Box<dyn Fn() -> Box<dyn ErasedIncremental>>,
    state: IncrementalState,
    records: KeyedStoreRef,
    store: KeyedStoreRef,
    gauges: Arc<CollectionGauges>,
    owners: KeyOwners,
) -> EpochLogic {
    *state.0.borrow_mut() = Some(make());
    let mut stored = 0;
    Box::new(move |time, updates, out| {
        let Some(((first, _), ..)) = updates[0].first() else { return };
        let records = &records.borrow().rows;
        let rows = &mut store.borrow_mut().rows;
        let mut state = state.0.borrow_mut();
        let mut known = state.take();
        let is_new = known.is_none();
        let settled = gauges.run(first, updates[0].len(), || match &mut known {
            Some(state) => {
                for changes in by_key(&updates[0]) {
                    let value =
                        |sign: isize| changes.iter().find(|(.., diff)| *diff == sign).map(|((_, value), ..)| value);
                    state.change(&changes[0].0.0, value(-1), value(1));
                }
                state.settle()
            }
            None => {
                let state = known.insert(make());
                records.iter().for_each(|(key, value)| state.change(key, None, Some(value)));
                state.settle()
            }
        });
        let Some(settled) = settled else { return };
        *state = known;
        if is_new {
            let old: Vec<Erased> = rows.iter().map(|(key, _)| key.clone()).collect();
            let made: BTreeSet<&Erased> = settled.iter().map(|(key, ..)| key).collect();
            for key in old.iter().filter(|key| !made.contains(key)) {
                apply(rows, key, None, time, out);
                owners.borrow_mut().remove(&key.hash64());
            }
        }
        for (key, value, owner) in settled {
            let start = out.len();
            apply(rows, &key, value, time, out);
            if let Some(owner) = owner {
                update_owners(&owners, &owner, &out[start..]);
            }
        }
        gauges.count_stored(&mut stored, rows.len());
        gauges.record_output(size_change(out), out.len());
    })
}
