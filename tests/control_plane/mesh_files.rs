//! Mesh config and mesh networks in files that change while the control plane runs, and the settings in the graph.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sluice_engine::{Engine, EngineOptions};
use sluice_graph::{GraphOptions, Handles, build};
use sluice_sources::files::FileSource;
use sluice_sources::{MeshFiles, Problem, Reporter, Sink};
use sluice_testkit::server::{Options, Sluiced};
use sluice_testkit::wait::until;
use sluice_watch::FollowGuard;

use crate::kube_suite::source::{cluster_named, start_sink};

/// Interval at which files are read without a notification.
const RESCAN_INTERVAL: Duration = Duration::from_secs(2);
/// Longer than the time after which an absent file counts as removed, and than the interval of rescans.
const LONGER_THAN_RESCAN: Duration = Duration::from_millis(2_800);

/// A directory with a ConfigMap in `objects`, and mesh settings in `mesh/config` and `mesh/networks`.
struct MeshFilesFixture {
    engine: Engine,
    handles: Handles,
    reporter: Reporter,
    root: PathBuf,
    _guards: [FollowGuard; 2],
    _directory: tempfile::TempDir,
}

fn fixture(prepare: impl FnOnce(&Path)) -> MeshFilesFixture {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().to_owned();
    fs::create_dir(root.join("objects")).expect("made");
    prepare(&root);
    let options = GraphOptions::default();
    let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
    let files = MeshFiles::open(&root.join("mesh/config"), &root.join("mesh/networks")).expect("good files");
    let cluster = cluster_named("Kubernetes");
    let sink = start_sink(&engine, &handles, &cluster, "istio-system");
    let sink: Arc<dyn Sink> = Arc::new(sink);
    let reporter = Reporter::default();
    files.load(&*sink);
    let mut source = FileSource::open(cluster, &root.join("objects"), reporter.clone()).expect("opened");
    source.load(&*sink, false).expect("loaded");
    let guards = [
        source.follow(sink.clone()).expect("objects are followed"),
        files.follow(sink, reporter.clone()).expect("mesh files are followed"),
    ];
    assert!(engine.wait_synced(Duration::from_secs(10)));
    MeshFilesFixture { engine, handles, reporter, root, _guards: guards, _directory: directory }
}

impl MeshFilesFixture {
    /// The effective connect timeout, in seconds: 10 unless configured.
    fn timeout(&self) -> u64 {
        let mesh = self.engine.snapshot().get(&self.handles.mesh, &()).expect("there always is a mesh config");
        mesh.connect_timeout.as_secs()
    }

    fn networks(&self) -> Vec<String> {
        let networks = self.engine.snapshot().get(&self.handles.networks, &()).expect("there always are networks");
        networks.networks.keys().map(ToString::to_string).collect()
    }

    fn until(&self, what: &str, is_met: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(15);
        while !is_met(self) {
            let (timeout, networks) = (self.timeout(), self.networks());
            assert!(Instant::now() < deadline, "{what}: {timeout}, {networks:?}, {:?}", self.reporter.problems());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn until_timeout(&self, seconds: u64) {
        self.until(&format!("{seconds} seconds"), |fixture| fixture.timeout() == seconds);
    }

    /// Checks that the timeout does not change for some time.
    fn check_timeout_does_not_change(&self, seconds: u64, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert_eq!(self.timeout(), seconds);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.root, name, text);
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.root.join(name)).expect("removed");
    }

    fn problem(&self, file: &str) -> Option<Problem> {
        let mut problems = self.reporter.problems().into_iter();
        problems.find(|(place, _)| place.contains(file)).map(|(_, problem)| problem)
    }
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, text).expect("written");
}

fn config(timeout: &str) -> String {
    format!("accessLogFile: /dev/stdout\nconnectTimeout: {timeout}\n")
}

fn networks(name: &str) -> String {
    format!(
        "networks:\n  {name}:\n    endpoints: [{{fromRegistry: Kubernetes}}]\n    \
         gateways: [{{address: 192.0.2.1, port: 15443}}]\n"
    )
}

fn config_map(timeout: &str, network: &str) -> String {
    let indent = |text: String| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n{}  \
         meshNetworks: |\n{}",
        indent(config(timeout)),
        indent(networks(network))
    )
}

#[test]
fn changed_files_take_effect_at_once() {
    let fixture = fixture(|root| write(root, "mesh/config", &config("1s")));
    assert_eq!((fixture.timeout(), fixture.networks()), (1, Vec::new()));
    let started = Instant::now();
    fixture.write("mesh/config", &config("2s"));
    fixture.until_timeout(2);
    assert!(
        started.elapsed() < RESCAN_INTERVAL,
        "the change is notified, not found by a rescan: {:?}",
        started.elapsed()
    );
    // A file that is renamed into place, and a new file.
    fixture.write("mesh/.staged", &config("3s"));
    fs::rename(fixture.root.join("mesh/.staged"), fixture.root.join("mesh/config")).expect("moved");
    fixture.write("mesh/networks", &networks("north"));
    fixture.until_timeout(3);
    fixture.until("a network", |fixture| fixture.networks() == ["north"]);
    fixture.write("mesh/networks", &networks("south"));
    fixture.until("another network", |fixture| fixture.networks() == ["south"]);
    assert_eq!(fixture.timeout(), 3, "a change of one file does not affect the other");
}

