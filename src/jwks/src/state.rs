//! Decides which key sets are fetched when. It uses no clock and no network.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use sluice_model::{Jwks, JwksKey, Text, WantedJwks};
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

/// Limits on what is fetched.
#[derive(Clone, Copy, Debug)]
pub struct JwksLimits {
    /// Fetches at a time.
    pub max_fetches: usize,
    /// Fetches at a time for one namespace.
    pub max_namespace_fetches: usize,
    /// Bytes of all key sets.
    pub max_bytes: usize,
    /// Bytes of the key sets of one namespace.
    pub max_namespace_bytes: usize,
}

impl Default for JwksLimits {
    fn default() -> Self {
        Self { max_fetches: 32, max_namespace_fetches: 4, max_bytes: 64 << 20, max_namespace_bytes: 4 << 20 }
    }
}

/// The effect of a fetch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// The keys, or the reason why new keys are refused, have changed.
    Changed(Jwks),
    /// The keys are the same, the fetch failed, or the set is no longer wanted.
    Unchanged,
}

/// The wanted key sets and their state.
#[derive(Debug)]
pub(crate) struct JwksState {
    schedule: Schedule,
    limits: JwksLimits,
    sets: BTreeMap<JwksKey, KeySetState>,
    /// Fetches at work, with the namespace whose limit they count towards.
    fetching: BTreeMap<JwksKey, Text>,
}

#[derive(Debug)]
struct KeySetState {
    wanted: WantedJwks,
    due: Instant,
    /// Failures since the last successful fetch.
    failures: u32,
    /// A fetch has succeeded or failed.
    tried: bool,
    /// The keys, and the time of the last successful fetch.
    fetched: Option<(Text, Instant)>,
    /// Why the last text was not accepted.
    refused: Text,
}

impl KeySetState {
    fn bytes(&self) -> usize {
        self.fetched.as_ref().map_or(0, |(text, _)| text.len())
    }

    fn value(&self) -> Jwks {
        let text = self.fetched.as_ref().map(|(text, _)| text.clone()).unwrap_or_default();
        Jwks { text, refused: self.refused.clone() }
    }
}

impl JwksState {
    /// Without wanted key sets.
    pub(crate) fn new(schedule: Schedule, limits: JwksLimits) -> Self {
        Self { schedule, limits, sets: BTreeMap::new(), fetching: BTreeMap::new() }
    }

    /// Adds a wanted key set, or changes its timeout and namespaces. A new key set is due at once.
    pub(crate) fn want(&mut self, key: JwksKey, wanted: WantedJwks, now: Instant) {
        let new = || KeySetState {
            wanted: WantedJwks::default(),
            due: now,
            failures: 0,
            tried: false,
            fetched: None,
            refused: Text::default(),
        };
        self.sets.entry(key).or_insert_with(new).wanted = wanted;
    }

    /// Removes a key set. True if it had keys, or a reason why it has none.
    pub(crate) fn forget(&mut self, key: &JwksKey) -> bool {
        self.sets.remove(key).is_some_and(|set| set.value() != Jwks::default())
    }

    /// Starts the fetches that are due, the longest due first, as far as the limits allow. Returns their key sets and
    /// timeouts.
    pub(crate) fn start(&mut self, now: Instant) -> Vec<(JwksKey, Duration)> {
        let Self { limits, sets, fetching, .. } = self;
        let mut by_namespace: BTreeMap<Text, usize> = BTreeMap::new();
        for namespace in fetching.values() {
            *by_namespace.entry(namespace.clone()).or_default() += 1;
        }
        let due = sets.iter().filter(|(key, set)| set.due <= now && !fetching.contains_key(*key));
        let mut due: Vec<(&JwksKey, &KeySetState)> = due.collect();
        due.sort_by_key(|(_, set)| set.due);
        let mut started = Vec::new();
        for (key, set) in due {
            if fetching.len() + started.len() >= limits.max_fetches {
                break;
            }
            let count = |namespace: &Text| by_namespace.get(namespace).copied().unwrap_or_default();
            let least = set.wanted.namespaces.iter().min_by_key(|namespace| count(namespace)).cloned();
            let namespace = least.unwrap_or_default();
            if count(&namespace) < limits.max_namespace_fetches {
                *by_namespace.entry(namespace.clone()).or_default() += 1;
                started.push((key.clone(), set.wanted.timeout, namespace));
            }
        }
        fetching.extend(started.iter().map(|(key, _, namespace)| (key.clone(), namespace.clone())));
        started.into_iter().map(|(key, timeout, _)| (key, timeout)).collect()
    }

