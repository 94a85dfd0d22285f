//! A resource of a proxy that is or contains what was asked for.

use std::fmt;

use sluice_model::{ResourceType, Text};
use sluice_xds::short_name;

/// A resource of the proxy that is or contains the subject.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FoundResource {
    pub(super) kind: ResourceType,
    pub(super) name: Text,
    /// The part of it.
    pub(super) part: String,
}

impl fmt::Display for FoundResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.part.is_empty() { "" } else { " " };
        write!(f, "{} {}{separator}{}", short_name(self.kind), self.name, self.part)
    }
}
