//! Experimental XBackends: destinations outside of the cluster.

use serde::Serialize;

use super::BackendValidation;
use crate::{ObjectMeta, Text};

/// An XBackend.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct Backend {
    /// Name, creation time.
    pub meta: ObjectMeta,
    /// The host; `None` for a backend of another type.
    pub hostname: Option<Text>,
    /// Its port.
    pub port: u16,
    /// TLS, if it is spoken.
    pub tls: Option<BackendTls>,
}

/// How TLS with an XBackend is spoken.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct BackendTls {
    /// Who shows certificates.
    pub mode: BackendTlsMode,
    /// How the backend is verified.
    pub validation: BackendValidation,
}

/// Who shows certificates.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum BackendTlsMode {
    /// Nobody: it is plain.
    None,
    /// The backend.
    #[default]
    ServerOnly,
    /// Both, which is not supported.
    ClientAndServer,
}
