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
fn status_collection_has_the_objects_with_their_statuses() {
    let krt = Krt::start(|_, first, _, _| {
        let (statuses, outputs) = first.derive_with_status("output", |_| {
            |cx, _, value: &String| {
                if value == "unclear" {
                    cx.discard_result();
                }
                let status = (value != "ignored").then(|| format!("length {}", value.len()));
                (status, (value != "bad").then(|| value.clone()))
            }
        });
        let statuses = statuses
            .flat_map("statuses", |key, it| [(format!("status/{key}"), format!("{} of {}", it.status, it.object))]);
        statuses.union_disjoint("status-and-output", &[outputs])
    });
    krt.set(&krt.first, "a", "good");
    krt.expect(&[("a", "good"), ("status/a", "length 4 of good")]);
    krt.set(&krt.first, "a", "bad");
    krt.expect(&[("status/a", "length 3 of bad")]);
    krt.set(&krt.first, "a", "unclear");
    krt.expect(&[("status/a", "length 3 of bad")]);
    krt.set(&krt.first, "a", "wide");
    krt.expect(&[("a", "wide"), ("status/a", "length 4 of wide")]);
    krt.set(&krt.first, "a", "ignored");
    krt.expect(&[("a", "ignored")]);
    krt.delete(&krt.first, "a");
    krt.expect(&[]);
}

#[test]
fn status_changes_are_the_statuses_that_differ() {
    let krt = Krt::start(|_, first, second, _| {
        // The objects are what is and what is wanted, as `is/wanted`. The second collection has limits of what is wanted.
        let (statuses, _) = first.derive_with_status("output", |d| {
            let limit = d.on(second);
            move |cx, key: &String, value: &String| {
                let wanted = value.split_once('/').map(|(_, wanted)| wanted).filter(|wanted| !wanted.is_empty());
                let limit = cx.get(&limit, key).map_or(usize::MAX, |limit| limit.len());
                (wanted.map(|wanted| wanted.chars().take(limit).collect::<String>()), None::<()>)
            }
        });
        let changes = first.status_changes("changes", &statuses, |_, value| {
            value.split_once('/').map(|(is, _)| is.to_owned()).filter(|is| !is.is_empty())
        });
        changes.map("text", |_, change| {
            format!("{} > {}", change.is.as_deref().unwrap_or("-"), change.wanted.as_deref().unwrap_or("-"))
        })
    });
    krt.set(&krt.first, "new", "/a");
    krt.set(&krt.first, "same", "abc/abc");
    krt.set(&krt.first, "other", "a/b");
    krt.set(&krt.first, "none", "a/");
    krt.set(&krt.first, "without", "/");
    krt.expect(&[("new", "- > a"), ("other", "a > b"), ("none", "a > -")]);
    // The write is observed.
    krt.set(&krt.first, "new", "a/a");
    krt.set(&krt.first, "none", "/");
    krt.expect(&[("other", "a > b")]);
    krt.set(&krt.second, "same", "xx");
    krt.expect(&[("other", "a > b"), ("same", "abc > ab")]);
    krt.delete(&krt.first, "other");
    krt.delete(&krt.second, "same");
    krt.expect(&[]);
}

#[test]
fn many_outputs_have_one_status() {
    let krt = Krt::start(|_, first, second, _| {
        let (statuses, outputs) = first.derive_many_with_status("output", |d| {
            let limit = d.on(second);
            move |cx, key: &String, value: &String| {
                let limit = cx.get(&limit, key).map_or(usize::MAX, |limit| limit.len());
                let letters: Vec<char> = value.chars().take(limit).collect();
                let outputs = letters.iter().map(|letter| (format!("{key}/{letter}"), String::new()));
                (Some(format!("{} of {}", letters.len(), value.len())), outputs.collect())
            }
        });
        outputs.union_disjoint("status-and-output", &[statuses.map("statuses", |_, it| it.status.clone())])
    });
    krt.set(&krt.first, "a", "xy");
    krt.expect(&[("a", "2 of 2"), ("a/x", ""), ("a/y", "")]);
    krt.set(&krt.second, "a", "1");
    krt.expect(&[("a", "1 of 2"), ("a/x", "")]);
    krt.delete(&krt.second, "a");
    krt.delete(&krt.first, "a");
    krt.expect(&[]);
}

