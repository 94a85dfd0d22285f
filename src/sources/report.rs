//! What is wrong with what sources read, for the log and for `/debug`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use sluice_model::{ObjectKey, ParsedObject, Severity, Text};
use tracing::{info, warn};

/// Problems of text that is no object at all, by where it stands. Rejects of objects are a collection of their own.
#[derive(Clone, Debug, Default)]
pub struct Reporter(Arc<Mutex<BTreeMap<Text, Problem>>>);

/// A text that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Serialize)]
pub struct Problem {
    /// Line of the file, 0 if it is the file as a whole.
    pub line: usize,
    /// Why, a lower-case fragment.
    pub reason: Text,
}

impl Reporter {
    /// Notes that a place has a problem, or has none any more. Says so in the log when that is new.
    pub fn set(&self, place: &Text, problem: Option<Problem>) {
        let mut problems = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Everything that is wrong now, by place.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<Text, Problem> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Logs what parsing found wrong in an object; `line` gives the line of a field path where the object is from a file.
pub(super) fn log_rejects(object: &ParsedObject, place: &str, line: impl Fn(&str) -> Option<usize>) {
    for reject in &object.rejects {
        let place = line(&reject.field_path).map_or_else(|| place.to_owned(), |line| format!("{place}:{line}"));
        let (kind, key, field, reason) = (reject.kind, shown(&reject.object), &reject.field_path, &reject.reason);
        match reject.severity {
            Severity::Error => warn!(%kind, object = %key, %field, %reason, %place, "configuration rejected"),
            Severity::Warning => info!(%kind, object = %key, %field, %reason, %place, "configuration in doubt"),
        }
    }
}

fn shown(key: &ObjectKey) -> String {
    if key.namespace.is_empty() { key.name.to_string() } else { format!("{}/{}", key.namespace, key.name) }
}
