//! The flags of the log, with the names of Istio's programs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use tracing::level_filters::LevelFilter;

use crate::rotation::LogRotation;
use crate::{LogConfig, LogFormat, LogLevels, LogTarget};

/// A day, the unit of `--log_rotate_max_age`.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Flags of the log.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// Log levels by scope: `default:info,ads:debug`. Levels: none, fatal, error, warn, info, debug, trace.
    #[arg(
        long = "log_output_level",
        alias = "log-output-level",
        value_name = "SCOPE:LEVEL,..",
        default_value = "default:info",
        global = true,
        help_heading = "Log"
    )]
    pub log_output_level: String,
    /// Levels by scope from which lines are followed by a stack trace.
    #[arg(
        long = "log_stacktrace_level",
        alias = "log-stacktrace-level",
        value_name = "SCOPE:LEVEL,..",
        default_value = "default:none",
        global = true,
        help_heading = "Log"
    )]
    pub log_stacktrace_level: String,
    /// Scopes whose lines have the position in the code.
    #[arg(
        long = "log_caller",
        alias = "log-caller",
        value_name = "SCOPE,..",
        value_delimiter = ',',
        global = true,
        help_heading = "Log"
    )]
    pub log_caller: Vec<String>,
    /// Write the log as JSON, one object in each line.
    #[arg(long = "log_as_json", alias = "log-as-json", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, action = ArgAction::Set, global = true, help_heading = "Log")]
    pub log_as_json: bool,
    /// Write the log as JSON with the names that Google Cloud Logging reads: severity, timestamp, message and others.
    #[arg(long = "log_stackdriver", alias = "log-stackdriver", num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, action = ArgAction::Set, global = true, help_heading = "Log")]
    pub log_stackdriver: bool,
    /// Target of the log: `stdout`, `stderr` or the path of a file. Can be repeated. A target that is read slowly delays the others.
    #[arg(
        long = "log_target",
        alias = "log-target",
        value_name = "TARGET",
        value_delimiter = ',',
        default_value = "stdout",
        global = true,
        help_heading = "Log"
    )]
    pub log_target: Vec<String>,
    /// File that the log is written to in addition. It is renamed when it is full: `log.txt` to `log-2026-01-31T12-00-00.000000.txt`.
    #[arg(long = "log_rotate", alias = "log-rotate", value_name = "FILE", global = true, help_heading = "Log")]
    pub log_rotate: Option<PathBuf>,
    /// Size at which this file is full, in MiB.
    #[arg(
        long = "log_rotate_max_size",
        alias = "log-rotate-max-size",
        value_name = "MIB",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20),
        global = true,
        help_heading = "Log"
    )]
    pub log_rotate_max_size: u64,
    /// Days after which renamed files are deleted. 0: never.
    #[arg(
        long = "log_rotate_max_age",
        alias = "log-rotate-max-age",
        value_name = "DAYS",
        default_value_t = 30,
        global = true,
        help_heading = "Log"
    )]
    pub log_rotate_max_age: u32,
    /// Number of renamed files that are kept. 0: all.
    #[arg(
        long = "log_rotate_max_backups",
        alias = "log-rotate-max-backups",
        value_name = "FILES",
        default_value_t = 1000,
        global = true,
        help_heading = "Log"
    )]
    pub log_rotate_max_backups: usize,
}

/// A flag of the log is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{flag}: {reason}")]
pub struct LogArgError {
    /// The flag, such as `--log_target`.
    pub flag: &'static str,
    /// What is wrong.
    pub reason: String,
}

impl LogArgs {
    /// The log that the flags describe.
    ///
    /// # Errors
    /// A level or a target is invalid.
    pub fn config(&self) -> Result<LogConfig, LogArgError> {
        let levels = |flag, text: &str, default| {
            LogLevels::parse(text, default).map_err(|error| LogArgError { flag, reason: error.to_string() })
        };
        let target = |text: &String| {
            text.parse::<LogTarget>().map_err(|error| LogArgError { flag: "--log_target", reason: error.to_string() })
        };
        let rotation = self.log_rotate.as_ref().map(|path| LogRotation {
            path: path.clone(),
            max_bytes: self.log_rotate_max_size << 20,
            max_age: (self.log_rotate_max_age > 0).then(|| DAY * self.log_rotate_max_age),
            max_backups: Some(self.log_rotate_max_backups).filter(|count| *count > 0),
        });
        Ok(LogConfig {
            levels: levels("--log_output_level", &self.log_output_level, LevelFilter::INFO)?,
            stack_trace_levels: levels("--log_stacktrace_level", &self.log_stacktrace_level, LevelFilter::OFF)?,
            callers: self.log_caller.clone(),
            format: match (self.log_stackdriver, self.log_as_json) {
                (true, _) => LogFormat::Stackdriver,
                (false, true) => LogFormat::Json,
                (false, false) => LogFormat::Text,
            },
            targets: self.log_target.iter().map(target).collect::<Result<_, _>>()?,
            rotation,
        })
    }

