//! The two operators of differential dataflow, and everything that names a differential or timely type.
//!
//! `join` and `reduce` are differential's own (`join_core`, `reduce_core`), each with the arrangements of its inputs
//! (and, for `reduce`, of its output) in a timely dataflow of its own. In one timely dataflow for the whole graph, each
//! epoch would advance the frontier of every operator. Keys and values are erased, so this generic code is compiled
//! once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use differential_dataflow::VecCollection;
use differential_dataflow::input::InputSession;
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::operators::arrange::{Arranged, TraceAgent};
use differential_dataflow::trace::cursor::CursorList;
use differential_dataflow::trace::implementations::{ContainerChunker, ValBatcher, ValBuilder, ValSpine};
use differential_dataflow::trace::{BatchCursor, BatchReader, Cursor, TraceReader};
use timely::communication::allocator::{Allocator, thread::Thread};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::{Probe, probe};
use timely::progress::frontier::AntichainRef;
use timely::worker::{Config, Worker};

use crate::copied_state::{CopiedState, OperatorStateCopy};
use crate::metrics::CollectionGauges;
use crate::update::{EpochLogic, Row, Time, Update};
use crate::value::{Erased, ErasedMap};

/// A differential collection of keyed records.
type RowCollection<'s> = VecCollection<'s, Time, Row, isize>;
/// The trace of an arrangement.
type Spine = ValSpine<Erased, Erased, Time, isize>;
/// A handle that keeps a trace readable.
type Trace = TraceAgent<Spine>;
type Arrangement<'s> = Arranged<'s, Trace>;
/// A trace, shared between its operator and readers.
pub(crate) type TraceRef = Rc<RefCell<Trace>>;
/// Computes the value of a key from its rows with their multiplicities.
pub(crate) type Reducer = Rc<dyn Fn(&Erased, &[(&Erased, isize)]) -> Option<Erased>>;

/// The timely worker that runs the differential operators of an engine.
#[derive(Clone)]
pub(crate) struct DifferentialWorker(Rc<RefCell<Worker>>);

impl DifferentialWorker {
    pub(crate) fn new() -> Self {
        // One worker and no timer: an idle engine is blocked on its command queue.
        let worker = Worker::new(Config::default(), Allocator::Thread(Thread::default()), None);
        Self(Rc::new(RefCell::new(worker)))
    }

    /// Joins two inputs by key; `pair` makes the row of each pair. Also returns the traces of the two inputs, and the state.
    pub(crate) fn join(
        &self,
        gauges: Arc<CollectionGauges>,
        pair: fn(&Erased, &Erased, &Erased) -> Row,
    ) -> (EpochLogic, [TraceRef; 2], DifferentialState) {
        let operator = self.build(gauges, 2, &RestoredValues::default(), &mut |_, rows| {
            let [left, right] = [&rows[0], &rows[1]];
            let joined = left.clone().join_core(right.clone(), move |key, a, b| Some(pair(key, a, b)));
            (joined, None)
        });
        operator.into_logic()
    }

    /// Computes one value per key from all its rows. When `reducer` panics, the key keeps its value. Also returns the
    /// traces of the rows and of the values, and the state.
    pub(crate) fn reduce(
        &self,
        gauges: Arc<CollectionGauges>,
        reducer: &Reducer,
    ) -> (EpochLogic, [TraceRef; 2], DifferentialState) {
        let restored = RestoredValues::default();
        let operator = self.build(gauges, 1, &restored, &mut |gauges, rows| {
            let values = reduce(rows[0].clone(), gauges.clone(), reducer.clone(), restored.clone());
            let trace = values.trace.clone();
            (values.as_collection(|key, value| (key.clone(), value.clone())), Some(trace))
        });
        operator.into_logic()
    }

