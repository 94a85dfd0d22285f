//! Filters of records: which records a closure fetches, and which ones a reader of a snapshot wants (K05).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::value::Key;

/// A record with labels, such as a Pod.
pub trait Labeled {
    /// Its labels: keys and values.
    fn labels(&self) -> impl Iterator<Item = (&str, &str)>;
}

/// A record that selects other records by their labels, such as a Service.
pub trait LabelSelecting {
    /// The labels that a selected record has: keys and values.
    fn selector(&self) -> impl Iterator<Item = (&str, &str)>;
}

/// A set of labels as such.
impl Labeled for BTreeMap<String, String> {
    fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

type RecordCondition<K, V> = Arc<dyn Fn(&K, &V) -> bool + Send + Sync>;

/// Which records to fetch: those that meet all its conditions.
///
/// ```
/// use std::collections::BTreeMap;
///
/// use sluice_engine::RecordFilter;
///
/// type Labels = BTreeMap<String, String>;
/// let filter: RecordFilter<u32, Labels> = RecordFilter::all().keys([1, 2]).labels([("app", "web")]);
/// let web = Labels::from([("app".to_owned(), "web".to_owned()), ("tier".to_owned(), "front".to_owned())]);
/// assert!(filter.matches(&1, &web));
/// assert!(!filter.matches(&1, &Labels::new()), "the label is missing");
/// assert!(!filter.matches(&3, &web), "it is another key");
/// ```
pub struct RecordFilter<K, V> {
    keys: Option<BTreeSet<K>>,
    conditions: Vec<RecordCondition<K, V>>,
}

impl<K: Key, V: 'static> RecordFilter<K, V> {
    /// All records.
    #[must_use]
    pub fn all() -> Self {
        Self { keys: None, conditions: Vec::new() }
    }

    /// The record with this key.
    #[must_use]
    pub fn key(key: K) -> Self {
        Self::all().keys([key])
    }

    /// Only records with these keys; none if the list is empty. Of an index, these are keys of records, not index keys.
    #[must_use]
    pub fn keys(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        let keys = keys.into_iter();
        self.keys = Some(match self.keys {
            None => keys.collect(),
            Some(known) => keys.filter(|key| known.contains(key)).collect(),
        });
        self
    }

    /// Only records for which `condition` is true. It must be a pure function: it decides later which changes concern the
    /// fetch.
    #[must_use]
    pub fn matching(mut self, condition: impl Fn(&K, &V) -> bool + Send + Sync + 'static) -> Self {
        self.conditions.push(Arc::new(condition));
        self
    }

    /// Only records that have all these labels. Without labels, all records.
    #[must_use]
    pub fn labels(self, labels: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self
    where
        V: Labeled,
    {
        let wanted = label_map(labels);
        self.matching(move |_, value| {
            wanted.iter().all(|(key, wanted)| value.labels().any(|(name, label)| name == key && label == wanted))
        })
    }

    /// Only records that select an object with these labels. A record with an empty selector selects every object.
    #[must_use]
    pub fn selects(self, labels: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self
    where
        V: LabelSelecting,
    {
        let labels = label_map(labels);
        self.matching(move |_, value| value.selector().all(|(key, label)| has_label(&labels, key, label)))
    }

    /// As [`Self::selects`], but a record with an empty selector selects no object, as a Service without a selector.
    #[must_use]
    pub fn selects_non_empty(self, labels: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self
    where
        V: LabelSelecting,
    {
        self.selects(labels).matching(|_, value| value.selector().next().is_some())
    }

    /// Whether a record passes.
    #[must_use]
    pub fn matches(&self, key: &K, value: &V) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.contains(key)) && self.meets_conditions(key, value)
    }

    /// Whether a record meets the conditions besides its key.
    pub(crate) fn meets_conditions(&self, key: &K, value: &V) -> bool {
        self.conditions.iter().all(|condition| condition(key, value))
    }

    /// The only keys; `None` is all.
    pub(crate) fn only_keys(&self) -> Option<&BTreeSet<K>> {
        self.keys.as_ref()
    }

    /// Whether the value decides, too.
    pub(crate) fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }
}

impl<K: Clone, V> Clone for RecordFilter<K, V> {
    fn clone(&self) -> Self {
        Self { keys: self.keys.clone(), conditions: self.conditions.clone() }
    }
}

impl<K: fmt::Debug, V> fmt::Debug for RecordFilter<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions = self.conditions.len();
        f.debug_struct("RecordFilter").field("keys", &self.keys).field("conditions", &conditions).finish()
    }
}

fn label_map(labels: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> BTreeMap<String, String> {
    labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

fn has_label(labels: &BTreeMap<String, String>, key: &str, value: &str) -> bool {
    labels.get(key).is_some_and(|label| label == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A selector.
    struct Selects(&'static [(&'static str, &'static str)]);

    impl LabelSelecting for Selects {
        fn selector(&self) -> impl Iterator<Item = (&str, &str)> {
            self.0.iter().copied()
        }
    }

    #[test]
    fn empty_selector_selects_all_objects_or_none() {
        const WEB: [(&str, &str); 2] = [("app", "web"), ("tier", "front")];
        let (all, non_empty) =
            (RecordFilter::<u8, _>::all().selects(WEB), RecordFilter::<u8, _>::all().selects_non_empty(WEB));
        let cases: [(&'static [(&'static str, &'static str)], bool); 4] = [
            (&[("app", "web")], true),
            (&[("app", "web"), ("tier", "front")], true),
            (&[("app", "api")], false),
            (&[("app", "web"), ("zone", "a")], false),
        ];
        for (selector, selected) in cases {
            let selector = Selects(selector);
            assert_eq!(all.matches(&0, &selector), selected, "{:?}", selector.0);
            assert_eq!(non_empty.matches(&0, &selector), selected, "{:?}", selector.0);
        }
        assert!(all.matches(&0, &Selects(&[])));
        assert!(!non_empty.matches(&0, &Selects(&[])));
        let unlabelled: [(&str, &str); 0] = [];
        let selects_unlabelled = RecordFilter::<u8, _>::all().selects(unlabelled);
        assert!(selects_unlabelled.matches(&0, &Selects(&[])) && !selects_unlabelled.matches(&0, &Selects(&WEB)));
    }

    #[test]
    fn keys_of_several_calls_are_intersected() {
        let filter = RecordFilter::<u8, ()>::all().keys([1, 2]).keys([2, 3]);
        assert_eq!([1, 2, 3].map(|key| filter.matches(&key, &())), [false, true, false]);
        let none = RecordFilter::<u8, ()>::all().keys([]);
        assert!(!none.matches(&1, &()), "no key is listed");
    }
}
