//! Every error that prevents the start has a message and an exit code.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{LoggedProcess, start, wait};

/// The result of a run.
struct Outcome {
    code: Option<i32>,
    output: String,
    error: String,
}

/// Runs the binary with every port closed unless a flag opens it. A process that does not end is killed.
fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Outcome {
    let mut child = start(arguments, environment);
    let code = wait(&mut child, Duration::from_secs(20));
    let (mut output, mut error) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut output).expect("text");
    child.stderr.take().expect("piped").read_to_string(&mut error).expect("text");
    Outcome { code, output, error }
}

/// Checks that a run ends with that code, and that its error output contains all parts.
fn check(arguments: &[&str], code: i32, parts: &[&str]) {
    let outcome = run(arguments, &[]);
    for part in parts {
        assert!(outcome.error.contains(part), "{arguments:?}: {part:?} is not in {:?}", outcome.error);
    }
    assert_eq!(outcome.code, Some(code), "{arguments:?}: {}\n{}", outcome.error, outcome.output);
}

fn directory(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).expect("a file");
    }
    let path = directory.path().to_owned();
    (directory, path)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn invalid_flags_are_named() {
    check(&["--configDir=/", "--shutdownDuration=soon"], 2, &["--shutdownDuration", "\"soon\"", "10s"]);
    check(&["--configDir=/", "--grpcAddr=nowhere"], 2, &["--grpcAddr", "no port"]);
    check(&["--configDir=/", "--log_output_level=ads:loud"], 2, &["--log_output_level", "loud"]);
    check(&["--configDir=/", "--remoteConfigDir=x"], 2, &["--remoteConfigDir", "NAME=VALUE"]);
    check(&["nonsense"], 2, &["nonsense"]);
}

#[test]
fn invalid_variables_are_named() {
    let outcome = run(&["--configDir=manifests/demo"], &[("PILOT_HTTP10", "yes")]);
    assert!(outcome.error.contains("PILOT_HTTP10: \"yes\" is not supported: use true or false"), "{}", outcome.error);
    assert_eq!(outcome.code, Some(2), "{}", outcome.error);
}

#[test]
fn a_cluster_signer_needs_a_cluster() {
    let variables = [("PILOT_CERT_PROVIDER", "k8s.io/example.com/mesh"), ("ENABLE_CA_SERVER", "false")];
    let outcome = run(&["--configDir=manifests/demo"], &variables);
    let expect = "PILOT_CERT_PROVIDER=k8s.io/example.com/mesh: there is no Kubernetes API";
    assert!(outcome.error.contains(expect), "{}", outcome.error);
    assert_eq!(outcome.code, Some(7), "{}", outcome.error);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (_keep, path) = directory(&[]);
    let path = format!("--configDir={}", text(&path));
    for flag in ["--grpcAddr", "--httpAddr", "--monitoringAddr"] {
        check(&[&path, &format!("{flag}={address}")], 3, &[flag, &address, "in use"]);
    }
}

#[test]
fn an_absent_directory_is_named() {
    check(&["--configDir=/no/such/directory"], 4, &["/no/such/directory", "No such file"]);
    let (_keep, path) = directory(&[("file.yaml", "")]);
    let file = text(&path.join("file.yaml"));
    check(&[&format!("--configDir={file}")], 4, &[&file, "not a directory"]);
    let local = format!("--configDir={}", text(&path));
    check(&[&local, "--remoteConfigDir=east=/no/such/directory"], 4, &["/no/such/directory"]);
}

#[test]
fn an_unusable_cluster_is_named() {
    check(&["--kubeconfig=/no/such/kubeconfig"], 4, &["Kubernetes API", "/no/such/kubeconfig"]);
    let (_keep, path) = directory(&[("kubeconfig", "apiVersion: v1\nkind: Config\nclusters: 7\n"), ("empty", "")]);
    let file = text(&path.join("kubeconfig"));
    check(&[&format!("--kubeconfig={file}")], 4, &["Kubernetes API", &file]);
    let file = text(&path.join("empty"));
    check(&[&format!("--kubeconfig={file}")], 4, &["Kubernetes API", &file]);
    check(&[], 4, &["Kubernetes API", "--kubeconfig", "--configDir"]);
}

