//! Sets of resource types.

use sluice_model::ResourceType;

/// A set of resource types, one bit each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ResourceTypeSet(u16);

impl ResourceTypeSet {
    const fn bit(kind: ResourceType) -> u16 {
        1 << kind as u16
    }

    /// Adds a type.
    pub fn insert(&mut self, kind: ResourceType) {
        self.0 |= Self::bit(kind);
    }

    /// Whether the type is in the set.
    #[must_use]
    pub const fn contains(self, kind: ResourceType) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    /// The types that are in this set and not in the other one.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The types in push order.
    pub fn iter(self) -> impl Iterator<Item = ResourceType> {
        ResourceType::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<ResourceType> for ResourceTypeSet {
    fn from_iter<I: IntoIterator<Item = ResourceType>>(kinds: I) -> Self {
        let mut set = Self::default();
        kinds.into_iter().for_each(|kind| set.insert(kind));
        set
    }
}
