//! `sluice-agent`: the program beside a proxy.
//!
//! ```text
//!                 sluice-agent
//!   Envoy ── xDS ──▶ xds ────────── TLS, token ──▶ control plane
//!     │              │ names, roots, modules        (:15012)
//!     │              ▼
//!     ├── SDS ──▶ sds ◀── identity ── CSR ───────▶ certificate authority
//!     │                      ▲
//!     │                      └── files
//!     └── 15021, admin ◀──▶ status (:15020) ◀── kubelet, Prometheus
//! ```
//!
//! - [`settings`]: what was asked for, by arguments ([`args`]), [`environment`], [`proxy_config`] and the [`pod`].
//! - [`node`], [`bootstrap`]: what Envoy starts with.
//! - [`identity`], [`sds`]: the workload's certificate, from the authority or from files, and how Envoy gets it.
//! - [`xds`], [`connection`]: the way to the control plane.
//! - [`wasm`]: modules that extensions name by URL.
//! - [`dns`]: names of the mesh.
//! - [`debug`]: debug pages of the control plane, on this machine.
//! - [`envoy`], [`status`], [`health`]: the process, how it is, and how the workload is.
//! - [`app`]: everything in order.

mod app;
mod args;
mod bootstrap;
mod client_commands;
mod codec;
mod connection;
mod debug;
mod dns;
mod environment;
mod envoy;
mod files;
mod health;
mod identity;
mod local_http;
mod log;
mod metrics;
mod node;
mod pod;
mod proxy_config;
mod sds;
mod settings;
mod status;
mod unix;
mod wasm;
mod xds;

use std::process::ExitCode;

use anyhow::{Context, Result};
use args::{Command, CommandLine};
use envoy::End;
use tracing::{error, warn};

fn main() -> ExitCode {
    let (line, unknown) = match CommandLine::parse_lenient(std::env::args()) {
        Ok(parsed) => parsed,
        // Help and version are no failures: the error knows.
        Err(error) => error.exit(),
    };
    let warnings = log::start(&line.log_output_level, line.log_as_json);
    let flags = unknown.iter().map(|flag| format!("flag {flag} has no effect"));
    warnings.into_iter().chain(flags).for_each(|warning| warn!("{warning}"));
    match run(&line) {
        Ok(code) => code,
        Err(reason) => {
            error!("{reason:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: &CommandLine) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start the runtime")?;
    let result = runtime.block_on(async {
        match &line.command {
            Command::Proxy(args) => Ok(match app::run(args, line.log_as_json).await? {
                End::Requested | End::Exited(Some(0)) => ExitCode::SUCCESS,
                End::Exited(code) => {
                    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
                }
            }),
            Command::Wait(args) => client_commands::wait(args).await,
            Command::Request(args) => client_commands::request(args).await,
            Command::Version => {
                client_commands::print(&format!("sluice-agent {}", env!("CARGO_PKG_VERSION")));
                Ok(ExitCode::SUCCESS)
            }
        }
    });
    // What still runs, such as a name that is looked up, must not keep the process.
    runtime.shutdown_background();
    result
}
