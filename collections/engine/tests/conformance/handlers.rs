//! Handlers over every way to make a collection: initial state, late registration, replacement, synced state,
//! unregistering (K01, K02, K13, K16).

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use sluice_engine::{Event, EventKind, ExistingState, HandlerRegistration};

use crate::fixtures::{self, Change, Fixture};
use crate::{for_all, for_changeable, set};

/// Limit of each wait. A wait that succeeds ends at once.
const LIMIT: Duration = Duration::from_secs(20);

/// Keys of the test in which writers and handlers race.
const KEYS: [&str; 24] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w",
    "x",
];

/// Key, old value, new value.
type Call = (String, Option<String>, Option<String>);

/// A registered handler, and the calls that it received.
struct Handler {
    registration: HandlerRegistration,
    calls: Receiver<Vec<Call>>,
}

fn call(event: &Event<String, String>) -> Call {
    let text = |value: &Option<std::sync::Arc<String>>| value.as_ref().map(|value| (**value).clone());
    ((*event.key).clone(), text(&event.old), text(&event.new))
}

fn one(key: &str, old: Option<&str>, new: Option<&str>) -> Call {
    (key.to_owned(), old.map(str::to_owned), new.map(str::to_owned))
}

fn register(fixture: &Fixture, existing: ExistingState) -> Handler {
    let (sender, calls) = channel();
    let registration = fixture.engine.register_batch(&fixture.out, existing, move |events| {
        // The test may have ended.
        let _ = sender.send(events.iter().map(call).collect());
    });
    Handler { registration, calls }
}

impl Handler {
    #[track_caller]
    fn expect(&self, fixture: &Fixture, expected: &[Call]) {
        match self.calls.recv_timeout(LIMIT) {
            Ok(events) => assert_eq!(events, expected, "{}", fixture.name),
            Err(error) => panic!("{}: no call with {expected:?}: {error}", fixture.name),
        }
    }

    /// Unregisters the handler, and expects that there was no further call.
    #[track_caller]
    fn expect_no_more(self, fixture: &Fixture) {
        self.registration.unregister_and_wait();
        let left: Vec<_> = self.calls.iter().collect();
        assert!(left.is_empty(), "{}: {left:?}", fixture.name);
    }
}

#[test]
fn early_handler_gets_additions_updates_and_removals() {
    for_changeable(|fixture| {
        let handler = register(fixture, ExistingState::Include);
        fixture.apply([set("a", 1), set("d", 2)]);
        handler.expect(fixture, &[one("a", None, Some("1")), one("d", None, Some("2"))]);
        fixture.apply([set("a", 3)]);
        handler.expect(fixture, &[one("a", Some("1"), Some("3"))]);
        fixture.apply([Change::Delete("d")]);
        handler.expect(fixture, &[one("d", Some("2"), None)]);
        handler.expect_no_more(fixture);
    });
}

#[test]
fn late_handler_gets_existing_records_as_additions() {
    for_all(|fixture| {
        fixture.apply([set("a", 1), set("b", 2)]);
        let (sender, calls) = channel();
        let registration = fixture.engine.register(&fixture.out, move |event| {
            let _ = sender.send((event.kind(), (*event.key).clone(), event.latest().map(|value| (**value).clone())));
        });
        let added = |key: &str, value: &str| (EventKind::Added, key.to_owned(), Some(value.to_owned()));
        for expected in [added("a", "1"), added("b", "2")] {
            assert_eq!(calls.recv_timeout(LIMIT), Ok(expected), "{}", fixture.name);
        }
        fixture.apply([set("a", 3), Change::Delete("b")]);
        if !fixture.is_fixed() {
            let update = (EventKind::Updated, "a".to_owned(), Some("3".to_owned()));
            let removal = (EventKind::Removed, "b".to_owned(), Some("2".to_owned()));
            for expected in [update, removal] {
                assert_eq!(calls.recv_timeout(LIMIT), Ok(expected), "{}", fixture.name);
            }
        }
        registration.unregister_and_wait();
        assert!(calls.recv().is_err(), "{}: one more call", fixture.name);
    });
}

