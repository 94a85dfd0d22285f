//! Requests and responses, whichever of the two protocols they are written in.

use std::str::from_utf8;

use bytes::Bytes;
use sluice_model::{ResourceType, Text};
use sluice_proto::envoy::config::core::v3::Node;

use crate::xds::decode::Piece;
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

/// Names in a request, as pieces of its bytes: none is copied.
#[derive(Clone, Debug, Default)]
pub struct NameList {
    message: Bytes,
    /// Where each is in the message.
    places: Vec<(u32, u32)>,
}

impl NameList {
    /// Adds a piece of the message; of the same one each time.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub(crate) fn push(&mut self, name: Piece<'_>) -> Result<(), Malformed> {
        name.check()?;
        let range = name.range();
        if self.places.is_empty() {
            self.message = name.message().clone();
            // What grows is copied again and again. Others are about as long, and each has a tag and a length.
            let more = (self.message.len() - range.start) / (range.len() + 2);
            self.places.reserve(more.min(MAX_NAMES));
        }
        let place = |at: usize| u32::try_from(at).map_err(|_| Malformed("it is longer than 4 GiB"));
        self.places.push((place(range.start)?, place(range.end)?));
        Ok(())
    }

    /// The names in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.bytes().map(|name| from_utf8(name).unwrap_or_default())
    }

    /// Their bytes in order, for what need not know that they are text.
    pub(crate) fn bytes(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let bytes = |(start, end): &(u32, u32)| self.message.get(*start as usize..*end as usize);
        self.places.iter().map(move |place| bytes(place).unwrap_or_default())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether one of them is this.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.bytes().any(|have| have == name.as_bytes())
    }
}

impl<T: AsRef<str>> FromIterator<T> for NameList {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        let (mut message, mut places, mut end) = (Vec::new(), Vec::new(), 0);
        for name in names {
            message.extend_from_slice(name.as_ref().as_bytes());
            let start = std::mem::replace(&mut end, u32::try_from(message.len()).unwrap_or(u32::MAX));
            places.push((start, end));
        }
        Self { message: message.into(), places }
    }
}

/// What a client holds from an earlier stream.
#[derive(Clone, Debug, Default)]
pub struct HeldList {
    names: NameList,
    /// The version of each, if it is one of ours.
    versions: Vec<Option<Version>>,
}

impl HeldList {
    /// Adds a resource of the same message as the others.
    ///
    /// # Errors
    /// When its name is not UTF-8.
    pub(crate) fn push(&mut self, name: Piece<'_>, version: Option<Version>) -> Result<(), Malformed> {
        self.names.push(name)?;
        self.versions.reserve(self.names.places.capacity() - self.versions.len());
        self.versions.push(version);
        Ok(())
    }

    /// The names of the resources.
    #[must_use]
    pub fn names(&self) -> &NameList {
        &self.names
    }

    /// The resources in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<Version>)> {
        self.names.iter().zip(self.versions.iter().copied())
    }

    /// The same, for what need not know that names are text.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = (&[u8], Option<Version>)> {
        self.names.bytes().zip(self.versions.iter().copied())
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
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
    Exactly(NameList),
    /// These more and those no longer (delta).
    Change {
        /// Names to add, or `*`.
        subscribe: NameList,
        /// Names to take out, or `*`.
        unsubscribe: NameList,
        /// What the client holds from an earlier stream.
        holds: HeldList,
    },
}

impl Default for Interest {
    fn default() -> Self {
        Self::Exactly(NameList::default())
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
