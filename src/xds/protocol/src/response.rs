//! Responses, independent of the protocol that encodes them.

use sluice_model::{ResourceType, Text};

use crate::store::ResponseItem;
use crate::version::Version;

/// A response of either protocol, not encoded yet.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The resource type; `None` if the type is unknown.
    pub kind: Option<ResourceType>,
    /// The type as the client names it.
    pub type_url: Text,
    /// Identifies the response within the stream.
    pub nonce: String,
    /// Version of all resources in it (state of the world), or the store's epoch (delta).
    pub version: String,
    pub(crate) items: Vec<ResponseItem>,
    /// Names of removed resources (delta only).
    pub removed: Vec<Text>,
    /// Names that the client requested on demand and that no resource has (delta only).
    pub unresolved: Vec<Text>,
    /// The first epoch of the store whose changes the response carries; `None` if it responds to a request.
    pub since: Option<u64>,
}

impl Response {
    /// Number of resources in it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.items.iter().map(ResponseItem::count).sum()
    }

    /// Names and versions of the resources in it.
    #[must_use]
    pub fn versions(&self) -> Vec<(&Text, Version)> {
        self.items.iter().flat_map(ResponseItem::versions).collect()
    }
}
