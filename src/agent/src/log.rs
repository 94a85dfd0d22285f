//! The log: levels by scope, as text or JSON, on standard output together with Envoy's.

use sluice_telemetry::{LogConfig, LogControl, LogLevels, LogTarget};

/// Starts the log. `levels` are comma-separated `[SCOPE:]LEVEL`; invalid ones are ignored, with a warning in the result.
pub(crate) fn start(levels: &str, json: bool) -> (Option<LogControl>, Vec<String>) {
    let (levels, warnings) = parse(levels);
    // A second start, for example in tests, has no effect.
    let log = sluice_telemetry::start(&LogConfig { levels, json, target: LogTarget::Stdout }).ok();
    (log, warnings)
}

/// An injected container may name levels of another version, so an invalid level is not an error.
fn parse(text: &str) -> (LogLevels, Vec<String>) {
    let mut warnings = Vec::new();
    let valid = text.split(',').filter(|item| match item.parse::<LogLevels>() {
        Ok(_) => true,
        Err(reason) => {
            warnings.push(format!("--log_output_level: {item:?} is ignored: {reason}"));
            false
        }
    });
    let valid: Vec<&str> = valid.collect();
    (valid.join(",").parse().unwrap_or_default(), warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_by_scope_and_libraries_are_quiet() {
        let (levels, warnings) = parse("default:debug,xdsproxy:error,sds:none,cache:loud");
        let text = |scope: &str| levels.of(scope).to_string();
        assert_eq!(["dns", "xdsproxy", "sds", "cache", "grpc"].map(text), ["debug", "error", "off", "debug", "warn"]);
        assert_eq!(warnings.len(), 1);
        assert_eq!(parse("info,grpc:debug").0.of("grpc").to_string(), "debug");
    }
}