#[test]
fn invalid_files_keep_the_last_valid_settings() {
    let fixture = fixture(|root| {
        write(root, "objects/istio.yaml", &config_map("20s", "below"));
        write(root, "mesh/config", &config("1s"));
    });
    fixture.write("mesh/config", &config("soon"));
    fixture.until("an invalid value is reported", |fixture| fixture.problem("mesh/config").is_some());
    let problem = fixture.problem("mesh/config").expect("reported");
    assert!(problem.line == 2 && problem.reason.contains("connectTimeout"), "{problem:?}");
    fixture.write("mesh/config", "connectTimeout: 4s\naccessLogFile: [\n");
    fixture
        .until("invalid YAML is reported", |fixture| fixture.problem("mesh/config").is_some_and(|now| now != problem));
    fixture.check_timeout_does_not_change(1, Duration::from_millis(500));
    fixture.write("mesh/networks", "networks: 7\n");
    fixture.until("invalid networks are reported", |fixture| {
        fixture.problem("mesh/networks").is_some_and(|now| now.line == 1)
    });
    assert_eq!(fixture.networks(), ["below"]);
    // The file gets its earlier content again.
    fixture.write("mesh/config", &config("1s"));
    fixture.until("the problem is no longer reported", |fixture| fixture.problem("mesh/config").is_none());
    assert_eq!(fixture.timeout(), 1);
    fixture.write("mesh/config", &config("5s"));
    fixture.until_timeout(5);
}

#[test]
fn without_a_file_the_config_map_applies() {
    let fixture = fixture(|root| {
        write(root, "objects/istio.yaml", &config_map("20s", "below"));
        write(root, "mesh/config", &config("1s"));
        write(root, "mesh/networks", &networks("above"));
    });
    assert_eq!((fixture.timeout(), fixture.networks()), (1, vec!["above".to_owned()]));
    fixture.remove("mesh/config");
    fixture.until_timeout(20);
    assert_eq!(fixture.networks(), ["above"]);
    fixture.remove("mesh/networks");
    fixture.until("the networks below", |fixture| fixture.networks() == ["below"]);
    // Changes of the ConfigMap are followed while the file overrides it.
    fixture.write("mesh/config", &config("2s"));
    fixture.until_timeout(2);
    fixture.write("objects/istio.yaml", &config_map("30s", "deeper"));
    fixture.until("the other key of the ConfigMap applies", |fixture| fixture.networks() == ["deeper"]);
    assert_eq!(fixture.timeout(), 2);
    fixture.remove("mesh/config");
    fixture.until_timeout(30);
    // Its removal is followed too.
    fixture.write("mesh/config", &config("3s"));
    fixture.until_timeout(3);
    fixture.remove("objects/istio.yaml");
    fixture.until("no networks", |fixture| fixture.networks().is_empty());
    assert_eq!(fixture.timeout(), 3);
    fixture.remove("mesh/config");
    fixture.until_timeout(10);
}

#[test]
fn an_invalid_config_map_keeps_its_last_valid_settings_below_the_files() {
    let fixture = fixture(|root| {
        write(root, "objects/istio.yaml", &config_map("soon", "below"));
        write(root, "mesh/config", &config("1s"));
    });
    let rejects = |fixture: &MeshFilesFixture| fixture.engine.snapshot().iter(&fixture.handles.rejects).count();
    assert_eq!((fixture.timeout(), rejects(&fixture)), (1, 1));
    fixture.remove("mesh/config");
    fixture.until_timeout(10);
    assert_eq!(rejects(&fixture), 1, "it is still invalid");
    fixture.write("objects/istio.yaml", &config_map("20s", "below"));
    fixture.until_timeout(20);
    fixture.write("mesh/config", &config("2s"));
    fixture.until_timeout(2);
    fixture.write("objects/istio.yaml", &config_map("never", "below"));
    fixture.until("it is invalid again", |fixture| rejects(fixture) == 1);
    fixture.remove("mesh/config");
    fixture.until_timeout(20);
}

