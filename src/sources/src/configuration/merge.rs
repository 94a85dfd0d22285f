//! Objects that several sources may have. As in Istio, that of the first source in the list decides.

use std::collections::{BTreeMap, BTreeSet};

use sluice_model::{ConfigSource, ConfigSourceKind, Kind, ObjectKey, Text};

use super::configuration_kinds;
use crate::{Change, Duplicate};

/// Kind and key of an object.
type ObjectIdentity = (Kind, ObjectKey);

/// The objects of all sources. The result depends on which source has which objects, and not on the order of changes.
pub(super) struct Merge {
    addresses: Vec<Text>,
    /// The local cluster, by its index in the list.
    local: Option<usize>,
    /// The sources that have each object, by their index in the list. Empty with one source, which always decides.
    objects: BTreeMap<ObjectIdentity, BTreeMap<usize, KeptObject>>,
    /// The sources that have not reported a kind as synced yet.
    not_synced: BTreeMap<Kind, BTreeSet<usize>>,
}

/// An object of a source. That of the first source is not kept: no other object has to make way for it.
type KeptObject = Option<Box<Change>>;

impl Merge {
    /// The sources of this list. `not_local` are the kinds that are not read from the local cluster.
    pub(super) fn new(sources: &[ConfigSource], not_local: &[Kind]) -> Self {
        let local = sources.iter().position(|source| source.kind == ConfigSourceKind::Cluster);
        let has_kind = |rank: usize, kind: Kind| match &sources[rank].kind {
            ConfigSourceKind::Xds(_) | ConfigSourceKind::Directory(_) => true,
            ConfigSourceKind::Cluster => local == Some(rank) && !not_local.contains(&kind),
            ConfigSourceKind::Unsupported => false,
        };
        let ranks = |kind| (0..sources.len()).filter(|rank| has_kind(*rank, kind)).collect();
        Self {
            addresses: sources.iter().map(|source| source.address.clone()).collect(),
            local,
            objects: BTreeMap::new(),
            not_synced: configuration_kinds().map(|info| (info.kind, ranks(info.kind))).collect(),
        }
    }

    /// The index of the local cluster, if it is in the list.
    pub(super) fn local(&self) -> Option<usize> {
        self.local
    }

    /// Applies a change of a source. Returns the change of the object that decides.
    pub(super) fn apply(&mut self, rank: usize, change: Change) -> Option<Change> {
        if self.addresses.len() < 2 {
            return Some(change);
        }
        let id = (change.kind, change.key.clone());
        if change.object.is_some() {
            let copies = self.objects.entry(id).or_default();
            copies.insert(rank, (rank > 0).then(|| Box::new(change.clone())));
            return copies.first_key_value().is_some_and(|(first, _)| *first == rank).then_some(change);
        }
        let Some(copies) = self.objects.get_mut(&id) else { return Some(change) };
        let was_first = copies.first_key_value().is_some_and(|(first, _)| *first == rank);
        copies.remove(&rank);
        let next = copies.first_key_value().map(|(_, kept)| kept.clone());
        match next {
            None => {
                self.objects.remove(&id);
                Some(change)
            }
            Some(kept) if was_first => kept.map(|mut kept| {
                kept.origin.received = change.origin.received;
                *kept
            }),
            Some(_) => None,
        }
    }

    /// The sources of an object that several have.
    pub(super) fn duplicate(&self, id: &ObjectIdentity) -> Option<Duplicate> {
        let copies = self.objects.get(id).filter(|copies| copies.len() > 1)?;
        let addresses: Vec<String> = copies.keys().map(|rank| self.addresses[*rank].to_string()).collect();
        let used = addresses.first().cloned().unwrap_or_default();
        Some(Duplicate { kind: id.0, object: id.1.clone(), files: addresses, used })
    }

    /// A source has reported kinds as synced.
    pub(super) fn synced(&mut self, rank: usize, kinds: &[Kind]) {
        for kind in kinds {
            if let Some(ranks) = self.not_synced.get_mut(kind) {
                ranks.remove(&rank);
            }
        }
    }

    /// The kinds that all sources have reported since the last call.
    pub(super) fn take_synced(&mut self) -> Vec<Kind> {
        self.not_synced.extract_if(.., |_, ranks| ranks.is_empty()).map(|(kind, _)| kind).collect()
    }
}
