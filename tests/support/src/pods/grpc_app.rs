//! An application with a gRPC library that reads the configuration of the mesh itself (X28): `tests/support/grpc/app.py`, or that
//! in `tests/support/grpc/go`. Both have the same flags, commands and answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::command_process::CommandProcess;
use super::network::PodNet;
use super::workload::{GrpcLibrary, PortProtocol, Workload};

/// Equal calls, one after the other.
#[derive(Clone, Debug, Serialize)]
pub struct GrpcCall {
    /// Target of the channel.
    pub target: String,
    /// Number of calls.
    pub count: u32,
    /// Deadline of each call.
    pub timeout_seconds: u32,
    /// Without the credentials of xDS.
    pub plaintext: bool,
    /// On a new connection, which is closed afterwards.
    pub new_connection: bool,
    /// `/SERVICE/METHOD`.
    pub path: String,
    /// Metadata of the calls.
    pub metadata: BTreeMap<String, String>,
    /// How the server fails them.
    pub failure: Option<GrpcFailure>,
    /// The server answers after this delay.
    pub delay_seconds: u32,
}

/// A server fails the first calls with a key.
#[derive(Clone, Debug, Serialize)]
pub struct GrpcFailure {
    /// Name of the code.
    pub code: String,
    /// Number of calls to fail.
    pub first: u32,
    /// Distinguishes calls; each server counts those with this key.
    pub key: String,
}

impl GrpcCall {
    /// One call of `/shop.Tea/Get`, with a deadline of ten seconds.
    #[must_use]
    pub fn new(target: &str) -> Self {
        Self {
            target: target.to_owned(),
            count: 1,
            timeout_seconds: 10,
            plaintext: false,
            new_connection: false,
            path: "/shop.Tea/Get".to_owned(),
            metadata: BTreeMap::new(),
            failure: None,
            delay_seconds: 0,
        }
    }

    /// So many of them.
    #[must_use]
    pub const fn times(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Of another method.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// With metadata.
    #[must_use]
    pub fn metadata(mut self, name: &str, value: &str) -> Self {
        self.metadata.insert(name.to_owned(), value.to_owned());
        self
    }

    /// On a new connection.
    #[must_use]
    pub const fn new_connection(mut self) -> Self {
        self.new_connection = true;
        self
    }

    /// Without the credentials of xDS.
    #[must_use]
    pub const fn plaintext(mut self) -> Self {
        self.plaintext = true;
        self
    }

    /// The server answers after a delay. The deadline of the call is later.
    #[must_use]
    pub const fn delay_seconds(mut self, seconds: u32) -> Self {
        self.delay_seconds = seconds;
        self.timeout_seconds += seconds;
        self
    }

    /// The server fails the `first` calls with this key.
    #[must_use]
    pub fn failure(mut self, code: &str, first: u32, key: &str) -> Self {
        self.failure = Some(GrpcFailure { code: code.to_owned(), first, key: key.to_owned() });
        self
    }
}

/// The outcome of calls.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct GrpcOutcome {
    /// Number of calls by `NAME VERSION` of the application that answered, or by the name of the error code.
    pub counts: BTreeMap<String, u32>,
    /// The answer to the last call.
    pub last: GrpcAnswer,
}

impl GrpcOutcome {
    /// Checks that this application, or an error with this code, answered every call.
    ///
    /// # Errors
    /// Another one did.
    pub fn only(&self, expected: &str) -> Result<&GrpcAnswer> {
        ensure!(self.counts.keys().eq([expected]), "expected {expected}, but received {self:?}");
        Ok(&self.last)
    }
}

/// The answer to a call: the call as it arrived, or the error.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GrpcAnswer {
    /// Metadata that arrived.
    pub metadata: BTreeMap<String, String>,
    /// Names in the certificate of the client.
    pub identities: Vec<String>,
    /// The certificate of the client, PEM.
    pub certificate: String,
    /// The message of an error.
    pub error: String,
}

/// A resource that the library subscribes to, as CSDS shows it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct ClientResource {
    /// Last part of the name of its type.
    pub r#type: String,
    /// Name.
    pub name: String,
    /// `ACKED`, `NACKED`, `REQUESTED` or another status.
    pub status: String,
    /// Why it was rejected.
    pub error: String,
}

