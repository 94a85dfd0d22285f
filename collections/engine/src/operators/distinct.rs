//! The distinct keys of an index.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::rows::ShardedRows;
use crate::store::{KeyedStoreRef, apply};
use crate::update::{EpochLogic, by_key, size_change};
use crate::value::Erased;

/// Number of rows by key.
pub(crate) type RowCounts = Rc<RefCell<ShardedRows<isize>>>;

/// Keeps in `store` a `value` for each key that has a row. It counts the rows of a key and does not keep them, so an
/// arrangement of them would only cost memory.
pub(crate) fn distinct_logic(
    counts: RowCounts,
    store: KeyedStoreRef,
    gauges: Arc<CollectionGauges>,
    value: Erased,
) -> EpochLogic {
    let mut stored = 0;
    Box::new(move |time, updates, out| {
        let counts = &mut *counts.borrow_mut();
        let rows = &mut store.borrow_mut().rows;
        gauges.record_input(updates[0].len());
        for changes in by_key(&updates[0]) {
            let key = &changes[0].0.0;
            let count = counts.get(key).copied().unwrap_or(0) + size_change(changes);
            match count {
                0 => counts.remove(key),
                _ => counts.insert(key.clone(), count),
            };
            apply(rows, key, (count > 0).then(|| value.clone()), time, out);
        }
        gauges.count_stored(&mut stored, rows.len() + counts.len());
        gauges.record_output(size_change(out), out.len());
    })
}
