//! The engine as its owner sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::bounded;

use crate::builder::GraphBuilder;
use crate::clock::Clock;
use crate::dump::CollectionInfo;
use crate::feed::{Feed, Hub};
use crate::flow::Build;
use crate::input::{Input, Op, Origin};
use crate::metrics::{EngineMetrics, Gauge, PanicLog, PanicReport};
use crate::output::{Epoch, Snapshot};
use crate::value::{Dyn, Key, Value};
use crate::worker::{Command, Engineer, Queue, Timing};

/// How an engine runs. None of it changes results.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Writes that may wait in each of the two queues; who writes more has to wait. Default 8192.
    pub queue: usize,
    /// Writes one epoch takes at most (one command always fits whole). Default 2048.
    pub batch: usize,
    /// Recent epochs kept to answer why something changed now; 0 keeps none. Default 256.
    pub history: usize,
    /// Time for metrics and time-outs.
    pub clock: Clock,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { queue: 8192, batch: 2048, history: 256, clock: Clock::default() }
    }
}

/// A running engine: one thread that keeps all collections up to date. Clones are handles to the same engine; it stops
/// when the last one is dropped.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Queue,
    hub: Arc<Hub>,
    timing: Arc<Timing>,
    gauges: Vec<Arc<Gauge>>,
    infos: Vec<CollectionInfo>,
    panic_log: Arc<PanicLog>,
    clock: Clock,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Tells all readers when the dataflow thread ends, however it ends.
