//! Every differential type and every call that instantiates heavy generic code, once and erased.

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

use crate::metrics::Gauge;
use crate::network::EpochLogic;
use crate::value::Dyn;

/// Logical time: the number of an epoch.
pub(crate) type Time = u64;
/// A keyed record.
pub(crate) type Row = (Dyn, Dyn);
/// A change of a record.
pub(crate) type Delta = (Row, Time, isize);
/// A stream of changes within a circuit.
type Raw<'s> = VecCollection<'s, Time, Row, isize>;
/// The indexed history behind an arrangement.
type Spine = ValSpine<Dyn, Dyn, Time, isize>;
/// A handle that keeps it readable.
type Trace = TraceAgent<Spine>;
/// Changes together with their trace.
type Arr<'s> = Arranged<'s, Trace>;
/// An arrangement, for who makes it and who reads it.
pub(crate) type TraceRef = Rc<RefCell<Trace>>;
/// Computes the value of a key from its rows with their multiplicities.
pub(crate) type Reducer = Rc<dyn Fn(&Dyn, &[(&Dyn, isize)]) -> Option<Dyn>>;

/// How many records more there are by these changes.
pub(crate) fn size_change(deltas: &[Delta]) -> isize {
    deltas.iter().map(|(_, _, diff)| diff).sum()
}

/// The timely worker all circuits of an engine share.
#[derive(Clone)]
pub(crate) struct Circuits(Rc<RefCell<Worker>>);

impl Circuits {
    pub(crate) fn new() -> Self {
        // One worker and no timer: idle means blocked on the command queue.
        let worker = Worker::new(Config::default(), Allocator::Thread(Thread::default()), None);
        Self(Rc::new(RefCell::new(worker)))
    }

    /// Pairs the rows of two inputs key by key; `pair` names the row that comes out. Gives the two arrangements too.
    pub(crate) fn join(&self, gauge: Arc<Gauge>, pair: fn(&Dyn, &Dyn, &Dyn) -> Row) -> (EpochLogic, [TraceRef; 2]) {
        let circuit = self.build(gauge, 2, &mut |_, rows| {
            let [left, right] = [&rows[0], &rows[1]];
            let made = left.clone().join_core(right.clone(), move |key, a, b| Some(pair(key, a, b)));
            (made, None)
        });
        circuit.into_operator()
    }

    /// One value a key from all its rows. When `reducer` panics the key keeps the value it has. Gives the arrangements of
    /// the rows and of the values too.
    pub(crate) fn reduce(&self, gauge: Arc<Gauge>, reducer: &Reducer) -> (EpochLogic, [TraceRef; 2]) {
        let circuit = self.build(gauge, 1, &mut |gauge, rows| {
            let made = reduce(rows[0].clone(), gauge.clone(), reducer.clone());
            let trace = made.trace.clone();
            (made.as_collection(|key, value| (key.clone(), value.clone())), Some(trace))
        });
        circuit.into_operator()
    }

    fn build(&self, gauge: Arc<Gauge>, inputs: usize, operator: &mut Differential) -> Circuit {
        let made = Rc::new(RefCell::new(Vec::new()));
        let probe = probe::Handle::new();
        let mut sessions: Vec<_> = (0..inputs).map(|_| InputSession::new()).collect();
        let mut traces = Vec::new();
        self.0.borrow_mut().dataflow_named::<Time, _, _>(&gauge.name, |scope: Scope<'_, Time>| {
            let arranged: Vec<_> =
                sessions.iter_mut().map(|session| arrange(session.to_collection(scope), &gauge.name)).collect();
            traces.extend(arranged.iter().map(|rows| rows.trace.clone()));
            let (changes, trace) = operator(&gauge, &arranged);
            traces.extend(trace);
            let buffer = made.clone();
            // A stream of nothing: what it is for is that the probe sees it end after the changes are taken.
            let taken = changes.inner.unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(Pipeline, "take", |_, _| {
                move |input, _| input.for_each(|_, changes| buffer.borrow_mut().append(changes))
            });
            taken.probe_with(&probe);
        });
        let traces = traces.into_iter().map(|trace| Rc::new(RefCell::new(trace))).collect();
        Circuit { circuits: self.clone(), gauge, sessions, traces, made, probe }
    }
}

/// Puts an operator on arrangements of its inputs: its changes, and its arrangement if it keeps one.
type Differential<'a> = dyn for<'s> FnMut(&Arc<Gauge>, &[Arr<'s>]) -> (Raw<'s>, Option<Trace>) + 'a;

/// A timely dataflow of one differential operator with its arrangements, as one operator of the network. Only what an
/// epoch reaches is stepped; its time jumps over the epochs that did not.
struct Circuit {
    circuits: Circuits,
    gauge: Arc<Gauge>,
    sessions: Vec<InputSession<Time, Row, isize>>,
    traces: Vec<TraceRef>,
    made: Rc<RefCell<Vec<Delta>>>,
    probe: probe::Handle<Time>,
}

impl Circuit {
    /// As one operator of the network, with its two arrangements.
    fn into_operator(mut self) -> (EpochLogic, [TraceRef; 2]) {
        let traces = [self.traces[0].clone(), self.traces[1].clone()];
        (Box::new(move |time, deltas, out| self.run(time, deltas, out)), traces)
    }

    fn run(&mut self, time: Time, inputs: &mut [Vec<Delta>], out: &mut Vec<Delta>) {
        let next = time + 1;
        for (session, deltas) in self.sessions.iter_mut().zip(inputs) {
            // It may have been left alone for many epochs; messages must carry the time of their records.
            session.advance_to(time);
            session.flush();
            for (row, _, diff) in deltas.drain(..) {
                session.update(row, diff);
            }
            session.advance_to(next);
            session.flush();
        }
        let mut worker = self.circuits.0.borrow_mut();
        while self.probe.less_than(&next) {
            worker.step();
        }
        out.append(&mut self.made.borrow_mut());
        let mut updates = 0;
        for trace in &self.traces {
            let mut trace = trace.borrow_mut();
            // A trace held back here would keep all history.
            trace.set_logical_compaction(AntichainRef::new(&[next]));
            trace.set_physical_compaction(AntichainRef::new(&[next]));
            trace.map_batches(|batch| updates += batch.len());
        }
        self.gauge.set_arranged(updates);
    }
}

/// Arranges by key. One worker, so nothing is exchanged.
fn arrange<'s>(raw: Raw<'s>, name: &str) -> Arr<'s> {
    arrange_core::<_, _, ContainerChunker<Vec<Delta>>, ValBatcher<_, _, _, _>, ValBuilder<_, _, _, _>, Spine>(
        raw.inner, Pipeline, name,
    )
}

fn reduce(rows: Arr<'_>, gauge: Arc<Gauge>, reducer: Reducer) -> Arr<'_> {
    rows.reduce_core::<_, ValBuilder<_, _, _, _>, Spine, _, _>(
        &gauge.name.clone(),
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

/// Reads an arrangement as it is now, also while later epochs go on: its batches do not change.
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
