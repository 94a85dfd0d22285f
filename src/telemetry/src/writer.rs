//! The writer of the log. A thread writes the lines, so that a log that cannot be written, or is read slowly, stops nothing
//! else. Lines that do not fit into its queue, or that cannot be written, are dropped and counted.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use tracing::warn;
use tracing_subscriber::fmt::MakeWriter;

use crate::rotation::{self, LogRotation, RotatedFile};
use crate::{Count, LogError, LogTarget};

/// Maximum size of the lines that wait to be written.
const MAX_QUEUED_BYTES: usize = 8 * 1024 * 1024;
/// Wait before a write is repeated that would block, because another process has made the stream non-blocking.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Lines that were dropped. It counts for the whole process, as the log does.
static DROPPED_LINES: LazyLock<Count> = LazyLock::new(Count::default);

/// Registers the metric of the log.
pub fn register(registry: &mut Registry) {
    let help = "Log lines that were dropped, because the log could not be written, or not fast enough";
    registry.register("sluice_log_lines_dropped_total", help, DROPPED_LINES.clone());
}

/// An open target.
type Stream = Box<dyn Write + Send>;

/// Opens a target.
fn open(target: &LogTarget) -> Result<Stream, LogError> {
    // Without the buffers and locks of the standard library.
    let file = match target {
        LogTarget::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        LogTarget::Stderr => io::stderr().as_fd().try_clone_to_owned().map(File::from),
        LogTarget::File(path) => rotation::open(path),
    };
    match file {
        Ok(file) => Ok(Box::new(file)),
        Err(error) => Err(LogError::Target { target: format!("{target:?}"), error }),
    }
}

/// The queue of the log. Clones share it.
#[derive(Clone)]
pub(crate) struct LogQueue(Arc<Shared>);

struct Shared {
    lines: Mutex<QueuedLines>,
    /// Lines were added.
    added: Condvar,
    /// All lines are written.
    written: Condvar,
}

#[derive(Default)]
struct QueuedLines {
    bytes: Vec<u8>,
    is_writing: bool,
}

impl LogQueue {
    /// Starts the thread that writes to the targets.
    pub(crate) fn start(targets: &[LogTarget], rotation: Option<&LogRotation>) -> Result<Self, LogError> {
        let mut streams = targets.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        if let Some(rotation) = rotation {
            let failed = |error| LogError::Target { target: rotation.path.display().to_string(), error };
            streams.push(Box::new(RotatedFile::open(rotation.clone()).map_err(failed)?));
        }
        Self::start_with(streams).map_err(LogError::Thread)
    }

    fn start_with(mut streams: Vec<Stream>) -> io::Result<Self> {
        let shared = Shared { lines: Mutex::default(), added: Condvar::new(), written: Condvar::new() };
        let queue = Self(Arc::new(shared));
        let writer = queue.clone();
        let run = move || while catch_unwind(AssertUnwindSafe(|| writer.write_all(&mut streams))).is_err() {};
        thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut lines = self.lock();
        if lines.bytes.len() + line.len() > MAX_QUEUED_BYTES {
            DROPPED_LINES.inc();
            return;
        }
        lines.bytes.extend_from_slice(line);
        drop(lines);
        self.0.added.notify_one();
    }

    /// Waits until all lines are written or dropped, for this time at most.
    pub(crate) fn flush(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut lines = self.lock();
        while lines.is_writing || !lines.bytes.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            lines = self.0.written.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes lines forever.
    fn write_all(&self, streams: &mut [Stream]) {
        let mut reported = DROPPED_LINES.get();
        loop {
            let mut lines = self.lock();
            lines.is_writing = false;
            while lines.bytes.is_empty() {
                self.0.written.notify_all();
                lines = self.0.added.wait(lines).unwrap_or_else(PoisonError::into_inner);
            }
            lines.is_writing = true;
            let bytes = std::mem::take(&mut lines.bytes);
            drop(lines);
            let mut unwritten: &[u8] = &[];
            for stream in &mut *streams {
                let rest = write(stream, &bytes);
                unwritten = if rest.len() > unwritten.len() { rest } else { unwritten };
            }
            DROPPED_LINES.inc_by(unwritten.iter().filter(|byte| **byte == b'\n').count() as u64);
            let dropped = DROPPED_LINES.get();
            if unwritten.is_empty() && dropped > reported {
                warn!(
                    lines = dropped - reported,
                    "log lines were dropped: the log could not be written, or not fast enough"
                );
                reported = dropped;
            }
        }
    }
}

/// Writes bytes. Returns those that cannot be written.
fn write<'b>(stream: &mut impl Write, mut bytes: &'b [u8]) -> &'b [u8] {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => break,
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(WRITE_RETRY_INTERVAL),
            Err(_) => break,
        }
    }
    bytes
}

/// Adds one line to the queue.
pub(crate) struct LineWriter<'q>(&'q LogQueue);

impl Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for LogQueue {
    type Writer = LineWriter<'w>;

    fn make_writer(&'w self) -> Self::Writer {
        LineWriter(self)
    }
}

/// Writes a line to standard error, and waits for this time at most.
pub fn print_error(line: &str, limit: Duration) {
    let (written, is_written) = std::sync::mpsc::channel();
    let line = format!("{line}\n");
    let write = move || {
        // Nothing else can report this failure.
        let _ = io::stderr().write_all(line.as_bytes());
        let _ = written.send(());
    };
    if thread::Builder::new().name("stderr".to_owned()).spawn(write).is_ok() {
        let _ = is_written.recv_timeout(limit);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A stream that waits for permission before each write, and fails when told to.
    struct SlowStream {
        permits: Receiver<Result<(), io::ErrorKind>>,
        written: Sender<Vec<u8>>,
    }

    impl Write for SlowStream {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.permits.recv().map_err(|_| io::ErrorKind::BrokenPipe)??;
            self.written.send(bytes.to_owned()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_that_cannot_be_written_blocks_no_caller_and_counts_dropped_lines() {
        let (permit, permits) = channel();
        let (written, writes) = channel();
        let queue = LogQueue::start_with(vec![Box::new(SlowStream { permits, written })]).expect("a thread");
        let line = [&[b'a'; 1023][..], b"\n"].concat();
        queue.push(&line);
        // The writer has taken the first line.
        while !queue.lock().is_writing {
            thread::yield_now();
        }
        let before = DROPPED_LINES.get();
        for _ in 0..MAX_QUEUED_BYTES / line.len() + 3 {
            queue.push(&line);
        }
        assert_eq!(DROPPED_LINES.get() - before, 3, "the queue is full");
        queue.flush(Duration::from_millis(1));

        permit.send(Ok(())).expect("the writer runs");
        assert_eq!(writes.recv().expect("written"), line);
        // A full disk.
        permit.send(Err(io::ErrorKind::StorageFull)).expect("the writer runs");
        queue.flush(Duration::from_secs(600));
        assert_eq!(DROPPED_LINES.get() - before, 3 + (MAX_QUEUED_BYTES / line.len()) as u64);

        // Space is free again.
        queue.push(b"last\n");
        permit.send(Err(io::ErrorKind::Interrupted)).expect("the writer runs");
        permit.send(Ok(())).expect("the writer runs");
        assert_eq!(writes.recv().expect("written"), b"last\n");
    }
}
