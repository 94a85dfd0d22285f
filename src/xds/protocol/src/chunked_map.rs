//! A sorted, persistent map in shared chunks.
//!
//! An update copies the chunks it touches and shares the others. So keeping an old map costs what changed since, two maps
//! are compared by skipping the chunks they share, and the encoded rows of a chunk are shared by all clients.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{Bytes, BytesMut};
use sluice_model::Text;

use crate::version::Digest;

/// Number of rows of a chunk that is split off a longer one.
const SPLIT_CHUNK_ROWS: usize = 48;
/// A chunk with more rows is split.
const MAX_CHUNK_ROWS: usize = 96;
/// A chunk with fewer rows is merged with its neighbour.
const MIN_CHUNK_ROWS: usize = 12;
/// Sweeps without a use after which encoded rows are dropped; see [`Chunk::drop_unused`].
const MAX_IDLE_SWEEPS: u8 = 3;

/// A sorted map from name to `V`.
#[derive(Debug)]
pub(crate) struct ChunkedMap<V> {
    chunks: Vec<Arc<Chunk<V>>>,
    len: usize,
}

/// Neighbouring rows with their encoded forms.
#[derive(Debug)]
pub(crate) struct Chunk<V> {
    rows: Vec<(Text, V)>,
    encoded: [Mutex<Option<EncodedRows>>; 2],
    digest: OnceLock<Digest>,
}

/// The encoded rows of a chunk in sequence, with the end offset of each.
#[derive(Debug)]
struct EncodedRows {
    bytes: Bytes,
    ends: Box<[usize]>,
    /// Sweeps since the rows were last used.
    idle_sweeps: u8,
}

impl EncodedRows {
    /// The bytes of these rows, shared with the chunk.
    fn slice(&self, rows: Range<usize>) -> Bytes {
        let at = |row: usize| if row == 0 { 0 } else { self.ends.get(row - 1).copied().unwrap_or(self.bytes.len()) };
        self.bytes.slice(at(rows.start)..at(rows.end))
    }
}

impl<V> Chunk<V> {
    fn new(rows: Vec<(Text, V)>) -> Self {
        Self { rows, encoded: Default::default(), digest: OnceLock::new() }
    }

    /// The rows in order.
    pub(crate) fn rows(&self) -> &[(Text, V)] {
        &self.rows
    }

    /// The rows as `encode` writes them. All rows of the chunk are encoded on first use and cached, see
    /// [`Self::drop_unused`]. `encoding` (0 or 1) selects the cache of one of two encodings.
    pub(crate) fn encoded(
        &self,
        encoding: usize,
        rows: Range<usize>,
        encode: impl Fn(&Text, &V, &mut BytesMut),
    ) -> Bytes {
        let mut cached = lock(&self.encoded[encoding & 1]);
        let encoded = cached.get_or_insert_with(|| {
            let mut bytes = BytesMut::new();
            let mut ends = Vec::with_capacity(self.rows.len());
            for (name, value) in &self.rows {
                encode(name, value, &mut bytes);
                ends.push(bytes.len());
            }
            // The copy has no spare capacity.
            EncodedRows { bytes: Bytes::copy_from_slice(&bytes), ends: ends.into(), idle_sweeps: 0 }
        });
        encoded.idle_sweeps = 0;
        encoded.slice(rows)
    }

    /// Drops encoded rows that were not used during the last [`MAX_IDLE_SWEEPS`] calls: rows live much longer than
    /// the clients that need all of them at once.
    pub(crate) fn drop_unused(&self) {
        for encoded in &self.encoded {
            lock(encoded).take_if(|encoded| {
                encoded.idle_sweeps += 1;
                encoded.idle_sweeps >= MAX_IDLE_SWEEPS
            });
        }
    }

    /// The digest of all rows, computed by `of` on first use.
    pub(crate) fn digest(&self, of: impl FnOnce(&[(Text, V)]) -> Digest) -> Digest {
        *self.digest.get_or_init(|| of(&self.rows))
    }
}

