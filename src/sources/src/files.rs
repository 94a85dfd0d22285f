//! A directory of YAML and JSON files as the source of a cluster's objects (C07).
//!
//! Everything below the directory counts, links followed, hidden names left out. A file counts as a whole when it is
//! closed after writing, moved in place or removed; one that is written without being closed counts when it has been
//! quiet for a moment. Mounted ConfigMaps, which change by moving a link, are read anew.

mod at_once;
mod object;
mod read;
mod reading;
mod text;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use at_once::read_at_once;
use read::{FileVersion, is_config_file, read_text};
use sluice_model::Text;
use sluice_watch::{Due, FollowGuard, Watch};
use tracing::{info, warn};
use tree::Tree;

use super::{Change, Cluster, Reporter, Sink};

/// Interval of full rescans, for changes without a notification.
const RESCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Most changes in one commit.
const MAX_CHANGES_PER_COMMIT: usize = 8192;
/// Most changes in one commit of the first read: small, so that computing starts while files are still being read.
const MAX_CHANGES_PER_FIRST_COMMIT: usize = 1024;

/// A directory that cannot be a source. Retryable are [`FilesError::Directory`] and [`FilesError::Watch`].
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// It does not exist or cannot be listed.
    #[error("cannot read configuration directory {}: {error}", path.display())]
    Directory {
        /// As configured.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Changes cannot be watched.
    #[error("cannot watch configuration directory {}: {error}", path.display())]
    Watch {
        /// As configured.
        path: PathBuf,
        /// Why.
        error: notify::Error,
    },
    /// A file is not YAML, with `--strictConfig`.
    #[error("{file}: line {line}: {reason}")]
    Syntax {
        /// The file.
        file: Text,
        /// Its line.
        line: usize,
        /// What is wrong there.
        reason: Text,
    },
    /// The thread that reads cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The files found by a walk through a directory.
struct DirectoryListing {
    files: BTreeMap<PathBuf, FileVersion>,
    /// Directories that cannot be listed.
    unlisted: Vec<PathBuf>,
}

impl DirectoryListing {
    fn walk(root: &Path) -> Self {
        let mut errors = Vec::new();
        let files = read::walk(root, &mut errors);
        for (directory, error) in &errors {
            warn!(directory = %directory.display(), %error, "failed to list a directory");
        }
        Self { files, unlisted: errors.into_iter().map(|(directory, _)| directory).collect() }
    }
}

/// A directory that is watched from its opening on.
pub struct FileSource {
    cluster: Cluster,
    root: PathBuf,
    watch: Watch,
    tree: Tree,
    versions: HashMap<PathBuf, FileVersion>,
    reporter: Reporter,
}

impl FileSource {
    /// Opens a directory. Nothing is read yet.
    ///
    /// # Errors
    /// It is not a directory, or cannot be listed or watched.
    pub fn open(cluster: Cluster, root: &Path, reporter: Reporter) -> Result<Self, FilesError> {
        let fail = |error| FilesError::Directory { path: root.to_owned(), error };
        if !std::fs::metadata(root).map_err(fail)?.is_dir() {
            return Err(fail(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        std::fs::read_dir(root).map_err(fail)?;
        // Watched before it is read, so that no change is missed in between.
        let unwatched = |error| FilesError::Watch { path: root.to_owned(), error };
        let mut watch = Watch::new(is_config_file).map_err(unwatched)?;
        watch.add_tree(root).map_err(unwatched)?;
        let tree = Tree::new(cluster.clone(), reporter.clone());
        Ok(Self { cluster, root: root.to_owned(), watch, tree, versions: HashMap::new(), reporter })
    }

    /// Reads all files into the sink and reports the cluster as synced.
    ///
    /// # Errors
    /// With `strict`, the first file that is not YAML.
    pub fn load(&mut self, sink: &dyn Sink, strict: bool) -> Result<(), FilesError> {
        let started = Instant::now();
        let found = DirectoryListing::walk(&self.root).files;
        let paths: Vec<PathBuf> = found.keys().cloned().collect();
        let Self { tree, versions, .. } = self;
        let reader = tree.reader().clone();
        let mut changes = Vec::new();
        // Computed while the rest is still being read: no proxy is served before all of it is.
        read_at_once(&reader, &paths, |path, read| {
            match read {
                Ok((text, reading)) => changes.extend(tree.take(path, &text, reading, reread)),
                Err(error) => tree.fail(path, error.line, error.reason),
            }
            if changes.len() >= MAX_CHANGES_PER_FIRST_COMMIT {
                commit(sink, std::mem::take(&mut changes));
            }
        });
        versions.extend(found);
        if strict && let Some((file, problem)) = self.reporter.problems().into_iter().next() {
            return Err(FilesError::Syntax { file, line: problem.line, reason: problem.reason });
        }
        commit(sink, changes);
        sink.synced(&self.cluster.id, &self.cluster.kinds());
        let (cluster, directory, files) = (&self.cluster.id, self.root.display(), self.versions.len());
        let milliseconds = started.elapsed().as_millis();
        info!(%cluster, %directory, files, objects = self.tree.len(), milliseconds, "configuration directory read");
        Ok(())
    }

    /// Follows changes on a thread of its own, until the guard that is returned is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn follow(mut self, sink: Arc<dyn Sink>) -> Result<FollowGuard, FilesError> {
        let stop = self.watch.handle();
        let name = format!("files-{}", self.cluster.id);
        let thread = thread::Builder::new().name(name).spawn(move || self.run(&*sink)).map_err(FilesError::Thread)?;
        Ok(FollowGuard::new(stop, thread))
    }

    fn run(&mut self, sink: &dyn Sink) {
        let mut pending: BTreeMap<PathBuf, Instant> = BTreeMap::new();
        let mut next_sweep = Instant::now() + RESCAN_INTERVAL;
        let mut walk: Option<Receiver<DirectoryListing>> = None;
        loop {
            // A walk wakes it when it ends, and none begins before.
            let sweep = if walk.is_none() { next_sweep } else { Instant::now() + RESCAN_INTERVAL };
            let wake = pending.values().copied().min().map_or(sweep, |due| due.min(sweep));
            match self.watch.next(wake) {
                Due::Stop => return,
                Due::Everything => next_sweep = Instant::now(),
                Due::File(path, at) => {
                    let due = pending.entry(path).or_insert(at);
                    // Being closed now beats being written before; being written again later waits again.
                    *due = at;
                    if self.watch.has_more() {
                        continue;
                    }
                }
                Due::Nothing => {}
            }
            let now = Instant::now();
            let mut changes = Vec::new();
            let ready: Vec<PathBuf> =
                pending.iter().filter(|(_, due)| **due <= now).map(|(path, _)| path.clone()).collect();
            for path in &ready {
                pending.remove(path);
            }
            // Present objects before deleted ones, so that an object that moves between files never disappears.
            let (present, gone): (Vec<_>, Vec<_>) = ready.into_iter().partition(|path| read::stamp(path).is_some());
            for path in present.iter().chain(&gone) {
                self.check(path, &mut changes);
            }
            match walk.as_ref().map(Receiver::try_recv) {
                Some(Ok(found)) => {
                    walk = None;
                    changes.extend(self.sweep(&found, &pending));
                }
                Some(Err(TryRecvError::Disconnected)) => walk = None,
                Some(Err(TryRecvError::Empty)) | None => {}
            }
            if walk.is_none() && next_sweep <= now {
                walk = Some(self.begin_walk());
                next_sweep = now + RESCAN_INTERVAL;
            }
            commit(sink, changes);
        }
    }

    /// Walks through the directory on a thread of its own: with many files it takes long, and changes should not wait.
    fn begin_walk(&self) -> Receiver<DirectoryListing> {
        let (sender, found) = channel();
        let (root, waker) = (self.root.clone(), self.watch.handle());
        let walk = move || {
            // Fails only when the source has ended.
            let _ = sender.send(DirectoryListing::walk(&root));
            waker.wake();
        };
        if let Err(error) = thread::Builder::new().name("files-walk".to_owned()).spawn(walk) {
            warn!(%error, "failed to start a thread, the next rescan is later");
        }
        found
    }

    /// Looks at every file that is not what it was when it was read last, but those still being written. What was found
    /// may be of a while ago: each of these files is looked at again.
    fn sweep(&mut self, found: &DirectoryListing, busy: &BTreeMap<PathBuf, Instant>) -> Vec<Change> {
        let DirectoryListing { files, unlisted } = found;
        let mut changes = Vec::new();
        for (path, stamp) in files {
            if self.versions.get(path) != Some(stamp) && !busy.contains_key(path) {
                self.check(path, &mut changes);
            }
        }
        // A directory that cannot be listed for once has not lost its files.
        let lost = |path: &Path| !unlisted.iter().any(|directory| path.starts_with(directory));
        let gone: BTreeSet<_> =
            self.versions.keys().filter(|path| !files.contains_key(*path) && lost(path)).cloned().collect();
        for path in gone {
            self.check(&path, &mut changes);
        }
        changes
    }

    /// Reads a file if it is not what it was.
    fn check(&mut self, path: &Path, changes: &mut Vec<Change>) {
        match read::stamp(path) {
            None => {
                if self.versions.remove(path).is_some() {
                    changes.extend(self.tree.remove(path, reread));
                }
            }
            Some(stamp) => {
                if self.versions.get(path) == Some(&stamp) {
                    return;
                }
                match read_text(path) {
                    Ok(text) => changes.extend(self.tree.set(path, &text, reread)),
                    Err(error) => self.tree.fail(path, error.line, error.reason),
                }
                self.versions.insert(path.to_owned(), stamp);
            }
        }
    }
}

fn reread(path: &Path) -> Option<String> {
    read_text(path).ok()
}

fn commit(sink: &dyn Sink, changes: Vec<Change>) {
    let mut changes = changes.into_iter().peekable();
    while changes.peek().is_some() {
        sink.commit(changes.by_ref().take(MAX_CHANGES_PER_COMMIT).collect());
    }
}
