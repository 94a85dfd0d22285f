//! The file source on a directory that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_model::{Kind, MultiClusterApi, Text};
use sluice_sources::files::FileSource;
use sluice_sources::{Change, Cluster, Reporter, Sink};
use sluice_watch::{FollowGuard, SETTLE_TIME};

/// Records the objects that a source commits.
#[derive(Default)]
struct Recorder(Mutex<Record>);

#[derive(Clone, Debug, Default)]
struct Record {
    objects: BTreeMap<String, String>,
    commits: Vec<Vec<String>>,
    synced: bool,
}

impl Recorder {
    fn read(&self) -> Record {
        self.0.lock().expect("no test panics with the lock").clone()
    }

    fn names(&self) -> Vec<String> {
        self.read().objects.into_keys().collect()
    }

    fn until(&self, what: &str, is_met: impl Fn(&Record) -> bool) -> Record {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let record = self.read();
            if is_met(&record) {
                return record;
            }
            assert!(Instant::now() < deadline, "{what}: {record:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn until_names(&self, names: &[&str]) -> Record {
        self.until(&format!("{names:?}"), |record| record.objects.keys().map(String::as_str).eq(names.iter().copied()))
    }
}

impl Sink for Recorder {
    fn commit(&self, changes: Vec<Change>) {
        let mut record = self.0.lock().expect("no test panics with the lock");
        let mut commit = Vec::new();
        for change in changes {
            let name = change.key.name.to_string();
            if change.object.is_some() {
                commit.push(format!("+{name}"));
                record.objects.insert(name, change.origin.place.to_string());
            } else {
                commit.push(format!("-{name}"));
                record.objects.remove(&name);
            }
        }
        record.commits.push(commit);
    }

    fn synced(&self, _: &Text, kinds: &[Kind]) {
        assert!(kinds.contains(&Kind::Service));
        self.0.lock().expect("no test panics with the lock").synced = true;
    }
}

struct WatchedDirectory {
    root: PathBuf,
    sink: Arc<Recorder>,
    reporter: Reporter,
    _guard: FollowGuard,
    _directory: tempfile::TempDir,
}

/// A directory with files, which a source follows.
fn watch(prepare: impl FnOnce(&Path)) -> WatchedDirectory {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().to_owned();
    prepare(&root);
    let reporter = Reporter::default();
    let cluster = Cluster {
        id: "c".into(),
        domain: "cluster.local".into(),
        is_remote: false,
        reads_remote_gateways: false,
        ignored: BTreeSet::new(),
        revision: "".into(),
        multi_cluster_api: MultiClusterApi::default(),
    };
    let mut source = FileSource::open(cluster, &root, reporter.clone()).expect("opened");
    let sink = Arc::new(Recorder::default());
    source.load(&*sink, false).expect("loaded");
    assert!(sink.read().synced);
    let guard = source.follow(sink.clone()).expect("followed");
    WatchedDirectory { root, sink, reporter, _guard: guard, _directory: directory }
}

impl WatchedDirectory {
    fn write(&self, name: &str, text: &str) {
        write(&self.root, name, text);
    }

    fn problem(&self) -> Option<(usize, String)> {
        self.reporter.problems().into_values().next().map(|problem| (problem.line, problem.reason.to_string()))
    }
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, text).expect("written");
}

fn services(names: &[&str]) -> String {
    let one = |name: &&str| {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]}}\n")
    };
    names.iter().map(one).collect::<Vec<_>>().join("---\n")
}

