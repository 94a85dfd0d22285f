//! An object that asks for the condition `Reconciled`: which of its changes are awaited, and how far the proxies are.

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use sluice_engine::{Epoch, HistoryQuery};
use sluice_graph::{Inputs, RejectKey, StatusKey};
use sluice_model::{ConditionRequest, Reconciliation, ReconciliationState, Severity};
use sluice_xds::{AckCounts, LaggingProxy};

use super::{MIN_INTERVAL, SETTLE_TIME};
use crate::AdminState;
use crate::answers::ChangeAcks;

/// Proxies that a message names.
const MAX_NAMED: usize = 5;
/// Longest error text in a message, in characters.
const MAX_ERROR_CHARS: usize = 256;

/// An object that asks for the condition.
pub(super) struct FollowedObject {
    request: Arc<ConditionRequest>,
    /// The generation whose change is awaited or acknowledged; `None` before the first look at the object.
    generation: Option<i64>,
    /// The last epoch of the object that was looked at.
    seen: Option<Epoch>,
    /// The changes that are not acknowledged.
    acks: Option<ChangeAcks>,
    /// The last result, and when it was given.
    given: Option<(Reconciliation, Instant)>,
    /// Whether the request has changed since the last look at the object.
    is_changed: bool,
    /// The time of the next poll; `None` if nothing is awaited.
    due: Option<Instant>,
    /// The object is not acknowledged before this time.
    not_before: Instant,
}

impl FollowedObject {
    pub(super) fn new(request: Arc<ConditionRequest>, now: Instant, not_before: Instant) -> Self {
        // The stored condition says that an earlier run, or another replica, has seen the acknowledgements.
        let is_done = is_acknowledged(&request);
        Self {
            generation: is_done.then_some(request.generation),
            request,
            seen: None,
            acks: None,
            given: None,
            is_changed: true,
            due: Some(now + SETTLE_TIME),
            not_before,
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes a change of the object or of its status.
    pub(super) fn change(&mut self, request: Arc<ConditionRequest>, now: Instant) {
        self.request = request;
        self.is_changed = true;
        let earliest = self.given.as_ref().map_or(now, |(_, at)| *at + MIN_INTERVAL);
        let next = earliest.max(now + SETTLE_TIME);
        self.due = Some(self.due.map_or(next, |due| due.min(next)));
    }

    /// Delays the next poll, if there is one.
    pub(super) fn delay_until(&mut self, next: Instant) {
        self.due = self.due.map(|due| due.max(next));
    }

    /// A result that differs from the last one.
    pub(super) fn poll(&mut self, state: &AdminState, key: &StatusKey, now: Instant) -> Option<Reconciliation> {
        self.due = None;
        let result = match std::mem::take(&mut self.is_changed).then(|| self.look(state, key)).flatten() {
            Some(invalid) => {
                self.acks = None;
                (ReconciliationState::Invalid, invalid)
            }
            None => self.progress(state, now)?,
        };
        let (state, message) = result;
        let result = Reconciliation { generation: self.request.generation, state, message: message.into() };
        if self.given.as_ref().is_some_and(|(given, _)| *given == result) {
            return None;
        }
        self.given = Some((result.clone(), now));
        Some(result)
    }

    /// Looks for changes of the object. Returns why it does not apply, if it is invalid.
    fn look(&mut self, state: &AdminState, key: &StatusKey) -> Option<String> {
        let input = Inputs::collection(key.kind)?;
        let explained = state.engine.explain_key(input, &key.object)?;
        if explained.why.present != Some(true)
            && let Some(invalid) = invalid(state, key)
        {
            self.generation = None;
            return Some(invalid);
        }
        let written = |query: HistoryQuery| state.engine.history(query.written(input, key.object.clone()));
        let last = written(HistoryQuery::recent(1)).pop();
        let since = match self.seen {
            Some(seen) => written(HistoryQuery::recent(0).after(seen)),
            None => Vec::new(),
        };
        self.seen = last.as_ref().map(|epoch| epoch.epoch).or(self.seen).or(Some(Epoch::default()));
        let is_known = self.generation.replace(self.request.generation) == Some(self.request.generation);
        // Such as a status that is written: the change of a generation is awaited once.
        if is_known {
            return None;
        }
        let of = |epoch| ChangeAcks::of(&state.handles, Some(epoch));
        let changes = since.iter().map(of).reduce(ChangeAcks::joined);
        // The object did not change, or the history has lost its change: as an answer to `wait`.
        let changes = changes.unwrap_or_else(|| ChangeAcks::of(&state.handles, last.as_ref()));
        self.acks = Some(match self.acks.take() {
            Some(earlier) => earlier.joined(changes),
            None => changes,
        });
        None
    }

    /// How far the proxies are; `None` if nothing is awaited, or if it is too early to say.
    fn progress(&mut self, state: &AdminState, now: Instant) -> Option<(ReconciliationState, String)> {
        let acks = self.acks.as_mut()?;
        let replica = match state.options.pod_name.as_str() {
            "" => "this replica".to_owned(),
            name => format!("replica {name}"),
        };
        self.due = Some(now);
        let Some(counts) = acks.poll(&state.status) else {
            return Some((ReconciliationState::NotAcknowledged, format!("not sent yet by {replica}")));
        };
        acks.forget_ended();
        if counts.acked == counts.concerned {
            if now < self.not_before {
                self.due = Some(self.not_before);
                return None;
            }
            (self.acks, self.due) = (None, None);
        }
        let lagging = self.acks.as_ref().map(ChangeAcks::lagging).unwrap_or_default();
        Some(described(counts, &lagging, &replica))
    }
}

/// The result from the numbers of proxies, and from those that have not acknowledged.
fn described(counts: AckCounts, lagging: &[LaggingProxy], replica: &str) -> (ReconciliationState, String) {
    let AckCounts { concerned, acked } = counts;
    if concerned == 0 {
        return (ReconciliationState::Acknowledged, format!("concerns no proxy that is connected to {replica}"));
    }
    let proxies = if concerned == 1 { "proxy" } else { "proxies" };
    let mut parts = vec![format!("acknowledged by {acked} of {concerned} {proxies} of {replica}")];
    let rejections = lagging.iter().filter_map(|proxy| Some((proxy.proxy.as_str(), proxy.rejection.as_ref()?)));
    let rejections: Vec<_> = rejections.collect();
    if let Some((proxy, error)) = rejections.first() {
        let error: String = error.chars().take(MAX_ERROR_CHARS).collect();
        let others = named(rejections.iter().skip(1).map(|(proxy, _)| *proxy));
        let others = others.map(|others| format!(", and by {others}")).unwrap_or_default();
        parts.push(format!("rejected by {proxy} ({error}){others}"));
    }
    let waiting = named(lagging.iter().filter(|proxy| proxy.rejection.is_none()).map(|proxy| proxy.proxy.as_str()));
    parts.extend(waiting.map(|waiting| format!("not yet by {waiting}")));
    let state = match (lagging.is_empty(), rejections.is_empty()) {
        (true, _) => ReconciliationState::Acknowledged,
        (false, true) => ReconciliationState::NotAcknowledged,
        (false, false) => ReconciliationState::Rejected,
    };
    (state, parts.join("; "))
}

/// Names as text, not all if there are many; `None` if there are none.
fn named<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let shown = names.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMED) {
        0 => (!names.is_empty()).then_some(shown),
        more => Some(format!("{shown} and {more} more")),
    }
}

