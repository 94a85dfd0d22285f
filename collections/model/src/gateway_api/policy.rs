//! Policies for the way to a backend.

use std::time::Duration;

use serde::Serialize;

use super::{GroupKind, ObjectRef};
use crate::{ObjectMeta, Text};

/// A BackendTLSPolicy: how TLS is spoken with backends.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct BackendTlsPolicy {
    /// Name, annotations, creation time.
    pub meta: ObjectMeta,
    /// The backends, in its own namespace.
    pub targets: Vec<PolicyTarget>,
    /// How they are verified.
    pub validation: BackendValidation,
}

/// How a backend is verified.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct BackendValidation {
    /// Name asked for and verified, empty if none is said.
    pub hostname: Text,
    /// Other names it may have.
    pub subject_alt_names: Vec<Text>,
    /// Roots, in the policy's own namespace.
    pub roots: Vec<ObjectRef>,
    /// Roots by name: `System` are those of the client's machine.
    pub well_known_roots: Option<Text>,
}

/// What a policy is for, in its own namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct PolicyTarget {
    /// Kind.
    pub kind: GroupKind,
    /// Name.
    pub name: Text,
    /// Name of a port, empty for all.
    pub section: Text,
}

/// An XBackendTrafficPolicy: how much is retried.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct BackendTrafficPolicy {
    /// Name, annotations, creation time.
    pub meta: ObjectMeta,
    /// The backends, in its own namespace.
    pub targets: Vec<PolicyTarget>,
    /// The budget of retries, if it says something of it.
    pub retry_constraint: Option<RetryConstraint>,
}

/// How much is retried.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct RetryConstraint {
    /// Share of requests that may be retries, in percent.
    pub percent: Option<u32>,
    /// The time it is counted over.
    pub interval: Option<Duration>,
    /// Retries that are always allowed.
    pub minimum: Option<u32>,
}
