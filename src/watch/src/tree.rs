//! Lists the files below a directory.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum nesting of directories.
const MAX_DEPTH: usize = 32;

/// Every wanted file below `root` with its metadata, by the bytes of its path. Symbolic links are followed, hidden names
/// are skipped.
///
/// Each directory that cannot be listed is added to `errors`.
pub fn list_tree(
    root: &Path,
    wanted: impl Fn(&Path) -> bool,
    errors: &mut Vec<(PathBuf, io::Error)>,
) -> Vec<(PathBuf, Metadata)> {
    let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    let mut files = Vec::new();
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
            } else if metadata.is_file() && wanted(&path) {
                files.push((path, metadata));
            }
        }
    }
    // Paths compare by component, which takes long.
    files.sort_unstable_by(|(one, _), (other, _)| one.as_os_str().cmp(other.as_os_str()));
    files
}