/// A command to the application.
#[derive(Serialize)]
struct GrpcCommand<'a> {
    run: GrpcAction<'a>,
}

#[derive(Serialize)]
enum GrpcAction<'a> {
    Call(&'a GrpcCall),
    Resources,
    Stop { grace_seconds: u32 },
}

/// The reply to a command.
#[derive(Deserialize)]
struct GrpcReply<T> {
    outcome: T,
}

/// The running application. It ends when this is dropped.
pub struct GrpcApp {
    process: CommandProcess,
    log: PathBuf,
}

impl GrpcApp {
    /// Starts the application of a pod, whose agent has written the bootstrap below `directory`. It serves on the ports of the
    /// workload.
    ///
    /// # Errors
    /// The library is not installed, or the application does not start.
    pub(super) async fn start(
        library: GrpcLibrary,
        workload: &Workload,
        net: &PodNet,
        directory: &Path,
    ) -> Result<Self> {
        let log = directory.join("app.log");
        let mut command = program(library, net)?;
        command.args(["--name", workload.app, "--version", workload.version]);
        let ip = if net.namespace.is_some() { "0.0.0.0".to_owned() } else { net.ip.to_string() };
        for port in workload.listening() {
            let flag = match port.protocol {
                PortProtocol::Grpc => "listen",
                PortProtocol::PlainGrpc => "listen-plain",
                other => bail!("port {}: the application does not speak {other:?}", port.name),
            };
            command.arg(format!("--{flag}={ip}:{}", port.number));
        }
        command
            .env("GRPC_XDS_BOOTSTRAP", directory.join("etc/istio/proxy/grpc-bootstrap.json"))
            .stderr(std::fs::File::create(&log).context("make the log of the application")?);
        let process = CommandProcess::start(command).await.with_context(|| read(&log))?;
        Ok(Self { process, log })
    }

    async fn run<T: serde::de::DeserializeOwned>(&self, run: GrpcAction<'_>) -> Result<T> {
        let reply: GrpcReply<T> = self.process.run(&GrpcCommand { run }).await.with_context(|| self.log())?;
        Ok(reply.outcome)
    }

    /// Sends calls.
    ///
    /// # Errors
    /// The application has ended. A call that fails is a part of the outcome.
    pub async fn call(&self, call: &GrpcCall) -> Result<GrpcOutcome> {
        self.run(GrpcAction::Call(call)).await
    }

    /// The resources that its library subscribes to.
    ///
    /// # Errors
    /// The application has ended.
    pub async fn resources(&self) -> Result<Vec<ClientResource>> {
        self.run(GrpcAction::Resources).await
    }

    /// Stops the server: clients are told to connect elsewhere, and running calls end.
    ///
    /// # Errors
    /// The application has ended.
    pub async fn stop_serving(&self) -> Result<()> {
        self.run(GrpcAction::Stop { grace_seconds: 30 }).await
    }

    /// The end of its log.
    #[must_use]
    pub fn log(&self) -> String {
        read(&self.log)
    }
}

/// Whether the application with this library is built. If not, a warning is printed; in CI that is a failure.
///
/// # Panics
/// This is CI, and it is not built.
#[must_use]
pub fn grpc_app_is_built(library: GrpcLibrary) -> bool {
    if library == GrpcLibrary::Python || go_program().exists() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI needs {}: run `make grpc` first", go_program().display());
    eprintln!("\n*** SKIPPED, NOT PASSED: no {}: install Go, and run `make grpc` ***\n", go_program().display());
    false
}

fn go_program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/grpc/app")
}

/// The application with a library, and the settings of its log.
fn program(library: GrpcLibrary, net: &PodNet) -> Result<tokio::process::Command> {
    match library {
        GrpcLibrary::Python => {
            let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("grpc");
            let packages = files.join("packages");
            ensure!(packages.join("installed").exists(), "{} is missing: run `make grpc` first", packages.display());
            let mut command = net.command_without_capabilities(Path::new("python3"));
            command.arg(files.join("app.py"));
            command.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1").env("GRPC_VERBOSITY", "info");
            Ok(command)
        }
        GrpcLibrary::Go => {
            let mut command = net.command_without_capabilities(&go_program());
            command.env("GRPC_GO_LOG_SEVERITY_LEVEL", "info");
            Ok(command)
        }
    }
}

/// The last lines of a log.
fn read(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
