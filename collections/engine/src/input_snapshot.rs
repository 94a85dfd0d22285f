//! All inputs at one epoch: to copy them to a second engine of the same graph, or to record them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::epoch::{Epoch, Origin};
use crate::input_state::{InputRecord, InputRow, InputState};
use crate::node::CollectionNode;
use crate::rows::FrozenRows;
use crate::value::{Erased, Key};

/// The records of all inputs at one epoch. It shares its content with the engine. While it is held, a write to the engine
/// copies the few rows beside the written one.
pub struct InputsSnapshot {
    epoch: Epoch,
    inputs: Vec<FrozenInput>,
}

struct FrozenInput {
    /// Name of the input.
    collection: Arc<str>,
    rows: FrozenRows<InputRow>,
}

impl InputsSnapshot {
    pub(crate) fn of(epoch: Epoch, inputs: &[InputState], nodes: &[CollectionNode]) -> Self {
        let freeze = |input: &InputState| FrozenInput {
            collection: nodes[input.node].name.as_str().into(),
            // Fixed collections have the same records in every engine of the graph.
            rows: if nodes[input.node].kind == "fixed" { FrozenRows::default() } else { input.rows.freeze() },
        };
        Self { epoch, inputs: inputs.iter().map(freeze).collect() }
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inputs.iter().map(|input| input.rows.len()).sum()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key of the input with this number.
    pub(crate) fn value(&self, input: usize, key: &Erased) -> Option<&Erased> {
        Some(&self.inputs.get(input)?.rows.get(key)?.value)
    }

    /// The value of a key as JSON, and its origin, in the input of that name.
    #[must_use]
    pub fn find<K: Key>(&self, collection: &str, key: &K) -> Option<(serde_json::Value, Option<Origin>)> {
        let input = self.inputs.iter().find(|input| *input.collection == *collection)?;
        let row = input.rows.get(&Erased::new(key.clone()))?;
        Some((row.value.json(), row.origin.as_deref().cloned()))
    }

    /// The writes that make the records of `older` those of this snapshot, in the order of inputs and keys; of a snapshot
    /// of any engine of the same graph. Content that both share is skipped.
    #[must_use]
    pub fn writes_since(&self, older: &Self) -> Vec<InputRecord> {
        let mut writes = Vec::new();
        for (number, new) in self.inputs.iter().enumerate() {
            let old = older.inputs.get(number).map(|input| &input.rows);
            let mut found = changed_rows(old, &new.rows);
            found.sort_by(|(one, _), (other, _)| one.by_content(other));
            writes.extend(found.into_iter().map(|(key, row)| InputRecord {
                input: number,
                collection: new.collection.clone(),
                key,
                row,
            }));
        }
        writes
    }

    /// The writes that make the records of an empty engine those of this snapshot.
    #[must_use]
    pub fn writes(&self) -> Vec<InputRecord> {
        self.writes_since(&Self { epoch: Epoch(0), inputs: Vec::new() })
    }
}

/// The keys whose values differ, with the new row; `None` if the key is removed.
fn changed_rows(old: Option<&FrozenRows<InputRow>>, new: &FrozenRows<InputRow>) -> Vec<(Erased, Option<InputRow>)> {
    let no_shards = Vec::new();
    let old_shards = old.map_or(&no_shards, |rows| &rows.shards);
    // A row is in one shard only, so a row of a shard that both share is in no other shard.
    let is_shared = |at: usize| {
        let (Some(one), Some(other)) = (old_shards.get(at), new.shards.get(at)) else { return false };
        Arc::ptr_eq(one, other)
    };
    let mut before: BTreeMap<&Erased, &InputRow> = BTreeMap::new();
    for (_, shard) in old_shards.iter().enumerate().filter(|(at, _)| !is_shared(*at)) {
        before.extend(shard.iter().map(|(key, row)| (key, row)));
    }
    let mut changed = Vec::new();
    for (_, shard) in new.shards.iter().enumerate().filter(|(at, _)| !is_shared(*at)) {
        for (key, row) in shard.iter() {
            if before.remove(key).is_none_or(|old| old.value != row.value) {
                changed.push((key.clone(), Some(row.clone())));
            }
        }
    }
    changed.extend(before.into_keys().map(|key| (key.clone(), None)));
    changed
}

#[cfg(test)]
mod tests {
    use crate::{Engine, EngineOptions, Input, InputsSnapshot, Published};