#[test]
fn many_from_nothing_reads_what_it_looks_up() {
    let krt = Krt::start(|g, first, _, _| {
        g.derive_all("derived", |d| {
            let first = d.on(first);
            move |cx| {
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
fn singleton_appears_changes_and_disappears() {
    let krt = Krt::start(|g, first, second, runs| {
        let settings = g.singleton("settings", |d| {
            let second = d.on(second);
            move |cx| cx.get(&second, &"settings".to_owned()).map(|settings| (*settings).clone())
        });
        first.derive("derived", |d| {
            let settings = d.on(&settings);
            move |cx, _, value: &String| {
                runs.fetch_add(1, Ordering::Relaxed);
                Some(format!("{value} with {:?}", cx.get(&settings, &())))
            }
        })
    });
    krt.set(&krt.first, "a", "1");
    krt.expect(&[("a", "1 with None")]);
    krt.set(&krt.second, "settings", "x");
    krt.expect(&[("a", r#"1 with Some("x")"#)]);
    assert_eq!(krt.runs(), 2);
    krt.set(&krt.second, "other", "x");
    assert_eq!(krt.runs(), 0);
    krt.delete(&krt.second, "settings");
    krt.expect(&[("a", "1 with None")]);
}

/// A collection, one derived from it, and one that reads both: no run sees them at two times.
#[test]
fn diamond_runs_once_for_each_change_and_sees_one_epoch() {
    let krt = Krt::start(|_, first, second, runs| {
        let copy = first.map("copy", |_, value| value.clone());
        let doubled = copy.derive("doubled", |d| {
            let second = d.on(second);
            move |cx, key, value: &String| {
                cx.get(&second, key);
                Some(format!("{value}{value}"))
            }
        });
        first.derive("both", |d| {
            let (copy, doubled) = (d.on(&copy), d.on(&doubled));
            move |cx, key, value: &String| {
                runs.fetch_add(1, Ordering::Relaxed);
                let (copy, doubled) = (cx.get(&copy, key)?, cx.get(&doubled, key)?);
                Some(format!("{value} {copy} {doubled}"))
            }
        })
    });
    krt.set(&krt.first, "a", "1");
    krt.expect(&[("a", "1 1 11")]);
    krt.set(&krt.first, "a", "2");
    krt.expect(&[("a", "2 2 22")]);
    assert_eq!(krt.runs(), 2);
    krt.set(&krt.second, "a", "x");
    assert_eq!(krt.runs(), 0, "its result was the same");
}

#[test]
fn disjoint_union_follows_a_key_from_one_collection_to_another() {
    let krt = Krt::start(|_, first, second, _| first.union_disjoint("union", &[second]));
    krt.set(&krt.first, "a", "1");
    krt.set(&krt.second, "b", "2");
    krt.expect(&[("a", "1"), ("b", "2")]);
    let mut feed = krt.engine.feed();
    feed.try_next();
    let mut replace = |from: &Input<String, String>, to: &Input<String, String>, value: &str| {
        krt.engine.transaction(|tx| {
            tx.delete(from, "a".to_owned());
            tx.set(to, "a".to_owned(), value.to_owned());
        });
        feed.try_next().map(|batch| batch.len())
    };
    assert_eq!(replace(&krt.first, &krt.second, "1"), None, "the record is the same");
    assert_eq!(replace(&krt.second, &krt.first, "3"), Some(1));
    krt.expect(&[("a", "3"), ("b", "2")]);
    // Against the rule, both have the key: the smallest value wins, in any order.
    krt.set(&krt.second, "a", "4");
    krt.set(&krt.first, "b", "5");
    krt.expect(&[("a", "3"), ("b", "2")]);
    let conflicts = || krt.engine.metrics().collections.iter().map(|it| it.conflicts).max();
    assert_eq!(conflicts(), Some(2));
    krt.delete(&krt.first, "a");
    krt.delete(&krt.second, "b");
    krt.expect(&[("a", "4"), ("b", "5")]);
    assert_eq!(conflicts(), Some(0));
}

#[test]
fn names_inside_a_prefix_begin_with_it() {
    let krt = Krt::start(|g, first, _, _| {
        g.with_prefix("east", |g| {
            g.with_prefix("zone", |g| {
                g.derive_all("copied", |d| {
                    let first = d.on(first);
                    move |cx| cx.all(&first).into_iter().map(|(key, value)| (key, (*value).clone())).collect()
                })
            })
            .map("mapped", |_, value| value.clone())
        })
    });
    assert_eq!(krt.out.name(), "east/zone/mapped");
    let names: Vec<_> = krt.engine.graph().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["first", "second", "east/zone/copied/start", "east/zone/copied", "east/zone/mapped"]);
    krt.set(&krt.first, "a", "1");
    krt.expect(&[("a", "1")]);
}
