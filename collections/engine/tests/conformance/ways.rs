//! Every way of making a collection, behind one face: a map from text to a number as text that can be driven.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sluice_engine::{Collection, DataflowBuilder, Engine, EngineOptions, Index, Input, Origin, Published, Transaction};

/// What the cases do to a collection.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Set(&'static str, u32, &'static str),
    Delete(&'static str),
    ReplaceAll(Vec<(&'static str, u32)>),
    Synced,
}

/// Writes a change to whatever the collection is made of, so that the collection itself makes that change.
type Drive = Box<dyn Fn(&mut Transaction, Change)>;

/// One way of making a collection, running.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) engine: Engine,
    pub(crate) out: Published<String, String>,
    /// What it holds from the start. Only `fixed` holds anything, and only `fixed` cannot be driven.
    pub(crate) initial: BTreeMap<String, String>,
    drive: Drive,
}

type Rows<'s> = Collection<'s, String, String>;
type In = Input<String, String>;

impl Way {
    /// Applies changes in one epoch.
    pub(crate) fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        self.engine.transaction(|tx| changes.into_iter().for_each(|change| (self.drive)(tx, change)));
    }

    pub(crate) fn is_fixed(&self) -> bool {
        !self.initial.is_empty()
    }

    pub(crate) fn state(&self) -> BTreeMap<String, String> {
        self.engine.snapshot().iter(&self.out).map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

fn drive_one(input: &In, tx: &mut Transaction, change: Change) {
    match change {
        Change::Set(key, value, version) => {
            tx.set_from(input, key.to_owned(), value.to_string(), Origin::version(version));
        }
        Change::Delete(key) => tx.delete(input, key.to_owned()),
        Change::ReplaceAll(rows) => tx.replace_all(input, rows.into_iter().map(|(k, v)| (k.to_owned(), v.to_string()))),
        Change::Synced => tx.mark_synced(input),
    }
}

/// A way with a single input behind it.
fn single(name: &'static str, make: for<'s> fn(&DataflowBuilder<'s>, Rows<'s>) -> Rows<'s>) -> Way {
    let (engine, (input, out)) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| {
            let (input, rows) = g.input::<String, String>("source");
            let made = make(g, rows).with_metadata("made-by", name);
            (input, made.publish())
        })
    });
    let drive = Box::new(move |tx: &mut Transaction, change| drive_one(&input, tx, change));
    Way { name, engine, out, initial: BTreeMap::new(), drive }
}

/// A way with a second input that must have the same keys.
fn double(name: &'static str, make: for<'s> fn(Rows<'s>, Rows<'s>) -> Rows<'s>) -> Way {
    let (engine, (left, right, out)) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| {
            let (left_in, left) = g.input::<String, String>("source");
            let (right_in, right) = g.priority_input::<String, String>("right");
            (left_in, right_in, make(left, right).with_metadata("made-by", name).publish())
        })
    });
    let drive = Box::new(move |tx: &mut Transaction, change: Change| {
        drive_one(&left, tx, change.clone());
        let constant = match change {
            Change::Set(key, _, version) => Change::Set(key, 0, version),
            Change::ReplaceAll(rows) => Change::ReplaceAll(rows.into_iter().map(|(key, _)| (key, 0)).collect()),
            other => other,
        };
        drive_one(&right, tx, constant);
    });
    Way { name, engine, out, initial: BTreeMap::new(), drive }
}

/// A way with two inputs, each with some of the keys.
fn split(name: &'static str, make: for<'s> fn(Rows<'s>, Rows<'s>) -> Rows<'s>) -> Way {
    let (engine, (left, right, out)) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| {
            let (left_in, left) = g.input::<String, String>("source");
            let (right_in, right) = g.input::<String, String>("right");
            (left_in, right_in, make(left, right).with_metadata("made-by", name).publish())
        })
    });
    let is_left = |key: &str| key < "c";
    let drive = Box::new(move |tx: &mut Transaction, change| match change {
        Change::Set(key, ..) | Change::Delete(key) => {
            drive_one(if is_left(key) { &left } else { &right }, tx, change);
        }
        Change::ReplaceAll(rows) => {
            let (ours, theirs) = rows.into_iter().partition(|(key, _)| is_left(key));
            drive_one(&left, tx, Change::ReplaceAll(ours));
            drive_one(&right, tx, Change::ReplaceAll(theirs));
        }
        Change::Synced => {
            drive_one(&left, tx, Change::Synced);
            drive_one(&right, tx, Change::Synced);
        }
    });
    Way { name, engine, out, initial: BTreeMap::new(), drive }
}