#[test]
fn invalid_mesh_settings_are_named_with_their_line() {
    let (_keep, path) = directory(&[
        ("syntax", "connectTimeout: 5s\naccessLogFile: [\n"),
        ("value", "accessLogFile: /dev/stdout\nconnectTimeout: soon\n"),
    ]);
    let config = format!("--configDir={}", text(&path));
    for (file, line) in [("syntax", "line "), ("value", "line 2: connectTimeout")] {
        let file = text(&path.join(file));
        check(&[&config, &format!("--meshConfig={file}")], 5, &[&file, line]);
    }
    let file = text(&path.join("syntax"));
    check(&[&config, &format!("--networksConfig={file}")], 5, &[&file, "line "]);
}

#[test]
fn invalid_yaml_is_named_and_fatal_only_if_requested() {
    let good = "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}\n";
    let (_keep, path) =
        directory(&[("good.yaml", good), ("bad.yaml", "kind: A\n---\nkind: Service\nmetadata: {name: x\n")]);
    let (config, file) = (format!("--configDir={}", text(&path)), text(&path.join("bad.yaml")));
    check(&[&config, "--strictConfig"], 6, &[&file, "line "]);
    // Otherwise it serves the valid objects, and logs the invalid ones.
    let outcome = run_until(&[&config], "ready");
    assert!(outcome.contains("ready") && outcome.contains("bad.yaml") && outcome.contains("line="), "{outcome}");
}

/// Runs until a line of the log has this text, stops the process with a signal, and returns the log.
fn run_until(arguments: &[&str], text: &str) -> String {
    let arguments = [&["--grpcAddr=127.0.0.1:0"], arguments].concat();
    let process = LoggedProcess::start(&arguments);
    let mut log = String::new();
    while !log.lines().any(|line| line.contains(text)) {
        log += &process.line().unwrap_or_else(|| panic!("no line has {text}:\n{log}"));
        log += "\n";
    }
    let (code, rest) = process.stop();
    log += &rest;
    assert_eq!(code, Some(0), "{log}");
    log
}

#[test]
fn ports_of_proxies_are_closed_until_the_state_is_read() {
    // The API server accepts connections and does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = silent.local_addr().expect("an address");
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: a, cluster: {{server: 'http://{server}'}}}}]\n\
         users: [{{name: a, user: {{}}}}]\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
    );
    let (_keep, path) = directory(&[("kubeconfig", &kubeconfig)]);
    let free = || TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
    let ports = [("grpcAddr", free()), ("secureGRPCAddr", free()), ("httpsAddr", free())];
    let mut arguments = vec!["--httpAddr=127.0.0.1:0".to_owned()];
    arguments.push(format!("--kubeconfig={}", text(&path.join("kubeconfig"))));
    arguments.extend(ports.map(|(flag, address)| format!("--{flag}={address}")));
    let process = LoggedProcess::start(&arguments);
    let mut lines = std::iter::from_fn(|| process.line());
    let line = lines.find(|line| line.contains("listening name=http ")).expect("the address is logged");
    let http = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("an address");
    let mut stream = TcpStream::connect(http).expect("operators are served");
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    for part in ["HTTP/1.1 503", "\nnot ready\n", "[-] configuration: not read yet\n", "[-] ports: not open yet\n"] {
        assert!(answer.contains(part), "{part:?} is not in {answer}");
    }
    for (flag, address) in ports {
        let error = TcpStream::connect(address).map(|_| ()).expect_err(flag);
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{flag}");
    }
}

#[test]
fn stopped_process_exits_with_code_0() {
    let (_keep, path) = directory(&[]);
    let log = run_until(&["discovery", &format!("--configDir={}", text(&path))], "listening name=grpc");
    assert!(log.contains("listening name=grpc address=127.0.0.1:") && log.contains("stopped"), "{log}");
}

#[test]
fn deployments_in_a_directory_are_reported_once() {
    let deployments = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: ratings-v1}\n---\n\
                       apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: ratings-v2}\n";
    let (_keep, path) = directory(&[("bookinfo.yaml", deployments)]);
    let log = run_until(&[&format!("--configDir={}", text(&path))], "ready");
    assert_eq!(log.matches("workloads in a directory create no pods").count(), 1, "{log}");
}

#[test]
fn help_and_version_are_complete() {
    let help = run(&["--help"], &[]);
    assert_eq!(help.code, Some(0));
    for part in [
        "--configDir",
        "--kubeconfig",
        "--grpcAddr",
        ":15010",
        "--shutdownDuration",
        "10s",
        "Exit codes",
        "POD_NAMESPACE",
    ] {
        assert!(help.output.contains(part), "{part} is not in the help");
    }
    let version = run(&["version"], &[]);
    assert_eq!((version.code, version.output.as_str()), (Some(0), concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n")));
}
