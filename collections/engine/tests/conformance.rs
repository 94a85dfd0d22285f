//! One suite over every way to make a collection, with handlers (`conformance/handlers.rs`), and the operations of krt
//! (`conformance/krt.rs`), with filters (`conformance/filters.rs`) and sources (`conformance/sources.rs`).

#[path = "conformance/filters.rs"]
mod filters;
#[path = "conformance/fixtures.rs"]
mod fixtures;
#[path = "conformance/handlers.rs"]
mod handlers;
#[path = "conformance/krt.rs"]
mod krt;
#[path = "conformance/sources.rs"]
mod sources;

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fixtures::{Change, Fixture};
use sluice_engine::{Batch, Event};

type Expected<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

fn set(key: &'static str, value: u32) -> Change {
    Change::Set(key, value, "v1")
}

fn for_all(case: fn(&Fixture)) {
    for fixture in fixtures::all() {
        case(&fixture);
        assert_eq!(fixture.engine.panics(), [], "{}", fixture.name);
    }
}

fn for_changeable(case: fn(&Fixture)) {
    for_all(|_| {});
    for fixture in fixtures::all().into_iter().filter(|fixture| !fixture.is_fixed()) {
        case(&fixture);
        assert_eq!(fixture.engine.panics(), [], "{}", fixture.name);
    }
}

