//! Every differential type and every call that instantiates heavy generic code, once and erased.

use std::rc::Rc;
use std::sync::Arc;

use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::operators::arrange::{Arranged, TraceAgent};
use differential_dataflow::trace::cursor::CursorList;
use differential_dataflow::trace::implementations::{ContainerChunker, ValBatcher, ValBuilder, ValSpine};
use differential_dataflow::trace::{BatchCursor, Cursor, TraceReader};
use differential_dataflow::{AsCollection, VecCollection};
use timely::dataflow::channels::pact::Pipeline;
use timely::progress::frontier::AntichainRef;

use crate::metrics::Gauge;
use crate::value::Dyn;

/// Logical time: the number of an epoch.
pub(crate) type Time = u64;
/// A keyed record.
pub(crate) type Row = (Dyn, Dyn);
/// A change of a record.
pub(crate) type Delta = (Row, Time, isize);
/// A stream of changes.
pub(crate) type Raw<'s> = VecCollection<'s, Time, Row, isize>;
/// How many records more there are by these changes.
pub(crate) fn size_change(deltas: &[Delta]) -> isize {
    deltas.iter().map(|(_, _, diff)| diff).sum()
}

/// The indexed history behind an arrangement.
pub(crate) type Spine = ValSpine<Dyn, Dyn, Time, isize>;
/// A handle that keeps it readable.
pub(crate) type Trace = TraceAgent<Spine>;
/// Changes together with their trace, shared by all who join or group on the key.
pub(crate) type Arr<'s> = Arranged<'s, Trace>;
/// Computes the value of a key from its rows with their multiplicities.
pub(crate) type Reducer = Rc<dyn Fn(&Dyn, &[(&Dyn, isize)]) -> Option<Dyn>>;

/// Arranges by key. One worker, so nothing is exchanged.
pub(crate) fn arrange<'s>(raw: Raw<'s>, name: &str) -> Arr<'s> {
    arrange_core::<_, _, ContainerChunker<Vec<Delta>>, ValBatcher<_, _, _, _>, ValBuilder<_, _, _, _>, Spine>(
        raw.inner, Pipeline, name,
    )
}

/// Pairs the rows of two arrangements key by key; `pair` names the row that comes out.
pub(crate) fn join<'s>(left: Arr<'s>, right: Arr<'s>, pair: fn(&Dyn, &Dyn, &Dyn) -> Row) -> Raw<'s> {
    left.join_core(right, move |key, a, b| Some(pair(key, a, b)))
}

/// One value a key from all its rows. When `reducer` panics the key keeps the value it has.
pub(crate) fn reduce<'s>(rows: Arr<'s>, name: &str, gauge: Arc<Gauge>, reducer: Reducer) -> Arr<'s> {
    rows.reduce_core::<_, ValBuilder<_, _, _, _>, Spine, _, _>(
        name,
        move |key, input, output, change| {
            let made = if input.is_empty() { Some(None) } else { gauge.run(key, input.len(), || reducer(key, input)) };
            let Some(new) = made else { return };
            gauge.made(
                new.iter().map(|_| 1).sum::<isize>() - output.iter().map(|(_, diff)| *diff).sum::<isize>(),
                usize::from(new.is_some()),
            );
            if let ([(old, 1)], Some(new)) = (&output[..], &new)
                && old == new
            {
                output.clear();
                return;
            }
            change.extend(new.map(|value| (value, 1)));
            change.extend(output.drain(..).map(|(value, diff)| (value, -diff)));
            differential_dataflow::consolidation::consolidate(change);
        },
        |buffer, key, updates| {
            buffer.clear();
            buffer.extend(updates.drain(..).map(|(value, time, diff)| ((key.clone(), value), time, diff)));
        },
    )
}

/// The changes of an arrangement as a plain stream.
pub(crate) fn stream_of<'s>(rows: Arr<'s>) -> Raw<'s> {
    rows.as_collection(|key, value| (key.clone(), value.clone()))
}

/// All the changes of several streams.
pub(crate) fn concat<'s>(first: Raw<'s>, others: impl IntoIterator<Item = Raw<'s>>) -> Raw<'s> {
    use timely::dataflow::operators::Concatenate;
    let scope = first.inner.scope();
    let streams: Vec<_> = std::iter::once(first).chain(others).map(|raw| raw.inner).collect();
    scope.concatenate(streams).as_collection()
}

/// Reads an arrangement as it is now, also while later epochs go on: its batches do not change.
pub(crate) struct TraceCursor {
    cursor: CursorList<BatchCursor<Trace>>,
    batches: Vec<<Trace as TraceReader>::Batch>,
}

impl TraceCursor {
    pub(crate) fn new(trace: &mut Trace) -> Option<Self> {
        let (cursor, batches) = trace.cursor_through(AntichainRef::new(&[]))?;
        Some(Self { cursor, batches })
    }

    /// The rows of `key`.
    pub(crate) fn seek(&mut self, key: &Dyn, rows: &mut Vec<Dyn>) {
        self.cursor.rewind_keys(&self.batches);
        self.cursor.seek_key(&self.batches, key);
        if self.cursor.get_key(&self.batches) == Some(key) {
            self.rows_here(&mut |row| rows.push(row.clone()));
        }
    }

    /// The next rows, at least one key and then up to about `limit`; false when there are no more.
    pub(crate) fn next_rows(&mut self, limit: usize, rows: &mut Vec<Row>) -> bool {
        while let Some(key) = self.cursor.get_key(&self.batches).cloned() {
            if rows.len() >= limit {
                return true;
            }
            self.rows_here(&mut |row| rows.push((key.clone(), row.clone())));
            self.cursor.step_key(&self.batches);
        }
        false
    }

    fn rows_here(&mut self, take: &mut dyn FnMut(&Dyn)) {
        self.cursor.rewind_vals(&self.batches);
        while let Some(row) = self.cursor.get_val(&self.batches) {
            let mut count = 0;
            self.cursor.map_times(&self.batches, |_, diff| count += *diff);
            if count > 0 {
                take(row);
            }
            self.cursor.step_val(&self.batches);
        }
    }
}
