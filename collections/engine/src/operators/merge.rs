//! Unions: one value per key from the values of several parents.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::metrics::CollectionGauges;
use crate::rows::ShardedRows;
use crate::store::{KeyedStoreRef, apply};
use crate::update::{EpochLogic, size_change};
use crate::value::Erased;

/// Makes the value of a key from those of several parents, in their order.
pub(crate) type MergeFn = Box<dyn Fn(&Erased, &[&Erased]) -> Option<Erased>>;

/// The values that parents have for a key: number of the parent, value, multiplicity. Most keys have one.
type ParentValues = SmallVec<[(u32, Erased, isize); 1]>;

/// The values of each key.
pub(crate) type MergedValues = Rc<RefCell<ShardedRows<ParentValues>>>;

/// Keeps in `store` the merged value of each key that any input has. No other operator reads the rows of the inputs by
/// key, so arrangements of them would only cost memory and time.
pub(crate) fn merge_logic(
    kept: MergedValues,
    store: KeyedStoreRef,
    gauges: Arc<CollectionGauges>,
    merge: MergeFn,
) -> EpochLogic {
    let mut stored = 0;
    Box::new(move |time, updates, out| {
        let kept = &mut *kept.borrow_mut();
        let mut dirty: Vec<Erased> = Vec::new();
        for (parent, changes) in (0..).zip(updates.iter_mut()) {
            for ((key, value), _, diff) in changes.drain(..) {
                apply_change(kept, &key, (parent, value, diff));
                dirty.push(key);
            }
        }
        dirty.sort_unstable();
        dirty.dedup();
        let rows = &mut store.borrow_mut().rows;
        gauges.timed(dirty.len(), || {
            for key in &dirty {
                let values = kept.get(key).map(one_value_per_parent).unwrap_or_default();
                let value =
                    if values.is_empty() { Some(None) } else { gauges.catch_panic(key, || merge(key, &values)) };
                if let Some(value) = value {
                    apply(rows, key, value, time, out);
                }
            }
        });
        gauges.count_stored(&mut stored, rows.len() + kept.len());
        gauges.record_output(size_change(out), out.len());
    })
}

/// Applies a change to the values of a key.
fn apply_change(kept: &mut ShardedRows<ParentValues>, key: &Erased, (parent, value, diff): (u32, Erased, isize)) {
    let Some(values) = kept.get_mut(key) else {
        kept.insert(key.clone(), SmallVec::from_buf([(parent, value, diff)]));
        return;
    };
    match values.iter_mut().find(|(number, known, _)| *number == parent && *known == value) {
        Some((.., count)) => *count += diff,
        None => values.push((parent, value, diff)),
    }
    values.retain(|(.., count)| *count != 0);
    if values.is_empty() {
        kept.remove(key);
    }
}

/// One value of each parent that has the key, in the order of the parents: the smallest by content if it has several.
fn one_value_per_parent(values: &ParentValues) -> Vec<&Erased> {
    let mut ordered: Vec<(u32, &Erased)> =
        values.iter().filter(|(.., count)| *count > 0).map(|(parent, value, _)| (*parent, value)).collect();
    ordered.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.by_content(b.1)));
    ordered.dedup_by_key(|(parent, _)| *parent);
    ordered.into_iter().map(|(_, value)| value).collect()
}
