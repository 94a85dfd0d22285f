//! Decides which key sets are fetched when. It uses no clock and no network.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use sluice_model::{JwksKey, Text};
use tokio::time::Instant;

/// When key sets are fetched.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Time between a successful fetch and the next one.
    pub refresh: Duration,
    /// Wait after the first failure. It doubles with each further failure in a row.
    pub retry: Duration,
    /// The longest wait.
    pub max_retry: Duration,
    /// Wait after each of the first failures of a key set that has never been fetched.
    pub first_retry: Duration,
    /// Number of failures for which `first_retry` applies.
    pub first_retries: u32,
    /// Time without a successful fetch after which keys are dropped.
    pub keep: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(20 * 60),
            retry: Duration::from_secs(60),
            max_retry: Duration::from_secs(60 * 60),
            first_retry: Duration::from_secs(1),
            first_retries: 7,
            keep: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }
}

/// The effect of a fetch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// The keys have changed.
    Changed(Text),
    /// The keys are the same, the fetch failed, or the set is no longer wanted.
    Unchanged,
}

/// The wanted key sets and their state.
#[derive(Debug)]
pub(crate) struct JwksState {
    schedule: Schedule,
    sets: BTreeMap<JwksKey, KeySetState>,
}

#[derive(Debug)]
struct KeySetState {
    timeout: Duration,
    /// `None` while it is being fetched.
    due: Option<Instant>,
    /// Failures since the last successful fetch.
    failures: u32,
    /// A fetch has succeeded or failed.
    tried: bool,
    /// The keys, and the time of the last successful fetch.
    fetched: Option<(Text, Instant)>,
}

impl JwksState {
    /// Without wanted key sets.
    pub(crate) fn new(schedule: Schedule) -> Self {
        Self { schedule, sets: BTreeMap::new() }
    }

    /// Adds a wanted key set, or changes its timeout. A new key set is due at once.
    pub(crate) fn want(&mut self, key: JwksKey, timeout: Duration, now: Instant) {
        let new = || KeySetState { timeout, due: Some(now), failures: 0, tried: false, fetched: None };
        self.sets.entry(key).or_insert_with(new).timeout = timeout;
    }

    /// Removes a key set. True if it had keys.
    pub(crate) fn forget(&mut self, key: &JwksKey) -> bool {
        self.sets.remove(key).is_some_and(|set| set.fetched.is_some())
    }

    /// Starts the fetches that are due, and returns their key sets and timeouts.
    pub(crate) fn start(&mut self, now: Instant) -> Vec<(JwksKey, Duration)> {
        let due = self.sets.iter_mut().filter(|(_, set)| set.due.is_some_and(|due| due <= now));
        due.map(|(key, set)| {
            set.due = None;
            (key.clone(), set.timeout)
        })
        .collect()
    }

    /// Ends a fetch. `None` is a failure.
    pub(crate) fn done(&mut self, key: &JwksKey, result: Option<String>, now: Instant) -> Outcome {
        let Some(set) = self.sets.get_mut(key) else { return Outcome::Unchanged };
        set.tried = true;
        let Some(text) = result else {
            let failures = set.failures;
            set.failures = failures.saturating_add(1);
            let is_first = set.fetched.is_none() && failures < self.schedule.first_retries;
            let slow =
                if set.fetched.is_none() { failures - self.schedule.first_retries.min(failures) } else { failures };
            let wait = if is_first {
                self.schedule.first_retry
            } else {
                self.schedule.retry.saturating_mul(1 << slow.min(16)).min(self.schedule.max_retry)
            };
            set.due = Some(now + wait);
            return Outcome::Unchanged;
        };
        set.failures = 0;
        set.due = Some(now + self.schedule.refresh);
        let text = match set.fetched.take() {
            Some((old, _)) if same_keys(&old, &text) => {
                set.fetched = Some((old, now));
                return Outcome::Unchanged;
            }
            _ => Text::from(text),
        };
        set.fetched = Some((text.clone(), now));
        Outcome::Changed(text)
    }

