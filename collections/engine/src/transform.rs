//! Record-by-record operators: map, filter, flat_map, the rows of an index, the closures of joins.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::Gauge;
use crate::operator::EpochLogic;
use crate::spines::{Delta, Row};
use crate::store::by_key;
use crate::value::{Dyn, DynMap, ReadyState};

/// Makes the output rows of one record.
pub(crate) type Expand = Rc<dyn Fn(&Dyn, &Dyn, &mut Vec<Row>)>;

/// Which record made an output key, by the hash of that key: what `why` needs of operators that rename keys.
pub(crate) type Owners = Rc<RefCell<HashMap<u64, Dyn, ReadyState>>>;

/// Outputs that stand in for records whose closure panicked: the last good ones.
#[derive(Default)]
struct Stuck(DynMap<Vec<(Dyn, Vec<Row>)>>);

impl Stuck {
    fn take(&mut self, key: &Dyn, value: &Dyn) -> Option<Vec<Row>> {
        if self.0.is_empty() {
            return None;
        }
        let entries = self.0.get_mut(key)?;
        let at = entries.iter().position(|(stuck, _)| stuck == value)?;
        let (_, rows) = entries.swap_remove(at);
        if entries.is_empty() {
            self.0.remove(key);
        }
        Some(rows)
    }

    fn keep(&mut self, key: &Dyn, value: &Dyn, rows: Vec<Row>) {
        self.0.entry(key.clone()).or_default().push((value.clone(), rows));
    }
}

/// Applies `expand` to each record that changed. It is called for the old record too, to know what to retract: nothing
/// is remembered but the outputs of records whose closure panicked.
pub(crate) fn transform(gauge: Arc<Gauge>, expand: Expand, owners: Option<Owners>) -> EpochLogic {
    let mut stuck = Stuck::default();
    let mut rows: Vec<Row> = Vec::new();
    Box::new(move |time, deltas, out| {
        let deltas = &deltas[0];
        gauge.timed(deltas.len(), || {
            for changes in by_key(deltas) {
                let key = &changes[0].0.0;
                let start = out.len();
                for ((_, value), _, diff) in changes.iter().filter(|(_, _, diff)| *diff < 0) {
                    match stuck.take(key, value) {
                        Some(kept) => rows.extend(kept),
                        None => {
                            if gauge.contain(key, || expand(key, value, &mut rows)).is_none() {
                                rows.clear();
                            }
                        }
                    }
                    out.extend(rows.drain(..).map(|row| (row, time, *diff)));
                }
                let retracted = out.len();
                for ((_, value), _, diff) in changes.iter().filter(|(_, _, diff)| *diff > 0) {
                    if gauge.contain(key, || expand(key, value, &mut rows)).is_none() {
                        rows.clear();
                        rows.extend(out[start..retracted].iter().map(|(row, _, _)| row.clone()));
                        stuck.keep(key, value, rows.clone());
                    }
                    out.extend(rows.drain(..).map(|row| (row, time, *diff)));
                }
                if let Some(owners) = &owners {
                    own(&mut owners.borrow_mut(), key, &out[start..]);
                }
            }
        });
        // Counted before consolidation would be wrong: an unchanged output is neither put out nor a change of size.
        differential_dataflow::consolidation::consolidate_updates(out);
        gauge.made(out.iter().map(|(_, _, diff)| diff).sum(), out.len());
    })
}

pub(crate) fn own(owners: &mut HashMap<u64, Dyn, ReadyState>, parent: &Dyn, changes: &[Delta]) {
    for ((child, _), _, diff) in changes {
        let hash = child.hash64();
        if *diff > 0 {
            owners.insert(hash, parent.clone());
        } else if owners.get(&hash) == Some(parent) {
            owners.remove(&hash);
        }
    }
}
