//! A server replays a recording in place of its sources.

use std::collections::BTreeSet;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde_json::Value;
use sluice_engine::Engine;
use sluice_graph::{GraphOptions, Handles, start_without_history};
use sluice_model::{
    CertificateKeyPair, Identity, Namespace, ObjectKey, Proxy, ProxyKey, Redacted, ResourceType, Secret, SecretReader,
};
use sluice_recording::{
    FORMAT_VERSION, Header, Line, ReadError, RecordedWrite, RecordingFileError, RecordingLength, ServedRecording,
    StepEnd,
};
use tempfile::NamedTempFile;

fn start() -> (Engine, Handles) {
    start_without_history(&GraphOptions::default(), || {})
}

fn namespace_key(name: &str) -> ObjectKey {
    ObjectKey::new("Kubernetes", "", name)
}

fn write(input: &str, key: impl Serialize, value: Option<Value>) -> RecordedWrite {
    RecordedWrite {
        input: input.to_owned(),
        key: serde_json::to_value(key).expect("JSON"),
        deleted: value.is_none(),
        value: value.unwrap_or_default(),
        source: "7".to_owned(),
        generation: None,
    }
}

fn namespace(name: &str) -> RecordedWrite {
    write("namespaces", namespace_key(name), Some(serde_json::to_value(Namespace::default()).expect("JSON")))
}

/// The bytes of a recording of these steps: each its time and its writes.
fn recording(steps: &[(f64, Vec<RecordedWrite>)]) -> Vec<u8> {
    let options = GraphOptions { system_namespace: "control".into(), ..GraphOptions::default() };
    let header = Header { sluice_recording: FORMAT_VERSION, version: "0.1.0".to_owned(), started: 0.0, options };
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    writeln!(out, "{}", serde_json::to_string(&header).expect("JSON")).expect("written");
    for (at, writes) in steps {
        let end = Line::End(StepEnd { at: *at, epoch: 1 });
        for line in writes.iter().cloned().map(Line::Write).chain([end]) {
            writeln!(out, "{}", serde_json::to_string(&line).expect("JSON")).expect("written");
        }
    }
    out.finish().expect("written")
}

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("written");
    file
}

fn begin_error(bytes: &[u8]) -> RecordingFileError {
    let (engine, handles) = start();
    let recording = ServedRecording::open(file(bytes).path()).expect("a header");
    let error = recording.begin(&engine, &handles.inputs).err().expect("it is refused");
    assert_eq!(engine.inputs().expect("inputs").len(), 0, "nothing is written");
    error
}

