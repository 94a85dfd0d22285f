//! Record-by-record operators: `map`, `filter`, `filter_map`, `flat_map`, the rows of an index, the closures of joins.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::metrics::CollectionGauges;
use crate::update::{EpochLogic, Row, Update, by_key, size_change};
use crate::value::{Erased, ErasedMap, PrecomputedHash};

/// Appends the output rows of one record.
pub(crate) type ExpandFn = Rc<dyn Fn(&Erased, &Erased, &mut Vec<Row>)>;

/// The key of the record that made an output key, by the hash of the output key. Explanations of operators that change
/// keys need it.
pub(crate) type KeyOwners = Rc<RefCell<HashMap<u64, Erased, PrecomputedHash>>>;

/// The last good outputs of records whose closure panicked.
#[derive(Clone, Default)]
pub(crate) struct KeptOutputs(ErasedMap<Vec<(Erased, Vec<Row>)>>);

impl KeptOutputs {
    fn get(&self, key: &Erased, value: &Erased) -> Option<&[Row]> {
        let (_, rows) = self.0.get(key)?.iter().find(|(kept, _)| kept == value)?;
        Some(rows)
    }

    fn take(&mut self, key: &Erased, value: &Erased) -> Option<Vec<Row>> {
        if self.0.is_empty() {
            return None;
        }
        let entries = self.0.get_mut(key)?;
        let at = entries.iter().position(|(kept, _)| kept == value)?;
        let (_, rows) = entries.swap_remove(at);
        if entries.is_empty() {
            self.0.remove(key);
        }
        Some(rows)
    }

    fn keep(&mut self, key: &Erased, value: &Erased, rows: Vec<Row>) {
        self.0.entry(key.clone()).or_default().push((value.clone(), rows));
    }
}

/// A record-by-record operator, shared between the dataflow and dumps of its output.
pub(crate) struct RecordTransform {
    gauges: Arc<CollectionGauges>,
    expand: ExpandFn,
    kept: Rc<RefCell<KeptOutputs>>,
}

impl RecordTransform {
    pub(crate) fn new(gauges: Arc<CollectionGauges>, expand: ExpandFn) -> Rc<Self> {
        Rc::new(Self { gauges, expand, kept: Rc::default() })
    }

    /// Its state.
    pub(crate) fn kept(&self) -> Rc<RefCell<KeptOutputs>> {
        self.kept.clone()
    }

    /// Appends the current outputs of a record.
    pub(crate) fn outputs(&self, key: &Erased, value: &Erased, rows: &mut Vec<Row>) {
        if let Some(kept) = self.kept.borrow().get(key, value) {
            rows.extend(kept.iter().cloned());
            return;
        }
        let mut made = Vec::new();
        if self.gauges.catch_panic(key, || (self.expand)(key, value, &mut made)).is_some() {
            rows.append(&mut made);
        }
    }

    /// Appends the updates of one key. Old values are expanded again to know which rows to retract.
    fn apply(&self, changes: &[Update], rows: &mut Vec<Row>, out: &mut Vec<Update>) {
        let key = &changes[0].0.0;
        let start = out.len();
        for ((_, value), time, diff) in changes.iter().filter(|(_, _, diff)| *diff < 0) {
            match self.kept.borrow_mut().take(key, value) {
                Some(kept) => rows.extend(kept),
                None => self.run(key, value, rows).unwrap_or_default(),
            }
            out.extend(rows.drain(..).map(|row| (row, *time, *diff)));
        }
        let retracted = out.len();
        for ((_, value), time, diff) in changes.iter().filter(|(_, _, diff)| *diff > 0) {
            if self.run(key, value, rows).is_none() {
                rows.extend(out[start..retracted].iter().map(|(row, _, _)| row.clone()));
                self.kept.borrow_mut().keep(key, value, rows.clone());
            }
            out.extend(rows.drain(..).map(|row| (row, *time, *diff)));
        }
    }

    fn run(&self, key: &Erased, value: &Erased, rows: &mut Vec<Row>) -> Option<()> {
        let done = self.gauges.catch_panic(key, || (self.expand)(key, value, rows));
        if done.is_none() {
            rows.clear();
        }
        done
    }

    /// Applies the closure to each changed record. It keeps only the outputs of records whose closure panicked and, if
    /// `owners` is given, which record made which key.
    pub(crate) fn logic(self: Rc<Self>, owners: Option<KeyOwners>) -> EpochLogic {
        let mut rows: Vec<Row> = Vec::new();
        let mut stored = 0;
        Box::new(move |_, updates, out| {
            let updates = &updates[0];
            self.gauges.timed(updates.len(), || {
                for changes in by_key(updates) {
                    let start = out.len();
                    self.apply(changes, &mut rows, out);
                    if let Some(owners) = &owners {
                        update_owners(owners, &changes[0].0.0, &out[start..]);
                    }
                }
            });
            let owned = owners.as_ref().map_or(0, |owners| owners.borrow().len());
            self.gauges.count_stored(&mut stored, owned + self.kept.borrow().0.len());
            // Consolidated before it is counted: an unchanged output is neither an update nor a change of the size.
            differential_dataflow::consolidation::consolidate_updates(out);
            self.gauges.record_output(size_change(out), out.len());
        })
    }
}

/// Records that the record with key `parent` made these updates.
pub(crate) fn update_owners(owners: &KeyOwners, parent: &Erased, updates: &[Update]) {
    let mut owners = owners.borrow_mut();
    for ((child, _), _, diff) in updates {
        let hash = child.hash64();
        if *diff > 0 {
            owners.insert(hash, parent.clone());
        } else if owners.get(&hash) == Some(parent) {
            owners.remove(&hash);
        }
    }
}
