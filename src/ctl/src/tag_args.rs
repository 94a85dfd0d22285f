//! Flags of the commands about revisions and their tags.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sluice_install::DEFAULT_NAMESPACE;

use crate::answer_output::AnswerOutput;
use crate::install_args::ClusterArgs;

pub(crate) const TAG_EXAMPLES: &str = "\
Examples:
  sluicectl tag set prod --revision canary              namespaces with istio.io/rev=prod use canary
  sluicectl tag set prod --revision stable --overwrite  the tag stands for another revision
  sluicectl tag set default --revision canary           canary becomes the default revision
  sluicectl tag generate prod --revision canary         print the objects of the tag
  sluicectl tag list
  sluicectl tag remove prod

A tag consists of a MutatingWebhookConfiguration and a Service, with the label istio.io/tag. The tag
default also has the ValidatingWebhookConfiguration istiod-default-validator, and the webhooks of the
former default revision then match nothing. Proxies change their control plane when they are restarted.

Exit codes: 0 done, 1 refused (the tag exists, a revision is missing or ambiguous, webhooks conflict),
2 invalid command line, 3 the API server cannot be reached or refuses the caller.";

pub(crate) const REVISION_EXAMPLES: &str = "\
Examples:
  sluicectl experimental revision list
  sluicectl x revision describe canary
  sluicectl x revision describe canary -o json

Exit codes: 0 printed, 1 there is no such revision, 2 invalid command line, 3 the API server cannot be
reached.";

/// Subcommands of `tag`.
#[derive(Debug, Subcommand)]
pub(crate) enum TagCommand {
    /// Create or change a revision tag.
    #[command(after_help = TAG_EXAMPLES)]
    Set(TagSetArgs),
    /// Print the objects of a revision tag, and change nothing.
    #[command(after_help = TAG_EXAMPLES)]
    Generate(TagSetArgs),
    /// List revision tags with the namespaces that use them.
    #[command(visible_alias = "show", after_help = TAG_EXAMPLES)]
    List(TagListArgs),
    /// Remove a revision tag.
    #[command(visible_alias = "delete", after_help = TAG_EXAMPLES)]
    Remove(TagRemoveArgs),
}

/// Which cluster, and the namespace of the control plane.
#[derive(Debug, Args)]
pub(crate) struct TagTargetArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Namespace of the control plane.
    #[arg(short = 'i', long = "istioNamespace", value_name = "NAMESPACE", default_value = DEFAULT_NAMESPACE)]
    pub(crate) istio_namespace: String,
}

/// Flags of `tag set` and `tag generate`.
#[derive(Debug, Args)]
pub(crate) struct TagSetArgs {
    /// Name of the tag.
    #[arg(value_name = "TAG")]
    pub(crate) tag: String,
    /// Revision that the tag stands for.
    #[arg(short, long)]
    pub(crate) revision: String,
    /// Change a tag that exists.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Do not ask if webhooks conflict.
    #[arg(short = 'y', long)]
    pub(crate) skip_confirmation: bool,
    /// Name of the MutatingWebhookConfiguration. Without it: istio-revision-tag-TAG.
    #[arg(long, value_name = "NAME")]
    pub(crate) webhook_name: Option<String>,
    /// With the tag default, inject pods in all namespaces that do not disable it.
    #[arg(long)]
    pub(crate) auto_inject_namespaces: bool,
    /// Directory with the charts base, sluice and gateway. Without it, the embedded charts are used.
    #[arg(short = 'd', long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: TagTargetArgs,
}

/// Flags of `tag list` and `revision list`.
#[derive(Debug, Args)]
pub(crate) struct TagListArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) target: TagTargetArgs,
}

/// Flags of `tag remove`.
#[derive(Debug, Args)]
pub(crate) struct TagRemoveArgs {
    /// Name of the tag.
    #[arg(value_name = "TAG")]
    pub(crate) tag: String,
    /// Do not ask if namespaces use the tag.
    #[arg(short = 'y', long)]
    pub(crate) skip_confirmation: bool,
    #[command(flatten)]
    pub(crate) target: TagTargetArgs,
}

/// Subcommands of `experimental revision`.
#[derive(Debug, Subcommand)]
pub(crate) enum RevisionCommand {
    /// List the revisions of the control plane.
    #[command(after_help = REVISION_EXAMPLES)]
    List(TagListArgs),
    /// Describe a revision: its webhooks, pods and gateways, and the pods that use it.
    #[command(after_help = REVISION_EXAMPLES)]
    Describe(RevisionDescribeArgs),
}

/// Flags of `revision describe`.
#[derive(Debug, Args)]
pub(crate) struct RevisionDescribeArgs {
    /// The revision.
    #[arg(value_name = "REVISION")]
    pub(crate) revision: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) target: TagTargetArgs,
}
