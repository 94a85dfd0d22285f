//! What a recording has is what its replay writes.

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use sluice_engine::{Engine, EngineOptions, Origin};
use sluice_graph::{GraphOptions, Handles, build};
use sluice_parse::{parse_object, yaml};
use sluice_recording::{ReadError, Recorder, RecordingReader, Replay};

/// Inputs with content that a recording does not have.
const REDACTED: [&str; 2] = ["raw_secrets", "raw_root_bundles"];

fn start() -> (Engine, Handles) {
    let options = GraphOptions::default();
    Engine::start(EngineOptions::default(), move |builder| build(builder, &options))
}

/// The texts of all inputs of parity cases.
fn inputs(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            inputs(&entry, found);
        } else if entry.file_name().is_some_and(|name| name == "input.yaml") {
            found.push(entry);
        }
    }
}

fn objects(text: &str) -> Vec<Value> {
    let documents = yaml::parse_documents(text, &yaml::Limits::default());
    documents.into_iter().filter_map(|document| document.ok().map(|document| document.value)).collect()
}

fn apply(engine: &Engine, handles: &Handles, objects: &[Value]) {
    let parsed: Vec<_> =
        objects.iter().filter_map(|object| parse_object(&"Kubernetes".into(), "cluster.local", object).ok()).collect();
    engine.transaction(|tx| {
        for parsed in parsed {
            handles.inputs.apply(tx, parsed, Origin::version("7"));
        }
        handles.inputs.mark_all_synced(tx);
    });
}

fn replay(recording: &[u8]) -> Replay {
    let mut reader = RecordingReader::open(Cursor::new(recording)).expect("a recording");
    let mut replay = Replay::start(&reader.header().options);
    while let Some(step) = reader.next_step().expect("a step") {
        replay.apply(step).expect("the records are of this version");
    }
    assert!(!reader.is_cut());
    replay
}

#[test]
fn every_input_of_the_parity_cases_survives_a_recording() {
    let mut paths = Vec::new();
    inputs(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases"), &mut paths);
    assert!(paths.len() > 100, "{} cases", paths.len());
    paths.sort();
    // Many cases in one graph: equal names replace each other, and that does not matter here.
    let mut values = 0;
    for chunk in paths.chunks(50) {
        let (engine, handles) = start();
        for path in chunk {
            apply(&engine, &handles, &objects(&std::fs::read_to_string(path).expect("a text")));
            let mut recording = Vec::new();
            let recorder = Recorder::start(engine.clone(), &GraphOptions::default(), &mut recording);
            recorder.expect("recorded").run(Duration::ZERO, || true).expect("recorded");
            let replayed = replay(&recording).inputs().expect("inputs");
            let recorded = engine.inputs().expect("inputs");
            values += recorded.len();
            let lost =
                recorded.writes_since(&replayed).into_iter().filter(|write| !REDACTED.contains(&write.collection()));
            let lost: Vec<String> = lost
                .map(|write| format!("{} {} {:?}", write.collection(), write.key_json(), write.value_json()))
                .collect();
            assert!(lost.is_empty(), "{}: {lost:#?}", path.display());
        }
    }
    assert!(values > 1_000, "{values} values");
}

#[test]
fn changes_are_replayed_after_the_first_step() {
    let (engine, handles) = start();
    let service = |ip: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a, namespace: b}}\nspec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
        )
    };
    apply(&engine, &handles, &objects(&service("10.0.0.1")));
    let mut recording = Vec::new();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let recorder = Recorder::start(engine.clone(), &GraphOptions::default(), &mut recording).expect("recorded");
        let ended = &ended;
        scope.spawn(move || recorder.run(Duration::from_secs(60), || ended.load(Ordering::SeqCst)).expect("recorded"));
        apply(&engine, &handles, &objects(&service("10.0.0.2")));
        std::thread::sleep(Duration::from_millis(200));
        let key = sluice_model::ObjectKey::new("Kubernetes", "b", "a");
        engine.transaction(|tx| handles.inputs.delete(tx, sluice_model::Kind::Service, key, Origin::default()));
        std::thread::sleep(Duration::from_millis(200));
        ended.store(true, Ordering::SeqCst);
    });
    let mut reader = RecordingReader::open(Cursor::new(&recording)).expect("a recording");
    let mut replay = Replay::start(&reader.header().options);
    let mut sizes = Vec::new();
    while let Some(step) = reader.next_step().expect("a step") {
        if replay.apply(step).expect("applied").writes > 0 {
            sizes.push(replay.inputs().expect("inputs").len());
        }
    }
    assert_eq!(sizes, [1, 1, 0], "the Service, its new address, its deletion");
}

