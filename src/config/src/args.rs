//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use sluice_telemetry::LogArgs;
use sluice_variables::CONTROL_PLANE;

use crate::limit_args::LimitArgs;
use crate::namespace_limit_args::NamespaceLimitArgs;
use crate::proxy_limit_args::ProxyLimitArgs;
use crate::security_args::SecurityArgs;
use crate::unknown;

/// Default of `--meshConfig`.
pub(crate) const DEFAULT_MESH_CONFIG: &str = "./etc/istio/config/mesh";
/// Default of `--networksConfig`.
pub(crate) const DEFAULT_NETWORKS_CONFIG: &str = "./etc/istio/config/meshNetworks";

/// Default of `--replaySpeed`.
pub(crate) const DEFAULT_REPLAY_SPEED: &str = "max";

/// The end of the help text.
const AFTER_HELP: &str = "\
Addresses are `HOST:PORT`, `:PORT` for all interfaces, `HOST:0` for any free port (the log line
`listening` has it), or empty to disable the port. Durations have the form of Go: `10s`, `1h30m`,
`250ms`. Every flag also has a spelling in lower case with dashes (`--config-dir`). Flags of istiod
without an effect here are accepted with a warning; a misspelt flag is an error.

A new stream needs a push permit for each of its first responses; PILOT_PUSH_THROTTLE is the number
of permits. Changes for configured proxies go before new streams. They need a permit only if they
have more than 256 resources; changes of a few endpoints need none. A stream that would wait too
long, or exceeds PILOT_MAX_REQUESTS_PER_SECOND, is refused with RESOURCE_EXHAUSTED, and its proxy
retries. `--help` lists the environment variables that are followed. `sluiced env` also lists those of
Istio that are not, with the reason.

Exit codes:
  0  stopped on request
  1  failed while running
  2  a flag or an environment variable is invalid
  3  an address cannot be listened on
  4  the Kubernetes API, a configuration directory or a recording cannot be used
  5  mesh config or networks are invalid
  6  the configuration directory contains text that is not YAML (only with --strictConfig)
  7  the certificate authority cannot be used";

fn long_help() -> String {
    format!(
        "{AFTER_HELP}\n\nEnvironment, in addition to the variables of flags:\n{}",
        sluice_variables::help(CONTROL_PLANE)
    )
}

/// A service-mesh control plane that speaks istiod's protocols.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluiced", version, after_help = AFTER_HELP, after_long_help = long_help(), args_override_self = true)]
pub struct CommandLine {
    /// The subcommand; `discovery` by default.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `discovery`.
    #[command(flatten)]
    pub discovery: DiscoveryArgs,
}

/// Subcommands.
#[derive(Clone, Debug, Eq, PartialEq, Subcommand)]
pub enum Command {
    /// Serve proxies (the default).
    Discovery,
    /// Print the version.
    Version,
    /// List the environment variables of Sluice and Istio: name, state, accepted values, default, and meaning or reason.
    Env,
    /// Send a request to the HTTP port of the control plane in this container (--httpAddr), and print the response.
    Request(RequestArgs),
}

/// Arguments of `request`.
#[derive(Args, Clone, Debug, Eq, PartialEq)]
pub struct RequestArgs {
    /// GET, PUT or another method.
    pub method: String,
    /// Path and query, such as `/debug/syncz`.
    pub path: String,
    /// Body of the request.
    pub body: Option<String>,
}

