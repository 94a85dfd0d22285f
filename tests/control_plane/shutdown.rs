//! SIGTERM at any moment ends the process in order.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use serde_json::json;
use sluice_testkit::ads::{AdsStream, Identity, Protocol, connect};
use sluice_testkit::server::{Options, Sluiced};

use crate::process::{GUARD, LoggedProcess};

/// The shutdown limit of the processes. It is shorter than `GUARD`.
const SHUTDOWN: &str = "--shutdownDuration=5s";

/// Objects of a mesh whose read takes some time.
fn write_mesh(directory: &Path, services: usize) {
    let mut text = String::new();
    for n in 0..services {
        write!(
            text,
            "apiVersion: v1\nkind: Service\nmetadata: {{name: s{n}, namespace: shop}}\n\
             spec: {{clusterIP: 10.{}.{}.{}, ports: [{{name: http, port: 80}}]}}\n---\n",
            n >> 16,
            n >> 8 & 255,
            n & 255,
        )
        .expect("written");
    }
    std::fs::write(directory.join("services.yaml"), text).expect("written");
}

/// Whether the process has a handler for SIGTERM. Before, the signal ends it like any other process.
fn handles_sigterm(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    u64::from_str_radix(caught.trim(), 16).is_ok_and(|mask| mask >> 14 & 1 == 1)
}

/// Starts a process, and stops it once its log has this number of lines, or is complete.
fn stop_after(directory: &Path, count: usize) -> (Option<i32>, String) {
    let directory = format!("--configDir={}", directory.display());
    let ports = ["--grpcAddr=127.0.0.1:0", "--httpAddr=127.0.0.1:0", "--secureGRPCAddr=127.0.0.1:0"];
    let mut process = LoggedProcess::start(&[&ports, [SHUTDOWN, &directory].as_slice()].concat());
    while !handles_sigterm(&process.child) {
        assert_eq!(process.child.try_wait().expect("a child"), None, "it has ended");
    }
    let mut log = String::new();
    for _ in 0..count {
        log += &process.line().expect("a line");
        log += "\n";
        if log.contains("ready epoch") {
            break;
        }
    }
    let (code, rest) = process.stop();
    (code, log + &rest)
}

#[test]
fn sigterm_at_any_moment_of_the_start_ends_the_process_with_exit_code_0() {
    let directory = tempfile::tempdir().expect("a directory");
    write_mesh(directory.path(), 1_000);
    for count in 0..14 {
        let (code, log) = stop_after(directory.path(), count);
        assert_eq!(code, Some(0), "after line {count}:\n{log}");
        assert!(!log.contains("panicked") && !log.contains("did not end within"), "after line {count}:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_under_load_ends_the_process_with_exit_code_0() {
    for changes in [0, 1, 3, 10, 30, 60] {
        let directory = tempfile::tempdir().expect("a directory");
        write_mesh(directory.path(), 300);
        let log = directory.path().join("log");
        let options =
            Options { args: vec![SHUTDOWN.to_owned()], log: Some(log.clone()), ..Options::new(directory.path()) };
        let server = Sluiced::start(&options).await.expect("it starts");
        let mut streams = Vec::new();
        for n in 0..10 {
            let id = format!("sidecar~10.9.0.{n}~web-{n}.shop~shop.svc.cluster.local");
            let identity = Identity::of_node(&json!({"id": id})).expect("a node");
            let channel = connect(server.grpc).await.expect("connected");
            let mut stream = AdsStream::open(channel, Protocol::Delta, identity).expect("a stream");
            stream
                .subscribe("type.googleapis.com/envoy.config.cluster.v3.Cluster", &[], Default::default())
                .expect("sent");
            streams.push(stream);
        }
        for change in 0..changes {
            let text = format!(
                "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: d, namespace: shop}}\n\
                 spec: {{host: s{change}, trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {change}}}}}}}}}\n"
            );
            std::fs::write(directory.path().join("rule.yaml"), text).expect("written");
            streams[change % 10].next_within(Duration::from_millis(5)).await.ok();
        }
        assert_eq!(server.stop(GUARD).await.expect("it stops"), Some(0), "after {changes} changes");
        let log = std::fs::read_to_string(log).expect("the log");
        assert!(!log.contains("panicked") && !log.contains("did not end within"), "after {changes} changes:\n{log}");
    }
}
