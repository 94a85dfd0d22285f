//! How each operator's outputs relate to its inputs, key by key.

use crate::derive::DerivedRef;
use crate::transform::Owners;

/// Where the record of a key comes from, as its operator knows it.
pub(crate) enum Provenance {
    /// Set from outside: the number of the source.
    Source(usize),
    /// The same key of every parent.
    SameKey,
    /// A record of the only parent, whose key is on record.
    Renamed(Owners),
    /// The rows of an index: keys of the index's parent.
    IndexRows,
    /// The rows of the last parent, an index, under the same key; and the same key of the parents before it.
    Grouped,
    /// A row of the first parent, an index, with the record of the second: (index key, source key) on record.
    JoinedRows(Owners),
    /// What the closure read.
    Derived {
        /// The operator's memory.
        derived: DerivedRef,
        /// Output key to primary key, when they differ.
        owners: Option<Owners>,
    },
}

impl Provenance {
    pub(crate) fn owners(&self) -> Option<Owners> {
        match self {
            Self::Renamed(owners) | Self::JoinedRows(owners) => Some(owners.clone()),
            Self::Derived { owners, .. } => owners.clone(),
            Self::Source(_) | Self::SameKey | Self::IndexRows | Self::Grouped => None,
        }
    }
}
