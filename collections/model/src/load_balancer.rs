//! Load balancing: which endpoint gets a request.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Decimal, LocalityLb, Text, ZoneAwareLb};

/// Named algorithms.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum SimpleLb {
    /// The mesh's default: least request.
    #[default]
    Unspecified,
    /// Fewest outstanding requests (`LEAST_REQUEST`, formerly `LEAST_CONN`).
    LeastRequest,
    /// Random.
    Random,
    /// The address that the client connected to.
    Passthrough,
    /// Round robin.
    RoundRobin,
}

/// Load balancing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct LoadBalancer {
    /// Named algorithm; unspecified when `consistent_hash` is set.
    pub simple: SimpleLb,
    /// Consistent hash, instead of a named algorithm.
    pub consistent_hash: Option<ConsistentHash>,
    /// Weights or failover by locality.
    pub locality: Option<LocalityLb>,
    /// Zone-aware routing.
    pub zone_aware: Option<ZoneAwareLb>,
    /// Slow start, old form: only the window.
    pub warmup_duration: Option<Duration>,
    /// Slow start.
    pub warmup: Option<Warmup>,
}

/// Input of a consistent hash.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum HashKey {
    /// A request header.
    Header(Text),
    /// A cookie, generated if absent and if a lifetime is set.
    Cookie {
        /// Name.
        name: Text,
        /// Path, empty if unset.
        path: Text,
        /// Lifetime.
        ttl: Option<Duration>,
        /// Attributes (name, value) in declared order.
        attributes: Vec<(Text, Text)>,
    },
    /// The source address, if true.
    SourceIp(bool),
    /// A query parameter.
    QueryParameter(Text),
}

/// Algorithm of a consistent hash.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum HashAlgorithm {
    /// The default: a ring.
    #[default]
    Unspecified,
    /// A ring with at least this many entries; 0 is unset.
    RingHash(u64),
    /// Maglev with this table size; 0 is unset.
    Maglev(u64),
}

/// Consistent hashing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct ConsistentHash {
    /// The input.
    pub key: Option<HashKey>,
    /// The algorithm.
    pub algorithm: HashAlgorithm,
    /// Ring size, old form; 0 is unset.
    pub minimum_ring_size: u64,
}

/// Slow start of new endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Warmup {
    /// The window.
    pub duration: Duration,
    /// Share of traffic at the start of the window, in percent; 10 unless set.
    pub minimum_percent: Option<Decimal>,
    /// Shape of the ramp; 1 (linear) unless set.
    pub aggression: Option<Decimal>,
}
