//! Flags of `describe`.

use clap::{Args, Subcommand};

use crate::answer_output::AnswerOutput;
use crate::connect::ServerArgs;

pub(crate) const DESCRIBE_EXAMPLES: &str = "\
Examples:
  sluicectl describe pod cart-7f.shop
  sluicectl describe pod deploy/cart -n shop
  sluicectl x describe service ratings.shop
  sluicectl describe svc ratings -n shop -o yaml

POD is NAME[.NAMESPACE], the beginning of one pod's name, or deploy/NAME[.NAMESPACE] for the first pod of a
workload. The control plane answers from the objects that it applies: rules that it rejects, or that are not
visible to the pod, are not listed (see why-not).

Exit codes:
  0  the description was printed
  1  there is no such pod or service; similar names are printed
  2  invalid command line
  3  the control plane cannot be reached, or refuses the caller";

/// What is described.
#[derive(Debug, Subcommand)]
pub(crate) enum DescribeCommand {
    /// A pod: its ports, services, routes, policies and extensions.
    #[command(visible_alias = "po", after_help = DESCRIBE_EXAMPLES)]
    Pod(DescribePodArgs),
    /// A service: its ports, the rules of its clients, the Gateways that expose it.
    #[command(visible_alias = "svc", after_help = DESCRIBE_EXAMPLES)]
    Service(DescribeServiceArgs),
}

/// Flags of `describe pod`.
#[derive(Debug, Args)]
pub(crate) struct DescribePodArgs {
    /// The pod.
    #[arg(value_name = "POD")]
    pub(crate) name: String,
    /// Leave out warnings about a pod that is not part of the mesh.
    #[arg(long = "ignoreUnmeshed")]
    pub(crate) ignore_unmeshed: bool,
    #[command(flatten)]
    pub(crate) shared: DescribeArgs,
}

/// Flags of `describe service`.
#[derive(Debug, Args)]
pub(crate) struct DescribeServiceArgs {
    /// The service: NAME[.NAMESPACE], or a host.
    #[arg(value_name = "SERVICE")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) shared: DescribeArgs,
}

/// Flags of both.
#[derive(Debug, Args)]
pub(crate) struct DescribeArgs {
    /// Namespace of a pod or service that is named without one. Without it: default for services, any for pods.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
