//! Limits for the requests of one client.

/// Maximum length of a resource name, in bytes.
pub const MAX_RESOURCE_NAME_BYTES: usize = 4096;
/// Maximum length of the URL of an unknown type, in bytes.
pub(crate) const MAX_TYPE_URL_BYTES: usize = 256;
/// Maximum number of names that a client may subscribe to or hold on one stream, all types together.
pub(crate) const MAX_SUBSCRIBED_NAMES: usize = 500_000;
/// Maximum size of these names together, in bytes.
pub(crate) const MAX_SUBSCRIBED_NAME_BYTES: usize = 32 << 20;
/// A client's error message is truncated to this many bytes.
pub(crate) const MAX_ERROR_MESSAGE_BYTES: usize = 4096;
/// Maximum number of unknown types that a client may subscribe to on one stream.
pub(crate) const MAX_UNKNOWN_TYPES: usize = 32;
/// Maximum number of extensions that a node lists. Envoy has some hundreds.
pub(crate) const MAX_NODE_EXTENSIONS: usize = 4096;
