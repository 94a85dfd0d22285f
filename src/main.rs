//! `sluiced`: the control plane. `app` builds all components in order.

mod app;
mod request;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use app::AppError;
use sluice_config::{Command, CommandLine, Config};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::error;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Time limit for the last lines of the log, and for the error, to be written.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let (line, unknown) = match CommandLine::parse_lenient(std::env::args()) {
        Ok(parsed) => parsed,
        // The error has the exit code: 0 for help and version.
        Err(error) => error.exit(),
    };
    let printed = match line.command {
        Some(Command::Version) => Some(format!("sluice {}\n", env!("CARGO_PKG_VERSION"))),
        Some(Command::Env) => Some(sluice_variables::names_and_states(sluice_variables::CONTROL_PLANE)),
        Some(Command::Request(request)) => return request::run(&line.discovery.http_addr, &request),
        Some(Command::Discovery) | None => None,
    };
    if let Some(text) = printed {
        // The reader may have closed it, as `head` does.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    let variable = |name: &str| std::env::var(name).ok();
    let config = Config::new(line.discovery, &unknown, variable).map(|config| config.with_environment(variable));
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    let config = config.and_then(|config| config.check_environment(&environment)).map(Config::check_paths);
    let result = config.map_err(AppError::from).and_then(run);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The error is also written to standard error, because the log may be JSON, or written elsewhere.
            sluice_telemetry::print_error(&format!("sluiced: {error}"), OUTPUT_TIMEOUT);
            error.exit_code()
        }
    }
}

fn run(config: Config) -> Result<(), AppError> {
    let log = sluice_telemetry::start(&config.log).map_err(AppError::runtime("start the log"))?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().on_thread_start(|| sluice_tasks::lower_thread_priority(app::BULK_NICE));
    let runtime = runtime.build();
    let runtime = runtime.map_err(AppError::runtime("start the runtime"))?;
    let result = runtime.block_on(async {
        let requested = CancellationToken::new();
        stop_on_signal(requested.clone()).map_err(AppError::runtime("listen for signals"))?;
        let result = app::run(config, log.clone(), requested).await;
        if let Err(error) = &result {
            error!("{error}");
        }
        result
    });
    // Blocking work, such as the read of a large directory, must not keep the process running.
    runtime.shutdown_background();
    log.flush(OUTPUT_TIMEOUT);
    result
}

/// Cancels the token at SIGTERM or SIGINT. A second signal ends the process immediately.
fn stop_on_signal(requested: CancellationToken) -> std::io::Result<()> {
    let mut signals =
        Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    tokio::spawn(async move {
        let () = sluice_tasks::restart_with("signals", &mut signals, move |signals| {
            let requested = requested.clone();
            Box::pin(async move {
                loop {
                    tokio::select! {
                        _ = signals.terminate.recv() => {}
                        _ = signals.interrupt.recv() => {}
                    }
                    if requested.is_cancelled() {
                        std::process::exit(1);
                    }
                    requested.cancel();
                }
            })
        })
        .await;
    });
    Ok(())
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}
