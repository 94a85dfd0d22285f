//! Flags of `bug-report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use crate::connect::kubernetes::ClusterFlags;
use crate::install_args::parse_duration;

pub(crate) const BUG_REPORT_EXAMPLES: &str = "\
Examples:
  sluicectl bug-report                                     bug-report.tar.gz in the current directory
  sluicectl bug-report --include shop,bank --duration 1h   proxies of two namespaces, the last hour
  sluicectl bug-report --include 'shop/cart*' --exclude 'shop//cart-canary*' --output-dir /tmp
  sluicectl bug-report --dry-run                           print which pods would be included

A filter is NAMESPACES/DEPLOYMENTS/PODS/LABELS/ANNOTATIONS/CONTAINERS. Each part is a list with commas,
`*` in it matches any text, and an empty part matches everything. A container is included if an --include
matches it and no --exclude does. Without --include, all namespaces are included but those of Kubernetes.

The archive has, below bug-report/: versions, events, and the objects of the mesh (cluster/); debug pages,
metrics, a recording and logs of each replica of the control plane (istio/); logs, configuration dumps
and statistics of proxies (proxies/); the messages of `sluicectl analyze` (analyze/); and summary.txt, which
names what is missing and why.

Secrets are read without their data. Private keys, passwords, tokens, and the variables and arguments of
other containers than those of the mesh are replaced by [redacted]. Everything else of the configuration
is in the archive: look at it before you send it.

Exit codes: 0 the archive is written, 2 invalid command line, or the archive cannot be written, 3 the API
server cannot be reached.";

/// Flags of `bug-report`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each flag")]
pub(crate) struct BugReportArgs {
    /// Filter of pods whose logs and dumps are included. Can be repeated.
    #[arg(long, value_name = "FILTER")]
    pub(crate) include: Vec<String>,
    /// Filter of pods that are left out, over --include. Can be repeated.
    #[arg(long, value_name = "FILTER")]
    pub(crate) exclude: Vec<String>,
    /// Age of the oldest log entry, such as 30m. Without it, all entries are included that the limits permit.
    #[arg(long, visible_alias = "since", value_name = "DURATION", value_parser = parse_duration, conflicts_with = "start_time")]
    pub(crate) duration: Option<Duration>,
    /// Time of the oldest log entry, such as 2026-01-01T12:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub(crate) start_time: Option<Timestamp>,
    /// Time of the newest log entry.
    #[arg(long, value_name = "TIME")]
    pub(crate) end_time: Option<Timestamp>,
    /// Largest number of log lines of a container, the newest ones.
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000)]
    pub(crate) tail: u32,
    /// Time after which nothing more is collected.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30m")]
    pub(crate) timeout: Duration,
    /// Largest size of all files together before compression, in MiB. What comes later is left out.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    pub(crate) max_size: u64,
    /// How long inputs of the control plane are recorded.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    pub(crate) recording_duration: Duration,
    /// Directory for bug-report.tar.gz.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) output_dir: PathBuf,
    /// Print the pods that would be included, and collect nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Port of Envoy's admin interface.
    #[arg(long, value_name = "PORT", default_value_t = 15_000)]
    pub(crate) proxy_admin_port: u16,
    /// Leave out the objects of the cluster.
    #[arg(long)]
    pub(crate) skip_cluster_dump: bool,
    /// Leave out the messages of `sluicectl analyze`.
    #[arg(long)]
    pub(crate) skip_analyze: bool,
    /// Leave out the dumps of proxies.
    #[arg(long)]
    pub(crate) skip_proxy_debug: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}
