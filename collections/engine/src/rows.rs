//! A hash map of erased keys that grows without long pauses and whose state can be frozen cheaply.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::value::Erased;

/// Average number of rows per shard before a shard is split: small enough that copying a frozen shard is cheap.
const ROWS_PER_SHARD: usize = 256;
/// A full shard grows by this part of its rows. A row is thus moved about 8 times, which costs less than room for twice as many.
const SPARE_SHARE: usize = 8;
/// A full shard grows by at least so many rows.
const MIN_SPARE_ROWS: usize = 4;

/// One shard of the rows. A row has tens of bytes, and a hash table is up to half empty, so the table has only positions.
#[derive(Clone)]
pub(crate) struct RowShard<T> {
    rows: Vec<(Erased, T)>,
    /// Positions in `rows` by the hash of the key.
    positions: HashTable<u32>,
}

impl<T> Default for RowShard<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), positions: HashTable::new() }
    }
}

impl<T> RowShard<T> {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows, in no particular order.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, (Erased, T)> {
        self.rows.iter()
    }

    fn position(&self, key: &Erased) -> Option<usize> {
        let is_key = |at: &u32| self.rows[*at as usize].0 == *key;
        self.positions.find(key.hash64(), is_key).map(|at| *at as usize)
    }

    fn find(&self, key: &Erased) -> Option<&(Erased, T)> {
        self.position(key).map(|at| &self.rows[at])
    }

    fn find_mut(&mut self, key: &Erased) -> Option<&mut T> {
        self.position(key).map(|at| &mut self.rows[at].1)
    }

    fn keys_of(&self, hash: u64) -> impl Iterator<Item = &Erased> {
        let keys = self.positions.iter_hash(hash).map(|at| &self.rows[*at as usize].0);
        keys.filter(move |key| key.hash64() == hash)
    }

    /// Adds a row whose key the shard does not have.
    fn add(&mut self, row: (Erased, T)) {
        let Self { rows, positions } = self;
        let Ok(at) = u32::try_from(rows.len()) else { unreachable!("a shard is split long before") };
        if rows.len() == rows.capacity() {
            rows.reserve_exact((rows.len() / SPARE_SHARE).max(MIN_SPARE_ROWS));
        }
        let hash = row.0.hash64();
        rows.push(row);
        positions.insert_unique(hash, at, |at| rows[*at as usize].0.hash64());
    }

    fn remove(&mut self, key: &Erased) -> Option<T> {
        let Self { rows, positions } = self;
        let found = positions.find_entry(key.hash64(), |at| rows[*at as usize].0 == *key).ok()?;
        let (at, _) = found.remove();
        let (_, old) = rows.swap_remove(at as usize);
        // The last row has taken its place.
        if let Some((moved, _)) = rows.get(at as usize)
            && let Some(position) = positions.find_mut(moved.hash64(), |position| *position as usize == rows.len())
        {
            *position = at;
        }
        if rows.capacity() > 2 * rows.len() + MIN_SPARE_ROWS {
            rows.shrink_to(rows.len() + MIN_SPARE_ROWS);
            positions.shrink_to(rows.len(), |at| rows[*at as usize].0.hash64());
        }
        Some(old)
    }
}

/// Rows in shards by linear hashing: growth splits one shard at a time, so that no single insert rehashes all rows.
/// A clone shares the shards; later writes to either copy only the shards they touch.
#[derive(Clone)]
pub(crate) struct ShardedRows<T> {
    shards: Vec<Arc<RowShard<T>>>,
    len: usize,
}

/// The rows of one epoch, readable by any thread.
pub(crate) struct FrozenRows<T> {
    pub(crate) shards: Vec<Arc<RowShard<T>>>,
}

impl<T> Default for FrozenRows<T> {
    fn default() -> Self {
        Self { shards: Vec::new() }
    }
}

impl<T> FrozenRows<T> {
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    pub(crate) fn get(&self, key: &Erased) -> Option<&T> {
        self.shards.get(shard_of(key.hash64(), self.shards.len()))?.find(key).map(|(_, value)| value)
    }
}

impl<T> Default for ShardedRows<T> {
    fn default() -> Self {
        Self { shards: vec![Arc::default()], len: 0 }
    }
}

