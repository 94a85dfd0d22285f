//! Changes of files in directories, as the operating system reports them. Where it reports none, files are checked at an
//! interval.

mod last_reason;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind};
use notify::{Event, EventKind, NullWatcher, RecursiveMode, Watcher};
use sluice_tasks::{NamedThread, ThreadEnd};
use tracing::{debug, warn};
pub use tree::list_tree;

pub use last_reason::LastReason;

/// A file that is written and not closed is taken as complete when it has not changed for this time.
pub const SETTLE_TIME: Duration = Duration::from_millis(300);

/// Longest time that changes which follow each other without a pause delay the first of them.
pub const MAX_CHANGE_DELAY: Duration = Duration::from_secs(2);

/// The next thing to check.
#[derive(Debug)]
pub enum Due {
    /// A file, at that time.
    File(PathBuf, Instant),
    /// All files.
    Everything,
    /// Nothing: the wait has ended, or the watch was woken.
    Nothing,
    /// The watch is stopped.
    Stop,
}

enum Message {
    Event(Result<Event, notify::Error>),
    Wake,
    Stop,
}

/// Selects the files to report.
type FileFilter = Box<dyn Fn(&Path) -> bool + Send>;

/// Watched directories.
pub struct Watch {
    messages: Receiver<Message>,
    sender: Sender<Message>,
    /// Further results of the last event.
    ready: Vec<Due>,
    wanted: FileFilter,
    /// Watched trees.
    roots: Vec<PathBuf>,
    // The watch ends when this is dropped.
    watcher: Box<dyn Watcher + Send>,
}

/// Receives the events of a watcher.
pub type EventSender = Box<dyn Fn(Result<Event, notify::Error>) + Send>;

impl Watch {
    /// Watches nothing yet. Only files for which `wanted` returns true are reported. If the operating system cannot watch
    /// files, nothing is reported.
    pub fn new(wanted: impl Fn(&Path) -> bool + Send + 'static) -> Self {
        Self::with_watcher(wanted, |events| Ok(Box::new(notify::recommended_watcher(events)?)))
    }

    /// With this watcher instead of that of the operating system.
    pub fn with_watcher(
        wanted: impl Fn(&Path) -> bool + Send + 'static,
        watcher: impl FnOnce(EventSender) -> Result<Box<dyn Watcher + Send>, notify::Error>,
    ) -> Self {
        let (sender, messages) = channel();
        let events = sender.clone();
        let watcher = watcher(Box::new(move |event| {
            // Fails only when the watch has been dropped.
            let _ = events.send(Message::Event(event));
        }));
        let watcher = watcher.unwrap_or_else(|error| {
            warn!(%error, "files cannot be watched, they are checked at an interval");
            Box::new(NullWatcher)
        });
        Self { messages, sender, ready: Vec::new(), wanted: Box::new(wanted), roots: Vec::new(), watcher }
    }

    /// Watches a directory and all below it. Call it again if the directory may have been replaced.
    pub fn add_tree(&mut self, root: &Path) -> Result<(), notify::Error> {
        if !self.roots.iter().any(|known| known == root) {
            self.roots.push(root.to_owned());
        }
        self.watcher.watch(root, RecursiveMode::Recursive)
    }

    /// Watches the files in a directory, not its subdirectories. Call it again if the directory may have been replaced.
    pub fn add_directory(&mut self, directory: &Path) -> Result<(), notify::Error> {
        self.watcher.watch(directory, RecursiveMode::NonRecursive)
    }

