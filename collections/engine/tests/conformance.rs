//! One suite over every way of making a collection: whatever it is made of, it behaves as a collection does.

#[path = "conformance/ways.rs"]
mod ways;

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluice_engine::{Batch, Event};
use ways::{Change, Way};

type Expected<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

fn set(key: &'static str, value: u32) -> Change {
    Change::Set(key, value, "v1")
}

fn for_all(case: fn(&Way)) {
    for way in ways::all() {
        case(&way);
        assert_eq!(way.engine.panics(), [], "{}", way.name);
    }
}

fn for_changing(case: fn(&Way)) {
    for_all(|_| {});
    for way in ways::all().into_iter().filter(|way| !way.is_fixed()) {
        case(&way);
        assert_eq!(way.engine.panics(), [], "{}", way.name);
    }
}

#[track_caller]
fn expect(way: &Way, batch: Option<Batch>, expected: &[Expected<'_>]) {
    let events: Vec<Event<String, String>> = batch.iter().flat_map(|batch| batch.events(&way.out)).collect();
    let events: Vec<Expected<'_>> = events
        .iter()
        .map(|event| {
            (event.key.as_str(), event.old.as_ref().map(|v| v.as_str()), event.new.as_ref().map(|v| v.as_str()))
        })
        .collect();
    assert_eq!(events, expected, "{}", way.name);
}

#[track_caller]
fn expect_state(way: &Way, expected: &[(&str, &str)]) {
    let expected: BTreeMap<_, _> = expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    assert_eq!(way.state(), expected, "{}", way.name);
}

#[test]
fn it_starts_as_it_is_made() {
    for_all(|way| {
        let batch = way.engine.feed().try_next();
        assert!(batch.as_ref().is_some_and(Batch::is_first), "{}", way.name);
        let initial: Vec<_> = way.initial.iter().map(|(k, v)| (k.as_str(), None, Some(v.as_str()))).collect();
        expect(way, batch, &initial);
        assert_eq!(way.state(), way.initial);
        assert_eq!(way.engine.snapshot().len(&way.out), way.initial.len());
    });
}

#[test]
fn it_adds_updates_and_deletes() {
    for_changing(|way| {
        let mut feed = way.engine.feed().only(&way.out);
        assert!(feed.try_next().is_some_and(|batch| batch.is_empty()));
        way.apply([set("a", 1)]);
        expect(way, feed.try_next(), &[("a", None, Some("1"))]);
        way.apply([set("a", 2), set("d", 3)]);
        expect(way, feed.try_next(), &[("a", Some("1"), Some("2")), ("d", None, Some("3"))]);
        expect_state(way, &[("a", "2"), ("d", "3")]);
        way.apply([Change::Delete("a")]);
        expect(way, feed.try_next(), &[("a", Some("2"), None)]);
        way.apply([Change::Delete("d")]);
        expect(way, feed.try_next(), &[("d", Some("3"), None)]);
        expect_state(way, &[]);
    });
}

#[test]
fn replacing_all_is_a_difference() {
    for_changing(|way| {
        let mut feed = way.engine.feed();
        way.apply([set("a", 1), set("b", 2), set("c", 3)]);
        feed.try_next();
        way.apply([Change::ReplaceAll(vec![("b", 2), ("c", 4), ("d", 5)])]);
        let expected = [("a", Some("1"), None), ("c", Some("3"), Some("4")), ("d", None, Some("5"))];
        expect(way, feed.try_next(), &expected);
        way.apply([Change::ReplaceAll(vec![("b", 2), ("c", 4), ("d", 5)])]);
        assert!(feed.try_next().is_none(), "{}: a relist of the same", way.name);
        way.apply([Change::ReplaceAll(vec![])]);
        expect_state(way, &[]);
    });
}

#[test]
fn what_changes_nothing_is_not_an_event() {
    for_changing(|way| {
        way.apply([set("a", 1), set("b", 2)]);
        let mut feed = way.engine.feed();
        feed.try_next();
        let epoch = way.engine.flush();
        way.apply([set("a", 1)]);
        way.apply([Change::Delete("nobody")]);
        // There and back within one epoch; and gone before it came.
        way.apply([set("a", 2), set("a", 1)]);
        way.apply([set("c", 2), Change::Delete("c")]);
        assert_eq!(way.engine.flush(), epoch, "{}", way.name);
        assert!(feed.try_next().is_none(), "{}", way.name);
        assert_eq!(way.engine.snapshot().changed_at(&way.out, &"a".to_owned()), Some(epoch), "{}", way.name);
    });
}

#[test]
fn late_subscribers_get_the_state_once() {
    for_all(|way| {
        way.apply([set("a", 1), set("b", 2)]);
        let mut late = way.engine.feed();
        expect(way, late.try_next(), &[("a", None, Some("1")), ("b", None, Some("2"))]);
        assert!(late.try_next().is_none());
        if !way.is_fixed() {
            way.apply([set("b", 3)]);
            expect(way, late.try_next(), &[("b", Some("2"), Some("3"))]);
        }
    });
}

#[test]
fn slow_subscribers_get_the_net_change_and_hold_up_nobody() {
    for_changing(|way| {
        way.apply([set("a", 1), set("b", 1)]);
        let (mut slow, mut quick) = (way.engine.feed(), way.engine.feed());
        slow.try_next();
        quick.try_next();
        for round in 2..60 {
            way.apply([set("a", round)]);
            let (old, new) = ((round - 1).to_string(), round.to_string());
            expect(way, quick.try_next(), &[("a", Some(&old), Some(&new))]);
            way.apply([set("c", round)]);
            way.apply([Change::Delete("c")]);
            quick.try_next();
        }
        way.apply([Change::Delete("b")]);
        let batch = slow.try_next();
        assert!(batch.as_ref().is_some_and(|batch| batch.epoch() == way.engine.flush()));
        expect(way, batch, &[("a", Some("1"), Some("59")), ("b", Some("1"), None)]);
        // Net of nothing is nothing.
        way.apply([set("c", 1)]);
        way.apply([Change::Delete("c")]);
        assert!(slow.try_next().is_none(), "{}", way.name);
    });
}

#[test]
fn removed_subscribers_are_gone() {
    for_changing(|way| {
        let mut woken = way.engine.feed();
        woken.try_next();
        let mut removed = way.engine.feed();
        removed.try_next();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(removed.poll_next(&mut cx).is_pending());
        assert!(woken.poll_next(&mut cx).is_pending());
        drop(removed);
        way.apply([set("a", 1)]);
        let Poll::Ready(batch) = woken.poll_next(&mut cx) else { panic!("{}: not woken", way.name) };
        expect(way, batch, &[("a", None, Some("1"))]);
    });
}

#[test]
fn a_waiting_subscriber_wakes() {
    for_changing(|way| {
        let mut feed = way.engine.feed().only(&way.out);
        feed.try_next();
        assert!(feed.next_timeout(Duration::from_millis(1)).is_none());
        let waiter = std::thread::spawn(move || feed.next_timeout(Duration::from_secs(20)));
        way.apply([set("a", 1)]);
        let batch = waiter.join().ok().flatten();
        expect(way, batch, &[("a", None, Some("1"))]);
    });
}

#[test]
fn it_has_a_name_and_metadata() {
    for_all(|way| {
        let info = way.engine.graph().iter().find(|info| info.name == way.out.name());
        let info = info.unwrap_or_else(|| panic!("{} is not listed", way.out.name()));
        assert!(info.published);
        assert_eq!(info.metadata.get("made-by").map(String::as_str), Some(way.name));
        for parent in &info.parents {
            assert!(way.engine.graph().iter().any(|other| other.name == *parent), "{parent}");
        }
        let metrics = way.engine.metrics();
        assert_eq!(metrics.collections.len(), way.engine.graph().len());
    });
}

#[test]
fn it_is_synced_when_all_it_reads_is() {
    for_all(|way| {
        let snapshot = way.engine.snapshot();
        assert_eq!(snapshot.is_synced(&way.out), way.is_fixed(), "{}", way.name);
        let mut feed = way.engine.feed();
        feed.try_next();
        way.apply([set("a", 1), Change::Synced]);
        assert!(way.engine.snapshot().is_synced(&way.out), "{}", way.name);
        assert!(way.engine.wait_synced(Duration::ZERO));
        if !way.is_fixed() {
            let batch = feed.try_next();
            assert!(batch.as_ref().is_some_and(Batch::all_synced));
            // The state written before the mark is there when the mark is seen.
            expect(way, batch, &[("a", None, Some("1"))]);
        }
    });
}

#[test]
fn it_dumps_what_it_holds_the_same_in_every_run() {
    let dumps = |order: &[&'static str]| -> Vec<Vec<String>> {
        let mut dumps = Vec::new();
        for way in ways::all() {
            for key in order {
                way.apply([set(key, 7), set("gone", 1)]);
            }
            way.apply([Change::Delete("gone")]);
            let epochs = |json: serde_json::Value| {
                let mut json = json;
                json["epoch"].take();
                json.to_string()
            };
            let infos = way.engine.graph();
            let names: Vec<_> = infos.iter().map(|info| info.name.clone()).collect();
            let dump = |name: &String| {
                let dump = way.engine.dump(name).unwrap_or_else(|| panic!("{}: no dump of {name}", way.name));
                epochs(serde_json::to_value(&dump).expect("JSON"))
            };
            dumps.push(names.iter().map(dump).collect());
            let records = way.engine.dump(way.out.name()).map(|dump| {
                dump.records().map(|(k, v)| (k.as_str().unwrap().to_owned(), v.as_str().unwrap().to_owned())).collect()
            });
            assert_eq!(records, Some(way.state()), "{}", way.name);
        }
        dumps
    };
    assert_eq!(dumps(&["a", "b", "c", "d"]), dumps(&["d", "b", "a", "c"]));
}

#[test]
fn it_explains_itself_down_to_the_inputs() {
    for_changing(|way| {
        way.apply([set("a", 1), set("z", 9)]);
        way.apply([Change::Set("a", 2, "v2")]);
        let why = way.engine.explain(&way.out, &"a".to_owned()).unwrap_or_else(|| panic!("{}", way.name));
        assert_eq!(why.value, Some(serde_json::json!("2")), "{}", way.name);
        let cause = why.why_now.unwrap_or_else(|| panic!("{}: no cause", way.name));
        assert_eq!(cause.epoch, way.engine.snapshot().epoch());
        let written: Vec<_> = cause.writes.iter().map(|write| (write.collection.as_str(), &write.key)).collect();
        assert!(written.contains(&("source", &serde_json::json!("a"))), "{}: {written:?}", way.name);
        if way.name != "file" {
            // The counted rows themselves are not kept, nor does reading everything name a record.
            let exact = !["count", "distinct", "derive_all"].contains(&way.name);
            let inputs = why.why.inputs();
            let named = |key: &str, version: &str| {
                inputs.iter().any(|reason| {
                    reason.collection == "source"
                        && reason.key == Some(serde_json::json!(key))
                        && reason.origin.as_ref().is_some_and(|origin| &*origin.version == version)
                })
            };
            // A source is its own reason.
            let itself = way.name == "input" && why.why.origin.is_some();
            assert!(named("a", "v2") || itself || !exact, "{}: {:#?}", way.name, why.why);
            assert!(!named("z", "v1"), "{}: {:#?}", way.name, why.why);
        }
        way.apply([Change::Delete("a")]);
        let gone = way.engine.explain(&way.out, &"a".to_owned()).unwrap_or_else(|| panic!("{}", way.name));
        assert_eq!(gone.value, None);
        assert!(gone.why_now.is_some_and(|cause| cause.writes.iter().any(|write| write.deleted)), "{}", way.name);
        let by_name = way.engine.explain_json(way.out.name(), &serde_json::json!("z"));
        assert!(by_name.is_some_and(|why| why.value == Some(serde_json::json!("9"))), "{}", way.name);
    });
}

#[test]
fn a_transaction_is_one_epoch() {
    for_changing(|way| {
        let mut feed = way.engine.feed();
        feed.try_next();
        way.apply([set("a", 1), set("b", 1), set("d", 1)]);
        let batch = feed.try_next();
        assert!(batch.as_ref().is_some_and(|batch| batch.epoch().0 == batch.from().0 + 1));
        expect(way, batch, &[("a", None, Some("1")), ("b", None, Some("1")), ("d", None, Some("1"))]);
    });
}

#[test]
fn its_size_is_counted() {
    for_changing(|way| {
        let size = || {
            let metrics = way.engine.metrics();
            metrics.collections.iter().find(|it| it.name == way.out.name()).map(|it| it.size)
        };
        way.apply([set("a", 1), set("b", 2)]);
        assert_eq!(size(), Some(2), "{}", way.name);
        way.apply([set("a", 2), Change::Delete("b")]);
        assert_eq!(size(), Some(1), "{}", way.name);
    });
}
