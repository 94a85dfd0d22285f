//! A fixture for every way to make a collection. Each collection maps text to a number as text, and tests can change
//! it.

#![expect(clippy::disallowed_methods, reason = "one way reads a directory")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use sluice_engine::{
    Collection, Context, DataflowBuilder, Engine, EngineOptions, Index, Input, Origin, Published, RecordFilter,
    Transaction,
};

/// A change that a test makes to a collection.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Set(&'static str, u32, &'static str),
    Delete(&'static str),
    ReplaceAll(Vec<(&'static str, u32)>),
    Synced,
}

/// Writes to the inputs of the collection so that the collection itself makes the given change.
type ChangeWriter = Box<dyn Fn(&mut Transaction, Change)>;

/// A running engine with a collection made in one way.
pub(crate) struct Fixture {
    pub(crate) name: &'static str,
    pub(crate) engine: Engine,
    pub(crate) out: Published<String, String>,
    /// Content at the start. Only `fixed` has any, and only `fixed` cannot be changed.
    pub(crate) initial: BTreeMap<String, String>,
    write_change: ChangeWriter,
}

type Rows<'s> = Collection<'s, String, String>;
type In = Input<String, String>;

impl Fixture {
    /// Applies changes in one epoch.
    pub(crate) fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        self.engine.transaction(|tx| changes.into_iter().for_each(|change| (self.write_change)(tx, change)));
    }

    pub(crate) fn is_fixed(&self) -> bool {
        !self.initial.is_empty()
    }

    pub(crate) fn state(&self) -> BTreeMap<String, String> {
        self.engine.snapshot().iter(&self.out).map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

fn write_one(input: &In, tx: &mut Transaction, change: Change) {
    match change {
        Change::Set(key, value, version) => {
            tx.set_from(input, key.to_owned(), value.to_string(), Origin::version(version));
        }
        Change::Delete(key) => tx.delete(input, key.to_owned()),
        Change::ReplaceAll(rows) => tx.replace_all(input, rows.into_iter().map(|(k, v)| (k.to_owned(), v.to_string()))),
        Change::Synced => tx.mark_synced(input),
    }
}

/// A collection made from one input.
fn one_input(name: &'static str, make: for<'s> fn(&DataflowBuilder<'s>, Rows<'s>) -> Rows<'s>) -> Fixture {
    let (engine, (input, out)) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| {
            let (input, rows) = g.input::<String, String>("source");
            let made = make(g, rows).with_metadata("made-by", name);
            (input, made.publish())
        })
    });
    let write_change = Box::new(move |tx: &mut Transaction, change| write_one(&input, tx, change));
    Fixture { name, engine, out, initial: BTreeMap::new(), write_change }
}

/// A collection made from two inputs that must have the same keys.
fn two_inputs_with_same_keys(name: &'static str, make: for<'s> fn(Rows<'s>, Rows<'s>) -> Rows<'s>) -> Fixture {
    let (engine, (left, right, out)) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| {
            let (left_in, left) = g.input::<String, String>("source");
            let (right_in, right) = g.priority_input::<String, String>("right");
            (left_in, right_in, make(left, right).with_metadata("made-by", name).publish())
        })
    });
    let write_change = Box::new(move |tx: &mut Transaction, change: Change| {
        write_one(&left, tx, change.clone());
        let constant = match change {
            Change::Set(key, _, version) => Change::Set(key, 0, version),
            Change::ReplaceAll(rows) => Change::ReplaceAll(rows.into_iter().map(|(key, _)| (key, 0)).collect()),
            other => other,
        };
        write_one(&right, tx, constant);
    });
    Fixture { name, engine, out, initial: BTreeMap::new(), write_change }
}

/// A collection made from two inputs, each with some of the keys.
fn two_inputs_with_own_keys(
    name: &'static str,
    make: for<'s> fn(&DataflowBuilder<'s>, Rows<'s>, Rows<'s>) -> Rows<'s>,
) -> Fixture {
    let (engine, (left, right, out)) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| {
            let (left_in, left) = g.input::<String, String>("source");
            let (right_in, right) = g.input::<String, String>("right");
            (left_in, right_in, make(g, left, right).with_metadata("made-by", name).publish())
        })
    });
    let is_left = |key: &str| key < "c";
    let write_change = Box::new(move |tx: &mut Transaction, change| match change {
        Change::Set(key, ..) | Change::Delete(key) => {
            write_one(if is_left(key) { &left } else { &right }, tx, change);
        }
        Change::ReplaceAll(rows) => {
            let (first, second) = rows.into_iter().partition(|(key, _)| is_left(key));
            write_one(&left, tx, Change::ReplaceAll(first));
            write_one(&right, tx, Change::ReplaceAll(second));
        }
        Change::Synced => {
            write_one(&left, tx, Change::Synced);
            write_one(&right, tx, Change::Synced);
        }
    });
    Fixture { name, engine, out, initial: BTreeMap::new(), write_change }
}

