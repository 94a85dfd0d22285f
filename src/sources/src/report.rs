//! What is wrong with what sources read, for the log and for `/debug`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use sluice_model::{Kind, ObjectKey, ParsedObject, Severity, Text};
use sluice_parse::kind_info;
use tracing::{debug, info, warn};

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

/// Logs what parsing finds wrong. Of a kind that nothing is derived from yet, only the first object is news: there may be
/// thousands.
#[derive(Debug, Default)]
pub(super) struct RejectLog {
    /// Such kinds of which an object has been seen.
    unsupported: BTreeSet<Kind>,
}

impl RejectLog {
    /// Logs what was found in an object; `line` gives the line of a field path where the object is from a file.
    pub(super) fn log(&mut self, object: &ParsedObject, place: &str, line: impl Fn(&str) -> Option<usize>) {
        let is_news = self.is_news(object.kind);
        for reject in &object.rejects {
            let place = line(&reject.field_path).map_or_else(|| place.to_owned(), |line| format!("{place}:{line}"));
            let (kind, key, field, reason) = (reject.kind, shown(&reject.object), &reject.field_path, &reject.reason);
            match reject.severity {
                _ if !is_news => debug!(%kind, object = %key, %field, %reason, %place, "configuration in doubt"),
                Severity::Error => warn!(%kind, object = %key, %field, %reason, %place, "configuration rejected"),
                Severity::Refused => {
                    warn!(%kind, object = %key, %field, %reason, %place, "configuration that admission refuses");
                }
                Severity::Warning => info!(%kind, object = %key, %field, %reason, %place, "configuration in doubt"),
            }
        }
    }

    fn is_news(&mut self, kind: Kind) -> bool {
        let is_supported = kind_info(kind).is_some_and(|info| info.parse.is_some());
        is_supported || self.unsupported.insert(kind)
    }
}

fn shown(key: &ObjectKey) -> String {
    if key.namespace.is_empty() { key.name.to_string() } else { format!("{}/{}", key.namespace, key.name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_not_supported_is_news_once() {
        let mut log = RejectLog::default();
        assert!(log.is_news(Kind::InferencePool) && !log.is_news(Kind::InferencePool));
        assert!(log.is_news(Kind::Gateway) && log.is_news(Kind::Gateway));
    }
}
