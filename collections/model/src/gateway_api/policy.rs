//! Policies for backends.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GroupKind, ObjectRef};
use crate::{ObjectMeta, StoredStatus, Text};

/// A BackendTLSPolicy: TLS with backends.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct BackendTlsPolicy {
    /// Name, annotations, creation time.
    pub meta: ObjectMeta,
    /// The backends, in its own namespace.
    pub targets: Vec<PolicyTarget>,
    /// Their verification.
    pub validation: BackendValidation,
    /// Its status.
    pub status: StoredStatus,
}

/// Verification of a backend.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct BackendValidation {
    /// Name that is sent as SNI and verified; empty if unset.
    pub hostname: Text,
    /// Other accepted names.
    pub subject_alt_names: Vec<Text>,
    /// Root certificates: objects in the namespace of the policy.
    pub roots: Vec<ObjectRef>,
    /// Well-known root certificates: `System` are those of the client's machine.
    pub well_known_roots: Option<Text>,
}

/// Target of a policy, in its own namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct PolicyTarget {
    /// Kind.
    pub kind: GroupKind,
    /// Name.
    pub name: Text,
    /// Name of a port, empty for all.
    pub section: Text,
}

/// An XBackendTrafficPolicy: the retry budget of backends.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct BackendTrafficPolicy {
    /// Name, annotations, creation time.
    pub meta: ObjectMeta,
    /// The backends, in its own namespace.
    pub targets: Vec<PolicyTarget>,
    /// The retry budget, if set.
    pub retry_constraint: Option<RetryConstraint>,
    /// Whether it asks for persistent sessions, which are not supported.
    pub has_session_persistence: bool,
    /// Its status.
    pub status: StoredStatus,
}

/// A retry budget.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct RetryConstraint {
    /// Share of requests that may be retries, in percent.
    pub percent: Option<u32>,
    /// Interval over which requests are counted.
    pub interval: Option<Duration>,
    /// Retries that are always allowed.
    pub minimum: Option<u32>,
}
