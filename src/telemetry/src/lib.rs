//! The log (scopes, levels, line format, writer), counters, and the wall clock.

mod clock;
mod count;
mod format;
mod levels;
mod scopes;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::panic::PanicHookInfo;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use tracing::error;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

pub use clock::{unix_seconds, unix_time};
pub use count::{Count, Sample, grpc_code_name, register_counts};
pub use levels::{LogLevels, UnknownLogLevel, scope_of};
use scopes::LineDetails;
pub use scopes::{ScopeChange, ScopeLevel, ScopeState, UnknownScope};
use writer::LogQueue;
pub use writer::{print_error, register};

/// Levels, format and target of the log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Levels by scope.
    pub levels: LogLevels,
    /// JSON lines instead of text.
    pub json: bool,
    /// The stream that receives the log.
    pub target: LogTarget,
}

/// The stream that receives the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A text that is not a target of the log.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is not supported: use stdout or stderr")]
pub struct UnknownLogTarget(String);

impl FromStr for LogTarget {
    type Err = UnknownLogTarget;

    fn from_str(text: &str) -> Result<Self, UnknownLogTarget> {
        match text {
            "stdout" => Ok(Self::Stdout),
            "stderr" => Ok(Self::Stderr),
            other => Err(UnknownLogTarget(other.to_owned())),
        }
    }
}

/// Reads and changes the levels of the running log, and waits for its lines.
#[derive(Clone)]
pub struct LogControl {
    levels: reload::Handle<LogLevels, tracing_subscriber::Registry>,
    details: LineDetails,
    queue: LogQueue,
}

impl LogControl {
    /// The current levels.
    #[must_use]
    pub fn levels(&self) -> LogLevels {
        self.levels.clone_current().unwrap_or_default()
    }

    /// Sets the levels.
    pub fn set(&self, levels: LogLevels) {
        // Fails only if the subscriber has been dropped, at the end of the process.
        let _ = self.levels.reload(levels);
    }

    /// The scopes of `sluiced`, in the order of their names.
    #[must_use]
    pub fn scopes(&self) -> Vec<ScopeState> {
        let levels = self.levels();
        levels::SCOPES.iter().map(|scope| self.state(scope, &levels)).collect()
    }

    /// The scope of this name.
    ///
    /// # Errors
    /// There is no such scope.
    pub fn scope(&self, name: &str) -> Result<ScopeState, UnknownScope> {
        Ok(self.state(scopes::find(name)?, &self.levels()))
    }

    fn state(&self, scope: &levels::LogScope, levels: &LogLevels) -> ScopeState {
        ScopeState {
            name: scope.name,
            description: scope.description,
            output_level: ScopeLevel(levels.of(scope.name)),
            stack_trace_level: ScopeLevel(self.details.stack_trace_level(scope.name)),
            log_callers: self.details.logs_callers(scope.name),
        }
    }

    /// Changes a scope. It applies to all lines from now on.
    ///
    /// # Errors
    /// There is no such scope.
    pub fn change_scope(&self, name: &str, change: &ScopeChange) -> Result<(), UnknownScope> {
        let scope = scopes::find(name)?.name;
        self.details.change(scope, change);
        if let Some(ScopeLevel(level)) = change.output_level {
            // As for `set`. Changes of several scopes at once do not overwrite each other.
            let _ = self.levels.modify(|levels| levels.set(scope, level));
        }
        Ok(())
    }

    /// Waits until all lines are written or dropped, for this time at most.
    pub fn flush(&self, limit: Duration) {
        self.queue.flush(limit);
    }
}

/// The log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The thread that writes it cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
    /// It has been started before.
    #[error(transparent)]
    Started(#[from] TryInitError),
}

/// Starts the log of this process. Panics are logged too.
///
/// # Errors
/// The log has been started before, or its thread cannot be started.
pub fn start(config: &LogConfig) -> Result<LogControl, LogError> {
    let (filter, levels) = reload::Layer::new(config.levels.clone());
    let (queue, details) = (LogQueue::start(config.target)?, LineDetails::default());
    let lines = tracing_subscriber::fmt::layer()
        .event_format(format::Lines { json: config.json, details: details.clone() })
        .with_writer(queue.clone())
        // Span fields would otherwise contain ANSI escapes, in files too.
        .with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    // Standard error may be closed, or read slowly.
    std::panic::set_hook(Box::new(log_panic));
    Ok(LogControl { levels, details, queue })
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    let (thread, message) = (thread::current(), panic.payload_as_str().unwrap_or("panic without a message"));
    error!(thread = thread.name().unwrap_or("unnamed"), location, backtrace, "panicked: {message}");
}
