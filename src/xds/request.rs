//! Requests and responses, whichever of the two protocols they are written in.

use std::str::Utf8Error;

use bytes::Bytes;
use bytestring::ByteString;
use sluice_model::{ResourceType, Text};
use sluice_proto::envoy::config::core::v3::Node;

use crate::xds::store::Item;
use crate::xds::version::Version;

/// The longest resource name that is taken, in bytes.
pub const MAX_NAME: usize = 4096;
/// The most names a client may subscribe to of one type.
pub const MAX_NAMES: usize = 500_000;
/// The most bytes these names may have together.
pub const MAX_NAME_BYTES: usize = 64 << 20;
/// What is kept of a client's error message, in bytes.
pub const MAX_ERROR: usize = 4096;
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

/// A name in a request: a piece of the request's bytes, not copied.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd)]
pub struct Name(ByteString);

impl Name {
    /// The name, if the bytes are text.
    ///
    /// # Errors
    /// When they are not UTF-8.
    pub fn new(bytes: Bytes) -> Result<Self, Utf8Error> {
        ByteString::try_from(bytes).map(Self)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self(text.into())
    }
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

/// The bytes are no request of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a discovery request: {0}")]
pub struct Malformed(pub(crate) &'static str);

impl Request {
    /// The request in these bytes; its names stay pieces of them.
    ///
    /// # Errors
    /// When they are no request of that protocol.
    pub fn decode(protocol: Protocol, bytes: &Bytes) -> Result<Self, Malformed> {
        match protocol {
            Protocol::Sotw => crate::xds::sotw::decode(bytes),
            Protocol::Delta => crate::xds::delta::decode(bytes),
        }
    }
}

/// Which resources a client wants.
#[derive(Clone, Debug)]
pub enum Interest {
    /// Exactly these (state of the world).
    Exactly(Vec<Name>),
    /// These more and those no longer (delta).
    Change {
        /// Names to add, or `*`.
        subscribe: Vec<Name>,
        /// Names to take out, or `*`.
        unsubscribe: Vec<Name>,
        /// What the client holds from an earlier stream, with the version if it is one of ours.
        holds: Vec<(Name, Option<Version>)>,
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
    /// Nobody vouches for the caller where somebody has to: `UNAUTHENTICATED`.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller is not who it says it is, or may not see what it asks for: `PERMISSION_DENIED`.
    #[error("{0}")]
    Denied(String),
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
    /// Names asked for on demand that nothing is known by (delta only).
    pub unresolved: Vec<Text>,
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