fn fixed() -> Fixture {
    let initial: BTreeMap<_, _> = [("a", "1"), ("b", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let rows = initial.clone();
    let (engine, out) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| g.fixed("source", rows).with_metadata("made-by", "fixed").publish())
    });
    Fixture { name: "fixed", engine, out, initial, write_change: Box::new(|_, _| {}) }
}

/// A source that reads files: `<directory>/<key>` has the value. The engine does no I/O, so a source is code outside it
/// that writes an input; with `replace_all`, reading the directory again is a diff.
struct Directory {
    path: PathBuf,
    // Removes the directory when it is dropped.
    _temporary: tempfile::TempDir,
}

impl Directory {
    fn new() -> Self {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        Self { path: temporary.path().to_owned(), _temporary: temporary }
    }

    fn write(&self, change: Change) {
        match change {
            Change::Set(key, value, _) => std::fs::write(self.path.join(key), value.to_string()).expect("write"),
            Change::Delete(key) => drop(std::fs::remove_file(self.path.join(key))),
            Change::ReplaceAll(rows) => {
                self.read().keys().for_each(|key| std::fs::remove_file(self.path.join(key)).expect("remove"));
                rows.into_iter().for_each(|(key, value)| self.write(Change::Set(key, value, "")));
            }
            Change::Synced => {}
        }
    }

    fn read(&self) -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(&self.path).expect("list the directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
        paths.map(|path| (name(&path), std::fs::read_to_string(path).expect("read"))).collect()
    }
}

fn file() -> Fixture {
    let (engine, (input, out)) = Engine::start(EngineOptions::default(), |b| {
        b.dataflow("main", |g| {
            let (input, rows) = g.input::<String, String>("source");
            (input, rows.with_metadata("made-by", "file").publish())
        })
    });
    let directory = Directory::new();
    let write_change = Box::new(move |tx: &mut Transaction, change: Change| {
        if matches!(change, Change::Synced) {
            tx.mark_synced(&input);
        }
        directory.write(change);
        tx.replace_all(&input, directory.read());
    });
    Fixture { name: "file", engine, out, initial: BTreeMap::new(), write_change }
}

fn by_key<'s>(rows: &Rows<'s>) -> Index<'s, String, String, String> {
    rows.index("by-key", |key, value| [(key.clone(), value.clone())])
}

