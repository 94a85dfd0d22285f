//! The state that all clients share, and the traffic that they count.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::Notify;

use crate::arguments::AdsProtocol;
use crate::change_tracker::ChangeTracker;
use crate::held_versions::Dictionary;
use crate::messages::RecentRequests;
use crate::scan::{TYPES, Type};
use crate::socket::Clock;

/// How many messages of a change a thread processes before [`Shared::rest`] rests.
const MESSAGES_PER_REST: u32 = 16;
/// How long it rests. A twentieth of this is too short for the kernel to move a thread.
const REST: Duration = Duration::from_millis(1);

thread_local! {
    /// Number of messages since the thread last rested.
    static SINCE_REST: Cell<u32> = const { Cell::new(0) };
}

/// Received messages and bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Traffic {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// By type: CDS, EDS, LDS, RDS, VHDS, SDS, workload addresses, workload policies, LEDS. Earlier results have fewer types.
    #[serde(deserialize_with = "counts_by_type")]
    pub(crate) resources: [u64; TYPES],
    /// Streams that ended, including refused ones.
    pub(crate) ended: u64,
}

/// Counts by type; 0 for types that the result does not have.
fn counts_by_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u64; TYPES], D::Error> {
    let counts = Vec::<u64>::deserialize(deserializer)?;
    Ok(std::array::from_fn(|at| counts.get(at).copied().unwrap_or_default()))
}

impl Traffic {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut resources = self.resources;
        for (count, before) in resources.iter_mut().zip(before.resources) {
            *count -= before;
        }
        Self {
            messages: self.messages - before.messages,
            bytes: self.bytes - before.bytes,
            resources,
            ended: self.ended - before.ended,
        }
    }
}

/// State that all clients share.
pub(crate) struct Shared {
    pub(crate) protocol: AdsProtocol,
    /// Flow-control window of a proxy, in bytes.
    pub(crate) window: u32,
    /// Names and versions by type.
    pub(crate) dictionaries: [Arc<Dictionary>; TYPES],
    pub(crate) recent: RecentRequests,
    pub(crate) address: RwLock<SocketAddr>,
    pub(crate) clock: Clock,
    pub(crate) tracker: RwLock<Option<Arc<ChangeTracker>>>,
    pub(crate) arrived: Notify,
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) resources: [AtomicU64; TYPES],
    pub(crate) ended: AtomicU64,
    pub(crate) last_arrival: AtomicU64,
    /// By proxy: when every subscription of its present stream was answered; 0 before.
    pub(crate) configured: Vec<AtomicU64>,
    /// By proxy: it is expected to receive changes.
    pub(crate) live: Vec<AtomicBool>,
    /// By proxy: notifies it to end its stream.
    pub(crate) disconnect_requests: Vec<Notify>,
    /// Proxies keep digests of the content they hold.
    pub(crate) digests: bool,
    /// The threads of the proxies have idle priority.
    pub(crate) is_idle: bool,
}

impl Shared {
    /// After a message of a change: leaves the CPU idle for a moment every few messages. The kernel moves a waiting thread to a CPU
    /// that becomes idle, but seldom to one that runs a thread of idle priority: two threads of the server would share a CPU while the
    /// proxies have the other.
    pub(crate) fn rest(&self) {
        if !self.is_idle {
            return;
        }
        let messages = (SINCE_REST.get() + 1) % MESSAGES_PER_REST;
        SINCE_REST.set(messages);
        if messages == 0 {
            std::thread::sleep(REST);
        }
    }

    /// Nanoseconds of the fleet's clock, never 0.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    pub(crate) fn at(&self, instant: Instant) -> u64 {
        self.clock.at(instant)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        *self.address.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn count_message(&self, bytes: usize) {
        self.messages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Records that bytes arrived. They may be a part of a message, because a large message may take seconds.
    pub(crate) fn count_arrival(&self) {
        self.last_arrival.store(self.now(), Relaxed);
    }

    pub(crate) fn count_resource(&self, kind: Type) {
        self.resources[kind as usize].fetch_add(1, Relaxed);
    }

    /// Waits for a request to end the proxy's stream.
    pub(crate) async fn disconnect_requested(&self, proxy: usize) {
        self.disconnect_requests[proxy].notified().await;
    }

    /// A digest of the content if digests are kept; otherwise 0.
    pub(crate) fn digest(&self, content: &[u8]) -> u64 {
        if !self.digests {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn count_end(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    /// The change that is followed, if any.
    pub(crate) fn tracker(&self) -> Option<Arc<ChangeTracker>> {
        self.tracker.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Records which expectations of a change a proxy meets, with a response whose last bytes arrived at that time.
    pub(crate) fn arrived(&self, tracker: &ChangeTracker, proxy: usize, meets: u64, time: u64) {
        if tracker.record(proxy, meets, time) {
            self.arrived.notify_one();
        }
    }

    pub(crate) fn set_configured(&self, proxy: usize, configured: bool) {
        self.configured[proxy].store(if configured { self.now() } else { 0 }, Relaxed);
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            messages: self.messages.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            resources: std::array::from_fn(|kind| self.resources[kind].load(Relaxed)),
            ended: self.ended.load(Relaxed),
        }
    }
}