    /// Ends a fetch. `None` is a failure.
    pub(crate) fn done(&mut self, key: &JwksKey, result: Option<String>, now: Instant) -> Outcome {
        self.fetching.remove(key);
        let refused = result.as_ref().and_then(|text| self.over_limit(key, text.len()));
        let Some(set) = self.sets.get_mut(key) else { return Outcome::Unchanged };
        set.tried = true;
        let before = set.value();
        let accepted = result.filter(|_| refused.is_none());
        if let Some(reason) = refused {
            set.refused = reason;
        }
        let Some(text) = accepted else {
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
            set.due = now + wait;
            return if set.value() == before { Outcome::Unchanged } else { Outcome::Changed(set.value()) };
        };
        set.failures = 0;
        set.refused = Text::default();
        set.due = now + self.schedule.refresh;
        let text = match set.fetched.take() {
            Some((old, _)) if same_keys(&old, &text) => old,
            _ => Text::from(text),
        };
        set.fetched = Some((text, now));
        if set.value() == before { Outcome::Unchanged } else { Outcome::Changed(set.value()) }
    }

    /// The reason why a key set of this size cannot be accepted, if it cannot.
    fn over_limit(&self, key: &JwksKey, bytes: usize) -> Option<Text> {
        let JwksLimits { max_bytes, max_namespace_bytes, .. } = self.limits;
        let set = self.sets.get(key)?;
        let others = || self.sets.iter().filter(|(other, _)| *other != key).map(|(_, other)| other);
        let total: usize = others().map(KeySetState::bytes).sum();
        if total + bytes > max_bytes {
            return Some(refusal("all key sets", max_bytes));
        }
        let of_namespace = |namespace: &Text| -> usize {
            others().filter(|other| other.wanted.namespaces.contains(namespace)).map(KeySetState::bytes).sum()
        };
        let mut namespaces = set.wanted.namespaces.iter();
        let has_room = namespaces.any(|namespace| of_namespace(namespace) + bytes <= max_namespace_bytes);
        (!has_room && !set.wanted.namespaces.is_empty())
            .then(|| refusal("the key sets of the namespace", max_namespace_bytes))
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

    /// The time of the next fetch after `now`. Those that are due earlier wait for the end of others.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        self.sets
            .iter()
            .filter(|(key, _)| !self.fetching.contains_key(*key))
            .map(|(_, set)| set.due)
            .filter(|due| *due > now)
            .min()
    }

    /// Whether a fetch of every key set has succeeded or failed.
    pub(crate) fn is_tried(&self) -> bool {
        self.sets.values().all(|set| set.tried)
    }
}

