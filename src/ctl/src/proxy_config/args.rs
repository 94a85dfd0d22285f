//! Flags of `proxy-config`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::answer_output::AnswerOutput;
use crate::connect::kubernetes::ClusterFlags;
use crate::connect::xds_args::XdsArgs;
use crate::connect::{ForwardedPort, PodEndpoint, QueryError, ServerArgs, connect_to_proxy};

pub(crate) const EXAMPLES: &str = "\
Examples:
  sluicectl proxy-config cluster cart-7f.shop
  sluicectl pc cluster deploy/cart.shop --fqdn ratings.shop.svc.cluster.local --direction outbound -o json
  sluicectl pc listener cart-7f -n shop --port 15006
  sluicectl pc route cart-7f.shop --name 80 --from control-plane
  sluicectl pc endpoint cart-7f.shop --cluster 'outbound|80||ratings.shop.svc.cluster.local'
  sluicectl pc all --file config_dump.json
  sluicectl pc log cart-7f.shop --level http:debug,rbac:trace
  sluicectl pc envoy-stats cart-7f.shop -o prom
  sluicectl pc rootca-compare cart-7f.shop ratings-9c.shop

PROXY is POD[.NAMESPACE], or the first running pod of deploy/NAME, sts/NAME or ds/NAME[.NAMESPACE]. Its
Envoy is asked through a port-forward to the port of its admin interface. With --from control-plane,
the answer is what the control plane has sent. --file reads what /config_dump of Envoy answered.

The columns are those of istioctl. Private keys are never printed.

Exit codes:
  0  the configuration was printed
  1  there is no such proxy, or the root certificates of two proxies differ
  2  invalid command line, or a file that cannot be read
  3  Envoy, the API server or the control plane cannot be reached, or refuses the caller";

/// Kinds of configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ProxyConfigCommand {
    /// Clusters.
    #[command(visible_aliases = ["clusters", "c"], after_help = EXAMPLES)]
    Cluster(ClusterFilterArgs),
    /// Listeners and their filter chains.
    #[command(visible_aliases = ["listeners", "l"], after_help = EXAMPLES)]
    Listener(ListenerArgs),
    /// Routes.
    #[command(visible_aliases = ["routes", "r"], after_help = EXAMPLES)]
    Route(RouteArgs),
    /// Endpoints with their health, as Envoy has them.
    #[command(visible_aliases = ["endpoints", "ep"], after_help = EXAMPLES)]
    Endpoint(EndpointArgs),
    /// Endpoints with their locality, as the control plane sent them.
    #[command(after_help = EXAMPLES)]
    Eds(EndpointArgs),
    /// The bootstrap.
    #[command(visible_alias = "b", after_help = EXAMPLES)]
    Bootstrap(BootstrapArgs),
    /// Certificates and roots, without private keys.
    #[command(visible_aliases = ["secrets", "s"], after_help = EXAMPLES)]
    Secret(PlainArgs),
    /// Extension configurations.
    #[command(visible_alias = "ec", after_help = EXAMPLES)]
    Ecds(PlainArgs),
    /// All of these.
    #[command(visible_alias = "a", after_help = EXAMPLES)]
    All(PlainArgs),
    /// Log levels of Envoy, and changes of them.
    #[command(visible_alias = "o", after_help = EXAMPLES)]
    Log(LogArgs),
    /// Statistics of Envoy.
    #[command(visible_alias = "es", after_help = EXAMPLES)]
    EnvoyStats(EnvoyStatsArgs),
    /// Whether two proxies have the same root certificates.
    #[command(visible_alias = "rc", after_help = EXAMPLES)]
    RootcaCompare(RootcaCompareArgs),
}

/// Whose configuration is printed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum DumpSource {
    /// What Envoy has.
    #[default]
    Envoy,
    /// What the control plane has sent.
    ControlPlane,
}

/// The proxy, and how its configuration is read.
#[derive(Clone, Debug, Args)]
pub(crate) struct SourceArgs {
    /// The proxy.
    #[arg(value_name = "PROXY", required_unless_present = "file")]
    pub(crate) proxy: Option<String>,
    /// Namespace of a proxy that is named without one. Without it: default.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// File with the answer of /config_dump of Envoy; `-` is standard input.
    #[arg(short, long, value_name = "FILE|-", conflicts_with_all = ["proxy", "from"])]
    pub(crate) file: Option<PathBuf>,
    /// Whose configuration is printed.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) from: DumpSource,
    /// Port of Envoy's admin interface.
    #[arg(long, value_name = "PORT", default_value_t = 15_000)]
    pub(crate) proxy_admin_port: u16,
    /// With --from control-plane: address of its HTTP port, such as http://localhost:8080. Without it, its pods are found
    /// with the kubeconfig.
    #[arg(id = "address_flag", long = "server", value_name = "URL", help_heading = "Server")]
    pub(crate) server: Option<String>,
    /// File with the root certificates that verify the server. Without it: for a --server with https those of the system, for
    /// xDS those of the mesh.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) ca_file: Option<PathBuf>,
    /// File with a token of a service account in the namespace of the control plane, for a --server other than those of the
    /// loopback.
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) xds: XdsArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}

impl SourceArgs {
    /// Flags about the control plane.
    pub(crate) fn control_plane(&self) -> ServerArgs {
        ServerArgs {
            address: self.server.clone(),
            ca_file: self.ca_file.clone(),
            token_file: self.token_file.clone(),
            xds: self.xds.clone(),
            cluster: self.cluster.clone(),
        }
    }
}

/// Flags of kinds without filters.
#[derive(Debug, Args)]
pub(crate) struct PlainArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
}

