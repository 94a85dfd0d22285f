//! Sets of resource names. Equal sets share one copy.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use sluice_model::Text;

use crate::chunked_map::ChunkedMap;
use crate::name_list::NameList;

/// Approximate memory of a name in a set beside its text, in bytes.
const NAME_OVERHEAD_BYTES: usize = 64;

/// Memory of the sets of names that the streams of one caller added and that are in use. A set that exists already costs a
/// caller nothing.
#[derive(Debug)]
pub struct NameBudget {
    limit: usize,
    used: AtomicUsize,
}

impl NameBudget {
    /// A budget of so many bytes, of which none are used.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Whether more bytes are used than the budget has.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.limit
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }
}

/// The names of a set, and the budget that they use.
#[derive(Debug, Default)]
struct SharedNames {
    map: ChunkedMap<()>,
    budget: Option<(Arc<NameBudget>, usize)>,
}

impl SharedNames {
    fn new(map: ChunkedMap<()>, bytes: usize, budget: &Arc<NameBudget>) -> Arc<Self> {
        let bytes = bytes + map.len() * NAME_OVERHEAD_BYTES;
        budget.used.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(Self { map, budget: Some((budget.clone(), bytes)) })
    }
}

impl Drop for SharedNames {
    fn drop(&mut self) {
        if let Some((budget, bytes)) = self.budget.take() {
            budget.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// A set of resource names. Proxies that subscribe to the same names share one copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameSet {
    shared: Arc<SharedNames>,
    digest: u128,
    bytes: usize,
}

impl NameSet {
    pub(crate) fn len(&self) -> usize {
        self.shared.map.len()
    }

    /// Size of all names together, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.shared.map.position(name).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Text> {
        self.shared.map.iter().map(|(name, ())| name)
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
    sets: HashMap<u128, Weak<SharedNames>>,
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
}

/// The names of the streams of one caller: sets that all callers share, and the budget of the caller for further ones.
#[derive(Clone, Debug)]
pub struct CallerNames {
    interner: Arc<NameInterner>,
    budget: Arc<NameBudget>,
}

impl CallerNames {
    /// Sets of the interner, within a budget.
    #[must_use]
    pub fn new(interner: Arc<NameInterner>, budget: Arc<NameBudget>) -> Self {
        Self { interner, budget }
    }

    pub(crate) fn budget(&self) -> &NameBudget {
        &self.budget
    }

    fn sets(&self) -> MutexGuard<'_, Interned> {
        self.interner.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The set of these names without `*`. No name is copied if an equal set exists.
    pub(crate) fn set(&self, names: &NameList) -> NameSet {
        self.union(names, &NameList::default())
    }

    /// The set of the names of both lists, without `*`.
    pub(crate) fn union(&self, names: &NameList, more: &NameList) -> NameSet {
        let digest = self.interner.digest(names);
        let same =
            || more.len() == names.len() && (names.bytes().eq(more.bytes()) || digest == self.interner.digest(more));
        if more.is_empty() || same() {
            // A duplicate name makes this lookup fail; the code below handles it.
            let found = self.sets().sets.get(&digest).and_then(Weak::upgrade);
            if let Some(shared) = found.filter(|shared| shared.map.len() == names.len()) {
                let bytes = names.bytes().map(<[u8]>::len).sum();
                return NameSet { shared, digest, bytes };
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
                digest = digest.wrapping_add(self.interner.hash(name.as_bytes()));
                bytes += name.len();
                changes.push((name, Some(())));
            }
        }
        for name in remove {
            if set.contains(name) {
                digest = digest.wrapping_sub(self.interner.hash(name.as_bytes()));
                bytes -= name.len();
                changes.push((name.clone(), None));
            }
        }
        if changes.is_empty() {
            return set.clone();
        }
        changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut interned = self.sets();
        if let Some(shared) = interned.sets.get(&digest).and_then(Weak::upgrade) {
            return NameSet { shared, digest, bytes };
        }
        let shared = SharedNames::new(set.shared.map.apply(changes), bytes, &self.budget);
        if interned.sets.len() >= interned.purge_at {
            interned.sets.retain(|_, shared| shared.strong_count() > 0);
            interned.purge_at = (interned.sets.len() * 2).max(64);
        }
        interned.sets.insert(digest, Arc::downgrade(&shared));
        NameSet { shared, digest, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(interner: &Arc<NameInterner>, limit: usize) -> CallerNames {
        CallerNames::new(interner.clone(), NameBudget::new(limit))
    }

    fn names(list: &[&str]) -> BTreeSet<Text> {
        list.iter().map(|name| Text::from(*name)).collect()
    }

    fn list(list: &[&str]) -> NameList {
        list.iter().collect()
    }

    #[test]
    fn equal_sets_share_one_copy() {
        let interner = caller(&Arc::new(NameInterner::with_seeds(1, 2)), usize::MAX);
        let a = interner.set(&list(&["a", "b", "c"]));
        let b = interner.change(&interner.set(&list(&["a", "x"])), names(&["b", "c"]), &names(&["x"]));
        for same in [
            interner.set(&list(&["c", "a", "b"])),
            interner.set(&list(&["c", "a", "*", "b", "a"])),
            interner.union(&list(&["a", "b", "c"]), &list(&["b", "c", "a"])),
            interner.union(&list(&["a", "b"]), &list(&["b", "c"])),
        ] {
            assert!(same == a && Arc::ptr_eq(&same.shared, &a.shared) && same.bytes() == 3);
        }
        assert!(Arc::ptr_eq(&a.shared, &b.shared) && a == b);
        assert!(a.contains("b") && !a.contains("x"));
        let back = interner.change(&a, BTreeSet::new(), &names(&["a", "b", "c"]));
        assert_eq!((back.len(), back.digest, back.bytes()), (0, 0, 0));
    }

    #[test]
    fn dropped_sets_are_purged() {
        let interner = caller(&Arc::new(NameInterner::with_seeds(1, 2)), usize::MAX);
        for round in 0..1000 {
            interner.set(&list(&[&format!("only-{round}")]));
        }
        assert!(interner.sets().sets.len() <= 128);
    }

    #[test]
    fn a_set_uses_the_budget_of_the_caller_that_added_it_while_it_is_in_use() {
        let interner = Arc::new(NameInterner::with_seeds(1, 2));
        let (first, second) = (caller(&interner, 100), caller(&interner, 100));
        let used = |caller: &CallerNames| caller.budget.used.load(Ordering::Relaxed);
        let a = first.set(&list(&["abcd"]));
        let same = second.set(&list(&["abcd"]));
        assert_eq!((used(&first), used(&second)), (NAME_OVERHEAD_BYTES + 4, 0));
        assert!(!first.budget.is_exceeded());
        let b = first.change(&a, names(&["e"]), &BTreeSet::new());
        assert!(first.budget.is_exceeded() && !second.budget.is_exceeded());
        drop((a, b));
        assert_eq!(used(&first), NAME_OVERHEAD_BYTES + 4, "the other caller still uses the first set");
        drop(same);
        assert_eq!(used(&first), 0);
    }
}