fn refusal(whose: &str, limit: usize) -> Text {
    format!("the keys are not used: {whose} have more than {limit} bytes; previous keys stay in use").into()
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

    fn wanted(namespaces: &[&str]) -> WantedJwks {
        WantedJwks {
            timeout: Duration::from_secs(5),
            namespaces: namespaces.iter().map(|namespace| Text::from(*namespace)).collect(),
        }
    }

    fn jwks(text: &str) -> Outcome {
        Outcome::Changed(Jwks { text: text.into(), ..Jwks::default() })
    }

    fn state() -> (JwksState, Instant) {
        let (mut state, now) = (JwksState::new(Schedule::default(), JwksLimits::default()), Instant::now());
        state.want(key("u"), wanted(&["a"]), now);
        (state, now)
    }

    /// The outcome of a fetch, and seconds until the next one.
    fn fetch(state: &mut JwksState, now: &mut Instant, result: Option<&str>) -> (Outcome, u64) {
        assert_eq!(state.start(*now).len(), 1);
        let outcome = state.done(&key("u"), result.map(str::to_owned), *now);
        let next = state.next(*now).expect("due");
        let wait = next - *now;
        *now = next;
        (outcome, wait.as_secs())
    }

    #[test]
    fn wanted_set_is_fetched_at_once_and_refreshed() {
        let (mut state, mut now) = state();
        assert!(!state.is_tried());
        assert_eq!(fetch(&mut state, &mut now, Some(KEYS)), (jwks(KEYS), 1200));
        assert!(state.is_tried());
        let turned = r#"{"keys": [{"kid":"b"}, {"kid":"a"}]}"#;
        assert_eq!(fetch(&mut state, &mut now, Some(turned)).0, Outcome::Unchanged);
        let other = r#"{"keys":[{"kid":"c"}]}"#;
        assert_eq!(fetch(&mut state, &mut now, Some(other)).0, jwks(other));
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
        assert_eq!((state.next(now), state.is_tried()), (None, true));
        state.want(key("u"), wanted(&["a"]), now);
        state.start(now);
        state.done(&key("u"), Some(KEYS.to_owned()), now);
        assert!(state.forget(&key("u")));
    }

    #[test]
    fn fetches_of_one_namespace_leave_room_for_others() {
        let limits = JwksLimits { max_fetches: 5, max_namespace_fetches: 2, ..JwksLimits::default() };
        let (mut state, now) = (JwksState::new(Schedule::default(), limits), Instant::now());
        for n in 0..100 {
            state.want(key(&format!("greedy-{n}")), wanted(&["greedy"]), now);
        }
        state.want(key("modest"), wanted(&["modest"]), now);
        state.want(key("shared"), wanted(&["greedy", "third"]), now);
        let started = state.start(now);
        let uris: Vec<&str> = started.iter().map(|(key, _)| key.uri.as_str()).collect();
        assert_eq!(uris, ["greedy-0", "greedy-1", "modest", "shared"], "of each namespace two at a time");
        assert_eq!((state.start(now).len(), state.next(now)), (0, None), "the others wait for the end of one");
        state.done(&key("greedy-0"), None, now);
        let later = state.start(now);
        assert_eq!(later.iter().map(|(key, _)| key.uri.as_str()).collect::<Vec<_>>(), ["greedy-10"]);
        for n in 0..9 {
            state.want(key(&format!("other-{n}")), wanted(&[format!("other-{n}").as_str()]), now);
        }
        assert_eq!(state.start(now).len(), 1, "five in total");
    }

    #[test]
    fn key_set_that_is_forgotten_during_its_fetch_counts_until_the_end() {
        let limits = JwksLimits { max_namespace_fetches: 1, ..JwksLimits::default() };
        let (mut state, now) = (JwksState::new(Schedule::default(), limits), Instant::now());
        state.want(key("u"), wanted(&["a"]), now);
        assert_eq!(state.start(now).len(), 1);
        state.forget(&key("u"));
        state.want(key("u"), wanted(&["a"]), now);
        state.want(key("v"), wanted(&["a"]), now);
        assert_eq!(state.start(now), [], "the first fetch is still at work");
        state.done(&key("u"), Some(KEYS.to_owned()), now);
        assert_eq!(state.start(now).len(), 1);
    }

    #[test]
    fn bytes_are_limited_by_namespace_and_in_total() {
        let limits = JwksLimits { max_namespace_bytes: 100, max_bytes: 180, ..JwksLimits::default() };
        let (mut state, now) = (JwksState::new(Schedule::default(), limits), Instant::now());
        let text = |bytes: usize| Some(format!("{{\"keys\":[]}}{}", " ".repeat(bytes - 11)));
        let done = |state: &mut JwksState, uri: &str, namespaces: &[&str], bytes| {
            state.want(key(uri), wanted(namespaces), now);
            match state.done(&key(uri), text(bytes), now) {
                Outcome::Changed(jwks) => (jwks.text.len(), jwks.refused.to_string()),
                Outcome::Unchanged => (0, "unchanged".to_owned()),
            }
        };
        assert_eq!(done(&mut state, "a", &["one"], 60), (60, String::new()));
        let (bytes, reason) = done(&mut state, "b", &["one"], 50);
        assert!(bytes == 0 && reason.contains("the key sets of the namespace have more than 100 bytes"), "{reason}");
        assert_eq!(done(&mut state, "c", &["one", "two"], 50), (50, String::new()), "the other namespace has room");
        let (_, reason) = done(&mut state, "d", &["three"], 90);
        assert!(reason.contains("all key sets have more than 180 bytes"), "{reason}");
        let (_, grown) = done(&mut state, "a", &["one"], 101);
        assert!(grown.contains("more than 100 bytes"), "{grown}");
        assert_eq!(state.sets[&key("a")].bytes(), 60, "the previous keys stay");
        state.forget(&key("a"));
        assert_eq!(done(&mut state, "b", &["one"], 50), (50, String::new()), "accepted once there is room");
    }
}
