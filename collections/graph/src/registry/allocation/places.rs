//! Positions of hosts, kept up to date: a change costs what it moves.
//!
//! [`super::allocate`] gives positions in the order of age: each host takes the first of its positions that no declared
//! address, no kept status and no older host has. No host then prefers a position that is free or that a younger host
//! has, and no other allocation has this property. So a change is applied by moving hosts until it holds again: a host
//! that loses its position takes the next of its sequence, and a free position goes to the oldest host that passed over
//! it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sluice_engine::Incremental;
use sluice_model::{Host, ObjectKey, Text, Timestamp};

use super::{AddressClaim, AllocationKey, PlaceSequence, allocate};
use crate::options::AddressPools;

/// A host of an entry: hosts are in the order of the age of their entries.
type HostId = (Timestamp, ObjectKey, usize);

/// A host with its position.
struct HostPlace {
    host: Host,
    /// The addresses in its status.
    status: Vec<Text>,
    /// The positions of these addresses.
    status_places: Vec<u32>,
    sequence: PlaceSequence,
    /// It keeps the addresses of its status.
    kept: bool,
    /// The index in its sequence of the position it has.
    turn: Option<u32>,
}

/// What is known of a position.
#[derive(Default)]
struct PlaceState {
    /// Number of entries that declare its addresses.
    declared: usize,
    /// Hosts whose status has one of its addresses.
    in_status: BTreeSet<HostId>,
    /// The host that has it, not by its status.
    holder: Option<HostId>,
    /// Hosts that passed over it, and have a later position of their sequence.
    passed: BTreeSet<HostId>,
}

/// The positions of all hosts.
pub(super) struct AllocatedPlaces {
    pools: AddressPools,
    claims: BTreeMap<(Timestamp, ObjectKey), Arc<AddressClaim>>,
    /// Number of declared addresses and of hosts.
    needed: usize,
    hosts: BTreeMap<HostId, HostPlace>,
    places: HashMap<u32, PlaceState>,
    /// Hosts to look at: whether they keep their status may have changed.
    unsure: BTreeSet<HostId>,
    /// Hosts without a position.
    open: BTreeSet<HostId>,
    /// Positions that became free or taken.
    touched: BTreeSet<u32>,
    /// Hosts whose addresses may have changed.
    changed: BTreeMap<AllocationKey, HostId>,
    /// Nothing is kept but claims: see [`Self::is_crowded`].
    crowded: bool,
}

impl AllocatedPlaces {
    pub(super) fn new(pools: AddressPools) -> Self {
        Self {
            pools,
            claims: BTreeMap::new(),
            needed: 0,
            hosts: BTreeMap::new(),
            places: HashMap::new(),
            unsure: BTreeSet::new(),
            open: BTreeSet::new(),
            touched: BTreeSet::new(),
            changed: BTreeMap::new(),
            crowded: false,
        }
    }

    /// Whether so many positions are needed that sequences are long. Then each change allocates all addresses anew.
    fn is_crowded(&self) -> bool {
        self.needed > self.pools.places() as usize / 2
    }

    fn place(&mut self, place: u32) -> &mut PlaceState {
        self.places.entry(place).or_default()
    }

    /// Whether an address is declared at a position, or a status with it is kept. The first position is never given.
    fn is_fixed(&self, place: u32) -> bool {
        let Some(found) = self.places.get(&place) else { return place == 0 };
        place == 0 || found.declared > 0 || found.in_status.iter().any(|id| self.hosts[id].kept)
    }

    fn add(&mut self, entry: &ObjectKey, claim: &AddressClaim) {
        let pools = self.pools;
        for place in claim.declared.iter().filter_map(|address| pools.place(*address)) {
            self.place(place).declared += 1;
            self.look_at(place);
        }
        for (at, (host, status)) in claim.hosts.iter().enumerate() {
            let id = (claim.created, entry.clone(), at);
            let addresses = status.iter().filter_map(|text| text.parse().ok());
            let status_places: Vec<u32> = addresses.filter_map(|address| self.pools.place(address)).collect();
            for place in &status_places {
                self.place(*place).in_status.insert(id.clone());
            }
            let key = AllocationKey { entry: entry.clone(), host: host.clone() };
            let sequence = PlaceSequence::new(&self.pools, &key);
            self.changed.insert(key, id.clone());
            let host = HostPlace {
                host: host.clone(),
                status: status.clone(),
                status_places,
                sequence,
                kept: false,
                turn: None,
            };
            self.hosts.insert(id.clone(), host);
            self.unsure.insert(id.clone());
            self.open.insert(id);
        }
    }

