//! The records of each group in chunks of neighbouring positions.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::metrics::CollectionGauges;
use crate::store::{KeyedStoreRef, apply};
use crate::update::{EpochLogic, by_key, size_change};
use crate::value::{ContentOrdered, Erased, ErasedMap, PrecomputedHash};

/// The position that a chunk starts with; `None` for the records before the first start.
type ChunkStart = Option<ContentOrdered>;

/// A user's closures with erased types, and the records they read.
pub(crate) struct ChunkRule {
    pub(crate) records: KeyedStoreRef,
    /// The place of the record with a key.
    pub(crate) place: Box<dyn Fn(&Erased) -> RecordPlace>,
    /// The output key of a chunk: from the group and the start.
    pub(crate) key: fn(&Erased, Option<&Erased>) -> Erased,
    /// The group and the start of an output key.
    pub(crate) parts: fn(&Erased) -> (Erased, Option<Erased>),
    /// The value of a chunk: from the group and the records in order.
    pub(crate) value: ChunkFn,
}

/// Where a record is.
pub(crate) struct RecordPlace {
    pub(crate) group: Erased,
    pub(crate) position: Erased,
    /// A chunk starts at the position.
    pub(crate) is_start: bool,
}

/// A user's closure for the value of a chunk, with erased types.
pub(crate) type ChunkFn = Box<dyn Fn(&Erased, &[(&Erased, &Erased)]) -> Option<Erased>>;

/// The keys of the records at a position. Most positions have one.
#[derive(Clone, Default)]
struct PositionKeys {
    is_start: bool,
    keys: SmallVec<[ContentOrdered; 1]>,
}

/// The positions of a group.
#[derive(Clone, Default)]
struct GroupPositions(BTreeMap<ContentOrdered, PositionKeys>);

impl GroupPositions {
    /// Adds or removes a key.
    fn apply(&mut self, position: &ContentOrdered, is_start: bool, key: &Erased, exists: bool) {
        let found = self.0.entry(position.clone()).or_default();
        found.is_start = is_start;
        let key = ContentOrdered(key.clone());
        match (found.keys.binary_search(&key), exists) {
            (Err(at), true) => found.keys.insert(at, key),
            (Ok(at), false) => drop(found.keys.remove(at)),
            _ => {}
        }
        if found.keys.is_empty() {
            self.0.remove(position);
        }
    }

    /// The start of the chunk that a position is in, or would be in.
    fn start_of(&self, position: &ContentOrdered) -> ChunkStart {
        let mut before = self.0.range((Bound::Unbounded, Bound::Included(position))).rev();
        before.find(|(_, found)| found.is_start).map(|(position, _)| position.clone())
    }

    /// The keys of a chunk in order; none if there is no such chunk.
    fn chunk<'a>(&'a self, start: &'a ChunkStart) -> impl Iterator<Item = &'a Erased> {
        let from = start.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let exists = start.as_ref().is_none_or(|start| self.0.contains_key(start));
        let positions = self.0.range((from, Bound::Unbounded)).filter(move |_| exists);
        positions
            .take_while(move |(position, found)| start.as_ref() == Some(*position) || !found.is_start)
            .flat_map(|(_, found)| found.keys.iter().map(|key| &key.0))
    }
}

/// The records of each group.
#[derive(Clone, Default)]
pub(crate) struct ChunkState {
    groups: ErasedMap<GroupPositions>,
}

impl ChunkState {
    /// The keys of the records of a chunk.
    pub(crate) fn keys(&self, rule: &ChunkRule, chunk: &Erased) -> Vec<Erased> {
        let (group, start) = (rule.parts)(chunk);
        let start = start.map(ContentOrdered);
        self.groups.get(&group).map(|keys| keys.chunk(&start).cloned().collect()).unwrap_or_default()
    }

    /// Adds or removes the key of a record. Returns the starts of the chunks that this concerns.
    fn apply(&mut self, place: &RecordPlace, key: &Erased, exists: bool) -> [ChunkStart; 2] {
        let position = ContentOrdered(place.position.clone());
        let positions = self.groups.entry(place.group.clone()).or_default();
        let before = positions.start_of(&position);
        positions.apply(&position, place.is_start, key, exists);
        let after = positions.start_of(&position);
        if positions.0.is_empty() {
            self.groups.remove(&place.group);
        }
        [before, after]
    }
}

pub(crate) type ChunkStateRef = Rc<RefCell<ChunkState>>;

/// Keeps in `store` the value of each chunk. A change reads the records of the chunks it concerns only.
pub(crate) fn chunk_logic(
    rule: Rc<ChunkRule>,
    state: ChunkStateRef,
    store: KeyedStoreRef,
    gauges: Arc<CollectionGauges>,
) -> EpochLogic {
    let mut stored = 0;
    Box::new(move |time, updates, out| {
        let values = &mut store.borrow_mut().rows;
        let state = &mut *state.borrow_mut();
        let records = &rule.records.borrow().rows;
        let mut touched: HashMap<Erased, BTreeSet<ChunkStart>, PrecomputedHash> = HashMap::default();
        for changes in by_key(&updates[0]) {
            let key = &changes[0].0.0;
            let Some(place) = gauges.catch_panic(key, || (rule.place)(key)) else { continue };
            let starts = state.apply(&place, key, records.get(key).is_some());
            touched.entry(place.group).or_default().extend(starts);
        }
        let none = GroupPositions::default();
        #[expect(clippy::iter_over_hash_type, reason = "chunks are independent of each other")]
        for (group, starts) in &touched {
            let positions = state.groups.get(group).unwrap_or(&none);
            for start in starts {
                let keys = positions.chunk(start);
                let chunk: Vec<_> = keys.filter_map(|key| Some((key, records.get(key)?))).collect();
                let key = (rule.key)(group, start.as_ref().map(|start| &start.0));
                let value = match chunk.as_slice() {
                    [] => Some(None),
                    chunk => gauges.run(&key, chunk.len(), || (rule.value)(group, chunk)),
                };
                if let Some(value) = value {
                    apply(values, &key, value, time, out);
                }
            }
        }
        // Each record has an entry here besides those of its store.
        gauges.count_stored(&mut stored, values.len() + records.len());
        gauges.record_output(size_change(out), out.len());
    })
}
