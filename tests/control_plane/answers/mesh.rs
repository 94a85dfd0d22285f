//! A small mesh in files, its proxies, and `sluicectl`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sluice_testkit::ads::{AdsStream, Identity, Kind, Protocol, connect};
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::server::{Options, Sluiced};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::process::GUARD;

/// The cluster of the subset that requests to `ratings` are routed to.
pub(super) const RATINGS_V1: &str = "outbound|80|v1|ratings.shop.svc.cluster.local";
pub(super) const RATINGS_HOST: &str = "ratings.shop.svc.cluster.local:80";

/// Time after which a command that does not end is a failure.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// A running control plane with the objects of `objects.yaml`.
pub(crate) struct AnswersFixture {
    pub(super) directory: TempDir,
    pub(crate) server: Sluiced,
}

/// The output of `sluicectl`.
pub(super) struct Answer {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) errors: String,
}

impl Answer {
    /// The JSON that was printed.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.errors))
    }
}

/// Runs `sluicectl`.
pub(super) async fn run(arguments: &[&str]) -> Answer {
    let binary = workspace_binary("sluicectl").expect("sluicectl is built");
    let output = tokio::process::Command::new(binary).args(arguments).kill_on_drop(true).output();
    let output = tokio::time::timeout(COMMAND_TIMEOUT, output).await.expect("sluicectl ends in time");
    let output = output.expect("sluicectl runs");
    Answer {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        errors: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

impl AnswersFixture {
    pub(crate) async fn start() -> Self {
        Self::with_variables(Vec::new()).await
    }

    /// Starts the control plane with these environment variables.
    pub(super) async fn with_variables(variables: Vec<(String, String)>) -> Self {
        Self::launch(variables, &[]).await
    }

    /// Starts the control plane with further files of objects: name and content.
    pub(crate) async fn start_with(files: &[(&str, &str)]) -> Self {
        Self::launch(Vec::new(), files).await
    }

    async fn launch(variables: Vec<(String, String)>, files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, content) in [("objects.yaml", include_str!("objects.yaml"))].iter().chain(files) {
            std::fs::write(directory.path().join(name), content).expect("written");
        }
        write_route(directory.path(), 1, "v1");
        let options = Options { env: variables, ..Options::new(directory.path()) };
        let server = Sluiced::start(&options).await.expect("sluiced starts");
        Self { directory, server }
    }

    /// Runs `sluicectl` against the server.
    pub(super) async fn ctl(&self, arguments: &[&str]) -> Answer {
        let address = format!("--address=http://{}", self.server.http);
        run(&[arguments, &[&address]].concat()).await
    }

    /// The answer as JSON; the command succeeds.
    pub(crate) async fn answer(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
        let answer = self.ctl(&arguments).await;
        assert_eq!(answer.code, 0, "{arguments:?}: {}{}", answer.out, answer.errors);
        answer.json()
    }

    /// Adds a file of objects, with one rename, so that no half of it is read.
    pub(crate) fn add_file(&self, name: &str, content: &str) {
        write_whole(self.directory.path(), name, content);
    }

    /// Routes requests to `ratings` to a subset, by a new generation of the VirtualService.
    pub(crate) fn route_to(&self, generation: u32, subset: &str) {
        write_route(self.directory.path(), generation, subset);
    }

    /// Connects a sidecar, which subscribes to clusters, the endpoints of `ratings` and the routes of port 80. It has received all.
    pub(crate) async fn connect(&self, pod: &str, workload: &str) -> Client {
        Client::connect(&self.server, pod, workload).await
    }
}

/// Writes a file with one rename.
fn write_whole(directory: &Path, name: &str, content: &str) {
    std::fs::write(directory.join("staged"), content).expect("written");
    std::fs::rename(directory.join("staged"), directory.join(name)).expect("renamed");
}

/// Writes the VirtualService of `ratings`.
fn write_route(directory: &Path, generation: u32, subset: &str) {
    let text = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\n\
         metadata: {{name: ratings, namespace: shop, generation: {generation}, creationTimestamp: '2026-01-01T00:00:00Z'}}\n\
         spec:\n  hosts: [ratings.shop.svc.cluster.local]\n  http:\n  - route:\n    - destination: {{host: ratings.shop.svc.cluster.local, subset: {subset}}}\n"
    );
    write_whole(directory, "route.yaml", &text);
}

/// A connected sidecar that acknowledges what it is sent.
pub(crate) struct Client {
    withholds: Arc<AtomicBool>,
    received: watch::Receiver<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    /// As [`AnswersFixture::connect`], to another server.
    pub(super) async fn connect(server: &Sluiced, pod: &str, workload: &str) -> Self {
        let node = json!({
            "id": format!("sidecar~10.0.9.9~{pod}.shop~shop.svc.cluster.local"),
            "metadata": {"NAME": pod, "NAMESPACE": "shop", "LABELS": {"app": workload}, "WORKLOAD_NAME": workload, "CLUSTER_ID": "Kubernetes"},
        });
        let channel = connect(server.grpc).await.expect("a connection");
        let identity = Identity::of_node(&node).expect("a node");
        let mut stream = AdsStream::open(channel, Protocol::Delta, identity).expect("a stream");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        stream.subscribe(Kind::Cds.type_url(), &[], BTreeMap::new()).expect("sent");
        stream.subscribe(Kind::Eds.type_url(), &names(&[RATINGS_V1]), BTreeMap::new()).expect("sent");
        stream.subscribe(Kind::Rds.type_url(), &names(&["80"]), BTreeMap::new()).expect("sent");
        let (sender, mut received) = watch::channel(0);
        let withholds = Arc::new(AtomicBool::new(false));
        let flag = withholds.clone();
        let task = tokio::spawn(async move {
            while let Ok(Some(update)) = stream.next().await {
                if !flag.load(Ordering::SeqCst) {
                    stream.ack(&update).expect("the stream is open");
                }
                sender.send_modify(|count| *count += 1);
            }
        });
        more_than(2, &mut received).await;
        Self { withholds, received, task }
    }

    /// From now on, nothing is acknowledged.
    pub(super) fn withhold(&self) {
        self.withholds.store(true, Ordering::SeqCst);
    }

    /// Number of updates so far.
    pub(super) fn updates(&self) -> u64 {
        *self.received.borrow()
    }

    /// Waits for one more update than this.
    pub(super) async fn updated_after(&mut self, count: u64) {
        more_than(count, &mut self.received).await;
    }
}

async fn more_than(count: u64, received: &mut watch::Receiver<u64>) {
    let more = received.wait_for(|now| *now > count);
    let more = tokio::time::timeout(GUARD, more).await.expect("an update in time");
    more.expect("the stream is open");
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}
