//! `sluicectl`: tools for operators. It needs no cluster and links no part of the server.

mod args;
mod files;
mod preview;
mod report;
mod validate;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Command, CommandLine, Output};

/// Nothing is wrong.
const FINE: u8 = 0;
/// Something is wrong with what was read.
const FINDINGS: u8 = 1;
/// The command line is wrong, or something cannot be read.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    // Wrong flags end with 2, too: clap's own code.
    let line = CommandLine::parse();
    let stdout = io::stdout();
    let result = match line.command {
        Command::Validate(args) => {
            let colours = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            validate::run(&args, colours, &mut stdout.lock(), &mut io::stderr().lock())
        }
        Command::Preview(args) => preview::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Version { output } => version(output, &mut stdout.lock()).map(|()| FINE),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        // Whoever reads has had enough, as `head` has.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(FINDINGS),
        Err(error) => {
            let _ = writeln!(io::stderr(), "sluicectl: {error}");
            ExitCode::from(UNUSABLE)
        }
    }
}

fn version(output: Output, out: &mut dyn Write) -> io::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    match output {
        Output::Text => writeln!(out, "sluice {version}"),
        Output::Json => writeln!(out, "{}", serde_json::json!({ "clientVersion": { "version": version } })),
    }
}
