//! Streams by caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use sluice_auth::{Caller, CallerKey};
use sluice_xds_protocol::NameBudget;
use tokio::sync::Semaphore;

use crate::partial_request::{PartialRequests, waiting_streams};

/// Maximum numbers of streams, and of what they keep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StreamLimits {
    /// Of one caller: an identity, or the address of an anonymous caller (IPv6: the /64 network).
    pub of_caller: usize,
    /// Of one caller without a request that identifies the proxy.
    pub unidentified_of_caller: usize,
    /// Of all callers together without such a request.
    pub unidentified: usize,
    /// Of one caller, for debug pages and configuration: each keeps what its first request says about a proxy.
    pub others_of_caller: usize,
    /// Memory of the resource names that the streams of one caller subscribe to, in bytes. Equal sets of names count once.
    pub name_bytes_of_caller: usize,
    /// Of one identity, that wait until there is room for a request that has been received in part. A proxy that
    /// reconnects may send four large requests, so this is four times [`Self::unidentified_of_caller`].
    pub waiting_of_identity: usize,
    /// The same of one address of callers without an identity.
    pub waiting_of_address: usize,
    /// The same of all callers together.
    pub waiting: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            of_caller: 20_000,
            unidentified_of_caller: 1024,
            unidentified: 4096,
            others_of_caller: 256,
            name_bytes_of_caller: 256 << 20,
            waiting_of_identity: 4096,
            waiting_of_address: 2048,
            waiting: 16_384,
        }
    }
}

#[derive(Debug)]
struct StreamCounts {
    all: usize,
    unidentified: usize,
    /// Streams that are not of proxies.
    others: usize,
    names: Arc<NameBudget>,
    partial_requests: PartialRequests,
}

/// The open streams of all callers.
#[derive(Debug)]
pub(crate) struct CallerStreams {
    limits: StreamLimits,
    callers: DashMap<CallerKey, StreamCounts>,
    unidentified: AtomicUsize,
    /// Permits of the streams that wait for room for a partial request.
    waiting: Arc<Semaphore>,
}

/// A stream that is counted. It is not identified yet.
#[derive(Debug)]
pub(crate) struct CountedStream {
    streams: Arc<CallerStreams>,
    key: CallerKey,
    is_identified: bool,
    is_other: bool,
    names: Arc<NameBudget>,
    partial_requests: PartialRequests,
}

impl CallerStreams {
    pub(crate) fn new(limits: StreamLimits) -> Arc<Self> {
        let waiting = waiting_streams(limits.waiting);
        Arc::new(Self { limits, callers: DashMap::new(), unidentified: AtomicUsize::new(0), waiting })
    }

    /// Adds a stream of a caller. `None` if a limit forbids it.
    pub(crate) fn add(self: &Arc<Self>, caller: &Caller) -> Option<CountedStream> {
        let key = caller.key();
        let waiting = match key {
            CallerKey::Identity(_) => self.limits.waiting_of_identity,
            CallerKey::Address(_) => self.limits.waiting_of_address,
        };
        if self.unidentified.load(Ordering::Relaxed) >= self.limits.unidentified {
            return None;
        }
        let mut counts = self.callers.entry(key.clone()).or_insert_with(|| StreamCounts {
            all: 0,
            unidentified: 0,
            others: 0,
            partial_requests: PartialRequests::new(waiting, &self.waiting),
            names: NameBudget::new(self.limits.name_bytes_of_caller),
        });
        if counts.all >= self.limits.of_caller || counts.unidentified >= self.limits.unidentified_of_caller {
            return None;
        }
        counts.all += 1;
        counts.unidentified += 1;
        let (names, partial_requests) = (counts.names.clone(), counts.partial_requests.clone());
        drop(counts);
        self.unidentified.fetch_add(1, Ordering::Relaxed);
        let streams = self.clone();
        Some(CountedStream { streams, key, is_identified: false, is_other: false, names, partial_requests })
    }
}

impl CountedStream {
    /// The budget for the resource names of all streams of the caller.
    pub(crate) fn names(&self) -> &Arc<NameBudget> {
        &self.names
    }

    /// The room for requests of all streams of the caller that have been received in part.
    pub(crate) fn partial_requests(&self) -> &PartialRequests {
        &self.partial_requests
    }

