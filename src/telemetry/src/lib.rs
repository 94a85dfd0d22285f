//! The log (scopes, levels, line format), counters, and the wall clock.

mod clock;
mod count;
mod format;
mod levels;

use std::io::{self, Write};
use std::str::FromStr;

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

pub use clock::{unix_seconds, unix_time};
pub use count::Count;
pub use levels::{LogLevels, UnknownLogLevel, scope_of};

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

impl<'w> MakeWriter<'w> for LogTarget {
    type Writer = Box<dyn Write + 'w>;

    fn make_writer(&'w self) -> Self::Writer {
        match self {
            Self::Stdout => Box::new(io::stdout().lock()),
            Self::Stderr => Box::new(io::stderr().lock()),
        }
    }
}

/// Reads and changes the levels of the running log.
#[derive(Clone)]
pub struct LogControl(reload::Handle<LogLevels, tracing_subscriber::Registry>);

impl LogControl {
    /// The current levels.
    #[must_use]
    pub fn levels(&self) -> LogLevels {
        self.0.clone_current().unwrap_or_default()
    }

    /// Sets the levels.
    pub fn set(&self, levels: LogLevels) {
        // Fails only if the subscriber has been dropped, at the end of the process.
        let _ = self.0.reload(levels);
    }
}

/// Starts the log of this process.
///
/// # Errors
/// The log has been started before.
pub fn start(config: &LogConfig) -> Result<LogControl, tracing_subscriber::util::TryInitError> {
    let (filter, handle) = reload::Layer::new(config.levels.clone());
    let lines = tracing_subscriber::fmt::layer()
        .event_format(format::Lines { json: config.json })
        .with_writer(config.target)
        // Span fields would otherwise contain ANSI escapes, in files too.
        .with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    Ok(LogControl(handle))
}
