//! `record`, `replay` and `diff`: a replay has what the control plane has served. `sluiced --replayFile` serves it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_recording::RecordingReader;
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until;

use super::mesh::{AnswersFixture, Client};

/// Time between the beginning of the recording that a server replays and the change in it.
const CHANGE_AFTER: Duration = Duration::from_secs(1);

/// Names and versions of the clusters and routes that the control plane has sent to the proxy.
async fn served(server: &Sluiced, pod: &str) -> BTreeMap<String, String> {
    let (_, dump) = server.get(&format!("/debug/config_dump?proxyID={pod}.shop")).await.expect("a response");
    let dump: Value = serde_json::from_str(&dump).expect("JSON");
    let mut versions = BTreeMap::new();
    for section in dump["configs"].as_array().expect("sections") {
        for (list, field) in [("dynamicActiveClusters", "cluster"), ("dynamicRouteConfigs", "routeConfig")] {
            for entry in section[list].as_array().into_iter().flatten() {
                let name = entry[field]["name"].as_str().expect("a name");
                versions.insert(name.to_owned(), entry["versionInfo"].as_str().expect("a version").to_owned());
            }
        }
    }
    versions
}

/// Names and versions of the clusters, and of route table 80, at the end of a replay.
fn replayed(answer: &Value, pod: &str) -> BTreeMap<String, String> {
    let of_proxy = answer["proxies"].as_object().expect("proxies").iter();
    let mut of_proxy = of_proxy.filter(|(key, _)| key.contains(&format!("~{pod}.shop~")));
    let (_, types) = of_proxy.next().expect("the proxy");
    let all = ["cds", "rds"].iter().flat_map(|kind| types[kind].as_object().expect("resources"));
    let all = all.map(|(name, resource)| (name.clone(), resource["version"].as_str().expect("a version").to_owned()));
    all.filter(|(name, _)| name == "80" || !name.chars().all(|char| char.is_ascii_digit())).collect()
}

