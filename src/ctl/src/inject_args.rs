//! Flags of the commands about injection.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::answer_output::AnswerOutput;
use crate::install_args::ClusterArgs;

pub(crate) const KUBE_INJECT_EXAMPLES: &str = "\
Examples:
  sluicectl kube-inject -f shop.yaml | kubectl apply -f -
  kubectl get deployment -o yaml | sluicectl kube-inject -f - | kubectl apply -f -
  sluicectl kube-inject -f shop.yaml -o shop-injected.yaml --revision canary

Without a cluster:
  kubectl -n istio-system get cm istio-sidecar-injector -o jsonpath='{.data.config}' > config.yaml
  kubectl -n istio-system get cm istio-sidecar-injector -o jsonpath='{.data.values}' > values.json
  kubectl -n istio-system get cm istio -o jsonpath='{.data.mesh}' > mesh.yaml
  sluicectl kube-inject -f shop.yaml \\
    --injectConfigFile config.yaml --valuesFile values.json --meshConfigFile mesh.yaml

The pod templates of Deployments, DaemonSets, StatefulSets, ReplicaSets, ReplicationControllers, Jobs and
CronJobs get what the webhook adds to their pods, and so do Pods. Other objects are printed as they are.

Exit codes:
  0  printed
  1  the webhook would deny the pods of an object; nothing is printed
  2  invalid command line, configuration or object, or a file that cannot be read or written
  3  the API server cannot be reached, or does not have the configuration";

/// Flags of `kube-inject`.
#[derive(Debug, Args)]
pub(crate) struct KubeInjectArgs {
    /// File with Kubernetes objects; `-` is standard input.
    #[arg(short, long, value_name = "FILE|-")]
    pub(crate) filename: PathBuf,
    /// File for the result. Without it, the result is printed.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Namespace of objects that name none.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    /// File with the configuration of the injector, or with a single template. Without it, that of the cluster is read. The
    /// policy of a file does not disable injection.
    #[arg(long = "injectConfigFile", value_name = "FILE", conflicts_with = "inject_config_map")]
    pub(crate) inject_config_file: Option<PathBuf>,
    /// File with the values that templates read. Without it, those of the cluster are read.
    #[arg(long = "valuesFile", value_name = "FILE", requires = "inject_config_file")]
    pub(crate) values_file: Option<PathBuf>,
    /// File with the MeshConfig. Without it, that of the cluster is read.
    #[arg(long = "meshConfigFile", value_name = "FILE")]
    pub(crate) mesh_config_file: Option<PathBuf>,
    /// ConfigMap of the injector. Without it: istio-sidecar-injector, or istio-sidecar-injector-REVISION.
    #[arg(long = "injectConfigMapName", value_name = "NAME")]
    pub(crate) inject_config_map: Option<String>,
    /// ConfigMap with the MeshConfig. Without it: istio, or istio-REVISION.
    #[arg(long = "meshConfigMapName", value_name = "NAME")]
    pub(crate) mesh_config_map: Option<String>,
    /// Whether proxies are native sidecars. Without it, the versions of the nodes decide, and without a cluster, they are not.
    #[arg(
        long = "nativeSidecars",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) native_sidecars: Option<bool>,
    #[command(flatten)]
    pub(crate) target: ControlPlaneArgs,
}

/// Which control plane of which cluster.
#[derive(Debug, Args)]
pub(crate) struct ControlPlaneArgs {
    #[command(flatten, next_help_heading = "Server")]
    pub(crate) cluster: ClusterArgs,
    /// Namespace of the control plane.
    #[arg(
        short = 'i',
        long = "istioNamespace",
        value_name = "NAMESPACE",
        default_value = "istio-system",
        help_heading = "Server"
    )]
    pub(crate) istio_namespace: String,
    /// Revision of the control plane.
    #[arg(short, long, value_name = "NAME", default_value = "default", help_heading = "Server")]
    pub(crate) revision: String,
}

impl ControlPlaneArgs {
    /// The revision; `None` for the one without a name.
    pub(crate) fn named_revision(&self) -> Option<&str> {
        Some(self.revision.as_str()).filter(|revision| !matches!(*revision, "" | sluice_install::DEFAULT_REVISION))
    }
}

pub(crate) const CHECK_INJECT_EXAMPLES: &str = "\
Examples:
  sluicectl experimental check-inject cart-7f.shop
  sluicectl x check-inject deploy/cart -n shop
  sluicectl x check-inject -n shop -l app=cart,version=v1    before there is a pod

Each row is a MutatingWebhookConfiguration. Its selectors are compared with the labels of the pod (of a
workload: those of its pod template) and of the namespace, by the rules of Kubernetes. The injector may
still leave a pod out that a webhook selects, for example one with the network of its node.

Exit codes: 0 printed, 1 there is no such pod or namespace, 2 invalid command line, 3 the API server
cannot be reached.";

/// Flags of `check-inject`.
#[derive(Debug, Args)]
pub(crate) struct CheckInjectArgs {
    /// The pod: POD[.NAMESPACE], or deploy/NAME[.NAMESPACE].
    #[arg(value_name = "POD", required_unless_present = "labels")]
    pub(crate) pod: Option<String>,
    /// Labels of a pod that need not exist.
    #[arg(short, long, value_name = "NAME=VALUE,..", value_delimiter = ',', conflicts_with = "pod")]
    pub(crate) labels: Vec<String>,
    /// Namespace of the pod.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten, next_help_heading = "Server")]
    pub(crate) cluster: ClusterArgs,
}

pub(crate) const INJECTOR_EXAMPLES: &str = "\
Examples:
  sluicectl experimental injector list             revisions of all namespaces, and all webhooks
  sluicectl x injector list -n shop
  sluicectl x injector list -o json | jq '.namespaces[] | select(.injectedPods < .pods)'

The first table has a row for each namespace and each revision that has injected pods there. A pod that
NEEDS RESTART would be injected by another revision if it was created again, or not at all. Namespaces in
ambient mode and that of the control plane are left out.

The second table has a row for each configuration of webhooks and each namespace whose pods it injects
by the labels of the namespace alone. CA-BUNDLE is the state of the roots by which the API server verifies
the server.

Exit codes: 0 printed, 1 there is no such namespace, 2 invalid command line, 3 the API server cannot be
reached.";

/// Subcommands of `injector`.
#[derive(Debug, Subcommand)]
pub(crate) enum InjectorCommand {
    /// List namespaces with the revision that injects them, and the webhooks that inject.
    #[command(after_help = INJECTOR_EXAMPLES)]
    List(InjectorListArgs),
}

/// Flags of `injector list`.
#[derive(Debug, Args)]
pub(crate) struct InjectorListArgs {
    /// Namespace that is listed. Without it: all.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    pub(crate) namespace: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    #[command(flatten, next_help_heading = "Server")]
    pub(crate) cluster: ClusterArgs,
    /// Namespace of the control plane.
    #[arg(
        short = 'i',
        long = "istioNamespace",
        value_name = "NAMESPACE",
        default_value = "istio-system",
        help_heading = "Server"
    )]
    pub(crate) istio_namespace: String,
}
