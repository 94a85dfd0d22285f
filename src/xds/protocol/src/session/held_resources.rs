//! The resources that a client holds from an earlier stream.

use std::collections::HashMap;

use crate::name_list::HeldList;
use crate::version::{Digest, Version};

/// Names and versions that a client reports as held. They are dropped after the first response.
#[derive(Debug, Default)]
pub(super) struct HeldResources {
    list: HeldList,
    digest: Digest,
}

impl HeldResources {
    pub(super) fn new(list: HeldList) -> Self {
        let mut digest = Digest::default();
        for (name, version) in list.bytes() {
            digest.add(name, version.unwrap_or_default());
        }
        Self { list: list.compact(), digest }
    }

    /// Size of the names together, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.list.names().size()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Digest of all names and versions. It equals the digest of a listing if the client holds exactly these resources.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// The version of each resource; `None` if the text does not have the form of a [`Version`].
    pub(super) fn by_name(&self) -> HashMap<&str, Option<Version>> {
        self.list.iter().collect()
    }
}
