//! `wait`: the progress of a change of an object, until the proxies that it concerns have acknowledged it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_engine::{Epoch, EpochSummary, HistoryQuery, Origin, Write};
use sluice_graph::{Inputs, RejectKey};
use sluice_model::{Kind, ObjectKey, Severity};
use sluice_xds::{AckCounts, LaggingProxy};

use super::AnswerError;
use super::change_acks::ChangeAcks;
use super::names::ObjectName;
use super::objects::ObjectVersion;
use crate::AdminState;

/// What is awaited.
#[derive(Clone, Debug)]
pub(crate) struct WaitQuestion {
    pub(crate) object: ObjectName,
    /// The resourceVersion, or `FILE:LINE`, to wait for.
    pub(crate) version: Option<String>,
    /// The generation to wait for.
    pub(crate) generation: Option<i64>,
    pub(crate) goal: Goal,
    pub(crate) timeout: Duration,
}

/// When the wait ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The object is read and its resources are derived.
    Applied,
    /// This share of the proxies it concerns have acknowledged it, in percent.
    Acked(f64),
}

impl Goal {
    /// Reads `applied`, `acked` or `acked=PERCENT%`.
    pub(crate) fn parse(text: &str) -> Result<Self, AnswerError> {
        let invalid = || {
            AnswerError::BadRequest(format!(
                "for={text:?} is not one of applied, acked, acked=PERCENT% with 0 < PERCENT <= 100"
            ))
        };
        match text.split_once('=') {
            None if text == "applied" => Ok(Self::Applied),
            None if text == "acked" => Ok(Self::Acked(100.0)),
            Some(("acked", share)) => {
                let share = share.strip_suffix('%').unwrap_or(share).parse::<f64>().map_err(|_| invalid())?;
                if share > 0.0 && share <= 100.0 { Ok(Self::Acked(share)) } else { Err(invalid()) }
            }
            _ => Err(invalid()),
        }
    }
}

/// A state of the wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WaitState {
    /// The object, or the awaited version of it, is not read yet.
    NotRead,
    /// It is read; proxies have not acknowledged it.
    Applied,
    /// The goal is reached.
    Done,
    /// The object does not apply, because it is invalid.
    Rejected,
    /// The time limit has passed.
    TimedOut,
}

impl WaitState {
    /// Whether it is the last state.
    pub(crate) fn is_final(self) -> bool {
        !matches!(self, Self::NotRead | Self::Applied)
    }
}

/// A line of the progress.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaitProgress {
    pub(crate) state: WaitState,
    /// The object as it is read; absent if it is not, or deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectVersion>,
    /// Whether the change is the deletion of the object.
    deleted: bool,
    /// The epoch that changed it; absent if the history does not reach back to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// Findings about parts of it that do not apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rejects: Vec<String>,
    /// The proxies; those of other instances are not included.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxies: Option<AwaitedProxies>,
    /// Why all proxies are awaited, if it is not known which ones the change concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    waited_seconds: f64,
}

/// The proxies that a change concerns.
#[derive(Clone, Debug, Default, Serialize)]
struct AwaitedProxies {
    #[serde(flatten)]
    counts: AckCounts,
    /// Those that did not acknowledge it, in order of connecting. Only the last line has them.
    lagging: Vec<LaggingProxy>,
}

impl WaitProgress {
    /// Whether it has the same state and the same numbers of proxies.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let counts = |progress: &Self| progress.proxies.as_ref().map(|proxies| proxies.counts);
        self.state == other.state && counts(self) == counts(other)
    }
}

/// A wait in progress.
pub(crate) struct Wait {
    state: Arc<AdminState>,
    question: WaitQuestion,
    start: Instant,
    read: Option<ReadChange>,
}

/// The awaited change, once it is read.
struct ReadChange {
    object: Option<ObjectVersion>,
    deleted: bool,
    epoch: Option<Epoch>,
    acks: ChangeAcks,
    note: Option<&'static str>,
}

/// Findings may be those of an earlier version of the object. They are certain after this time.
const REJECT_GRACE: Duration = Duration::from_secs(2);

/// The most writes of one generation of an object that are looked through for its change.
const MAX_EPOCHS_OF_A_GENERATION: usize = 16;

const UNKNOWN_RESOURCES: &str = "which resources the change altered is not known: it is older than the history, or too large; all proxies are awaited";

impl Wait {
    /// Begins the wait.
    pub(crate) fn new(state: Arc<AdminState>, question: WaitQuestion) -> Self {
        Self { state, question, start: Instant::now(), read: None }
    }

    /// The progress now. Waits for the dataflow thread.
    pub(crate) fn poll(&mut self) -> WaitProgress {
        if self.read.is_none() {
            self.read = self.find();
        }
        let mut progress = self.progress();
        if !progress.state.is_final() && self.start.elapsed() >= self.question.timeout {
            progress.state = WaitState::TimedOut;
        }
        if progress.state.is_final()
            && let Some((proxies, read)) = progress.proxies.as_mut().zip(self.read.as_ref())
        {
            proxies.lagging = read.acks.lagging();
        }
        progress
    }

