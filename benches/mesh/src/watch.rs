//! What has to arrive at whom for a change to have arrived.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use memchr::memmem;

use crate::scan::Type;

/// Something that has to arrive.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    pub(crate) kind: Type,
    /// The resource; any if none.
    pub(crate) name: Option<String>,
    pub(crate) content: Content,
}

/// In which state.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Whatever it says.
    Any,
    /// It has this text.
    Has(String),
    /// It does not have this text.
    Lacks(String),
    /// It is gone: named as removed, or (state of the world) missing.
    Gone,
}

/// A resource as it arrives; no bytes if it is gone.
pub(crate) struct Arrival<'a> {
    pub(crate) kind: Type,
    pub(crate) name: &'a str,
    pub(crate) bytes: Option<&'a Bytes>,
}

impl Expectation {
    fn is_met(&self, arrival: &Arrival<'_>) -> bool {
        if arrival.kind != self.kind || self.name.as_deref().is_some_and(|name| name != arrival.name) {
            return false;
        }
        let has = |text: &str| arrival.bytes.is_some_and(|bytes| memmem::find(bytes, text.as_bytes()).is_some());
        match &self.content {
            Content::Any => arrival.bytes.is_some(),
            Content::Has(text) => has(text),
            Content::Lacks(text) => arrival.bytes.is_some() && !has(text),
            Content::Gone => arrival.bytes.is_none(),
        }
    }
}

/// Follows one change at all proxies.
#[derive(Debug)]
pub(crate) struct Watch {
    expected: Vec<Expectation>,
    /// A bit an expectation that is met, by proxy.
    met: Vec<AtomicU64>,
    /// When the last expectation was met, in nanoseconds of the fleet's clock, by proxy; 0 is not yet.
    at: Vec<AtomicU64>,
    left: AtomicUsize,
}

impl Watch {
    /// Follows a change at the proxies it concerns.
    pub(crate) fn new(expected: Vec<Expectation>, concerned: &[bool]) -> Self {
        let left = if expected.is_empty() { 0 } else { concerned.iter().filter(|concerned| **concerned).count() };
        // Whom it does not concern has all of it.
        let met = concerned.iter().map(|concerned| AtomicU64::new(if *concerned { 0 } else { u64::MAX })).collect();
        let at = concerned.iter().map(|_| AtomicU64::new(0)).collect();
        Self { expected, met, at, left: AtomicUsize::new(left) }
    }

    /// Which expectations that a proxy still has are met by what arrives, a bit each.
    pub(crate) fn meets(&self, proxy: usize, arrival: &Arrival<'_>) -> u64 {
        let before = self.met[proxy].load(Relaxed);
        let open = self.expected.iter().enumerate().filter(|(bit, _)| before & (1 << bit) == 0);
        open.filter(|(_, expectation)| expectation.is_met(arrival)).fold(0, |met, (bit, _)| met | 1 << bit)
    }

    /// Notes expectations as met at a proxy; whether the change has now arrived everywhere.
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

    fn expect(name: &str, content: Content) -> Expectation {
        Expectation { kind: Type::Eds, name: Some(name.into()), content }
    }

    #[test]
    fn a_change_has_arrived_when_everything_is_met_at_everyone_concerned() {
        let expected = vec![expect("a", Content::Has("new".into())), expect("b", Content::Gone)];
        let watch = Watch::new(expected, &[false, true, false, true]);
        assert_eq!(watch.left(), 2);
        let (old, new) = (Bytes::from_static(b"the old one"), Bytes::from_static(b"the new one"));
        let take = |proxy, name, bytes, now| {
            watch.take(proxy, watch.meets(proxy, &Arrival { kind: Type::Eds, name, bytes }), now)
        };
        assert!(!take(1, "a", Some(&old), 5));
        assert!(!take(1, "a", Some(&new), 6));
        assert!(!take(1, "b", None, 7));
        assert!(!take(0, "a", Some(&new), 8), "not concerned");
        assert_eq!((watch.left(), watch.times()), (1, vec![7]));
        assert!(!take(3, "b", None, 8));
        assert!(take(3, "a", Some(&new), 9));
        assert!(!take(3, "a", Some(&new), 10), "it counts once");
        assert_eq!(watch.times(), [7, 9]);
    }
}
