//! A directory of files as a source (K08).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_engine::{Input, Key, Value};
use sluice_watch::{FollowGuard, follow_tree, list_tree};
use tracing::warn;

use crate::guard;

/// Maximum size of a file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A source of files that cannot be started. [`FileSourceError::Read`] is retryable.
#[derive(Debug, thiserror::Error)]
pub enum FileSourceError {
    /// The file or directory cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The content of the file is not accepted.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The error of its reader.
        reason: String,
    },
    /// The thread that follows changes cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

type ParseFile<K, V> = Box<dyn Fn(&Path, &str) -> Result<Vec<(K, V)>, String> + Send>;
type FileFilter = fn(&Path) -> bool;

/// Keeps an input equal to the records in the files below a directory.
///
/// Files `*.yaml`, `*.yml` and `*.json` are read, also those in subdirectories. Hidden names are skipped, symbolic links
/// are followed, so that ConfigMap volumes can be read. After a change all files are read again and the input is replaced
/// in one epoch: only records that differ change. This is for directories with up to some thousand files.
///
/// A file that cannot be read or parsed keeps its last records and is a problem. If several files have a record of one key,
/// that of the last file in the order of their paths is used, and each of the others is a problem.
pub struct FolderSource<K, V> {
    root: PathBuf,
    records: Input<K, V>,
    problems: Option<Input<String, String>>,
    wanted: FileFilter,
    parse: ParseFile<K, V>,
}

impl<K: Key, V: Value> FolderSource<K, V> {
    /// The files below `root`, each parsed by `parse` from its path and text.
    #[must_use]
    pub fn new<E: Display>(
        root: impl Into<PathBuf>,
        records: Input<K, V>,
        parse: impl Fn(&Path, &str) -> Result<Vec<(K, V)>, E> + Send + 'static,
    ) -> Self {
        let parse: ParseFile<K, V> = Box::new(move |path, text| guard::call(|| parse(path, text)));
        Self { root: root.into(), records, problems: None, wanted: is_yaml_or_json, parse }
    }

    /// Writes the problems, by the path of the file.
    #[must_use]
    pub fn with_problems(self, problems: Input<String, String>) -> Self {
        Self { problems: Some(problems), ..self }
    }

    /// Reads the files for which `wanted` is true instead.
    #[must_use]
    pub fn with_file_filter(self, wanted: FileFilter) -> Self {
        Self { wanted, ..self }
    }

    /// Reads all files, marks the input as synced, and follows changes until the handle is dropped.
    ///
    /// # Errors
    /// The directory cannot be listed, or no thread can be started. A file that cannot be read is a problem instead.
    pub fn start(self) -> Result<FolderHandle, FileSourceError> {
        let (root, wanted) = (self.root.clone(), self.wanted);
        let folder = Arc::new(Mutex::new(Folder { source: self, files: BTreeMap::new(), is_synced: false }));
        let reread: Refresh = Arc::new(move || folder.lock().unwrap_or_else(PoisonError::into_inner).read());
        // The watch starts before the first read, so that no change is missed in between.
        let on_change = {
            let (root, reread) = (root.clone(), reread.clone());
            move || {
                if let Err(error) = reread() {
                    let directory = root.display();
                    warn!(%directory, %error, "failed to list a directory; the records of its files stay");
                }
            }
        };
        let following = follow_tree(&root, wanted, on_change).map_err(FileSourceError::Thread)?;
        reread().map_err(|error| FileSourceError::Read { path: root.clone(), error })?;
        Ok(FolderHandle { root, reread, _following: following })
    }
}

type Refresh = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// A directory that is followed until this is dropped. The records stay then.
#[must_use = "dropping the handle ends the source"]
pub struct FolderHandle {
    root: PathBuf,
    reread: Refresh,
    _following: FollowGuard,
}

impl FolderHandle {
    /// Reads all files now, without waiting for a notification. When it returns, the input has been written.
    ///
    /// # Errors
    /// The directory cannot be listed. Its records stay.
    pub fn refresh(&self) -> Result<(), FileSourceError> {
        (self.reread)().map_err(|error| FileSourceError::Read { path: self.root.clone(), error })
    }
}

/// What has been read.
struct Folder<K, V> {
    source: FolderSource<K, V>,
    /// The last valid records of each file.
    files: BTreeMap<PathBuf, Vec<(K, V)>>,
    is_synced: bool,
}

impl<K: Key, V: Value> Folder<K, V> {
    fn read(&mut self) -> io::Result<()> {
        let FolderSource { root, wanted, parse, .. } = &self.source;
        let mut errors = Vec::new();
        let listed: BTreeSet<PathBuf> =
            list_tree(root, wanted, &mut errors).into_iter().map(|(path, _)| path).collect();
        if let Some(position) = errors.iter().position(|(directory, _)| directory == root) {
            return Err(errors.swap_remove(position).1);
        }
        // The files of a directory that cannot be listed stay.
        let is_listed = |path: &Path| !errors.iter().any(|(directory, _)| path.starts_with(directory));
        self.files.retain(|path, _| listed.contains(path) || !is_listed(path));
        let mut problems: BTreeMap<PathBuf, String> =
            errors.iter().map(|(directory, error)| (directory.clone(), error.to_string())).collect();
        for path in listed {
            let parsed = read_text(&path).map_err(|error| error.to_string()).and_then(|text| parse(&path, &text));
            match parsed {
                Ok(records) => drop(self.files.insert(path, records)),
                Err(reason) => drop(problems.insert(path, reason)),
            }
        }
        let mut owners: BTreeMap<&K, (&Path, &V)> = BTreeMap::new();
        for (path, records) in &self.files {
            for (key, value) in records {
                if let Some((other, _)) = owners.insert(key, (path, value)) {
                    let reason = format!("record {key:?} is ignored, because {} has it, too", path.display());
                    problems.entry(other.to_owned()).or_insert(reason);
                }
            }
        }
        self.source.records.replace_all(owners.into_iter().map(|(key, (_, value))| (key.clone(), value.clone())));
        self.report(problems);
        Ok(())
    }

    fn report(&mut self, problems: BTreeMap<PathBuf, String>) {
        for (path, reason) in &problems {
            warn!(file = %path.display(), reason, "problem of a file");
        }
        let FolderSource { records, problems: input, .. } = &self.source;
        if let Some(input) = input {
            input.replace_all(problems.into_iter().map(|(path, reason)| (path.display().to_string(), reason)));
        }
        if !std::mem::replace(&mut self.is_synced, true) {
            records.mark_synced();
            input.iter().for_each(Input::mark_synced);
        }
    }
}

fn is_yaml_or_json(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json")
}

/// The text of a file.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}