/// Waits until the file of a recording has its first step, which is the state at the beginning. Later changes are further steps.
async fn begun(recording: &str) {
    let first_step = || RecordingReader::open(File::open(recording).ok()?).ok()?.next_step().ok()?;
    until("the recording has its first step", first_step).await;
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_string_lossy().into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_of_a_recording_has_the_versions_that_were_served() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let directory = tempfile::tempdir().expect("a directory");
    let (first, second) = (path(directory.path(), "first"), path(directory.path(), "second"));
    let short = mesh.ctl(&["record", "--out", &first, "--duration", "100ms"]).await;
    assert_eq!(short.code, 0, "{}{}", short.out, short.errors);

    let record = ["record", "--out", &second, "--duration", "3s"];
    let change = async {
        begun(&second).await;
        let updates = cart.updates();
        mesh.route_to(2, "v2");
        cart.updated_after(updates).await;
    };
    let (recorded, ()) = tokio::join!(mesh.ctl(&record), change);
    assert_eq!(recorded.code, 0, "{}{}", recorded.out, recorded.errors);

    let local = |arguments: Vec<String>| async move {
        let binary = sluice_testkit::binary::workspace_binary("sluicectl").expect("sluicectl is built");
        tokio::process::Command::new(binary).args(arguments).output().await.expect("sluicectl runs")
    };
    let arguments = ["replay", &second, "-o", "json"].map(str::to_owned).to_vec();
    let output = local(arguments).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let served = served(&mesh.server, "cart-7f").await;
    assert!(served.len() > 5, "{served:?}");
    assert_eq!(replayed(&answer, "cart-7f"), served);
    let steps = answer["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 2, "the state and one change: {steps:?}");
    assert_eq!(steps[1]["writes"], 1);

    // Before the change.
    let beginning = ["replay", &second, "-o", "json", "--until", "0s", "--proxy", "cart-7f.shop"];
    let output = local(beginning.map(str::to_owned).to_vec()).await;
    let before: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (before, after) = (replayed(&before, "cart-7f"), replayed(&answer, "cart-7f"));
    let changed: Vec<&String> = before.keys().filter(|name| before.get(*name) != after.get(*name)).collect();
    assert_eq!(changed, ["80"], "only the route table");

    let output = local(["diff", &first, &second].map(str::to_owned).to_vec()).await;
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    for line in ["RouteConfiguration 80: differs", "outbound|80|v1|ratings", "outbound|80|v2|ratings"] {
        assert!(text.contains(line), "{line} is missing:\n{text}");
    }
    let output = local(["diff", &first, &first].map(str::to_owned).to_vec()).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let output = local(["replay", &path(mesh.directory.path(), "objects.yaml")].map(str::to_owned).to_vec()).await;
    assert_eq!(output.status.code(), Some(2), "a file that is no recording");
    assert_eq!(answer["isCut"], json!(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn recording_has_no_private_key_of_a_secret() {
    let mesh = AnswersFixture::start().await;
    let key = "-----BEGIN PRIVATE KEY-----\nSECRETSECRETSECRET\n-----END PRIVATE KEY-----\n";
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert", "namespace": "shop"}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": "-----BEGIN CERTIFICATE-----\nSECRETSECRETSECRET\n-----END CERTIFICATE-----\n", "tls.key": key},
    });
    std::fs::write(mesh.directory.path().join("secret.json"), secret.to_string()).expect("written");
    let applied = mesh.ctl(&["wait", "Secret/shop/cert", "--for=applied"]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.errors);
    let directory = tempfile::tempdir().expect("a directory");
    let file = path(directory.path(), "recording");
    let recorded = mesh.ctl(&["record", "--out", &file, "--duration", "100ms"]).await;
    assert_eq!(recorded.code, 0, "{}{}", recorded.out, recorded.errors);
    let unpacked = tokio::process::Command::new("gzip").args(["-dc", &file]).output().await.expect("gzip runs");
    let text = String::from_utf8(unpacked.stdout).expect("UTF-8");
    assert!(text.contains("\"raw_secrets\"") && text.contains("\"[redacted "), "the Secret is recorded");
    // In base64 too.
    assert!(!text.contains("SECRETSECRET") && !text.contains("U0VDUkVUU0VDUkVU"));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_replays_a_recording_serves_what_was_recorded_and_its_changes() {
    let mesh = AnswersFixture::start().await;
    let mut cart = mesh.connect("cart-7f", "cart").await;
    let _till = mesh.connect("till-1", "till").await;
    let before = served(&mesh.server, "cart-7f").await;
    let directory = tempfile::tempdir().expect("a directory");
    let recording = path(directory.path(), "recording");
    let record = ["record", "--out", &recording, "--duration", "4s"];
    let change = async {
        begun(&recording).await;
        // The time until the change is part of the recording.
        tokio::time::sleep(CHANGE_AFTER).await;
        let updates = cart.updates();
        mesh.route_to(2, "v2");
        cart.updated_after(updates).await;
    };
    let (recorded, ()) = tokio::join!(mesh.ctl(&record), change);
    assert_eq!(recorded.code, 0, "{}{}", recorded.out, recorded.errors);
    let after = served(&mesh.server, "cart-7f").await;
    assert_ne!(before, after);
    drop(mesh);

    let options = |speed: &str| Options {
        replay_file: Some(recording.as_str().into()),
        args: vec![format!("--replaySpeed={speed}")],
        ..Options::new(directory.path())
    };
    // The change is due 10 s after the start, when the proxy has long been connected.
    let server = Sluiced::start(&options("0.1x")).await.expect("sluiced starts");
    let mut replayed = Client::connect(&server, "cart-7f", "cart").await;
    let updates = replayed.updates();
    assert_eq!(served(&server, "cart-7f").await, before);
    let (_, proxies) = server.get("/debug/collections/connected_proxies").await.expect("a response");
    assert!(proxies.contains("cart-7f") && !proxies.contains("till-1"), "recorded proxies are not there: {proxies}");
    replayed.updated_after(updates).await;
    assert_eq!(served(&server, "cart-7f").await, after);
    drop(server);

    let log = directory.path().join("log");
    let options = Options { log: Some(log.clone()), ..options("max") };
    let server = Sluiced::start(&options).await.expect("sluiced starts");
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the end is logged", || text().contains("the recording has ended").then_some(())).await;
    let _replayed = Client::connect(&server, "cart-7f", "cart").await;
    assert_eq!(served(&server, "cart-7f").await, after, "the last state stays");
    let (status, _) = server.get("/ready").await.expect("a response");
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_or_other_file_is_no_recording_to_serve() {
    let mesh = AnswersFixture::start().await;
    let directory = tempfile::tempdir().expect("a directory");
    let whole = path(directory.path(), "recording");
    let recorded = mesh.ctl(&["record", "--out", &whole, "--duration", "100ms"]).await;
    assert_eq!(recorded.code, 0, "{}{}", recorded.out, recorded.errors);
    let bytes = std::fs::read(&whole).expect("read");
    let truncated = path(directory.path(), "truncated");
    std::fs::write(&truncated, &bytes[..bytes.len() - 8]).expect("written");
    let objects = path(mesh.directory.path(), "objects.yaml");
    let nowhere = path(directory.path(), "nowhere");
    for (file, reason) in [
        (truncated, "the recording is truncated: "),
        (objects, "the recording cannot be read: "),
        (nowhere, "the file cannot be opened: "),
    ] {
        let binary = sluice_testkit::binary::workspace_binary("sluiced").expect("sluiced is built");
        let mut command = tokio::process::Command::new(binary);
        command.args(["--replayFile", &file, "--ctrlz_port=0"]).kill_on_drop(true);
        for flag in ["grpcAddr", "httpAddr", "monitoringAddr", "secureGRPCAddr", "httpsAddr"] {
            command.arg(format!("--{flag}=127.0.0.1:0"));
        }
        let output = command.output().await.expect("sluiced runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{file}: {errors}");
        assert!(errors.contains(&format!("--replayFile {file}: {reason}")), "{errors}");
    }
}
