//! The status that the API server stores for an object.

use serde::{Deserialize, Serialize};

use crate::Text;

/// The status that the API server stores for an object, as far as a derived status depends on it (G05).
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct StoredStatus {
    /// The `apiVersion` in which the object was read, such as `gateway.networking.k8s.io/v1`. The API server serves it.
    pub api_version: Text,
    /// The generation of the spec; 0 if the object has none.
    pub generation: i64,
    /// The whole status as JSON text; empty if there is none.
    pub json: Text,
}
