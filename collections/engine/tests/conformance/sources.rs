//! Collections that code outside the graph writes: members of a nested join, triggers, protected values, inputs with
//! records from the start, and deletions by condition (K08, K09, K11).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_engine::{Engine, EngineOptions, Input, Members, Published};

fn start<H: Send + 'static>(
    build: impl FnOnce(&sluice_engine::DataflowBuilder<'_>) -> H + Send + 'static,
) -> (Engine, H) {
    Engine::start(EngineOptions::default(), |b| b.dataflow("main", build))
}

fn state<V: sluice_engine::Value>(engine: &Engine, of: &Published<u32, V>) -> BTreeMap<u32, V> {
    engine.flush();
    engine.snapshot().iter(of).map(|(key, value)| (*key, value.clone())).collect()
}

type Clusters = Members<&'static str, u32, &'static str>;

/// Values of the members by key, as `member=value`, in the order of the members.
fn clusters() -> (Engine, (Clusters, Published<u32, String>)) {
    start(|g| {
        let (members, of) = g.members("services");
        let merged = of.records.merge_members("merged", &of.members, |_, values| {
            let values: Vec<_> = values.iter().map(|(member, value)| format!("{member}={value}")).collect();
            Some(values.join(" "))
        });
        (members, merged.publish())
    })
}

fn texts(pairs: &[(u32, &str)]) -> BTreeMap<u32, String> {
    pairs.iter().map(|(key, text)| (*key, (*text).to_owned())).collect()
}

#[test]
fn records_of_members_are_merged_until_their_member_is_removed() {
    let (engine, (members, merged)) = clusters();
    let (west, east) = (members.add("west"), members.add("east"));
    west.set(1, "a");
    west.set(2, "b");
    east.replace_all([(1, "c"), (3, "d")]);
    assert_eq!(state(&engine, &merged), texts(&[(1, "east=c west=a"), (2, "west=b"), (3, "east=d")]));
    east.replace_all([(1, "e")]);
    west.delete(2);
    assert_eq!(state(&engine, &merged), texts(&[(1, "east=e west=a")]));
    let mut feed = engine.feed();
    feed.try_next();
    drop(west);
    assert_eq!(state(&engine, &merged), texts(&[(1, "east=e")]));
    // What is left of the member is removed too, and a later member of its name starts empty.
    let west = members.add("west");
    assert_eq!(state(&engine, &merged), texts(&[(1, "east=e")]));
    west.set(4, "f");
    drop(east);
    assert_eq!(state(&engine, &merged), texts(&[(4, "west=f")]));
    drop(west);
    assert_eq!(state(&engine, &merged), texts(&[]));
    let kept: i64 = engine.metrics().collections.iter().map(|it| it.size + it.stored).sum();
    assert_eq!(kept, 0);
}

#[test]
fn replaced_writing_end_of_a_member_is_ignored() {
    let (engine, (members, merged)) = clusters();
    let first = members.add("west");
    first.replace_all([(1, "a"), (2, "b")]);
    let second = members.add("west");
    assert_eq!(state(&engine, &merged), texts(&[(1, "west=a"), (2, "west=b")]), "until it is written");
    first.set(3, "late");
    first.mark_synced();
    second.replace_all([(2, "c")]);
    drop(first);
    assert_eq!(state(&engine, &merged), texts(&[(2, "west=c")]));
}

#[test]
fn set_of_members_is_synced_when_those_added_before_are() {
    let (engine, (members, merged)) = clusters();
    let is_synced = || {
        engine.flush();
        engine.snapshot().is_synced(&merged)
    };
    let (west, east, north) = (members.add("west"), members.add("east"), members.add("north"));
    west.mark_synced();
    members.mark_synced();
    assert!(!is_synced(), "east and north are awaited");
    // A member that is replaced is awaited still.
    let replacement = members.add("east");
    east.mark_synced();
    assert!(!is_synced());
    replacement.mark_synced();
    assert!(!is_synced(), "north is awaited");
    drop(north);
    assert!(is_synced());
    let _late = members.add("late");
    assert!(is_synced(), "later members change nothing");
}

