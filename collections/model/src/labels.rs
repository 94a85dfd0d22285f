//! Labels and annotations.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use crate::Text;

/// Labels or annotations, ordered by key. Cloning costs a reference count: what is derived from an object keeps the
/// object's own. A write copies what others hold.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(Arc<BTreeMap<Text, Text>>);

/// Most objects have none of one of the two.
static EMPTY: LazyLock<Labels> = LazyLock::new(|| Labels(Arc::default()));

impl Labels {
    /// No labels.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Default for Labels {
    fn default() -> Self {
        EMPTY.clone()
    }
}

impl Deref for Labels {
    type Target = BTreeMap<Text, Text>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Labels {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl From<BTreeMap<Text, Text>> for Labels {
    fn from(labels: BTreeMap<Text, Text>) -> Self {
        if labels.is_empty() { Self::default() } else { Self(Arc::new(labels)) }
    }
}

impl<const N: usize> From<[(Text, Text); N]> for Labels {
    fn from(labels: [(Text, Text); N]) -> Self {
        Self::from_iter(labels)
    }
}

impl FromIterator<(Text, Text)> for Labels {
    fn from_iter<I: IntoIterator<Item = (Text, Text)>>(labels: I) -> Self {
        Self::from(BTreeMap::from_iter(labels))
    }
}

impl Extend<(Text, Text)> for Labels {
    fn extend<I: IntoIterator<Item = (Text, Text)>>(&mut self, labels: I) {
        let mut labels = labels.into_iter().peekable();
        if labels.peek().is_some() {
            Arc::make_mut(&mut self.0).extend(labels);
        }
    }
}

impl<'a> IntoIterator for &'a Labels {
    type Item = (&'a Text, &'a Text);
    type IntoIter = btree_map::Iter<'a, Text, Text>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl IntoIterator for Labels {
    type Item = (Text, Text);
    type IntoIter = btree_map::IntoIter<Text, Text>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_until_one_is_written() {
        let first = Labels::from([("app".into(), "web".into())]);
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.0, &second.0));
        second.insert("version".into(), "v1".into());
        assert_eq!((first.len(), second.len()), (1, 2));
        assert!(Arc::ptr_eq(&Labels::new().0, &Labels::from(BTreeMap::new()).0));
    }
}
