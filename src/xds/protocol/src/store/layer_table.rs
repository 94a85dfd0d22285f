//! The content of a layer of one type at one epoch.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use sluice_model::Text;

use super::entry::LayerEntry;
use crate::chunked_map::ChunkedMap;

/// A table records the names of a change up to this number.
const MAX_RECORDED_NAMES: usize = 16 << 10;

/// The content of a layer of one type, by resource name. It records the names that differ from the previous table, because
/// most streams held that one.
#[derive(Debug, Default)]
pub(crate) struct LayerTable {
    rows: ChunkedMap<LayerEntry>,
    previous: Option<(Weak<Self>, Box<[Text]>)>,
}

impl LayerTable {
    /// The table with these rows set or removed. `rows` is sorted by name, has each name once, and each row differs from the
    /// current one.
    pub(super) fn after(old: &Arc<Self>, rows: Vec<(Text, Option<LayerEntry>)>) -> Self {
        // All names of a new layer differ.
        let few = rows.len() <= MAX_RECORDED_NAMES && !old.is_empty();
        let previous = few.then(|| (Arc::downgrade(old), rows.iter().map(|(name, _)| name.clone()).collect()));
        Self { rows: old.rows.apply(rows), previous }
    }

    /// Adds the names whose rows differ between an earlier table of the layer and this one, in order.
    pub(super) fn differing(self: &Arc<Self>, old: &Arc<Self>, names: &mut Vec<Text>) {
        if Arc::ptr_eq(self, old) {
            return;
        }
        match &self.previous {
            Some((previous, changed)) if std::ptr::eq(previous.as_ptr(), Arc::as_ptr(old)) => {
                names.extend(changed.iter().cloned());
            }
            _ => old.rows.diff(&self.rows, LayerEntry::same, |name| {
                names.push(name.clone());
            }),
        }
    }
}

impl Deref for LayerTable {
    type Target = ChunkedMap<LayerEntry>;

    fn deref(&self) -> &ChunkedMap<LayerEntry> {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use sluice_model::Resource;

    use super::super::entry::WholeResource;
    use super::*;

    fn entry(content: &'static str) -> LayerEntry {
        let whole = Some(WholeResource::new(&Resource::Encoded(content.into())));
        LayerEntry { whole, segments: None }
    }

    #[test]
    fn remembered_and_compared_differences_are_equal() {
        let empty = Arc::new(LayerTable::default());
        let first =
            Arc::new(LayerTable::after(&empty, vec![("a".into(), Some(entry("1"))), ("b".into(), Some(entry("1")))]));
        let second =
            Arc::new(LayerTable::after(&first, vec![("a".into(), Some(entry("2"))), ("c".into(), Some(entry("1")))]));
        let third = Arc::new(LayerTable::after(&second, vec![("a".into(), Some(entry("1"))), ("b".into(), None)]));
        let differing = |new: &Arc<LayerTable>, old: &Arc<LayerTable>| {
            let mut names = Vec::new();
            new.differing(old, &mut names);
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(differing(&second, &first), ["a", "c"]);
        assert_eq!(differing(&third, &second), ["a", "b"]);
        assert_eq!(differing(&third, &first), ["b", "c"], "over two steps, `a` has its first value again");
        assert!(differing(&third, &third).is_empty());
        let forgetful = Arc::new(LayerTable { rows: third.rows.apply(Vec::new()), previous: None });
        assert_eq!(differing(&forgetful, &second), differing(&third, &second));
    }
}
