//! The handle of a running engine, and transactions.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::bounded;

use crate::build::BuildState;
use crate::builder::GraphBuilder;
use crate::clock::Clock;
use crate::command::{CommandQueue, EngineCommand};
use crate::dump::CollectionInfo;
use crate::engine_state::{CopyError, EngineState};
use crate::epoch::{Epoch, Origin};
use crate::feed::{Feed, SnapshotPublisher};
use crate::input::Input;
use crate::input_state::{DeleteCondition, InputRecord, WriteOp};
use crate::metrics::{CollectionGauges, EngineMetrics, PanicLog, PanicReport, panic_message};
use crate::options::EngineOptions;
use crate::output::{Published, Snapshot};
use crate::value::{Erased, Key, Value};
use crate::worker::{DataflowThread, EpochCounters};

/// A running engine: one thread that keeps all collections up to date. Clones are handles to the same engine; it stops
/// when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineInner>,
}

/// An engine that may have stopped. It does not keep the engine alive.
pub(crate) struct WeakEngine(Weak<EngineInner>);

impl WeakEngine {
    pub(crate) fn upgrade(&self) -> Option<Engine> {
        Some(Engine { inner: self.0.upgrade()? })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

struct EngineInner {
    queue: CommandQueue,
    publisher: Arc<SnapshotPublisher>,
    counters: Arc<EpochCounters>,
    gauges: Vec<Arc<CollectionGauges>>,
    infos: Vec<CollectionInfo>,
    panic_log: Arc<PanicLog>,
    clock: Clock,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Builds the graph on a new thread and starts it. Returns the engine and what `build` returned (inputs, published
    /// collections). When this returns, the first epoch, with all `fixed` collections, is committed.
    ///
    /// # Panics
    /// With the panic of `build` if it panics, and when no thread can be started.
    pub fn start<H: Send + 'static>(
        options: EngineOptions,
        build: impl FnOnce(&mut GraphBuilder) -> H + Send + 'static,
    ) -> (Self, H) {
        match Self::start_from(options, None, build) {
            Ok(started) => started,
            Err(error) => unreachable!("{error}: a new engine copies none"),
        }
    }

    /// Starts a second engine of the same graph in the state of this one, with its epoch. No closure of the graph runs for
    /// that: both engines share their records until one of them changes. The dataflow thread of this engine waits while
    /// its state is copied, and later copies the few rows beside each that it writes as long as the second engine runs.
    ///
    /// Writes go to the second engine only by the handles that `build` returns, and neither engine sees those of the other.
    ///
    /// # Errors
    /// This engine has stopped, or `build` makes a graph with other collections.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn start_copy<H: Send + 'static>(
        &self,
        options: EngineOptions,
        build: impl FnOnce(&mut GraphBuilder) -> H + Send + 'static,
    ) -> Result<(Self, H), CopyError> {
        let (reply, answer) = bounded(1);
        self.send(EngineCommand::Copy(reply));
        let state = answer.recv().map_err(|_| CopyError::Stopped)?;
        Self::start_from(options, Some(state), build)
    }

    fn start_from<H: Send + 'static>(
        options: EngineOptions,
        state: Option<EngineState>,
        build: impl FnOnce(&mut GraphBuilder) -> H + Send + 'static,
    ) -> Result<(Self, H), CopyError> {
        let mut handles = None;
        let (sender, receiver) = bounded(1);
        let build = move |builder: &mut GraphBuilder| {
            // The receiver waits for this or for the end of the thread.
            let _ = sender.send(build(builder));
        };
        let engine = Self::start_erased(options, state, Box::new(build), &mut || handles = receiver.recv().ok())?;
        match handles {
            Some(handles) => Ok((engine, handles)),
            None => engine.resume_panic(),
        }
    }

