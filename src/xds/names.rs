//! Sets of resource names, one copy of equal ones.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rand::Rng as _;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use sluice_model::Text;

use crate::xds::request::NameList;
use crate::xds::run::Run;

/// A set of resource names. A thousand proxies that subscribe to the same names share one.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameSet {
    run: Arc<Run<()>>,
    digest: u128,
    bytes: usize,
}

impl NameSet {
    pub(crate) fn len(&self) -> usize {
        self.run.len()
    }

    /// Size of all names together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.run.position(name).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Text> {
        self.run.iter().map(|(name, ())| name)
    }
}

impl PartialEq for NameSet {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.len() == other.len()
    }
}

/// Keeps one copy of equal sets. Clients choose names, so the hash that finds equals has a secret seed.
#[derive(Debug)]
pub(crate) struct Names {
    low: RapidSecrets,
    high: RapidSecrets,
    sets: Mutex<Interned>,
}

#[derive(Debug, Default)]
struct Interned {
    sets: HashMap<u128, Weak<Run<()>>>,
    purge_at: usize,
}

impl Default for Names {
    fn default() -> Self {
        let mut rng = rand::rng();
        Self { low: RapidSecrets::seed(rng.random()), high: RapidSecrets::seed(rng.random()), sets: Mutex::default() }
    }
}

impl Names {
    fn hash(&self, name: &[u8]) -> u128 {
        let low = rapidhash_v3_seeded(name, &self.low);
        let high = rapidhash_v3_seeded(name, &self.high);
        (u128::from(high) << 64) | u128::from(low)
    }

    fn digest(&self, names: &NameList) -> u128 {
        names.bytes().map(|name| self.hash(name)).fold(0, u128::wrapping_add)
    }

    /// The set of these names without `*`. If there is one already, no name is copied.
    pub(crate) fn set(&self, names: &NameList) -> NameSet {
        self.union(names, &NameList::default())
    }

    /// The set of the names of both lists, without `*`.
    pub(crate) fn union(&self, names: &NameList, more: &NameList) -> NameSet {
        let digest = self.digest(names);
        let same = || more.len() == names.len() && (names.bytes().eq(more.bytes()) || digest == self.digest(more));
        if more.is_empty() || same() {
            // A name that is there twice makes this fail, and is found out below.
            let interned = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(run) = interned.sets.get(&digest).and_then(Weak::upgrade).filter(|run| run.len() == names.len())
            {
                let bytes = names.bytes().map(<[u8]>::len).sum();
                return NameSet { run, digest, bytes };
            }
        }
        let mut all: BTreeSet<Text> = names.iter().chain(more.iter()).map(Text::from).collect();
        all.remove("*");
        self.change(&NameSet::default(), all, &BTreeSet::new())
    }

    /// `set` with some names added, then others taken out.
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
        if let Some(run) = interned.sets.get(&digest).and_then(Weak::upgrade) {
            return NameSet { run, digest, bytes };
        }
        let run = Arc::new(set.run.apply(changes));
        if interned.sets.len() >= interned.purge_at {
            interned.sets.retain(|_, run| run.strong_count() > 0);
            interned.purge_at = (interned.sets.len() * 2).max(64);
        }
        interned.sets.insert(digest, Arc::downgrade(&run));
        NameSet { run, digest, bytes }
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
    fn equal_sets_are_one() {
        let keep = Names::default();
        let a = keep.set(&list(&["a", "b", "c"]));
        let b = keep.change(&keep.set(&list(&["a", "x"])), names(&["b", "c"]), &names(&["x"]));
        for same in [
            keep.set(&list(&["c", "a", "b"])),
            keep.set(&list(&["c", "a", "*", "b", "a"])),
            keep.union(&list(&["a", "b", "c"]), &list(&["b", "c", "a"])),
            keep.union(&list(&["a", "b"]), &list(&["b", "c"])),
        ] {
            assert!(same == a && Arc::ptr_eq(&same.run, &a.run) && same.bytes() == 3);
        }
        assert!(Arc::ptr_eq(&a.run, &b.run) && a == b);
        assert!(a.contains("b") && !a.contains("x"));
        let back = keep.change(&a, BTreeSet::new(), &names(&["a", "b", "c"]));
        assert_eq!((back.len(), back.digest, back.bytes()), (0, 0, 0));
    }

    #[test]
    fn dropped_sets_are_forgotten() {
        let keep = Names::default();
        for round in 0..1000 {
            keep.set(&list(&[&format!("only-{round}")]));
        }
        assert!(keep.sets.lock().unwrap_or_else(PoisonError::into_inner).sets.len() <= 128);
    }
}