/// Flags of `bootstrap`.
#[derive(Debug, Args)]
pub(crate) struct BootstrapArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Output format. The table has the versions only.
    #[arg(short, long, value_enum, default_value_t = AnswerOutput::Json)]
    pub(crate) output: AnswerOutput,
}

/// Flags of `cluster`.
#[derive(Debug, Args)]
pub(crate) struct ClusterFilterArgs {
    #[command(flatten)]
    pub(crate) plain: PlainArgs,
    /// Only clusters with this text in their host.
    #[arg(long, value_name = "TEXT")]
    pub(crate) fqdn: Option<String>,
    /// Only clusters of this port.
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Only clusters of this direction.
    #[arg(long, value_enum)]
    pub(crate) direction: Option<Direction>,
    /// Only clusters with this text in their subset.
    #[arg(long, value_name = "TEXT")]
    pub(crate) subset: Option<String>,
}

/// Flags of `listener`.
#[derive(Debug, Args)]
pub(crate) struct ListenerArgs {
    #[command(flatten)]
    pub(crate) plain: PlainArgs,
    /// Only listeners at this address.
    #[arg(long)]
    pub(crate) address: Option<String>,
    /// Only listeners at this port.
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Only listeners of this type: HTTP, TCP or HTTP+TCP.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<String>,
    /// Print a line for each filter chain. With `false`, for each listener.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) verbose: bool,
}

/// Flags of `route`.
#[derive(Debug, Args)]
pub(crate) struct RouteArgs {
    #[command(flatten)]
    pub(crate) plain: PlainArgs,
    /// Only the route table of this name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Print a line for each route. With `false`, for each table.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) verbose: bool,
}

/// Flags of `endpoint` and `eds`.
#[derive(Debug, Args)]
pub(crate) struct EndpointArgs {
    #[command(flatten)]
    pub(crate) plain: PlainArgs,
    /// Only endpoints at this address.
    #[arg(long)]
    pub(crate) address: Option<String>,
    /// Only endpoints at this port.
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Only endpoints of this cluster.
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// Only endpoints with this health: healthy, unhealthy, draining, timeout, degraded or unknown.
    #[arg(long)]
    pub(crate) status: Option<String>,
}

/// A proxy whose Envoy is asked.
#[derive(Debug, Args)]
pub(crate) struct EnvoyArgs {
    /// The proxy: POD[.NAMESPACE], or the first running pod of deploy/NAME, sts/NAME or ds/NAME[.NAMESPACE].
    #[arg(value_name = "PROXY")]
    pub(crate) proxy: String,
    /// Namespace of a proxy that is named without one. Without it: default.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Port of Envoy's admin interface.
    #[arg(long, visible_alias = "ui-port", value_name = "PORT", default_value_t = 15_000)]
    pub(crate) proxy_admin_port: u16,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}

impl EnvoyArgs {
    /// Forwards the port of the admin interface.
    pub(crate) fn connect(&self) -> Result<PodEndpoint, QueryError> {
        self.connect_to(self.proxy_admin_port)
    }

    /// Forwards another port of the pod.
    pub(crate) fn connect_to(&self, port: impl Into<ForwardedPort>) -> Result<PodEndpoint, QueryError> {
        connect_to_proxy(&self.cluster, &self.proxy, &self.namespace, port)
    }
}

/// Flags of `log`.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// New levels: LEVEL for all loggers, or LOGGER:LEVEL, separated by commas. Levels are trace, debug, info, warning, error,
    /// critical and off.
    #[arg(long, value_name = "[LOGGER:]LEVEL,..", value_delimiter = ',')]
    pub(crate) level: Vec<String>,
    /// Set all loggers to warning.
    #[arg(short, long, conflicts_with = "level")]
    pub(crate) reset: bool,
    #[command(flatten)]
    pub(crate) envoy: EnvoyArgs,
}

/// Flags of `envoy-stats`.
#[derive(Debug, Args)]
pub(crate) struct EnvoyStatsArgs {
    /// Which statistics.
    #[arg(short = 't', long = "type", value_enum, default_value_t)]
    pub(crate) stats: StatsType,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: StatsOutput,
    /// Port of the agent, for -o prom-merged.
    #[arg(long, value_name = "PORT", default_value_t = 15_020)]
    pub(crate) proxy_status_port: u16,
    #[command(flatten)]
    pub(crate) envoy: EnvoyArgs,
}

/// Statistics of Envoy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum StatsType {
    /// All statistics of the process.
    #[default]
    Server,
    /// Those of each endpoint of each cluster.
    Clusters,
}

/// Formats of statistics.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum StatsOutput {
    /// A line for each value.
    #[default]
    Short,
    Json,
    Yaml,
    /// The format of Prometheus.
    Prom,
    /// The same from the agent, with the statistics of the agent and of the application.
    PromMerged,
}

/// Flags of `rootca-compare`.
#[derive(Debug, Args)]
pub(crate) struct RootcaCompareArgs {
    /// The first proxy.
    #[arg(value_name = "PROXY")]
    pub(crate) first: String,
    /// The second proxy.
    #[arg(value_name = "PROXY")]
    pub(crate) second: String,
    /// Namespace of proxies that are named without one. Without it: default.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Port of Envoy's admin interface.
    #[arg(long, value_name = "PORT", default_value_t = 15_000)]
    pub(crate) proxy_admin_port: u16,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}

/// Direction of traffic.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Direction {
    Inbound,
    Outbound,
}

/// What is printed of a kind. Absent conditions select all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) fqdn: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) direction: Option<Direction>,
    pub(crate) subset: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) cluster: Option<String>,
    pub(crate) status: Option<String>,
}