    /// Drops the keys that have not been fetched for too long, and returns their key sets.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<JwksKey> {
        let keep = self.schedule.keep;
        let old = self.sets.iter_mut().filter(|(_, set)| {
            set.fetched.as_ref().is_some_and(|(_, fetched)| now.saturating_duration_since(*fetched) >= keep)
        });
        old.map(|(key, set)| {
            set.fetched = None;
            key.clone()
        })
        .collect()
    }

    /// The time of the next fetch.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.sets.values().filter_map(|set| set.due).min()
    }

    /// Whether a fetch of every key set has succeeded or failed.
    pub(crate) fn is_tried(&self) -> bool {
        self.sets.values().all(|set| set.tried)
    }
}

/// Whether both sets have the same keys, in any order.
fn same_keys(old: &str, new: &str) -> bool {
    let keys = |text: &str| -> Option<Vec<String>> {
        let Value::Object(set) = serde_json::from_str(text).ok()? else { return None };
        let mut keys: Vec<String> = set.get("keys")?.as_array()?.iter().map(Value::to_string).collect();
        keys.sort();
        Some(keys)
    };
    old == new || keys(old).is_some_and(|old| Some(old) == keys(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = r#"{"keys":[{"kid":"a"},{"kid":"b"}]}"#;

    fn key(uri: &str) -> JwksKey {
        JwksKey { uri: uri.into(), ..JwksKey::default() }
    }

    fn state() -> (JwksState, Instant) {
        let (mut state, now) = (JwksState::new(Schedule::default()), Instant::now());
        state.want(key("u"), Duration::from_secs(5), now);
        (state, now)
    }

    /// The outcome of a fetch, and seconds until the next one.
    fn fetch(state: &mut JwksState, now: &mut Instant, result: Option<&str>) -> (Outcome, u64) {
        assert_eq!(state.start(*now).len(), 1);
        let outcome = state.done(&key("u"), result.map(str::to_owned), *now);
        let next = state.next().expect("due");
        let wait = next - *now;
        *now = next;
        (outcome, wait.as_secs())
    }

    #[test]
    fn wanted_set_is_fetched_at_once_and_refreshed() {
        let (mut state, mut now) = state();
        assert!(!state.is_tried());
        assert_eq!(fetch(&mut state, &mut now, Some(KEYS)), (Outcome::Changed(KEYS.into()), 1200));
        assert!(state.is_tried());
        let turned = r#"{"keys": [{"kid":"b"}, {"kid":"a"}]}"#;
        assert_eq!(fetch(&mut state, &mut now, Some(turned)).0, Outcome::Unchanged);
        let other = r#"{"keys":[{"kid":"c"}]}"#;
        assert_eq!(fetch(&mut state, &mut now, Some(other)).0, Outcome::Changed(other.into()));
    }

    #[test]
    fn failures_back_off() {
        let (mut state, mut now) = state();
        let waits: Vec<u64> = (0..15).map(|_| fetch(&mut state, &mut now, None).1).collect();
        assert_eq!(waits, [1, 1, 1, 1, 1, 1, 1, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(fetch(&mut state, &mut now, Some(KEYS)).1, 1200);
        // With keys present, the wait starts at the normal retry.
        assert_eq!(fetch(&mut state, &mut now, None).1, 60);
        assert_eq!(fetch(&mut state, &mut now, None).1, 120);
    }

    #[test]
    fn stale_keys_are_dropped() {
        let (mut state, mut now) = state();
        fetch(&mut state, &mut now, Some(KEYS));
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        assert_eq!(state.expire(now), []);
        assert_eq!(state.expire(now + week), [key("u")]);
        assert_eq!(state.expire(now + week), [], "once");
    }

    #[test]
    fn unwanted_set_is_removed() {
        let (mut state, now) = state();
        state.start(now);
        assert!(!state.forget(&key("u")), "no keys yet");
        assert_eq!(
            state.done(&key("u"), Some(KEYS.to_owned()), now),
            Outcome::Unchanged,
            "removed while being fetched"
        );
        assert_eq!((state.next(), state.is_tried()), (None, true));
        state.want(key("u"), Duration::ZERO, now);
        state.start(now);
        state.done(&key("u"), Some(KEYS.to_owned()), now);
        assert!(state.forget(&key("u")));
    }
}
