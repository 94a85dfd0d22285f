//! PeerAuthentications: what clients of a workload must show (P14).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Labels, Text, Timestamp};

/// Mutual TLS as declared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub enum PeerMtls {
    /// As the level above says.
    #[default]
    Unset,
    /// Plain text only.
    Disable,
    /// Either.
    Permissive,
    /// A certificate of the mesh.
    Strict,
}

/// A PeerAuthentication.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct PeerAuthentication {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Workloads it is for; empty is all of the namespace, or of the mesh in the root namespace.
    pub selector: Labels,
    /// Of ports not listed.
    pub mtls: PeerMtls,
    /// By port of the workload; counts only with a selector.
    pub ports: BTreeMap<u32, PeerMtls>,
}
