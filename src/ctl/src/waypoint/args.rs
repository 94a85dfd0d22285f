//! Flags of `waypoint`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::answer_args::duration;
use crate::answer_output::AnswerOutput;
use crate::install_args::{ClusterArgs, UnusedClusterArgs};

pub(crate) const EXAMPLES: &str = "\
Examples:
  sluicectl waypoint generate -n shop --for all | kubectl apply -f -
  sluicectl waypoint apply -n shop --enroll-namespace --wait
  sluicectl waypoint list -A
  sluicectl waypoint status -n shop
  sluicectl waypoint delete waypoint -n shop

A waypoint is a Gateway of class istio-waypoint with an HBONE listener. The control plane deploys it.

Exit codes:
  0  done
  1  there is no such waypoint, the API server refuses a change, or the waypoint is not ready in time
  2  invalid command line
  3  the API server cannot be reached";

/// Subcommands of `waypoint`.
#[derive(Debug, Subcommand)]
pub(crate) enum WaypointCommand {
    /// List waypoints.
    #[command(after_help = EXAMPLES)]
    List(ListArgs),
    /// Print whether waypoints are programmed.
    #[command(after_help = EXAMPLES)]
    Status(StatusArgs),
    /// Print a waypoint as YAML; needs no cluster.
    #[command(after_help = EXAMPLES)]
    Generate(GenerateArgs),
    /// Apply a waypoint to the cluster.
    #[command(after_help = EXAMPLES)]
    Apply(ApplyArgs),
    /// Delete waypoints.
    #[command(after_help = EXAMPLES)]
    Delete(DeleteArgs),
}

/// What a waypoint processes: label `istio.io/waypoint-for`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum TrafficType {
    All,
    None,
    Service,
    Workload,
}

impl TrafficType {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::None => "none",
            Self::Service => "service",
            Self::Workload => "workload",
        }
    }
}

/// A waypoint.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaypointFlags {
    /// Name of the waypoint.
    #[arg(long, default_value = "waypoint")]
    pub(crate) name: String,
    /// What it processes. Without it, the control plane chooses: service.
    #[arg(long = "for", value_enum, value_name = "TYPE")]
    pub(crate) traffic: Option<TrafficType>,
    /// Revision of the control plane.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) revision: Option<String>,
}

/// The namespaces that are read.
#[derive(Clone, Debug, Args)]
pub(crate) struct NamespaceFlags {
    /// Namespace. Without it: default.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

/// Flags of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) namespaces: NamespaceFlags,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) namespaces: NamespaceFlags,
    /// Wait until the waypoints are programmed.
    #[arg(short, long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) wait: bool,
    /// Time limit of the wait, such as 90s.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration)]
    pub(crate) waypoint_timeout: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Flags of `generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) waypoint: WaypointFlags,
    /// Namespace of the waypoint. Without it, the object has none.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    #[command(flatten)]
    _cluster: UnusedClusterArgs,
}

/// Flags of `apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) waypoint: WaypointFlags,
    /// Namespace of the waypoint. Without it: default.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Label the namespace, so that its services use the waypoint.
    #[arg(long)]
    pub(crate) enroll_namespace: bool,
    /// With --enroll-namespace: replace the waypoint that the namespace uses.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Wait until the waypoint is programmed.
    #[arg(short, long)]
    pub(crate) wait: bool,
    /// Time limit of the wait, such as 90s.
    #[arg(long, value_name = "DURATION", default_value = "90s", value_parser = duration)]
    pub(crate) waypoint_timeout: Duration,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// Flags of `delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Names of waypoints.
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "revision"], conflicts_with_all = ["all", "revision"])]
    pub(crate) names: Vec<String>,
    /// Delete all waypoints of the namespace.
    #[arg(long)]
    pub(crate) all: bool,
    /// Delete the waypoints of this revision in the namespace.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) revision: Option<String>,
    /// Namespace of the waypoints. Without it: default.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}
