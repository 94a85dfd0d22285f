//! A running engine and other threads: atomic epochs, dumps that do not block, writers that never wait, a clean stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use sluice_engine::{
    Clock, Derivation, Engine, EngineOptions, HistoryLimits, HistoryQuery, Input, KeysRead, Origin, Published,
};

struct Handles {
    left: Input<u32, i64>,
    right: Input<u32, i64>,
    left_out: Published<u32, i64>,
    right_out: Published<u32, i64>,
    both: Published<u32, i64>,
}

/// Two accounts, one written with priority; their sum is derived.
fn start(options: EngineOptions) -> (Engine, Handles) {
    Engine::start(options, |b| {
        b.dataflow("main", |g| {
            let (left, left_rows) = g.input::<u32, i64>("left");
            let (right, rows) = g.priority_input::<u32, i64>("right");
            let sums = left_rows.join("sums", &rows, |_, a, b| Some(a + b));
            let copies = sums.map("copies", |_, sum| *sum);
            let both = copies.index("copies/all", |key, sum| [(key % 4, *sum)]);
            let totals = both.group("totals", |_, rows| Some(rows.iter().map(|(_, sum)| **sum).sum::<i64>()));
            Handles { left, right, left_out: left_rows.publish(), right_out: rows.publish(), both: totals.publish() }
        })
    })
}

/// Moves amounts between the two accounts; every consistent cut has the same sums.
fn transfer(engine: &Engine, handles: &Handles, round: i64) {
    engine.transaction(|tx| {
        for key in 0..40 {
            tx.set(&handles.left, key, 100 - round);
            tx.set(&handles.right, key, round);
        }
    });
}

#[test]
fn snapshot_shows_all_collections_at_one_epoch() {
    let (engine, handles) = start(EngineOptions::default());
    transfer(&engine, &handles, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = 0;
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = engine.snapshot();
                    assert!(snapshot.epoch().0 >= seen, "the epoch of a snapshot decreased");
                    seen = snapshot.epoch().0;
                    for key in 0..40 {
                        let values = (snapshot.get(&handles.left_out, &key), snapshot.get(&handles.right_out, &key));
                        let (Some(left), Some(right)) = values else { panic!("{key} is missing") };
                        assert_eq!(*left + *right, 100);
                    }
                    assert!(snapshot.iter(&handles.both).all(|(_, total)| *total == 1000));
                }
            });
        }
        scope.spawn(|| {
            // Neither stored nor published: the dump reads arrangements in slices, at one epoch.
            while !stop.load(Ordering::Relaxed) {
                for name in ["sums", "copies", "copies/all"] {
                    let dump = engine.dump(name).expect("a dump");
                    assert_eq!(dump.len(), 40, "{name}");
                    for (_, value) in dump.records() {
                        let sum = value.as_array().map_or(&value, |pair| &pair[1]);
                        assert_eq!(sum, &serde_json::json!(100), "{name} at {:?}", dump.epoch());
                    }
                }
            }
        });
        for round in 1..2_000 {
            transfer(&engine, &handles, round);
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The totals have not changed since the first transfer.
    assert!(engine.snapshot().changed_at(&handles.both, &0).is_some_and(|epoch| epoch.0 <= 2));
}

#[test]
fn large_dump_does_not_block_epochs() {
    let (engine, handles) = start(EngineOptions::default());
    engine.transaction(|tx| {
        tx.replace_all(&handles.left, (0..50_000).map(|key| (key, 1)));
        tx.replace_all(&handles.right, (0..50_000).map(|key| (key, 1)));
    });
    let before = engine.flush();
    std::thread::scope(|scope| {
        let dump = scope.spawn(|| engine.dump("copies").expect("a dump"));
        while !dump.is_finished() {
            handles.left.set(7, i64::from(dump.is_finished()));
            engine.flush();
        }
        let dump = dump.join().expect("no panic");
        assert_eq!(dump.len(), 50_000);
        assert!(dump.epoch() >= before);
    });
    assert!(engine.dump("no such collection").is_none());
}

/// Holds the dataflow thread at the beginning of an epoch, as a long epoch does.
#[derive(Clone, Default)]
struct LongEpoch(Arc<(Mutex<EpochHold>, Condvar)>);

#[derive(Default)]
struct EpochHold {
    is_held: bool,
    /// The dataflow thread waits.
    is_reached: bool,
}

