//! Flags of the commands about proxies and replicas of a running control plane.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::Shell;

use crate::answer_output::AnswerOutput;
use crate::connect::ServerArgs;
use crate::connect::kubernetes::ClusterFlags;

pub(crate) const PROXY_STATUS_EXAMPLES: &str = "\
Examples:
  sluicectl proxy-status                            all proxies of all replicas
  sluicectl ps -n shop -v 1                         the state of each type
  sluicectl ps cart-7f.shop                         where Envoy differs from the control plane
  sluicectl ps cart-7f.shop --file config_dump.json --server http://localhost:8080

States:
  SYNCED    the proxy has acknowledged the last response
  STALE     it has not acknowledged it yet
  NOT SENT  there was nothing to send
  ERROR     it has rejected the last response
  IGNORED   it does not subscribe to the type

Exit codes:
  0  the state was printed
  1  there is no such proxy
  2  invalid command line, or a file that cannot be read
  3  the control plane, the API server or Envoy cannot be reached, or refuses the caller
  5  the state was printed, but a replica does not answer: its proxies are not listed";

pub(crate) const VERSION_EXAMPLES: &str = "\
Examples:
  sluicectl version                    client, control plane and proxies
  sluicectl version --remote=false     the client only; needs no cluster
  sluicectl version -o json

If no control plane can be reached, the reason is printed to the standard error, and the exit code is 0.";

pub(crate) const REMOTE_CLUSTERS_EXAMPLES: &str = "\
Examples:
  sluicectl remote-clusters
  sluicectl remote-clusters -i istio-system --revision canary -o json

Exit codes: 0 printed, 2 invalid command line, 3 the control plane cannot be reached, 5 printed, but a
replica does not answer.";

pub(crate) const INTERNAL_DEBUG_EXAMPLES: &str = "\
Examples:
  sluicectl internal-debug --list                                names of the pages
  sluicectl internal-debug 'edsz?proxyID=cart-7f.shop'
  sluicectl internal-debug syncz --all                           of each replica

Without --all, the first replica answers that has what the page is about.

Exit codes: 0 printed, 1 there is no such proxy or page, 2 invalid command line or parameters, 3 the
control plane cannot be reached, 5 printed, but a replica does not answer (with --all).";

pub(crate) const ADMIN_LOG_EXAMPLES: &str = "\
Examples:
  sluicectl admin log                                  levels of all scopes
  sluicectl admin log --level ads:debug,default:info
  sluicectl admin log --reset

The levels are those of the first pod of the control plane. Levels are none, error, warn, info and debug.

Exit codes: 0 printed, 1 there is no such scope, 2 invalid command line or level, 3 the control plane
cannot be reached.";

pub(crate) const COMPLETION_EXAMPLES: &str = "\
Examples:
  source <(sluicectl completion bash)
  sluicectl completion zsh > \"${fpath[1]}/_sluicectl\"
  sluicectl completion fish > ~/.config/fish/completions/sluicectl.fish";

/// Flags of `proxy-status`.
#[derive(Debug, Args)]
pub(crate) struct ProxyStatusArgs {
    /// A proxy whose Envoy is compared with the control plane: POD[.NAMESPACE], or deploy/NAME[.NAMESPACE].
    #[arg(value_name = "PROXY")]
    pub(crate) proxy: Option<String>,
    /// Namespace of the proxies. Without it: all; of a proxy that is named without one: default.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// 1 prints the state of each type.
    #[arg(short, long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) verbosity: u8,
    /// File with the answer of /config_dump of Envoy, in place of a port-forward; `-` is standard input.
    #[arg(short, long, value_name = "FILE|-", requires = "proxy")]
    pub(crate) file: Option<PathBuf>,
    /// Port of Envoy's admin interface.
    #[arg(long, value_name = "PORT", default_value_t = 15_000)]
    pub(crate) proxy_admin_port: u16,
    /// Output format of the states.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Flags of `version`.
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Ask the control plane for its version and those of proxies.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) remote: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Flags of `remote-clusters`.
#[derive(Debug, Args)]
pub(crate) struct RemoteClustersArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Flags of `internal-debug`.
#[derive(Debug, Args)]
pub(crate) struct InternalDebugArgs {
    /// Name of the page below /debug/, with its parameters.
    #[arg(value_name = "PAGE[?NAME=VALUE&..]", required_unless_present = "list")]
    pub(crate) page: Option<String>,
    /// Print the names of the pages.
    #[arg(long, conflicts_with = "page")]
    pub(crate) list: bool,
    /// Print the page of each replica, below its name.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Subcommands of `admin`.
#[derive(Debug, Subcommand)]
pub(crate) enum AdminCommand {
    /// Print or change log levels of the control plane.
    #[command(visible_alias = "l", after_help = ADMIN_LOG_EXAMPLES)]
    Log(AdminLogArgs),
}

/// Flags of `admin log`.
#[derive(Debug, Args)]
pub(crate) struct AdminLogArgs {
    /// New levels.
    #[arg(long, value_name = "SCOPE:LEVEL,..", value_delimiter = ',')]
    pub(crate) level: Vec<String>,
    /// Set all scopes to info.
    #[arg(short, long, conflicts_with = "level")]
    pub(crate) reset: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    /// Address of ControlZ, such as http://localhost:9876. Without it, the port of the first pod of the control plane is
    /// forwarded.
    #[arg(long, value_name = "URL", help_heading = "Server")]
    pub(crate) address: Option<String>,
    /// Port of ControlZ in the pod.
    #[arg(long, value_name = "PORT", default_value_t = 9_876, help_heading = "Server")]
    pub(crate) ctrlz_port: u16,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}

/// Flags of `completion`.
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// The shell.
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: Shell,
}
