//! What a client brings from an earlier stream.

use std::collections::HashMap;

use crate::xds::request::HeldList;
use crate::xds::version::{Digest, Version};

/// Names and versions a client says it holds. Kept until the first answer.
#[derive(Debug, Default)]
pub(super) struct Holds {
    list: HeldList,
    digest: Digest,
}

impl Holds {
    pub(super) fn new(list: HeldList) -> Self {
        let mut digest = Digest::default();
        for (name, version) in list.bytes() {
            digest.add(name, version.unwrap_or_default());
        }
        Self { list, digest }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Of all names with their versions: equal to that of a listing when the client holds just that.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// The version of each; none is one we never gave.
    pub(super) fn by_name(&self) -> HashMap<&str, Option<Version>> {
        self.list.iter().collect()
    }
}
