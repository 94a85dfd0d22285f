//! `sluiced`: the control plane. `app` builds all components in order.

mod app;

use std::process::ExitCode;

use app::AppError;
use sluice_config::{Command, CommandLine, Config};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::error;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let (line, unknown) = match CommandLine::parse_lenient(std::env::args()) {
        Ok(parsed) => parsed,
        // The error has the exit code: 0 for help and version.
        Err(error) => error.exit(),
    };
    if line.command == Some(Command::Version) {
        return print_version();
    }
    let variable = |name: &str| std::env::var(name).ok();
    let config = Config::new(line.discovery, &unknown, variable).map(|config| config.with_environment(variable));
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let config = config.map(|config| config.check_environment(variables).check_paths());
    let result = config.map_err(AppError::from).and_then(run);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The error is also written to standard error, because the log may be JSON, or written elsewhere.
            print_error(&error);
            error.exit_code()
        }
    }
}

fn run(config: Config) -> Result<(), AppError> {
    let log = sluice_telemetry::start(&config.log).map_err(AppError::runtime("start the log"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(AppError::runtime("start the runtime"))?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        stop_on_signal(stop.clone()).map_err(AppError::runtime("listen for signals"))?;
        let result = app::run(config, log, stop).await;
        if let Err(error) = &result {
            error!("{error}");
        }
        result
    })
}

/// Cancels the token at SIGTERM or SIGINT. A second signal ends the process immediately.
fn stop_on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        for is_second in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if is_second {
                std::process::exit(1);
            }
            stop.cancel();
        }
    });
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the command prints the version")]
fn print_version() -> ExitCode {
    println!("sluice {}", env!("CARGO_PKG_VERSION"));
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "the process cannot start, and the log may not be visible")]
fn print_error(error: &AppError) {
    eprintln!("sluiced: {error}");
}
