//! `sluicectl`: command-line tools for operators of Sluice. The subcommands that install need a cluster, and those that ask a running
//! control plane need its HTTP port, or a kubeconfig to forward it. It does not link the server.

mod admin_log;
mod analyze;
mod analyze_args;
mod answer_args;
mod answer_output;
mod args;
mod bug_report;
mod bug_report_args;
mod check_inject;
mod columns;
mod confirmation;
mod connect;
mod dashboard;
mod experimental_args;
mod files;
mod history;
mod inject_args;
mod install;
mod install_args;
mod internal_debug;
mod kube_inject;
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
mod tag;
mod tag_args;
mod validate;
mod version;
mod wait;
mod why;
mod why_not;

use std::io::{self, IsTerminal, Write};
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
    let stdout = io::stdout();
    let result = match line.command {
        Command::Validate(args) => {
            let colours = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            validate::run(&args, colours, &mut stdout.lock(), &mut io::stderr().lock())
        }
        Command::Analyze(args) => {
            let is_plain = |name, plain: &str| std::env::var_os(name).is_some_and(|value| value == plain);
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let colours = stdout.is_terminal() && !no_color && !is_plain("TERM", "dumb");
            analyze::run(&args, colours, &mut stdout.lock(), &mut io::stderr().lock())
        }
        Command::Preview(args) => preview::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Install(command) => install::run(&command, &mut stdout.lock(), &mut io::stderr()),
        Command::KubeInject(args) => kube_inject::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Experimental { command: ExperimentalCommand::CheckInject(args) } => {
            check_inject::run(&args, &mut stdout.lock(), &mut io::stderr().lock())
        }
        Command::Experimental { command: ExperimentalCommand::Revision { command } } => {
            revision::run(&command, &mut stdout.lock(), &mut io::stderr().lock())
        }
        Command::Tag { command } => tag::run(&command, &mut stdout.lock(), &mut io::stderr()),
        Command::BugReport(args) => bug_report::run(&args, &mut stdout.lock(), &mut io::stderr()),
        Command::CreateRemoteSecret(args) => remote_secret::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Why(args) => why::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::WhyNot(args) => why_not::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Wait(args) => wait::run(&args, &mut stdout.lock(), &mut io::stderr()),
        Command::History(args) => history::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Record(args) => record::run(&args, &mut stdout.lock(), &mut io::stderr()),
        Command::Replay(args) => replay::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Diff(args) => recording_diff::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::ProxyStatus(args) => proxy_status::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::ProxyConfig { command } => proxy_config::run(&command, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::RemoteClusters(args) => remote_clusters::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::InternalDebug(args) => internal_debug::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Admin { command: AdminCommand::Log(args) } => {
            admin_log::run(&args, &mut stdout.lock(), &mut io::stderr().lock())
        }
        Command::Dashboard { command } => dashboard::run(&command, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Version(args) => version::run(&args, &mut stdout.lock(), &mut io::stderr().lock()),
        Command::Completion(args) => {
            clap_complete::generate(args.shell, &mut CommandLine::command(), "sluicectl", &mut stdout.lock());
            Ok(EXIT_OK)
        }
    };
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
