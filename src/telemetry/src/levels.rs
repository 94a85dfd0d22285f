//! Log levels by scope.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Scopes and their modules. The longest matching module decides.
pub(crate) const SCOPES: &[(&str, &[&str])] = &[
    ("admin", &["sluice_admin"]),
    ("ads", &["sluice_xds", "sluice_xds_protocol"]),
    ("delta", &["sluice_xds_protocol::delta"]),
    ("files", &["sluice_sources::files", "sluice_watch"]),
    ("grpc", &["tonic", "h2", "hyper", "hyper_util", "tower"]),
    ("krt", &["sluice_engine", "sluice_graph"]),
    ("kube", &["sluice_sources::kube", "sluice_kube", "kube", "kube_client", "kube_runtime"]),
    ("model", &["sluice_parse", "sluice_model", "sluice_sources"]),
    ("validation", &["sluice_sources::report"]),
];

/// Scopes of `sluice-agent`. Its events name their scope as the target.
const AGENT_SCOPES: &[&str] = &["cache", "debug", "dns", "healthcheck", "probes", "sds", "status", "wasm", "xdsproxy"];

/// The scope of an event target, which is a module or a scope; `default` if none matches.
#[must_use]
pub fn scope_of(target: &str) -> &'static str {
    if let Some(scope) = known_scope(target) {
        return scope;
    }
    let begins =
        |module: &str| target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    let matches = SCOPES.iter().flat_map(|(scope, modules)| modules.iter().map(move |module| (*scope, *module)));
    matches
        .filter(|(_, module)| begins(module))
        .max_by_key(|(_, module)| module.len())
        .map_or("default", |(scope, _)| scope)
}

fn scopes() -> impl Iterator<Item = &'static str> {
    SCOPES.iter().map(|(scope, _)| *scope).chain(AGENT_SCOPES.iter().copied())
}

fn known_scope(name: &str) -> Option<&'static str> {
    scopes().find(|scope| *scope == name)
}

/// The log level of each scope.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLevels {
    default: LevelFilter,
    scopes: BTreeMap<&'static str, LevelFilter>,
}

impl Default for LogLevels {
    fn default() -> Self {
        Self { default: LevelFilter::INFO, scopes: BTreeMap::new() }
    }
}

impl LogLevels {
    /// The level of a scope.
    #[must_use]
    pub fn of(&self, scope: &str) -> LevelFilter {
        // gRPC and HTTP libraries log a lot: levels below warn apply to their scope only if it is named.
        let default = if scope == "grpc" { self.default.min(LevelFilter::WARN) } else { self.default };
        self.scopes.get(scope).copied().unwrap_or(default)
    }
}

/// A text that is not a log level.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is not a level: use none, fatal, error, warn, info, debug or trace")]
pub struct UnknownLogLevel(String);

impl FromStr for LogLevels {
    type Err = UnknownLogLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLogLevel> {
        let mut levels = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (scope, level) = part.split_once(':').unwrap_or(("default", part));
            let level = match level {
                "none" => LevelFilter::OFF,
                "fatal" | "error" => LevelFilter::ERROR,
                "warn" => LevelFilter::WARN,
                "info" => LevelFilter::INFO,
                "debug" => LevelFilter::DEBUG,
                "trace" => LevelFilter::TRACE,
                unknown => return Err(UnknownLogLevel(unknown.to_owned())),
            };
            match scope {
                "default" => levels.default = level,
                "all" => {
                    levels.default = level;
                    levels.scopes = SCOPES.iter().map(|(scope, _)| (*scope, level)).collect();
                }
                _ => {
                    // Scopes of istiod that do not exist here are accepted.
                    if let Some(known) = known_scope(scope) {
                        levels.scopes.insert(known, level);
                    }
                }
            }
        }
        Ok(levels)
    }
}

impl fmt::Display for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "default:{}", name_of(self.default))?;
        self.scopes.iter().try_for_each(|(scope, level)| write!(f, ",{scope}:{}", name_of(*level)))
    }
}

/// The name of a level as it is parsed.
fn name_of(level: LevelFilter) -> String {
    if level == LevelFilter::OFF { "none".to_owned() } else { level.to_string() }
}

impl<S: Subscriber> Layer<S> for LogLevels {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enables(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.enables(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.scopes.values().chain([&self.default]).max().copied()
    }
}

impl LogLevels {
    fn enables(&self, metadata: &Metadata<'_>) -> bool {
        level_of(metadata.target(), *metadata.level()) <= self.of(scope_of(metadata.target()))
    }
}

/// The level that decides whether an event is logged. The crates of `kube` log errors that they also return, with the text of
/// responses. `sluice_kube` logs those.
fn level_of(target: &str, level: Level) -> Level {
    if target.starts_with("kube_runtime") || target.starts_with("kube_client") {
        level.max(Level::DEBUG)
    } else {
        level
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;
    use tracing::level_filters::LevelFilter;

    use super::{LogLevels, level_of, scope_of};

    #[test]
    fn targets_map_to_scopes() {
        assert_eq!(scope_of("sluice_xds_protocol::delta::codec"), "delta");
        assert_eq!(scope_of("sluice_xds::stream"), "ads");
        assert_eq!(scope_of("sluice_xdsomething"), "default");
        assert_eq!(scope_of("sluiced::app"), "default");
        assert_eq!(scope_of("delta"), "delta");
    }

    #[test]
    fn returned_errors_of_the_watcher_are_logged_once() {
        assert_eq!(level_of("kube_runtime::watcher", Level::WARN), Level::DEBUG);
        assert_eq!(level_of("kube_runtime::watcher", Level::TRACE), Level::TRACE);
        assert_eq!(level_of("kube_client::client", Level::WARN), Level::DEBUG);
        assert_eq!(level_of("sluice_kube::list_watch", Level::WARN), Level::WARN);
    }

    #[test]
    fn levels_are_parsed_by_scope() {
        let levels: LogLevels = "default:warn,ads:debug,unknown:debug".parse().expect("valid");
        assert_eq!(levels.of("ads"), LevelFilter::DEBUG);
        assert_eq!(levels.of("kube"), LevelFilter::WARN);
        assert_eq!("debug".parse::<LogLevels>().expect("valid").of("kube"), LevelFilter::DEBUG);
        assert_eq!("all:none".parse::<LogLevels>().expect("valid").of("ads"), LevelFilter::OFF);
        assert!("ads:loud".parse::<LogLevels>().is_err());
    }

    #[test]
    fn displayed_levels_can_be_parsed() {
        let levels: LogLevels = "default:none,ads:debug,kube:none".parse().expect("valid");
        assert_eq!(levels.to_string(), "default:none,ads:debug,kube:none");
        assert_eq!(levels.to_string().parse(), Ok(levels));
    }
}
