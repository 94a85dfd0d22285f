//! The `dashboard` subcommand: a port of a pod on this machine, for a browser.

use std::io::{self, Write};

use crate::answer_output::fail;
use crate::connect::connect_to_control_plane_port;
use crate::operator_args::DashboardCommand;

const EXIT_NOT_FOUND: u8 = 1;
const CONTROLZ_PORT: u16 = 9_876;
const HTTP_PORT: u16 = 8_080;

/// Runs the subcommand until it is interrupted, and returns the exit code.
pub(crate) fn run(command: &DashboardCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let (forwarded, path) = match command {
        DashboardCommand::Controlz(args) => (connect_to_control_plane_port(&args.cluster, CONTROLZ_PORT), ""),
        DashboardCommand::IstiodDebug(args) => (connect_to_control_plane_port(&args.cluster, HTTP_PORT), "debug"),
        DashboardCommand::Envoy(args) => (args.connect(), ""),
    };
    match forwarded {
        Ok(forwarded) => {
            writeln!(out, "{}{path}", forwarded.url())?;
            writeln!(errors, "The port of {} is forwarded until Ctrl-C.", forwarded.name())?;
            forwarded.serve_until_interrupted().map(|()| 0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}