    fn start_erased(
        options: EngineOptions,
        state: Option<EngineState>,
        build: Box<dyn FnOnce(&mut GraphBuilder) + Send>,
        receive: &mut dyn FnMut(),
    ) -> Result<Self, CopyError> {
        let (queue, commands) = CommandQueue::new();
        let publisher = Arc::new(SnapshotPublisher::new());
        let counters = Arc::new(EpochCounters::default());
        let panic_log = Arc::new(PanicLog::default());
        let clock = options.clock.clone();
        let (ready, started) = bounded(1);
        let thread = {
            let (queue, panic_log) = (queue.clone(), panic_log.clone());
            let (publisher, counters) = (publisher.clone(), counters.clone());
            let run = move |publisher: Arc<SnapshotPublisher>| {
                let mut builder = GraphBuilder { build: std::rc::Rc::new(BuildState::new(options, queue, panic_log)) };
                build(&mut builder);
                let mut thread = DataflowThread::new(builder, publisher, counters);
                let started = match state {
                    Some(state) => thread.restore(state),
                    None => {
                        thread.commit(0);
                        Ok(())
                    }
                };
                let nodes = &thread.nodes;
                let dataflows = thread.dataflow_names();
                let gauges: Vec<_> = nodes.iter().map(|node| node.gauges.clone()).collect();
                let infos: Vec<_> = (0..nodes.len()).map(|node| CollectionInfo::of(node, nodes, dataflows)).collect();
                // The starting thread waits for this.
                let _ = ready.send(started.map(|()| (gauges, infos)));
                thread.run(&commands);
            };
            std::thread::Builder::new().name("sluice-dataflow".to_owned()).spawn(move || {
                // All who wait for the engine are woken, also after a panic.
                let result = catch_unwind(AssertUnwindSafe(|| run(publisher.clone())));
                publisher.close(result.as_ref().err().map(|payload| panic_message(&**payload)));
                if let Err(payload) = result {
                    resume_unwind(payload);
                }
            })
        };
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => panic!("start the dataflow thread: {error}"),
        };
        receive();
        let started = started.recv().unwrap_or_else(|_| Ok(Default::default()));
        let thread = Mutex::new(Some(thread));
        let (started, error) = match started {
            Ok(started) => (started, None),
            Err(error) => (Default::default(), Some(error)),
        };
        let (gauges, infos) = started;
        let inner = EngineInner { queue, publisher, counters, gauges, infos, panic_log, clock, thread };
        // Without its state it is dropped here, which ends its thread.
        let engine = Self { inner: Arc::new(inner) };
        error.map_or(Ok(engine), Err)
    }

    /// Continues with the panic that ended the dataflow thread.
    fn resume_panic(&self) -> ! {
        let thread = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => panic!("the dataflow thread ended early"),
        }
    }

    /// Makes several writes visible in one epoch, and waits for it. A closure of the graph must not call this.
    pub fn transaction(&self, write: impl FnOnce(&mut Transaction)) -> Epoch {
        self.request_epoch(false, |reply| EngineCommand::Transaction(Transaction::of(write), reply))
    }

    /// As [`Self::transaction`], but before all waiting writes to inputs without priority.
    pub fn priority_transaction(&self, write: impl FnOnce(&mut Transaction)) -> Epoch {
        self.request_epoch(true, |reply| EngineCommand::Transaction(Transaction::of(write), reply))
    }

    /// Waits until everything that this thread wrote before is committed. Returns the epoch that is current then.
    pub fn flush(&self) -> Epoch {
        self.request_epoch(false, EngineCommand::Flush)
    }

    pub(crate) fn send(&self, command: EngineCommand) {
        self.inner.queue.send(false, command);
    }

    pub(crate) fn infos(&self) -> &[CollectionInfo] {
        &self.inner.infos
    }

    fn request_epoch(
        &self,
        priority: bool,
        command: impl FnOnce(crossbeam_channel::Sender<Epoch>) -> EngineCommand,
    ) -> Epoch {
        let (reply, answer) = bounded(1);
        self.inner.queue.send(priority, command(reply));
        // Without an answer the engine has stopped; its last epoch stays readable.
        answer.recv().unwrap_or_else(|_| self.inner.publisher.snapshot().epoch())
    }

    /// All published collections, at the latest epoch.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.inner.publisher.snapshot()
    }

    /// A new subscription to all published collections; [`Feed::only`] limits it.
    #[must_use]
    pub fn feed(&self) -> Feed {
        Feed::new(self.inner.publisher.clone(), self.inner.clock.clone())
    }

    /// Waits until all inputs are synced. False when the time limit passes or the engine stops first.
    #[must_use]
    pub fn wait_synced(&self, limit: Duration) -> bool {
        self.inner.publisher.wait(Some((&self.inner.clock, limit)), Snapshot::all_synced)
    }

    /// Waits until every input that a collection reads is synced. False when the time limit passes or the engine stops
    /// first.
    #[must_use]
    pub fn wait_synced_of<K: Key, V: Value>(&self, of: &Published<K, V>, limit: Duration) -> bool {
        self.inner.publisher.wait(Some((&self.inner.clock, limit)), |snapshot| snapshot.is_synced(of))
    }

    pub(crate) fn downgrade(&self) -> WeakEngine {
        WeakEngine(Arc::downgrade(&self.inner))
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Waits until the dataflow thread has ended, and returns the panic that ended it, if one did. It ends by itself only
    /// after a panic.
    pub async fn stopped(&self) -> Option<String> {
        poll_fn(|cx| self.inner.publisher.poll_closed(cx)).await
    }

    /// Metrics of the engine and of each collection.
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        use std::sync::atomic::Ordering::Relaxed;
        let counters = &self.inner.counters;
        EngineMetrics {
            epochs: counters.epochs.load(Relaxed),
            busy: Duration::from_nanos(counters.busy_nanos.load(Relaxed)),
            last_epoch: Duration::from_nanos(counters.last_nanos.load(Relaxed)),
            longest_epoch: Duration::from_nanos(counters.longest_nanos.load(Relaxed)),
            last_batch: counters.last_batch.load(Relaxed),
            queued: self.inner.queue.len(),
            collections: self.inner.gauges.iter().map(|gauges| gauges.read()).collect(),
        }
    }

    /// The most recent panics of closures, oldest first.
    #[must_use]
    pub fn panics(&self) -> Vec<PanicReport> {
        self.inner.panic_log.reports()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?})", self.snapshot())
    }
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        self.queue.send(false, EngineCommand::Stop);
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was reported when it occurred.
            let _ = thread.join();
        }
    }
}