    fn build(
        &self,
        gauges: Arc<CollectionGauges>,
        inputs: usize,
        restored: &RestoredValues,
        connect: &mut Connect,
    ) -> DifferentialOperator {
        let output = Rc::new(RefCell::new(Vec::new()));
        let probe = probe::Handle::new();
        let mut sessions: Vec<_> = (0..inputs).map(|_| InputSession::new()).collect();
        let mut traces = Vec::new();
        self.0.borrow_mut().dataflow_named::<Time, _, _>(&gauges.name, |scope: Scope<'_, Time>| {
            let arranged: Vec<_> =
                sessions.iter_mut().map(|session| arrange(session.to_collection(scope), &gauges.name)).collect();
            traces.extend(arranged.iter().map(|rows| rows.trace.clone()));
            let (updates, trace) = connect(&gauges, &arranged);
            traces.extend(trace);
            let buffer = output.clone();
            // Nothing flows out of this operator; the probe needs it to see that the updates have been taken.
            let taken = updates.inner.unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(Pipeline, "take", |_, _| {
                move |input, _| input.for_each(|_, updates| buffer.borrow_mut().append(updates))
            });
            taken.probe_with(&probe);
        });
        let traces = traces.into_iter().map(|trace| Rc::new(RefCell::new(trace))).collect();
        DifferentialOperator {
            worker: self.clone(),
            gauges,
            sessions,
            traces,
            output,
            probe,
            restored: restored.clone(),
        }
    }
}

/// Applies a differential operator to the arrangements of its inputs. Returns its updates, and its trace if it keeps
/// one.
type Connect<'a> =
    dyn for<'s> FnMut(&Arc<CollectionGauges>, &[Arrangement<'s>]) -> (RowCollection<'s>, Option<Trace>) + 'a;

/// A timely dataflow of one differential operator with its arrangements, run as one operator of the network. It is
/// stepped only in epochs that reach it; its time skips the others.
struct DifferentialOperator {
    worker: DifferentialWorker,
    gauges: Arc<CollectionGauges>,
    sessions: Vec<InputSession<Time, Row, isize>>,
    traces: Vec<TraceRef>,
    output: Rc<RefCell<Vec<Update>>>,
    probe: probe::Handle<Time>,
    restored: RestoredValues,
}

/// The values that the groups of a `reduce` have, while its state is restored.
type RestoredValues = Rc<RefCell<Option<ErasedMap<Erased>>>>;

/// The arrangements of a differential operator.
#[derive(Clone)]
pub(crate) struct DifferentialState(Rc<RefCell<DifferentialOperator>>);

/// The rows of the arrangements. Those of another thread cannot be shared.
struct ArrangedRows {
    inputs: Vec<Vec<Update>>,
    /// Of a `reduce`.
    values: ErasedMap<Erased>,
}

impl CopiedState for DifferentialState {
    fn copy(&self) -> OperatorStateCopy {
        let operator = self.0.borrow();
        let (inputs, values) = operator.traces.split_at(operator.sessions.len());
        let inputs = inputs.iter().map(arranged_rows).collect();
        let values = values.iter().flat_map(arranged_rows).map(|(row, ..)| row).collect();
        Box::new(ArrangedRows { inputs, values })
    }

    fn restore(&self, copy: OperatorStateCopy) {
        let Ok(copy) = copy.downcast::<ArrangedRows>() else { return };
        let ArrangedRows { mut inputs, values } = *copy;
        let mut operator = self.0.borrow_mut();
        *operator.restored.borrow_mut() = Some(values);
        // Before the first epoch. The readers have the output already.
        operator.run(0, &mut inputs, &mut Vec::new());
        *operator.restored.borrow_mut() = None;
    }
}

/// The current rows of an arrangement, with their multiplicities.
fn arranged_rows(trace: &TraceRef) -> Vec<Update> {
    let mut rows = Vec::new();
    if let Some(mut cursor) = TraceCursor::of(trace) {
        cursor.each_row(&mut |key, row, count| rows.push(((key.clone(), row.clone()), 0, count)));
    }
    rows
}

impl DifferentialOperator {
    /// The operator as logic of the network, with its two traces and its state.
    fn into_logic(self) -> (EpochLogic, [TraceRef; 2], DifferentialState) {
        let traces = [self.traces[0].clone(), self.traces[1].clone()];
        let state = DifferentialState(Rc::new(RefCell::new(self)));
        let operator = state.0.clone();
        (Box::new(move |time, updates, out| operator.borrow_mut().run(time, updates, out)), traces, state)
    }

    fn run(&mut self, time: Time, inputs: &mut [Vec<Update>], out: &mut Vec<Update>) {
        let next = time + 1;
        for (session, updates) in self.sessions.iter_mut().zip(inputs) {
            // The session may have skipped many epochs; messages must carry the time of their records.
            session.advance_to(time);
            session.flush();
            for (row, _, diff) in updates.drain(..) {
                session.update(row, diff);
            }
            session.advance_to(next);
            session.flush();
        }
        let mut worker = self.worker.0.borrow_mut();
        while self.probe.less_than(&next) {
            worker.step();
        }
        out.append(&mut self.output.borrow_mut());
        let mut arranged = 0;
        for trace in &self.traces {
            let mut trace = trace.borrow_mut();
            // Without compaction the traces would keep the updates of all epochs.
            trace.set_logical_compaction(AntichainRef::new(&[next]));
            trace.set_physical_compaction(AntichainRef::new(&[next]));
            trace.map_batches(|batch| arranged += batch.len());
        }
        self.gauges.set_arranged(arranged);
    }
}

/// Arranges by key. There is one worker, so no data is exchanged.
fn arrange<'s>(rows: RowCollection<'s>, name: &str) -> Arrangement<'s> {
    arrange_core::<_, _, ContainerChunker<Vec<Update>>, ValBatcher<_, _, _, _>, ValBuilder<_, _, _, _>, Spine>(
        rows.inner, Pipeline, name,
    )
}

