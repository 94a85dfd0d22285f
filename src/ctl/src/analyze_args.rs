//! Flags of `analyze`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use sluice_analyze::{Level, Suppression};

use crate::install_args::ClusterArgs;

pub(crate) const ANALYZE_EXAMPLES: &str = "\
Examples:
  sluicectl analyze                                   the cluster, namespace of the context
  sluicectl analyze -A                                the cluster, all namespaces
  sluicectl analyze -n shop routes.yaml config/       the cluster as if the files were applied
  sluicectl analyze --use-kube=false -A config/       files alone
  sluicectl analyze -S 'IST0103=Pod *.testing'        without a message for some objects
  sluicectl analyze -L                                the analyzers and their codes

Codes, names and levels of messages are those of istioctl; docs/analyze.md lists them.

Exit codes:
  0   no message at or above --failure-threshold, or the output is json or yaml
  2   invalid command line, or the cluster or a file cannot be read
  65  a document in a file is invalid (without --ignore-unknown)
  79  at least one message at or above --failure-threshold";

/// Flags of `analyze`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one field for each flag")]
pub(crate) struct AnalyzeArgs {
    /// Files and directories with objects; `-` is standard input. In a directory and its subdirectories, files named
    /// *.yaml, *.yml and *.json are read. An object in a file replaces the one of the cluster.
    #[arg(value_name = "FILE|DIR|-")]
    pub(crate) paths: Vec<PathBuf>,
    /// Read the objects of the cluster. Without it, only files are analyzed, together with an ingress gateway.
    #[arg(
        short = 'k',
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) use_kube: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Print messages about objects of this namespace and about objects without a namespace. Objects in files that name no
    /// namespace are in it. Without it, the namespace of the kubeconfig's context is used, or `default`.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Print messages about all namespaces.
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
    /// Namespace of the control plane.
    #[arg(short, long, default_value = "istio-system")]
    pub(crate) istio_namespace: String,
    /// Revision of the control plane. Istio objects of other revisions are left out.
    #[arg(short, long, default_value = "default")]
    pub(crate) revision: String,
    /// Contexts of the kubeconfig for the other clusters of the mesh, whose Services are compared. Can be repeated. Without
    /// it, the kubeconfigs in the Secrets of remote clusters are used.
    #[arg(long = "remote-contexts", value_name = "NAME")]
    pub(crate) remote_contexts: Vec<String>,
    /// Leave out messages with a code about some objects: CODE=KIND NAME.NAMESPACE, where `*` matches any text. Can be
    /// repeated.
    #[arg(short = 'S', long, value_name = "CODE=OBJECT")]
    pub(crate) suppress: Vec<Suppression>,
    /// Lowest level that makes the command fail: Info, Warning or Error.
    #[arg(long, value_name = "LEVEL", default_value = "Error")]
    pub(crate) failure_threshold: Level,
    /// Lowest level that is printed: Info, Warning or Error.
    #[arg(long, value_name = "LEVEL", default_value = "Info")]
    pub(crate) output_threshold: Level,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = MessageFormat::Log, ignore_case = true)]
    pub(crate) output: MessageFormat,
    /// Colour levels. Without it, they are coloured on a terminal, unless TERM is dumb or NO_COLOR is set.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) color: Option<bool>,
    /// File with a MeshConfig that replaces the one of the cluster and of the files.
    #[arg(long = "meshConfigFile", value_name = "FILE")]
    pub(crate) mesh_config_file: Option<PathBuf>,
    /// Print the analyzers with their codes, and analyze nothing.
    #[arg(short = 'L', long)]
    pub(crate) list_analyzers: bool,
    /// Run only this analyzer. Can be repeated. annotations.AlphaAnalyzer runs only if it is named.
    #[arg(long = "analyzer", value_name = "NAME")]
    pub(crate) analyzers: Vec<String>,
    /// Ignore invalid documents in files.
    #[arg(long)]
    pub(crate) ignore_unknown: bool,
    /// Accepted for compatibility: subdirectories are always read.
    #[arg(short = 'R', long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) recursive: Option<bool>,
    /// Limit for reading the cluster, such as 30s or 2m.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    pub(crate) timeout: Duration,
}

/// Output formats of messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum MessageFormat {
    /// A line for each message.
    Log,
    /// A list of JSON objects.
    Json,
    /// A list of YAML mappings.
    Yaml,
}

fn timeout(text: &str) -> Result<Duration, String> {
    sluice_parse::parse_duration(text).ok_or_else(|| format!("{text:?} is not a duration such as 30s or 2m"))
}
