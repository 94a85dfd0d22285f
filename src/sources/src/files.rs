//! A directory of YAML and JSON files as the source of a cluster's objects (C07).
//!
//! All files below the directory are read. Symbolic links are followed, hidden names are skipped. A file is read again
//! when it is closed after writing, moved into place or removed. A file that is written and not closed is read when it
//! has not changed for [`SETTLE_TIME`](sluice_watch::SETTLE_TIME). ConfigMap volumes, which change when a symbolic link
//! is replaced, are read again as a whole.

mod object;
mod parallel;
mod parsed_file;
mod read;
mod text;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

pub use object::FILE_CREATION_TIME;
use parallel::read_in_parallel;
use read::{FileVersion, is_config_file, read_text};
use sluice_model::Text;
use sluice_tasks::NamedThread;
use sluice_watch::{Due, FollowGuard, MAX_CHANGE_DELAY, RESCAN_INTERVAL, Watch};
use tracing::{info, warn};
use tree::Tree;

use super::{Change, Cluster, Reporter, Sink};

/// Maximum number of changes in one commit.
const MAX_CHANGES_PER_COMMIT: usize = 8192;
/// Maximum number of changes in one commit of the first read: small, so that the dataflow starts while files are still
/// being read.
const MAX_CHANGES_PER_FIRST_COMMIT: usize = 1024;

/// A directory that cannot be a source. [`FilesError::Directory`] is retryable.
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
    /// The thread that reads files cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The files found by a walk through a directory.
struct DirectoryListing {
    /// By the bytes of their paths.
    files: Vec<(PathBuf, FileVersion)>,
    /// Directories that cannot be listed, and why.
    unlisted: BTreeMap<PathBuf, String>,
}

impl DirectoryListing {
    fn walk(root: &Path) -> Self {
        let mut errors = Vec::new();
        let files = read::walk(root, &mut errors);
        Self { files, unlisted: errors.into_iter().map(|(directory, error)| (directory, error.to_string())).collect() }
    }

    fn contains(&self, path: &Path) -> bool {
        self.files.binary_search_by(|(listed, _)| listed.as_os_str().cmp(path.as_os_str())).is_ok()
    }
}

/// A configuration directory. It is watched from the moment it is opened.
pub struct FileSource {
    cluster: Cluster,
    root: PathBuf,
    watch: Watch,
    tree: Tree,
    versions: HashMap<PathBuf, FileVersion>,
    /// Directories that could not be listed at the last walk, and why.
    unlisted: BTreeMap<PathBuf, String>,
    reporter: Reporter,
}