#[test]
fn handler_that_skips_existing_records_gets_later_changes_only() {
    for_changeable(|fixture| {
        fixture.apply([set("a", 1), set("b", 2)]);
        let handler = register(fixture, ExistingState::Skip);
        fixture.apply([set("b", 3), set("c", 4)]);
        handler.expect(fixture, &[one("b", Some("2"), Some("3")), one("c", None, Some("4"))]);
        handler.expect_no_more(fixture);
    });
}

#[test]
fn replacement_of_all_records_reaches_handlers_as_differences() {
    for_changeable(|fixture| {
        fixture.apply([set("a", 1), set("b", 2), set("c", 3)]);
        let handler = register(fixture, ExistingState::Skip);
        fixture.apply([Change::ReplaceAll(vec![("b", 2), ("c", 4), ("d", 5)])]);
        let changes = [one("a", Some("1"), None), one("c", Some("3"), Some("4")), one("d", None, Some("5"))];
        handler.expect(fixture, &changes);
        fixture.apply([Change::ReplaceAll(vec![("b", 2), ("c", 4), ("d", 5)])]);
        handler.expect_no_more(fixture);
    });
}

#[test]
fn unregistered_handler_is_not_called_and_its_thread_ends() {
    for_changeable(|fixture| {
        let handler = register(fixture, ExistingState::Include);
        fixture.apply([set("a", 1)]);
        handler.expect(fixture, &[one("a", None, Some("1"))]);
        let Handler { registration, calls } = handler;
        registration.unregister();
        // The thread owns the sending end, so this ends when the thread does.
        assert_eq!(calls.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected), "{}", fixture.name);
        let other = register(fixture, ExistingState::Skip);
        fixture.apply([set("a", 2)]);
        other.expect(fixture, &[one("a", Some("1"), Some("2"))]);
        other.expect_no_more(fixture);
    });
}

#[test]
fn blocked_handler_delays_no_other_and_gets_the_net_change() {
    for_changeable(|fixture| {
        let (entered, has_entered) = channel();
        let (release, is_released) = channel::<()>();
        let (sender, calls) = channel();
        let blocked = fixture.engine.register_batch(&fixture.out, ExistingState::Include, move |events| {
            let _ = entered.send(());
            let _ = is_released.recv();
            let _ = sender.send(events.iter().map(call).collect::<Vec<_>>());
        });
        fixture.apply([set("a", 1)]);
        has_entered.recv_timeout(LIMIT).expect("the handler is called");
        let quick = register(fixture, ExistingState::Skip);
        for round in 2..20 {
            fixture.apply([set("a", round), set("z", round)]);
            let old = |of: u32| (round > of).then(|| (round - 1).to_string());
            let new = round.to_string();
            let (a, z) = (old(1), old(2));
            quick.expect(fixture, &[one("a", a.as_deref(), Some(&new)), one("z", z.as_deref(), Some(&new))]);
        }
        fixture.apply([Change::Delete("z")]);
        drop(release);
        assert_eq!(calls.recv_timeout(LIMIT), Ok(vec![one("a", None, Some("1"))]), "{}", fixture.name);
        assert_eq!(calls.recv_timeout(LIMIT), Ok(vec![one("a", Some("1"), Some("19"))]), "{}", fixture.name);
        blocked.unregister_and_wait();
        assert!(calls.recv().is_err(), "{}: one more call", fixture.name);
    });
}

