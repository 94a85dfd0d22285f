//! The resource versions that a proxy holds. Names and versions are interned, because thousands of proxies hold tens of
//! thousands of names.

use std::collections::BTreeMap;
use std::sync::Arc;

use dashmap::DashMap;
use rapidhash::fast::RandomState;

/// Interned texts that all proxies share, each with a number. They are never removed.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    numbers: DashMap<Arc<str>, usize, RandomState>,
    texts: boxcar::Vec<Arc<str>>,
}

impl Texts {
    fn number(&self, text: &str) -> usize {
        self.get(text).unwrap_or_else(|| {
            let text: Arc<str> = text.into();
            *self.numbers.entry(text.clone()).or_insert_with(|| self.texts.push(text))
        })
    }

    /// The number of a text, if it is interned.
    fn get(&self, text: &str) -> Option<usize> {
        self.numbers.get(text).map(|number| *number)
    }
}

/// The texts of one type of resource.
#[derive(Debug, Default)]
pub(crate) struct Dictionary {
    names: Texts,
    versions: Texts,
}

/// The state of a name at a proxy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    NotSubscribed,
    /// The server has not answered.
    Requested,
    /// No resource has that name.
    Absent,
    /// The proxy holds the version of that number.
    Held(u32),
}

/// A [`State`] in four bytes: a thousand proxies hold tens of thousands of names each.
#[derive(Clone, Copy, Debug, Default)]
struct PackedState(u32);

impl PackedState {
    /// The numbers of the states other than `Held`; versions follow.
    const NOT_SUBSCRIBED: u32 = 0;
    const REQUESTED: u32 = 1;
    const ABSENT: u32 = 2;
    const FIRST_VERSION: u32 = 3;

    fn get(self) -> State {
        match self.0 {
            Self::NOT_SUBSCRIBED => State::NotSubscribed,
            Self::REQUESTED => State::Requested,
            Self::ABSENT => State::Absent,
            version => State::Held(version - Self::FIRST_VERSION),
        }
    }
}

impl From<State> for PackedState {
    fn from(state: State) -> Self {
        Self(match state {
            State::NotSubscribed => Self::NOT_SUBSCRIBED,
            State::Requested => Self::REQUESTED,
            State::Absent => Self::ABSENT,
            State::Held(version) => version.saturating_add(Self::FIRST_VERSION),
        })
    }
}

/// The versions of one type that one proxy holds.
#[derive(Debug)]
pub(crate) struct HeldVersions {
    dictionary: Arc<Dictionary>,
    /// By number of the name.
    states: Vec<PackedState>,
    /// By number of the name, the digest of the content; empty if the proxy keeps no digests.
    digests: Vec<u64>,
    /// Names that are subscribed or were received.
    len: usize,
    /// Subscribed names that the server has not answered.
    unanswered: usize,
}

impl HeldVersions {
    /// Nothing yet.
    pub(crate) fn new(dictionary: Arc<Dictionary>) -> Self {
        Self { dictionary, states: Vec::new(), digests: Vec::new(), len: 0, unanswered: 0 }
    }

    /// Subscribes to a name. Returns its number if it was not subscribed.
    pub(crate) fn subscribe(&mut self, name: &str) -> Option<usize> {
        let number = self.dictionary.names.number(name);
        let new = self.state(number) == State::NotSubscribed;
        new.then(|| {
            self.set(number, State::Requested);
            number
        })
    }

    /// Records the server's answer for a name: the version, empty if no resource has that name, and the digest of the
    /// content, 0 if the proxy keeps no digests.
    pub(crate) fn record(&mut self, name: &str, version: &str, digest: u64) {
        let number = self.dictionary.names.number(name);
        self.set(number, if version.is_empty() { State::Absent } else { self.held(version) });
        if digest != 0 {
            self.digests.resize(self.digests.len().max(number + 1), 0);
            self.digests[number] = digest;
        }
    }

