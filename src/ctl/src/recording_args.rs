//! The command lines of `record`, `replay` and `diff`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sluice_recording::ReplaySpeed;

use crate::answer_args::duration;
use crate::answer_output::AnswerOutput;
use crate::connect::ServerArgs;
use crate::preview_args::PreviewResourceType;

pub(crate) const RECORD_EXAMPLES: &str = "\
Examples:
  sluicectl record --out incident.sluice                  10 seconds
  sluicectl record --out incident.sluice --duration 5m

The file has all inputs of the control plane as they are at the beginning, and each change of them
with its time: objects as the control plane has parsed them, connected proxies with their nodes and
identities, and its settings. It has no private keys, certificates and passwords of Secrets: a hash
with a random key of the recording stands for each. Everything else of the configuration is in it,
such as names and headers: look at it with `zcat` before you publish it. A recording that is interrupted
can be replayed up to there by `sluicectl replay`; `sluiced --replayFile` refuses it. Without
--address, the first replica of the control plane is recorded, or that of --replica.

Exit codes: 0 the recording is complete, 1 the file cannot be written, 2 invalid command line,
3 the control plane cannot be reached, or ends the recording.";

pub(crate) const REPLAY_EXAMPLES: &str = "\
Examples:
  sluicectl replay incident.sluice                        each step, then the resources of each proxy
  sluicectl replay incident.sluice --proxy cart-7f.shop --resource-types rds -o json
  sluicectl replay incident.sluice --speed 1x             with the times of the recording
  sluicectl replay incident.sluice --until 12.5s          the state 12.5 s after the beginning

The inputs are written to a graph of this process; `sluiced --replayFile` serves them to proxies.
Versions of resources are those that the control plane sends, if it has the same version and there are
no Secrets among its inputs.

Exit codes: 0 the outcome was printed, 1 no such proxy, 2 invalid command line, or a file that is no
recording of this format.";

pub(crate) const DIFF_EXAMPLES: &str = "\
Examples:
  sluicectl diff before.sluice after.sluice
  sluicectl diff before.sluice after.sluice -o json | jq '.resources[].name'

Both recordings are replayed up to their ends. The resources of the proxies that both have, or one of
them, are compared. Content of Secrets has other hashes in each recording, so resources with it differ.

Exit codes: 0 no difference, 1 there are differences, 2 invalid command line, or a file that is no
recording of this format.";

/// Flags of `record`.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// How long to record, such as 90s or 5m; at most 1h.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub(crate) duration: Duration,
    /// The pod of the control plane that is recorded; without it, the first one. Its recording has the proxies that are connected
    /// to it.
    #[arg(long, value_name = "POD")]
    pub(crate) replica: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Flags of `replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The recording.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// `max`, or how many times as fast as recorded: 1x, 0.5x, 10x.
    #[arg(long, default_value = "max")]
    pub(crate) speed: ReplaySpeed,
    /// Stop this long after the beginning of the recording, such as 12.5s.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) until: Option<Duration>,
    /// Print only this proxy: POD.NAMESPACE or a node id.
    #[arg(long)]
    pub(crate) proxy: Option<String>,
    /// Print only these types.
    #[arg(long, value_name = "TYPE,..", value_enum, value_delimiter = ',')]
    pub(crate) resource_types: Vec<PreviewResourceType>,
    /// Output format. The table has the steps and the number of resources, JSON and YAML have names, versions and sizes too.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
}

/// Flags of `diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The first recording.
    #[arg(value_name = "FIRST")]
    pub(crate) first: PathBuf,
    /// The second recording.
    #[arg(value_name = "SECOND")]
    pub(crate) second: PathBuf,
    /// Differences that are printed at most.
    #[arg(long, default_value_t = 100)]
    pub(crate) limit: usize,
    /// Output format. The table has the lines of the messages that differ, JSON and YAML have both messages.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
}
