//! Flags of `ztunnel-config`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::answer_output::AnswerOutput;
use crate::connect::ZtunnelTarget;
use crate::connect::kubernetes::ClusterFlags;

pub(crate) const EXAMPLES: &str = "\
Examples:
  sluicectl ztunnel-config workload
  sluicectl zc workload cart-7f.shop                    this pod, as the ztunnel of its node has it
  sluicectl zc service --service-namespace shop -o yaml
  sluicectl zc certificate --node worker-1
  sluicectl zc connections ztunnel-x7k2p.istio-system --direction inbound
  sluicectl zc all --file config_dump.json
  sluicectl zc log --level access:debug,info

POD is a ztunnel pod, or another pod: then the ztunnel of its node is asked, and only this pod is printed. Without
POD, --node and --file, the first ztunnel is asked; certificates and connections need one of them if there are
several ztunnels. ztunnel is asked through a port-forward to the port of its admin interface.

The columns are those of istioctl.

Exit codes:
  0  the configuration was printed
  1  there is no such pod or node
  2  invalid command line, or a file that cannot be read
  3  ztunnel or the API server cannot be reached";

/// Kinds of configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ZtunnelConfigCommand {
    /// Workloads.
    #[command(visible_aliases = ["workloads", "w"], after_help = EXAMPLES)]
    Workload(WorkloadArgs),
    /// Services.
    #[command(visible_aliases = ["services", "svc", "s"], after_help = EXAMPLES)]
    Service(ServiceArgs),
    /// Authorization policies.
    #[command(visible_aliases = ["policies", "pol", "p"], after_help = EXAMPLES)]
    Policy(PolicyArgs),
    /// Certificates of workloads.
    #[command(visible_aliases = ["certificates", "certs", "cert"], after_help = EXAMPLES)]
    Certificate(ZtunnelArgs),
    /// All of these, and connections.
    #[command(after_help = EXAMPLES)]
    All(AllArgs),
    /// Open connections of workloads.
    #[command(visible_alias = "cons", after_help = EXAMPLES)]
    Connections(ConnectionArgs),
    /// Log levels of ztunnel, and changes of them.
    #[command(visible_alias = "o", after_help = EXAMPLES)]
    Log(ZtunnelLogArgs),
}

/// The ztunnel.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ZtunnelSource {
    /// The pod.
    #[arg(value_name = "POD")]
    pub(crate) pod: Option<String>,
    /// Namespace of a pod that is named without one. Without it: --istioNamespace.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// The ztunnel of this node.
    #[arg(long, value_name = "NODE", conflicts_with = "pod")]
    pub(crate) node: Option<String>,
    /// Port of the admin interface of ztunnel.
    #[arg(long, value_name = "PORT", default_value_t = 15_000)]
    pub(crate) proxy_admin_port: u16,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}

impl ZtunnelSource {
    pub(super) fn target(&self) -> ZtunnelTarget<'_> {
        ZtunnelTarget {
            pod: self.pod.as_deref(),
            namespace: &self.namespace,
            node: self.node.as_deref(),
            port: self.proxy_admin_port,
            cluster: &self.cluster,
        }
    }
}

/// Flags of kinds without filters.
#[derive(Debug, Args)]
pub(crate) struct ZtunnelArgs {
    #[command(flatten)]
    pub(crate) source: ZtunnelSource,
    /// File with the answer of /config_dump of ztunnel; `-` is standard input.
    #[arg(short, long, value_name = "FILE|-", conflicts_with_all = ["pod", "node"])]
    pub(crate) file: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
}

/// Flags of `workload`.
#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs {
    #[command(flatten)]
    pub(crate) shared: ZtunnelArgs,
    /// Only workloads with this address.
    #[arg(long)]
    pub(crate) address: Option<String>,
    /// Only workloads of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) workload_namespace: Option<String>,
    /// Only workloads on this node.
    #[arg(long, value_name = "NODE")]
    pub(crate) workload_node: Option<String>,
}

/// Flags of `service`.
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    #[command(flatten)]
    pub(crate) shared: ZtunnelArgs,
    /// Only services of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) service_namespace: Option<String>,
}

/// Flags of `policy`.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    pub(crate) shared: ZtunnelArgs,
    /// Only policies of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) policy_namespace: Option<String>,
}

/// Flags of `all`.
#[derive(Debug, Args)]
pub(crate) struct AllArgs {
    #[command(flatten)]
    pub(crate) shared: ZtunnelArgs,
    /// Print a title above each table.
    #[arg(long)]
    pub(crate) with_headers: bool,
}

/// Flags of `connections`.
#[derive(Debug, Args)]
pub(crate) struct ConnectionArgs {
    #[command(flatten)]
    pub(crate) shared: ZtunnelArgs,
    /// Only connections of workloads of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) workload_namespace: Option<String>,
    /// Only connections in this direction.
    #[arg(long, value_enum)]
    pub(crate) direction: Option<ConnectionDirection>,
    /// Print addresses in place of names.
    #[arg(long)]
    pub(crate) raw: bool,
}

/// Direction of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ConnectionDirection {
    Inbound,
    Outbound,
}

/// Flags of `log`.
#[derive(Debug, Args)]
pub(crate) struct ZtunnelLogArgs {
    #[command(flatten)]
    pub(crate) source: ZtunnelSource,
    /// New levels: LEVEL for all loggers, or LOGGER:LEVEL, separated by commas. Levels are trace, debug, info, warning, error,
    /// critical and off.
    #[arg(long, value_name = "[LOGGER:]LEVEL,..", value_delimiter = ',')]
    pub(crate) level: Vec<String>,
    /// Set all loggers to info.
    #[arg(short, long, conflicts_with = "level")]
    pub(crate) reset: bool,
}
