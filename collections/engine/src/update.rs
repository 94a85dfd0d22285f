//! Updates: the changes that flow between operators.

use crate::value::Erased;

/// Logical time: the number of an epoch.
pub(crate) type Time = u64;
/// A keyed record.
pub(crate) type Row = (Erased, Erased);
/// A change of a record, as differential dataflow writes it: the record, when, and how many copies more.
pub(crate) type Update = (Row, Time, isize);
/// An operator: takes the consolidated updates of one epoch, one list per input, and appends its own updates of the
/// same epoch to the last argument.
pub(crate) type EpochLogic = Box<dyn FnMut(Time, &mut [Vec<Update>], &mut Vec<Update>)>;

/// By how many records these updates change the size of a collection.
pub(crate) fn size_change(updates: &[Update]) -> isize {
    updates.iter().map(|(_, _, diff)| diff).sum()
}

/// Runs of updates with the same key. The updates must be consolidated.
pub(crate) fn by_key(updates: &[Update]) -> impl Iterator<Item = &[Update]> {
    updates.chunk_by(|a, b| a.0.0 == b.0.0)
}