    fn remove(&mut self, entry: &ObjectKey, claim: &AddressClaim) {
        let pools = self.pools;
        for place in claim.declared.iter().filter_map(|address| pools.place(*address)) {
            self.place(place).declared -= 1;
            self.look_at(place);
        }
        for at in 0..claim.hosts.len() {
            let id = (claim.created, entry.clone(), at);
            self.release(&id);
            let Some(host) = self.hosts.remove(&id) else { continue };
            for place in host.status_places {
                self.place(place).in_status.remove(&id);
                self.look_at(place);
            }
            self.unsure.remove(&id);
            self.open.remove(&id);
            self.changed.insert(AllocationKey { entry: entry.clone(), host: host.host }, id);
        }
    }

    /// A position may have become free or taken.
    fn look_at(&mut self, place: u32) {
        self.touched.insert(place);
        if let Some(found) = self.places.get(&place) {
            self.unsure.extend(found.in_status.iter().cloned());
        }
    }

    /// Takes its position from a host, and forgets that it passed over others.
    fn release(&mut self, id: &HostId) {
        let Some(host) = self.hosts.get_mut(id) else { return };
        let Some(turn) = host.turn.take() else { return };
        let sequence = host.sequence;
        for earlier in 0..turn {
            self.place(sequence.at(earlier)).passed.remove(id);
        }
        let place = sequence.at(turn);
        self.place(place).holder = None;
        self.touched.insert(place);
    }

    /// Whether a host keeps the addresses of its status, given the older hosts.
    fn keeps(&self, id: &HostId) -> bool {
        let host = &self.hosts[id];
        let is_free = |place: &u32| {
            *place != 0
                && self.places.get(place).is_none_or(|found| {
                    found.declared == 0 && !found.in_status.range(..id).any(|older| self.hosts[older].kept)
                })
        };
        !host.status.is_empty() && host.status_places.iter().all(is_free)
    }

    /// Decides which statuses are kept, the oldest first.
    fn settle_statuses(&mut self) {
        while let Some(id) = self.unsure.pop_first() {
            let keeps = self.keeps(&id);
            let host = &self.hosts[&id];
            if keeps == host.kept {
                continue;
            }
            let (places, key) = (host.status_places.clone(), self.key(&id));
            self.changed.insert(key, id.clone());
            if keeps {
                self.release(&id);
                self.open.remove(&id);
            } else {
                self.open.insert(id.clone());
            }
            if let Some(host) = self.hosts.get_mut(&id) {
                host.kept = keeps;
            }
            for place in places {
                self.touched.insert(place);
                let younger =
                    self.places.get(&place).into_iter().flat_map(|found| found.in_status.range(&id..).skip(1));
                let younger: Vec<HostId> = younger.cloned().collect();
                self.unsure.extend(younger);
            }
        }
    }

    /// Moves hosts until no host prefers a position that is free or that a younger host has.
    fn settle_places(&mut self) {
        for place in std::mem::take(&mut self.touched) {
            let holder = self.places.get(&place).and_then(|found| found.holder.clone());
            if let Some(holder) = holder.filter(|_| self.is_fixed(place)) {
                self.evict(&holder);
            }
            self.touched.insert(place);
        }
        loop {
            if let Some(id) = self.open.pop_first() {
                self.take_place(&id);
            } else if let Some(place) = self.touched.pop_first() {
                self.fill(place);
            } else {
                return;
            }
        }
    }

    /// A host loses its position to an older host, or to an address that is declared or kept.
    fn evict(&mut self, id: &HostId) {
        let Some(host) = self.hosts.get_mut(id) else { return };
        let Some(turn) = host.turn else { return };
        let place = host.sequence.at(turn);
        // It goes on from there.
        let found = self.place(place);
        found.holder = None;
        found.passed.insert(id.clone());
        self.open.insert(id.clone());
    }

    /// A host takes the first position of the rest of its sequence that it may have.
    fn take_place(&mut self, id: &HostId) {
        let Some(host) = self.hosts.get(id) else { return };
        let (sequence, key) = (host.sequence, self.key(id));
        let mut turn = host.turn.map_or(0, |turn| turn + 1);
        while turn < sequence.len() {
            let place = sequence.at(turn);
            let holder = self.places.get(&place).and_then(|found| found.holder.clone());
            let is_mine = !self.is_fixed(place) && holder.as_ref().is_none_or(|holder| id < holder);
            if is_mine {
                if let Some(holder) = holder {
                    self.evict(&holder);
                }
                self.place(place).holder = Some(id.clone());
                break;
            }
            self.place(place).passed.insert(id.clone());
            turn += 1;
        }
        if let Some(host) = self.hosts.get_mut(id) {
            host.turn = Some(turn).filter(|turn| *turn < sequence.len());
        }
        self.changed.insert(key, id.clone());
    }

