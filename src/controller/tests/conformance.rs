//! One suite over the sources (K08, K16): an informer, a directory and a file, each through a real API server, a fake one, or a
//! file system, with handlers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use sluice_controller::{Api, FileSource, FolderHandle, FolderSource, Informer, KubeOptions, WatchStates};
use sluice_engine::{Engine, EngineOptions, Event, HandlerRegistration, Input, NamespacedName, Published};
use sluice_testkit::api_server::ApiServer;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Longest wait for a change.
const LIMIT: Duration = Duration::from_secs(60);

type Records = BTreeMap<String, String>;

type SetObject = Box<dyn Fn(&str, &str)>;
type Inputs = [Input<String, String>; 2];
type Outputs = [Published<String, String>; 2];

/// A source that runs, and what changes its objects.
struct Fixture {
    name: &'static str,
    engine: Engine,
    records: Published<String, String>,
    problems: Published<String, String>,
    set: SetObject,
    delete: Box<dyn Fn(&str)>,
    /// Writes an object that cannot be read.
    spoil: Box<dyn Fn(&str)>,
    /// A problem keeps the last record.
    keeps_records: bool,
}

/// A graph that copies its input, so that the suite also reads a derived collection.
fn graph() -> (Engine, Inputs, Outputs) {
    let (engine, (inputs, published)) = Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("main", |g| {
            let (records_in, records) = g.input::<String, String>("records");
            let (problems_in, problems) = g.input::<String, String>("problems");
            let copy = records.map("copy", |_, value| value.clone()).with_metadata("made-by", "source");
            ([records_in, problems_in], [copy.publish(), problems.publish()])
        })
    });
    (engine, inputs, published)
}

fn parse(_: &Path, text: &str) -> serde_json::Result<Vec<(String, String)>> {
    Ok(serde_json::from_str::<Records>(text)?.into_iter().collect())
}

fn folder() -> (Fixture, FolderHandle, tempfile::TempDir) {
    let (engine, [input, problems_in], [records, problems]) = graph();
    let directory = tempfile::tempdir().expect("a directory");
    let handle =
        FolderSource::new(directory.path(), input, parse).with_problems(problems_in).start().expect("it starts");
    let path = directory.path().to_owned();
    let file = move |key: &str| path.join(format!("{key}.json"));
    let (set, delete, spoil) = (file.clone(), file.clone(), file);
    let fixture = Fixture {
        name: "folder",
        engine,
        records,
        problems,
        set: Box::new(move |key, value| std::fs::write(set(key), json!({key: value}).to_string()).expect("written")),
        delete: Box::new(move |key| std::fs::remove_file(delete(key)).expect("removed")),
        spoil: Box::new(move |key| std::fs::write(spoil(key), "{").expect("written")),
        keeps_records: true,
    };
    (fixture, handle, directory)
}

/// An informer of ConfigMaps, whose records are their texts.
fn informer(runtime: &Runtime) -> (Fixture, CancellationToken) {
    let server = Arc::new(runtime.block_on(ApiServer::start()).expect("it starts"));
    let (engine, ((input, problems_in), (records, problems))) = Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("main", |g| {
            let (records_in, records) = g.input::<NamespacedName, String>("records");
            let (problems_in, problems) = g.input::<NamespacedName, String>("problems");
            let by_name = |name: &NamespacedName, value: &String| [(name.name.clone(), value.clone())];
            let records = records.flat_map("copy", by_name).with_metadata("made-by", "source");
            let problems = problems.flat_map("problems/by-name", by_name);
            ((records_in, problems_in), (records.publish(), problems.publish()))
        })
    });
    let read = |object: ConfigMap| match object.data?.remove("text")?.as_str() {
        "panic" => panic!("a bug of the controller"),
        text => Some(text.to_owned()),
    };
    let options = KubeOptions::default();
    let client = runtime.block_on(async { server.client() }).expect("a client");
    let api = Api::new(client, "cluster".into(), options, WatchStates::default());
    let stop = CancellationToken::new();
    let running = Informer::new(input, read).in_namespace("shop").with_problems(problems_in);
    runtime.spawn(running.run(api, options, stop.clone()));
    let write = |server: &ApiServer, namespace: &str, key: &str, text: &str| {
        let metadata = json!({"name": key, "namespace": namespace});
        server.apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}));
    };
    // An object of another namespace is never a record.
    write(&server, "other", "other", "1");
    let (set, delete, spoil) = (server.clone(), server.clone(), server);
    let fixture = Fixture {
        name: "informer",
        engine,
        records,
        problems,
        set: Box::new(move |key, text| write(&set, "shop", key, text)),
        delete: Box::new(move |key| delete.delete("configmaps", "shop", key)),
        spoil: Box::new(move |key| write(&spoil, "shop", key, "panic")),
        keeps_records: false,
    };
    (fixture, stop)
}

