//! Input of the subcommands: files, directory trees and standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Extensions of the files that are read in directories.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The text of a file or of standard input, with its name in messages.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Reads a file, a directory tree, or standard input if `path` is `-`. Each file or directory that cannot be read adds
/// a line to `failures`; the others are read.
pub(crate) fn read(path: &Path, failures: &mut Vec<String>) -> Vec<Source> {
    let mut sources = Vec::new();
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes);
        add("stdin", read, &mut sources, failures);
    } else if path.is_dir() {
        read_directory(path, &mut sources, failures);
    } else {
        read_file(path, &mut sources, failures);
    }
    sources
}

fn read_file(path: &Path, sources: &mut Vec<Source>, failures: &mut Vec<String>) {
    add(&path.display().to_string(), std::fs::read(path), sources, failures);
}

fn add(name: &str, read: std::io::Result<Vec<u8>>, sources: &mut Vec<Source>, failures: &mut Vec<String>) {
    let text = read.map_err(|error| error.to_string()).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|error| format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    });
    match text {
        Ok(text) => sources.push(Source { name: name.to_owned(), text }),
        Err(error) => failures.push(format!("{name}: cannot read: {error}")),
    }
}

/// Reads the files with one of the [`EXTENSIONS`] and the directories below `path`, in order of their names.
fn read_directory(path: &Path, sources: &mut Vec<Source>, failures: &mut Vec<String>) {
    let mut failed = |error: std::io::Error| failures.push(format!("{}: cannot list: {error}", path.display()));
    let mut entries: Vec<(PathBuf, bool)> = Vec::new();
    match std::fs::read_dir(path) {
        Ok(list) => {
            for entry in list {
                // The directory entry contains the type, so the type is known even if the file is not accessible.
                match entry.and_then(|entry| Ok((entry.path(), entry.file_type()?))) {
                    // A symbolic link to a directory is not followed, because it may lead to a cycle.
                    Ok((path, kind)) if kind.is_symlink() && path.is_dir() => {}
                    Ok((path, kind)) => entries.push((path, kind.is_dir())),
                    Err(error) => failed(error),
                }
            }
        }
        Err(error) => failed(error),
    }
    entries.sort();
    for (path, is_dir) in entries {
        if is_dir && !is_hidden(&path) {
            read_directory(&path, sources, failures);
        } else if !is_dir && has_extension(&path) {
            read_file(&path, sources, failures);
        }
    }
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.'))
}

fn has_extension(path: &Path) -> bool {
    path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| EXTENSIONS.contains(&extension))
}
