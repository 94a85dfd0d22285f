//! The command line of `preview`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sluice_model::ResourceType;

use crate::answer_output::AnswerOutput;
use crate::connect::ServerArgs;

pub(crate) const PREVIEW_EXAMPLES: &str = "\
Examples:
  sluicectl preview -f reviews-v2.yaml                      what applying it would change
  sluicectl preview -f demo/ --delete                       what deleting it would change
  sluicectl preview -f reviews-v2.yaml -o json | jq .proxies.count

  sluicectl preview -f demo/ --pod counter.teashop          offline: names of all resources, by type
  sluicectl preview -f demo/ --pod counter.teashop --resource-types rds -o json
  sluicectl preview -f demo/ --pod front-door.teashop --proxy-type router
  sluicectl preview -f demo/ --node node.json --name 80 -o json

Without --pod and --node, a running control plane is asked. It applies the change to a copy of its
state, and nothing to the cluster. The copy takes memory for what the change touches, and is refused
if it does not fit. One preview is computed at a time. An object in a file replaces the live one, as with `kubectl replace`; fields that
the API server and controllers set are kept. ConfigMaps with mesh config are covered. Each replica of
the control plane answers for the proxies that are connected to it; without --address, all are asked
and their answers are added. Bytes are those of delta xDS.

With --pod or --node, no control plane is needed: the objects are read from the files only. The mesh
config is read from ConfigMap istio in namespace istio-system, if the files contain it. All resources
are listed that the proxy can subscribe to; Envoy subscribes to those that its listeners and clusters
refer to. Secrets are not included. Environment variables that change what sluiced serves have no
effect here.

Exit codes:
  0  the change, or the configuration, was printed
  1  a finding is an error: admission would refuse an object; offline: there is no such resource
  2  invalid command line, or a file that cannot be read
  3  the control plane cannot be reached, or does not answer
  5  the change was printed, but a replica does not answer: its proxies are not included";

/// Flags of `preview`.
#[derive(Debug, Args)]
pub(crate) struct PreviewArgs {
    /// File or directory with Kubernetes and Istio objects; `-` is standard input. Can be repeated.
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    pub(crate) filenames: Vec<PathBuf>,
    /// Delete the objects instead of applying them.
    #[arg(long, conflicts_with_all = ["pod", "node"])]
    pub(crate) delete: bool,
    /// Offline: pod in the files. Its address, labels, annotations and service account describe the proxy.
    #[arg(long, value_name = "NAME.NAMESPACE", conflicts_with = "node")]
    pub(crate) pod: Option<String>,
    /// Type of the proxy, with --pod.
    #[arg(long, value_enum, default_value_t = PreviewProxyType::Sidecar, requires = "pod")]
    pub(crate) proxy_type: PreviewProxyType,
    /// Offline: JSON file with the node that the proxy sends: `id` and `metadata`, as in Envoy's bootstrap.
    #[arg(long, value_name = "FILE")]
    pub(crate) node: Option<PathBuf>,
    /// Print only these types.
    #[arg(long, value_name = "TYPE,..", value_enum, value_delimiter = ',')]
    pub(crate) resource_types: Vec<PreviewResourceType>,
    /// Print only resources with this name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Output format. Offline, the table has names and sizes, and JSON and YAML the resources.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// The types of proxies that a Pod can have.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum PreviewProxyType {
    Sidecar,
    Router,
}

/// The resource types that are printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum PreviewResourceType {
    /// Clusters.
    Cds,
    /// Endpoints.
    Eds,
    /// Listeners.
    Lds,
    /// Route tables.
    Rds,
    /// Extension configurations.
    Ecds,
    /// Name tables.
    Nds,
}

impl PreviewResourceType {
    /// The type.
    pub(crate) const fn resource_type(self) -> ResourceType {
        match self {
            Self::Cds => ResourceType::Cluster,
            Self::Eds => ResourceType::Endpoint,
            Self::Lds => ResourceType::Listener,
            Self::Rds => ResourceType::Route,
            Self::Ecds => ResourceType::ExtensionConfig,
            Self::Nds => ResourceType::NameTable,
        }
    }

    /// Its name in answers of the control plane.
    pub(crate) const fn short_name(self) -> &'static str {
        match self {
            Self::Cds => "cds",
            Self::Eds => "eds",
            Self::Lds => "lds",
            Self::Rds => "rds",
            Self::Ecds => "ecds",
            Self::Nds => "nds",
        }
    }
}