impl<T: Clone> ShardedRows<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &Erased) -> Option<&T> {
        self.get_key_value(key).map(|(_, value)| value)
    }

    pub(crate) fn get_key_value(&self, key: &Erased) -> Option<(&Erased, &T)> {
        self.shards[self.shard_of(key.hash64())].find(key).map(|(key, value)| (key, value))
    }

    /// The keys with this hash: at most one, except for hash collisions.
    pub(crate) fn keys_of(&self, hash: u64) -> impl Iterator<Item = &Erased> {
        self.shards[self.shard_of(hash)].keys_of(hash)
    }

    pub(crate) fn get_mut(&mut self, key: &Erased) -> Option<&mut T> {
        let at = self.shard_of(key.hash64());
        let shard = &mut self.shards[at];
        // A frozen shard is copied only if it has the key.
        if Arc::get_mut(shard).is_none() && shard.find(key).is_none() {
            return None;
        }
        Arc::make_mut(shard).find_mut(key)
    }

    pub(crate) fn insert(&mut self, key: Erased, value: T) -> Option<T> {
        let at = self.shard_of(key.hash64());
        let shard = Arc::make_mut(&mut self.shards[at]);
        if let Some(known) = shard.find_mut(&key) {
            return Some(std::mem::replace(known, value));
        }
        shard.add((key, value));
        self.len += 1;
        if self.len > self.shards.len() * ROWS_PER_SHARD {
            self.split_one();
        }
        None
    }

    pub(crate) fn remove(&mut self, key: &Erased) -> Option<T> {
        let at = self.shard_of(key.hash64());
        let old = Arc::make_mut(&mut self.shards[at]).remove(key)?;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        }
        Some(old)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Erased, &T)> {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|(key, value)| (key, value))
    }

    pub(crate) fn freeze(&self) -> FrozenRows<T> {
        FrozenRows { shards: self.shards.clone() }
    }

    fn shard_of(&self, hash: u64) -> usize {
        shard_of(hash, self.shards.len())
    }

    fn split_one(&mut self) {
        let round = (self.shards.len() + 1).next_power_of_two();
        let from = self.shards.len() - round / 2;
        self.shards.push(Arc::default());
        let shard = std::mem::take(Arc::make_mut(&mut self.shards[from]));
        let to = self.shards.len() - 1;
        for row in shard.rows {
            let shard = self.shard_of(row.0.hash64());
            debug_assert!(shard == from || shard == to);
            Arc::make_mut(&mut self.shards[shard]).add(row);
        }
    }
}

/// The number of the shard of a hash, if there are this many.
fn shard_of(hash: u64, shards: usize) -> usize {
    // The hash table of a shard uses the low and the high bits of the hash, so the shard number comes from the middle.
    let hash = (hash >> 24) as usize;
    let round = shards.next_power_of_two();
    let shard = hash & (round - 1);
    if shard < shards { shard } else { shard - round / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_across_growth_and_freezing() {
        let mut rows = ShardedRows::default();
        for n in 0..20_000u32 {
            assert!(rows.insert(Erased::new(n), n).is_none());
        }
        let frozen = rows.freeze();
        for n in (0..20_000u32).step_by(2) {
            assert_eq!(rows.remove(&Erased::new(n)), Some(n));
        }
        assert_eq!(rows.len(), 10_000);
        assert!(rows.keys_of(Erased::new(1u32).hash64()).eq([&Erased::new(1u32)]));
        assert!(rows.keys_of(Erased::new(2u32).hash64()).next().is_none());
        for n in 0..20_000u32 {
            assert_eq!(rows.get(&Erased::new(n)).copied(), (n % 2 == 1).then_some(n));
        }
        assert_eq!(frozen.shards.iter().map(|shard| shard.len()).sum::<usize>(), 20_000);
        let largest = frozen.shards.iter().map(|shard| shard.len()).max();
        assert!(largest.is_some_and(|rows| rows < 4 * ROWS_PER_SHARD), "{largest:?}");
    }

    #[test]
    fn removing_all_rows_releases_their_memory() {
        let mut rows = ShardedRows::default();
        for n in 0..5_000u32 {
            rows.insert(Erased::new(n), ());
        }
        for n in 0..5_000u32 {
            rows.remove(&Erased::new(n));
        }
        assert_eq!((rows.len(), rows.shards.len()), (0, 1));
    }

    #[test]
    fn rows_have_little_room_to_spare_before_and_after_removals() {
        let mut rows = ShardedRows::default();
        let most = |rows: &ShardedRows<u32>| {
            let capacity: usize = rows.shards.iter().map(|shard| shard.rows.capacity()).sum();
            assert!(capacity >= rows.len());
            capacity - rows.len()
        };
        for n in 0..1_000u32 {
            rows.insert(Erased::new(n), n);
        }
        assert!(most(&rows) <= 1_000 / SPARE_SHARE + rows.shards.len() * MIN_SPARE_ROWS, "{}", most(&rows));
        for n in 0..900u32 {
            rows.remove(&Erased::new(n));
        }
        assert!(most(&rows) <= 100 + rows.shards.len() * MIN_SPARE_ROWS, "{}", most(&rows));
        assert!((900..1_000).all(|n| rows.get(&Erased::new(n)) == Some(&n)));
    }
}
