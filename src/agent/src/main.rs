//! `sluice-agent`: the agent of a proxy.
//!
//! ```text
//!                 sluice-agent
//!   Envoy ── xDS ──▶ xds ────────── TLS, token ──▶ control plane
//!     │              │ name table, roots, modules   (:15012)
//!     │              ▼
//!     ├── SDS ──▶ sds ◀── identity ── CSR ───────▶ certificate authority
//!     │                      ▲
//!     │                      └── files
//!     └── 15021, admin ◀──▶ status (:15020) ◀── kubelet, Prometheus
//! ```
//!
//! With `DISABLE_ENVOY`, the client is a gRPC library in the application instead of Envoy. It finds the xDS socket in a bootstrap
//! file, and reads the certificate from files.
//!
//! - [`settings`]: settings from arguments ([`args`]), [`environment`], [`proxy_config`] and the [`pod`].
//! - [`node`], [`bootstrap`], [`grpc_bootstrap`]: the bootstraps of Envoy and of gRPC libraries.
//! - [`identity`], [`sds`]: the workload's certificate, from the authority or from files, its SDS server, and its copy in files.
//! - [`xds`], [`connection`]: the xDS proxy and its connection to the control plane.
//! - [`wasm`]: Wasm modules of extensions.
//! - [`dns`]: the DNS proxy.
//! - [`debug`]: debug pages of the control plane, on this machine.
//! - [`envoy`], [`status`], [`health`]: the Envoy process, its status, and the health of the workload.
//! - [`redirection`]: redirection of the traffic of the pod, for its container `istio-init`.
//! - [`app`]: start of all parts, in order.

mod app;
mod args;
mod bootstrap;
mod certificate_expiry;
mod client_commands;
mod codec;
mod connection;
mod debug;
mod dns;
mod environment;
mod envoy;
mod files;
mod grpc_bootstrap;
mod health;
mod identity;
mod local_http;
mod metrics;
mod node;
mod pod;
mod ports;
mod proxy_config;
mod redirection;
mod sds;
mod serving;
mod settings;
mod status;
mod unix;
mod wasm;
mod xds;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use args::{Command, CommandLine};
use envoy::Termination;
use sluice_telemetry::{LogArgs, LogConfig, LogControl};
use tracing::{error, warn};

/// Time limit for the last lines of the log to be written.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let (line, ignored) = match CommandLine::parse_lenient(std::env::args()) {
        Ok(parsed) => parsed,
        // Prints help or version with exit code 0, or the error with 2.
        Err(error) => error.exit(),
    };
    let (log, warnings) = start_log(&line.log);
    warnings.iter().for_each(|warning| warn!(warning, "configuration warning"));
    ignored.iter().for_each(|flag| warn!(flag, "flag has no effect"));
    let code = run(&line).unwrap_or_else(|reason| {
        error!(error = format!("{reason:#}"), "agent failed");
        ExitCode::FAILURE
    });
    if let Some(log) = log {
        log.flush(LOG_FLUSH_TIMEOUT);
    }
    code
}

/// Starts the log. What is invalid is ignored, with a warning in the result.
fn start_log(args: &LogArgs) -> (Option<LogControl>, Vec<String>) {
    let (config, mut warnings) = args.lenient_config();
    let log = sluice_telemetry::start(&config).or_else(|error| {
        warnings.push(format!("{error}; the log is written to standard output"));
        let LogConfig { targets, rotation, .. } = LogConfig::default();
        sluice_telemetry::start(&LogConfig { targets, rotation, ..config })
    });
    (log.ok(), warnings)
}

fn run(line: &CommandLine) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let result = runtime.block_on(async {
        match &line.command {
            Command::Proxy(args) => Ok(match app::run(args, line.log.log_as_json).await? {
                Termination::Requested | Termination::Exited(Some(0)) => ExitCode::SUCCESS,
                Termination::Exited(code) => {
                    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
                }
            }),
            Command::Wait(args) => client_commands::wait(args).await,
            Command::Request(args) => client_commands::request(args).await,
            Command::IstioIptables(args) => redirection::run(args),
            Command::Version => {
                client_commands::print(&format!("sluice-agent {}", env!("CARGO_PKG_VERSION")));
                Ok(ExitCode::SUCCESS)
            }
        }
    });
    // Blocking tasks, such as a name lookup, must not keep the process running.
    runtime.shutdown_background();
    result
}
