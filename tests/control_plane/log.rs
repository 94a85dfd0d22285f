//! A log that cannot be written, or that nothing reads, stops nothing else.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use sluice_testkit::server::get;

/// A free port of the loopback.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address")
}

/// A process whose log cannot be read, with its HTTP port.
struct MutedServer {
    child: Child,
    http: SocketAddr,
    directory: tempfile::TempDir,
}

impl MutedServer {
    /// Starts the process with the log at level debug, and waits until it is ready.
    async fn start(stdout: Stdio, stderr: Stdio) -> Self {
        let (http, directory) = (free_address(), tempfile::tempdir().expect("a directory"));
        let child = Command::new(env!("CARGO_BIN_EXE_sluiced"))
            .args([
                "--grpcAddr=",
                "--monitoringAddr=",
                "--secureGRPCAddr=",
                "--httpsAddr=",
                "--ctrlz_address=",
                "--log_output_level=all:debug",
            ])
            .arg(format!("--httpAddr={http}"))
            .arg(format!("--configDir={}", directory.path().display()))
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .expect("the binary runs");
        let mut server = Self { child, http, directory };
        while !matches!(get(http, "/ready").await, Ok((200, _))) {
            assert_eq!(server.child.try_wait().expect("a child"), None, "it has ended");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server
    }

    /// Writes lines of the log: each file that is not YAML is one.
    fn write_lines(&self, count: usize) {
        for n in 0..count {
            let text = format!("a: [ # {}\n", "x".repeat(2048));
            std::fs::write(self.directory.path().join(format!("{n}.yaml")), text).expect("written");
        }
    }

    async fn dropped_lines(&self) -> u64 {
        let (_, text) = get(self.http, "/metrics").await.expect("metrics");
        let line = text.lines().find_map(|line| line.strip_prefix("sluice_log_lines_dropped_total "));
        line.expect("the metric").trim().parse().expect("a number")
    }

    fn stop(mut self) -> ExitStatus {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(killed.success(), "the process was running");
        self.child.wait().expect("it ends")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_of_the_log_is_counted_and_stops_nothing() {
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").expect("open"));
    let server = MutedServer::start(full(), full()).await;
    while server.dropped_lines().await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_log_stops_nothing() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let stderr = writer.try_clone().expect("a clone");
    drop(reader);
    let server = MutedServer::start(writer.into(), stderr.into()).await;
    while server.dropped_lines().await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_that_is_not_read_stops_nothing() {
    // Nothing reads the pipe, which holds 64 KiB.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let stderr = writer.try_clone().expect("a clone");
    let server = MutedServer::start(writer.into(), stderr.into()).await;
    server.write_lines(1000);
    while !get(server.http, "/debug/rejects").await.expect("an answer").1.contains("999.yaml") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(get(server.http, "/ready").await.expect("an answer").0, 200);
    assert_eq!(server.stop().code(), Some(0), "it does not wait for the reader of the log");
    let first = BufReader::new(reader).lines().next().expect("a line").expect("text");
    assert!(first.contains('\t'), "{first}");
}

/// The log of a process that ends at once, because it has no directory.
fn log_of(flags: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sluiced"))
        .args(["--configDir=/does/not/exist", "--httpsAddr=", "--ctrlz_address="])
        .args(flags)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs");
    assert!(!output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn lines_have_callers_and_the_names_of_google_cloud_on_request() {
    let text = log_of(&["--log_caller=default"]);
    let line = text.lines().find(|line| line.contains("\terror\tdefault\t")).expect("an error");
    assert!(line.contains("\tsrc/main.rs:"), "{line}");
    assert!(!log_of(&["--log_caller=ads"]).contains("src/main.rs:"));

    let text = log_of(&["--log_stackdriver", "--log_stacktrace_level=default:error"]);
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let line = lines.into_iter().find(|line| line["severity"] == "ERROR").expect("an error");
    assert_eq!(line["logger"], "default");
    assert!(line["message"].is_string() && line["timestamp"].is_string(), "{line}");
    assert!(line["stacktrace"].as_str().is_some_and(|trace| trace.contains("sluiced::run")), "{line}");
}

#[test]
fn log_is_written_to_each_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let [file, rotated] = ["a.log", "logs/b.log"].map(|name| directory.path().join(name));
    let flags = [
        "--log_target=stdout".to_owned(),
        format!("--log_target={}", file.display()),
        format!("--log_rotate={}", rotated.display()),
    ];
    let text = log_of(&flags.each_ref().map(String::as_str));
    assert!(!text.is_empty());
    for file in [file, rotated] {
        assert_eq!(std::fs::read_to_string(&file).expect("written"), text, "{}", file.display());
    }
}
