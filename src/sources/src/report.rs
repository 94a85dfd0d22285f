//! Problems with the text that sources read, for the log and for `/debug`: files that cannot be read, and objects that are
//! declared more than once.

use std::collections::BTreeMap;
use std::str::Utf8Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use sluice_model::{Kind, ObjectKey, ParsedObject, Severity, Text};
use tracing::{info, warn};

/// Problems of text that is not an object, by file, and objects that files declare more than once. Rejects of objects are a collection of the graph.
#[derive(Clone, Debug, Default)]
pub struct Reporter {
    problems: Arc<Mutex<BTreeMap<Text, Problem>>>,
    duplicates: Arc<Mutex<Duplicates>>,
}

/// Objects that files declare more than once, and objects that several sources of configuration have.
#[derive(Debug, Default)]
struct Duplicates {
    of_files: BTreeMap<(Kind, ObjectKey), Duplicate>,
    of_sources: BTreeMap<(Kind, ObjectKey), Duplicate>,
}

/// An object that files declare more than once, or that several sources of configuration have.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Duplicate {
    /// Its kind.
    pub kind: Kind,
    /// Its cluster, namespace and name.
    pub object: ObjectKey,
    /// The files that declare it, or the addresses of the sources.
    pub files: Vec<String>,
    /// The declaration that is used, `FILE:LINE`, or the address of the source.
    pub used: String,
}

/// A text that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Serialize)]
pub struct Problem {
    /// Line of the file, 0 for the file as a whole.
    pub line: usize,
    /// The reason, a lower-case fragment.
    pub reason: Text,
}

impl Problem {
    /// Bytes that are not UTF-8: the line of the first invalid byte.
    pub(super) fn not_utf8(bytes: &[u8], error: Utf8Error) -> Self {
        let valid = bytes.iter().take(error.valid_up_to());
        Self { line: valid.filter(|byte| **byte == b'\n').count() + 1, reason: "not UTF-8".into() }
    }
}

impl Reporter {
    /// Sets or clears the problem of a file, and logs a change.
    pub fn set(&self, place: &Text, problem: Option<Problem>) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        match problem {
            Some(problem) => {
                if problems.get(place) != Some(&problem) {
                    warn!(file = %place, line = problem.line, reason = %problem.reason, "cannot read configuration");
                    problems.insert(place.clone(), problem);
                }
            }
            None => {
                if problems.remove(place).is_some() {
                    info!(file = %place, "configuration is readable again");
                }
            }
        }
    }

    /// The current problems, by file.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<Text, Problem> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock_duplicates(&self) -> MutexGuard<'_, Duplicates> {
        self.duplicates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an object that is declared more than once. Returns whether that is new.
    pub(super) fn add_duplicate(&self, duplicate: Duplicate) -> bool {
        let id = (duplicate.kind, duplicate.object.clone());
        self.lock_duplicates().of_files.insert(id, duplicate.clone()).as_ref() != Some(&duplicate)
    }

    /// Removes an object that is declared once, or no longer.
    pub(super) fn remove_duplicate(&self, id: &(Kind, ObjectKey)) {
        self.lock_duplicates().of_files.remove(id);
    }

    /// Adds an object that several sources of configuration have.
    pub(super) fn add_duplicate_of_sources(&self, duplicate: Duplicate) {
        self.lock_duplicates().of_sources.insert((duplicate.kind, duplicate.object.clone()), duplicate);
    }

    /// Removes an object that one source of configuration has, or none.
    pub(super) fn remove_duplicate_of_sources(&self, id: &(Kind, ObjectKey)) {
        self.lock_duplicates().of_sources.remove(id);
    }

    /// The objects that files declare more than once, and those that several sources of configuration have.
    #[must_use]
    pub fn duplicates(&self) -> Vec<Duplicate> {
        let duplicates = self.lock_duplicates();
        duplicates.of_files.values().chain(duplicates.of_sources.values()).cloned().collect()
    }
}

/// Logs the rejects of an object. `lines` returns the lines of field paths if the object is from a file.
pub fn log_rejects(object: &ParsedObject, place: &str, lines: impl FnOnce(&[&str]) -> Vec<usize>) {
    if object.rejects.is_empty() {
        return;
    }
    let fields: Vec<&str> = object.rejects.iter().map(|reject| reject.field_path.as_str()).collect();
    let lines = lines(&fields);
    for (n, reject) in object.rejects.iter().enumerate() {
        let place = lines.get(n).map_or_else(|| place.to_owned(), |line| format!("{place}:{line}"));
        let (kind, key, field, reason) = (reject.kind, display(&reject.object), &reject.field_path, &reject.reason);
        match reject.severity {
            Severity::Error => warn!(%kind, object = %key, %field, %reason, %place, "configuration rejected"),
            Severity::Refused => {
                warn!(%kind, object = %key, %field, %reason, %place, "configuration is invalid: admission would refuse it");
            }
            Severity::Warning => info!(%kind, object = %key, %field, %reason, %place, "validation warning"),
        }
    }
}

fn display(key: &ObjectKey) -> String {
    if key.namespace.is_empty() { key.name.to_string() } else { format!("{}/{}", key.namespace, key.name) }
}