/// Flags under the names that `pilot-discovery discovery` has.
#[derive(Clone, Debug, Args)]
pub struct DiscoveryArgs {
    /// Directory of YAML or JSON files with Kubernetes and Istio objects, which replaces the Kubernetes API. Changes are
    /// followed.
    #[arg(long = "configDir", alias = "config-dir", value_name = "DIR", global = true, help_heading = "Sources")]
    pub config_dir: Option<PathBuf>,
    /// Directory of objects of another cluster. Can be repeated.
    #[arg(
        long = "remoteConfigDir",
        alias = "remote-config-dir",
        value_name = "ID=DIR",
        global = true,
        help_heading = "Sources"
    )]
    pub remote_config_dir: Vec<String>,
    /// Exit if a file of --configDir is not YAML, instead of serving the valid files.
    #[arg(
        long = "strictConfig",
        alias = "strict-config",
        env = "SLUICE_STRICT_CONFIG",
        global = true,
        help_heading = "Sources"
    )]
    pub strict_config: bool,
    /// Kubeconfig file for the Kubernetes API; without it and --configDir, the pod's service account is used.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Sources")]
    pub kubeconfig: Option<PathBuf>,
    /// File with the mesh config. While it does not exist, ConfigMap `istio` (`istio-REVISION`) in the
    /// control plane's namespace is used. Changes apply without a restart; an invalid file is logged and ignored.
    #[arg(
        long = "meshConfig",
        alias = "mesh-config",
        value_name = "FILE",
        default_value = DEFAULT_MESH_CONFIG,
        global = true,
        help_heading = "Sources"
    )]
    pub mesh_config: PathBuf,
    /// File with the networks of the mesh. While it does not exist, key `meshNetworks` of the same ConfigMap is used.
    /// Changes apply without a restart; an invalid file is logged and ignored.
    #[arg(
        long = "networksConfig",
        alias = "networks-config",
        value_name = "FILE",
        default_value = DEFAULT_NETWORKS_CONFIG,
        global = true,
        help_heading = "Sources"
    )]
    pub networks_config: PathBuf,
    /// Recording of `sluicectl record` that takes the place of all sources: proxies are served what the recorded control plane would
    /// serve them, except Secrets. Flags and variables that change configuration have no effect: those of the recording apply.
    #[arg(
        long = "replayFile",
        alias = "replay-file",
        env = "SLUICE_REPLAY_FILE",
        value_name = "FILE",
        default_value = "",
        hide_default_value = true,
        global = true,
        help_heading = "Sources"
    )]
    pub replay_file: String,
    /// Speed of the changes in --replayFile: `max`, or how many times as fast as recorded, such as 1x or 10x.
    #[arg(
        long = "replaySpeed",
        alias = "replay-speed",
        env = "SLUICE_REPLAY_SPEED",
        value_name = "SPEED",
        default_value = DEFAULT_REPLAY_SPEED,
        global = true,
        help_heading = "Sources"
    )]
    pub replay_speed: String,
    /// The only namespace to watch; empty for all.
    #[arg(
        long = "watchNamespace",
        alias = "watch-namespace",
        env = "ISTIO_WATCH_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "",
        hide_default_value = true,
        global = true,
        help_heading = "Sources"
    )]
    pub watch_namespace: String,

    /// Namespace of the pods of the CNI agent; that of the control plane if it is empty. A taint is removed from nodes with such
    /// a pod, see PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS.
    #[arg(
        long = "cniNamespace",
        alias = "cni-namespace",
        value_name = "NAMESPACE",
        default_value = "",
        hide_default_value = true,
        global = true,
        help_heading = "Sources"
    )]
    pub cni_namespace: String,

    /// Namespace of the control plane.
    #[arg(
        short = 'n',
        long,
        env = "POD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "istio-system",
        global = true,
        help_heading = "Identity"
    )]
    pub namespace: String,
    /// Name of this pod.
    #[arg(
        long = "podName",
        alias = "pod-name",
        env = "POD_NAME",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        global = true,
        help_heading = "Identity"
    )]
    pub pod_name: String,
    /// Revision of this control plane; empty or `default` is the default revision.
    #[arg(
        long,
        env = "REVISION",
        value_name = "REVISION",
        default_value = "",
        hide_default_value = true,
        global = true,
        help_heading = "Identity"
    )]
    pub revision: String,
    /// DNS domain of services.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", global = true, help_heading = "Identity")]
    pub domain: String,
    /// Id of the cluster that this control plane runs in.
    #[arg(
        long = "clusterID",
        alias = "cluster-id",
        env = "CLUSTER_ID",
        value_name = "ID",
        default_value = "Kubernetes",
        global = true,
        help_heading = "Identity"
    )]
    pub cluster_id: String,
    /// Aliases of clusters that proxies may use: `alias1=cluster1,alias2=cluster2`.
    #[arg(
        long = "clusterAliases",
        alias = "cluster-aliases",
        value_name = "ALIAS=ID,..",
        value_delimiter = ',',
        global = true,
        help_heading = "Identity"
    )]
    pub cluster_aliases: Vec<String>,

    /// Address of debug pages, readiness and metrics.
    #[arg(
        long = "httpAddr",
        alias = "http-addr",
        value_name = "ADDRESS",
        default_value = ":8080",
        global = true,
        help_heading = "Ports"
    )]
    pub http_addr: String,
    /// Address of xDS in plaintext.
    #[arg(
        long = "grpcAddr",
        alias = "grpc-addr",
        value_name = "ADDRESS",
        default_value = ":15010",
        global = true,
        help_heading = "Ports"
    )]
    pub grpc_addr: String,
    /// Address of metrics, version and debug pages.
    #[arg(
        long = "monitoringAddr",
        alias = "monitoring-addr",
        value_name = "ADDRESS",
        default_value = ":15014",
        global = true,
        help_heading = "Ports"
    )]
    pub monitoring_addr: String,
    /// Address of xDS and of the certificate authority over TLS.
    #[arg(
        long = "secureGRPCAddr",
        alias = "secure-grpc-addr",
        value_name = "ADDRESS",
        default_value = ":15012",
        global = true,
        help_heading = "Ports"
    )]
    pub secure_grpc_addr: String,
    /// Address of the injection and validation webhooks over TLS; empty to serve them on the port of --httpAddr.
    #[arg(
        long = "httpsAddr",
        alias = "https-addr",
        value_name = "ADDRESS",
        default_value = ":15017",
        global = true,
        help_heading = "Ports"
    )]
    pub https_addr: String,
    /// Address of ControlZ, the log levels by scope; `*` for all interfaces, empty to disable the port. Callers that are
    /// not on the loopback need a token of the control plane's namespace.
    #[arg(
        long = "ctrlz_address",
        alias = "ctrlz-address",
        value_name = "HOST",
        default_value = "localhost",
        global = true,
        help_heading = "Ports"
    )]
    pub ctrlz_address: String,
    /// Port of ControlZ; 0 for any free port.
    #[arg(
        long = "ctrlz_port",
        alias = "ctrlz-port",
        value_name = "PORT",
        default_value_t = 9876,
        global = true,
        help_heading = "Ports"
    )]
    pub ctrlz_port: u16,

    /// Time limit for streams to end after a stop signal.
    #[arg(
        long = "shutdownDuration",
        alias = "shutdown-duration",
        value_name = "DURATION",
        default_value = "10s",
        global = true,
        help_heading = "Serving"
    )]
    pub shutdown_duration: String,
    /// Idle time after which a connection is pinged.
    #[arg(
        long = "keepaliveInterval",
        alias = "keepalive-interval",
        env = "GRPC_KEEPALIVE_INTERVAL",
        value_name = "DURATION",
        default_value = "30s",
        global = true,
        help_heading = "Serving"
    )]
    pub keepalive_interval: String,
    /// Time limit for the response to a ping.
    #[arg(
        long = "keepaliveTimeout",
        alias = "keepalive-timeout",
        env = "GRPC_KEEPALIVE_TIMEOUT",
        value_name = "DURATION",
        default_value = "10s",
        global = true,
        help_heading = "Serving"
    )]
    pub keepalive_timeout: String,
    /// Age at which a connection of proxies is closed gracefully, within a tenth more or less, so that proxies spread over
    /// replicas; 0 is unlimited.
    #[arg(
        long = "keepaliveMaxServerConnectionAge",
        alias = "keepalive-max-server-connection-age",
        value_name = "DURATION",
        default_value = "24h",
        global = true,
        help_heading = "Serving"
    )]
    pub keepalive_max_server_connection_age: String,
    /// Serve profiles of the process below /debug/pprof, to callers that may see all debug pages.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        global = true,
        help_heading = "Serving"
    )]
    pub profile: bool,

    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,

    /// Limits of the proxies that callers may connect.
    #[command(flatten)]
    pub proxy_limits: ProxyLimitArgs,
    /// Limits of namespaces.
    #[command(flatten)]
    pub namespace_limits: NamespaceLimitArgs,

    /// Certificates, tokens and TLS.
    #[command(flatten)]
    pub security: SecurityArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