impl LongEpoch {
    /// Options of an engine whose dataflow thread waits while the epoch is held.
    fn options(&self) -> EngineOptions {
        let held = self.clone();
        // The thread reads the clock after it has taken the writes of an epoch.
        let clock = Clock::new(move || {
            if std::thread::current().name() == Some("sluice-dataflow") {
                let (lock, changed) = &*held.0;
                let mut hold = lock.lock().expect("no panic");
                hold.is_reached = hold.is_held;
                drop(changed.wait_while(hold, |hold| hold.is_held));
            }
            Duration::ZERO
        });
        EngineOptions { clock, ..EngineOptions::default() }
    }

    fn hold(&self, handles: &Handles) {
        self.0.0.lock().expect("no panic").is_held = true;
        handles.left.set(u32::MAX, 1);
        while !self.0.0.lock().expect("no panic").is_reached {
            std::thread::yield_now();
        }
    }

    fn release(&self) {
        self.0.0.lock().expect("no panic").is_held = false;
        self.0.1.notify_all();
    }
}

#[test]
fn writers_do_not_wait_for_a_long_epoch_and_the_last_write_of_a_key_applies() {
    let epoch = LongEpoch::default();
    let (engine, handles) = start(epoch.options());
    epoch.hold(&handles);
    for round in 0..5 {
        for key in 0..10_000 {
            handles.left.set(key, round);
        }
    }
    handles.left.delete(3);
    handles.right.set(3, 7);
    handles.left.mark_synced();
    handles.left.mark_synced();
    assert_eq!(engine.metrics().queued, 10_002, "memory depends on the number of keys");
    epoch.release();
    engine.flush();
    let snapshot = engine.snapshot();
    assert_eq!(snapshot.len(&handles.left_out), 10_000, "all keys but one, and the first write");
    assert!(snapshot.iter(&handles.left_out).all(|(key, value)| *value == if *key == u32::MAX { 1 } else { 4 }));
    assert_eq!(snapshot.get(&handles.right_out, &3).as_deref(), Some(&7));
    assert!(engine.metrics().epochs > 10_000 / 2048, "a batch is capped");
}

#[test]
fn waiting_replacement_of_all_records_drops_earlier_writes_only() {
    let epoch = LongEpoch::default();
    let (engine, handles) = start(epoch.options());
    epoch.hold(&handles);
    handles.left.set(1, 1);
    handles.left.replace_all([(2, 2)]);
    handles.left.set(1, 3);
    handles.left.replace_all([(4, 4), (5, 5)]);
    handles.left.set(5, 6);
    assert_eq!(engine.metrics().queued, 2);
    epoch.release();
    engine.flush();
    let left: Vec<_> = engine.snapshot().iter(&handles.left_out).map(|(key, value)| (*key, *value)).collect();
    assert_eq!(left, [(4, 4), (5, 6)]);
}

#[test]
fn priority_transaction_goes_before_waiting_writes_and_replaces_those_of_its_keys() {
    let epoch = LongEpoch::default();
    let (engine, handles) = start(epoch.options());
    epoch.hold(&handles);
    for key in 0..10_000 {
        handles.left.set(key, 1);
    }
    std::thread::scope(|scope| {
        let changed = scope.spawn(|| {
            engine.priority_transaction(|tx| {
                tx.set(&handles.right, 1, 1);
                tx.set(&handles.left, 9_999, 2);
                tx.delete(&handles.left, 9_997);
            })
        });
        // Two writes are replaced, and the transaction is added.
        while engine.metrics().queued != 9_999 {
            std::thread::yield_now();
        }
        epoch.release();
        let changed = changed.join().expect("no panic");
        engine.flush();
        let snapshot = engine.snapshot();
        assert_eq!(snapshot.get(&handles.left_out, &9_999).as_deref(), Some(&2), "the order of one key");
        assert_eq!(snapshot.changed_at(&handles.right_out, &1), Some(changed));
        let last = snapshot.changed_at(&handles.left_out, &9_998).expect("written");
        assert!(last > changed, "{last:?} is after {changed:?}");
    });
}