struct CloseOnDrop(Arc<Hub>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Engine {
    /// Builds the graph on a new thread and starts it; gives what `build` returned (inputs, published collections).
    /// When this returns, the first epoch (with all `fixed` collections) is committed.
    ///
    /// # Panics
    /// With the panic of `build`, if it panics, and when no thread can be started.
    pub fn start<H: Send + 'static>(
        options: EngineOptions,
        build: impl FnOnce(&mut GraphBuilder) -> H + Send + 'static,
    ) -> (Self, H) {
        let mut handles = None;
        let (sender, receiver) = bounded(1);
        let build = move |builder: &mut GraphBuilder| {
            // The receiver waits for this or for the end of the thread.
            let _ = sender.send(build(builder));
        };
        let engine = Self::start_erased(options, Box::new(build), &mut || handles = receiver.recv().ok());
        match handles {
            Some(handles) => (engine, handles),
            None => engine.blame(),
        }
    }

    fn start_erased(
        options: EngineOptions,
        build: Box<dyn FnOnce(&mut GraphBuilder) + Send>,
        receive: &mut dyn FnMut(),
    ) -> Self {
        let (queue, commands) = Queue::bounded(options.queue);
        let hub = Arc::new(Hub::new());
        let timing = Arc::new(Timing::default());
        let panic_log = Arc::new(PanicLog::default());
        let clock = options.clock.clone();
        let (ready, started) = bounded(1);
        let thread = {
            let (queue, hub, timing, panic_log) = (queue.clone(), hub.clone(), timing.clone(), panic_log.clone());
            std::thread::Builder::new().name("sluice-dataflow".to_owned()).spawn(move || {
                let _close = CloseOnDrop(hub.clone());
                let mut builder = GraphBuilder { build: std::rc::Rc::new(Build::new(options, queue, panic_log)) };
                build(&mut builder);
                let mut engineer = Engineer::new(builder, hub, timing);
                engineer.commit(0);
                let nodes = &engineer.nodes;
                let flows = engineer.flow_names();
                let gauges: Vec<_> = nodes.iter().map(|node| node.gauge.clone()).collect();
                let infos: Vec<_> = (0..nodes.len()).map(|node| CollectionInfo::of(node, nodes, flows)).collect();
                // The starting thread waits for this.
                let _ = ready.send((gauges, infos));
                engineer.run(&commands);
            })
        };
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => panic!("start the dataflow thread: {error}"),
        };
        receive();
        let (gauges, infos) = started.recv().unwrap_or_default();
        let thread = Mutex::new(Some(thread));
        Self { inner: Arc::new(Inner { queue, hub, timing, gauges, infos, panic_log, clock, thread }) }
    }

    /// Goes on with the panic that ended the thread.
    fn blame(&self) -> ! {
        let thread = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => panic!("the dataflow thread ended early"),
        }
    }

    /// Makes several writes visible in one epoch; waits for it. Must not be called from within the dataflow.
    pub fn transaction(&self, write: impl FnOnce(&mut Transaction)) -> Epoch {
        let mut transaction = Transaction { writes: Vec::new() };
        write(&mut transaction);
        self.ask(|reply| Command::Transaction(transaction.writes, reply))
    }

    /// Waits until everything this thread wrote before is committed; gives the epoch that is current then.
    pub fn flush(&self) -> Epoch {
        self.ask(Command::Flush)
    }

    pub(crate) fn tell(&self, command: Command) {
        self.inner.queue.send(false, command);
    }

    pub(crate) fn infos(&self) -> &[CollectionInfo] {
        &self.inner.infos
    }

    fn ask(&self, command: impl FnOnce(crossbeam_channel::Sender<Epoch>) -> Command) -> Epoch {
        let (reply, answer) = bounded(1);
        self.tell(command(reply));
        // No answer means the engine has stopped; its last epoch stays readable.
        answer.recv().unwrap_or_else(|_| self.inner.hub.snapshot().epoch())
    }

    /// All published collections, at the latest epoch.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.inner.hub.snapshot()
    }

    /// A new subscription to all published collections; see [`Feed::only`].
    #[must_use]
    pub fn feed(&self) -> Feed {
        Feed::new(self.inner.hub.clone(), self.inner.clock.clone())
    }

    /// Waits until all inputs are synced. False when the time is up or the engine has stopped.
    #[must_use]
    pub fn wait_synced(&self, limit: Duration) -> bool {
        self.inner.hub.wait(&self.inner.clock, limit, crate::output::Snapshot::all_synced)
    }

    /// Figures of the engine and of each collection.
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        use std::sync::atomic::Ordering::Relaxed;
        let timing = &self.inner.timing;
        EngineMetrics {
            epochs: timing.epochs.load(Relaxed),
            busy: Duration::from_nanos(timing.busy_nanos.load(Relaxed)),
            last_epoch: Duration::from_nanos(timing.last_nanos.load(Relaxed)),
            longest_epoch: Duration::from_nanos(timing.longest_nanos.load(Relaxed)),
            last_batch: timing.last_batch.load(Relaxed),
            queued: self.inner.queue.len(),
            collections: self.inner.gauges.iter().map(|gauge| gauge.read()).collect(),
        }
    }

    /// The latest closures that panicked, oldest first.
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

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.send(false, Command::Stop);
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Writes that belong together.
pub struct Transaction {
    writes: Vec<(usize, Op)>,
}

impl Transaction {
    /// As [`Input::set`].
    pub fn set<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K, value: V) {
        self.writes.push((input.source, Op::Set(Dyn::new(key), Dyn::new(value), None)));
    }

    /// As [`Input::set_from`].
    pub fn set_from<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K, value: V, origin: Origin) {
        self.writes.push((input.source, Op::Set(Dyn::new(key), Dyn::new(value), Some(origin))));
    }

    /// As [`Input::delete`].
    pub fn delete<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K) {
        self.writes.push((input.source, Op::Delete(Dyn::new(key), None)));
    }

    /// As [`Input::delete_from`].
    pub fn delete_from<K: Key, V: Value>(&mut self, input: &Input<K, V>, key: K, origin: Origin) {
        self.writes.push((input.source, Op::Delete(Dyn::new(key), Some(origin))));
    }

    /// As [`Input::replace_all`].
    pub fn replace_all<K: Key, V: Value>(&mut self, input: &Input<K, V>, rows: impl IntoIterator<Item = (K, V)>) {
        let rows = rows.into_iter().map(|(key, value)| (Dyn::new(key), Dyn::new(value), None));
        self.writes.push((input.source, Op::Replace(rows.collect())));
    }

    /// As [`Input::mark_synced`].
    pub fn mark_synced<K: Key, V: Value>(&mut self, input: &Input<K, V>) {
        self.writes.push((input.source, Op::Synced));
    }
}