/// Writes that become visible together.
pub struct Transaction {
    writes: Vec<(usize, WriteOp)>,
}

impl Transaction {
    fn of(write: impl FnOnce(&mut Self)) -> Vec<(usize, WriteOp)> {
        let mut transaction = Self { writes: Vec::new() };
        write(&mut transaction);
        transaction.writes
    }

    /// As [`Input::set`].
    pub fn set<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K, value: V) {
        self.writes.push((input.number, WriteOp::Set(Erased::new(key), Erased::new(value), None)));
    }

    /// As [`Input::set_from`].
    pub fn set_from<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K, value: V, origin: Origin) {
        self.writes.push((input.number, WriteOp::Set(Erased::new(key), Erased::new(value), Some(origin))));
    }

    /// As [`Input::delete`].
    pub fn delete<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K) {
        self.writes.push((input.number, WriteOp::Delete(Erased::new(key), None)));
    }

    /// As [`Input::delete_from`].
    pub fn delete_from<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K, origin: Origin) {
        self.writes.push((input.number, WriteOp::Delete(Erased::new(key), Some(origin))));
    }

    /// Deletes all records of an input for which `condition` is true, with those that the transaction has set so far.
    pub fn delete_where<K: Key, V: Value>(
        &mut self,
        input: &Input<K, V>,
        condition: impl Fn(&K, &V) -> bool + Send + 'static,
    ) {
        let condition = move |key: &Erased, value: &Erased| condition(key.get(), value.get());
        self.writes.push((input.number, WriteOp::DeleteWhere(DeleteCondition(Box::new(condition)))));
    }

    /// As [`Input::replace_all`].
    pub fn replace_all<K: Key, V: Value>(&mut self, input: &Input<K, V>, rows: impl IntoIterator<Item = (K, V)>) {
        let rows = rows.into_iter().map(|(key, value)| (Erased::new(key), Erased::new(value), None));
        self.writes.push((input.number, WriteOp::Replace(rows.collect())));
    }

    /// Writes a record of another engine of the same graph, or deletes it if it is absent there.
    pub fn write_record(&mut self, record: &InputRecord) {
        self.writes.push((record.input, record.op()));
    }

    /// Deletes the record of such a key.
    pub fn delete_record(&mut self, record: &InputRecord) {
        self.writes.push((record.input, WriteOp::Delete(record.key.clone(), None)));
    }

    /// As [`Input::mark_synced`].
    pub fn mark_synced<K: Key, V: Value>(&mut self, input: &Input<K, V>) {
        self.writes.push((input.number, WriteOp::Synced));
    }
}