#[test]
fn trigger_runs_the_closures_again_that_depend_on_it() {
    let outside = Arc::new(AtomicU32::new(1));
    let reads = outside.clone();
    let (engine, (trigger, rows, out)) = start(move |g| {
        let (trigger, triggered) = g.trigger("trigger", false);
        let (rows_in, rows) = g.input::<u32, u32>("rows");
        let out = rows.derive("times-outside", |d| {
            let trigger = d.on(&triggered);
            move |cx, key, value: &u32| {
                // Odd keys do not read the state outside.
                (*key % 2 == 0).then(|| cx.depend_on(&trigger));
                Some(value * if *key % 2 == 0 { reads.load(Ordering::SeqCst) } else { 1 })
            }
        });
        (trigger, rows_in, out.publish())
    });
    rows.replace_all([(1, 10), (2, 20)]);
    rows.mark_synced();
    assert_eq!(state(&engine, &out), BTreeMap::from([(1, 10), (2, 20)]));
    assert!(!engine.snapshot().is_synced(&out), "the state outside may be incomplete");
    outside.store(3, Ordering::SeqCst);
    assert_eq!(state(&engine, &out), BTreeMap::from([(1, 10), (2, 20)]), "before the trigger");
    let mut feed = engine.feed();
    feed.try_next();
    trigger.clone().trigger();
    trigger.mark_synced();
    assert_eq!(state(&engine, &out), BTreeMap::from([(1, 10), (2, 60)]));
    assert!(engine.snapshot().is_synced(&out));
    trigger.trigger();
    engine.flush();
    let changes: usize = std::iter::from_fn(|| feed.try_next()).map(|batch| batch.len()).sum();
    assert_eq!(changes, 1, "an equal result is no change");
}

#[test]
fn protected_value_is_read_as_a_singleton() {
    let (engine, (protected, out)) = start(|g| {
        let (protected, of) = g.protected("names", BTreeMap::from([(1u32, "a")]), true);
        let out = of.flat_map("by-number", |(), names| names.clone());
        (protected, out.publish())
    });
    assert!(engine.snapshot().is_synced(&out));
    assert_eq!(state(&engine, &out), BTreeMap::from([(1, "a")]));
    let writers: Vec<_> = (2..10u32)
        .map(|number| {
            let protected = protected.clone();
            std::thread::spawn(move || protected.modify(|names| names.insert(number, "b")))
        })
        .collect();
    for writer in writers {
        assert_eq!(writer.join().ok(), Some(None), "no writer replaced a value of another");
    }
    assert_eq!(state(&engine, &out), (2..10).map(|number| (number, "b")).chain([(1, "a")]).collect());
    assert_eq!(protected.latest(), state(&engine, &out));
    let epoch = engine.flush();
    protected.modify(|names| names.insert(1, "a"));
    assert_eq!(engine.flush(), epoch, "an equal value is no change");
}

#[test]
fn input_has_its_records_in_the_first_epoch() {
    let (engine, (input, out)) = start(|g| {
        let (input, rows) = g.input_with("rows", [(1u32, "a"), (2, "b")], true);
        (input, rows.publish())
    });
    let snapshot = engine.snapshot();
    assert_eq!((snapshot.len(&out), snapshot.is_synced(&out)), (2, true));
    input.replace_all([(2, "b"), (3, "c")]);
    assert_eq!(state(&engine, &out), BTreeMap::from([(2, "b"), (3, "c")]));
}

/// The writes of a transaction apply in order, also around a deletion by condition, and with writes that wait.
#[test]
fn deletion_by_condition_sees_the_writes_before_it() {
    let (engine, (input, out)): (_, (Input<u32, u32>, _)) = start(|g| {
        let (input, rows) = g.input::<u32, u32>("rows");
        (input, rows.publish())
    });
    input.replace_all((0..6).map(|key| (key, key)));
    input.set(5, 0);
    engine.transaction(|tx| {
        tx.set(&input, 0, 100);
        tx.set(&input, 7, 7);
        tx.set(&input, 8, 8);
        tx.delete(&input, 4);
        tx.delete_where(&input, |key, value| *key == 8 || value % 2 == 1 || *value == 4);
        tx.set(&input, 1, 1);
    });
    input.set(3, 3);
    assert_eq!(state(&engine, &out), BTreeMap::from([(0, 100), (1, 1), (2, 2), (3, 3), (5, 0)]));
    engine.transaction(|tx| {
        tx.delete_where(&input, |key, _| {
            assert_ne!(*key, 2, "a condition that panics");
            true
        });
    });
    assert_eq!(state(&engine, &out), BTreeMap::from([(2, 2)]), "a record for which the condition panics stays");
    assert_eq!(engine.panics().len(), 1);
}
