//! Log levels by scope.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// A scope of `sluiced`.
pub(crate) struct LogScope {
    pub(crate) name: &'static str,
    /// What its lines are about.
    pub(crate) description: &'static str,
    /// Its modules. The longest matching module decides.
    modules: &'static [&'static str],
}

const fn scope(name: &'static str, description: &'static str, modules: &'static [&'static str]) -> LogScope {
    LogScope { name, description, modules }
}

/// The scope of modules that belong to no other one.
pub(crate) const DEFAULT_SCOPE: &str = "default";

/// Scopes of `sluiced`, in the order of their names. Events may also name their scope as the target.
pub(crate) const SCOPES: &[LogScope] = &[
    scope("admin", "debug pages and metrics", &["sluice_admin"]),
    scope("ads", "streams of proxies and what they are sent", &["sluice_xds", "sluice_xds_protocol"]),
    scope("adsc", "configuration that is read over xDS", &["sluice_mcp::client"]),
    scope("ca", "roots in namespaces and webhook configurations", &["sluice_authority"]),
    scope(DEFAULT_SCOPE, "everything else", &[]),
    scope("delta", "the delta protocol of xDS", &["sluice_xds_protocol::delta"]),
    scope("files", "configuration files", &["sluice_sources::files", "sluice_watch"]),
    scope("grpc", "gRPC and HTTP libraries", &["tonic", "h2", "hyper", "hyper_util", "tower"]),
    scope("jwks", "keys of token issuers", &["sluice_jwks"]),
    scope("krt", "derived collections", &["sluice_engine", "sluice_graph"]),
    scope(
        "kube",
        "the Kubernetes API",
        &["sluice_sources::kube", "sluice_kube", "kube", "kube_client", "kube_runtime"],
    ),
    scope("leader", "the election among replicas", &["sluice_kube::leader"]),
    scope("listen", "connections of all ports", &["sluice_listen"]),
    scope("model", "reading of objects", &["sluice_parse", "sluice_model", "sluice_sources"]),
    scope("pkica", "the certificate authority", &["sluice_ca"]),
    scope("pkira", "certificates that the Kubernetes API signs", &[]),
    scope("rootcertrotator", "the renewal of the self-signed root", &[]),
    scope("serverca", "requests for certificates", &[]),
    scope("tls", "TLS of the secure port and of the webhooks", &["sluice_tls"]),
    scope("validation", "invalid objects", &["sluice_sources::report"]),
    scope("webhook", "calls of the webhooks", &["sluice_webhook"]),
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
    let matches = SCOPES.iter().flat_map(|scope| scope.modules.iter().map(move |module| (scope.name, *module)));
    matches
        .filter(|(_, module)| begins(module))
        .max_by_key(|(_, module)| module.len())
        .map_or(DEFAULT_SCOPE, |(scope, _)| scope)
}

fn scopes() -> impl Iterator<Item = &'static str> {
    SCOPES.iter().map(|scope| scope.name).chain(AGENT_SCOPES.iter().copied())
}

pub(crate) fn known_scope(name: &str) -> Option<&'static str> {
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
    /// No level in any scope.
    #[must_use]
    pub fn none() -> Self {
        Self { default: LevelFilter::OFF, scopes: BTreeMap::new() }
    }

    /// Reads levels. Scopes that are not named have the default, which may be named too.
    ///
    /// # Errors
    /// The text has an unknown level.
    pub fn parse(text: &str, default: LevelFilter) -> Result<Self, UnknownLogLevel> {
        let mut levels = Self { default, scopes: BTreeMap::new() };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (scope, level) = part.split_once(':').unwrap_or((DEFAULT_SCOPE, part));
            let level = parse_level(level).ok_or_else(|| UnknownLogLevel(level.to_owned()))?;
            match scope {
                DEFAULT_SCOPE => levels.default = level,
                "all" => {
                    levels.default = level;
                    let named = SCOPES.iter().filter(|scope| scope.name != DEFAULT_SCOPE);
                    levels.scopes = named.map(|scope| (scope.name, level)).collect();
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

    /// The level of a scope.
    #[must_use]
    pub fn of(&self, scope: &str) -> LevelFilter {
        // gRPC and HTTP libraries log a lot: levels below warn apply to their scope only if it is named.
        let default = if scope == "grpc" { self.default.min(LevelFilter::WARN) } else { self.default };
        self.scopes.get(scope).copied().unwrap_or(default)
    }

    /// Sets the level of one scope. [`DEFAULT_SCOPE`] is a scope like any other here: the levels of all others stay.
    pub(crate) fn set(&mut self, scope: &'static str, level: LevelFilter) {
        if scope != DEFAULT_SCOPE {
            self.scopes.insert(scope, level);
            return;
        }
        for other in SCOPES.iter().filter(|other| other.name != DEFAULT_SCOPE) {
            let current = self.of(other.name);
            self.scopes.insert(other.name, current);
        }
        self.default = level;
    }
}

/// A text that is not a log level.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is not a level: use none, fatal, error, warn, info, debug or trace")]
pub struct UnknownLogLevel(String);

impl FromStr for LogLevels {
    type Err = UnknownLogLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLogLevel> {
        Self::parse(text, LevelFilter::INFO)
    }
}

impl fmt::Display for LogLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{DEFAULT_SCOPE}:{}", name_of(self.default))?;
        self.scopes.iter().try_for_each(|(scope, level)| write!(f, ",{scope}:{}", name_of(*level)))
    }
}

/// The level of this name.
pub(crate) fn parse_level(name: &str) -> Option<LevelFilter> {
    Some(match name {
        "none" => LevelFilter::OFF,
        "fatal" | "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
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

    use super::{DEFAULT_SCOPE, LogLevels, SCOPES, level_of, scope_of};

    #[test]
    fn targets_map_to_scopes() {
        assert_eq!(scope_of("sluice_xds_protocol::delta::codec"), "delta");
        assert_eq!(scope_of("sluice_xds::stream"), "ads");
        assert_eq!(scope_of("sluice_xdsomething"), "default");
        assert_eq!(scope_of("sluiced::app"), "default");
        assert_eq!(scope_of("delta"), "delta");
        assert!(SCOPES.is_sorted_by_key(|scope| scope.name));
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
    fn level_of_one_scope_is_set_without_the_others() {
        let mut levels: LogLevels = "default:info,ads:debug".parse().expect("valid");
        levels.set(DEFAULT_SCOPE, LevelFilter::ERROR);
        levels.set("kube", LevelFilter::OFF);
        let of = |scope| levels.of(scope);
        assert_eq!((of("default"), of("ads"), of("kube")), (LevelFilter::ERROR, LevelFilter::DEBUG, LevelFilter::OFF));
        assert_eq!((of("model"), of("grpc")), (LevelFilter::INFO, LevelFilter::WARN), "these levels are as before");
    }

    #[test]
    fn displayed_levels_can_be_parsed() {
        let levels: LogLevels = "default:none,ads:debug,kube:none".parse().expect("valid");
        assert_eq!(levels.to_string(), "default:none,ads:debug,kube:none");
        assert_eq!(levels.to_string().parse(), Ok(levels));
    }
}
