//! The texts a command is given: files, whole directories, standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Endings of files that are read in directories.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// A text, and how it is called in messages.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// Reads a path; everything that cannot be read is told in `failures`, with the rest read all the same.
pub(crate) fn read(path: &Path, failures: &mut Vec<String>) -> Vec<Source> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        let text = read.map_err(|error| error.to_string()).and_then(|_| utf8(bytes));
        return text.map_or_else(|error| fail("standard input", &error, failures), |text| source("stdin", text));
    }
    let name = path.display().to_string();
    if !path.is_dir() {
        let text = std::fs::read(path).map_err(|error| error.to_string()).and_then(utf8);
        return text.map_or_else(|error| fail(&name, &error, failures), |text| source(&name, text));
    }
    let mut entries: Vec<PathBuf> = match std::fs::read_dir(path) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
        Err(error) => return fail(&name, &error.to_string(), failures),
    };
    entries.sort();
    entries.into_iter().filter(|entry| is_wanted(entry)).flat_map(|entry| read(&entry, failures)).collect()
}

/// Directories, but for hidden ones and links (which may lead in circles), and files with the right ending.
fn is_wanted(path: &Path) -> bool {
    if path.is_dir() {
        let hidden = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.'));
        return !hidden && !path.is_symlink();
    }
    path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| ENDINGS.contains(&ending))
}

fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

fn source(name: &str, text: String) -> Vec<Source> {
    vec![Source { name: name.to_owned(), text }]
}

fn fail(name: &str, error: &str, failures: &mut Vec<String>) -> Vec<Source> {
    failures.push(format!("{name}: {error}"));
    Vec::new()
}