impl FileSource {
    /// Opens a directory. Nothing is read yet.
    ///
    /// # Errors
    /// It is not a directory, or cannot be listed.
    pub fn open(cluster: Cluster, root: &Path, reporter: Reporter) -> Result<Self, FilesError> {
        let fail = |error| FilesError::Directory { path: root.to_owned(), error };
        if !std::fs::metadata(root).map_err(fail)?.is_dir() {
            return Err(fail(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        std::fs::read_dir(root).map_err(fail)?;
        // The watch starts before the first read, so that no change is missed in between.
        let mut watch = Watch::new(is_config_file);
        if let Err(error) = watch.add_tree(root) {
            let (directory, seconds) = (root.display(), RESCAN_INTERVAL.as_secs());
            warn!(%directory, %error, seconds, "a directory cannot be watched, its files are checked at an interval");
        }
        let tree = Tree::new(cluster.clone(), reporter.clone());
        Ok(Self {
            cluster,
            root: root.to_owned(),
            watch,
            tree,
            versions: HashMap::new(),
            unlisted: BTreeMap::new(),
            reporter,
        })
    }

    /// Reads all files into the sink and reports the cluster as synced.
    ///
    /// # Errors
    /// With `strict`, the first file that is not YAML.
    pub fn load(&mut self, sink: &dyn Sink, strict: bool) -> Result<(), FilesError> {
        let started = Instant::now();
        let listing = DirectoryListing::walk(&self.root);
        self.report_unlisted(&listing);
        let listed = listing.files;
        let paths: Vec<PathBuf> = listed.iter().map(|(path, _)| path.clone()).collect();
        let Self { tree, versions, .. } = self;
        let reader = tree.reader().clone();
        let mut changes = Vec::new();
        // The dataflow computes while the rest is still being read. No proxy is served before all files are read.
        read_in_parallel(&reader, &paths, |path, read| {
            match read {
                Ok((text, parsed)) => changes.extend(tree.take(path, &text, parsed, reread)),
                Err(problem) => tree.fail(path, problem),
            }
            if changes.len() >= MAX_CHANGES_PER_FIRST_COMMIT {
                commit(sink, std::mem::take(&mut changes));
            }
        });
        versions.extend(listed);
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

    /// Follows changes on a separate thread until the returned guard is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn follow(mut self, sink: Arc<dyn Sink>) -> Result<FollowGuard, FilesError> {
        let stop = self.watch.handle();
        let name = format!("files-{}", self.cluster.id);
        let thread = NamedThread::start(&name, move || self.run(&*sink)).map_err(FilesError::Thread)?;
        Ok(FollowGuard::new(stop, thread))
    }

    fn run(&mut self, sink: &dyn Sink) {
        let mut pending: BTreeMap<PathBuf, Instant> = BTreeMap::new();
        let mut next_rescan = Instant::now() + RESCAN_INTERVAL;
        let mut walk: Option<Receiver<DirectoryListing>> = None;
        let mut last_check = Instant::now();
        loop {
            // The end of a walk wakes this thread, and only one walk runs at a time.
            let rescan = if walk.is_none() { next_rescan } else { Instant::now() + RESCAN_INTERVAL };
            let wake = pending.values().copied().min().map_or(rescan, |due| due.min(rescan));
            match self.watch.next(wake) {
                Due::Stop => return,
                Due::Everything => next_rescan = Instant::now(),
                Due::File(path, at) => {
                    let due = pending.entry(path).or_insert(at);
                    // The last event decides: a close makes the file due now, another write delays it.
                    *due = at;
                    if self.watch.has_more() && last_check.elapsed() < MAX_CHANGE_DELAY {
                        continue;
                    }
                }
                Due::Nothing => {}
            }
            let now = Instant::now();
            last_check = now;
            let mut changes = Vec::new();
            let ready: Vec<PathBuf> =
                pending.iter().filter(|(_, due)| **due <= now).map(|(path, _)| path.clone()).collect();
            for path in &ready {
                pending.remove(path);
            }
            // Existing files before removed ones, so that an object that moves between files never disappears.
            let (existing, removed): (Vec<_>, Vec<_>) =
                ready.into_iter().partition(|path| read::file_version(path).is_some());
            for path in existing.iter().chain(&removed) {
                self.check(path, &mut changes);
            }
            match walk.as_ref().map(Receiver::try_recv) {
                Some(Ok(listing)) => {
                    walk = None;
                    self.report_unlisted(&listing);
                    changes.extend(self.rescan(&listing, &pending));
                }
                Some(Err(TryRecvError::Disconnected)) => walk = None,
                Some(Err(TryRecvError::Empty)) | None => {}
            }
            if walk.is_none() && next_rescan <= now {
                walk = Some(self.start_walk());
                next_rescan = now + RESCAN_INTERVAL;
            }
            commit(sink, changes);
        }
    }

    /// Logs each directory that cannot be listed, once while the reason stays the same. Returns them.
    fn report_unlisted(&mut self, listing: &DirectoryListing) -> Vec<PathBuf> {
        let is_new = |(directory, error): &(&PathBuf, &String)| self.unlisted.get(*directory) != Some(*error);
        let mut reported = Vec::new();
        for (directory, error) in listing.unlisted.iter().filter(is_new) {
            warn!(directory = %directory.display(), error, "failed to list a directory");
            reported.push(directory.clone());
        }
        self.unlisted.clone_from(&listing.unlisted);
        reported
    }

    /// Walks through the directory on a separate thread, because it takes long with many files and changes should not
    /// wait.
    fn start_walk(&self) -> Receiver<DirectoryListing> {
        let (sender, listing) = channel();
        let (root, waker) = (self.root.clone(), self.watch.handle());
        let walk = move || {
            // Fails only when the source has ended. If the walk panics, the directory is rescanned later.
            let _ = sender.send(DirectoryListing::walk(&root));
            waker.wake();
        };
        if let Err(error) = NamedThread::start("files-walk", walk) {
            warn!(%error, "failed to start a thread, the directory is rescanned later");
        }
        listing
    }

    /// Checks every file whose version differs from the one read last, except files that are still being written. The
    /// listing may be outdated, so the version of each of these files is read again.
    fn rescan(&mut self, listing: &DirectoryListing, pending: &BTreeMap<PathBuf, Instant>) -> Vec<Change> {
        let mut changes = Vec::new();
        let (all_read, mut still_listed) = (self.versions.len(), 0);
        for (path, version) in &listing.files {
            let read = self.versions.get(path);
            still_listed += usize::from(read.is_some());
            if read != Some(version) && !pending.contains_key(path) {
                self.check(path, &mut changes);
            }
        }
        if still_listed == all_read {
            return changes;
        }
        // If a directory cannot be listed, its files stay.
        let is_listed = |path: &Path| !listing.unlisted.keys().any(|directory| path.starts_with(directory));
        let removed: BTreeSet<_> =
            self.versions.keys().filter(|path| !listing.contains(path) && is_listed(path)).cloned().collect();
        for path in removed {
            self.check(&path, &mut changes);
        }
        changes
    }

    /// Reads a file if its version has changed.
    fn check(&mut self, path: &Path, changes: &mut Vec<Change>) {
        match read::file_version(path) {
            None => {
                if self.versions.remove(path).is_some() {
                    changes.extend(self.tree.remove(path, reread));
                }
            }
            Some(version) => {
                if self.versions.get(path) == Some(&version) {
                    return;
                }
                match read_text(path) {
                    Ok(text) => changes.extend(self.tree.set(path, &text, reread)),
                    Err(problem) => self.tree.fail(path, problem),
                }
                self.versions.insert(path.to_owned(), version);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_listed_is_reported_once() {
        let root = tempfile::tempdir().expect("a directory");
        let cluster = Cluster {
            id: "Kubernetes".into(),
            domain: "cluster.local".into(),
            is_remote: false,
            reads_remote_gateways: false,
            ignored: BTreeSet::new(),
            revision: Text::default(),
            multi_cluster_api: sluice_model::MultiClusterApi::default(),
        };
        let mut source = FileSource::open(cluster, root.path(), Reporter::default()).expect("opened");
        let listing = |unlisted: &[(&str, &str)]| DirectoryListing {
            files: Vec::new(),
            unlisted: unlisted.iter().map(|(path, reason)| (PathBuf::from(path), (*reason).to_owned())).collect(),
        };
        let mut report = |unlisted: &[(&str, &str)]| source.report_unlisted(&listing(unlisted)).len();
        assert_eq!(report(&[("a", "permission denied")]), 1);
        assert_eq!(report(&[("a", "permission denied")]), 0);
        assert_eq!(report(&[("a", "permission denied"), ("b", "permission denied")]), 1);
        assert_eq!(report(&[("a", "too many links"), ("b", "permission denied")]), 1, "another reason");
        assert_eq!(report(&[]), 0);
        assert_eq!(report(&[("a", "too many links")]), 1, "it could be listed meanwhile");
    }
}
