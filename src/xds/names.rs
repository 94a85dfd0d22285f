//! Sets of resource names, one copy of equal ones.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rand::Rng as _;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use sluice_model::Text;

use crate::xds::run::Run;

/// A set of resource names. A thousand proxies that subscribe to the same names share one.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameSet {
    run: Arc<Run<()>>,
    digest: u128,
}

impl NameSet {
    pub(crate) fn len(&self) -> usize {
        self.run.len()
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
    fn hash(&self, name: &str) -> u128 {
        let low = rapidhash_v3_seeded(name.as_bytes(), &self.low);
        let high = rapidhash_v3_seeded(name.as_bytes(), &self.high);
        (u128::from(high) << 64) | u128::from(low)
    }

    /// The set of these names.
    pub(crate) fn set(&self, names: BTreeSet<Text>) -> NameSet {
        self.change(&NameSet::default(), names, &BTreeSet::new())
    }

    /// `set` with some names added, then others taken out.
    pub(crate) fn change(&self, set: &NameSet, add: BTreeSet<Text>, remove: &BTreeSet<Text>) -> NameSet {
        let mut digest = set.digest;
        let mut changes: Vec<(Text, Option<()>)> = Vec::new();
        for name in add {
            if !set.contains(&name) && !remove.contains(&name) {
                digest = digest.wrapping_add(self.hash(&name));
                changes.push((name, Some(())));
            }
        }
        for name in remove {
            if set.contains(name) {
                digest = digest.wrapping_sub(self.hash(name));
                changes.push((name.clone(), None));
            }
        }
        if changes.is_empty() {
            return set.clone();
        }
        changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut interned = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = interned.sets.get(&digest).and_then(Weak::upgrade) {
            return NameSet { run, digest };
        }
        let run = Arc::new(set.run.apply(changes));
        if interned.sets.len() >= interned.purge_at {
            interned.sets.retain(|_, run| run.strong_count() > 0);
            interned.purge_at = (interned.sets.len() * 2).max(64);
        }
        interned.sets.insert(digest, Arc::downgrade(&run));
        NameSet { run, digest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> BTreeSet<Text> {
        list.iter().map(|name| Text::from(*name)).collect()
    }

    #[test]
    fn equal_sets_are_one() {
        let keep = Names::default();
        let a = keep.set(names(&["a", "b", "c"]));
        let b = keep.change(&keep.set(names(&["a", "x"])), names(&["b", "c"]), &names(&["x"]));
        assert!(Arc::ptr_eq(&a.run, &b.run) && a == b);
        assert!(a.contains("b") && !a.contains("x"));
        let back = keep.change(&a, BTreeSet::new(), &names(&["a", "b", "c"]));
        assert_eq!((back.len(), back.digest), (0, 0));
    }

    #[test]
    fn dropped_sets_are_forgotten() {
        let keep = Names::default();
        for round in 0..1000 {
            keep.set(names(&[&format!("only-{round}")]));
        }
        assert!(keep.sets.lock().unwrap_or_else(PoisonError::into_inner).sets.len() <= 128);
    }
}