#[test]
fn no_write_of_concurrent_writers_is_lost() {
    let (engine, handles) = start(EngineOptions { batch: 16, ..EngineOptions::default() });
    std::thread::scope(|scope| {
        for writer in 0..4u32 {
            let handles = &handles;
            scope.spawn(move || {
                for n in 0..2_000u32 {
                    let input = if n % 2 == 0 { &handles.left } else { &handles.right };
                    input.set(writer * 10_000 + n, i64::from(n));
                }
            });
        }
    });
    engine.flush();
    let snapshot = engine.snapshot();
    assert_eq!((snapshot.len(&handles.left_out), snapshot.len(&handles.right_out)), (4_000, 4_000));
}

#[test]
fn writes_of_one_thread_apply_in_order_also_to_priority_inputs() {
    let (engine, handles) = start(EngineOptions::default());
    for n in 0..200 {
        handles.right.set(1, n);
        engine.transaction(|tx| tx.set(&handles.right, 1, -n));
        assert_eq!(engine.snapshot().get(&handles.right_out, &1).as_deref(), Some(&-n));
        handles.right.set(1, n);
        engine.flush();
        assert_eq!(engine.snapshot().get(&handles.right_out, &1).as_deref(), Some(&n));
    }
}

#[test]
fn stopped_engine_ends_feeds_and_ignores_writes() {
    let (engine, handles) = start(EngineOptions::default());
    let mut feed = engine.feed();
    handles.left.set(1, 1);
    engine.flush();
    let waiter = std::thread::spawn(move || {
        let mut batches = 0;
        while feed.next_timeout(Duration::from_secs(60)).is_some() {
            batches += 1;
        }
        batches
    });
    let snapshot = engine.snapshot();
    drop(engine);
    assert!(waiter.join().is_ok_and(|batches| batches >= 1));
    handles.left.set(2, 2);
    assert_eq!(snapshot.len(&handles.left_out), 1);
}

#[test]
fn panic_while_building_reaches_the_caller() {
    let built = std::panic::catch_unwind(|| {
        Engine::start(EngineOptions::default(), |b| b.dataflow("main", |_| -> u32 { panic!("the build failed") }))
    });
    let Err(panic) = built else { panic!("the build succeeded") };
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the build failed"));
}

#[test]
fn history_has_the_writes_and_changes_of_recent_epochs() {
    // A clock that does not advance: no result and no order depends on it.
    // An epoch with one write and one changed key counts as 3 rows.
    let history = HistoryLimits { bytes: 3 * 3 * 256, ..HistoryLimits::default() };
    let options = EngineOptions { history, clock: Clock::new(|| Duration::ZERO), ..EngineOptions::default() };
    let (engine, handles) = start(options);
    for n in 1..=5 {
        let origin = Origin { received: Some(Duration::from_secs(n)), ..Origin::version(format!("v{n}")) };
        handles.left.set_from(n as u32, 1, origin);
        engine.flush();
    }
    let epochs = engine.recent_epochs();
    assert_eq!(epochs.len(), 3);
    let Some(last) = epochs.last() else { panic!("no epochs") };
    assert_eq!((last.write_count, last.took), (1, Duration::ZERO));
    assert_eq!(last.writes[0].origin.as_ref().map(|origin| &*origin.version), Some("v5"));
    assert_eq!(last.changed, [("left".to_owned(), 1)]);

    // A newer version with the same content is no event, but explanations name it.
    let epoch = engine.flush();
    handles.left.set_from(5, 1, Origin::version("v6"));
    assert_eq!(engine.flush(), epoch);
    let why = engine.explain(&handles.left_out, &5).map(|it| it.why.origin);
    assert_eq!(why, Some(Some(Origin::version("v6"))));
    let absent = engine.explain(&handles.both, &77).map(|it| (it.value, it.why.present));
    assert_eq!(absent, Some((None, Some(false))));
}

