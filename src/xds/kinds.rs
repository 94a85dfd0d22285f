//! Sets of resource types.

use sluice_model::ResourceType;

/// A set of resource types, a bit each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Kinds(u16);

impl Kinds {
    const fn bit(kind: ResourceType) -> u16 {
        1 << kind as u16
    }

    pub(crate) fn insert(&mut self, kind: ResourceType) {
        self.0 |= Self::bit(kind);
    }

    pub(crate) const fn contains(self, kind: ResourceType) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    /// What only this one has.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// In push order.
    pub(crate) fn iter(self) -> impl Iterator<Item = ResourceType> {
        ResourceType::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<ResourceType> for Kinds {
    fn from_iter<I: IntoIterator<Item = ResourceType>>(kinds: I) -> Self {
        let mut set = Self::default();
        kinds.into_iter().for_each(|kind| set.insert(kind));
        set
    }
}
