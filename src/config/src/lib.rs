//! The command line and the environment, read once, as typed settings.

mod address;
mod args;
mod environment;
mod limit_args;
mod limits;
mod namespace_limit_args;
mod proxy_limit_args;
mod security;
mod security_args;
mod unknown;
mod values;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_model::Text;
use sluice_parse::parse_duration;
use sluice_recording::ReplaySpeed;
use sluice_telemetry::{LogArgError, LogConfig};
use sluice_tls::TlsOptionError;
use sluice_traces::{TraceSettingError, TraceSettings};

use crate::values::Variables;

pub use address::{AddressError, ListenAddress};
pub use args::{Command, CommandLine, DiscoveryArgs, RequestArgs};
pub use environment::Features;
pub use limit_args::LimitArgs;
pub use limits::LimitsConfig;
pub use namespace_limit_args::NamespaceLimitArgs;
pub use proxy_limit_args::ProxyLimitArgs;
pub use security::{CertProvider, JwtRule, SecurityConfig, TokenConfig};

/// All settings, passed down by value.
#[derive(Clone, Debug)]
pub struct Config {
    /// The sources of objects.
    pub sources: SourcesConfig,
    /// The identity of the control plane.
    pub identity: ControlPlaneIdentity,
    /// Addresses to listen on.
    pub ports: Ports,
    /// Connections.
    pub serving: ServingConfig,
    /// Limits of connections and of what clients may cause.
    pub limits: LimitsConfig,
    /// Limits of the proxies that callers may connect.
    pub proxy_limits: ProxyLimitArgs,
    /// Limits of what the objects of one namespace may cost.
    pub namespace_limits: NamespaceLimitArgs,
    /// The log.
    pub log: LogConfig,
    /// The certificate authority, the secure port, and authentication.
    pub security: SecurityConfig,
    /// Settings from environment variables.
    pub features: Features,
    /// Traces of changes (`OTEL_TRACES_EXPORTER`); `None` is no traces.
    pub traces: Option<TraceSettings>,
    /// Profiles of the process are served.
    pub profiles: bool,
    /// Values of variables that are not supported are warnings (`SLUICE_IGNORE_UNSUPPORTED_VARIABLES`).
    pub ignores_unsupported: bool,
    /// Warnings about settings. They are logged when the log has started.
    pub warnings: Vec<String>,
}

/// The source of a cluster's objects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClusterSource {
    /// Files.
    Directory(PathBuf),
    /// The Kubernetes API; `None` is the pod's service account.
    Kubernetes(Option<PathBuf>),
    /// A recording, which has the objects of all clusters.
    Recording(PathBuf),
}

/// The sources of objects.
#[derive(Clone, Debug)]
pub struct SourcesConfig {
    /// The local cluster.
    pub local: ClusterSource,
    /// Other clusters by id.
    pub remotes: BTreeMap<Text, ClusterSource>,
    /// Speed of the changes in a recording.
    pub replay_speed: ReplaySpeed,
    /// Text that is not YAML is an error at start-up.
    pub strict: bool,
    /// File that overrides the mesh config of ConfigMap `istio`, if it exists.
    pub mesh_config: PathBuf,
    /// File that overrides the networks, if it exists.
    pub networks: PathBuf,
    /// ConfigMap with the shared mesh config, which ConfigMap `istio` overrides (`SHARED_MESH_CONFIG`).
    pub shared_mesh_config: Option<Text>,
    /// Reads variables that mesh config names (`envName` of a header); see [`Config::with_environment`].
    pub variable: fn(&str) -> Option<String>,
    /// The only namespace to watch; `None` is all.
    pub watch_namespace: Option<Text>,
    /// Namespace of the pods of the CNI agent; `None` is that of the control plane.
    pub cni_namespace: Option<Text>,
}