#[test]
fn files_in_nested_directories_are_read_and_followed() {
    let watched = watch(|root| {
        write(root, "a.yaml", &services(&["a"]));
        write(root, "deep/er/b.yml", &services(&["b"]));
        write(root, "c.json", r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c"}}"#);
        write(root, "notes.txt", &services(&["no"]));
        write(root, ".hidden.yaml", &services(&["no"]));
        write(root, ".git/x.yaml", &services(&["no"]));
    });
    watched.sink.until_names(&["a", "b", "c"]);
    watched.write("new/below/d.yaml", &services(&["d"]));
    watched.sink.until_names(&["a", "b", "c", "d"]);
    fs::remove_file(watched.root.join("a.yaml")).expect("removed");
    watched.sink.until_names(&["b", "c", "d"]);
    fs::remove_dir_all(watched.root.join("deep")).expect("removed");
    watched.sink.until_names(&["c", "d"]);
    fs::rename(watched.root.join("new"), watched.root.join("moved")).expect("moved");
    // The same object in another file is no change.
    watched.write("moved/below/d.yaml", &services(&["e"]));
    watched.sink.until_names(&["c", "e"]);
}

#[test]
fn a_change_is_seen_at_once_and_is_one_commit() {
    let watched = watch(|root| write(root, "a.yaml", &services(&["a", "b", "c"])));
    watched.sink.until_names(&["a", "b", "c"]);
    let mut fastest = Duration::MAX;
    for (old, new) in [("a", "d"), ("d", "a")].into_iter().cycle().take(20) {
        let before = watched.sink.read().commits.len();
        let mut names = ["b", "c", new];
        names.sort_unstable();
        let started = Instant::now();
        watched.write("a.yaml", &services(&names));
        let record = watched.sink.until_names(&names);
        fastest = fastest.min(started.elapsed());
        let commits = record.commits[before..].iter().filter(|commit| !commit.is_empty());
        let commits: Vec<BTreeSet<String>> = commits.map(|commit| commit.iter().cloned().collect()).collect();
        let differences = [format!("-{old}"), format!("+{new}")].into();
        assert_eq!(commits, [differences], "only differences are committed");
        // One is enough: the machine may be slow at times.
        if fastest < SETTLE_TIME {
            return;
        }
    }
    panic!("each change is delayed, the fastest by {fastest:?}");
}

#[test]
fn files_moved_into_the_directory_take_effect_at_once() {
    let watched = watch(|root| write(root, "a.yaml", &services(&["a"])));
    watched.write(".a.tmp", &services(&["b"]));
    fs::rename(watched.root.join(".a.tmp"), watched.root.join("a.yaml")).expect("moved");
    watched.sink.until_names(&["b"]);
}

#[test]
fn a_partly_written_file_keeps_its_last_objects() {
    let watched = watch(|root| write(root, "a.yaml", &services(&["a", "b"])));
    let mut file = fs::File::create(watched.root.join("a.yaml")).expect("opened");
    file.write_all(services(&["a"]).as_bytes()).expect("written");
    file.write_all(b"---\nkind: Service\nmetadata: {name: ").expect("written");
    file.flush().expect("written");
    // The open file is read once it has been quiet for a while.
    let deadline = Instant::now() + Duration::from_secs(15);
    while watched.problem().is_none() {
        assert!(Instant::now() < deadline, "the incomplete object is reported");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(watched.sink.names(), ["a", "b"]);
    let (line, _) = watched.problem().expect("it is reported");
    assert!(line >= 5, "{line}");
    file.write_all(b"c}\napiVersion: v1\n").expect("written");
    drop(file);
    watched.sink.until_names(&["a", "c"]);
    assert_eq!(watched.problem(), None);
}

#[test]
fn mounted_config_maps_are_followed_through_their_link() {
    let watched = watch(|root| {
        write(root, "..one/a.yaml", &services(&["a"]));
        write(root, "..one/b.yaml", &services(&["b"]));
        symlink("..one", root.join("..data")).expect("linked");
        symlink("..data/a.yaml", root.join("a.yaml")).expect("linked");
        symlink("..data/b.yaml", root.join("b.yaml")).expect("linked");
    });
    watched.sink.until_names(&["a", "b"]);
    write(&watched.root, "..two/a.yaml", &services(&["a2"]));
    write(&watched.root, "..two/b.yaml", &services(&["b"]));
    symlink("..two", watched.root.join("..tmp")).expect("linked");
    fs::rename(watched.root.join("..tmp"), watched.root.join("..data")).expect("moved");
    fs::remove_dir_all(watched.root.join("..one")).expect("removed");
    watched.sink.until_names(&["a2", "b"]);
}

#[test]
fn an_object_in_two_files_is_taken_from_the_last_file() {
    let watched = watch(|root| {
        write(root, "a.yaml", &services(&["x"]).replace("80", "81"));
        write(root, "b.yaml", &services(&["x", "y"]));
    });
    let record = watched.sink.until_names(&["x", "y"]);
    assert!(record.objects["x"].contains("b.yaml"), "{record:?}");
    watched.write("b.yaml", &services(&["y"]));
    watched.sink.until("the other file is used now", |record| record.objects["x"].contains("a.yaml"));
    fs::remove_file(watched.root.join("a.yaml")).expect("removed");
    watched.sink.until_names(&["y"]);
}

#[test]
fn invalid_files_leave_other_files_readable() {
    let bomb = {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..20 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        text
    };
    let huge = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: huge\n  annotations: {{a: {}}}\n",
        "x".repeat(20 << 20)
    );
    let watched = watch(|root| {
        write(root, "bomb.yaml", &bomb);
        write(root, "deep.yaml", &"[".repeat(100_000));
        write(root, "deep.json", &"{\"a\":".repeat(100_000));
        write(root, "huge.yaml", &huge);
        write(root, "nul.yaml", "a: \0\0\0");
        fs::write(root.join("latin.yaml"), b"kind: Service\nname: caf\xe9\n").expect("written");
        fs::create_dir(root.join("directory.yaml")).expect("made");
        symlink("nowhere", root.join("broken.yaml")).expect("linked");
        symlink(".", root.join("loop")).expect("linked");
        write(root, "good.yaml", &services(&["good"]));
    });
    let record = watched.sink.read();
    assert!(record.objects.contains_key("good"), "{record:?}");
    assert!(!record.objects["good"].contains("loop"), "cyclic links are not followed");
    let problems = watched.reporter.problems();
    for file in ["bomb.yaml", "deep.yaml", "deep.json", "latin.yaml"] {
        assert!(problems.keys().any(|it| it.ends_with(file)), "{file}: {:?}", problems.keys());
    }
    let latin = problems.iter().find(|(file, _)| file.ends_with("latin.yaml")).map(|(_, problem)| problem.line);
    assert_eq!(latin, Some(2));
    watched.write("good.yaml", &services(&["still", "good"]));
    watched.sink.until("changes are still read", |record| record.objects.contains_key("still"));
}

#[test]
fn many_changes_end_in_the_state_on_disk() {
    let watched = watch(|root| {
        for file in 0..50 {
            write(root, &format!("{file}.yaml"), &services(&[&format!("s{file:02}")]));
        }
    });
    for round in 0..5 {
        for file in 0..50 {
            watched.write(&format!("{file}.yaml"), &services(&[&format!("s{file:02}-{round}")]));
        }
    }
    let expect: Vec<String> = (0..50).map(|file| format!("s{file:02}-4")).collect();
    watched.sink.until_names(&expect.iter().map(String::as_str).collect::<Vec<_>>());
}
