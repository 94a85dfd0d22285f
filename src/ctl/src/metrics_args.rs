//! Flags of `experimental metrics`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::answer_args::duration;
use crate::answer_output::AnswerOutput;
use crate::connect::kubernetes::ClusterFlags;

pub(crate) const METRICS_EXAMPLES: &str = "\
Examples:
  sluicectl experimental metrics cart-v1
  sluicectl x metrics cart-v1.shop ratings.shop --duration 5m
  sluicectl x metrics cart-v1 --address https://prometheus.example --token-file token
  sluicectl x metrics cart-v1 -o json | jq '.[0].p99Milliseconds'

The numbers are those of the servers: rates are per second, on average over --duration, errors are
requests with a status of 400 or more, and latencies are estimates from the buckets of a histogram. A
name stands for all workloads whose names begin with it, and a namespace likewise. A latency without
requests is `-`.

Prometheus is found by the label app.kubernetes.io/name=prometheus of its pod in --istioNamespace.

Exit codes: 0 printed, 1 there is no pod of Prometheus, 2 invalid command line, 3 the API server or
Prometheus cannot be reached, or does not answer the query.";

/// Flags of `metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Workloads, such as the name of a Deployment.
    #[arg(value_name = "WORKLOAD[.NAMESPACE]", required = true)]
    pub(crate) workloads: Vec<String>,
    /// The time over which rates are calculated, such as 1m or 1h30m.
    #[arg(short, long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub(crate) duration: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    /// Address of Prometheus, such as http://localhost:9090 or https://HOST. Without it, the port of its pod is forwarded.
    #[arg(long, value_name = "URL", help_heading = "Server")]
    pub(crate) address: Option<String>,
    /// File with the root certificates that verify an --address with https. Without it: those of the system.
    #[arg(long, value_name = "FILE", requires = "address", help_heading = "Server")]
    pub(crate) ca_file: Option<PathBuf>,
    /// File with a token for an --address.
    #[arg(long, value_name = "FILE", requires = "address", help_heading = "Server")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
}
