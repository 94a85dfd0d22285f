//! PeerAuthentications: mutual TLS that a workload requires of its clients (P14).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Labels, Text, Timestamp};

/// Mutual TLS as declared.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub enum PeerMtls {
    /// Inherited from the level above.
    #[default]
    Unset,
    /// Plain text only.
    Disable,
    /// Plain text or mutual TLS.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

/// A PeerAuthentication.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct PeerAuthentication {
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub name: Text,
    /// Creation time; older wins.
    pub created: Timestamp,
    /// Selector of workloads; empty is all of the namespace, or of the mesh in the root namespace.
    pub selector: Labels,
    /// Mode of ports that are not listed.
    pub mtls: PeerMtls,
    /// Modes by port of the workload; ignored without a selector.
    pub ports: BTreeMap<u32, PeerMtls>,
    /// The selector cannot be read and holds only the labels that could. The policy requires mutual TLS of all workloads
    /// that it may select, and permits nothing.
    pub selector_unreadable: bool,
}
