//! `sluice-bench`: the proxies of a mesh, simulated, against any ADS server.

#![expect(clippy::print_stdout, reason = "what a command was asked for goes there")]

mod arguments;
mod change;
mod client;
mod fleet;
mod held;
mod messages;
mod objects;
mod plot;
mod process;
mod report;
mod result;
mod run;
mod scan;
mod server;
mod shape;
mod statistics;
mod storm;
mod watch;
mod world;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};

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
    match command {
        Command::Run(arguments) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(run::run(&arguments))?;
        }
        Command::Generate { shape, out } => world::World::lay(&out, &shape.shape()?)?.finish(),
        Command::Report { results, out } => report::write(&result::read_all(&results)?, &out)?,
        Command::Compare { before, after, limit } => {
            return Ok(if report::compare(&before, &after, limit)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    Ok(ExitCode::SUCCESS)
}