    /// The log that the flags describe without invalid levels and targets, and a warning for each. An injected container may name
    /// levels of another version.
    #[must_use]
    pub fn lenient_config(&self) -> (LogConfig, Vec<String>) {
        let mut warnings = Vec::new();
        let mut is_valid = |flag: &str, item: &str, error: Option<String>| {
            warnings.extend(error.iter().map(|reason| format!("{flag}: {item:?} is ignored: {reason}")));
            error.is_none()
        };
        let mut levels = |flag: &str, text: &str| {
            let check = |item: &str| LogLevels::parse(item, LevelFilter::INFO).err().map(|error| error.to_string());
            let valid = text.split(',').filter(|item| is_valid(flag, item, check(item)));
            valid.collect::<Vec<_>>().join(",")
        };
        let log_output_level = levels("--log_output_level", &self.log_output_level);
        let log_stacktrace_level = levels("--log_stacktrace_level", &self.log_stacktrace_level);
        let mut log_target = self.log_target.clone();
        let check = |item: &str| item.parse::<LogTarget>().err().map(|error| error.to_string());
        log_target.retain(|item| is_valid("--log_target", item, check(item)));
        let args = Self { log_output_level, log_stacktrace_level, log_target, ..self.clone() };
        (args.config().unwrap_or_default(), warnings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        log: LogArgs,
    }

    fn args(args: &[&str]) -> LogArgs {
        Line::parse_from([&["program"], args].concat()).log
    }

    #[test]
    fn flags_describe_levels_targets_and_rotation() {
        let default = args(&[]).config().expect("valid");
        assert_eq!((default.format, &*default.targets), (LogFormat::Text, &[LogTarget::Stdout][..]));
        assert!(default.rotation.is_none() && default.callers.is_empty());
        assert_eq!(default.stack_trace_levels.of("ads"), LevelFilter::OFF);

        let args = args(&[
            "--log_stacktrace_level=ads:error",
            "--log_caller=ads,kube",
            "--log_stackdriver",
            "--log_target=stderr",
            "--log_target=/tmp/x.log",
            "--log_rotate=/var/log/sluiced.log",
            "--log_rotate_max_size=2",
            "--log_rotate_max_age=0",
            "--log-rotate-max-backups",
            "3",
        ]);
        let config = args.config().expect("valid");
        assert_eq!(config.levels, LogLevels::default());
        assert_eq!(
            ["ads", "kube"].map(|scope| config.stack_trace_levels.of(scope)),
            [LevelFilter::ERROR, LevelFilter::OFF]
        );
        assert_eq!(config.callers, ["ads", "kube"]);
        assert_eq!(config.format, LogFormat::Stackdriver);
        assert_eq!(config.targets, [LogTarget::Stderr, LogTarget::File("/tmp/x.log".into())]);
        let rotation = config.rotation.expect("a file");
        assert_eq!((rotation.max_bytes, rotation.max_age, rotation.max_backups), (2 << 20, None, Some(3)));
    }

    #[test]
    fn invalid_levels_are_errors_or_ignored_with_a_warning() {
        let args =
            args(&["--log_output_level=default:debug,cache:loud,sds:none", "--log_target=", "--log_target=stderr"]);
        assert_eq!(args.config().expect_err("invalid").flag, "--log_output_level");
        let (config, warnings) = args.lenient_config();
        assert_eq!(config.levels.of("dns"), LevelFilter::DEBUG);
        assert_eq!(config.levels.of("sds"), LevelFilter::OFF);
        assert_eq!(config.targets, [LogTarget::Stderr]);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
    }
}