fn for_all(case: fn(&Fixture)) {
    let (fixture, _handle, _directory) = folder();
    case(&fixture);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let (fixture, stop) = informer(&runtime);
    case(&fixture);
    stop.cancel();
}

impl Fixture {
    #[track_caller]
    fn wait_for(&self, what: &str, is_reached: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        let mut feed = self.engine.feed();
        while !is_reached() {
            assert!(Instant::now() < deadline, "{}: {what}", self.name);
            feed.next_timeout(Duration::from_millis(200));
        }
    }

    fn state(&self, of: &Published<String, String>) -> Records {
        self.engine.snapshot().iter(of).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    #[track_caller]
    fn expect(&self, expected: &[(&str, &str)]) {
        let expected: Records = expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.wait_for(&format!("{expected:?}"), || self.state(&self.records) == expected);
    }

    fn handler(&self) -> (HandlerRegistration, Receiver<String>) {
        let (sender, seen) = channel();
        let registration = self.engine.register(&self.records, move |event| {
            // Fails only when the test has ended.
            let _ = sender.send(text(event));
        });
        (registration, seen)
    }

    #[track_caller]
    fn next(&self, seen: &Receiver<String>) -> String {
        seen.recv_timeout(LIMIT).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

fn text(event: &Event<String, String>) -> String {
    let value = |value: &Option<Arc<String>>| value.as_ref().map_or("-".to_owned(), |value| (**value).clone());
    format!("{}: {} > {}", event.key, value(&event.old), value(&event.new))
}

#[test]
fn empty_source_is_synced_and_has_no_records() {
    for_all(|fixture| {
        assert!(fixture.engine.wait_synced(LIMIT), "{}", fixture.name);
        assert_eq!(fixture.state(&fixture.records), Records::new(), "{}", fixture.name);
        let (registration, seen) = fixture.handler();
        assert!(registration.wait_synced(LIMIT), "{}", fixture.name);
        assert!(seen.try_recv().is_err(), "{}", fixture.name);
    });
}

#[test]
fn handlers_get_each_change_once_in_order() {
    for_all(|fixture| {
        let (_early, seen) = fixture.handler();
        (fixture.set)("a", "1");
        assert_eq!(fixture.next(&seen), "a: - > 1");
        let (_late, late) = fixture.handler();
        assert_eq!(fixture.next(&late), "a: - > 1", "a late handler gets what exists");
        (fixture.set)("a", "2");
        (fixture.set)("b", "3");
        fixture.expect(&[("a", "2"), ("b", "3")]);
        for seen in [&seen, &late] {
            let mut changes = [fixture.next(seen), fixture.next(seen)];
            changes.sort();
            assert_eq!(changes, ["a: 1 > 2", "b: - > 3"], "{}", fixture.name);
        }
        (fixture.delete)("a");
        assert_eq!([fixture.next(&seen), fixture.next(&late)], ["a: 2 > -", "a: 2 > -"]);
        assert!(seen.try_recv().is_err() && late.try_recv().is_err(), "{}", fixture.name);
    });
}

#[test]
fn removed_handlers_get_nothing_and_blocked_handlers_delay_no_other() {
    for_all(|fixture| {
        let (removed, nothing) = fixture.handler();
        removed.unregister_and_wait();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().expect("not poisoned");
        let of_handler = gate.clone();
        let _blocked = fixture.engine.register(&fixture.records, move |_| drop(of_handler.lock()));
        let (_free, seen) = fixture.handler();
        (fixture.set)("a", "1");
        assert_eq!(fixture.next(&seen), "a: - > 1");
        (fixture.set)("a", "2");
        assert_eq!(fixture.next(&seen), "a: 1 > 2");
        assert!(nothing.try_recv().is_err(), "{}", fixture.name);
        drop(closed);
    });
}

#[test]
fn handlers_registered_during_additions_miss_nothing() {
    for_all(|fixture| {
        let names: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
        let mut handlers = Vec::new();
        for name in &names {
            (fixture.set)(name, "1");
            handlers.push(fixture.handler());
        }
        let expected: Vec<String> = names.iter().map(|name| format!("{name}: - > 1")).collect();
        for (_registration, seen) in &handlers {
            let mut changes: Vec<_> = names.iter().map(|_| fixture.next(seen)).collect();
            changes.sort();
            assert_eq!(changes, expected, "{}", fixture.name);
            assert!(seen.try_recv().is_err(), "{}", fixture.name);
        }
    });
}

#[test]
fn object_that_cannot_be_read_is_a_problem_until_it_is_corrected_or_deleted() {
    for_all(|fixture| {
        (fixture.set)("a", "1");
        (fixture.set)("b", "1");
        fixture.expect(&[("a", "1"), ("b", "1")]);
        (fixture.spoil)("a");
        let problems = || fixture.state(&fixture.problems);
        fixture.wait_for("a problem", || problems().keys().any(|key| key.contains('a')));
        fixture.expect(if fixture.keeps_records { &[("a", "1"), ("b", "1")] } else { &[("b", "1")] });
        (fixture.set)("a", "2");
        fixture.expect(&[("a", "2"), ("b", "1")]);
        fixture.wait_for("no problem", || problems().is_empty());
        (fixture.spoil)("b");
        fixture.wait_for("a problem", || !problems().is_empty());
        (fixture.delete)("b");
        fixture.expect(&[("a", "2")]);
        fixture.wait_for("no problem", || problems().is_empty());
    });
}

#[test]
fn collection_has_its_metadata() {
    for_all(|fixture| {
        let info = fixture.engine.graph().iter().find(|info| info.name == "copy").expect("listed");
        assert_eq!(info.metadata.get("made-by").map(String::as_str), Some("source"), "{}", fixture.name);
    });
}

#[test]
fn key_moves_from_one_file_to_another_without_a_gap() {
    let (fixture, handle, directory) = folder();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).expect("written");
    write("x.json", r#"{"a": "1"}"#);
    handle.refresh().expect("it is read");
    let (_registration, seen) = fixture.handler();
    assert_eq!(fixture.next(&seen), "a: - > 1");
    // The last file in the order of paths has the record, and the other one is a problem.
    write("y.json", r#"{"a": "1"}"#);
    handle.refresh().expect("it is read");
    fixture.wait_for("a problem", || {
        fixture
            .state(&fixture.problems)
            .iter()
            .any(|(path, reason)| path.ends_with("x.json") && reason.contains("y.json"))
    });
    std::fs::remove_file(directory.path().join("x.json")).expect("removed");
    handle.refresh().expect("it is read");
    fixture.wait_for("no problem", || fixture.state(&fixture.problems).is_empty());
    write("y.json", r#"{"a": "2"}"#);
    handle.refresh().expect("it is read");
    assert_eq!(fixture.next(&seen), "a: 1 > 2", "the move is no event");
    // Files in subdirectories are read, hidden ones are not.
    std::fs::create_dir(directory.path().join("deep")).expect("made");
    write("deep/z.json", r#"{"z": "1"}"#);
    write(".hidden.json", r#"{"hidden": "1"}"#);
    handle.refresh().expect("it is read");
    fixture.expect(&[("a", "2"), ("z", "1")]);
}

#[test]
fn folder_that_is_missing_is_an_error_at_the_start_and_keeps_its_records_later() {
    let (_engine, [input, _], _) = graph();
    let missing = PathBuf::from("/nonexistent/folder");
    let error = FolderSource::new(&missing, input, parse).start().err().expect("no directory");
    assert!(error.to_string().starts_with("cannot read /nonexistent/folder: "), "{error}");
    let (fixture, handle, directory) = folder();
    (fixture.set)("a", "1");
    handle.refresh().expect("it is read");
    fixture.expect(&[("a", "1")]);
    std::fs::remove_dir_all(directory.path()).expect("removed");
    // The files have been removed one after the other, and a check in between may have seen that.
    handle.refresh().expect_err("no directory");
}

#[test]
fn singleton_follows_its_file_and_keeps_the_last_valid_value() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("limit.txt");
    let (engine, (input, problems_in, limits, problems)) = Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("main", |g| {
            let (input, limits) = g.input::<(), u32>("limit");
            let (problems_in, problems) = g.input::<String, String>("problems");
            (input, problems_in, limits.publish(), problems.publish())
        })
    });
    let source = |path: &Path| FileSource::new(path, input.clone(), |text| text.trim().parse::<u32>());
    let error = source(&path).start().err().expect("no file");
    assert!(error.to_string().starts_with(&format!("cannot read {}: ", path.display())), "{error}");
    std::fs::write(&path, "many").expect("written");
    let error = source(&path).start().err().expect("not a number");
    assert_eq!(error.to_string(), format!("{}: invalid digit found in string", path.display()));

    std::fs::write(&path, "7").expect("written");
    let _following = source(&path).with_problems(problems_in).start().expect("it starts");
    let wait_for = |value: u32, count: usize| {
        let deadline = Instant::now() + LIMIT;
        let mut feed = engine.feed();
        loop {
            let snapshot = engine.snapshot();
            if snapshot.get(&limits, &()).is_some_and(|is| *is == value) && snapshot.len(&problems) == count {
                return;
            }
            assert!(Instant::now() < deadline, "{value} with {count} problems");
            feed.next_timeout(Duration::from_millis(200));
        }
    };
    assert!(engine.wait_synced(LIMIT));
    wait_for(7, 0);
    std::fs::write(&path, "eight").expect("written");
    wait_for(7, 1);
    std::fs::write(&path, "8").expect("written");
    wait_for(8, 0);
    std::fs::remove_file(&path).expect("removed");
    wait_for(8, 1);
}
