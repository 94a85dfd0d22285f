//! What a layer holds of one type at one epoch.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use sluice_model::Text;

use super::entry::Entry;
use crate::xds::run::Run;

/// The most names of a change that a layer remembers for who comes next.
const REMEMBERED: usize = 16 << 10;

/// What a layer holds of one type, by resource name. It remembers in which names it differs from the one before: whoever
/// sees the layer comes from that one most of the time.
#[derive(Debug, Default)]
pub(crate) struct Table {
    run: Run<Entry>,
    before: Option<(Weak<Self>, Box<[Text]>)>,
}

impl Table {
    /// The table with these rows set or removed; `rows` is sorted by name, each name once, and each differs from what is
    /// there.
    pub(super) fn after(old: &Arc<Self>, rows: Vec<(Text, Option<Entry>)>) -> Self {
        // Of what is new as a whole all names differ.
        let few = rows.len() <= REMEMBERED && !old.is_empty();
        let before = few.then(|| (Arc::downgrade(old), rows.iter().map(|(name, _)| name.clone()).collect()));
        Self { run: old.run.apply(rows), before }
    }

    /// Adds the names of which an earlier state of the layer, or this, says something else.
    pub(super) fn differing(self: &Arc<Self>, old: &Arc<Self>, names: &mut BTreeSet<Text>) {
        if Arc::ptr_eq(self, old) {
            return;
        }
        match &self.before {
            Some((before, changed)) if std::ptr::eq(before.as_ptr(), Arc::as_ptr(old)) => {
                names.extend(changed.iter().cloned());
            }
            _ => old.run.diff(&self.run, Entry::same, |name| {
                names.insert(name.clone());
            }),
        }
    }
}

impl Deref for Table {
    type Target = Run<Entry>;

    fn deref(&self) -> &Run<Entry> {
        &self.run
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::Resource;

    use super::super::entry::Whole;
    use super::*;

    fn entry(content: &'static str) -> Entry {
        let whole = Some(Whole::new(&Resource::Encoded(content.into())));
        Entry { whole, segments: None }
    }

    #[test]
    fn what_differs_is_the_same_however_it_is_found() {
        let empty = Arc::new(Table::default());
        let first =
            Arc::new(Table::after(&empty, vec![("a".into(), Some(entry("1"))), ("b".into(), Some(entry("1")))]));
        let second =
            Arc::new(Table::after(&first, vec![("a".into(), Some(entry("2"))), ("c".into(), Some(entry("1")))]));
        let third = Arc::new(Table::after(&second, vec![("a".into(), Some(entry("1"))), ("b".into(), None)]));
        let differing = |new: &Arc<Table>, old: &Arc<Table>| {
            let mut names = BTreeSet::new();
            new.differing(old, &mut names);
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(differing(&second, &first), ["a", "c"]);
        assert_eq!(differing(&third, &second), ["a", "b"]);
        assert_eq!(differing(&third, &first), ["b", "c"], "over two steps, and `a` is what it was");
        assert!(differing(&third, &third).is_empty());
        let forgetful = Arc::new(Table { run: third.run.apply(Vec::new()), before: None });
        assert_eq!(differing(&forgetful, &second), differing(&third, &second));
    }
}
