//! The expectations that each affected proxy must meet before a change has arrived.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use memchr::memmem;

use crate::scan::Type;

/// A resource state that must arrive.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    pub(crate) kind: Type,
    /// The resource; any if none.
    pub(crate) name: Option<String>,
    pub(crate) content: ExpectedContent,
}

/// The expected state.
#[derive(Clone, Debug)]
pub(crate) enum ExpectedContent {
    /// Any content.
    Any,
    /// It has this text.
    Has(String),
    /// It does not have this text.
    Lacks(String),
    /// It is removed: named as removed, or (state of the world) missing.
    Gone,
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
            ExpectedContent::Any | ExpectedContent::Gone => None,
        }
    }

    /// Whether a resource meets it. `found` says whether the content has the text; none if the resource is removed.
    fn is_met(&self, has: Option<bool>) -> bool {
        match &self.content {
            ExpectedContent::Any => has.is_some(),
            ExpectedContent::Has(_) => has == Some(true),
            ExpectedContent::Lacks(_) => has == Some(false),
            ExpectedContent::Gone => has.is_none(),
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
    pub(crate) fn new(expected: Vec<Expectation>, concerned: &[bool]) -> Self {
        let left = if expected.is_empty() { 0 } else { concerned.iter().filter(|concerned| **concerned).count() };
        // A proxy that it does not affect has met every expectation.
        let met = concerned.iter().map(|concerned| AtomicU64::new(if *concerned { 0 } else { u64::MAX })).collect();
        let at = concerned.iter().map(|_| AtomicU64::new(0)).collect();
        Self { expected, met, at, left: AtomicUsize::new(left) }
    }

    /// The open expectations of a resource at a proxy, each with its bit.
    fn open(&self, proxy: usize, kind: Type, name: &str) -> impl Iterator<Item = (u64, &Expectation)> {
        let before = self.met[proxy].load(Relaxed);
        let open = self.expected.iter().enumerate().map(|(number, expectation)| (1 << number, expectation));
        open.filter(move |(bit, expectation)| before & bit == 0 && expectation.is_of(kind, name))
    }

    /// The open expectations of a proxy whose text is in the content of a resource, or in a piece of it that begins and
    /// ends with a field; a bit each.
    pub(crate) fn finds(&self, proxy: usize, kind: Type, name: &str, content: &[u8]) -> u64 {
        let has = |text: &str| memmem::find(content, text.as_bytes()).is_some();
        let open = self.open(proxy, kind, name);
        open.filter(|(_, expectation)| expectation.text().is_some_and(has)).fold(0, |found, (bit, _)| found | bit)
    }

    /// The open expectations of a proxy that an arrived resource meets, a bit each.
    pub(crate) fn meets(&self, proxy: usize, arrival: &ArrivedResource<'_>) -> u64 {
        let open = self.open(proxy, arrival.kind, arrival.name);
        let met = open.filter(|(bit, expectation)| expectation.is_met(arrival.found.map(|found| found & bit != 0)));
        met.fold(0, |met, (bit, _)| met | bit)
    }

    /// Marks expectations as met at a proxy; returns whether the change has now arrived everywhere.
    pub(crate) fn take(&self, proxy: usize, meets: u64, now: u64) -> bool {
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

    /// Proxies it has not reached.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    /// When it reached each proxy it has reached, sorted.
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
    fn a_change_has_arrived_when_every_affected_proxy_meets_every_expectation() {
        let expected = vec![expect("a", ExpectedContent::Has("new".into())), expect("b", ExpectedContent::Gone)];
        let watch = ChangeTracker::new(expected, &[false, true, false, true]);
        assert_eq!(watch.left(), 2);
        let (old, new): (&[&str], &[&str]) = (&["the old one"], &["some", "the new one", "more"]);
        let take = |proxy, name, pieces: Option<&[&str]>, now| {
            let finds = |piece: &&str| watch.finds(proxy, Type::Eds, name, piece.as_bytes());
            let found = pieces.map(|pieces| pieces.iter().map(finds).fold(0, |found, bits| found | bits));
            watch.take(proxy, watch.meets(proxy, &ArrivedResource { kind: Type::Eds, name, found }), now)
        };
        assert!(!take(1, "a", Some(old), 5));
        assert!(!take(1, "a", Some(new), 6));
        assert!(!take(1, "b", None, 7));
        assert!(!take(0, "a", Some(new), 8), "not concerned");
        assert_eq!((watch.left(), watch.times()), (1, vec![7]));
        assert!(!take(3, "b", None, 8));
        assert!(take(3, "a", Some(new), 9));
        assert!(!take(3, "a", Some(new), 10), "it counts once");
        assert_eq!(watch.times(), [7, 9]);
    }

    #[test]
    fn a_text_is_absent_only_if_no_piece_has_it() {
        let watch = ChangeTracker::new(vec![expect("a", ExpectedContent::Lacks("old".into()))], &[true]);
        let meets = |pieces: &[&str]| {
            let finds = |piece: &&str| watch.finds(0, Type::Eds, "a", piece.as_bytes());
            let found = pieces.iter().map(finds).fold(0, |found, bits| found | bits);
            watch.meets(0, &ArrivedResource { kind: Type::Eds, name: "a", found: Some(found) })
        };
        assert_eq!(meets(&["some", "the old one", "more"]), 0);
        assert_eq!(meets(&["some", "the new one", "more"]), 1);
    }
}
