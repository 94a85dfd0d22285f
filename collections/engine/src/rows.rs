//! A hash map of erased keys that grows without long pauses and can be frozen at no cost.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::value::Dyn;

/// Average rows a shard holds before the next one is split off: small enough that copying a frozen shard is cheap.
const SHARD_ROWS: usize = 256;

/// Some of the rows.
pub(crate) type Shard<T> = HashTable<(Dyn, T)>;

/// Rows in shards by linear hashing: growing splits one shard at a time, so that no single insert pays for all rows.
/// Cloning the shard list freezes the rows as they are; later writes copy only the shards they touch.
pub(crate) struct Rows<T> {
    shards: Vec<Arc<Shard<T>>>,
    len: usize,
}

/// Rows as they were at one epoch, readable from any thread.
pub(crate) struct Frozen<T> {
    pub(crate) shards: Vec<Arc<Shard<T>>>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { shards: vec![Arc::default()], len: 0 }
    }
}

impl<T: Clone> Rows<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &Dyn) -> Option<&T> {
        self.get_key_value(key).map(|(_, value)| value)
    }

    pub(crate) fn get_key_value(&self, key: &Dyn) -> Option<(&Dyn, &T)> {
        let hash = key.hash64();
        self.shards[self.shard_of(hash)].find(hash, |(k, _)| k == key).map(|(k, value)| (k, value))
    }

    /// The keys with this hash: one, but for a coincidence.
    pub(crate) fn keys_of(&self, hash: u64) -> impl Iterator<Item = &Dyn> {
        let rows = self.shards[self.shard_of(hash)].iter_hash(hash);
        rows.map(|(key, _)| key).filter(move |key| key.hash64() == hash)
    }

    pub(crate) fn get_mut(&mut self, key: &Dyn) -> Option<&mut T> {
        let hash = key.hash64();
        let at = self.shard_of(hash);
        let shard = &mut self.shards[at];
        // A frozen shard is copied only for a key that is there.
        if Arc::get_mut(shard).is_none() && shard.find(hash, |(k, _)| k == key).is_none() {
            return None;
        }
        Arc::make_mut(shard).find_mut(hash, |(k, _)| k == key).map(|(_, value)| value)
    }

    pub(crate) fn insert(&mut self, key: Dyn, value: T) -> Option<T> {
        let hash = key.hash64();
        let at = self.shard_of(hash);
        let shard = Arc::make_mut(&mut self.shards[at]);
        if let Some((_, known)) = shard.find_mut(hash, |(k, _)| *k == key) {
            return Some(std::mem::replace(known, value));
        }
        add(shard, (key, value));
        self.len += 1;
        if self.len > self.shards.len() * SHARD_ROWS {
            self.split_one();
        }
        None
    }

    pub(crate) fn remove(&mut self, key: &Dyn) -> Option<T> {
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Dyn, &T)> {
        self.shards.iter().flat_map(|shard| shard.iter()).map(|(key, value)| (key, value))
    }

    pub(crate) fn freeze(&self) -> Frozen<T> {
        Frozen { shards: self.shards.clone() }
    }

    fn shard_of(&self, hash: u64) -> usize {
        // The table inside a shard uses the low and the top bits; take the shard from the middle.
        let hash = (hash >> 24) as usize;
        let round = self.shards.len().next_power_of_two();
        let shard = hash & (round - 1);
        if shard < self.shards.len() { shard } else { shard - round / 2 }
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

fn add<T>(shard: &mut Shard<T>, row: (Dyn, T)) {
    shard.insert_unique(row.0.hash64(), row, |(key, _)| key.hash64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_growth_and_freezing() {
        let mut rows = Rows::default();
        for n in 0..20_000u32 {
            assert!(rows.insert(Dyn::new(n), n).is_none());
        }
        let frozen = rows.freeze();
        for n in (0..20_000u32).step_by(2) {
            assert_eq!(rows.remove(&Dyn::new(n)), Some(n));
        }
        assert_eq!(rows.len(), 10_000);
        assert!(rows.keys_of(Dyn::new(1u32).hash64()).eq([&Dyn::new(1u32)]));
        assert!(rows.keys_of(Dyn::new(2u32).hash64()).next().is_none());
        for n in 0..20_000u32 {
            assert_eq!(rows.get(&Dyn::new(n)).copied(), (n % 2 == 1).then_some(n));
        }
        assert_eq!(frozen.shards.iter().map(|shard| shard.len()).sum::<usize>(), 20_000);
        let largest = frozen.shards.iter().map(|shard| shard.len()).max();
        assert!(largest.is_some_and(|rows| rows < 4 * SHARD_ROWS), "{largest:?}");
    }

    #[test]
    fn emptied_rows_give_their_memory_back() {
        let mut rows = Rows::default();
        for n in 0..5_000u32 {
            rows.insert(Dyn::new(n), ());
        }
        for n in 0..5_000u32 {
            rows.remove(&Dyn::new(n));
        }
        assert_eq!((rows.len(), rows.shards.len()), (0, 1));
    }
}
