//! Record-by-record operators: map, filter, flat_map, the rows of an index, the closures of joins.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::Gauge;
use crate::network::EpochLogic;
use crate::spines::{Delta, Row, size_change};
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
    fn get(&self, key: &Dyn, value: &Dyn) -> Option<&[Row]> {
        let (_, rows) = self.0.get(key)?.iter().find(|(stuck, _)| stuck == value)?;
        Some(rows)
    }

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

/// A record-by-record operator, shared between the dataflow and whoever dumps its output.
pub(crate) struct Transform {
    gauge: Arc<Gauge>,
    expand: Expand,
    stuck: RefCell<Stuck>,
}

impl Transform {
    pub(crate) fn new(gauge: Arc<Gauge>, expand: Expand) -> Rc<Self> {
        Rc::new(Self { gauge, expand, stuck: RefCell::default() })
    }

    /// What stands for a record now.
    pub(crate) fn outputs(&self, key: &Dyn, value: &Dyn, rows: &mut Vec<Row>) {
        if let Some(kept) = self.stuck.borrow().get(key, value) {
            rows.extend(kept.iter().cloned());
            return;
        }
        let mut made = Vec::new();
        if self.gauge.contain(key, || (self.expand)(key, value, &mut made)).is_some() {
            rows.append(&mut made);
        }
    }

    /// The changes of one key. Old values are expanded again, to know what to retract.
    fn apply(&self, changes: &[Delta], rows: &mut Vec<Row>, out: &mut Vec<Delta>) {
        let key = &changes[0].0.0;
        let start = out.len();
        for ((_, value), time, diff) in changes.iter().filter(|(_, _, diff)| *diff < 0) {
            match self.stuck.borrow_mut().take(key, value) {
                Some(kept) => rows.extend(kept),
                None => self.run(key, value, rows).unwrap_or_default(),
            }
            out.extend(rows.drain(..).map(|row| (row, *time, *diff)));
        }
        let retracted = out.len();
        for ((_, value), time, diff) in changes.iter().filter(|(_, _, diff)| *diff > 0) {
            if self.run(key, value, rows).is_none() {
                rows.extend(out[start..retracted].iter().map(|(row, _, _)| row.clone()));
                self.stuck.borrow_mut().keep(key, value, rows.clone());
            }
            out.extend(rows.drain(..).map(|row| (row, *time, *diff)));
        }
    }

    fn run(&self, key: &Dyn, value: &Dyn, rows: &mut Vec<Row>) -> Option<()> {
        let done = self.gauge.contain(key, || (self.expand)(key, value, rows));
        if done.is_none() {
            rows.clear();
        }
        done
    }

    /// Applies the closure to each record that changed. Nothing is remembered but the outputs of records whose closure
    /// panicked, and, if asked, who made which key.
    pub(crate) fn logic(self: Rc<Self>, owners: Option<Owners>) -> EpochLogic {
        let mut rows: Vec<Row> = Vec::new();
        let mut counted = 0;
        Box::new(move |_, deltas, out| {
            let deltas = &deltas[0];
            self.gauge.timed(deltas.len(), || {
                for changes in by_key(deltas) {
                    let start = out.len();
                    self.apply(changes, &mut rows, out);
                    if let Some(owners) = &owners {
                        own(&mut owners.borrow_mut(), &changes[0].0.0, &out[start..]);
                    }
                }
            });
            let owned = owners.as_ref().map_or(0, |owners| owners.borrow().len());
            self.gauge.count_stored(&mut counted, owned + self.stuck.borrow().0.len());
            // Counted before consolidation would be wrong: an unchanged output is neither put out nor a change of size.
            differential_dataflow::consolidation::consolidate_updates(out);
            self.gauge.made(size_change(out), out.len());
        })
    }
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