/// The identity of this control plane.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ControlPlaneIdentity {
    /// Namespace it runs in. It is the root namespace unless the mesh config sets another one.
    pub namespace: Text,
    /// Name of its pod; empty outside Kubernetes.
    pub pod_name: Text,
    /// Its service account (`SERVICE_ACCOUNT`).
    pub service_account: Text,
    /// Its revision; `default` unless set.
    pub revision: Text,
    /// The revision whose configuration is read (label `istio.io/rev`): the revision of the control plane if it is set, else configuration of all revisions.
    pub read_revision: Text,
    /// DNS domain of services.
    pub domain: Text,
    /// Id of the local cluster.
    pub cluster: Text,
    /// Aliases of cluster ids.
    pub cluster_aliases: BTreeMap<Text, Text>,
}

/// Addresses to listen on.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Debug and readiness.
    pub http: Option<ListenAddress>,
    /// xDS in plaintext.
    pub grpc: Option<ListenAddress>,
    /// xDS and certificates over TLS.
    pub secure_grpc: Option<ListenAddress>,
    /// Metrics and version.
    pub monitoring: Option<ListenAddress>,
    /// Webhooks over TLS. Without an address, they are served on the HTTP port.
    pub https: Option<ListenAddress>,
    /// ControlZ.
    pub controlz: Option<ListenAddress>,
}

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ServingConfig {
    /// Time limit for streams to end after a stop signal.
    pub shutdown: Duration,
    /// Idle time after which a connection is pinged.
    pub keepalive_interval: Duration,
    /// Time limit for the response to a ping.
    pub keepalive_timeout: Duration,
    /// Age at which a connection is closed; `None` for no limit.
    pub max_connection_age: Option<Duration>,
}

/// A flag or environment variable with an invalid value.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{flag}: {reason}")]
pub struct ConfigError {
    /// The flag or the variable.
    pub flag: &'static str,
    /// What is wrong and what is accepted, a lower-case fragment.
    pub reason: String,
}

impl From<TlsOptionError> for ConfigError {
    fn from(error: TlsOptionError) -> Self {
        Self { flag: error.option, reason: error.reason }
    }
}

