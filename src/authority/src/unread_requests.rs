//! Certificate requests whose message is being read, by caller and in total.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_auth::{Caller, CallerKey};
use sluice_listen::PeriodicLog;

/// Maximum numbers of requests that count at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreadLimits {
    /// Of one caller: an identity, or the address of a caller without one (IPv6: the /64 network).
    pub(crate) of_caller: usize,
    /// Of all callers together.
    pub(crate) all: usize,
}

impl Default for UnreadLimits {
    fn default() -> Self {
        Self { of_caller: 64, all: 1024 }
    }
}

/// Requests whose message is being read, and large ones that are being answered. Each may take memory of the maximum
/// size of a message.
#[derive(Debug, Default)]
pub(crate) struct UnreadRequests {
    limits: UnreadLimits,
    counts: Mutex<Counts>,
    /// Limits messages about refusals.
    pub(crate) log: PeriodicLog,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// A caller without requests has no entry.
    by_caller: HashMap<CallerKey, usize>,
}

/// A request that counts until this is dropped.
#[derive(Debug)]
pub(crate) struct UnreadRequest {
    requests: Arc<UnreadRequests>,
    caller: CallerKey,
}

impl UnreadRequests {
    pub(crate) fn new(limits: UnreadLimits) -> Arc<Self> {
        Arc::new(Self { limits, ..Self::default() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request of a caller. `None` if a limit forbids it.
    pub(crate) fn add(self: &Arc<Self>, caller: &Caller) -> Option<UnreadRequest> {
        let key = caller.key();
        let mut counts = self.counts();
        let of_caller = counts.by_caller.get(&key).copied().unwrap_or_default();
        if counts.all >= self.limits.all || of_caller >= self.limits.of_caller {
            return None;
        }
        counts.all += 1;
        counts.by_caller.insert(key.clone(), of_caller + 1);
        Some(UnreadRequest { requests: self.clone(), caller: key })
    }
}

impl Drop for UnreadRequest {
    fn drop(&mut self) {
        let mut counts = self.requests.counts();
        counts.all -= 1;
        if let Some(of_caller) = counts.by_caller.get_mut(&self.caller) {
            *of_caller -= 1;
            if *of_caller == 0 {
                counts.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::Identity;

    use super::*;

    fn caller(account: &str, address: &str) -> Caller {
        let identities = (!account.is_empty()).then(|| Identity::new("td", "shop", account));
        let peer = Some(format!("{address}:1").parse().expect("an address"));
        Caller { peer, identities: identities.into_iter().collect(), ..Caller::default() }
    }

    #[test]
    fn unread_requests_are_limited_by_caller_and_in_total() {
        let requests = UnreadRequests::new(UnreadLimits { of_caller: 2, all: 5 });
        let add = |account: &str, address: &str| requests.add(&caller(account, address));
        let cart = [add("cart", "10.0.0.1"), add("cart", "10.0.0.2")];
        assert!(cart.iter().all(Option::is_some) && add("cart", "10.0.0.3").is_none(), "the identity has two");
        let unidentified = [add("", "[2001:db8::1]"), add("", "[2001:db8::2]")];
        assert!(unidentified.iter().all(Option::is_some), "below the limits");
        assert!(add("", "[2001:db8::3]").is_none(), "the network has two");
        let till = add("till", "10.0.0.1");
        assert!(till.is_some() && add("other", "10.0.0.1").is_none(), "five in total");
        drop(cart);
        assert!(add("cart", "10.0.0.1").is_some(), "they have been read");
        drop((unidentified, till));
        let counts = requests.counts();
        assert_eq!((counts.all, counts.by_caller.len()), (0, 0), "callers without requests are forgotten");
    }
}
