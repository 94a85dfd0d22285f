//! The log: levels by scope, as text or JSON, on standard output beside Envoy's.

use tracing_subscriber::EnvFilter;

/// Starts it. Levels are `[SCOPE:]LEVEL,..`; what cannot be read is left out and returned.
pub(crate) fn start(levels: &str, json: bool) -> Vec<String> {
    let (directives, unknown) = directives(levels);
    let filter = EnvFilter::new(directives);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stdout).with_ansi(false);
    // A second start, as in tests, changes nothing.
    let _ = if json { builder.json().try_init() } else { builder.try_init() };
    unknown
}

/// In the form of the filter. The libraries below are chatty: they are asked for by the scope `grpc`.
fn directives(levels: &str) -> (String, Vec<String>) {
    let (mut default, mut scopes, mut unknown) = ("info", Vec::new(), Vec::new());
    for item in levels.split(',').filter(|item| !item.is_empty()) {
        let (scope, level) = item.split_once(':').unwrap_or(("default", item));
        let level = match level {
            "debug" | "info" | "warn" | "error" => level,
            "none" => "off",
            "fatal" => "error",
            _ => {
                unknown.push(format!("--log_output_level: {item:?} is left out: it is no level"));
                continue;
            }
        };
        match scope {
            "default" | "all" => default = level,
            "grpc" => scopes.extend(["grpc", "h2", "hyper", "tonic"].map(|library| format!("{library}={level}"))),
            scope => scopes.push(format!("{scope}={level}")),
        }
    }
    let quiet =
        ["h2", "hyper", "hyper_util", "tonic", "tower", "rustls", "notify"].map(|library| format!("{library}=warn"));
    let all: Vec<String> = std::iter::once(default.to_owned()).chain(quiet).chain(scopes).collect();
    (all.join(","), unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_by_scope_and_libraries_are_quiet() {
        let (text, unknown) = directives("default:debug,xdsproxy:error,sds:none,cache:loud");
        assert!(text.starts_with("debug,h2=warn,"), "{text}");
        assert!(text.ends_with("notify=warn,xdsproxy=error,sds=off"), "{text}");
        assert_eq!(unknown.len(), 1);
        assert!(directives("info,grpc:debug").0.contains("hyper=debug"));
    }
}
