//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::analyze_args::{ANALYZE_EXAMPLES, AnalyzeArgs};
use crate::answer_args::{
    HISTORY_EXAMPLES, HistoryArgs, WAIT_EXAMPLES, WHY_EXAMPLES, WHY_NOT_EXAMPLES, WaitArgs, WhyArgs, WhyNotArgs,
};
use crate::answer_output::AnswerOutput;
use crate::bug_report_args::{BUG_REPORT_EXAMPLES, BugReportArgs};
use crate::dashboard_args::{DASHBOARD_EXAMPLES, DashboardCommand};
use crate::describe_args::DescribeCommand;
use crate::experimental_args::ExperimentalCommand;
use crate::inject_args::{KUBE_INJECT_EXAMPLES, KubeInjectArgs};
use crate::install_args::InstallCommand;
use crate::operator_args::{
    AdminCommand, COMPLETION_EXAMPLES, CompletionArgs, INTERNAL_DEBUG_EXAMPLES, InternalDebugArgs,
    PROXY_STATUS_EXAMPLES, ProxyStatusArgs, REMOTE_CLUSTERS_EXAMPLES, RemoteClustersArgs, VERSION_EXAMPLES,
    VersionArgs,
};
use crate::preview_args::{PREVIEW_EXAMPLES, PreviewArgs};
use crate::proxy_config::args::{EXAMPLES as PROXY_CONFIG_EXAMPLES, ProxyConfigCommand};
use crate::recording_args::{DIFF_EXAMPLES, DiffArgs, RECORD_EXAMPLES, REPLAY_EXAMPLES, RecordArgs, ReplayArgs};
use crate::remote_secret_args::{REMOTE_SECRET_EXAMPLES, RemoteSecretArgs};
use crate::tag_args::{TAG_EXAMPLES, TagCommand};
use crate::waypoint::args::WaypointCommand;
use crate::workload::args::WorkloadCommand;
use crate::ztunnel_config::args::{EXAMPLES as ZTUNNEL_CONFIG_EXAMPLES, ZtunnelConfigCommand};

const EXAMPLES: &str = "\
Examples:
  sluicectl validate -f routes.yaml              one file with one or more objects
  sluicectl validate -f manifests/ -f extra.yaml files below a directory, and a file
  helm template chart | sluicectl validate -f -  the output of another tool
  kubectl -n istio-system get cm istio -o yaml | sluicectl validate -f -
  sluicectl validate -f mesh.yaml --strict       a MeshConfig alone; warnings are errors
  sluicectl validate -f . -o json | jq '.findings[].field'

An IstioOperator is read as by `sluicectl install`. Of Services, the protocols of ports are checked, and
of Deployments, the labels that telemetry reads. Other objects that are not of an Istio kind are skipped,
except the ConfigMap with the MeshConfig. The command needs no cluster. It does not check references
between objects.

An unknown field is an error here. Admission in a cluster reports it as a warning.

Exit codes:
  0  no errors: a cluster would admit every object
  1  at least one error (with --strict, at least one error or warning)
  2  invalid command line, or a file or directory that cannot be read; all others are validated";