fn lock(encoded: &Mutex<Option<EncodedRows>>) -> MutexGuard<'_, Option<EncodedRows>> {
    encoded.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V> Default for ChunkedMap<V> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<V: Clone> ChunkedMap<V> {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks in order; none is empty.
    pub(crate) fn chunks(&self) -> &[Arc<Chunk<V>>] {
        &self.chunks
    }

    /// Every row in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Text, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.rows.iter().map(|(name, value)| (name, value)))
    }

    /// Position of a row: its chunk and its index in the chunk.
    pub(crate) fn position(&self, name: &str) -> Option<(usize, usize)> {
        let chunk = self.chunk_of(name)?;
        let rows = &self.chunks.get(chunk)?.rows;
        rows.binary_search_by(|(have, _)| have.as_str().cmp(name)).ok().map(|row| (chunk, row))
    }

    /// The row with this name, and the stored copy of the name.
    pub(crate) fn get(&self, name: &str) -> Option<(&Text, &V)> {
        self.at(self.position(name)?)
    }

    /// The row at a position.
    pub(crate) fn at(&self, (chunk, row): (usize, usize)) -> Option<(&Text, &V)> {
        self.chunks.get(chunk)?.rows.get(row).map(|(name, value)| (name, value))
    }

    /// [`Self::position`] of one of several names that are looked up in order. `last` is where the search for the one before ended:
    /// most names are found there or near.
    pub(crate) fn next_position(&self, name: &str, last: &mut Option<(usize, usize)>) -> Option<(usize, usize)> {
        const MAX_STEPS: usize = 3;
        let steps = if last.is_some() { MAX_STEPS } else { 0 };
        for _ in 0..steps {
            let (chunk, row) = (*last)?;
            let Some((have, _)) = self.chunks.get(chunk)?.rows.get(row) else {
                *last = Some((chunk + 1, 0));
                continue;
            };
            match have.as_str().cmp(name) {
                Ordering::Less => *last = Some((chunk, row + 1)),
                Ordering::Equal => return *last,
                Ordering::Greater => return None,
            }
        }
        let (chunk, row, found) = self.lower_bound(name);
        *last = Some((chunk, row));
        last.filter(|_| found)
    }

    /// Position of the first row that is not before `name`, and whether it has that name.
    pub(crate) fn lower_bound(&self, name: &str) -> (usize, usize, bool) {
        let Some(chunk) = self.chunk_of(name) else { return (0, 0, false) };
        let rows = self.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.rows);
        match rows.binary_search_by(|(have, _)| have.as_str().cmp(name)) {
            Ok(row) => (chunk, row, true),
            Err(row) => (chunk, row, false),
        }
    }

    /// The rows that are not before `name`, in order.
    pub(crate) fn from<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a Text, &'a V)> + use<'a, V> {
        let (chunk, row, _) = self.lower_bound(name);
        let chunks = self.chunks.get(chunk..).unwrap_or_default().iter();
        let rows = chunks.flat_map(|chunk| chunk.rows.iter().map(|(name, value)| (name, value)));
        rows.skip(row)
    }

    fn chunk_of(&self, name: &str) -> Option<usize> {
        let after =
            self.chunks.partition_point(|chunk| chunk.rows.first().is_some_and(|(first, _)| first.as_str() <= name));
        after.checked_sub(1)
    }

    /// The map with these rows set (`Some`) or removed (`None`). `changes` is sorted by name and has each name once.
    pub(crate) fn apply(&self, changes: Vec<(Text, Option<V>)>) -> Self {
        let mut builder = Builder::default();
        let mut changes = changes.into_iter().peekable();
        for (ix, chunk) in self.chunks.iter().enumerate() {
            let end = self.chunks.get(ix + 1).and_then(|next| next.rows.first()).map(|(name, _)| name);
            let mine = |name: &Text| end.is_none_or(|end| name < end);
            if !changes.peek().is_some_and(|(name, _)| mine(name)) {
                builder.share(chunk);
                continue;
            }
            let mut rows = chunk.rows.iter().peekable();
            while let Some((name, value)) = changes.next_if(|(name, _)| mine(name)) {
                while let Some((have, old)) = rows.next_if(|(have, _)| *have < name) {
                    builder.push(have.clone(), old.clone());
                }
                rows.next_if(|(have, _)| *have == name);
                if let Some(value) = value {
                    builder.push(name, value);
                }
            }
            for (have, old) in rows {
                builder.push(have.clone(), old.clone());
            }
            builder.close_if_full_enough();
        }
        for (name, value) in changes {
            if let Some(value) = value {
                builder.push(name, value);
            }
        }
        builder.finish()
    }

    /// Calls `report` with every name whose row is in only one of the maps or differs according to `same`, in order.
    pub(crate) fn diff<'a>(&'a self, new: &'a Self, same: impl Fn(&V, &V) -> bool, mut report: impl FnMut(&'a Text)) {
        let (mut old_at, mut new_at) = (Cursor::new(self), Cursor::new(new));
        loop {
            if old_at.row == 0
                && new_at.row == 0
                && let (Some(old), Some(new)) = (old_at.chunk(), new_at.chunk())
                && Arc::ptr_eq(old, new)
            {
                old_at.skip();
                new_at.skip();
                continue;
            }
            match (old_at.peek(), new_at.peek()) {
                (None, None) => return,
                (Some((name, _)), None) => {
                    report(name);
                    old_at.step();
                }
                (None, Some((name, _))) => {
                    report(name);
                    new_at.step();
                }
                (Some((name, old)), Some((other, new))) => match name.cmp(other) {
                    Ordering::Less => {
                        report(name);
                        old_at.step();
                    }
                    Ordering::Greater => {
                        report(other);
                        new_at.step();
                    }
                    Ordering::Equal => {
                        if !same(old, new) {
                            report(name);
                        }
                        old_at.step();
                        new_at.step();
                    }
                },
            }
        }
    }
}