/// All fixtures, freshly started.
pub(crate) fn all() -> Vec<Fixture> {
    vec![
        one_input("input", |_, rows| rows),
        fixed(),
        file(),
        one_input("map", |_, rows| rows.map("map", |_, value| value.clone())),
        one_input("filter", |_, rows| rows.filter("filter", |_, value| value != "hidden")),
        one_input("filter_map", |_, rows| rows.filter_map("filter_map", |_, value| Some(value.clone()))),
        one_input("flat_map", |_, rows| rows.flat_map("flat_map", |key, value| [(key.clone(), value.clone())])),
        two_inputs_with_same_keys("join", |left, right| left.join("join", &right, |_, value, _| Some(value.clone()))),
        one_input("group", |_, rows| by_key(&rows).group("group", |_, rows| Some(rows[0].1.clone()))),
        one_input("distinct", |_, rows| {
            let pairs = rows.index("pairs", |key, value| [((key.clone(), value.clone()), ())]);
            pairs.distinct("distinct").flat_map("split", |(key, value), ()| [(key.clone(), value.clone())])
        }),
        two_inputs_with_same_keys("index_join", |left, right| {
            by_key(&left).join("index_join", &right, |_, key, value, _| Some((key.clone(), value.clone())))
        }),
        two_inputs_with_own_keys("union", |_, left, right| left.union("union", &[right])),
        two_inputs_with_own_keys("union_disjoint", |_, left, right| left.union_disjoint("union_disjoint", &[right])),
        two_inputs_with_own_keys("union_merge", |_, left, right| {
            left.union_merge("union_merge", &[right], |_, values| Some(values[0].clone()))
        }),
        two_inputs_with_own_keys("merge_members", |g, left, right| {
            let members = g.fixed("members", [(0u8, ()), (1, ())]);
            let left = left.flat_map("left/member", |key, value| [((0u8, key.clone()), value.clone())]);
            let right = right.flat_map("right/member", |key, value| [((1u8, key.clone()), value.clone())]);
            let records = left.union_disjoint("records", &[right]);
            records.merge_members("merge_members", &members, |_, values| Some(values[0].1.clone()))
        }),
        one_input("derive", |_, rows| {
            let copy = rows.map("copy", |_, value| value.clone());
            rows.derive("derive", |d| {
                let copy = d.on(&copy);
                move |cx, key, _| cx.get(&copy, key).map(|value| (*value).clone())
            })
        }),
        one_input("derive_by", |_, rows| {
            let index = by_key(&rows);
            rows.derive("derive_by", |d| {
                let index = d.by(&index);
                move |cx, key, _| cx.by(&index, key).first().map(|(_, value)| (**value).clone())
            })
        }),
        one_input("derive_all", |g, rows| {
            g.derive_all("derive_all", |d| {
                let rows = d.on(&rows);
                move |cx| cx.all(&rows).into_iter().map(|(key, value)| (key, (*value).clone())).collect()
            })
        }),
        one_input("singleton", |g, rows| {
            let all = g.singleton("all", |d| {
                let rows = d.on(&rows);
                move |cx| {
                    Some(cx.all(&rows).into_iter().map(|(key, value)| (key, (*value).clone())).collect::<Vec<_>>())
                }
            });
            all.flat_map("singleton", |(), rows| rows.clone())
        }),
        one_input("with_prefix", |g, rows| {
            g.with_prefix("part", |g| {
                let one = g.fixed("one", [((), ())]);
                one.derive_many("with_prefix", |d| {
                    let rows = d.on(&rows);
                    move |cx, (), ()| cx.all(&rows).into_iter().map(|(key, value)| (key, (*value).clone())).collect()
                })
            })
        }),
        one_input("fetch", |_, rows| {
            let copy = rows.map("copy", |_, value| value.clone());
            rows.derive("fetch", |d| {
                let copy = d.on(&copy);
                move |cx, key, _| {
                    let same = RecordFilter::key(key.clone()).matching(|_, value| value != "hidden");
                    cx.fetch_one(&copy, &same).map(|(_, value)| (*value).clone())
                }
            })
        }),
        one_input("fetch_matching", |_, rows| {
            rows.derive("fetch_matching", |d| {
                let all = d.on(&rows);
                move |cx, key: &String, _| {
                    let wanted = key.clone();
                    let same = RecordFilter::all().matching(move |other: &String, _| *other == wanted);
                    cx.fetch(&all, &same).first().map(|(_, value)| (**value).clone())
                }
            })
        }),
        one_input("fetch_part", |_, rows| {
            rows.derive("fetch_part", |d| {
                let all = d.on(&rows);
                move |cx, key, _| {
                    let parts = cx.fetch_part(&all, &RecordFilter::key(key.clone()), |value: &String| value.clone());
                    cx.exists(&all, key).then(|| parts[0].1.clone())
                }
            })
        }),
        one_input("fetch_by", |_, rows| {
            let index = by_key(&rows);
            rows.derive("fetch_by", |d| {
                let index = d.by(&index);
                move |cx, key, _| {
                    let rows = cx.fetch_by(&index, key, &RecordFilter::all().matching(|_, value| value != "hidden"));
                    let parts = cx.fetch_part_by(&index, key, &RecordFilter::all(), |value: &String| value.clone());
                    rows.first().filter(|(_, value)| parts[0].1 == **value).map(|(_, value)| (**value).clone())
                }
            })
        }),
        one_input("index_as_collection", |_, rows| {
            by_key(&rows).collect("rows").filter_map("index_as_collection", |_, rows| Some(rows.first()?.1.clone()))
        }),
        one_input("derive_with_status", |_, rows| {
            rows.derive_with_status("derive_with_status", |_| |_, _, value: &String| (Some(0u8), Some(value.clone()))).1
        }),
        one_input("status", |_, rows| {
            let (statuses, _) = rows
                .derive_with_status("with", |_| |_, _, value: &String| (Some(format!("seen {value}")), None::<String>));
            statuses.map("status", |_, it| it.status.trim_start_matches("seen ").to_owned())
        }),
        one_input("derive_many_with_status", |_, rows| {
            let make = |_: &Context, key: &String, value: &String| (None::<u8>, vec![(key.clone(), value.clone())]);
            rows.derive_many_with_status("derive_many_with_status", |_| make).1
        }),
        one_input("derive_many", |_, rows| {
            rows.derive_many("derive_many", |_| |_, key: &String, value: &String| vec![(key.clone(), value.clone())])
        }),
    ]
}