/// Handlers that are registered while records are added get each record once, as an addition or in the initial state.
#[test]
fn handlers_registered_during_additions_miss_nothing_and_get_nothing_twice() {
    for_changeable(|fixture| {
        let mut handlers = Vec::new();
        for key in KEYS {
            let engine = fixture.engine.clone();
            let registering = std::thread::spawn({
                let of = fixture.out.clone();
                move || {
                    let (sender, calls) = channel();
                    let registration = engine.register_batch(&of, ExistingState::Include, move |events| {
                        let _ = sender.send(events.iter().map(call).collect());
                    });
                    Handler { registration, calls }
                }
            });
            fixture.apply([set(key, 1)]);
            handlers.push(registering.join().expect("registered"));
        }
        fixture.apply([set("y", 1)]);
        let all: BTreeMap<_, _> = KEYS.into_iter().chain(["y"]).map(|key| (key.to_owned(), "1".to_owned())).collect();
        for handler in handlers {
            let mut state = BTreeMap::new();
            while !state.contains_key("y") {
                for (key, old, new) in handler.calls.recv_timeout(LIMIT).expect("a call") {
                    let new = new.expect("nothing is removed");
                    assert_eq!((old, state.insert(key, new)), (None, None), "{}", fixture.name);
                }
            }
            assert_eq!(state, all, "{}", fixture.name);
            handler.expect_no_more(fixture);
        }
    });
}

#[test]
fn handler_is_synced_after_the_call_with_the_initial_records() {
    for_changeable(|fixture| {
        let (entered, has_entered) = channel();
        let (release, is_released) = channel::<()>();
        let registration = fixture.engine.register(&fixture.out, move |_| {
            let _ = entered.send(());
            let _ = is_released.recv();
        });
        assert!(!registration.wait_synced(Duration::ZERO), "{}: its inputs are not synced", fixture.name);
        fixture.apply([set("a", 1), Change::Synced]);
        has_entered.recv_timeout(LIMIT).expect("the handler is called");
        assert!(fixture.engine.wait_synced_of(&fixture.out, Duration::ZERO), "{}", fixture.name);
        assert!(!registration.is_synced(), "{}: its call has not returned", fixture.name);
        drop(release);
        assert!(registration.wait_synced(LIMIT), "{}", fixture.name);
        let late = register(fixture, ExistingState::Skip);
        assert!(late.registration.is_synced(), "{}: it awaits no records", fixture.name);
    });
}

#[test]
fn handler_of_a_synced_collection_is_synced_after_its_first_call() {
    for fixture in fixtures::all() {
        fixture.apply([set("a", 1), Change::Synced]);
        let handler = register(&fixture, ExistingState::Include);
        assert!(handler.registration.wait_synced(LIMIT), "{}", fixture.name);
        let first = handler.calls.try_recv().unwrap_or_else(|_| panic!("{}: synced before its call", fixture.name));
        assert_eq!(first.len(), fixture.state().len(), "{}", fixture.name);
    }
}

#[test]
fn handler_that_panics_is_not_called_again_and_others_are() {
    for_changeable(|fixture| {
        let failing = fixture.engine.register(&fixture.out, |event| panic!("cannot handle {}", event.key));
        let other = register(fixture, ExistingState::Include);
        fixture.apply([set("a", 1)]);
        other.expect(fixture, &[one("a", None, Some("1"))]);
        assert!(!failing.wait_synced(LIMIT), "{}: it has ended", fixture.name);
        assert_eq!(failing.panic().as_deref(), Some("cannot handle a"), "{}", fixture.name);
        fixture.apply([set("b", 1)]);
        other.expect(fixture, &[one("b", None, Some("1"))]);
    });
}

#[test]
fn handlers_end_with_the_engine() {
    for fixture in fixtures::all() {
        let (early, kept) = (register(&fixture, ExistingState::Include), register(&fixture, ExistingState::Skip));
        kept.registration.keep();
        drop(fixture);
        for calls in [early.calls, kept.calls] {
            let mut last = calls.recv_timeout(LIMIT);
            while last.is_ok() {
                last = calls.recv_timeout(LIMIT);
            }
            assert_eq!(last, Err(RecvTimeoutError::Disconnected), "the thread has ended");
        }
    }
}
