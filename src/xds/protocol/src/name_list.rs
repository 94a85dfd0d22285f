//! Names in a request, without copies.

use std::str::from_utf8;

use bytes::Bytes;

use crate::decode::{DecodeError, MessageSlice};
use crate::limits::MAX_SUBSCRIBED_NAMES;
use crate::version::Version;

/// Names in a request. They share the bytes of the request.
#[derive(Clone, Debug, Default)]
pub struct NameList {
    message: Bytes,
    /// Start and end of each name in the message.
    ranges: Vec<(u32, u32)>,
}

impl NameList {
    /// Adds a name. All names of a list are slices of the same message.
    ///
    /// # Errors
    /// The name is not UTF-8.
    pub(crate) fn push(&mut self, name: MessageSlice<'_>) -> Result<(), DecodeError> {
        name.check()?;
        let range = name.range();
        if self.ranges.is_empty() {
            self.message = name.message().clone();
            // Reserved once, because growing copies the list. The other names are assumed to be about as long; each has a tag
            // and a length.
            let more = (self.message.len() - range.start) / (range.len() + 2);
            self.ranges.reserve(more.min(MAX_SUBSCRIBED_NAMES));
        }
        let offset = |at: usize| u32::try_from(at).map_err(|_| DecodeError("the message is longer than 4 GiB"));
        self.ranges.push((offset(range.start)?, offset(range.end)?));
        Ok(())
    }

    /// The names in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.bytes().map(|name| from_utf8(name).unwrap_or_default())
    }

    /// The names in order as bytes, for callers that do not need UTF-8.
    pub(crate) fn bytes(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let bytes = |(start, end): &(u32, u32)| self.message.get(*start as usize..*end as usize);
        self.ranges.iter().map(move |range| bytes(range).unwrap_or_default())
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Size of the names together, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes().map(<[u8]>::len).sum()
    }

    /// Whether the list has no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether the list has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.bytes().any(|have| have == name.as_bytes())
    }
}

impl<T: AsRef<str>> FromIterator<T> for NameList {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        let (mut message, mut ranges, mut end) = (Vec::new(), Vec::new(), 0);
        for name in names {
            message.extend_from_slice(name.as_ref().as_bytes());
            let start = std::mem::replace(&mut end, u32::try_from(message.len()).unwrap_or(u32::MAX));
            ranges.push((start, end));
        }
        Self { message: message.into(), ranges }
    }
}

/// The resources that a client holds from an earlier stream (`initial_resource_versions`).
#[derive(Clone, Debug, Default)]
pub struct HeldList {
    names: NameList,
    /// The version of each resource; `None` if the text does not have the form of a [`Version`].
    versions: Vec<Option<Version>>,
}

impl HeldList {
    /// Adds a resource. All names of a list are slices of the same message.
    ///
    /// # Errors
    /// The name is not UTF-8.
    pub(crate) fn push(&mut self, name: MessageSlice<'_>, version: Option<Version>) -> Result<(), DecodeError> {
        self.names.push(name)?;
        self.versions.reserve(self.names.ranges.capacity() - self.versions.len());
        self.versions.push(version);
        Ok(())
    }

    /// The same list. If the names are a small part of their message, they are copied, and the message is not kept.
    pub(crate) fn compact(self) -> Self {
        if self.names.size() * 2 >= self.names.message.len() {
            return self;
        }
        Self { names: self.names.iter().collect(), versions: self.versions }
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

    /// The resources in order with names as bytes, for callers that do not need UTF-8.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = (&[u8], Option<Version>)> {
        self.names.bytes().zip(self.versions.iter().copied())
    }

    /// Number of resources.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether the list has no resource.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use sluice_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;

    use super::*;
    use crate::request::{Interest, Request, XdsProtocol};

    fn held(resources: impl Iterator<Item = (String, String)>) -> HeldList {
        let request = DeltaDiscoveryRequest {
            initial_resource_versions: resources.collect(),
            ..DeltaDiscoveryRequest::default()
        };
        let request = Request::decode(XdsProtocol::Delta, &request.encode_to_vec().into()).expect("a request");
        let Interest::Change { holds, .. } = request.interest else { panic!("a delta interest") };
        holds
    }

    #[test]
    fn versions_of_any_length_are_not_kept() {
        let list = held([("a".to_owned(), "1".repeat(100_000)), ("b".to_owned(), "x".repeat(16))].into_iter());
        let before = list.iter().map(|(name, version)| (name.to_owned(), version)).collect::<Vec<_>>();
        let list = list.compact();
        assert!(list.iter().eq(before.iter().map(|(name, version)| (name.as_str(), *version))));
        assert_eq!((list.names.message.len(), list.len()), (2, 2));
        let list =
            held((0..100).map(|name| (format!("outbound|80||service-{name:030}"), "0123456789abcdef".to_owned())));
        let message = list.names.message.as_ptr();
        assert_eq!(list.compact().names.message.as_ptr(), message, "a list that is most of its message is not copied");
    }
}
