//! A hash map of erased keys that grows without long pauses and can be frozen at no cost.

use std::sync::Arc;

use crate::value::{Dyn, DynMap};

/// Average rows a shard holds before the next one is split off: small enough that copying a frozen shard is cheap.
const SHARD_ROWS: usize = 256;

/// Rows in shards by linear hashing: growing splits one shard at a time, so that no single insert pays for all rows.
/// Cloning the shard list freezes the rows as they are; later writes copy only the shards they touch.
pub(crate) struct Rows<T> {
    shards: Vec<Arc<DynMap<T>>>,
    len: usize,
}

/// Rows as they were at one epoch, readable from any thread.
pub(crate) struct Frozen<T> {
    pub(crate) shards: Vec<Arc<DynMap<T>>>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { shards: vec![Arc::new(DynMap::default())], len: 0 }
    }
}

impl<T: Clone> Rows<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: &Dyn) -> Option<&T> {
        self.shards[self.shard_of(key)].get(key)
    }

    pub(crate) fn get_key_value(&self, key: &Dyn) -> Option<(&Dyn, &T)> {
        self.shards[self.shard_of(key)].get_key_value(key)
    }

    pub(crate) fn get_mut(&mut self, key: &Dyn) -> Option<&mut T> {
        let shard = self.shard_of(key);
        // A frozen shard is copied only for a key that is there.
        if Arc::get_mut(&mut self.shards[shard]).is_none() && !self.shards[shard].contains_key(key) {
            return None;
        }
        Arc::make_mut(&mut self.shards[shard]).get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: Dyn, value: T) -> Option<T> {
        let shard = self.shard_of(&key);
        let old = Arc::make_mut(&mut self.shards[shard]).insert(key, value);
        if old.is_none() {
            self.len += 1;
            if self.len > self.shards.len() * SHARD_ROWS {
                self.split_one();
            }
        }
        old
    }

    pub(crate) fn remove(&mut self, key: &Dyn) -> Option<T> {
        let shard = self.shard_of(key);
        let old = Arc::make_mut(&mut self.shards[shard]).remove(key)?;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        }
        Some(old)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Dyn, &T)> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    pub(crate) fn freeze(&self) -> Frozen<T> {
        Frozen { shards: self.shards.clone() }
    }

    fn shard_of(&self, key: &Dyn) -> usize {
        // The map inside a shard uses the low and the top bits; take the shard from the middle.
        let hash = (key.hash64() >> 24) as usize;
        let round = self.shards.len().next_power_of_two();
        let shard = hash & (round - 1);
        if shard < self.shards.len() { shard } else { shard - round / 2 }
    }

    fn split_one(&mut self) {
        let round = (self.shards.len() + 1).next_power_of_two();
        let from = self.shards.len() - round / 2;
        self.shards.push(Arc::new(DynMap::default()));
        let rows = std::mem::take(Arc::make_mut(&mut self.shards[from]));
        let to = self.shards.len() - 1;
        #[expect(clippy::iter_over_hash_type, reason = "rows move from one map to two, their order is not seen")]
        for (key, value) in rows {
            let shard = self.shard_of(&key);
            debug_assert!(shard == from || shard == to);
            Arc::make_mut(&mut self.shards[shard]).insert(key, value);
        }
    }
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