    /// A handle that stops or wakes the watch.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(self.sender.clone())
    }

    /// The next thing to check, or `Nothing` at `wake`.
    pub fn next(&mut self, wake: Instant) -> Due {
        loop {
            if let Some(due) = self.ready.pop() {
                return due;
            }
            match self.messages.recv_timeout(wake.saturating_duration_since(Instant::now())) {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return Due::Stop,
                Ok(Message::Event(event)) => {
                    self.ready = self.interpret(event);
                    // Events of other files must not delay the end of the wait.
                    if self.ready.is_empty() && Instant::now() >= wake {
                        return Due::Nothing;
                    }
                }
                Ok(Message::Wake) | Err(RecvTimeoutError::Timeout) => return Due::Nothing,
            }
        }
    }

    /// Whether more events are waiting, so that they can be processed together.
    pub fn has_more(&mut self) -> bool {
        while self.ready.is_empty() {
            match self.messages.try_recv() {
                Ok(Message::Event(event)) => self.ready = self.interpret(event),
                Ok(Message::Wake) => self.ready = vec![Due::Nothing],
                Ok(Message::Stop) => self.ready = vec![Due::Stop],
                Err(_) => return false,
            }
        }
        true
    }

    /// Whether a path is in a hidden directory of a watched tree.
    fn is_hidden(&self, path: &Path) -> bool {
        let below = self.roots.iter().find_map(|root| path.strip_prefix(root).ok()?.parent());
        below.is_some_and(|below| below.iter().any(|name| name.as_encoded_bytes().starts_with(b".")))
    }

    fn interpret(&self, event: Result<Event, notify::Error>) -> Vec<Due> {
        let now = Instant::now();
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                warn!(%error, "watching files failed, checking all files");
                return vec![Due::Everything];
            }
        };
        if event.need_rescan() {
            return vec![Due::Everything];
        }
        let at = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(RemoveKind::File) => now,
            // A new file, whose content follows, or a link, which is complete. The event does not distinguish them.
            EventKind::Create(CreateKind::File | CreateKind::Any | CreateKind::Other) => now + SETTLE_TIME,
            EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Any | ModifyKind::Other) => now + SETTLE_TIME,
            EventKind::Modify(ModifyKind::Metadata(_)) => now + SETTLE_TIME,
            EventKind::Create(CreateKind::Folder) | EventKind::Remove(_) | EventKind::Any | EventKind::Other => {
                return vec![Due::Everything];
            }
            EventKind::Access(_) => return Vec::new(),
        };
        let is_move = matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)));
        let mut due = Vec::new();
        for path in event.paths {
            if self.is_hidden(&path) {
                continue;
            }
            let name = path.file_name().map_or(&b""[..], |name| name.as_encoded_bytes());
            if (self.wanted)(&path) && !path.is_dir() {
                due.push(Due::File(path, at));
            } else if name.starts_with(b".") && !name.starts_with(b"..") {
                // A temporary file of an editor.
            } else if is_move || name.starts_with(b"..") {
                // A moved directory, or the symbolic link that changes a ConfigMap volume.
                return vec![Due::Everything];
            }
        }
        due
    }
}

/// Stops or wakes a [`Watch`].
#[derive(Clone)]
pub struct Handle(Sender<Message>);

impl Handle {
    /// Makes `next` return.
    pub fn wake(&self) {
        // Fails only when the watch has been dropped.
        let _ = self.0.send(Message::Wake);
    }

    /// Stops the watch.
    pub fn stop(&self) {
        // Fails only when the watch has been dropped.
        let _ = self.0.send(Message::Stop);
    }
}

/// Stops following files when it is dropped.
pub struct FollowGuard {
    stop: Handle,
    thread: Option<NamedThread>,
}

impl FollowGuard {
    /// Guards a thread that ends when `stop` is called.
    #[must_use]
    pub fn new(stop: Handle, thread: NamedThread) -> Self {
        Self { stop, thread: Some(thread) }
    }

    /// The end of the thread. `None` from the second call on.
    pub fn end(&mut self) -> Option<ThreadEnd> {
        self.thread.as_mut()?.end()
    }
}