#[test]
fn mounted_config_maps_are_followed_through_their_link() {
    let fixture = fixture(|root| {
        write(root, "mesh/..one/config", &config("1s"));
        write(root, "mesh/..one/networks", &networks("one"));
        symlink("..one", root.join("mesh/..data")).expect("linked");
        symlink("..data/config", root.join("mesh/config")).expect("linked");
        symlink("..data/networks", root.join("mesh/networks")).expect("linked");
    });
    assert_eq!((fixture.timeout(), fixture.networks()), (1, vec!["one".to_owned()]));
    let started = Instant::now();
    fixture.write("mesh/..two/config", &config("2s"));
    fixture.write("mesh/..two/networks", &networks("two"));
    symlink("..two", fixture.root.join("mesh/..tmp")).expect("linked");
    fs::rename(fixture.root.join("mesh/..tmp"), fixture.root.join("mesh/..data")).expect("moved");
    fs::remove_dir_all(fixture.root.join("mesh/..one")).expect("removed");
    fixture.until_timeout(2);
    assert!(
        started.elapsed() < RESCAN_INTERVAL,
        "the change is notified, not found by a rescan: {:?}",
        started.elapsed()
    );
    assert_eq!(fixture.networks(), ["two"], "both settings change together");
}

#[test]
fn a_file_replaced_by_rename_is_never_absent() {
    let fixture = fixture(|root| {
        write(root, "objects/istio.yaml", &config_map("20s", "below"));
        write(root, "mesh/config", &config("1s"));
    });
    // As editors do: rename the old file, then write the new one.
    fs::rename(fixture.root.join("mesh/config"), fixture.root.join("mesh/config~")).expect("moved");
    fixture.check_timeout_does_not_change(1, Duration::from_millis(50));
    fixture.write("mesh/config", &config("1s"));
    fixture.check_timeout_does_not_change(1, LONGER_THAN_RESCAN);
    // The file is empty for a moment while it is written, which has no effect.
    let file = fs::File::create(fixture.root.join("mesh/config")).expect("opened");
    fixture.check_timeout_does_not_change(1, Duration::from_millis(50));
    fs::write(fixture.root.join("mesh/config"), config("2s")).expect("written");
    drop(file);
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        assert!([1, 2].contains(&fixture.timeout()), "{}", fixture.timeout());
    }
    fixture.until_timeout(2);
}

#[test]
fn directories_created_later_and_links_to_other_directories_are_followed() {
    let fixture = fixture(|_| {});
    assert_eq!(fixture.timeout(), 10);
    fixture.write("elsewhere/config", &config("1s"));
    fs::create_dir(fixture.root.join("mesh")).expect("made");
    symlink("../elsewhere/config", fixture.root.join("mesh/config")).expect("linked");
    fixture.until_timeout(1);
    fixture.write("elsewhere/config", &config("2s"));
    fixture.until_timeout(2);
    fs::remove_dir_all(fixture.root.join("mesh")).expect("removed");
    fixture.until_timeout(10);
    fixture.write("mesh/config", &config("3s"));
    fixture.until_timeout(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_shows_the_settings_in_force_and_warns_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    write(root, "objects/istio.yaml", &config_map("20s", "below"));
    write(root, "mesh/config", &config("1s"));
    let (log, mesh) = (root.join("log"), root.join("mesh/config"));
    let args = vec![format!("--meshConfig={}", mesh.display())];
    let options = Options { args, log: Some(log.clone()), ..Options::new(&root.join("objects")) };
    let server = Sluiced::start(&options).await.expect("sluiced starts");
    let until_timeout = async |seconds: u64| {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let (status, text) = server.get("/debug/mesh").await.expect("an answer");
            let shown: Value = serde_json::from_str(&text).expect("JSON");
            if status == 200 && shown["connectTimeout"] == format!("{seconds}s") {
                return;
            }
            assert!(Instant::now() < deadline, "{seconds}: {text}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until_timeout(1).await;
    write(root, "mesh/config", &config("2s"));
    until_timeout(2).await;
    write(root, "mesh/config", &config("soon"));
    let warnings = || {
        let text = fs::read_to_string(&log).expect("the log");
        text.lines().filter(|line| line.contains("cannot read configuration")).map(str::to_owned).collect::<Vec<_>>()
    };
    until("the invalid file is logged", || (!warnings().is_empty()).then_some(())).await;
    until_timeout(2).await;
    // The same content again. Nothing shows that the file was read, so the test waits.
    write(root, "mesh/config", &config("soon"));
    tokio::time::sleep(LONGER_THAN_RESCAN).await;
    let warnings_before = warnings();
    assert!(
        matches!(&warnings_before[..], [one] if one.contains("mesh/config") && one.contains("\"line\":2")),
        "{warnings_before:?}"
    );
    let (_, rejects) = server.get("/debug/rejects").await.expect("an answer");
    assert!(rejects.contains("mesh/config"), "{rejects}");
    fs::remove_file(&mesh).expect("removed");
    until_timeout(20).await;
    assert_eq!(server.stop(Duration::from_secs(10)).await.expect("it stops"), Some(0));
}
