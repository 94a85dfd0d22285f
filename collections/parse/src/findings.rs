//! Findings that parsers record: what is invalid or suspicious, and where. They are bounded in number and length.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_model::{Kind, ObjectKey, Reject, RejectCause, Severity, Text};
use sluice_proto::json::{MAX_FIELD_PATH_BYTES, MAX_REASON_BYTES, Shortened};

use crate::pattern::PatternChecker;

/// Maximum number of findings of an object. One more says how many are left out.
pub(crate) const MAX_FINDINGS: usize = 100;

/// Maximum memory of the lists of objects in an object, without what their elements own.
const MAX_LIST_BYTES: usize = 64 << 20;

/// Prefix of every message about an unknown field.
pub(crate) const UNKNOWN_FIELD: &str = "unknown field";

/// An invalid or suspicious part of an object. It becomes a [`Reject`] when the object's kind and key are added.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Finding {
    /// Path of the field, such as `spec.http[0].timeout`.
    pub field_path: Text,
    /// What is wrong and what is accepted, a lower-case fragment.
    pub reason: Text,
    /// `Error`: the part does not apply. `Refused`: admission refuses the object, which applies where it is stored.
    /// `Warning`: the object is admitted; the part may have no effect.
    pub severity: Severity,
    /// What the finding is about.
    pub cause: RejectCause,
}

impl Finding {
    /// Whether the finding reports a field that the object's schema does not have.
    #[must_use]
    pub fn is_unknown_field(&self) -> bool {
        self.reason.starts_with(UNKNOWN_FIELD)
    }

    /// The reject record of this finding for `object`.
    #[must_use]
    pub(crate) fn into_reject(self, kind: Kind, object: &ObjectKey) -> Reject {
        let Self { field_path, reason, severity, cause } = self;
        Reject { kind, object: object.clone(), field_path, reason, severity, cause }
    }
}

/// Numbers of findings by severity.
#[derive(Clone, Copy, Debug, Default)]
struct Counts([usize; 3]);

impl Counts {
    fn of(self, severity: Severity) -> usize {
        self.0[severity as usize]
    }

    fn add(&mut self, severity: Severity, number: usize) {
        self.0[severity as usize] += number;
    }

    fn total(self) -> usize {
        self.0.iter().sum()
    }
}

/// Findings collected while an object is parsed. All are counted; at most 100 are kept, those of the highest
/// severities.
#[derive(Debug)]
pub struct Findings {
    most: usize,
    kept: RefCell<Vec<Finding>>,
    /// All findings.
    noted: Cell<Counts>,
    /// Those that are not kept.
    omitted: Cell<Counts>,
    /// Number of unknown fields.
    unknown: Cell<usize>,
    /// Memory of the lists of the object.
    list_bytes: Rc<Cell<usize>>,
    patterns: PatternChecker,
}

impl Default for Findings {
    fn default() -> Self {
        Self::with_most(MAX_FINDINGS)
    }
}

impl Findings {
    /// Counts findings without keeping any, for a value whose findings nothing reads.
    #[must_use]
    pub fn only_counted() -> Self {
        Self::with_most(0)
    }

    fn with_most(most: usize) -> Self {
        let (kept, noted, omitted, unknown, list_bytes, patterns) = Default::default();
        Self { most, kept, noted, omitted, unknown, list_bytes, patterns }
    }

    /// Findings of a part of the object, which [`Self::add_all`] adds to these.
    #[must_use]
    pub(crate) fn of_part(&self) -> Self {
        let most = if self.keeps(Severity::Error) { self.most } else { 0 };
        Self { patterns: self.patterns.clone(), list_bytes: self.list_bytes.clone(), ..Self::with_most(most) }
    }

    /// What a list must not exceed, for messages.
    pub(crate) const MAX_LISTS: &str = "the lists of an object take at most 64 MiB of memory";

    /// Reserves memory for a list of the object. False if its lists take too much: then the list is not read.
    pub(crate) fn reserve_list(&self, bytes: usize) -> bool {
        let sum = self.list_bytes.get().saturating_add(bytes);
        let fits = sum <= MAX_LIST_BYTES;
        if fits {
            self.list_bytes.set(sum);
        }
        fits
    }

    /// Checks the regular expressions of the object.
    pub(crate) fn patterns(&self) -> &PatternChecker {
        &self.patterns
    }