#[test]
fn history_is_searched_by_written_record_and_drops_old_epochs() {
    let now = Arc::new(AtomicU64::new(0));
    let clock = {
        let now = now.clone();
        Clock::new(move || Duration::from_secs(now.load(Ordering::SeqCst)))
    };
    let history = HistoryLimits { age: Duration::from_secs(100), ..HistoryLimits::default() };
    let (engine, handles) = start(EngineOptions { history, clock, ..EngineOptions::default() });
    for (at, input, key) in
        [(10, &handles.left, 1), (20, &handles.right, 1), (30, &handles.left, 2), (40, &handles.left, 1)]
    {
        now.store(at, Ordering::SeqCst);
        input.set(key, i64::try_from(at).expect("small"));
        engine.flush();
    }
    let ages = |query: HistoryQuery| -> Vec<u64> { engine.history(query).iter().map(|it| it.age.as_secs()).collect() };
    assert_eq!(ages(HistoryQuery::recent(0).written("left", 1_u32)), [30, 0]);
    assert_eq!(ages(HistoryQuery::recent(1).written("left", 1_u32)), [0]);
    assert_eq!(ages(HistoryQuery::recent(0).written("left", 2_u32).written("right", 1_u32)), [20, 10]);
    assert_eq!(ages(HistoryQuery::recent(0).written("nothing", 1_u32)), [0_u64; 0]);
    let last = engine.history(HistoryQuery::recent(1)).pop().expect("an epoch");
    assert_eq!(last.keys.of(&handles.left_out).copied().collect::<Vec<_>>(), [1]);
    assert_eq!(last.keys.of(&handles.right_out).count(), 0);
    assert!(!last.keys.omitted());
    now.store(125, Ordering::SeqCst);
    handles.right.set(9, 9);
    engine.flush();
    assert_eq!(ages(HistoryQuery::recent(0)), [95, 85, 0], "older epochs are dropped");
    assert_eq!(ages(HistoryQuery::recent(0).max_age(Duration::from_secs(90))), [85, 0]);
}

#[test]
fn second_engine_derives_a_record_from_the_inputs_of_its_explanation() {
    let (engine, handles) = start(EngineOptions::default());
    for key in 1..=3 {
        handles.left.set(key, i64::from(key));
        handles.right.set_from(key, 10, Origin::version("r"));
    }
    engine.flush();
    let why = engine.explain(&handles.both, &2).expect("the engine runs");
    assert_eq!(why.inputs.len(), 2, "{why:?}");
    let (second, copies) = start(EngineOptions::default());
    second.transaction(|tx| why.inputs.iter().for_each(|record| tx.write_record(record)));
    let of = |engine: &Engine, handles: &Handles| engine.snapshot().get(&handles.both, &2).map(|value| *value);
    assert_eq!(of(&second, &copies), of(&engine, &handles));
    assert_eq!(second.snapshot().len(&copies.both), 1);
    let right = why.inputs.iter().find(|record| record.collection() == "right").expect("an input");
    assert_eq!((right.key::<u32>(), right.key::<String>()), (Some(&2), None));
    assert_eq!(right.origin().map(|origin| &*origin.version), Some("r"));
    second.transaction(|tx| tx.delete_record(right));
    assert_ne!(of(&second, &copies), of(&engine, &handles));

    // The same by the name of an input.
    let origin = engine.explain_key("right", &3_u32).and_then(|why| why.why.origin);
    assert_eq!(origin, Some(Origin::version("r")));
    assert_eq!(engine.explain_key("right", &7_u32).map(|why| why.why.present), Some(Some(false)));
    assert!(engine.explain_key("nothing", &7_u32).is_none());
    let later: Vec<u32> = engine.snapshot().iter_from(&handles.left_out, 2).map(|(key, _)| *key).collect();
    assert_eq!(later, [2, 3]);
    let dump = engine.dump("left").expect("a collection");
    assert_eq!(
        dump.typed::<u32, i64>().map(|(key, value)| (*key, *value)).collect::<Vec<_>>(),
        [(1, 1), (2, 2), (3, 3)]
    );
    assert_eq!((dump.keys::<u32>().count(), dump.typed::<u32, u32>().count()), (3, 0));
}

#[test]
fn async_readers_are_woken() {
    use std::sync::atomic::AtomicU32;
    use std::task::{Context, Poll, Wake};
    struct WakeCount(AtomicU32);
    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (engine, handles) = start(EngineOptions::default());
    let count = Arc::new(WakeCount(AtomicU32::new(0)));
    let waker = Arc::clone(&count).into();
    let mut cx = Context::from_waker(&waker);
    let mut feed = engine.feed().only(&handles.left_out);
    assert!(feed.poll_next(&mut cx).is_ready());
    assert!(feed.poll_next(&mut cx).is_pending());
    // A change of another collection wakes the reader, without a batch.
    handles.right.set(1, 1);
    engine.flush();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(feed.poll_next(&mut cx).is_pending());
    handles.left.set(1, 1);
    engine.flush();
    assert_eq!(count.0.load(Ordering::SeqCst), 2);
    let Poll::Ready(Some(batch)) = feed.poll_next(&mut cx) else { panic!("no batch") };
    assert_eq!(batch.len(), 1);
}