    type Handles = (Input<u32, String>, Input<String, u32>, Published<u32, String>);

    fn start() -> (Engine, Handles) {
        Engine::start(EngineOptions::default(), |builder| {
            builder.dataflow("copied", |graph| {
                let (texts, of_texts) = graph.input::<u32, String>("texts");
                let (numbers, _) = graph.input::<String, u32>("numbers");
                graph.fixed("one", [((), ())]);
                (texts, numbers, of_texts.map("copies", |_, text| text.clone()).publish())
            })
        })
    }

    fn inputs(engine: &Engine) -> InputsSnapshot {
        engine.inputs().expect("the engine runs")
    }

    #[test]
    fn second_engine_gets_the_records_and_later_only_what_differs() {
        let (first, (texts, numbers, _)) = start();
        first.transaction(|tx| {
            (0..20_000u32).for_each(|n| tx.set(&texts, n, n.to_string()));
            tx.set(&numbers, "one".into(), 1);
        });
        let (second, (_, _, copies)) = start();
        let all = inputs(&first);
        assert_eq!((all.len(), all.get(&texts, &7)), (20_001, Some(&"7".to_owned())));
        assert_eq!(all.find("numbers", &"one".to_owned()).map(|(value, _)| value), Some(1.into()));
        let writes = all.writes_since(&inputs(&second));
        assert_eq!(writes.len(), 20_001);
        second.transaction(|tx| writes.iter().for_each(|write| tx.write_record(write)));
        assert_eq!(second.snapshot().len(&copies), 20_000);
        assert!(inputs(&first).writes_since(&inputs(&second)).is_empty());
        assert!(all.writes().iter().all(|write| write.collection() != "one"), "fixed collections are not inputs");

        first.transaction(|tx| {
            tx.set(&texts, 7, "seven".into());
            tx.delete(&texts, 8);
            (20_000..30_000u32).for_each(|n| tx.set(&texts, n, n.to_string()));
        });
        let writes = inputs(&first).writes_since(&inputs(&second));
        assert_eq!(writes.len(), 10_002, "shards were split meanwhile");
        second.transaction(|tx| writes.iter().for_each(|write| tx.write_record(write)));
        let now = second.snapshot();
        assert_eq!(now.get(&copies, &7).as_deref(), Some(&"seven".to_owned()));
        assert_eq!((now.get(&copies, &8), now.len(&copies)), (None, 29_999));
    }

    #[test]
    fn content_that_snapshots_share_is_not_compared() {
        let (engine, (texts, ..)) = start();
        engine.transaction(|tx| (0..5_000u32).for_each(|n| tx.set(&texts, n, n.to_string())));
        let before = inputs(&engine);
        engine.transaction(|tx| tx.set(&texts, 3, "three".into()));
        let after = inputs(&engine);
        let of = |snapshot: &InputsSnapshot| snapshot.inputs[0].rows.shards.clone();
        let pairs = of(&before).into_iter().zip(of(&after));
        assert_eq!(pairs.filter(|(one, other)| !std::sync::Arc::ptr_eq(one, other)).count(), 1);
        let writes = after.writes_since(&before);
        assert_eq!(writes.len(), 1);
        assert_eq!((writes[0].key::<u32>(), writes[0].collection()), (Some(&3), "texts"));
        assert_eq!(before.get(&texts, &3), Some(&"3".to_owned()), "a snapshot does not change");
    }
}