    fn held(&self, version: &str) -> State {
        State::Held(u32::try_from(self.dictionary.versions.number(version)).unwrap_or(u32::MAX))
    }

    /// Whether a name is subscribed or was received.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.dictionary.names.get(name).is_some_and(|number| self.state(number) != State::NotSubscribed)
    }

    /// Unsubscribes from a name. Returns whether it was subscribed.
    pub(crate) fn unsubscribe(&mut self, name: &str) -> bool {
        let was_subscribed = self.has(name);
        if was_subscribed {
            self.set(self.dictionary.names.number(name), State::NotSubscribed);
        }
        was_subscribed
    }

    /// Whether the server has answered every subscribed name.
    pub(crate) fn is_complete(&self) -> bool {
        self.unanswered == 0
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.subscribed().map(|(number, _)| self.name(number))
    }

    /// Names with the version that is held.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        let version = |state| match state {
            State::Held(version) => Some(&*self.dictionary.versions.texts[version as usize]),
            State::NotSubscribed | State::Requested | State::Absent => None,
        };
        self.subscribed().filter_map(move |(number, state)| Some((self.name(number), version(state)?)))
    }

    /// Names of existing resources, with the digest of their content.
    pub(crate) fn contents(&self) -> BTreeMap<&str, u64> {
        let held = self.subscribed().filter(|(_, state)| matches!(state, State::Held(_)));
        held.map(|(number, _)| (self.name(number), self.digests.get(number).copied().unwrap_or_default())).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn subscribed(&self) -> impl Iterator<Item = (usize, State)> {
        let states = self.states.iter().map(|state| state.get()).enumerate();
        states.filter(|(_, state)| *state != State::NotSubscribed)
    }

    /// The name of that number.
    pub(crate) fn name(&self, number: usize) -> &str {
        &self.dictionary.names.texts[number]
    }

    fn state(&self, number: usize) -> State {
        self.states.get(number).copied().unwrap_or_default().get()
    }

    fn set(&mut self, number: usize, state: State) {
        self.states.resize(self.states.len().max(number + 1), PackedState::default());
        let before = std::mem::replace(&mut self.states[number], state.into()).get();
        let is = |what: fn(&State) -> bool| (usize::from(what(&state)), usize::from(what(&before)));
        let (subscribed, unanswered) =
            (is(|state| *state != State::NotSubscribed), is(|state| *state == State::Requested));
        self.len = self.len + subscribed.0 - subscribed.1;
        self.unanswered = self.unanswered + unanswered.0 - unanswered.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_is_complete_when_every_name_is_answered() {
        let dictionary = Arc::new(Dictionary::default());
        let mut held = HeldVersions::new(dictionary.clone());
        assert!(held.is_complete());
        assert_eq!([held.subscribe("a"), held.subscribe("b"), held.subscribe("a")], [Some(0), Some(1), None]);
        held.record("a", "1", 7);
        held.record("a", "2", 7);
        assert!(!held.is_complete());
        held.record("b", "", 0);
        assert!(held.is_complete());
        assert_eq!((held.len(), held.names().collect::<Vec<_>>()), (2, vec!["a", "b"]));
        assert_eq!(held.versions().collect::<Vec<_>>(), [("a", "2")]);
        assert_eq!(held.contents(), [("a", 7)].into());
        assert!(held.unsubscribe("b") && !held.unsubscribe("b"));
        assert!(
            held.subscribe("c").is_some() && held.unsubscribe("c") && held.is_complete(),
            "an unsubscribed name needs no answer"
        );
        assert_eq!(held.len(), 1);
        let other = HeldVersions::new(dictionary);
        assert!(!other.has("a"), "another proxy shares the dictionary and holds nothing");
    }

    #[test]
    fn equal_texts_share_memory() {
        let texts = Texts::default();
        assert_eq!([texts.number("x"), texts.number("y"), texts.number("x")], [0, 1, 0]);
        assert_eq!((texts.get("z"), texts.texts.count()), (None, 2));
    }
}
