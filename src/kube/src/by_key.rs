//! A receiver of objects by key, which finds out what a new list no longer contains.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::list_watch::{Receiver, WatchEvent};

/// Receives the objects of a collection one by one.
pub trait ObjectsByKey: Send {
    /// What identifies an object in the collection.
    type Key: Clone + Ord + Send;

    /// The key of an object; `None` if the object is not valid, and is skipped.
    fn key(&self, object: &Value) -> Option<Self::Key>;
    /// The object is there, or has changed.
    fn set(&mut self, key: Self::Key, object: &Value);
    /// The object is gone.
    fn remove(&mut self, key: &Self::Key);
    /// A complete list has been received.
    fn listed(&mut self) {}
    /// All changes that were received together have been passed on, those of a complete list too.
    fn changed(&mut self) {}
}

/// Passes the objects of lists and watches to `T`. Keeps their keys.
pub struct ByKey<T: ObjectsByKey> {
    objects: T,
    /// Keys of the objects that exist.
    known: BTreeSet<T::Key>,
    /// Keys of those that the list in progress has not contained yet.
    not_listed: BTreeSet<T::Key>,
}

impl<T: ObjectsByKey> ByKey<T> {
    /// No objects are known.
    pub fn new(objects: T) -> Self {
        Self { objects, known: BTreeSet::new(), not_listed: BTreeSet::new() }
    }

    fn set(&mut self, object: &Value) {
        let Some(key) = self.objects.key(object) else { return };
        self.not_listed.remove(&key);
        self.known.insert(key.clone());
        self.objects.set(key, object);
    }

    fn remove(&mut self, key: &T::Key) {
        if self.known.remove(key) {
            self.objects.remove(key);
        }
    }
}

impl<T: ObjectsByKey> Receiver for ByKey<T> {
    fn begin_list(&mut self) {
        self.not_listed.clone_from(&self.known);
    }

    fn listed(&mut self, objects: Vec<Value>) {
        objects.iter().for_each(|object| self.set(object));
    }

    fn end_list(&mut self) {
        for key in std::mem::take(&mut self.not_listed) {
            self.remove(&key);
        }
        self.objects.listed();
        self.objects.changed();
    }

    fn watched(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Apply(object) => self.set(&object),
                WatchEvent::Delete(object) => {
                    if let Some(key) = self.objects.key(&object) {
                        self.remove(&key);
                    }
                }
            }
        }
        self.objects.changed();
    }

    fn absent(&mut self) {
        self.begin_list();
        self.end_list();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[derive(Default)]
    struct Names {
        values: BTreeMap<String, Value>,
        lists: usize,
        changes: usize,
    }

    impl ObjectsByKey for Names {
        type Key = String;

        fn key(&self, object: &Value) -> Option<String> {
            object["name"].as_str().map(str::to_owned)
        }

        fn set(&mut self, key: String, object: &Value) {
            self.values.insert(key, object["value"].clone());
        }

        fn remove(&mut self, key: &String) {
            assert!(self.values.remove(key).is_some(), "{key} is removed twice");
        }

        fn listed(&mut self) {
            self.lists += 1;
        }

        fn changed(&mut self) {
            self.changes += 1;
        }
    }

    fn objects(receiver: &ByKey<Names>) -> Vec<String> {
        receiver.objects.values.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_new_list_removes_what_it_does_not_contain() {
        let mut receiver = ByKey::new(Names::default());
        receiver.begin_list();
        receiver.listed(vec![json!({"name": "a", "value": 1}), json!({"value": 0}), json!({"name": "b", "value": 2})]);
        receiver.end_list();
        assert_eq!(objects(&receiver), ["a=1", "b=2"]);

        receiver.watched(vec![
            WatchEvent::Apply(json!({"name": "c", "value": 3})),
            WatchEvent::Delete(json!({"name": "a"})),
            WatchEvent::Delete(json!({"name": "unknown"})),
        ]);
        assert_eq!(objects(&receiver), ["b=2", "c=3"]);

        receiver.begin_list();
        receiver.listed(vec![json!({"name": "c", "value": 4})]);
        assert_eq!(objects(&receiver), ["b=2", "c=4"], "nothing is removed before the end of a list");
        receiver.end_list();
        assert_eq!(objects(&receiver), ["c=4"]);
        assert_eq!((receiver.objects.lists, receiver.objects.changes), (2, 3));

        receiver.absent();
        assert!(receiver.objects.values.is_empty());
    }

    #[test]
    fn an_object_that_comes_during_a_list_stays_after_an_interrupted_one() {
        let mut receiver = ByKey::new(Names::default());
        receiver.watched(vec![WatchEvent::Apply(json!({"name": "a", "value": 1}))]);
        receiver.begin_list();
        receiver.listed(vec![json!({"name": "b", "value": 2})]);
        receiver.begin_list();
        receiver.listed(vec![json!({"name": "a", "value": 1})]);
        receiver.end_list();
        assert_eq!(objects(&receiver), ["a=1"]);
    }
}
