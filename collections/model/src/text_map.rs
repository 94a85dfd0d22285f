//! Small maps by text: labels, annotations, addresses by cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Text;

/// A map of few entries, ordered by key, in one allocation. Cloning increments a reference count, so values derived
/// from an object share the map of the object. A write copies the map.
#[derive(Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct TextMap<V>(Arc<[(Text, V)]>);

/// Labels or annotations.
pub type Labels = TextMap<Text>;

/// Entries in order of their keys.
type Entries<'a, V> = std::iter::Map<std::slice::Iter<'a, (Text, V)>, fn(&'a (Text, V)) -> (&'a Text, &'a V)>;

impl<V> TextMap<V> {
    /// An empty map, without an allocation.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Whether a key has a value.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Entries in order of their keys.
    pub fn iter(&self) -> Entries<'_, V> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Text> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Values in order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(key))
    }
}

impl<V: Clone> TextMap<V> {
    /// Sets the value of a key.
    pub fn insert(&mut self, key: Text, value: V) {
        self.extend([(key, value)]);
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        self.retain(|known, _| known.as_str() != key);
    }

    /// Removes the entries for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Text, &V) -> bool) {
        if !self.0.iter().all(|(key, value)| keep(key, value)) {
            self.0 = self.0.iter().filter(|(key, value)| keep(key, value)).cloned().collect();
        }
    }
}

impl<V> Default for TextMap<V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<V> Clone for TextMap<V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<V: fmt::Debug> fmt::Debug for TextMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<V> Index<&str> for TextMap<V> {
    type Output = V;

    fn index(&self, key: &str) -> &V {
        self.get(key).expect("the key has a value")
    }
}

impl<V> From<BTreeMap<Text, V>> for TextMap<V> {
    fn from(entries: BTreeMap<Text, V>) -> Self {
        if entries.is_empty() { Self::default() } else { Self(entries.into_iter().collect()) }
    }
}

impl<V, const N: usize> From<[(Text, V); N]> for TextMap<V> {
    fn from(entries: [(Text, V); N]) -> Self {
        Self::from_iter(entries)
    }
}

impl<V> FromIterator<(Text, V)> for TextMap<V> {
    /// If a key has several values, the last one is used.
    fn from_iter<I: IntoIterator<Item = (Text, V)>>(entries: I) -> Self {
        Self::from(BTreeMap::from_iter(entries))
    }
}

impl<V: Clone> Extend<(Text, V)> for TextMap<V> {
    fn extend<I: IntoIterator<Item = (Text, V)>>(&mut self, entries: I) {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_some() {
            *self = self.0.iter().cloned().chain(entries).collect();
        }
    }
}

impl<'a, V> IntoIterator for &'a TextMap<V> {
    type Item = (&'a Text, &'a V);
    type IntoIter = Entries<'a, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<V: Serialize> Serialize for TextMap<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for TextMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_memory_until_a_write() {
        let first = Labels::from([("app".into(), "web".into())]);
        let mut second = first.clone();
        assert!(Arc::ptr_eq(&first.0, &second.0));
        second.insert("version".into(), "v1".into());
        assert_eq!((first.len(), second.len()), (1, 2));
        second.retain(|_, _| true);
        second.remove("none");
        second.remove("version");
        assert_eq!(first, second);
    }

    #[test]
    fn entries_are_ordered_and_the_last_value_of_a_key_is_used() {
        let mut labels = Labels::from([("b".into(), "1".into()), ("a".into(), "2".into()), ("b".into(), "3".into())]);
        labels.extend([("0".into(), "4".into()), ("a".into(), "5".into())]);
        let entries: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(entries, ["0=4", "a=5", "b=3"]);
        assert_eq!((labels.get("b"), labels.get("c")), (Some(&"3".into()), None));
    }
}