struct Cursor<'a, V> {
    map: &'a ChunkedMap<V>,
    chunk: usize,
    row: usize,
}

impl<'a, V> Cursor<'a, V> {
    fn new(map: &'a ChunkedMap<V>) -> Self {
        Self { map, chunk: 0, row: 0 }
    }

    fn chunk(&self) -> Option<&'a Arc<Chunk<V>>> {
        self.map.chunks.get(self.chunk)
    }

    fn peek(&self) -> Option<(&'a Text, &'a V)> {
        self.chunk()?.rows.get(self.row).map(|(name, value)| (name, value))
    }

    fn skip(&mut self) {
        self.chunk += 1;
        self.row = 0;
    }

    fn step(&mut self) {
        self.row += 1;
        if self.chunk().is_some_and(|chunk| self.row >= chunk.rows.len()) {
            self.skip();
        }
    }
}

/// Builds a map from rows and shared chunks in order.
struct Builder<V> {
    done: Vec<Arc<Chunk<V>>>,
    open: Vec<(Text, V)>,
    len: usize,
}

impl<V> Default for Builder<V> {
    fn default() -> Self {
        Self { done: Vec::new(), open: Vec::new(), len: 0 }
    }
}

impl<V: Clone> Builder<V> {
    fn push(&mut self, name: Text, value: V) {
        self.len += 1;
        self.open.push((name, value));
        if self.open.len() > MAX_CHUNK_ROWS {
            let rest = self.open.split_off(SPLIT_CHUNK_ROWS);
            let full = std::mem::replace(&mut self.open, rest);
            self.done.push(Arc::new(Chunk::new(full)));
        }
    }

    /// Closes the open chunk unless it has too few rows.
    fn close_if_full_enough(&mut self) {
        if self.open.len() >= MIN_CHUNK_ROWS {
            self.close();
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push(Arc::new(Chunk::new(std::mem::take(&mut self.open))));
        }
    }