    fn progress(&mut self) -> WaitProgress {
        let mut progress = WaitProgress {
            state: WaitState::NotRead,
            object: None,
            deleted: false,
            epoch: None,
            rejects: Vec::new(),
            proxies: None,
            note: None,
            waited_seconds: self.start.elapsed().as_secs_f64(),
        };
        progress.rejects = self.rejects();
        let is_certain = !self.awaits_version() || self.start.elapsed() >= REJECT_GRACE;
        let Some(read) = &mut self.read else {
            if !progress.rejects.is_empty() && is_certain {
                progress.state = WaitState::Rejected;
            }
            return progress;
        };
        progress.state = WaitState::Applied;
        (progress.object, progress.deleted, progress.note) = (read.object.clone(), read.deleted, read.note);
        progress.epoch = read.epoch.map(|epoch| epoch.0);
        let Goal::Acked(share) = self.question.goal else {
            progress.state = WaitState::Done;
            progress.note = None;
            return progress;
        };
        let Some(counts) = read.acks.poll(&self.state.status) else { return progress };
        if reaches(counts, share) {
            progress.state = WaitState::Done;
        }
        progress.proxies = Some(AwaitedProxies { counts, lagging: Vec::new() });
        progress
    }

    /// The awaited change, if it is read.
    fn find(&self) -> Option<ReadChange> {
        for (kind, key) in self.keys() {
            let input = Inputs::collection(kind)?;
            let why = self.state.engine.explain_key(input, &key)?.why;
            let query = HistoryQuery::recent(MAX_EPOCHS_OF_A_GENERATION).written(input, key.clone());
            let mut epochs = self.state.engine.history(query);
            let last = epochs.pop();
            let is_present = why.present == Some(true);
            let write_in = |epoch: &EpochSummary| {
                let of_object = |write: &&Write| ObjectVersion::of_write(write).is_some_and(|of| of.is(kind, &key));
                epoch.writes.iter().find(of_object).cloned()
            };
            let write = last.as_ref().and_then(write_in);
            let generation_of = |write: &Option<Write>| write.as_ref()?.origin.as_ref()?.generation;
            let generation = generation_of(&write);
            let was_deleted = !is_present && write.as_ref().is_some_and(|write| write.deleted);
            let origin = if is_present { why.origin } else { write.and_then(|write| write.origin) };
            let origin = origin.as_ref();
            // An object that does not apply is deleted from its input.
            let is_rejected = !is_present && !self.rejects().is_empty();
            if !(is_present || was_deleted) || is_rejected || !self.is_awaited(origin) {
                continue;
            }
            let mut acks = ChangeAcks::of(&self.state.handles, last.as_ref());
            // The last write may be one of the status, which has the generation of the change.
            let is_same = |epoch: &&EpochSummary| generation.is_some() && generation_of(&write_in(epoch)) == generation;
            for epoch in epochs.iter().rev().take_while(is_same) {
                acks = acks.joined(ChangeAcks::of(&self.state.handles, Some(epoch)));
            }
            let note = acks.resources().is_none().then_some(UNKNOWN_RESOURCES);
            let epoch = last.filter(|_| note.is_none()).map(|epoch| epoch.epoch);
            let object = is_present.then(|| ObjectVersion::new(kind, &key, origin));
            return Some(ReadChange { object, deleted: was_deleted, epoch, acks, note });
        }
        None
    }

    /// Whether an object with this origin is the awaited version or a later one.
    fn is_awaited(&self, origin: Option<&Origin>) -> bool {
        let version = origin.map(|origin| &*origin.version).unwrap_or_default();
        let is_version = |wanted: &String| match (version.parse::<u128>(), wanted.parse::<u128>()) {
            (Ok(version), Ok(wanted)) => version >= wanted,
            _ => version == wanted,
        };
        let generation = origin.and_then(|origin| origin.generation);
        self.question.version.as_ref().is_none_or(is_version)
            && self.question.generation.is_none_or(|wanted| generation.is_some_and(|generation| generation >= wanted))
    }

    fn awaits_version(&self) -> bool {
        self.question.version.is_some() || self.question.generation.is_some()
    }

    /// The findings that stop the object from applying.
    fn rejects(&self) -> Vec<String> {
        let snapshot = self.state.engine.snapshot();
        let of = |(kind, object)| snapshot.get(&self.state.handles.rejects, &RejectKey { kind, object });
        let found = self.keys().into_iter().filter_map(of).flat_map(|rejects| (*rejects).clone());
        found.filter(|reject| reject.severity == Severity::Error).map(|reject| reject.to_string()).collect()
    }

    /// The keys that the object may have.
    fn keys(&self) -> Vec<(Kind, ObjectKey)> {
        let clusters = self.state.cluster_ids();
        let object = &self.question.object;
        let kinds = object.kinds.iter();
        kinds.flat_map(|kind| clusters.iter().map(|cluster| (*kind, object.key(cluster)))).collect()
    }
}

/// Whether a share of the proxies, in percent, have acknowledged.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn reaches(counts: AckCounts, share: f64) -> bool {
    counts.acked as f64 * 100.0 >= counts.concerned as f64 * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read() {
        assert_eq!(Goal::parse("applied").ok(), Some(Goal::Applied));
        assert_eq!(Goal::parse("acked").ok(), Some(Goal::Acked(100.0)));
        assert_eq!(Goal::parse("acked=99.5%").ok(), Some(Goal::Acked(99.5)));
        for text in ["", "acked=", "acked=0", "acked=101%", "acked=x", "applied=1", "ready"] {
            let error = Goal::parse(text).expect_err("invalid").to_string();
            assert!(error.contains("acked=PERCENT%"), "{text}: {error}");
        }
    }

    #[test]
    fn share_of_no_proxies_is_reached() {
        let counts = |acked, concerned| AckCounts { acked, concerned };
        assert!(reaches(counts(0, 0), 100.0));
        assert!(reaches(counts(99, 100), 99.0) && !reaches(counts(98, 100), 99.0));
    }
}