fn fixed() -> Way {
    let initial: BTreeMap<_, _> = [("a", "1"), ("b", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let rows = initial.clone();
    let (engine, out) = Engine::start(EngineOptions::default(), move |b| {
        b.dataflow("main", |g| g.fixed("source", rows).with_metadata("made-by", "fixed").publish())
    });
    Way { name: "fixed", engine, out, initial, drive: Box::new(|_, _| {}) }
}

/// An import into a later dataflow that has an input of its own.
fn import() -> Way {
    let (engine, (input, other, out)) = Engine::start(EngineOptions::default(), |b| {
        let (input, export) = b.dataflow("early", |g| {
            let (input, rows) = g.input::<String, String>("source");
            (input, rows.map("copy", |_, value| value.clone()).export())
        });
        let (other, out) = b.dataflow("late", |g| {
            let (other, _) = g.input::<String, String>("unrelated");
            (other, g.import(&export).with_metadata("made-by", "import").publish())
        });
        (input, other, out)
    });
    let drive = Box::new(move |tx: &mut Transaction, change| {
        if matches!(change, Change::Synced) {
            drive_one(&other, tx, Change::Synced);
        }
        drive_one(&input, tx, change);
    });
    Way { name: "import", engine, out, initial: BTreeMap::new(), drive }
}

/// A source that reads files: `<directory>/<key>` holds the value. It belongs to whoever does I/O, not to the engine;
/// an input and `replace_all` are all it needs, and reading the directory again is a diff.
struct Directory {
    path: PathBuf,
    // Removed with the last owner.
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

fn file() -> Way {
    let (engine, (input, out)) = Engine::start(EngineOptions::default(), |b| {
        b.dataflow("main", |g| {
            let (input, rows) = g.input::<String, String>("source");
            (input, rows.with_metadata("made-by", "file").publish())
        })
    });
    let directory = Directory::new();
    let drive = Box::new(move |tx: &mut Transaction, change: Change| {
        if matches!(change, Change::Synced) {
            tx.mark_synced(&input);
        }
        directory.write(change);
        tx.replace_all(&input, directory.read());
    });
    Way { name: "file", engine, out, initial: BTreeMap::new(), drive }
}

fn by_key<'s>(rows: &Rows<'s>) -> Index<'s, String, String, String> {
    rows.index("by-key", |key, value| [(key.clone(), value.clone())])
}

/// All of them, freshly started.
pub(crate) fn all() -> Vec<Way> {
    vec![
        single("input", |_, rows| rows),
        fixed(),
        file(),
        single("map", |_, rows| rows.map("map", |_, value| value.clone())),
        single("filter", |_, rows| rows.filter("filter", |_, value| value != "hidden")),
        single("filter_map", |_, rows| rows.filter_map("filter_map", |_, value| Some(value.clone()))),
        single("flat_map", |_, rows| rows.flat_map("flat_map", |key, value| [(key.clone(), value.clone())])),
        double("join", |left, right| left.join("join", &right, |_, value, _| Some(value.clone()))),
        double("left_join", |left, right| {
            left.left_join("left_join", &right, |_, value, found| found.map(|_| value.clone()))
        }),
        single("group", |_, rows| by_key(&rows).group("group", |_, rows| Some(rows[0].1.clone()))),
        single("count", |_, rows| {
            let copies = rows.index("copies", |key, value| {
                (0..value.parse().unwrap_or(0u32)).map(|n| (key.clone(), n)).collect::<Vec<_>>()
            });
            copies.count("count").map("count-text", |_, count| count.to_string())
        }),
        single("distinct", |_, rows| {
            let pairs = rows.index("pairs", |key, value| [((key.clone(), value.clone()), ())]);
            pairs.distinct("distinct").flat_map("split", |(key, value), ()| [(key.clone(), value.clone())])
        }),
        double("index_join", |left, right| {
            by_key(&left).join("index_join", &right, |_, key, value, _| Some((key.clone(), value.clone())))
        }),
        double("join_group", |left, right| {
            let rows = right.index("by-key", |key, value| [(key.clone(), value.clone())]);
            left.join_group("join_group", &rows, |_, value, rows| (!rows.is_empty()).then(|| value.clone()))
        }),
        split("union", |left, right| left.union("union", &[right])),
        split("union_merge", |left, right| {
            left.union_merge("union_merge", &[right], |_, values| Some(values[0].clone()))
        }),
        single("derive", |_, rows| {
            let copy = rows.map("copy", |_, value| value.clone());
            rows.derive("derive", |d| {
                let copy = d.on(&copy);
                move |cx, key, _| cx.get(&copy, key).map(|value| (*value).clone())
            })
        }),
        single("derive_by", |_, rows| {
            let index = by_key(&rows);
            rows.derive("derive_by", |d| {
                let index = d.by(&index);
                move |cx, key, _| cx.by(&index, key).first().map(|(_, value)| (**value).clone())
            })
        }),
        single("derive_all", |g, rows| {
            let one = g.fixed("one", [((), ())]);
            one.derive_many("derive_all", |d| {
                let rows = d.on(&rows);
                move |cx, (), ()| cx.all(&rows).into_iter().map(|(key, value)| (key, (*value).clone())).collect()
            })
        }),
        single("derive_many", |_, rows| {
            rows.derive_many("derive_many", |_| |_, key: &String, value: &String| vec![(key.clone(), value.clone())])
        }),
        import(),
    ]
}
