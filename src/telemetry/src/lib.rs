//! The log (scopes, levels, line format, writer), counters, and the wall clock.

mod args;
mod clock;
mod count;
mod format;
mod levels;
mod periodic_log;
mod rotation;
mod scopes;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::panic::PanicHookInfo;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use tracing::error;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

pub use args::{LogArgError, LogArgs};
pub use clock::{unix_seconds, unix_time};
pub use count::{Count, Sample, grpc_code_name, register_counts};
pub use levels::{LogLevels, UnknownLogLevel, scope_of};
pub use periodic_log::PeriodicLog;
pub use rotation::LogRotation;
use scopes::LineDetails;
pub use scopes::{ScopeChange, ScopeLevel, ScopeState, UnknownScope};
use writer::LogQueue;
pub use writer::{print_error, register};

/// Levels, format and targets of the log. By default, text of level `info` on standard output.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Levels by scope.
    pub levels: LogLevels,
    /// Levels by scope from which a stack trace follows a line.
    pub stack_trace_levels: LogLevels,
    /// Scopes whose lines have the position in the code. Scopes of istiod that do not exist here have no effect.
    pub callers: Vec<String>,
    /// The form of a line.
    pub format: LogFormat,
    /// Where the log is written.
    pub targets: Vec<LogTarget>,
    /// A further file, which is renamed when it is full.
    pub rotation: Option<LogRotation>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            levels: LogLevels::default(),
            stack_trace_levels: LogLevels::none(),
            callers: Vec::new(),
            format: LogFormat::default(),
            targets: vec![LogTarget::Stdout],
            rotation: None,
        }
    }
}

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LogFormat {
    /// Columns, separated by tabs.
    #[default]
    Text,
    /// A JSON object.
    Json,
    /// A JSON object with the names of Google Cloud Logging.
    Stackdriver,
}

/// A target of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, which grows without limit.
    File(PathBuf),
}

/// A text that is not a target of the log.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a target is empty: use stdout, stderr or the path of a file")]
pub struct UnknownLogTarget;

impl FromStr for LogTarget {
    type Err = UnknownLogTarget;

    fn from_str(text: &str) -> Result<Self, UnknownLogTarget> {
        match text {
            "" => Err(UnknownLogTarget),
            "stdout" => Ok(Self::Stdout),
            "stderr" => Ok(Self::Stderr),
            path => Ok(Self::File(path.into())),
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
    Thread(io::Error),
    /// A target cannot be opened.
    #[error("cannot write the log to {target}: {error}")]
    Target {
        /// The stream, or the path of the file.
        target: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// It has been started before.
    #[error(transparent)]
    Started(#[from] TryInitError),
}

/// Starts the log of this process. Panics are logged too.
///
/// # Errors
/// The log has been started before, its thread cannot be started, or a target cannot be opened.
pub fn start(config: &LogConfig) -> Result<LogControl, LogError> {
    let (filter, levels) = reload::Layer::new(config.levels.clone());
    let queue = LogQueue::start(&config.targets, config.rotation.as_ref())?;
    let details = LineDetails::new(&config.stack_trace_levels, &config.callers);
    let lines = tracing_subscriber::fmt::layer()
        .event_format(format::Lines { format: config.format, details: details.clone() })
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