#[test]
fn objects_are_written_step_by_step_and_the_proxies_of_the_recorded_server_are_not() {
    let client = || write("secret_clients", ProxyKey("recorded".into()), Some(Value::Null));
    let file = file(&recording(&[
        (0.5, vec![namespace("a"), client()]),
        (1.5, vec![namespace("b")]),
        (2.5, vec![client()]),
        (4.0, vec![write("namespaces", namespace_key("a"), None)]),
        (10.5, Vec::new()),
    ]));
    let (engine, handles) = start();
    let recording = ServedRecording::open(file.path()).expect("a recording");
    assert_eq!(recording.graph_options().system_namespace, "control");
    assert!(recording.graph_options().reviews_secrets, "no Secret is served");
    let mut replay = recording.begin(&engine, &handles.inputs).expect("complete");
    assert_eq!(replay.length(), RecordingLength { changes: 2, seconds: 10.0 });
    let names = || {
        let snapshot = engine.snapshot();
        let names: BTreeSet<String> = snapshot.iter(&handles.namespaces).map(|(key, _)| key.name.to_string()).collect();
        names.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(names(), ["a"]);
    assert!(engine.snapshot().all_synced());
    let mut steps = Vec::new();
    while let Some(step) = replay.next_step().expect("a step") {
        let seconds = replay.seconds_until(&step);
        steps.push((seconds, replay.apply(step).expect("applied"), names()));
    }
    let expect = [(1.0, 1, &["a", "b"][..]), (2.0, 0, &["a", "b"]), (3.5, 1, &["b"]), (10.0, 0, &["b"])];
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(steps, expect.map(|(at, writes, names)| (at, writes, owned(names))));
    assert_eq!(engine.inputs().expect("inputs").len(), 1, "the client of the recording is no client of the server");
}

#[test]
fn secret_is_there_without_credentials_to_pull_images() {
    let text = |text: &'static str| Redacted(text.as_bytes().into());
    let certificate =
        CertificateKeyPair { chain: text("chain"), key: text("key"), ocsp_staple: None, problem: "".into() };
    let secret = Secret {
        certificate: Some(certificate),
        roots: None,
        docker_config: Some(text("credentials")),
        ..Secret::default()
    };
    let value = serde_json::to_value(&secret).expect("JSON");
    assert!(value["docker_config"].is_string(), "{value}");
    let key = ObjectKey::new("Kubernetes", "shop", "cert");
    let file = file(&recording(&[(0.0, vec![write("raw_secrets", &key, Some(value))])]));
    let (engine, handles) = start();
    let recording = ServedRecording::open(file.path()).expect("a recording");
    recording.begin(&engine, &handles.inputs).expect("complete");
    let (value, _) = engine.inputs().expect("inputs").find("raw_secrets", &key).expect("the Secret");
    assert!(value["docker_config"].is_null() && value["certificate"]["problem"] == "", "{value}");
}

#[test]
fn proxy_with_an_identity_gets_no_secret_whatever_was_reviewed() {
    let (namespace, service_account) = ("shop".into(), "till".into());
    let reader = SecretReader { cluster: "Kubernetes".into(), namespace, service_account };
    let file = file(&recording(&[(0.0, vec![write("secret_reviews", &reader, Some(true.into()))])]));
    let recording = ServedRecording::open(file.path()).expect("a recording");
    let (engine, handles) = start_without_history(&recording.graph_options(), || {});
    recording.begin(&engine, &handles.inputs).expect("complete");
    let proxy = Proxy {
        id: "router~10.0.0.1~till-1.shop~shop.svc.cluster.local".into(),
        identity: Some(Identity::new("cluster.local", "shop", "till")),
        ..Proxy::default()
    };
    let key = ProxyKey(proxy.id.clone());
    engine.transaction(|tx| {
        tx.set(&handles.inputs.proxies, key.clone(), proxy);
        tx.set(&handles.inputs.secret_clients, key.clone(), ());
    });
    let has_layers = || {
        let scope = engine.snapshot().get(&handles.scopes, &key).expect("a scope");
        scope.layers.contains_key(&ResourceType::Secret)
    };
    assert!(!has_layers(), "its subscription waits");
    // With a review by the server, which it never does, it would get them.
    engine.transaction(|tx| tx.set(&handles.inputs.secret_reviews, reader, true));
    assert!(has_layers());
}

#[test]
fn truncated_recording_is_refused() {
    let whole = recording(&[(0.0, vec![namespace("a")]), (1.0, vec![namespace("b")])]);
    // All steps are there, and the end of the file is not.
    let error = begin_error(&whole[..whole.len() - 8]);
    assert!(matches!(error, RecordingFileError::Truncated { .. }), "{error}");
    let error = begin_error(&recording(&[]));
    assert_eq!(error.to_string(), "the recording is truncated: 0 complete steps, and no end");
}

#[test]
fn recording_of_another_version_is_refused_with_the_record() {
    let first = || (0.0, vec![namespace("a")]);
    let error = begin_error(&recording(&[first(), (1.0, vec![write("moons", "m", Some(Value::Null))])]));
    assert_eq!(error.to_string(), "the recording does not fit this version: there is no input moons");
    let misshapen = write("namespaces", namespace_key("b"), Some(Value::from(7)));
    let error = begin_error(&recording(&[first(), (1.0, vec![misshapen])])).to_string();
    assert!(error.starts_with("the recording does not fit this version: namespaces: "), "{error}");
}

#[test]
fn other_file_is_refused_when_it_is_opened() {
    let error = ServedRecording::open(file(b"kind: Service\n").path()).err().expect("no recording");
    assert!(matches!(error, RecordingFileError::Read(ReadError::Read(_))), "{error}");
    let error = ServedRecording::open(std::path::Path::new("/nowhere/recording")).err().expect("no file");
    assert!(matches!(error, RecordingFileError::Open(_)), "{error}");
}
