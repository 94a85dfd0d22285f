//! A sorted map in shared chunks.
//!
//! Readers keep a [`Run`] as they found it; an update copies the chunks it touches and shares the others. So keeping an
//! old run costs what changed since, two runs are compared by skipping the chunks they share, and what is encoded from a
//! chunk is encoded once for everybody.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use sluice_model::Text;

use crate::xds::version::Digest;

/// Rows of a chunk that is cut from a longer one.
const CUT: usize = 48;
/// Rows above which a chunk is cut.
const MOST: usize = 96;
/// Rows below which a chunk is joined with its neighbour.
const LEAST: usize = 12;
/// How long what was encoded is kept for the next client that wants the same.
const KEPT: Duration = Duration::from_secs(5);

/// A sorted map from name to `V`.
#[derive(Debug)]
pub(crate) struct Run<V> {
    chunks: Vec<Arc<Chunk<V>>>,
    len: usize,
}

/// Neighbouring rows, and what has been encoded from them.
#[derive(Debug)]
pub(crate) struct Chunk<V> {
    rows: Vec<(Text, V)>,
    wire: [Mutex<Option<Wire>>; 2],
    digest: OnceLock<Digest>,
}

/// The encoded rows of a chunk one after the other, with the end of each.
#[derive(Debug)]
struct Wire {
    bytes: Bytes,
    ends: Box<[usize]>,
    used: Instant,
}

impl Wire {
    /// The bytes of those rows, shared with the chunk.
    fn slice(&self, rows: Range<usize>) -> Bytes {
        let at = |row: usize| if row == 0 { 0 } else { self.ends.get(row - 1).copied().unwrap_or(self.bytes.len()) };
        self.bytes.slice(at(rows.start)..at(rows.end))
    }
}

impl<V> Chunk<V> {
    fn new(rows: Vec<(Text, V)>) -> Self {
        Self { rows, wire: Default::default(), digest: OnceLock::new() }
    }

    /// The rows in order.
    pub(crate) fn rows(&self) -> &[(Text, V)] {
        &self.rows
    }

    /// Rows as `encode` writes them. All are written on first use and kept for a while, see [`Self::forget_unused`]. `form`
    /// (0 or 1) tells two ways of writing apart.
    pub(crate) fn wire(&self, form: usize, rows: Range<usize>, encode: impl Fn(&Text, &V, &mut BytesMut)) -> Bytes {
        let mut made = held(&self.wire[form & 1]);
        let wire = made.get_or_insert_with(|| {
            let mut bytes = BytesMut::new();
            let mut ends = Vec::with_capacity(self.rows.len());
            for (name, value) in &self.rows {
                encode(name, value, &mut bytes);
                ends.push(bytes.len());
            }
            // A copy of the right size.
            Wire { bytes: Bytes::copy_from_slice(&bytes), ends: ends.into(), used: Instant::now() }
        });
        wire.used = Instant::now();
        wire.slice(rows)
    }

    /// Gives back what was encoded and has not been sent to anybody lately: rows stay much longer than clients come.
    pub(crate) fn forget_unused(&self, now: Instant) {
        for wire in &self.wire {
            held(wire).take_if(|wire| now.saturating_duration_since(wire.used) >= KEPT);
        }
    }
}

impl<V> Chunk<V> {
    /// What `of` gives for all rows, made on first use.
    pub(crate) fn digest(&self, of: impl FnOnce(&[(Text, V)]) -> Digest) -> Digest {
        *self.digest.get_or_init(|| of(&self.rows))
    }
}

