//! Callers that wait for the result of a TokenReview. They are not authenticated yet, so the limits of streams and requests do
//! not apply to them.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_listen::network_of;
use sluice_model::Text;

/// Maximum numbers of callers that wait for the results of TokenReviews. Further ones are refused.
#[derive(Clone, Copy, Debug)]
pub struct WaitingLimits {
    /// From one address (IPv6: /64 network).
    pub of_address: usize,
    /// For reviews by one cluster: if it does not answer, there is room for callers of others.
    pub of_cluster: usize,
    /// In total.
    pub all: usize,
}

impl Default for WaitingLimits {
    fn default() -> Self {
        Self { of_address: 1024, of_cluster: 4096, all: 8192 }
    }
}

/// The callers that wait.
#[derive(Debug)]
pub(super) struct WaitingCallers {
    limits: WaitingLimits,
    counts: Mutex<Counts>,
}

/// Addresses and clusters without such callers have no entry.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_address: HashMap<Option<IpAddr>, usize>,
    by_cluster: HashMap<Text, usize>,
}

/// A caller that waits until this is dropped.
#[derive(Debug)]
pub(super) struct WaitingCaller<'w> {
    callers: &'w WaitingCallers,
    address: Option<IpAddr>,
    cluster: Text,
}

impl WaitingCallers {
    pub(super) fn new(limits: WaitingLimits) -> Self {
        Self { limits, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a caller of a cluster. `None` if a limit forbids it.
    pub(super) fn add(&self, cluster: &Text, address: Option<IpAddr>) -> Option<WaitingCaller<'_>> {
        let address = address.map(network_of);
        let mut counts = self.counts();
        let of_address = counts.by_address.get(&address).copied().unwrap_or_default();
        let of_cluster = counts.by_cluster.get(cluster).copied().unwrap_or_default();
        let WaitingLimits { of_address: max_of_address, of_cluster: max_of_cluster, all } = self.limits;
        if of_address >= max_of_address || of_cluster >= max_of_cluster || counts.all >= all {
            return None;
        }
        counts.all += 1;
        counts.by_address.insert(address, of_address + 1);
        counts.by_cluster.insert(cluster.clone(), of_cluster + 1);
        Some(WaitingCaller { callers: self, address, cluster: cluster.clone() })
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        let mut counts = self.callers.counts();
        counts.all -= 1;
        subtract_one(&mut counts.by_address, &self.address);
        subtract_one(&mut counts.by_cluster, &self.cluster);
    }
}

fn subtract_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_limited_by_address_and_cluster_and_in_total() {
        let callers = WaitingCallers::new(WaitingLimits { of_address: 2, of_cluster: 3, all: 5 });
        let (hung, other, third) = (Text::from("hung"), Text::from("other"), Text::from("third"));
        let add = |cluster: &Text, address: &str| callers.add(cluster, Some(address.parse().expect("an address")));
        let of_network = [add(&hung, "2001:db8::1"), add(&hung, "2001:db8::2")];
        assert!(of_network.iter().all(Option::is_some), "below the limits");
        assert!(add(&other, "2001:db8::3").is_none(), "two of the network wait");
        let last_of_cluster = add(&hung, "10.0.0.1");
        assert!(last_of_cluster.is_some() && add(&hung, "10.0.0.2").is_none(), "three wait for the cluster");
        let of_other = [add(&other, "10.0.0.3"), add(&other, "10.0.0.4")];
        assert!(of_other.iter().all(Option::is_some), "other clusters have room");
        assert!(add(&third, "10.0.0.5").is_none(), "five wait in total");
        drop(of_network);
        assert!(add(&hung, "2001:db8::3").is_some(), "they have their results");
        drop((last_of_cluster, of_other));
        let counts = callers.counts();
        assert_eq!((counts.all, counts.by_address.len(), counts.by_cluster.len()), (0, 0, 0), "nothing is kept");
    }
}
