//! Follows a change: it has arrived when each affected proxy meets its expectations.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use memchr::memmem;

use crate::scan::Type;

/// The state of a resource that must arrive.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    pub(crate) kind: Type,
    /// Name of the resource; any if none.
    pub(crate) name: Option<String>,
    pub(crate) content: ExpectedContent,
}

/// The expected state.
#[derive(Clone, Debug)]
pub(crate) enum ExpectedContent {
    /// Any content.
    Any,
    /// Content with this text.
    Has(String),
    /// Content without this text.
    Lacks(String),
    /// The resource is removed: named as removed, or (state of the world) absent from the response.
    Removed,
}

/// A resource as it arrives.
pub(crate) struct ArrivedResource<'a> {
    pub(crate) kind: Type,
    pub(crate) name: &'a str,
    /// The result of [`ChangeTracker::finds`] over all pieces of its content; none if the resource is removed.
    pub(crate) found: Option<u64>,
}

impl Expectation {
    fn is_of(&self, kind: Type, name: &str) -> bool {
        kind == self.kind && self.name.as_deref().is_none_or(|own| own == name)
    }

    /// The text that decides whether it is met.
    fn text(&self) -> Option<&str> {
        match &self.content {
            ExpectedContent::Has(text) | ExpectedContent::Lacks(text) => Some(text),
            ExpectedContent::Any | ExpectedContent::Removed => None,
        }
    }

    /// Whether a resource meets it. `has` is whether the content has the text; none if the resource is removed.
    fn is_met(&self, has: Option<bool>) -> bool {
        match &self.content {
            ExpectedContent::Any => has.is_some(),
            ExpectedContent::Has(_) => has == Some(true),
            ExpectedContent::Lacks(_) => has == Some(false),
            ExpectedContent::Removed => has.is_none(),
        }
    }
}

/// Follows one change at all proxies.
#[derive(Debug)]
pub(crate) struct ChangeTracker {
    expected: Vec<Expectation>,
    /// By proxy, a bit for each expectation that is met.
    met: Vec<AtomicU64>,
    /// By proxy, when the last expectation was met, in nanoseconds of the fleet's clock; 0 before.
    at: Vec<AtomicU64>,
    left: AtomicUsize,
}

impl ChangeTracker {
    /// Follows a change at the proxies it affects.
    pub(crate) fn new(expected: Vec<Expectation>, affected: &[bool]) -> Self {
        let left = if expected.is_empty() { 0 } else { affected.iter().filter(|affected| **affected).count() };
        // A proxy that the change does not affect has met every expectation.
        let met = affected.iter().map(|affected| AtomicU64::new(if *affected { 0 } else { u64::MAX })).collect();
        let at = affected.iter().map(|_| AtomicU64::new(0)).collect();
        Self { expected, met, at, left: AtomicUsize::new(left) }
    }

    /// The unmet expectations of a resource at a proxy, each with its bit.
    fn unmet(&self, proxy: usize, kind: Type, name: &str) -> impl Iterator<Item = (u64, &Expectation)> {
        let before = self.met[proxy].load(Relaxed);
        let unmet = self.expected.iter().enumerate().map(|(number, expectation)| (1 << number, expectation));
        unmet.filter(move |(bit, expectation)| before & bit == 0 && expectation.is_of(kind, name))
    }

    /// The unmet expectations of a proxy whose text is in `content`, a bit each. `content` is the content of a resource,
    /// or some complete fields of it.
    pub(crate) fn finds(&self, proxy: usize, kind: Type, name: &str, content: &[u8]) -> u64 {
        let has = |text: &str| memmem::find(content, text.as_bytes()).is_some();
        let unmet = self.unmet(proxy, kind, name);
        unmet.filter(|(_, expectation)| expectation.text().is_some_and(has)).fold(0, |found, (bit, _)| found | bit)
    }

    /// The unmet expectations of a proxy that an arrived resource meets, a bit each.
    pub(crate) fn meets(&self, proxy: usize, arrival: &ArrivedResource<'_>) -> u64 {
        let unmet = self.unmet(proxy, arrival.kind, arrival.name);
        let met = unmet.filter(|(bit, expectation)| expectation.is_met(arrival.found.map(|found| found & bit != 0)));
        met.fold(0, |met, (bit, _)| met | bit)
    }

    /// Marks expectations as met at a proxy. Returns whether the change has now arrived at every affected proxy.
    pub(crate) fn record(&self, proxy: usize, meets: u64, now: u64) -> bool {
        let before = self.met[proxy].load(Relaxed);
        if before == u64::MAX || meets & !before == 0 {
            return false;
        }
        let met = before | meets;
        if met == (1 << self.expected.len()) - 1 {
            self.at[proxy].store(now, Relaxed);
            self.met[proxy].store(u64::MAX, Relaxed);
            return self.left.fetch_sub(1, Relaxed) == 1;
        }
        self.met[proxy].store(met, Relaxed);
        false
    }

    /// Number of affected proxies that the change has not reached.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    /// The times at which the change reached proxies, sorted.
    pub(crate) fn times(&self) -> Vec<u64> {
        let mut times: Vec<u64> = self.at.iter().map(|at| at.load(Relaxed)).filter(|at| *at > 0).collect();
        times.sort_unstable();
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(name: &str, content: ExpectedContent) -> Expectation {
        Expectation { kind: Type::Eds, name: Some(name.into()), content }
    }

    #[test]
    fn change_has_arrived_when_every_affected_proxy_meets_every_expectation() {
        let expected = vec![expect("a", ExpectedContent::Has("new".into())), expect("b", ExpectedContent::Removed)];
        let tracker = ChangeTracker::new(expected, &[false, true, false, true]);
        assert_eq!(tracker.left(), 2);
        let (old, new): (&[&str], &[&str]) = (&["the old one"], &["some", "the new one", "more"]);
        let record = |proxy, name, pieces: Option<&[&str]>, now| {
            let finds = |piece: &&str| tracker.finds(proxy, Type::Eds, name, piece.as_bytes());
            let found = pieces.map(|pieces| pieces.iter().map(finds).fold(0, |found, bits| found | bits));
            tracker.record(proxy, tracker.meets(proxy, &ArrivedResource { kind: Type::Eds, name, found }), now)
        };
        assert!(!record(1, "a", Some(old), 5));
        assert!(!record(1, "a", Some(new), 6));
        assert!(!record(1, "b", None, 7));
        assert!(!record(0, "a", Some(new), 8), "the change does not affect this proxy");
        assert_eq!((tracker.left(), tracker.times()), (1, vec![7]));
        assert!(!record(3, "b", None, 8));
        assert!(record(3, "a", Some(new), 9));
        assert!(!record(3, "a", Some(new), 10), "it counts once");
        assert_eq!(tracker.times(), [7, 9]);
    }

    #[test]
    fn text_is_absent_only_if_no_piece_has_it() {
        let tracker = ChangeTracker::new(vec![expect("a", ExpectedContent::Lacks("old".into()))], &[true]);
        let meets = |pieces: &[&str]| {
            let finds = |piece: &&str| tracker.finds(0, Type::Eds, "a", piece.as_bytes());
            let found = pieces.iter().map(finds).fold(0, |found, bits| found | bits);
            tracker.meets(0, &ArrivedResource { kind: Type::Eds, name: "a", found: Some(found) })
        };
        assert_eq!(meets(&["some", "the old one", "more"]), 0);
        assert_eq!(meets(&["some", "the new one", "more"]), 1);
    }
}
