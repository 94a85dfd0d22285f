//! Lists and reads files with objects.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Largest file.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Deepest nesting of directories.
const MAX_DEPTH: usize = 32;

/// Identity and times of a file, to detect a change.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A file that cannot be read as text.
#[derive(Debug)]
pub(super) struct ReadError {
    /// Number of the line with the first invalid byte; 0 if the file cannot be read.
    pub(super) line: usize,
    pub(super) reason: String,
}

/// Whether objects are read from a path: `*.yaml`, `*.yml` or `*.json`, not hidden.
pub(super) fn is_config_file(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json")
}

/// Every file below `root` that objects are read from. Symbolic links are followed, hidden directories are skipped.
///
/// Each directory that cannot be listed is added to `errors`.
pub(super) fn walk(root: &Path, errors: &mut Vec<(PathBuf, io::Error)>) -> BTreeMap<PathBuf, FileVersion> {
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    let mut files = BTreeMap::new();
    // Each directory with its ancestors: a symbolic link to an ancestor would be an endless loop.
    let mut directories = vec![(root.to_owned(), fs::metadata(root).map(|it| vec![identity(&it)]).unwrap_or_default())];
    while let Some((directory, ancestors)) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                errors.push((directory, error));
                continue;
            }
        };
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            // A dangling symbolic link, or a file that has been removed meanwhile.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if metadata.is_dir() {
                if ancestors.len() < MAX_DEPTH && !ancestors.contains(&identity(&metadata)) {
                    let mut ancestors = ancestors.clone();
                    ancestors.push(identity(&metadata));
                    directories.push((path, ancestors));
                }
            } else if metadata.is_file() && is_config_file(&path) {
                files.insert(path, version_of(&metadata));
            }
        }
    }
    files
}

/// The version of a file that objects are read from; `None` if it does not exist.
pub(super) fn file_version(path: &Path) -> Option<FileVersion> {
    let metadata = fs::metadata(path).ok()?;
    (metadata.is_file() && is_config_file(path)).then(|| version_of(&metadata))
}

fn version_of(metadata: &fs::Metadata) -> FileVersion {
    FileVersion {
        device: metadata.dev(),
        inode: metadata.ino(),
        bytes: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// The text of a file.
pub(super) fn read_text(path: &Path) -> Result<String, ReadError> {
    let fail = |error: io::Error| ReadError { line: 0, reason: error.to_string() };
    let file = File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(ReadError { line: 0, reason: format!("more than {MAX_FILE_BYTES} bytes") });
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count() + 1;
        ReadError { line, reason: "not UTF-8".to_owned() }
    })
}
