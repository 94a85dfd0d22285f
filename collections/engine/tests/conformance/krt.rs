//! The operations of krt, Istio's collection library, made with the operations of this engine (see the crate's docs).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluice_engine::{Collection, DataflowBuilder, Engine, EngineOptions, Input, Published};

type Texts<'s> = Collection<'s, String, String>;

/// An engine with inputs `first` and `second` and the collection that `make` derives from them. `make` also gets a
/// counter for runs of its closure.
struct Krt {
    engine: Engine,
    first: Input<String, String>,
    second: Input<String, String>,
    out: Published<String, String>,
    runs: Arc<AtomicUsize>,
}

impl Krt {
    fn start(make: for<'s> fn(&DataflowBuilder<'s>, &Texts<'s>, &Texts<'s>, Arc<AtomicUsize>) -> Texts<'s>) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        let (engine, (first, second, out)) = Engine::start(EngineOptions::default(), move |b| {
            b.dataflow("main", |g| {
                let (first_in, first) = g.input::<String, String>("first");
                let (second_in, second) = g.input::<String, String>("second");
                (first_in, second_in, make(g, &first, &second, counter).publish())
            })
        });
        Self { engine, first, second, out, runs }
    }

    fn set(&self, input: &Input<String, String>, key: &str, value: &str) {
        input.set(key.to_owned(), value.to_owned());
        self.engine.flush();
    }

    fn delete(&self, input: &Input<String, String>, key: &str) {
        input.delete(key.to_owned());
        self.engine.flush();
    }

    #[track_caller]
    fn expect(&self, expected: &[(&str, &str)]) {
        let snapshot = self.engine.snapshot();
        let state: BTreeMap<&str, &str> = snapshot.iter(&self.out).map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(state, expected.iter().copied().collect());
    }

    /// Runs of the closure since the last call.
    fn runs(&self) -> usize {
        self.runs.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn discarded_result_keeps_the_last_one_and_the_first_counts() {
    let krt = Krt::start(|_, first, _, _| {
        first.derive("derived", |_| {
            |cx, _, value: &String| {
                if value == "bad" {
                    cx.discard_result();
                }
                Some(value.clone())
            }
        })
    });
    // There is no last result yet, so this one counts.
    krt.set(&krt.first, "a", "bad");
    krt.expect(&[("a", "bad")]);
    krt.set(&krt.first, "a", "2");
    krt.expect(&[("a", "2")]);
    krt.set(&krt.first, "a", "bad");
    krt.expect(&[("a", "2")]);
    krt.set(&krt.first, "a", "3");
    krt.expect(&[("a", "3")]);
    krt.delete(&krt.first, "a");
    krt.expect(&[]);
}

#[test]
fn recompute_trigger_is_an_input_that_the_closure_looks_up() {
    let krt = Krt::start(|_, first, second, runs| {
        first.derive("derived", |d| {
            let trigger = d.on(second);
            move |cx, _, value: &String| {
                cx.get(&trigger, &"generation".to_owned());
                runs.fetch_add(1, Ordering::Relaxed);
                Some(value.clone())
            }
        })
    });
    krt.set(&krt.first, "a", "1");
    krt.set(&krt.first, "b", "2");
    assert_eq!(krt.runs(), 2);
    let epoch = krt.engine.snapshot().changed_at(&krt.out, &"a".to_owned());
    krt.set(&krt.second, "generation", "1");
    assert_eq!(krt.runs(), 2, "every record that looked up the trigger runs again");
    assert_eq!(krt.engine.snapshot().changed_at(&krt.out, &"a".to_owned()), epoch, "an equal result is no change");
    krt.set(&krt.second, "unrelated", "1");
    assert_eq!(krt.runs(), 0);
}

#[test]
fn partial_fetch_ignores_changes_of_other_parts() {
    let krt = Krt::start(|_, first, second, runs| {
        let initial = second.map("initials", |_, value| value.chars().next());
        first.derive("derived", |d| {
            let initial = d.on(&initial);
            move |cx, key, _: &String| {
                runs.fetch_add(1, Ordering::Relaxed);
                cx.get(&initial, key).map(|initial| format!("{initial:?}"))
            }
        })
    });
    krt.set(&krt.first, "a", "");
    krt.set(&krt.second, "a", "xy");
    assert_eq!(krt.runs(), 2, "a look-up without a result is a dependency too");
    krt.expect(&[("a", "Some('x')")]);
    krt.set(&krt.second, "a", "xz");
    assert_eq!(krt.runs(), 0);
    krt.set(&krt.second, "a", "z");
    assert_eq!(krt.runs(), 1);
    krt.expect(&[("a", "Some('z')")]);
}

#[test]
fn index_lookup_runs_again_for_the_old_and_the_new_index_key() {
    let krt = Krt::start(|_, first, second, runs| {
        let by_value = second.index("by-value", |_, value| [(value.clone(), ())]);
        first.derive("derived", |d| {
            let by_value = d.by(&by_value);
            move |cx, _, value: &String| {
                runs.fetch_add(1, Ordering::Relaxed);
                let keys: Vec<_> = cx.by(&by_value, value).into_iter().map(|(key, _)| key).collect();
                Some(keys.join(","))
            }
        })
    });
    krt.set(&krt.first, "x", "red");
    krt.set(&krt.first, "y", "blue");
    krt.set(&krt.first, "z", "green");
    krt.set(&krt.second, "1", "red");
    krt.set(&krt.second, "2", "red");
    krt.expect(&[("x", "1,2"), ("y", ""), ("z", "")]);
    krt.runs();
    krt.set(&krt.second, "1", "blue");
    krt.expect(&[("x", "2"), ("y", "1"), ("z", "")]);
    assert_eq!(krt.runs(), 2);
}

#[test]
fn status_collection_is_a_derive_and_a_map_of_each_part() {
    let krt = Krt::start(|_, first, _, _| {
        let both = first.derive("both", |_| {
            |_, _, value: &String| Some((format!("length {}", value.len()), (value != "bad").then(|| value.clone())))
        });
        let status = both.flat_map("status", |key, (status, _)| [(format!("status/{key}"), status.clone())]);
        let output = both.filter_map("output", |_, (_, output)| output.clone());
        status.union("status-and-output", &[output])
    });
    krt.set(&krt.first, "a", "good");
    krt.expect(&[("a", "good"), ("status/a", "length 4")]);
    krt.set(&krt.first, "a", "bad");
    krt.expect(&[("status/a", "length 3")]);
    krt.delete(&krt.first, "a");
    krt.expect(&[]);
}

#[test]
fn many_from_nothing_is_a_derive_of_a_fixed_singleton() {
    let krt = Krt::start(|g, first, _, _| {
        g.fixed("singleton", [((), ())]).derive_many("derived", |d| {
            let first = d.on(first);
            move |cx, (), ()| {
                let all = cx.all(&first);
                all.iter().map(|(key, value)| (key.clone(), format!("{value} of {}", all.len()))).collect()
            }
        })
    });
    krt.expect(&[]);
    krt.set(&krt.first, "a", "1");
    krt.set(&krt.first, "b", "2");
    krt.expect(&[("a", "1 of 2"), ("b", "2 of 2")]);
    krt.delete(&krt.first, "a");
    krt.expect(&[("b", "2 of 1")]);
}

#[test]
fn nested_join_merges_members_and_drops_a_removed_member() {
    // `first`: member -> priority; `second`: "member/key" -> value.
    let krt = Krt::start(|_, first, second, _| {
        let by_member = second.index("by-member", |name, value| {
            name.split_once('/').map(|(member, key)| (member.to_owned(), (key.to_owned(), value.clone())))
        });
        let records = first.derive_many("records", |d| {
            let by_member = d.by(&by_member);
            move |cx, member, priority: &String| {
                let rows = cx.by(&by_member, member).into_iter();
                rows.map(|(_, row)| ((priority.clone(), member.clone(), row.0.clone()), row.1.clone())).collect()
            }
        });
        let by_key = records.index("by-key", |(.., key), value| [(key.clone(), value.clone())]);
        by_key
            .group("merged", |_, rows| Some(rows.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join("+")))
    });
    krt.set(&krt.second, "east/a", "1");
    krt.set(&krt.second, "west/a", "2");
    krt.set(&krt.second, "west/b", "3");
    krt.expect(&[]);
    krt.set(&krt.first, "west", "0");
    krt.set(&krt.first, "east", "1");
    krt.expect(&[("a", "2+1"), ("b", "3")]);
    krt.set(&krt.first, "east", "-");
    krt.expect(&[("a", "1+2"), ("b", "3")]);
    krt.delete(&krt.first, "west");
    krt.expect(&[("a", "1")]);
}