    /// Whether a further finding of this severity is kept. If not, its text is not needed.
    pub(crate) fn keeps(&self, severity: Severity) -> bool {
        self.kept.borrow().len() < self.most || self.less_severe(severity) > 0
    }

    /// Number of findings below this severity that are kept.
    fn less_severe(&self, severity: Severity) -> usize {
        let (noted, omitted) = (self.noted.get(), self.omitted.get());
        let less = [Severity::Warning, Severity::Refused, Severity::Error].into_iter().filter(|less| *less < severity);
        less.map(|less| noted.of(less) - omitted.of(less)).sum()
    }

    /// Records a finding.
    pub fn note(&self, severity: Severity, field_path: &(impl fmt::Display + ?Sized), reason: impl Into<Text>) {
        self.note_of(RejectCause::Other, severity, field_path, reason);
    }

    /// Records a finding with its cause.
    pub(crate) fn note_of(
        &self,
        cause: RejectCause,
        severity: Severity,
        field_path: &(impl fmt::Display + ?Sized),
        reason: impl Into<Text>,
    ) {
        if !self.keeps(severity) {
            return self.omit(severity, 1);
        }
        let reason = reason.into();
        let reason =
            if reason.len() > MAX_REASON_BYTES { Shortened::of(&*reason, MAX_REASON_BYTES).into() } else { reason };
        let field_path = Shortened::of(field_path, MAX_FIELD_PATH_BYTES).into();
        self.keep(Finding { field_path, reason, severity, cause });
    }

    fn keep(&self, finding: Finding) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= self.most {
            // The last one of a lower severity makes room.
            let Some(at) = kept.iter().rposition(|other| other.severity < finding.severity) else {
                return self.omit(finding.severity, 1);
            };
            count(&self.omitted, kept[at].severity, 1);
            kept.remove(at);
        }
        count(&self.noted, finding.severity, 1);
        kept.push(finding);
    }

    /// Counts findings whose text is not kept.
    pub(crate) fn omit(&self, severity: Severity, number: usize) {
        count(&self.noted, severity, number);
        count(&self.omitted, severity, number);
    }

    /// Counts an unknown field, which is recorded as a warning as well.
    pub(crate) fn count_unknown(&self) {
        self.unknown.update(|unknown| unknown + 1);
    }

    /// Adds the findings of a part.
    pub(crate) fn add_all(&self, part: Self) {
        let omitted = part.omitted.get();
        self.unknown.update(|unknown| unknown + part.unknown.get());
        for finding in part.kept.into_inner() {
            self.keep(finding);
        }
        for severity in [Severity::Warning, Severity::Refused, Severity::Error] {
            self.omit(severity, omitted.of(severity));
        }
    }

    /// Records that the part at `field_path` does not apply.
    pub fn error(&self, field_path: &(impl fmt::Display + ?Sized), reason: impl Into<Text>) {
        self.note(Severity::Error, field_path, reason);
    }

    /// Records that admission refuses the part at `field_path`, which applies where it is stored.
    pub fn refuse(&self, field_path: &(impl fmt::Display + ?Sized), reason: impl Into<Text>) {
        self.note(Severity::Refused, field_path, reason);
    }

    /// Records that the part at `field_path` is ignored or has a different effect than it seems to have.
    pub fn warning(&self, field_path: &(impl fmt::Display + ?Sized), reason: impl Into<Text>) {
        self.note(Severity::Warning, field_path, reason);
    }

    /// Deserializes a whole value, or records where and why that fails. Fields that the type does not declare are
    /// skipped: Kubernetes kinds have many fields that nothing reads.
    pub(crate) fn deserialize<T: DeserializeOwned>(&self, value: &Value) -> Option<T> {
        match serde_path_to_error::deserialize(value) {
            Ok(read) => Some(read),
            Err(error) => {
                let path = Shortened::of(error.path(), MAX_FIELD_PATH_BYTES);
                let reason = Shortened::of(error.inner(), MAX_REASON_BYTES);
                self.error(if path == "." { "" } else { path.as_str() }, reason);
                None
            }
        }
    }

    /// Whether a part of the object does not apply.
    #[must_use]
    pub(crate) fn has_errors(&self) -> bool {
        self.error_count() > 0
    }

    /// Number of errors, with those that are not kept.
    pub(crate) fn error_count(&self) -> usize {
        self.noted.get().of(Severity::Error)
    }

    /// Number of warnings, with those that are not kept.
    pub(crate) fn warning_count(&self) -> usize {
        self.noted.get().of(Severity::Warning)
    }

    /// Number of errors and unknown fields: what cannot be read.
    pub(crate) fn unreadable_count(&self) -> usize {
        self.error_count() + self.unknown.get()
    }

    /// Whether admission refuses the object.
    #[must_use]
    pub(crate) fn has_refusals(&self) -> bool {
        self.noted.get().total() > self.warning_count()
    }

    /// The findings, sorted by field path and without duplicates. If some are left out, a last one says how many; it has
    /// the highest severity of these.
    #[must_use]
    pub fn into_vec(self) -> Vec<Finding> {
        let omitted = self.omitted.get();
        let mut findings = self.kept.into_inner();
        findings.sort();
        // A field that is read twice is reported once.
        findings.dedup_by(|later, earlier| {
            let same_unknown_field =
                later.is_unknown_field() && earlier.is_unknown_field() && later.field_path == earlier.field_path;
            if same_unknown_field && later.reason.len() > earlier.reason.len() {
                // The later one suggests a name.
                std::mem::swap(later, earlier);
            }
            same_unknown_field || later == earlier
        });
        let severities = [Severity::Error, Severity::Refused, Severity::Warning];
        if let Some(severity) = severities.into_iter().find(|severity| omitted.of(*severity) > 0)
            && self.most > 0
        {
            let reason = format!("{} more findings are not listed: at most {} are kept", omitted.total(), self.most);
            findings.push(Finding {
                field_path: Text::default(),
                reason: reason.into(),
                severity,
                cause: RejectCause::Other,
            });
        }
        findings
    }
}

