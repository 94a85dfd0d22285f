//! Faults in a user's closure affect only their record: panics, and several records with one key.

use std::collections::BTreeMap;

use sluice_engine::{Clock, Collection, DataflowBuilder, Engine, EngineOptions, Incremental, Input, Published};

type Rows<'s> = Collection<'s, u32, u32>;
type Make = for<'s> fn(&DataflowBuilder<'s>, &Rows<'s>, &Rows<'s>) -> Rows<'s>;

/// The value that makes closures panic.
const BAD: u32 = 13;

fn times_ten(value: u32) -> u32 {
    assert!(value != BAD, "cannot take {value}");
    value * 10
}

type Handles = (Input<u32, u32>, Input<u32, u32>, Published<u32, u32>);

fn start(make: Make) -> (Engine, Handles) {
    Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| {
            let (input, rows) = g.input::<u32, u32>("rows");
            let (other_in, other) = g.input::<u32, u32>("other");
            let made = make(g, &rows, &other);
            (input, other_in, made.map("copy", |_, value| *value).publish())
        })
    })
}

fn state(engine: &Engine, of: &Published<u32, u32>) -> BTreeMap<u32, u32> {
    engine.flush();
    engine.snapshot().iter(of).map(|(key, value)| (*key, *value)).collect()
}

/// Each operator that has a closure, with the key and value of a record passed through it.
const OPERATORS: &[(&str, Make)] = &[
    ("map", |_, rows, _| rows.map("made", |_, v| times_ten(*v))),
    ("filter", |_, rows, _| rows.filter("made", |_, v| times_ten(*v) > 0).map("times-ten", |_, v| v * 10)),
    ("filter_map", |_, rows, _| rows.filter_map("made", |_, v| Some(times_ten(*v)))),
    ("flat_map", |_, rows, _| rows.flat_map("made", |k, v| [(*k, times_ten(*v))])),
    ("join", |_, rows, other| rows.join("made", other, |_, v, _| Some(times_ten(*v)))),
    ("index", |_, rows, _| rows.index("made", |k, v| [(*k, times_ten(*v))]).group("group", |_, rows| Some(*rows[0].1))),
    ("group", |_, rows, _| {
        rows.index("by-key", |k, v| [(*k, *v)]).group("made", |_, rows| Some(times_ten(*rows[0].1)))
    }),
    ("index_join", |_, rows, other| {
        let index = rows.index("by-key", |k, v| [(*k, *v)]);
        index.join("made", other, |_, k, v, _| Some((*k, times_ten(*v))))
    }),
    ("union_merge", |_, rows, _| rows.union_merge("made", &[rows], |_, vs| Some(times_ten(*vs[0])))),
    ("group_chunks", |_, rows, _| {
        let chunks = rows.group_chunks("made", |k| (*k, ()), |()| true, |_, rows| Some(times_ten(*rows[0].1)));
        chunks.flat_map("chunks", |(k, _), v| [(*k, *v)])
    }),
    ("derive", |_, rows, _| rows.derive("made", |_| |_, _, v| Some(times_ten(*v)))),
    ("derive_many", |_, rows, _| rows.derive_many("made", |_| |_, k, v| vec![(*k, times_ten(*v))])),
];

#[test]
fn panic_affects_only_its_record_and_keeps_the_last_good_output() {
    for (name, make) in OPERATORS {
        let (engine, (input, other, copy)) = start(*make);
        for key in 1..=3 {
            other.set(key, 0);
            input.set(key, key);
        }
        let good = BTreeMap::from([(1, 10), (2, 20), (3, 30)]);
        assert_eq!(state(&engine, &copy), good, "{name}");

        // Key 2 fails, other keys are updated; key 4 has never had a good output.
        engine.transaction(|tx| {
            tx.set(&input, 2, BAD);
            tx.set(&input, 3, 5);
            tx.set(&input, 4, BAD);
            tx.set(&other, 4, 0);
        });
        assert_eq!(state(&engine, &copy), BTreeMap::from([(1, 10), (2, 20), (3, 50)]), "{name}");
        let reports = engine.panics();
        let keys: Vec<_> = reports.iter().map(|report| report.key.to_string()).collect();
        assert!(
            keys.iter().any(|key| key.contains('2')) && keys.iter().any(|key| key.contains('4')),
            "{name} {keys:?}"
        );
        assert!(
            reports.iter().all(|report| report.collection == "made" && report.message == "cannot take 13"),
            "{name}"
        );
        let metrics = engine.metrics();
        assert!(metrics.collections.iter().any(|it| it.name == "made" && it.panics >= 2), "{name}");

        // A dump shows what snapshots show.
        let dumped = engine.dump("made").map(|dump| dump.len());
        assert_eq!(dumped, Some(3), "{name}");

        // From bad to good, from bad to deleted, and a deletion beside a record that keeps its last output.
        engine.transaction(|tx| {
            tx.set(&input, 2, 7);
            tx.delete(&input, 4);
            tx.delete(&input, 1);
        });
        assert_eq!(state(&engine, &copy), BTreeMap::from([(2, 70), (3, 50)]), "{name}");
        engine.transaction(|tx| tx.set(&input, 3, BAD));
        engine.transaction(|tx| tx.delete(&input, 3));
        engine.transaction(|tx| tx.delete(&input, 2));
        assert_eq!(state(&engine, &copy), BTreeMap::new(), "{name}");
        assert!(engine.metrics().collections.iter().all(|it| it.name.starts_with("other") || it.size == 0), "{name}");
    }
}

