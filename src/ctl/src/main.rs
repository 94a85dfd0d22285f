//! `sluicectl`: command-line tools for operators of Sluice. The subcommands that install need a cluster, and those that ask a running
//! control plane need its HTTP port, or a kubeconfig to forward it. It does not link the server.

mod admin_log;
mod analyze;
mod analyze_args;
mod answer_args;
mod answer_output;
mod args;
mod authz;
mod authz_args;
mod bug_report;
mod bug_report_args;
mod check_inject;
mod columns;
mod confirmation;
mod connect;
mod control_plane_config;
mod dashboard;
mod dashboard_args;
mod describe;
mod describe_args;
mod experimental_args;
mod files;
mod history;
mod inject_args;
mod injector;
mod install;
mod install_args;
mod internal_debug;
mod kube_inject;
mod metrics;
mod metrics_args;
mod operator_args;
mod preview;
mod preview_args;
mod proxy_config;
mod proxy_status;
mod record;
mod recording_args;
mod recording_diff;
mod remote_clusters;
mod remote_secret;
mod remote_secret_args;
mod replay;
mod replicas;
mod report;
mod revision;
mod similar_name;
mod similar_proxy;
mod tag;
mod tag_args;
mod terminal;
mod validate;
mod version;
mod wait;
mod waypoint;
mod why;
mod why_not;
mod workload;
mod ztunnel_config;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

use args::{Command, CommandLine};
use experimental_args::ExperimentalCommand;
use operator_args::AdminCommand;

/// No errors.
const EXIT_OK: u8 = 0;
/// At least one finding fails `validate`, `preview` has nothing to print, an installation failed, or the reader closed the output.
const EXIT_FINDINGS: u8 = 1;
/// The command line is invalid, or a file or directory cannot be read.
const EXIT_UNREADABLE: u8 = 2;

fn main() -> ExitCode {
    // An invalid command line exits with 2 too: that is clap's own code.
    let line = CommandLine::parse();
    let mut out = match &line.command {
        Command::Analyze(args) if args.color == Some(true) => terminal::stdout_with_colours(),
        _ => terminal::stdout(),
    };
    terminal::fit_tables();
    let result = run(line.command, &mut out, &mut io::stderr());
    match result {
        Ok(code) => ExitCode::from(code),
        // The reader of the output has closed it, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(EXIT_FINDINGS),
        Err(error) => {
            let _ = writeln!(io::stderr(), "sluicectl: {error}");
            ExitCode::from(EXIT_UNREADABLE)
        }
    }
}

/// Runs a subcommand and returns the exit code. `out` removes colours that the terminal does not have.
fn run(command: Command, out: &mut dyn Write, errors: &mut (dyn Write + Send)) -> io::Result<u8> {
    match command {
        Command::Validate(args) => validate::run(&args, out, errors),
        Command::Analyze(args) => analyze::run(&args, out, errors),
        Command::Preview(args) => preview::run(&args, out, errors),
        Command::Install(command) => install::run(&command, out, errors),
        Command::KubeInject(args) => kube_inject::run(&args, out, errors),
        Command::Experimental { command: ExperimentalCommand::CheckInject(args) } => {
            check_inject::run(&args, out, errors)
        }
        Command::Experimental { command: ExperimentalCommand::Injector { command } } => {
            injector::run(&command, out, errors)
        }
        Command::Experimental { command: ExperimentalCommand::Metrics(args) } => metrics::run(&args, out, errors),
        Command::Experimental { command: ExperimentalCommand::Revision { command } } => {
            revision::run(&command, out, errors)
        }
        Command::Tag { command } => tag::run(&command, out, errors),
        Command::BugReport(args) => bug_report::run(&args, out, errors),
        Command::CreateRemoteSecret(args) => remote_secret::run(&args, out, errors),
        Command::Why(args) => why::run(&args, out, errors),
        Command::WhyNot(args) => why_not::run(&args, out, errors),
        Command::Wait(args) => wait::run(&args, out, errors),
        Command::History(args) => history::run(&args, out, errors),
        Command::Record(args) => record::run(&args, out, errors),
        Command::Replay(args) => replay::run(&args, out, errors),
        Command::Diff(args) => recording_diff::run(&args, out, errors),
        Command::Describe { command }
        | Command::Experimental { command: ExperimentalCommand::Describe { command } } => {
            describe::run(&command, out, errors)
        }
        Command::Experimental { command: ExperimentalCommand::Authz { command } } => authz::run(&command, out, errors),
        Command::ProxyStatus(args) | Command::Experimental { command: ExperimentalCommand::ProxyStatus(args) } => {
            proxy_status::run(&args, out, errors)
        }
        Command::ProxyConfig { command } => proxy_config::run(&command, out, errors),
        Command::ZtunnelConfig { command } => ztunnel_config::run(&command, out, errors),
        Command::Waypoint { command } => waypoint::run(&command, out, errors),
        Command::Workload { command }
        | Command::Experimental { command: ExperimentalCommand::Workload { command } } => {
            workload::run(&command, out, errors)
        }
        Command::RemoteClusters(args) => remote_clusters::run(&args, out, errors),
        Command::InternalDebug(args) | Command::Experimental { command: ExperimentalCommand::InternalDebug(args) } => {
            internal_debug::run(&args, out, errors)
        }
        Command::Admin { command: AdminCommand::Log(args) } => admin_log::run(&args, out, errors),
        Command::Dashboard { command } => dashboard::run(&command, out, errors),
        Command::Version(args) | Command::Experimental { command: ExperimentalCommand::Version(args) } => {
            version::run(&args, out, errors)
        }
        Command::Completion(args) => {
            clap_complete::generate(args.shell, &mut CommandLine::command(), "sluicectl", out);
            Ok(EXIT_OK)
        }
    }
}