fn held(wire: &Mutex<Option<Wire>>) -> MutexGuard<'_, Option<Wire>> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V> Default for Run<V> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<V: Clone> Run<V> {
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

    /// Where a row is: its chunk and its place there.
    pub(crate) fn position(&self, name: &str) -> Option<(usize, usize)> {
        let chunk = self.chunk_of(name)?;
        let rows = &self.chunks.get(chunk)?.rows;
        rows.binary_search_by(|(have, _)| have.as_str().cmp(name)).ok().map(|row| (chunk, row))
    }

    /// The row of that name, with the name as it is kept here.
    pub(crate) fn get(&self, name: &str) -> Option<(&Text, &V)> {
        let (chunk, row) = self.position(name)?;
        self.chunks.get(chunk)?.rows.get(row).map(|(name, value)| (name, value))
    }

    /// Where the first row is that is not before `name`, and whether it has that name.
    pub(crate) fn lower_bound(&self, name: &str) -> (usize, usize, bool) {
        let Some(chunk) = self.chunk_of(name) else { return (0, 0, false) };
        let rows = self.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.rows);
        match rows.binary_search_by(|(have, _)| have.as_str().cmp(name)) {
            Ok(row) => (chunk, row, true),
            Err(row) => (chunk, row, false),
        }
    }

    /// The rows from the first on that is not before `name`, in order.
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

    /// The run with these rows set (`Some`) or removed (`None`). `changes` is sorted by name, each name once.
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
            builder.cut();
        }
        for (name, value) in changes {
            if let Some(value) = value {
                builder.push(name, value);
            }
        }
        builder.finish()
    }

    /// Calls `found` with every name whose row is in only one of the runs or differs by `same`, in order.
    pub(crate) fn diff<'a>(&'a self, new: &'a Self, same: impl Fn(&V, &V) -> bool, mut found: impl FnMut(&'a Text)) {
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
                    found(name);
                    old_at.step();
                }
                (None, Some((name, _))) => {
                    found(name);
                    new_at.step();
                }
                (Some((name, old)), Some((other, new))) => match name.cmp(other) {
                    Ordering::Less => {
                        found(name);
                        old_at.step();
                    }
                    Ordering::Greater => {
                        found(other);
                        new_at.step();
                    }
                    Ordering::Equal => {
                        if !same(old, new) {
                            found(name);
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
    run: &'a Run<V>,
    chunk: usize,
    row: usize,
}

impl<'a, V> Cursor<'a, V> {
    fn new(run: &'a Run<V>) -> Self {
        Self { run, chunk: 0, row: 0 }
    }

    fn chunk(&self) -> Option<&'a Arc<Chunk<V>>> {
        self.run.chunks.get(self.chunk)
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

/// Makes a run from rows and shared chunks in order.
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
        if self.open.len() > MOST {
            let rest = self.open.split_off(CUT);
            let full = std::mem::replace(&mut self.open, rest);
            self.done.push(Arc::new(Chunk::new(full)));
        }
    }

    /// Closes the open chunk unless it is too short to stand alone.
    fn cut(&mut self) {
        if self.open.len() >= LEAST {
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
        } else if self.open.len() + chunk.rows.len() <= MOST {
            self.len += chunk.rows.len();
            self.open.extend(chunk.rows.iter().cloned());
            self.cut();
        } else {
            self.close();
            self.share(chunk);
        }
    }

    fn finish(mut self) -> Run<V> {
        self.close();
        Run { chunks: self.done, len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn changed(old: &Run<u8>, new: &Run<u8>) -> Vec<String> {
        let mut names = Vec::new();
        old.diff(new, |a, b| a == b, |name| names.push(name.to_string()));
        names
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_run_is_a_map(batches in prop::collection::vec(prop::collection::btree_map(0u16..600, prop::option::of(0u8..3), 0..200), 1..12)) {
            let mut model: BTreeMap<Text, u8> = BTreeMap::new();
            let mut run = Run::default();
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
                let next = run.apply(changes);
                prop_assert_eq!(next.len(), model.len());
                prop_assert!(next.iter().eq(model.iter()));
                for chunk in next.chunks() {
                    prop_assert!(!chunk.rows().is_empty() && chunk.rows().len() <= MOST);
                }
                let expect: Vec<String> = before.keys().chain(model.keys()).filter(|name| before.get(*name) != model.get(*name))
                    .map(|name| name.to_string()).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
                prop_assert_eq!(changed(&run, &next), expect);
                for key in 0u16..600 {
                    let name = format!("{key:04}");
                    prop_assert_eq!(next.get(&name).map(|(_, value)| *value), model.get(name.as_str()).copied());
                }
                run = next;
            }
        }
    }

    #[test]
    fn an_update_shares_what_it_does_not_touch() {
        let rows = (0..1000).map(|key| (Text::from(format!("{key:04}")), Some(0u8))).collect();
        let run = Run::default().apply(rows);
        let next = run.apply(vec![("0500".into(), Some(1))]);
        let shared =
            next.chunks().iter().filter(|chunk| run.chunks().iter().any(|old| Arc::ptr_eq(old, chunk))).count();
        assert_eq!(shared, next.chunks().len() - 1);
    }

    #[test]
    fn rows_are_encoded_once_and_sliced() {
        let run = Run::default().apply((0..5u8).map(|key| (Text::from(format!("n{key}")), Some(key))).collect());
        let chunk = &run.chunks()[0];
        let encode =
            |_: &Text, value: &u8, out: &mut BytesMut| out.extend_from_slice(&vec![*value; usize::from(*value)]);
        assert_eq!(&chunk.wire(0, 0..3, encode)[..], &[1, 2, 2]);
        chunk.forget_unused(Instant::now());
        assert_eq!(&chunk.wire(0, 3..4, |_, _, _| unreachable!())[..], &[3, 3, 3]);
        chunk.forget_unused(Instant::now() + KEPT);
        assert_eq!(&chunk.wire(0, 3..4, |_, _, out| out.extend_from_slice(b"!"))[..], b"!", "encoded anew");
    }
}