/// Each record times ten.
#[derive(Default)]
struct TimesTen(BTreeMap<u32, Option<u32>>);

impl Incremental<u32, u32> for TimesTen {
    type Key = u32;
    type Value = u32;

    fn change(&mut self, key: &u32, _: Option<&u32>, new: Option<&u32>) {
        self.0.insert(*key, new.copied().map(times_ten));
    }

    fn settle(&mut self) -> Vec<(u32, Option<u32>)> {
        std::mem::take(&mut self.0).into_iter().collect()
    }

    fn owner(output: &u32) -> Option<u32> {
        Some(*output)
    }
}

#[test]
fn incremental_outputs_stay_while_a_record_makes_its_closure_panic() {
    let (engine, (input, _, copy)) = start(|_, rows, _| rows.incremental("made", TimesTen::default));
    for key in 1..=3 {
        input.set(key, key);
    }
    let before = BTreeMap::from([(1, 10), (2, 20), (3, 30)]);
    assert_eq!(state(&engine, &copy), before);
    input.set(1, BAD);
    assert_eq!(state(&engine, &copy), before);
    input.delete(2);
    input.set(3, 4);
    assert_eq!(state(&engine, &copy), before);
    input.set(1, 5);
    assert_eq!(state(&engine, &copy), BTreeMap::from([(1, 50), (3, 40)]));
    assert!(engine.panics().iter().all(|panic| panic.collection == "made"), "{:?}", engine.panics());
    input.delete(1);
    input.delete(3);
    assert_eq!(state(&engine, &copy), BTreeMap::new());
}

#[test]
fn closure_that_panicked_runs_again_when_a_looked_up_record_changes() {
    let (engine, (input, other, copy)) = start(|_, rows, other| {
        rows.derive("made", |d| {
            let other = d.on(other);
            move |cx, key, _| cx.get(&other, key).map(|found| times_ten(*found))
        })
    });
    input.set(1, 0);
    other.set(1, BAD);
    assert_eq!(state(&engine, &copy), BTreeMap::new());
    other.set(1, 4);
    assert_eq!(state(&engine, &copy), BTreeMap::from([(1, 40)]));
    other.set(1, BAD);
    assert_eq!(state(&engine, &copy), BTreeMap::from([(1, 40)]));
    other.delete(1);
    assert_eq!(state(&engine, &copy), BTreeMap::new());
}

#[test]
fn smallest_value_of_a_key_wins_in_any_order() {
    let make: Make = |_, rows, _| rows.flat_map("made", |_, value| [(0, *value)]);
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
        let (engine, (input, _, copy)) = start(make);
        for key in order {
            input.set(key, key * 100);
            engine.flush();
        }
        let conflicts = || engine.metrics().collections.iter().find(|it| it.name == "copy").map(|it| it.conflicts);
        assert_eq!(state(&engine, &copy), BTreeMap::from([(0, 100)]));
        assert_eq!(conflicts(), Some(1));
        input.set(1, 250);
        assert_eq!(state(&engine, &copy), BTreeMap::from([(0, 200)]));
        input.delete(2);
        input.delete(3);
        assert_eq!(state(&engine, &copy), BTreeMap::from([(0, 250)]));
        assert_eq!(conflicts(), Some(0));
        input.delete(1);
        assert_eq!(state(&engine, &copy), BTreeMap::new());
    }
}

#[test]
fn panic_of_the_dataflow_thread_ends_every_wait() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    let broken = Arc::new(AtomicBool::new(false));
    let seam = broken.clone();
    // The thread reads the clock in each epoch.
    let clock = Clock::new(move || {
        let is_dataflow = std::thread::current().name() == Some("sluice-dataflow");
        assert!(!(is_dataflow && seam.load(Ordering::SeqCst)), "the clock is broken");
        Duration::ZERO
    });
    let (engine, input) = Engine::start(EngineOptions { clock, ..EngineOptions::default() }, |b| {
        b.dataflow("main", |g| g.input::<u32, i64>("input").0)
    });
    let mut stopped = Box::pin(engine.stopped());
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(stopped.as_mut().poll(&mut cx), Poll::Pending);
    let mut feed = engine.feed();
    feed.try_next();
    let waiting = engine.clone();
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| waiting.wait_synced(Duration::MAX));
        let next = scope.spawn(|| feed.next_timeout(Duration::MAX).is_none());
        broken.store(true, Ordering::SeqCst);
        input.set(1, 1);
        engine.flush();
        assert!(!synced.join().expect("no panic"), "the inputs are not synced");
        assert!(next.join().expect("no panic"), "there is no further batch");
    });
    while stopped.as_mut().poll(&mut cx).is_pending() {
        std::thread::yield_now();
    }
    assert_eq!(engine.transaction(|tx| tx.set(&input, 2, 2)), engine.snapshot().epoch());
    let mut stopped = Box::pin(engine.stopped());
    assert_eq!(stopped.as_mut().poll(&mut cx), Poll::Ready(Some("the clock is broken".to_owned())));
}
