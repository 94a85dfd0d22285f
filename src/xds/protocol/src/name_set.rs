//! Sets of resource names. Equal sets share one copy.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use sluice_model::Text;

use crate::chunked_map::ChunkedMap;
use crate::name_list::NameList;

/// A set of resource names. Proxies that subscribe to the same names share one copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameSet {
    map: Arc<ChunkedMap<()>>,
    digest: u128,
    bytes: usize,
}

impl NameSet {
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Size of all names together, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.map.position(name).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Text> {
        self.map.iter().map(|(name, ())| name)
    }
}

impl PartialEq for NameSet {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.len() == other.len()
    }
}

/// Keeps one copy of equal sets. Clients choose the names, so the hash that finds equal sets has secret seeds.
#[derive(Debug)]
pub struct NameInterner {
    low: RapidSecrets,
    high: RapidSecrets,
    sets: Mutex<Interned>,
}

#[derive(Debug, Default)]
struct Interned {
    sets: HashMap<u128, Weak<ChunkedMap<()>>>,
    purge_at: usize,
}

impl NameInterner {
    /// An empty interner. The seeds must be random and secret.
    #[must_use]
    pub fn with_seeds(low: u64, high: u64) -> Self {
        Self { low: RapidSecrets::seed(low), high: RapidSecrets::seed(high), sets: Mutex::default() }
    }

    fn hash(&self, name: &[u8]) -> u128 {
        let low = rapidhash_v3_seeded(name, &self.low);
        let high = rapidhash_v3_seeded(name, &self.high);
        (u128::from(high) << 64) | u128::from(low)
    }

    fn digest(&self, names: &NameList) -> u128 {
        names.bytes().map(|name| self.hash(name)).fold(0, u128::wrapping_add)
    }

    /// The set of these names without `*`. No name is copied if an equal set exists.
    pub(crate) fn set(&self, names: &NameList) -> NameSet {
        self.union(names, &NameList::default())
    }

    /// The set of the names of both lists, without `*`.
    pub(crate) fn union(&self, names: &NameList, more: &NameList) -> NameSet {
        let digest = self.digest(names);
        let same = || more.len() == names.len() && (names.bytes().eq(more.bytes()) || digest == self.digest(more));
        if more.is_empty() || same() {
            // A duplicate name makes this lookup fail; the code below handles it.
            let interned = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(map) = interned.sets.get(&digest).and_then(Weak::upgrade).filter(|map| map.len() == names.len())
            {
                let bytes = names.bytes().map(<[u8]>::len).sum();
                return NameSet { map, digest, bytes };
            }
        }
        let mut all: BTreeSet<Text> = names.iter().chain(more.iter()).map(Text::from).collect();
        all.remove("*");
        self.change(&NameSet::default(), all, &BTreeSet::new())
    }

    /// `set` with some names added and others removed; a name in both is removed.
    pub(crate) fn change(&self, set: &NameSet, add: BTreeSet<Text>, remove: &BTreeSet<Text>) -> NameSet {
        let (mut digest, mut bytes) = (set.digest, set.bytes);
        let mut changes: Vec<(Text, Option<()>)> = Vec::new();
        for name in add {
            if !set.contains(&name) && !remove.contains(&name) {
                digest = digest.wrapping_add(self.hash(name.as_bytes()));
                bytes += name.len();
                changes.push((name, Some(())));
            }
        }
        for name in remove {
            if set.contains(name) {
                digest = digest.wrapping_sub(self.hash(name.as_bytes()));
                bytes -= name.len();
                changes.push((name.clone(), None));
            }
        }
        if changes.is_empty() {
            return set.clone();
        }
        changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut interned = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = interned.sets.get(&digest).and_then(Weak::upgrade) {
            return NameSet { map, digest, bytes };
        }
        let map = Arc::new(set.map.apply(changes));
        if interned.sets.len() >= interned.purge_at {
            interned.sets.retain(|_, map| map.strong_count() > 0);
            interned.purge_at = (interned.sets.len() * 2).max(64);
        }
        interned.sets.insert(digest, Arc::downgrade(&map));
        NameSet { map, digest, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> BTreeSet<Text> {
        list.iter().map(|name| Text::from(*name)).collect()
    }

    fn list(list: &[&str]) -> NameList {
        list.iter().collect()
    }

    #[test]
    fn equal_sets_share_one_copy() {
        let interner = NameInterner::with_seeds(1, 2);
        let a = interner.set(&list(&["a", "b", "c"]));
        let b = interner.change(&interner.set(&list(&["a", "x"])), names(&["b", "c"]), &names(&["x"]));
        for same in [
            interner.set(&list(&["c", "a", "b"])),
            interner.set(&list(&["c", "a", "*", "b", "a"])),
            interner.union(&list(&["a", "b", "c"]), &list(&["b", "c", "a"])),
            interner.union(&list(&["a", "b"]), &list(&["b", "c"])),
        ] {
            assert!(same == a && Arc::ptr_eq(&same.map, &a.map) && same.bytes() == 3);
        }
        assert!(Arc::ptr_eq(&a.map, &b.map) && a == b);
        assert!(a.contains("b") && !a.contains("x"));
        let back = interner.change(&a, BTreeSet::new(), &names(&["a", "b", "c"]));
        assert_eq!((back.len(), back.digest, back.bytes()), (0, 0, 0));
    }

    #[test]
    fn dropped_sets_are_purged() {
        let interner = NameInterner::with_seeds(1, 2);
        for round in 0..1000 {
            interner.set(&list(&[&format!("only-{round}")]));
        }
        assert!(interner.sets.lock().unwrap_or_else(PoisonError::into_inner).sets.len() <= 128);
    }
}