#[test]
fn interrupted_recording_is_replayed_up_to_its_last_complete_step() {
    let (engine, handles) = start();
    let namespaces: Vec<Value> = (0..2_000)
        .map(|n| serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("n-{n}")}}))
        .collect();
    apply(&engine, &handles, &namespaces);
    let mut recording = Vec::new();
    Recorder::start(engine, &GraphOptions::default(), &mut recording)
        .expect("recorded")
        .run(Duration::ZERO, || true)
        .expect("recorded");
    recording.truncate(recording.len() / 2);
    let mut reader = RecordingReader::open(Cursor::new(&recording)).expect("the header is complete");
    assert!(reader.next_step().expect("no error").is_none());
    assert!(reader.is_cut());
}

#[test]
fn other_files_are_reported() {
    let gzip = |text: &str| {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        out.write_all(text.as_bytes()).expect("written");
        out.finish().expect("written")
    };
    let open = |bytes: &[u8]| RecordingReader::open(Cursor::new(bytes.to_vec())).err().expect("no recording");
    assert!(matches!(open(b"kind: Service\n"), ReadError::Read(_)));
    assert!(matches!(open(&gzip("{\"a\": 1}\n")), ReadError::NoHeader(_)));
    let error = open(&gzip("{\"sluiceRecording\": 99}\n")).to_string();
    assert_eq!(error, "the recording has format 99, and this version reads format 1");
}

#[test]
fn content_of_secrets_is_a_hash_that_differs_between_recordings() {
    let (engine, handles) = start();
    let secret = |name: &str, key: &str| {
        serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "n"}, "data": {
            "tls.crt": "Y2VydA==", "tls.key": key,
        }})
    };
    let record = |secrets: &[Value]| -> (String, Replay) {
        apply(&engine, &handles, secrets);
        let mut recording = Vec::new();
        let recorder = Recorder::start(engine.clone(), &GraphOptions::default(), &mut recording).expect("recorded");
        recorder.run(Duration::ZERO, || true).expect("recorded");
        let mut text = String::new();
        flate2::read::MultiGzDecoder::new(&recording[..]).read_to_string(&mut text).expect("gzip");
        (text, replay(&recording))
    };
    let (first_key, other_key) = ("Zmlyc3Qga2V5", "b3RoZXIga2V5");
    let secrets = [secret("a", first_key), secret("b", first_key), secret("c", other_key)];
    let (text, replayed) = record(&secrets);
    assert!(!text.contains("first key") && !text.contains(first_key), "{text}");
    let value = |replayed: &Replay, name: &str| -> String {
        let key = sluice_model::ObjectKey::new("Kubernetes", "n", name);
        let (value, _) = replayed.inputs().expect("inputs").find("raw_secrets", &key).expect("a Secret");
        value.to_string()
    };
    assert!(value(&replayed, "a").contains("[redacted "), "{}", value(&replayed, "a"));
    assert_eq!(value(&replayed, "a"), value(&replayed, "b"));
    assert_ne!(value(&replayed, "a"), value(&replayed, "c"));
    let (_, again) = record(&secrets);
    assert_ne!(value(&replayed, "a"), value(&again, "a"), "each recording has a key of its own");
}