    /// The stream is not one of a proxy. Returns whether the caller may have it.
    pub(crate) fn add_other(&mut self) -> bool {
        let limit = self.streams.limits.others_of_caller;
        let Some(mut counts) = self.streams.callers.get_mut(&self.key) else { return true };
        if !self.is_other && counts.others >= limit {
            return false;
        }
        counts.others += usize::from(!std::mem::replace(&mut self.is_other, true));
        true
    }

    /// The first request of the stream has identified the proxy.
    pub(crate) fn identified(&mut self) {
        if std::mem::replace(&mut self.is_identified, true) {
            return;
        }
        self.streams.unidentified.fetch_sub(1, Ordering::Relaxed);
        if let Some(mut counts) = self.streams.callers.get_mut(&self.key) {
            counts.unidentified -= 1;
        }
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.identified();
        if let Entry::Occupied(mut entry) = self.streams.callers.entry(self.key.clone()) {
            entry.get_mut().all -= 1;
            entry.get_mut().others -= usize::from(self.is_other);
            if entry.get().all == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use sluice_model::Identity;

    use super::*;

    fn caller(account: &str, address: &str) -> Caller {
        let identities = (!account.is_empty()).then(|| Identity::new("td", "shop", account));
        let peer = Some((address.parse::<IpAddr>().expect("an address"), 1).into());
        Caller { peer, identities: identities.into_iter().collect(), ..Caller::default() }
    }

    #[test]
    fn streams_are_limited_by_identity_or_else_by_address() {
        let limits =
            StreamLimits { of_caller: 3, unidentified_of_caller: 2, unidentified: 5, ..StreamLimits::default() };
        let streams = CallerStreams::new(limits);
        let (cart, anonymous) = (caller("cart", "10.0.0.1"), caller("", "10.0.0.1"));
        let mut first = streams.add(&cart).expect("below the limits");
        let _second = streams.add(&caller("cart", "10.0.0.2")).expect("below the limits");
        assert!(streams.add(&cart).is_none(), "two streams of the identity have sent no request");
        first.identified();
        let mut third = streams.add(&cart).expect("one of them has");
        third.identified();
        assert!(streams.add(&cart).is_none(), "the identity has three streams");
        let others = [streams.add(&anonymous), streams.add(&caller("", "::ffff:10.0.0.1"))];
        assert!(others.iter().all(Option::is_some) && streams.add(&anonymous).is_none(), "the address has two");
        let _till = [streams.add(&caller("till", "10.0.0.1")), streams.add(&caller("till", "10.0.0.1"))];
        assert!(streams.add(&caller("other", "10.0.0.1")).is_none(), "five streams have sent no request");
        drop(first);
        drop(others);
        assert!(streams.add(&cart).is_some(), "a stream of the identity has ended");
    }

    #[test]
    fn an_ipv6_network_is_one_caller() {
        let streams = CallerStreams::new(StreamLimits { of_caller: 2, ..StreamLimits::default() });
        let _two =
            ["2001:db8::1", "2001:db8::2"].map(|address| streams.add(&caller("", address)).expect("below the limit"));
        assert!(streams.add(&caller("", "2001:db8::ffff:3")).is_none(), "of the same /64 network");
        assert!(streams.add(&caller("", "2001:db8:0:1::1")).is_some(), "of another network");
    }

    #[test]
    fn streams_that_are_not_of_proxies_are_limited() {
        let streams = CallerStreams::new(StreamLimits { others_of_caller: 1, ..StreamLimits::default() });
        let add = || streams.add(&caller("cart", "10.0.0.1")).expect("below the limits");
        let [mut first, mut second] = [add(), add()];
        assert!(first.add_other() && first.add_other() && !second.add_other());
        drop(first);
        assert!(second.add_other(), "the other stream has ended");
    }

    #[test]
    fn callers_without_streams_are_forgotten() {
        let streams = CallerStreams::new(StreamLimits::default());
        for n in 0..100 {
            drop(streams.add(&caller(&format!("account-{n}"), "10.0.0.1")));
        }
        assert_eq!((streams.callers.len(), streams.unidentified.load(Ordering::Relaxed)), (0, 0));
    }
}