impl CommandLine {
    /// Reads arguments, the name of the program first. Also returns unknown flags, which have no effect, as in istiod: `--NAME`
    /// or `--NAME=VALUE`.
    ///
    /// # Errors
    /// A known flag has an invalid value, an unknown flag is similar to a known one, or the arguments request help or the
    /// version. The error has the text and the exit code.
    pub fn parse_lenient(arguments: impl IntoIterator<Item = String>) -> Result<(Self, Vec<String>), clap::Error> {
        let mut command = <Self as clap::CommandFactory>::command();
        let mut flag_names: Vec<String> = ["help", "version"].map(str::to_owned).into();
        for argument in command.get_arguments() {
            flag_names.extend(argument.get_long().map(str::to_owned));
            flag_names.extend(argument.get_all_aliases().into_iter().flatten().map(|alias| (*alias).to_owned()));
        }
        let is_known = |name: &str| flag_names.iter().any(|known| known == name);
        let (mut kept, mut unknown) = (Vec::new(), Vec::new());
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let name = argument.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag));
            match name {
                Some(name) if !name.is_empty() && !is_known(name) => {
                    if let Some(similar) = unknown::similar_flag(name, flag_names.iter().map(String::as_str)) {
                        let text = format!("unknown flag --{name}: did you mean --{similar}?");
                        return Err(command.error(clap::error::ErrorKind::UnknownArgument, text));
                    }
                    // As in cobra: what follows an unknown flag is its value unless it is a flag itself.
                    let value = match argument.contains('=') {
                        true => None,
                        false => arguments.next_if(|next| !next.starts_with('-') && next != "discovery"),
                    };
                    unknown.push(value.map_or_else(|| argument.clone(), |value| format!("{argument}={value}")));
                }
                _ => kept.push(argument),
            }
        }
        Ok((Self::try_parse_from(kept)?, unknown))
    }
}
