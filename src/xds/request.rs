//! Requests and responses, whichever of the two protocols they are written in.

use std::collections::BTreeMap;

use sluice_model::{ResourceType, Text};
use sluice_proto::envoy::config::core::v3::Node;

use crate::xds::store::Item;
use crate::xds::version::Version;

/// The longest resource name that is taken, in bytes.
pub const MAX_NAME: usize = 4096;
/// The most names a client may subscribe to of one type.
pub const MAX_NAMES: usize = 500_000;
/// The most types we do not know that a client may ask for on one stream.
pub const MAX_UNKNOWN_TYPES: usize = 32;

/// Which of the two protocols a stream speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Protocol {
    /// State of the world: a response has all of a type, or all that is named.
    Sotw,
    /// Only what changed.
    Delta,
}

/// A request of either protocol.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Who asks; only on the first request of a stream.
    pub node: Option<Node>,
    /// What type it is about.
    pub type_url: String,
    /// The nonce of the response it answers, empty if it answers none.
    pub nonce: String,
    /// The response was rejected: code and message.
    pub error: Option<(i32, String)>,
    /// Which resources the client wants.
    pub interest: Interest,
}

/// Which resources a client wants.
#[derive(Clone, Debug)]
pub enum Interest {
    /// Exactly these (state of the world).
    Exactly(Vec<String>),
    /// These more and those no longer (delta).
    Change {
        /// Names to add, or `*`.
        subscribe: Vec<String>,
        /// Names to take out, or `*`.
        unsubscribe: Vec<String>,
        /// What the client holds from an earlier stream: name to version.
        holds: BTreeMap<String, String>,
    },
}

impl Default for Interest {
    fn default() -> Self {
        Self::Exactly(Vec::new())
    }
}

/// Why a stream is ended by us.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The request breaks the protocol or a limit: `INVALID_ARGUMENT`.
    #[error("{0}")]
    Invalid(String),
    /// Not now: `UNAVAILABLE`.
    #[error("{0}")]
    Unavailable(String),
    /// Too much: `RESOURCE_EXHAUSTED`.
    #[error("{0}")]
    Exhausted(String),
}

/// A response of either protocol, not encoded yet.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The type, if it is one of ours.
    pub kind: Option<ResourceType>,
    /// The type as the client names it.
    pub type_url: Text,
    /// Names this response within the stream.
    pub nonce: String,
    /// Version of all that is in it (state of the world), or the epoch after which it is (delta).
    pub version: String,
    pub(crate) items: Vec<Item>,
    /// Names that are gone (delta only).
    pub removed: Vec<Text>,
    /// The store's epoch after which the changes in it came; with it, since when they wait.
    pub since: Option<u64>,
}

impl Response {
    /// Number of resources in it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.items.iter().map(Item::count).sum()
    }

    /// Names and versions of the resources in it.
    #[must_use]
    pub fn versions(&self) -> Vec<(&Text, Version)> {
        self.items.iter().flat_map(Item::versions).collect()
    }
}