#[track_caller]
fn expect(fixture: &Fixture, batch: Option<Batch>, expected: &[Expected<'_>]) {
    let events: Vec<Event<String, String>> = batch.iter().flat_map(|batch| batch.events(&fixture.out)).collect();
    let events: Vec<Expected<'_>> = events
        .iter()
        .map(|event| {
            (event.key.as_str(), event.old.as_ref().map(|v| v.as_str()), event.new.as_ref().map(|v| v.as_str()))
        })
        .collect();
    assert_eq!(events, expected, "{}", fixture.name);
}

#[track_caller]
fn expect_state(fixture: &Fixture, expected: &[(&str, &str)]) {
    let expected: BTreeMap<_, _> = expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    assert_eq!(fixture.state(), expected, "{}", fixture.name);
}

#[test]
fn first_batch_is_the_initial_state() {
    for_all(|fixture| {
        let batch = fixture.engine.feed().try_next();
        assert!(batch.as_ref().is_some_and(Batch::is_first), "{}", fixture.name);
        let initial: Vec<_> = fixture.initial.iter().map(|(k, v)| (k.as_str(), None, Some(v.as_str()))).collect();
        expect(fixture, batch, &initial);
        assert_eq!(fixture.state(), fixture.initial);
        assert_eq!(fixture.engine.snapshot().len(&fixture.out), fixture.initial.len());
    });
}

#[test]
fn additions_updates_and_deletions_are_events() {
    for_changeable(|fixture| {
        let mut feed = fixture.engine.feed().only(&fixture.out);
        assert!(feed.try_next().is_some_and(|batch| batch.is_empty()));
        fixture.apply([set("a", 1)]);
        expect(fixture, feed.try_next(), &[("a", None, Some("1"))]);
        fixture.apply([set("a", 2), set("d", 3)]);
        expect(fixture, feed.try_next(), &[("a", Some("1"), Some("2")), ("d", None, Some("3"))]);
        expect_state(fixture, &[("a", "2"), ("d", "3")]);
        fixture.apply([Change::Delete("a")]);
        expect(fixture, feed.try_next(), &[("a", Some("2"), None)]);
        fixture.apply([Change::Delete("d")]);
        expect(fixture, feed.try_next(), &[("d", Some("3"), None)]);
        expect_state(fixture, &[]);
    });
}

#[test]
fn replace_all_produces_only_differences() {
    for_changeable(|fixture| {
        let mut feed = fixture.engine.feed();
        fixture.apply([set("a", 1), set("b", 2), set("c", 3)]);
        feed.try_next();
        fixture.apply([Change::ReplaceAll(vec![("b", 2), ("c", 4), ("d", 5)])]);
        let expected = [("a", Some("1"), None), ("c", Some("3"), Some("4")), ("d", None, Some("5"))];
        expect(fixture, feed.try_next(), &expected);
        fixture.apply([Change::ReplaceAll(vec![("b", 2), ("c", 4), ("d", 5)])]);
        assert!(feed.try_next().is_none(), "{}: a relist of the same", fixture.name);
        fixture.apply([Change::ReplaceAll(vec![])]);
        expect_state(fixture, &[]);
    });
}

#[test]
fn writes_without_effect_are_not_events() {
    for_changeable(|fixture| {
        fixture.apply([set("a", 1), set("b", 2)]);
        let mut feed = fixture.engine.feed();
        feed.try_next();
        let epoch = fixture.engine.flush();
        fixture.apply([set("a", 1)]);
        fixture.apply([Change::Delete("absent")]);
        // A change that is reverted, and a key that is added and deleted, within one epoch.
        fixture.apply([set("a", 2), set("a", 1)]);
        fixture.apply([set("c", 2), Change::Delete("c")]);
        assert_eq!(fixture.engine.flush(), epoch, "{}", fixture.name);
        assert!(feed.try_next().is_none(), "{}", fixture.name);
        assert_eq!(
            fixture.engine.snapshot().changed_at(&fixture.out, &"a".to_owned()),
            Some(epoch),
            "{}",
            fixture.name
        );
    });
}

#[test]
fn late_subscribers_get_the_state_once() {
    for_all(|fixture| {
        fixture.apply([set("a", 1), set("b", 2)]);
        let mut late = fixture.engine.feed();
        expect(fixture, late.try_next(), &[("a", None, Some("1")), ("b", None, Some("2"))]);
        assert!(late.try_next().is_none());
        if !fixture.is_fixed() {
            fixture.apply([set("b", 3)]);
            expect(fixture, late.try_next(), &[("b", Some("2"), Some("3"))]);
        }
    });
}

#[test]
fn slow_subscribers_get_the_net_change_and_do_not_block_others() {
    for_changeable(|fixture| {
        fixture.apply([set("a", 1), set("b", 1)]);
        let (mut slow, mut quick) = (fixture.engine.feed(), fixture.engine.feed());
        slow.try_next();
        quick.try_next();
        for round in 2..60 {
            fixture.apply([set("a", round)]);
            let (old, new) = ((round - 1).to_string(), round.to_string());
            expect(fixture, quick.try_next(), &[("a", Some(&old), Some(&new))]);
            fixture.apply([set("c", round)]);
            fixture.apply([Change::Delete("c")]);
            quick.try_next();
        }
        fixture.apply([Change::Delete("b")]);
        let batch = slow.try_next();
        assert!(batch.as_ref().is_some_and(|batch| batch.epoch() == fixture.engine.flush()));
        expect(fixture, batch, &[("a", Some("1"), Some("59")), ("b", Some("1"), None)]);
        // Changes that cancel out are not reported.
        fixture.apply([set("c", 1)]);
        fixture.apply([Change::Delete("c")]);
        assert!(slow.try_next().is_none(), "{}", fixture.name);
    });
}

#[test]
fn dropped_subscribers_are_not_woken() {
    for_changeable(|fixture| {
        let mut woken = fixture.engine.feed();
        woken.try_next();
        let mut removed = fixture.engine.feed();
        removed.try_next();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(removed.poll_next(&mut cx).is_pending());
        assert!(woken.poll_next(&mut cx).is_pending());
        drop(removed);
        fixture.apply([set("a", 1)]);
        let Poll::Ready(batch) = woken.poll_next(&mut cx) else { panic!("{}: not woken", fixture.name) };
        expect(fixture, batch, &[("a", None, Some("1"))]);
    });
}

#[test]
fn waiting_subscriber_is_woken() {
    for_changeable(|fixture| {
        let mut feed = fixture.engine.feed().only(&fixture.out);
        feed.try_next();
        assert!(feed.next_timeout(Duration::from_millis(1)).is_none());
        let waiter = std::thread::spawn(move || feed.next_timeout(Duration::from_secs(20)));
        fixture.apply([set("a", 1)]);
        let batch = waiter.join().ok().flatten();
        expect(fixture, batch, &[("a", None, Some("1"))]);
    });
}

#[test]
fn collection_is_listed_with_name_and_metadata() {
    for_all(|fixture| {
        let info = fixture.engine.graph().iter().find(|info| info.name == fixture.out.name());
        let info = info.unwrap_or_else(|| panic!("{} is not listed", fixture.out.name()));
        assert!(info.published);
        assert_eq!(info.metadata.get("made-by").map(String::as_str), Some(fixture.name));
        for parent in &info.parents {
            assert!(fixture.engine.graph().iter().any(|other| other.name == *parent), "{parent}");
        }
        let metrics = fixture.engine.metrics();
        assert_eq!(metrics.collections.len(), fixture.engine.graph().len());
    });
}

#[test]
fn collection_is_synced_when_all_its_inputs_are() {
    for_all(|fixture| {
        let snapshot = fixture.engine.snapshot();
        assert_eq!(snapshot.is_synced(&fixture.out), fixture.is_fixed(), "{}", fixture.name);
        let mut feed = fixture.engine.feed();
        feed.try_next();
        fixture.apply([set("a", 1), Change::Synced]);
        assert!(fixture.engine.snapshot().is_synced(&fixture.out), "{}", fixture.name);
        assert!(fixture.engine.wait_synced(Duration::ZERO));
        if !fixture.is_fixed() {
            let batch = feed.try_next();
            assert!(batch.as_ref().is_some_and(Batch::all_synced));
            // The batch that reports the synced state includes the records written before it.
            expect(fixture, batch, &[("a", None, Some("1"))]);
        }
    });
}

#[test]
fn dumps_do_not_depend_on_the_order_of_writes() {
    let dumps = |order: &[&'static str]| -> Vec<Vec<String>> {
        let mut dumps = Vec::new();
        for fixture in fixtures::all() {
            for key in order {
                fixture.apply([set(key, 7), set("removed", 1)]);
            }
            fixture.apply([Change::Delete("removed")]);
            let epochs = |json: serde_json::Value| {
                let mut json = json;
                json["epoch"].take();
                json.to_string()
            };
            let infos = fixture.engine.graph();
            let names: Vec<_> = infos.iter().map(|info| info.name.clone()).collect();
            let dump = |name: &String| {
                let dump = fixture.engine.dump(name).unwrap_or_else(|| panic!("{}: no dump of {name}", fixture.name));
                epochs(serde_json::to_value(&dump).expect("JSON"))
            };
            dumps.push(names.iter().map(dump).collect());
            let records = fixture.engine.dump(fixture.out.name()).map(|dump| {
                dump.records().map(|(k, v)| (k.as_str().unwrap().to_owned(), v.as_str().unwrap().to_owned())).collect()
            });
            assert_eq!(records, Some(fixture.state()), "{}", fixture.name);
        }
        dumps
    };
    assert_eq!(dumps(&["a", "b", "c", "d"]), dumps(&["d", "b", "a", "c"]));
}

#[test]
fn explanations_reach_the_inputs() {
    for_changeable(|fixture| {
        fixture.apply([set("a", 1), set("z", 9)]);
        fixture.apply([Change::Set("a", 2, "v2")]);
        let why = fixture.engine.explain(&fixture.out, &"a".to_owned()).unwrap_or_else(|| panic!("{}", fixture.name));
        assert_eq!(why.value, Some(serde_json::json!("2")), "{}", fixture.name);
        let cause = why.why_now.unwrap_or_else(|| panic!("{}: no cause", fixture.name));
        assert_eq!(cause.epoch, fixture.engine.snapshot().epoch());
        let written: Vec<_> = cause.writes.iter().map(|write| (write.collection.as_str(), &write.key)).collect();
        assert!(written.contains(&("source", &serde_json::json!("a"))), "{}: {written:?}", fixture.name);
        if fixture.name != "file" {
            // `distinct` keeps no rows, and a look-up of all records names none of them.
            let exact = !["distinct", "derive_all", "singleton", "with_prefix"].contains(&fixture.name);
            let inputs = why.why.inputs();
            let named = |key: &str, version: &str| {
                inputs.iter().any(|reason| {
                    reason.collection == "source"
                        && reason.key == Some(serde_json::json!(key))
                        && reason.origin.as_ref().is_some_and(|origin| &*origin.version == version)
                })
            };
            // An input record is its own reason.
            let itself = fixture.name == "input" && why.why.origin.is_some();
            assert!(named("a", "v2") || itself || !exact, "{}: {:#?}", fixture.name, why.why);
            assert!(!named("z", "v1"), "{}: {:#?}", fixture.name, why.why);
        }
        fixture.apply([Change::Delete("a")]);
        let removed =
            fixture.engine.explain(&fixture.out, &"a".to_owned()).unwrap_or_else(|| panic!("{}", fixture.name));
        assert_eq!(removed.value, None);
        assert!(
            removed.why_now.is_some_and(|cause| cause.writes.iter().any(|write| write.deleted)),
            "{}",
            fixture.name
        );
        let by_name = fixture.engine.explain_json(fixture.out.name(), &serde_json::json!("z"));
        assert!(by_name.is_some_and(|why| why.value == Some(serde_json::json!("9"))), "{}", fixture.name);
    });
}

#[test]
fn derivations_name_the_records_that_made_each_record() {
    for_changeable(|fixture| {
        fixture.apply([set("a", 1), set("z", 9)]);
        let dump = fixture.engine.dump(fixture.out.name()).unwrap_or_else(|| panic!("{}", fixture.name));
        let derivations: Vec<_> = fixture.engine.derivations(&dump).expect("the engine runs").collect();
        let is_input = dump.info().parents.is_empty();
        let mut outputs: Vec<_> = derivations.iter().flat_map(|it| it.outputs.clone()).collect();
        outputs.sort_by_key(ToString::to_string);
        outputs.dedup();
        let keys: Vec<_> = dump.records().map(|(key, _)| key).collect();
        assert_eq!(outputs, if is_input { Vec::new() } else { keys }, "{}: {derivations:?}", fixture.name);
        for (name, _) in derivations.iter().flat_map(|it| &it.reads) {
            assert!(fixture.engine.graph().iter().any(|info| info.name == *name), "{}: {name}", fixture.name);
        }
    });
}

#[test]
fn transaction_is_one_epoch() {
    for_changeable(|fixture| {
        let mut feed = fixture.engine.feed();
        feed.try_next();
        fixture.apply([set("a", 1), set("b", 1), set("d", 1)]);
        let batch = feed.try_next();
        assert!(batch.as_ref().is_some_and(|batch| batch.epoch().0 == batch.from().0 + 1));
        expect(fixture, batch, &[("a", None, Some("1")), ("b", None, Some("1")), ("d", None, Some("1"))]);
    });
}

#[test]
fn metrics_report_the_size() {
    for_changeable(|fixture| {
        let size = || {
            let metrics = fixture.engine.metrics();
            metrics.collections.iter().find(|it| it.name == fixture.out.name()).map(|it| it.size)
        };
        fixture.apply([set("a", 1), set("b", 2)]);
        assert_eq!(size(), Some(2), "{}", fixture.name);
        fixture.apply([set("a", 2), Change::Delete("b")]);
        assert_eq!(size(), Some(1), "{}", fixture.name);
    });
}
