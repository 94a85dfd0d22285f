//! Flags of `workload`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::inject_args::ControlPlaneArgs;
use crate::install_args::UnusedClusterArgs;

const GROUP_EXAMPLES: &str = "\
Examples:
  sluicectl workload group create --name vms --namespace shop --labels app=cart --ports http=8080 \\
    --serviceAccount cart | kubectl apply -f -

Exit codes: 0 printed, 2 invalid command line.";

const ENTRY_EXAMPLES: &str = "\
Examples:
  sluicectl workload entry configure -f group.yaml -o vm-1 --autoregister
  sluicectl workload entry configure --name vms --namespace shop -o vm-1 --ingressIP 203.0.113.7

Files, with their paths on the machine:
  cluster.env    /var/lib/istio/envoy/cluster.env   environment variables of the agent
  mesh.yaml      /etc/istio/config/mesh             mesh config with the proxy configuration
  root-cert.pem  /etc/certs/root-cert.pem           roots that verify the control plane
  istio-token    /var/run/secrets/tokens/istio-token
                                                    token of the service account
  hosts          /etc/hosts, appended               address of the gateway to the control plane

The token authenticates its holder as the service account until it expires. The agent of the
machine has to request its first certificate before. Only the user may read the file.

Exit codes:
  0  the files are written
  1  there is no such WorkloadGroup, service account or ConfigMap
  2  invalid command line, WorkloadGroup or mesh config, or a file that cannot be read or written
  3  the API server cannot be reached or refuses the caller";

/// Subcommands of `workload`.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkloadCommand {
    /// WorkloadGroups.
    Group {
        /// What to do.
        #[command(subcommand)]
        command: GroupCommand,
    },
    /// Workloads of a WorkloadGroup.
    Entry {
        /// What to do.
        #[command(subcommand)]
        command: EntryCommand,
    },
}

/// Subcommands of `workload group`.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Print a WorkloadGroup as YAML; needs no cluster.
    #[command(after_help = GROUP_EXAMPLES)]
    Create(Box<GroupArgs>),
}

/// Subcommands of `workload entry`.
#[derive(Debug, Subcommand)]
pub(crate) enum EntryCommand {
    /// Write the files that the agent of a machine needs to join the mesh as a workload of a WorkloadGroup.
    #[command(after_help = ENTRY_EXAMPLES)]
    Configure(Box<EntryArgs>),
}

/// Flags of `workload group create`.
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// Name of the WorkloadGroup.
    #[arg(long)]
    pub(crate) name: String,
    /// Namespace of the WorkloadGroup and its workloads.
    #[arg(short, long)]
    pub(crate) namespace: String,
    /// Labels of the workloads.
    #[arg(short, long, value_name = "NAME=VALUE,..", value_delimiter = ',', value_parser = pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// Annotations of the workloads.
    #[arg(short, long, value_name = "NAME=VALUE,..", value_delimiter = ',', value_parser = pair)]
    pub(crate) annotations: Vec<(String, String)>,
    /// Ports of the workloads.
    #[arg(short, long, value_name = "NAME=PORT,..", value_delimiter = ',', value_parser = port)]
    pub(crate) ports: Vec<(String, u16)>,
    /// Service account of the workloads.
    #[arg(short, long = "serviceAccount", value_name = "NAME", default_value = "default")]
    pub(crate) service_account: String,
    /// Network of the workloads.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) network: String,
    /// Locality of the workloads: REGION[/ZONE[/SUBZONE]].
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) locality: String,
    /// Weight of the workloads in load balancing.
    #[arg(short, long, default_value_t = 0, hide_default_value = true)]
    pub(crate) weight: u32,
    #[command(flatten)]
    _cluster: UnusedClusterArgs,
}

/// Flags of `workload entry configure`.
#[derive(Debug, Args)]
pub(crate) struct EntryArgs {
    /// File with the WorkloadGroup; `-` is standard input. Without it, the one of --name and --namespace is read from the cluster.
    #[arg(short, long, value_name = "FILE|-", required_unless_present_all = ["name", "namespace"])]
    pub(crate) file: Option<PathBuf>,
    /// Name of the WorkloadGroup.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Namespace of the WorkloadGroup.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Directory for the files, which is created.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Id of the cluster. Without it, `global.multiCluster.clusterName` of the injector's values, or Kubernetes.
    #[arg(long = "clusterID", value_name = "ID")]
    pub(crate) cluster_id: Option<String>,
    /// Time until the token expires, in seconds. The API server may change it.
    #[arg(long = "tokenDuration", value_name = "SECONDS", default_value_t = 3600)]
    pub(crate) token_duration: u32,
    /// Service of the gateway by which the machine reaches the control plane: SERVICE[.NAMESPACE]. Without a namespace, it is in
    /// that of the control plane.
    #[arg(long = "ingressService", value_name = "SERVICE", default_value = "istio-eastwestgateway")]
    pub(crate) ingress_service: String,
    /// Address of this gateway. Without it, the one of the Service.
    #[arg(long = "ingressIP", value_name = "ADDRESS")]
    pub(crate) ingress_ip: Option<IpAddr>,
    /// The control plane creates a WorkloadEntry while the proxy is connected.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) autoregister: bool,
    /// The agent answers DNS queries of the machine.
    #[arg(
        long = "capture-dns",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) capture_dns: bool,
    /// Address of the machine that other workloads reach. Without it, the first one of the machine.
    #[arg(long = "internalIP", value_name = "ADDRESS", conflicts_with = "external_ip")]
    pub(crate) internal_ip: Option<IpAddr>,
    /// The same, if the machine itself does not have this address.
    #[arg(long = "externalIP", value_name = "ADDRESS")]
    pub(crate) external_ip: Option<IpAddr>,
    #[command(flatten)]
    pub(crate) target: ControlPlaneArgs,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE is expected".to_owned()),
    }
}

fn port(text: &str) -> Result<(String, u16), String> {
    let (name, port) = pair(text)?;
    match port.parse() {
        Ok(port) if port != 0 => Ok((name, port)),
        _ => Err(format!("{port:?} is not a port (1 to 65535)")),
    }
}
