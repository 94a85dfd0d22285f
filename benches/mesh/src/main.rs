//! `sluice-bench`: simulates the proxies of a mesh against any ADS server.

#![expect(clippy::print_stdout, reason = "commands print their results")]

mod ambient;
mod answers;
mod api;
mod arguments;
mod budgets;
mod change;
mod change_tracker;
mod churn;
mod client;
mod connect;
mod fault_kind;
mod faults;
mod fleet;
mod gateway;
mod held_versions;
mod incoming;
mod loopback;
mod measured_mesh;
mod mesh_objects;
mod messages;
mod nodes;
mod objects;
mod overhead;
mod plot;
mod process;
mod report;
mod result;
mod run;
mod scale;
mod scan;
mod server;
mod shape;
mod shared;
mod soak;
mod socket;
mod state_comparison;
mod statistics;
mod storm;
mod versus;
mod webhooks;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::mesh_objects::{MeshObjects, ObjectTarget};

fn main() -> ExitCode {
    match perform(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sluice-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn perform(command: Command) -> anyhow::Result<ExitCode> {
    process::raise_limits();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let within = match command {
        Command::Run(arguments) => runtime.block_on(run::run(&arguments)).map(|()| true)?,
        Command::Scale(arguments) => runtime.block_on(scale::run(&arguments)).map(|()| true)?,
        Command::Versus(arguments) => runtime.block_on(versus::run(&arguments))?,
        Command::Soak(arguments) => runtime.block_on(soak::run(&arguments))?,
        Command::Faults(arguments) => runtime.block_on(faults::run(&arguments))?,
        Command::Webhooks(arguments) => runtime.block_on(webhooks::run(&arguments))?,
        Command::Answers(arguments) => runtime.block_on(answers::run(&arguments)).map(|()| true)?,
        Command::Overhead(arguments) => runtime.block_on(overhead::run(&arguments))?,
        Command::Loopback { bytes, readers, repeat } => {
            runtime.block_on(loopback::run(bytes, readers, repeat)).map(|()| true)?
        }
        Command::Generate { shape, out } => {
            MeshObjects::create(ObjectTarget::directory(&out)?, &shape.shape()?)?.print_summary();
            true
        }
        Command::Report { results, out } => report::page::write(&result::read_all(&results)?, &out).map(|()| true)?,
        Command::Compare { before, after, limit } => {
            report::compare(&result::read(&before)?, &result::read(&after)?, limit)?
        }
    };
    Ok(if within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
