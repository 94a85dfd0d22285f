//! Experimental XBackends: destinations outside the cluster.

use serde::{Deserialize, Serialize};

use super::BackendValidation;
use crate::{ObjectMeta, StoredStatus, Text};

/// An XBackend.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct Backend {
    /// Name, creation time.
    pub meta: ObjectMeta,
    /// Its type, as it is written. `ExternalHostname` is the supported one.
    pub kind: Text,
    /// The host; `None` for a backend of another type.
    pub hostname: Option<Text>,
    /// Its port.
    pub port: u16,
    /// TLS, if it is used.
    pub tls: Option<BackendTls>,
    /// Its status.
    pub status: StoredStatus,
}

/// TLS with an XBackend.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct BackendTls {
    /// Which sides present certificates.
    pub mode: BackendTlsMode,
    /// Verification of the backend.
    pub validation: BackendValidation,
}

/// Which sides present certificates.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum BackendTlsMode {
    /// Neither side: plain text.
    None,
    /// The backend.
    #[default]
    ServerOnly,
    /// Both, which is not supported.
    ClientAndServer,
}