impl Config {
    /// Settings of these arguments, and of the environment; `variable` looks up a variable. `unknown_flags` have the form of
    /// [`CommandLine::parse_lenient`].
    ///
    /// # Errors
    /// The first invalid flag or variable.
    pub fn new(
        args: DiscoveryArgs,
        unknown_flags: &[String],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut warnings: Vec<String> =
            unknown_flags.iter().filter_map(|flag| sluice_variables::flag_warning(flag)).collect();
        let security_args = args.security.clone();
        let mut sources = sources_config(&args)?;
        let ports = Ports {
            http: parse_address("--httpAddr", &args.http_addr)?,
            grpc: parse_address("--grpcAddr", &args.grpc_addr)?,
            secure_grpc: parse_address("--secureGRPCAddr", &args.secure_grpc_addr)?,
            monitoring: parse_address("--monitoringAddr", &args.monitoring_addr)?,
            https: parse_address("--httpsAddr", &args.https_addr)?,
            controlz: ListenAddress::of_host(&args.ctrlz_address, args.ctrlz_port),
        };
        let max_age = duration("--keepaliveMaxServerConnectionAge", &args.keepalive_max_server_connection_age)?;
        let serving = ServingConfig {
            shutdown: duration("--shutdownDuration", &args.shutdown_duration)?,
            keepalive_interval: duration("--keepaliveInterval", &args.keepalive_interval)?,
            keepalive_timeout: duration("--keepaliveTimeout", &args.keepalive_timeout)?,
            max_connection_age: Some(max_age).filter(|age| !age.is_zero()),
        };
        let limits = LimitsConfig::new(&args.limits)?;
        let log = args.log.config().map_err(|LogArgError { flag, reason }| ConfigError { flag, reason })?;
        if !is_dns_name(&args.domain) {
            return Err(ConfigError {
                flag: "--domain",
                reason: format!("{:?} is not a DNS domain such as cluster.local", args.domain),
            });
        }
        if args.cluster_id.is_empty() {
            return Err(ConfigError { flag: "--clusterID", reason: "is empty".to_owned() });
        }
        let aliases = args.cluster_aliases.iter().filter(|pair| !pair.is_empty());
        let cluster_aliases = aliases.map(|pair| parse_pair("--clusterAliases", pair)).collect::<Result<_, _>>()?;
        let mut variables = Variables::new(&variable);
        let identity = ControlPlaneIdentity {
            namespace: if args.namespace.is_empty() { "istio-system".into() } else { args.namespace.into() },
            pod_name: args.pod_name.into(),
            service_account: variables.text_or("SERVICE_ACCOUNT", "istiod").into(),
            read_revision: args.revision.as_str().into(),
            revision: if args.revision.is_empty() { "default".into() } else { args.revision.into() },
            domain: args.domain.into(),
            cluster: args.cluster_id.into(),
            cluster_aliases,
        };
        let (proxy_limits, namespace_limits, profiles) = (args.proxy_limits, args.namespace_limits, args.profile);
        let security = SecurityConfig::new(&security_args, &mut variables)?;
        let features = Features::read(&mut variables, &mut warnings);
        sources.shared_mesh_config = variables.text("SHARED_MESH_CONFIG").map(Text::from);
        let traces = match TraceSettings::from_variables(|name| variables.raw(name)) {
            Ok(traces) => traces,
            Err(TraceSettingError { variable, reason }) => {
                variables.fail(variable, reason);
                None
            }
        };
        let ignores_unsupported = variables.flag("SLUICE_IGNORE_UNSUPPORTED_VARIABLES", false);
        variables.finish()?;
        Ok(Self {
            sources,
            identity,
            ports,
            serving,
            limits,
            proxy_limits,
            namespace_limits,
            log,
            security,
            features,
            traces,
            profiles,
            ignores_unsupported,
            warnings,
        })
    }
}

impl Config {
    /// Lets mesh config name variables of the environment.
    #[must_use]
    pub fn with_environment(mut self, variable: fn(&str) -> Option<String>) -> Self {
        self.sources.variable = variable;
        self
    }

    /// Adds warnings for variables that are set and have no effect, such as misspelt ones.
    ///
    /// # Errors
    /// A variable of istiod has another value than the supported one, and such values are not ignored.
    pub fn check_environment(mut self, environment: &[(String, String)]) -> Result<Self, ConfigError> {
        let refusal = sluice_variables::control_plane_refusal(environment);
        if let Some(reason) = refusal.filter(|_| !self.ignores_unsupported) {
            return Err(ConfigError { flag: "environment", reason });
        }
        self.warnings.extend(sluice_variables::control_plane_warnings(environment));
        Ok(self)
    }

    /// Adds warnings for files that flags name and that do not exist.
    #[must_use]
    pub fn check_paths(mut self) -> Self {
        let mesh = [
            ("--meshConfig", &self.sources.mesh_config, args::DEFAULT_MESH_CONFIG),
            ("--networksConfig", &self.sources.networks, args::DEFAULT_NETWORKS_CONFIG),
        ];
        let mesh = mesh.into_iter().filter(|(_, path, default)| *path != Path::new(default));
        let keys = self.security.tokens.keys.values().map(|path| ("--tokenKeys", path));
        let named = mesh.map(|(flag, path, _)| (flag, path)).chain(keys);
        let missing = named.filter(|(_, path)| !path.exists());
        let warnings: Vec<String> = missing
            .map(|(flag, path)| {
                format!("{flag}: file {} does not exist yet: it is read when it is created", path.display())
            })
            .collect();
        self.warnings.extend(warnings);
        self
    }
}

