//! `sluice-cni`: the agent of CNI on a node, and the CNI plugin.
//!
//! ```text
//! container runtime ── CNI ──▶ plugin ── event ──▶ agent ◀── Pods, Namespaces ── API server
//!                               │                  │ │ └── annotation ─────────▶
//!                               │            rules │ └── ZDS, namespace ──▶ ztunnel
//!                               └─ rules ──▶ pod ◀─┘
//! ```
//!
//! - [`settings`]: the command line. [`agent`]: start of all parts of the agent.
//! - [`install`]: the plugin in the configuration of the node.
//! - [`plugin`], [`event`], [`event_server`]: the plugin, and what it sends to the agent.
//! - [`store`], [`pod`], [`selectors`]: the pods of the node, and which of them belong to the ambient mesh.
//! - [`controller`], [`mesh`]: enrolment of these pods. [`zds`]: the protocol with ztunnel.
//! - [`node_network`]: network namespaces of pods and of the node.
//! - [`repair`]: pods that started before the plugin was installed.
//! - [`health`]: readiness and metrics.

mod agent;
mod controller;
mod event;
mod event_server;
mod health;
mod install;
mod mesh;
mod node_network;
mod plugin;
mod pod;
mod repair;
mod selectors;
mod settings;
mod store;
mod zds;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use plugin::PluginParameters;
use settings::{Command, CommandLine};
use sluice_telemetry::{LogConfig, LogTarget};
use tracing::{error, warn};

/// Time limit for the last lines of the log to be written.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    if let Some(parameters) = PluginParameters::of_process() {
        // Standard output is the result.
        let log = sluice_telemetry::start(&LogConfig { targets: vec![LogTarget::Stderr], ..LogConfig::default() });
        let code = plugin::run(&parameters);
        if let Ok(log) = log {
            log.flush(LOG_FLUSH_TIMEOUT);
        }
        return code;
    }
    let line = CommandLine::parse();
    if let Some(Command::Version) = line.command {
        let written = writeln!(std::io::stdout(), "sluice-cni {}", env!("CARGO_PKG_VERSION"));
        return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (config, warnings) = line.log.lenient_config();
    let log = sluice_telemetry::start(&config);
    warnings.iter().for_each(|warning| warn!(warning, "configuration warning"));
    let code = match agent::run(&line.agent) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            error!(error = format!("{reason:#}"), "agent failed");
            ExitCode::FAILURE
        }
    };
    if let Ok(log) = log {
        log.flush(LOG_FLUSH_TIMEOUT);
    }
    code
}
