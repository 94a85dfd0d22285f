//! The group `experimental`: commands that istioctl has below `experimental`.

use clap::Subcommand;

use crate::authz_args::AuthzCommand;
use crate::describe_args::DescribeCommand;
use crate::inject_args::{CHECK_INJECT_EXAMPLES, CheckInjectArgs, InjectorCommand};
use crate::metrics_args::{METRICS_EXAMPLES, MetricsArgs};
use crate::operator_args::{
    INTERNAL_DEBUG_EXAMPLES, InternalDebugArgs, PROXY_STATUS_EXAMPLES, ProxyStatusArgs, VERSION_EXAMPLES, VersionArgs,
};
use crate::tag_args::{REVISION_EXAMPLES, RevisionCommand};
use crate::workload::args::WorkloadCommand;

/// Subcommands of `experimental`.
#[derive(Debug, Subcommand)]
pub(crate) enum ExperimentalCommand {
    /// Describe a pod or a service: everything that acts on it.
    #[command(visible_alias = "des")]
    Describe {
        /// What is described.
        #[command(subcommand)]
        command: DescribeCommand,
    },
    /// Inspect AuthorizationPolicies.
    Authz {
        /// What to do.
        #[command(subcommand)]
        command: AuthzCommand,
    },
    /// As `sluicectl internal-debug`.
    #[command(after_help = INTERNAL_DEBUG_EXAMPLES)]
    InternalDebug(InternalDebugArgs),
    /// As `sluicectl proxy-status`.
    #[command(visible_alias = "ps", after_help = PROXY_STATUS_EXAMPLES)]
    ProxyStatus(ProxyStatusArgs),
    /// As `sluicectl version`.
    #[command(after_help = VERSION_EXAMPLES)]
    Version(VersionArgs),
    /// Tell which webhooks inject a pod, and why.
    #[command(after_help = CHECK_INJECT_EXAMPLES)]
    CheckInject(CheckInjectArgs),
    /// List what injects proxies.
    Injector {
        /// What to do.
        #[command(subcommand)]
        command: InjectorCommand,
    },
    /// Print rates of requests and errors, and latencies, of workloads from a Prometheus server.
    #[command(visible_alias = "m", after_help = METRICS_EXAMPLES)]
    Metrics(MetricsArgs),
    /// List and describe revisions of the control plane.
    #[command(after_help = REVISION_EXAMPLES)]
    Revision {
        /// What to do.
        #[command(subcommand)]
        command: RevisionCommand,
    },
    /// As `sluicectl workload`.
    Workload {
        /// What to do.
        #[command(subcommand)]
        command: WorkloadCommand,
    },
}