/// The recording in place of all sources, if there is one.
fn recording(args: &DiscoveryArgs) -> Result<Option<ClusterSource>, ConfigError> {
    if args.replay_file.is_empty() {
        if args.replay_speed != args::DEFAULT_REPLAY_SPEED {
            let reason = "has no effect without --replayFile".to_owned();
            return Err(ConfigError { flag: "--replaySpeed", reason });
        }
        return Ok(None);
    }
    let others = [
        ("--configDir", args.config_dir.is_some()),
        ("--kubeconfig", args.kubeconfig.is_some()),
        ("--remoteConfigDir", !args.remote_config_dir.is_empty()),
        ("--meshConfig", args.mesh_config != Path::new(args::DEFAULT_MESH_CONFIG)),
        ("--networksConfig", args.networks_config != Path::new(args::DEFAULT_NETWORKS_CONFIG)),
    ];
    match others.iter().find(|(_, is_set)| *is_set) {
        Some((other, _)) => {
            let reason = format!("conflicts with {other}: a recording takes the place of all sources");
            Err(ConfigError { flag: "--replayFile", reason })
        }
        None => Ok(Some(ClusterSource::Recording(PathBuf::from(&args.replay_file)))),
    }
}

fn sources_config(args: &DiscoveryArgs) -> Result<SourcesConfig, ConfigError> {
    let local = match (recording(args)?, &args.config_dir, &args.kubeconfig) {
        (Some(recording), _, _) => recording,
        (None, Some(directory), None) => ClusterSource::Directory(directory.clone()),
        (None, None, kubeconfig) => ClusterSource::Kubernetes(kubeconfig.clone()),
        (None, Some(_), Some(_)) => {
            let reason = "conflicts with --configDir: objects come from files or from the Kubernetes API".to_owned();
            return Err(ConfigError { flag: "--kubeconfig", reason });
        }
    };
    let mut remotes = BTreeMap::new();
    for pair in &args.remote_config_dir {
        let (id, directory) = parse_pair("--remoteConfigDir", pair)?;
        if id.as_str() == args.cluster_id {
            let reason = format!("{id} is the local cluster, see --clusterID");
            return Err(ConfigError { flag: "--remoteConfigDir", reason });
        }
        let source = ClusterSource::Directory(PathBuf::from(directory.as_str()));
        if remotes.insert(id.clone(), source).is_some() {
            return Err(ConfigError { flag: "--remoteConfigDir", reason: format!("cluster {id} is configured twice") });
        }
    }
    Ok(SourcesConfig {
        local,
        remotes,
        replay_speed: args.replay_speed.parse().map_err(fail("--replaySpeed"))?,
        strict: args.strict_config,
        mesh_config: args.mesh_config.clone(),
        networks: args.networks_config.clone(),
        shared_mesh_config: None,
        variable: |_| None,
        watch_namespace: non_empty(&args.watch_namespace),
        cni_namespace: non_empty(&args.cni_namespace),
    })
}

fn non_empty(text: &str) -> Option<Text> {
    Some(Text::from(text)).filter(|text| !text.is_empty())
}

fn fail<E: Display>(flag: &'static str) -> impl Fn(E) -> ConfigError {
    move |error| ConfigError { flag, reason: error.to_string() }
}

fn parse_address(flag: &'static str, text: &str) -> Result<Option<ListenAddress>, ConfigError> {
    ListenAddress::parse(text).map_err(fail(flag))
}

fn duration(flag: &'static str, text: &str) -> Result<Duration, ConfigError> {
    parse_duration(text).ok_or_else(|| ConfigError {
        flag,
        reason: format!("{text:?} is not a duration: use one such as 10s or 1h30m"),
    })
}

fn parse_pair(flag: &'static str, text: &str) -> Result<(Text, Text), ConfigError> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.into(), value.into())),
        _ => Err(ConfigError { flag, reason: format!("{text:?} is not of the form NAME=VALUE") }),
    }
}

fn is_dns_name(text: &str) -> bool {
    text.split('.').all(|label| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

#[cfg(test)]
mod tests;