fn count(counts: &Cell<Counts>, severity: Severity, number: usize) {
    let mut sum = counts.get();
    sum.add(severity, number);
    counts.set(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_above_the_limit_are_counted_and_the_most_severe_are_kept() {
        let findings = Findings::default();
        (0..150).for_each(|n| findings.warning(&format_args!("a[{n}]"), "odd"));
        (0..90).for_each(|n| findings.error(&format_args!("b[{n}]"), "wrong"));
        findings.refuse("c", "refused");
        assert_eq!((findings.error_count(), findings.warning_count(), findings.has_refusals()), (90, 150, true));
        let found = findings.into_vec();
        let number = |severity| found.iter().filter(|finding| finding.severity == severity).count();
        assert_eq!([Severity::Error, Severity::Refused, Severity::Warning].map(number), [90, 1, 10]);
        assert_eq!(found.len(), MAX_FINDINGS + 1);
        let last = found.last().expect("a finding");
        assert_eq!(last.severity, Severity::Warning);
        assert!(last.reason.starts_with("141 more findings are not listed"), "{}", last.reason);
    }

    #[test]
    fn refusals_that_are_not_kept_still_refuse() {
        let findings = Findings::default();
        (0..300).for_each(|n| findings.error(&format_args!("a[{n}]"), "wrong"));
        let part = findings.of_part();
        part.error("b", "wrong");
        assert!(part.has_errors());
        findings.add_all(part);
        assert_eq!(findings.error_count(), 301);
        let found = findings.into_vec();
        assert_eq!((found.len(), found.last().map(|last| last.severity)), (MAX_FINDINGS + 1, Some(Severity::Error)));
        let counted = Findings::only_counted();
        counted.error("a", "wrong");
        assert!(counted.has_errors() && counted.into_vec().is_empty());
    }

    #[test]
    fn long_paths_and_reasons_keep_their_ends() {
        let findings = Findings::default();
        let long = "x".repeat(100_000);
        findings.error(&format_args!("spec.map[{long}].timeout"), format!("`{long}` is not a duration"));
        let found = findings.into_vec().remove(0);
        assert!(found.field_path.len() <= MAX_FIELD_PATH_BYTES && found.reason.len() <= MAX_REASON_BYTES);
        assert!(found.field_path.starts_with("spec.map[xxx") && found.field_path.ends_with("xx].timeout"));
        assert!(found.reason.starts_with("`xxx") && found.reason.ends_with("xx` is not a duration"));
    }
}