fn reduce(
    rows: Arrangement<'_>,
    gauges: Arc<CollectionGauges>,
    reducer: Reducer,
    restored: RestoredValues,
) -> Arrangement<'_> {
    rows.reduce_core::<_, ValBuilder<_, _, _, _>, Spine, _, _>(
        &gauges.name.clone(),
        move |key, input, output, change| {
            let result = match &*restored.borrow() {
                Some(values) => Some(values.get(key).cloned()),
                None if input.is_empty() => Some(None),
                None => gauges.run(key, input.len(), || reducer(key, input)),
            };
            let Some(new) = result else { return };
            gauges.record_output(
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

/// Reads the current rows of an arrangement. Its batches are immutable, so later epochs do not change what it reads.
pub(crate) struct TraceCursor {
    cursor: CursorList<BatchCursor<Trace>>,
    batches: Vec<<Trace as TraceReader>::Batch>,
}

impl TraceCursor {
    pub(crate) fn of(trace: &TraceRef) -> Option<Self> {
        let (cursor, batches) = trace.borrow_mut().cursor_through(AntichainRef::new(&[]))?;
        Some(Self { cursor, batches })
    }

    /// The rows of `key`.
    pub(crate) fn seek(&mut self, key: &Erased, rows: &mut Vec<Erased>) {
        self.cursor.rewind_keys(&self.batches);
        self.cursor.seek_key(&self.batches, key);
        if self.cursor.get_key(&self.batches) == Some(key) {
            self.current_rows(&mut |row, _| rows.push(row.clone()));
        }
    }

    /// Appends the next rows: at least one key, then up to about `limit` rows. False when there are no more.
    pub(crate) fn next_rows(&mut self, limit: usize, rows: &mut Vec<Row>) -> bool {
        while let Some(key) = self.cursor.get_key(&self.batches).cloned() {
            if rows.len() >= limit {
                return true;
            }
            self.current_rows(&mut |row, _| rows.push((key.clone(), row.clone())));
            self.cursor.step_key(&self.batches);
        }
        false
    }

    /// Calls `take` with each row and its multiplicity.
    fn each_row(&mut self, take: &mut dyn FnMut(&Erased, &Erased, isize)) {
        while let Some(key) = self.cursor.get_key(&self.batches).cloned() {
            self.current_rows(&mut |row, count| take(&key, row, count));
            self.cursor.step_key(&self.batches);
        }
    }

    fn current_rows(&mut self, take: &mut dyn FnMut(&Erased, isize)) {
        self.cursor.rewind_vals(&self.batches);
        while let Some(row) = self.cursor.get_val(&self.batches) {
            let mut count = 0;
            self.cursor.map_times(&self.batches, |_, diff| count += *diff);
            if count > 0 {
                take(row, count);
            }
            self.cursor.step_val(&self.batches);
        }
    }
}