    fn share(&mut self, chunk: &Arc<Chunk<V>>) {
        if self.open.is_empty() {
            self.len += chunk.rows.len();
            self.done.push(chunk.clone());
        } else if self.open.len() + chunk.rows.len() <= MAX_CHUNK_ROWS {
            self.len += chunk.rows.len();
            self.open.extend(chunk.rows.iter().cloned());
            self.close_if_full_enough();
        } else {
            self.close();
            self.share(chunk);
        }
    }

    fn finish(mut self) -> ChunkedMap<V> {
        self.close();
        ChunkedMap { chunks: self.done, len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn changed(old: &ChunkedMap<u8>, new: &ChunkedMap<u8>) -> Vec<String> {
        let mut names = Vec::new();
        old.diff(new, |a, b| a == b, |name| names.push(name.to_string()));
        names
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn updates_and_diffs_agree_with_a_btree_map(batches in prop::collection::vec(prop::collection::btree_map(0u16..600, prop::option::of(0u8..3), 0..200), 1..12)) {
            let mut model: BTreeMap<Text, u8> = BTreeMap::new();
            let mut map = ChunkedMap::default();
            for batch in batches {
                let before = model.clone();
                let changes: Vec<(Text, Option<u8>)> =
                    batch.iter().map(|(key, value)| (Text::from(format!("{key:04}")), *value)).collect();
                for (name, value) in &changes {
                    match value {
                        Some(value) => model.insert(name.clone(), *value),
                        None => model.remove(name),
                    };
                }
                let next = map.apply(changes);
                prop_assert_eq!(next.len(), model.len());
                prop_assert!(next.iter().eq(model.iter()));
                for chunk in next.chunks() {
                    prop_assert!(!chunk.rows().is_empty() && chunk.rows().len() <= MAX_CHUNK_ROWS);
                }
                let expect: Vec<String> = before.keys().chain(model.keys()).filter(|name| before.get(*name) != model.get(*name))
                    .map(|name| name.to_string()).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
                prop_assert_eq!(changed(&map, &next), expect);
                for key in 0u16..600 {
                    let name = format!("{key:04}");
                    prop_assert_eq!(next.get(&name).map(|(_, value)| *value), model.get(name.as_str()).copied());
                }
                for step in [1, 2, 5, 40] {
                    let mut last = None;
                    for name in (0u16..600).step_by(step).map(|key| format!("{key:04}")) {
                        prop_assert_eq!(next.next_position(&name, &mut last), next.position(&name));
                    }
                }
                map = next;
            }
        }
    }

    #[test]
    fn update_shares_untouched_chunks() {
        let rows = (0..1000).map(|key| (Text::from(format!("{key:04}")), Some(0u8))).collect();
        let map = ChunkedMap::default().apply(rows);
        let next = map.apply(vec![("0500".into(), Some(1))]);
        let shared =
            next.chunks().iter().filter(|chunk| map.chunks().iter().any(|old| Arc::ptr_eq(old, chunk))).count();
        assert_eq!(shared, next.chunks().len() - 1);
    }

    #[test]
    fn rows_are_encoded_once_until_unused() {
        let map = ChunkedMap::default().apply((0..5u8).map(|key| (Text::from(format!("n{key}")), Some(key))).collect());
        let chunk = &map.chunks()[0];
        let encode =
            |_: &Text, value: &u8, out: &mut BytesMut| out.extend_from_slice(&vec![*value; usize::from(*value)]);
        assert_eq!(&chunk.encoded(0, 0..3, encode)[..], &[1, 2, 2]);
        chunk.drop_unused();
        assert_eq!(&chunk.encoded(0, 3..4, |_, _, _| unreachable!())[..], &[3, 3, 3]);
        (0..MAX_IDLE_SWEEPS).for_each(|_| chunk.drop_unused());
        assert_eq!(&chunk.encoded(0, 3..4, |_, _, out| out.extend_from_slice(b"!"))[..], b"!", "encoded again");
    }
}
