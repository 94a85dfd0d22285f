//! Lists and reads files with objects.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sluice_watch::list_tree;

use crate::Problem;

/// Maximum size of a file.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Identity and times of a file, to detect a change.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Whether objects are read from a path: `*.yaml`, `*.yml` or `*.json`, not hidden.
pub(super) fn is_config_file(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json")
}

/// Every file below `root` that objects are read from. Symbolic links are followed, hidden directories are skipped.
///
/// Each directory that cannot be listed is added to `errors`.
pub(super) fn walk(root: &Path, errors: &mut Vec<(PathBuf, io::Error)>) -> Vec<(PathBuf, FileVersion)> {
    let files = list_tree(root, is_config_file, errors);
    files.into_iter().map(|(path, metadata)| (path, version_of(&metadata))).collect()
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
pub(super) fn read_text(path: &Path) -> Result<String, Problem> {
    let fail = |error: io::Error| Problem { line: 0, reason: error.to_string().into() };
    let file = File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Problem { line: 0, reason: format!("more than {MAX_FILE_BYTES} bytes").into() });
    }
    String::from_utf8(bytes).map_err(|error| Problem::not_utf8(error.as_bytes(), error.utf8_error()))
}