/// Whether the stored condition says that all proxies have acknowledged the stored generation.
fn is_acknowledged(request: &ConditionRequest) -> bool {
    let stored: Value = serde_json::from_str(&request.conditions).unwrap_or_default();
    stored.as_array().into_iter().flatten().any(|condition| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        // istiod, which may have stored the status since, writes numbers as text.
        let generation = condition["observedGeneration"].as_i64();
        let generation = generation.or_else(|| text("observedGeneration").parse().ok());
        ReconciliationState::is_own(text("type"), text("reason"))
            && text("status") == "True"
            && generation == Some(request.generation)
    })
}

/// Why an object does not apply; `None` if it has no error.
fn invalid(state: &AdminState, key: &StatusKey) -> Option<String> {
    let key = RejectKey { kind: key.kind, object: key.object.clone() };
    let rejects = state.engine.snapshot().get(&state.handles.rejects, &key)?;
    let error = rejects.iter().find(|reject| reject.severity == Severity::Error)?;
    let reason: String = error.reason.chars().take(MAX_ERROR_CHARS).collect();
    Some(format!("invalid, and does not apply: {}: {reason}", error.field_path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lagging(proxy: &str, rejection: Option<&str>) -> LaggingProxy {
        LaggingProxy { proxy: proxy.into(), pending: Vec::new(), count: 1, rejection: rejection.map(Into::into) }
    }

    #[test]
    fn message_names_the_replica_the_numbers_and_the_proxies_that_lag() {
        let counts = |acked, concerned| AckCounts { acked, concerned };
        let (state, message) = described(counts(0, 0), &[], "replica a");
        assert_eq!(state, ReconciliationState::Acknowledged);
        assert_eq!(message, "concerns no proxy that is connected to replica a");
        let (state, message) = described(counts(2, 2), &[], "replica a");
        assert_eq!(state, ReconciliationState::Acknowledged);
        assert_eq!(message, "acknowledged by 2 of 2 proxies of replica a");
        let many: Vec<_> = (0..7).map(|n| lagging(&format!("p{n}.shop"), None)).collect();
        let (state, message) = described(counts(1, 8), &many, "replica a");
        assert_eq!(state, ReconciliationState::NotAcknowledged);
        assert!(message.ends_with("; not yet by p0.shop, p1.shop, p2.shop, p3.shop, p4.shop and 2 more"), "{message}");
    }

    #[test]
    fn rejection_has_a_bounded_error_text() {
        let long = "é".repeat(1_000);
        let proxies = [lagging("a.shop", Some(&long)), lagging("b.shop", None), lagging("c.shop", Some("no"))];
        let (state, message) = described(AckCounts { acked: 1, concerned: 4 }, &proxies, "this replica");
        assert_eq!(state, ReconciliationState::Rejected);
        assert!(message.contains("; rejected by a.shop (é") && message.contains("), and by c.shop"), "{message}");
        assert!(message.ends_with("; not yet by b.shop"), "{message}");
        assert_eq!(message.matches('é').count(), MAX_ERROR_CHARS);
    }

    #[test]
    fn only_a_true_condition_of_the_stored_generation_is_taken_over() {
        let request = |condition: &str| ConditionRequest {
            is_requested: true,
            generation: 3,
            conditions: format!("[{condition}]").into(),
        };
        let is_taken = |condition: &str| is_acknowledged(&request(condition));
        let own = r#"{"type":"Reconciled","status":"True","reason":"AcknowledgedByProxies","observedGeneration":3}"#;
        assert!(is_taken(own) && is_taken(&own.replace(":3", r#":"3""#)));
        for (old, new) in [(":3", ":2"), ("True", "False"), ("Reconciled", "Ready"), ("AcknowledgedBy", "By")] {
            assert!(!is_taken(&own.replace(old, new)), "{new}");
        }
        assert!(!is_taken("7") && !is_acknowledged(&ConditionRequest::default()));
    }
}
