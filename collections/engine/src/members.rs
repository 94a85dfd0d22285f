//! A changing set of collections, as one collection of all their records: the source of nested joins (K09).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::builder::DataflowBuilder;
use crate::collection::Collection;
use crate::input::Input;
use crate::value::{Key, Value};

/// Adds collections to a set while the engine runs. A clone is another handle. [`Collection::merge_members`] joins them.
///
/// The set is synced when [`Self::mark_synced`] has been called, and all members that were added before are synced or
/// removed. Members that are added later do not change that.
pub struct Members<M, K, V> {
    shared: Arc<SharedMembers<M, K, V>>,
}

impl<M, K, V> Clone for Members<M, K, V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct SharedMembers<M, K, V> {
    members: Input<M, ()>,
    records: Input<(M, K), V>,
    state: Mutex<MemberStates<M, K>>,
}

struct MemberStates<M, K> {
    by_member: BTreeMap<M, MemberState<K>>,
    /// Number of handles that were made.
    handles: u64,
    /// Members that are awaited before the set is synced; `None` until the set is complete.
    awaited: Option<BTreeSet<M>>,
}

struct MemberState<K> {
    /// Number of the handle that writes the member.
    handle: u64,
    keys: BTreeSet<K>,
    is_synced: bool,
}

/// The writing end of one member. When it is dropped, the member and all its records are removed, unless a later handle
/// has replaced it.
pub struct Member<M: Key, K: Key, V: Value> {
    member: M,
    handle: u64,
    shared: Arc<SharedMembers<M, K, V>>,
}

/// The two collections of a [`Members`].
pub struct MemberCollections<'s, M, K, V> {
    /// The members that are present.
    pub members: Collection<'s, M, ()>,
    /// The records of all members.
    pub records: Collection<'s, (M, K), V>,
}

impl<'s> DataflowBuilder<'s> {
    /// A set of collections that starts empty: its writing end, the members, and the records of all members.
    pub fn members<M: Key, K: Key, V: Value>(&self, name: &str) -> (Members<M, K, V>, MemberCollections<'s, M, K, V>) {
        let (members_in, members) = self.input(&format!("{name}/members"));
        let (records_in, records) = self.input(name);
        let state = MemberStates { by_member: BTreeMap::new(), handles: 0, awaited: None };
        let shared = SharedMembers { members: members_in, records: records_in, state: Mutex::new(state) };
        (Members { shared: Arc::new(shared) }, MemberCollections { members, records })
    }
}

impl<M: Key, K: Key, V: Value> Members<M, K, V> {
    /// Adds a member, or replaces the writing end of a present one: its records stay until the new writing end replaces
    /// or deletes them, and writes of the earlier one are ignored.
    #[must_use = "dropping the writing end removes the member"]
    pub fn add(&self, member: M) -> Member<M, K, V> {
        let mut states = self.shared.lock();
        states.handles += 1;
        let handle = states.handles;
        let added = MemberState { handle, keys: BTreeSet::new(), is_synced: false };
        let state = states.by_member.entry(member.clone()).or_insert(added);
        state.handle = handle;
        self.shared.members.set(member.clone(), ());
        drop(states);
        Member { member, handle, shared: self.shared.clone() }
    }

    /// Marks the set of members as complete. Members that are not synced yet are awaited.
    pub fn mark_synced(&self) {
        let mut states = self.shared.lock();
        if states.awaited.is_some() {
            return;
        }
        let unsynced = states.by_member.iter().filter(|(_, state)| !state.is_synced);
        states.awaited = Some(unsynced.map(|(member, _)| member.clone()).collect());
        self.shared.members.mark_synced();
        self.shared.sync_if_complete(&states);
    }
}

impl<M: Key, K: Key, V: Value> Member<M, K, V> {
    /// Sets the value of a key.
    pub fn set(&self, key: K, value: V) {
        self.write(|state, shared| {
            state.keys.insert(key.clone());
            shared.records.set((self.member.clone(), key), value);
        });
    }

    /// Removes a key.
    pub fn delete(&self, key: K) {
        self.write(|state, shared| {
            if state.keys.remove(&key) {
                shared.records.delete((self.member.clone(), key));
            }
        });
    }

    /// Replaces all records of the member. The writes may be in several epochs.
    pub fn replace_all(&self, rows: impl IntoIterator<Item = (K, V)>) {
        let rows: BTreeMap<K, V> = rows.into_iter().collect();
        self.write(|state, shared| {
            let keys: BTreeSet<K> = rows.keys().cloned().collect();
            for key in state.keys.difference(&keys) {
                shared.records.delete((self.member.clone(), key.clone()));
            }
            state.keys = keys;
            for (key, value) in rows {
                shared.records.set((self.member.clone(), key), value);
            }
        });
    }

    /// Marks the initial records of the member as written.
    pub fn mark_synced(&self) {
        let mut states = self.shared.lock();
        let Some(state) = states.written_by(&self.member, self.handle) else { return };
        state.is_synced = true;
        if states.awaited.as_mut().is_some_and(|awaited| awaited.remove(&self.member)) {
            self.shared.sync_if_complete(&states);
        }
    }

    fn write(&self, write: impl FnOnce(&mut MemberState<K>, &SharedMembers<M, K, V>)) {
        // The queue has no limit, so a write under the lock does not wait.
        if let Some(state) = self.shared.lock().written_by(&self.member, self.handle) {
            write(state, &self.shared);
        }
    }
}

impl<M: Key, K: Key, V: Value> Drop for Member<M, K, V> {
    fn drop(&mut self) {
        let mut states = self.shared.lock();
        if states.written_by(&self.member, self.handle).is_none() {
            return;
        }
        // First the member, so that its records disappear together.
        self.shared.members.delete(self.member.clone());
        for key in states.by_member.remove(&self.member).map(|state| state.keys).unwrap_or_default() {
            self.shared.records.delete((self.member.clone(), key));
        }
        if states.awaited.as_mut().is_some_and(|awaited| awaited.remove(&self.member)) {
            self.shared.sync_if_complete(&states);
        }
    }
}

impl<M: Ord, K> MemberStates<M, K> {
    /// The state of a member, if this handle is its last one.
    fn written_by(&mut self, member: &M, handle: u64) -> Option<&mut MemberState<K>> {
        self.by_member.get_mut(member).filter(|state| state.handle == handle)
    }
}

impl<M: Key, K: Key, V: Value> SharedMembers<M, K, V> {
    fn lock(&self) -> MutexGuard<'_, MemberStates<M, K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync_if_complete(&self, states: &MemberStates<M, K>) {
        if states.awaited.as_ref().is_some_and(BTreeSet::is_empty) {
            self.records.mark_synced();
        }
    }
}