impl Drop for FollowGuard {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// Name of the thread of [`follow_changes`].
const FOLLOW_THREAD: &str = "follow-files";

/// Interval of checks without a notification.
pub const RESCAN_INTERVAL: Duration = Duration::from_secs(10);

/// Calls `on_change` after changes of `wanted` files in directories, until the guard is dropped: once for changes that
/// follow each other within [`SETTLE_TIME`], after [`MAX_CHANGE_DELAY`] at the latest, and at [`RESCAN_INTERVAL`] without
/// any notification. If it panics, it is called again at the next change or check.
///
/// # Errors
/// The thread cannot be started.
pub fn follow_changes(
    directories: &[PathBuf],
    wanted: impl Fn(&Path) -> bool + Send + 'static,
    on_change: impl Fn() + Send + 'static,
) -> io::Result<FollowGuard> {
    follow_with(Watch::new(wanted), RESCAN_INTERVAL, directories, Watch::add_directory, on_change)
}

/// As [`follow_changes`], of all files below a directory.
///
/// # Errors
/// The thread cannot be started.
pub fn follow_tree(
    root: &Path,
    wanted: impl Fn(&Path) -> bool + Send + 'static,
    on_change: impl Fn() + Send + 'static,
) -> io::Result<FollowGuard> {
    follow_with(Watch::new(wanted), RESCAN_INTERVAL, &[root.to_owned()], Watch::add_tree, on_change)
}

/// Adds a directory to a watch.
type AddDirectory = fn(&mut Watch, &Path) -> Result<(), notify::Error>;

fn follow_with(
    mut watch: Watch,
    rescan_interval: Duration,
    directories: &[PathBuf],
    add: AddDirectory,
    on_change: impl Fn() + Send + 'static,
) -> io::Result<FollowGuard> {
    let directories = directories.to_vec();
    for directory in &directories {
        if let Err(error) = add(&mut watch, directory) {
            let (is_missing, seconds) = (!directory.exists(), rescan_interval.as_secs());
            let directory = directory.display();
            if is_missing {
                // It may be optional: the reader of its files reports those that are missing.
                debug!(%directory, seconds, "a directory does not exist, it is checked at an interval");
            } else {
                warn!(%directory, %error, seconds, "a directory cannot be watched, its files are checked at an interval");
            }
        }
    }
    let stopper = watch.handle();
    let following = move || follow_until_stop(&mut watch, rescan_interval, &directories, add, &on_change);
    let thread = NamedThread::start_restarted(FOLLOW_THREAD, following)?;
    Ok(FollowGuard::new(stopper, thread))
}

fn follow_until_stop(
    watch: &mut Watch,
    rescan_interval: Duration,
    directories: &[PathBuf],
    add: AddDirectory,
    on_change: &impl Fn(),
) {
    let mut wake = Instant::now() + rescan_interval;
    let mut first_change = None;
    loop {
        match watch.next(wake) {
            Due::Stop => return,
            // Several files can change one after the other: wait for the last one.
            Due::File(..) | Due::Everything => {
                let now = Instant::now();
                wake = (now + SETTLE_TIME).min(*first_change.get_or_insert(now) + MAX_CHANGE_DELAY);
                if now < wake {
                    continue;
                }
            }
            Due::Nothing => {}
        }
        on_change();
        if first_change.take().is_none() {
            for directory in directories {
                // It may not have existed, or may have been replaced. If it cannot be watched, the next check follows.
                let _ = add(watch, directory);
            }
        }
        wake = Instant::now() + rescan_interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_followed_after_a_panic() {
        let directory = tempfile::tempdir().expect("a directory");
        let (sender, calls) = channel();
        let on_change = move || {
            sender.send(()).expect("the test runs");
            panic!("a bug");
        };
        let _guard = follow_changes(&[directory.path().to_owned()], |_| true, on_change).expect("followed");
        for name in ["a", "b"] {
            std::fs::write(directory.path().join(name), name).expect("written");
            calls.recv_timeout(Duration::from_secs(30)).expect("the change is reported");
        }
    }

    #[test]
    fn file_moved_out_of_a_hidden_directory_is_reported_alone() {
        let root = tempfile::tempdir().expect("a directory");
        let staging = root.path().join(".staging");
        std::fs::create_dir(&staging).expect("made");
        let mut watch = Watch::new(|path| path.extension().is_some_and(|end| end == "yaml"));
        watch.add_tree(root.path()).expect("watched");
        std::fs::write(staging.join("next"), "a").expect("written");
        let target = root.path().join("a.yaml");
        std::fs::rename(staging.join("next"), &target).expect("moved");
        match watch.next(Instant::now() + Duration::from_secs(30)) {
            Due::File(path, _) => assert_eq!(path, target),
            other => panic!("{other:?}"),
        }
    }

    /// Follows a directory with a watcher that reports nothing. Each call of `on_change` is sent.
    fn follow_without_notifications(
        failure: Option<notify::Error>,
        directory: &Path,
    ) -> (FollowGuard, std::sync::mpsc::Receiver<()>) {
        let (sender, calls) = channel();
        let watch = Watch::with_watcher(
            |_| true,
            |_| match failure {
                Some(error) => Err(error),
                None => Ok(Box::new(NullWatcher)),
            },
        );
        let directories = [directory.to_owned()];
        let guard = follow_with(watch, Duration::from_millis(20), &directories, Watch::add_directory, move || {
            // Fails only when the test has ended.
            let _ = sender.send(());
        });
        (guard.expect("a thread"), calls)
    }

    #[test]
    fn files_are_checked_at_an_interval_without_notifications() {
        let root = tempfile::tempdir().expect("a directory");
        for failure in [None, Some(notify::Error::generic("no inotify"))] {
            let (_guard, calls) = follow_without_notifications(failure, root.path());
            for _ in 0..3 {
                calls.recv_timeout(Duration::from_secs(20)).expect("a check");
            }
        }
        let (_guard, calls) = follow_without_notifications(None, &root.path().join("missing"));
        calls.recv_timeout(Duration::from_secs(20)).expect("a check, although the directory is missing");
    }

    #[test]
    fn changes_without_a_pause_are_reported_in_time() {
        let root = tempfile::tempdir().expect("a directory");
        let (sender, calls) = channel();
        let (events_sender, events) = channel();
        let watch = Watch::with_watcher(
            |_| true,
            |events| {
                events_sender.send(events).expect("received");
                Ok(Box::new(NullWatcher))
            },
        );
        // Without changes, there is no check before the test ends.
        let interval = Duration::from_secs(3600);
        let guard = follow_with(watch, interval, &[root.path().to_owned()], Watch::add_directory, move || {
            // Fails only when the test has ended.
            let _ = sender.send(());
        });
        let report = events.recv().expect("the sender of events");
        let path = root.path().join("ca-cert.pem");
        let kind = EventKind::Modify(ModifyKind::Data(notify::event::DataChange::Any));
        let deadline = Instant::now() + Duration::from_secs(20);
        while calls.try_recv().is_err() {
            assert!(Instant::now() < deadline, "the changes are reported while they go on");
            report(Ok(Event::new(kind).add_path(path.clone())));
            std::thread::sleep(SETTLE_TIME / 10);
        }
        drop(guard);
    }
}