#[test]
fn epoch_without_published_changes_keeps_unread_changes() {
    let (engine, (shown, hidden, out)) = Engine::start(EngineOptions::default(), |b| {
        b.dataflow("main", |g| {
            let (shown, rows) = g.input::<u32, i64>("shown");
            let (hidden, _) = g.input::<u32, i64>("hidden");
            (shown, hidden, rows.publish())
        })
    });
    let mut feed = engine.feed();
    assert!(feed.try_next().is_some_and(|batch| batch.is_first()));
    shown.set(1, 7);
    engine.flush();
    hidden.set(1, 1);
    engine.flush();
    let events: Vec<_> = feed.try_next().expect("a batch").events(&out).map(|event| *event.key).collect();
    assert_eq!(events, [1]);
    assert!(feed.try_next().is_none(), "a change is reported once");
}

#[test]
fn record_that_changed_back_between_two_batches_is_reported_to_feeds_with_reverted_records() {
    let (engine, handles) = start(EngineOptions::default());
    let set = |key, value: Option<i64>| {
        match value {
            Some(value) => handles.left.set(key, value),
            None => handles.left.delete(key),
        }
        engine.flush();
    };
    set(1, Some(7));
    set(2, Some(7));
    let plain = || engine.feed().only(&handles.left_out);
    let (mut net, mut all) = (plain(), plain().with_reverted());
    assert!(net.try_next().is_some() && all.try_next().is_some());
    set(1, None);
    set(1, Some(7));
    assert!(net.try_next().is_none(), "there is no net change");
    let batch = all.try_next().expect("a batch");
    let events: Vec<_> = batch.events(&handles.left_out).map(|event| (*event.key, event.old, event.new)).collect();
    assert_eq!(events, [(1, Some(7.into()), Some(7.into()))]);
    assert!(all.try_next().is_none(), "it is reported once");
    // A record that was added and removed has left nothing.
    set(3, Some(1));
    set(3, None);
    assert!(all.try_next().is_none());
}

#[test]
fn derivations_list_makers_outputs_and_the_records_that_were_read() {
    let (engine, (pods, services, mesh)) = Engine::start(EngineOptions::default(), |b| {
        b.dataflow("main", |g| {
            let (pods_in, pods) = g.input::<String, String>("pods");
            let (services_in, services) = g.input::<String, u16>("services");
            let (mesh_in, mesh) = g.input::<(), u8>("mesh");
            let by_service = pods.index("pods/by-service", |_, service| [(service.clone(), ())]);
            services.derive_many("ready", |d| {
                let (pods, mesh) = (d.by(&by_service), d.on(&mesh));
                move |cx, name, port| {
                    cx.all(&mesh);
                    cx.by(&pods, name).into_iter().map(|(pod, _)| (pod, *port)).collect::<Vec<_>>()
                }
            });
            (pods_in, services_in, mesh_in)
        })
    });
    engine.transaction(|tx| {
        tx.set(&mesh, (), 1);
        tx.set(&services, "web".to_owned(), 80);
        tx.set(&services, "idle".to_owned(), 81);
        for pod in ["web-1", "web-2"] {
            tx.set(&pods, pod.to_owned(), "web".to_owned());
        }
    });
    let of = |name: &str| -> Vec<Derivation> {
        let dump = engine.dump(name).expect("a collection");
        engine.derivations(&dump).expect("the engine runs").collect()
    };
    let some = |keys: &[&str]| KeysRead::Some(keys.iter().map(|key| (*key).into()).collect());
    let web = Derivation {
        maker: "web".into(),
        outputs: vec!["web-1".into(), "web-2".into()],
        reads: vec![("mesh".to_owned(), KeysRead::All), ("pods/by-service".to_owned(), some(&["web"]))],
    };
    assert_eq!(of("ready"), [web]);
    let pod = |name: &str| Derivation { maker: name.into(), outputs: vec!["web".into()], reads: Vec::new() };
    assert_eq!(of("pods/by-service"), [pod("web-1"), pod("web-2")]);
    assert_eq!(of("pods"), []);
}
