//! A hash map of erased keys that grows without long pauses and whose state can be frozen cheaply.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::value::Erased;

/// Average number of rows per shard before a shard is split: small enough that copying a frozen shard is cheap.
const ROWS_PER_SHARD: usize = 256;

/// One shard of the rows.
pub(crate) type RowShard<T> = HashTable<(Erased, T)>;

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
        let hash = key.hash64();
        self.shards.get(shard_of(hash, self.shards.len()))?.find(hash, |(k, _)| k == key).map(|(_, value)| value)
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
        let hash = key.hash64();
        self.shards[self.shard_of(hash)].find(hash, |(k, _)| k == key).map(|(k, value)| (k, value))
    }

    /// The keys with this hash: at most one, except for hash collisions.
    pub(crate) fn keys_of(&self, hash: u64) -> impl Iterator<Item = &Erased> {
        let rows = self.shards[self.shard_of(hash)].iter_hash(hash);
        rows.map(|(key, _)| key).filter(move |key| key.hash64() == hash)
    }

    pub(crate) fn get_mut(&mut self, key: &Erased) -> Option<&mut T> {
        let hash = key.hash64();
        let at = self.shard_of(hash);
        let shard = &mut self.shards[at];
        // A frozen shard is copied only if it has the key.
        if Arc::get_mut(shard).is_none() && shard.find(hash, |(k, _)| k == key).is_none() {
            return None;
        }
        Arc::make_mut(shard).find_mut(hash, |(k, _)| k == key).map(|(_, value)| value)
    }

    pub(crate) fn insert(&mut self, key: Erased, value: T) -> Option<T> {
        let hash = key.hash64();
        let at = self.shard_of(hash);
        let shard = Arc::make_mut(&mut self.shards[at]);
        if let Some((_, known)) = shard.find_mut(hash, |(k, _)| *k == key) {
            return Some(std::mem::replace(known, value));
        }
        add(shard, (key, value));
        self.len += 1;
        if self.len > self.shards.len() * ROWS_PER_SHARD {
            self.split_one();
        }
        None
    }

    pub(crate) fn remove(&mut self, key: &Erased) -> Option<T> {
        let hash = key.hash64();
        let at = self.shard_of(hash);
        let shard = Arc::make_mut(&mut self.shards[at]);
        let ((_, old), _) = shard.find_entry(hash, |(k, _)| k == key).ok()?.remove();
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
        let rows = std::mem::take(Arc::make_mut(&mut self.shards[from]));
        let to = self.shards.len() - 1;
        for row in rows {
            let shard = self.shard_of(row.0.hash64());
            debug_assert!(shard == from || shard == to);
            add(Arc::make_mut(&mut self.shards[shard]), row);
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

fn add<T>(shard: &mut RowShard<T>, row: (Erased, T)) {
    shard.insert_unique(row.0.hash64(), row, |(key, _)| key.hash64());
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
}