/// Tools for the Sluice control plane.
#[derive(Debug, Parser)]
#[command(name = "sluicectl", version, max_term_width = 100)]
pub(crate) struct CommandLine {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Validate Istio objects and MeshConfigs in files by the rules of the admission webhook.
    #[command(visible_alias = "v", after_help = EXAMPLES)]
    Validate(ValidateArgs),
    /// Analyze a set of Istio objects: the cluster, files, or both.
    #[command(after_help = ANALYZE_EXAMPLES)]
    Analyze(AnalyzeArgs),
    /// Show what applying or deleting the objects in files would change: at the proxies of a running control plane, or offline for
    /// one proxy.
    #[command(after_help = PREVIEW_EXAMPLES)]
    Preview(PreviewArgs),
    #[command(flatten)]
    Install(InstallCommand),
    /// Add the proxy to the pod templates of objects in a file, as the webhook adds it to pods.
    #[command(after_help = KUBE_INJECT_EXAMPLES)]
    KubeInject(KubeInjectArgs),
    /// Print a Secret with credentials by which a control plane in another cluster reads this one.
    #[command(after_help = REMOTE_SECRET_EXAMPLES)]
    CreateRemoteSecret(RemoteSecretArgs),
    /// Manage revision tags: names that stand for a revision of the control plane in labels.
    #[command(after_help = TAG_EXAMPLES)]
    Tag {
        /// What to do.
        #[command(subcommand)]
        command: TagCommand,
    },
    /// Write an archive with versions, objects, debug pages, logs and dumps, without secrets.
    #[command(after_help = BUG_REPORT_EXAMPLES)]
    BugReport(Box<BugReportArgs>),
    /// Commands that istioctl has in this group.
    #[command(visible_aliases = ["x", "exp"])]
    Experimental {
        /// What to do.
        #[command(subcommand)]
        command: ExperimentalCommand,
    },
    /// Tell which objects made a resource of a proxy, or a field of it, and what changed it last.
    #[command(after_help = WHY_EXAMPLES)]
    Why(WhyArgs),
    /// Tell why a proxy does not have a host, cluster, route or endpoint, or why an object has no effect there.
    #[command(after_help = WHY_NOT_EXAMPLES)]
    WhyNot(WhyNotArgs),
    /// Wait until a change of an object is applied, or acknowledged by the proxies that it concerns.
    #[command(after_help = WAIT_EXAMPLES)]
    Wait(WaitArgs),
    /// List recent changes of objects, with the resources and proxies that each concerned.
    #[command(after_help = HISTORY_EXAMPLES)]
    History(HistoryArgs),
    /// Record the inputs of a running control plane and their changes in a file.
    #[command(after_help = RECORD_EXAMPLES)]
    Record(RecordArgs),
    /// Replay a recording without a control plane, and print what proxies would have.
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(ReplayArgs),
    /// Compare what proxies have at the ends of two recordings.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Describe a pod or a service: everything that acts on it.
    Describe {
        /// What is described.
        #[command(subcommand)]
        command: DescribeCommand,
    },
    /// Print whether each proxy has acknowledged its configuration, or how Envoy differs from the control plane.
    #[command(visible_alias = "ps", after_help = PROXY_STATUS_EXAMPLES)]
    ProxyStatus(ProxyStatusArgs),
    /// Print the configuration of a proxy.
    #[command(visible_alias = "pc", after_help = PROXY_CONFIG_EXAMPLES)]
    ProxyConfig {
        /// What is printed.
        #[command(subcommand)]
        command: ProxyConfigCommand,
    },
    /// Print the configuration of a ztunnel.
    #[command(visible_alias = "zc", after_help = ZTUNNEL_CONFIG_EXAMPLES)]
    ZtunnelConfig {
        /// What is printed.
        #[command(subcommand)]
        command: ZtunnelConfigCommand,
    },
    /// Manage waypoints.
    Waypoint {
        /// What to do.
        #[command(subcommand)]
        command: WaypointCommand,
    },
    /// Prepare workloads outside of Kubernetes, such as those of virtual machines.
    Workload {
        /// What to do.
        #[command(subcommand)]
        command: WorkloadCommand,
    },
    /// Print the clusters that the control plane reads, and whether they are synced.
    #[command(after_help = REMOTE_CLUSTERS_EXAMPLES)]
    RemoteClusters(RemoteClustersArgs),
    /// Print a debug page of the control plane.
    #[command(after_help = INTERNAL_DEBUG_EXAMPLES)]
    InternalDebug(InternalDebugArgs),
    /// Manage the control plane.
    Admin {
        /// What to do.
        #[command(subcommand)]
        command: AdminCommand,
    },
    /// Forward a port of a pod to this machine, for a browser.
    #[command(visible_alias = "dash", after_help = DASHBOARD_EXAMPLES)]
    Dashboard {
        /// Which port.
        #[command(subcommand)]
        command: DashboardCommand,
    },
    /// Print the versions of the client, the control plane and the proxies.
    #[command(after_help = VERSION_EXAMPLES)]
    Version(VersionArgs),
    /// Print a script that completes command lines in a shell.
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion(CompletionArgs),
}

/// Flags of `validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// File or directory to read; `-` is standard input. Can be repeated. In a directory and its subdirectories, files
    /// named *.yaml, *.yml and *.json are read.
    #[arg(short, long = "filename", value_name = "FILE|DIR|-")]
    pub(crate) filenames: Vec<PathBuf>,
    /// More files and directories.
    #[arg(value_name = "FILE|DIR|-", required_unless_present = "filenames")]
    pub(crate) paths: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    /// Treat warnings as errors.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[cfg(test)]
mod tests;
