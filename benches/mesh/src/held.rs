//! The versions that a proxy holds, by numbers of names: thousands of proxies hold tens of thousands of names.

use std::collections::BTreeMap;
use std::sync::Arc;

use dashmap::DashMap;
use rapidhash::fast::RandomState;

/// Interned texts that proxies share, each with a number. They are never removed.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    numbers: DashMap<Arc<str>, usize, RandomState>,
    texts: boxcar::Vec<Arc<str>>,
}

impl Texts {
    fn number(&self, text: &str) -> usize {
        self.known(text).unwrap_or_else(|| {
            let text: Arc<str> = text.into();
            *self.numbers.entry(text.clone()).or_insert_with(|| self.texts.push(text))
        })
    }

    /// The number of a text that has one.
    fn known(&self, text: &str) -> Option<usize> {
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
    NotAsked,
    Unknown,
    Gone,
    /// It exists, in the version of that number.
    There(u32),
}

/// One type at one proxy.
#[derive(Debug)]
pub(crate) struct HeldVersions {
    dictionary: Arc<Dictionary>,
    /// By number of the name.
    states: Vec<State>,
    /// By number of the name, the digest of its content, at proxies that keep digests.
    digests: Vec<u64>,
    /// Names that are subscribed or were received.
    len: usize,
    /// Subscribed names without an answer.
    unknown: usize,
}

impl HeldVersions {
    /// Nothing yet.
    pub(crate) fn new(dictionary: Arc<Dictionary>) -> Self {
        Self { dictionary, states: Vec::new(), digests: Vec::new(), len: 0, unknown: 0 }
    }

    /// Subscribes a name; returns its number if that is new.
    pub(crate) fn ask(&mut self, name: &str) -> Option<usize> {
        let number = self.dictionary.names.number(name);
        let new = self.state(number) == State::NotAsked;
        new.then(|| {
            self.set(number, State::Unknown);
            number
        })
    }

    /// Records the server's answer for a name: the version, empty if the name is absent, and the digest of the content,
    /// 0 at proxies that keep none.
    pub(crate) fn tell(&mut self, name: &str, version: &str, digest: u64) {
        let number = self.dictionary.names.number(name);
        self.set(number, if version.is_empty() { State::Gone } else { self.there(version) });
        if digest != 0 {
            self.digests.resize(self.digests.len().max(number + 1), 0);
            self.digests[number] = digest;
        }
    }

    fn there(&self, version: &str) -> State {
        State::There(u32::try_from(self.dictionary.versions.number(version)).unwrap_or(u32::MAX))
    }

    /// Whether a name is subscribed or was received.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.dictionary.names.known(name).is_some_and(|number| self.state(number) != State::NotAsked)
    }

    /// Unsubscribes a name; returns whether it was subscribed.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        let had = self.has(name);
        if had {
            self.set(self.dictionary.names.number(name), State::NotAsked);
        }
        had
    }

    /// Every subscribed name is answered.
    pub(crate) fn is_complete(&self) -> bool {
        self.unknown == 0
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.known().map(|(number, _)| self.name(number))
    }

    /// Names with the version that is held.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&str, &str)> {
        let version = |state| match state {
            State::There(version) => Some(&*self.dictionary.versions.texts[version as usize]),
            State::NotAsked | State::Unknown | State::Gone => None,
        };
        self.known().filter_map(move |(number, state)| Some((self.name(number), version(state)?)))
    }

    /// Names of existing resources, with the digest of their content.
    pub(crate) fn contents(&self) -> BTreeMap<&str, u64> {
        let there = self.known().filter(|(_, state)| matches!(state, State::There(_)));
        there.map(|(number, _)| (self.name(number), self.digests.get(number).copied().unwrap_or_default())).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn known(&self) -> impl Iterator<Item = (usize, State)> {
        self.states.iter().copied().enumerate().filter(|(_, state)| *state != State::NotAsked)
    }

    /// The name of that number.
    pub(crate) fn name(&self, number: usize) -> &str {
        &self.dictionary.names.texts[number]
    }

    fn state(&self, number: usize) -> State {
        self.states.get(number).copied().unwrap_or_default()
    }

    fn set(&mut self, number: usize, state: State) {
        self.states.resize(self.states.len().max(number + 1), State::NotAsked);
        let before = std::mem::replace(&mut self.states[number], state);
        let is = |what: fn(&State) -> bool| (usize::from(what(&state)), usize::from(what(&before)));
        let (known, unknown) = (is(|state| *state != State::NotAsked), is(|state| *state == State::Unknown));
        self.len = self.len + known.0 - known.1;
        self.unknown = self.unknown + unknown.0 - unknown.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_complete_when_every_name_is_answered() {
        let dictionary = Arc::new(Dictionary::default());
        let mut held = HeldVersions::new(dictionary.clone());
        assert!(held.is_complete());
        assert_eq!([held.ask("a"), held.ask("b"), held.ask("a")], [Some(0), Some(1), None]);
        held.tell("a", "1", 7);
        held.tell("a", "2", 7);
        assert!(!held.is_complete());
        held.tell("b", "", 0);
        assert!(held.is_complete());
        assert_eq!((held.len(), held.names().collect::<Vec<_>>()), (2, vec!["a", "b"]));
        assert_eq!(held.versions().collect::<Vec<_>>(), [("a", "2")]);
        assert_eq!(held.contents(), [("a", 7)].into());
        assert!(held.forget("b") && !held.forget("b"));
        assert!(
            held.ask("c").is_some() && held.forget("c") && held.is_complete(),
            "what is not asked for need not be known"
        );
        assert_eq!(held.len(), 1);
        let other = HeldVersions::new(dictionary);
        assert!(!other.has("a"), "others know the text, and hold nothing");
    }

    #[test]
    fn equal_texts_share_memory() {
        let texts = Texts::default();
        assert_eq!([texts.number("x"), texts.number("y"), texts.number("x")], [0, 1, 0]);
        assert_eq!((texts.known("z"), texts.texts.count()), (None, 2));
    }
}