    /// Gives a position to the oldest host that passed over it, unless an older one has it.
    fn fill(&mut self, place: u32) {
        let Some(found) = self.places.get(&place) else { return };
        let holder = found.holder.clone();
        let oldest = found.passed.first().filter(|id| holder.as_ref().is_none_or(|holder| *id < holder)).cloned();
        let Some(id) = oldest.filter(|_| !self.is_fixed(place)) else {
            if found.declared == 0 && holder.is_none() && found.in_status.is_empty() && found.passed.is_empty() {
                self.places.remove(&place);
            }
            return;
        };
        let (Some(host), key) = (self.hosts.get(&id), self.key(&id)) else { return };
        let (sequence, Some(later)) = (host.sequence, host.turn) else { return };
        let Some(turn) = (0..later).find(|turn| sequence.at(*turn) == place) else { return };
        if let Some(holder) = holder {
            self.evict(&holder);
        }
        for passed in turn..later {
            self.place(sequence.at(passed)).passed.remove(&id);
        }
        let left = sequence.at(later);
        self.place(left).holder = None;
        self.touched.insert(left);
        self.place(place).holder = Some(id.clone());
        if let Some(host) = self.hosts.get_mut(&id) {
            host.turn = Some(turn);
        }
        self.changed.insert(key, id);
    }

    fn key(&self, id: &HostId) -> AllocationKey {
        AllocationKey { entry: id.1.clone(), host: self.hosts[id].host.clone() }
    }

    /// The addresses of a host.
    fn addresses(&self, key: &AllocationKey, id: &HostId) -> Option<Vec<Text>> {
        let host = self.hosts.get(id).filter(|host| host.host == key.host)?;
        if host.kept {
            return Some(host.status.clone());
        }
        host.turn.map(|turn| self.pools.addresses(host.sequence.at(turn)))
    }

    /// All addresses, allocated anew.
    fn allocate_all(&self) -> BTreeMap<AllocationKey, Option<Vec<Text>>> {
        let claims: Vec<_> = self.claims.iter().map(|((_, entry), claim)| (entry.clone(), claim.clone())).collect();
        let mut all: BTreeMap<_, _> = self.changed.keys().map(|key| (key.clone(), None)).collect();
        for (entry, claim) in &claims {
            let key = |host: &Host| AllocationKey { entry: entry.clone(), host: host.clone() };
            all.extend(claim.hosts.iter().map(|(host, _)| (key(host), None)));
        }
        all.extend(allocate(&self.pools, &claims).into_iter().map(|(key, addresses)| (key, Some(addresses))));
        all
    }
}

impl Incremental<ObjectKey, AddressClaim> for AllocatedPlaces {
    type Key = AllocationKey;
    type Value = Vec<Text>;

    fn change(&mut self, entry: &ObjectKey, old: Option<&AddressClaim>, new: Option<&AddressClaim>) {
        if let Some(old) = old {
            self.needed -= old.declared.len() + old.hosts.len();
            self.claims.remove(&(old.created, entry.clone()));
            if self.crowded {
                let id = (old.created, entry.clone(), 0);
                let key = |(host, _): &(Host, _)| AllocationKey { entry: entry.clone(), host: host.clone() };
                self.changed.extend(old.hosts.iter().map(key).map(|key| (key, id.clone())));
            } else {
                self.remove(entry, old);
            }
        }
        if let Some(new) = new {
            self.needed += new.declared.len() + new.hosts.len();
            self.claims.insert((new.created, entry.clone()), Arc::new(new.clone()));
            if !self.crowded {
                self.add(entry, new);
            }
        }
    }

    fn settle(&mut self) -> Vec<(AllocationKey, Option<Vec<Text>>)> {
        if self.is_crowded() {
            let all = self.allocate_all().into_iter().collect();
            let (claims, needed) = (std::mem::take(&mut self.claims), self.needed);
            *self = Self { claims, needed, crowded: true, ..Self::new(self.pools) };
            return all;
        }
        if std::mem::take(&mut self.crowded) {
            for ((_, entry), claim) in self.claims.clone() {
                self.add(&entry, &claim);
            }
        }
        self.settle_statuses();
        self.settle_places();
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed
            .map(|(key, id)| {
                let addresses = self.addresses(&key, &id);
                (key, addresses)
            })
            .collect()
    }

    fn owner(output: &AllocationKey) -> Option<ObjectKey> {
        Some(output.entry.clone())
    }
}
