//! Which endpoint gets a request.

use std::time::Duration;

use serde::Serialize;

use crate::{Decimal, LocalityLb, Text, ZoneAwareLb};

/// Named algorithms.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum SimpleLb {
    /// The mesh's default: least request.
    #[default]
    Unspecified,
    /// Fewest outstanding requests (`LEAST_REQUEST`, formerly `LEAST_CONN`).
    LeastRequest,
    /// Random.
    Random,
    /// The address the client dialled.
    Passthrough,
    /// In turn.
    RoundRobin,
}

/// Load balancing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct LoadBalancer {
    /// Named algorithm; unspecified when `consistent_hash` is set.
    pub simple: SimpleLb,
    /// Hashing, instead of a named algorithm.
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

/// What a consistent hash is taken of.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum HashKey {
    /// A request header.
    Header(Text),
    /// A cookie, made if absent and a lifetime is given.
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
    /// The client's address, if true.
    SourceIp(bool),
    /// A query parameter.
    QueryParameter(Text),
}

/// Which table a consistent hash uses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum HashAlgorithm {
    /// A ring by default.
    #[default]
    Unspecified,
    /// A ring with at least this many entries; 0 is unset.
    RingHash(u64),
    /// Maglev with this table size; 0 is unset.
    Maglev(u64),
}

/// Consistent hashing.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ConsistentHash {
    /// What is hashed.
    pub key: Option<HashKey>,
    /// How.
    pub algorithm: HashAlgorithm,
    /// Ring size, old form; 0 is unset.
    pub minimum_ring_size: u64,
}

/// Slow start of new endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Warmup {
    /// The window.
    pub duration: Duration,
    /// Share of traffic at the start, in percent; 10 unless set.
    pub minimum_percent: Option<Decimal>,
    /// Shape of the ramp; 1 (linear) unless set.
    pub aggression: Option<Decimal>,
}
