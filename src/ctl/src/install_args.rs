//! The command line of the subcommands that install.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use sluice_install::FromVersion;

const EXAMPLES: &str = "\
Examples:
  sluicectl install                                 the profile default in namespace istio-system
  sluicectl install -f mesh.yaml --dry-run          print what would change, as a diff
  sluicectl install -f mesh.yaml -f site.yaml --set values.pilot.traceSampling=5
  sluicectl install --set profile=demo --revision canary -y

A file is an IstioOperator (install.istio.io/v1alpha1), as for istioctl. Later files and flags have
precedence. A field that has no effect here is refused with its path.

First, the API server validates all objects, and what changes is printed. Then the components are
applied in this order: CRDs and accounts, control plane, CNI agent, gateways. Each is awaited.
Objects of an earlier installation that are no longer rendered are removed at the end. If anything
fails, or after Ctrl-C, all objects are restored as they were. CRDs that were created stay.

Exit codes: 0 all is ready, or --dry-run has printed the changes; 1 it failed, and was undone;
2 invalid command line, file or value.";

const GENERATE_EXAMPLES: &str = "\
Examples:
  sluicectl manifest generate -f mesh.yaml | kubectl apply --server-side -f -
  sluicectl manifest generate --set profile=demo -o json

The command needs no cluster. Exit codes: 0 printed, 2 invalid command line, file or value.";

const TRANSLATE_EXAMPLES: &str = "\
Examples:
  sluicectl manifest translate -f mesh.yaml -o helm
  sluicectl manifest translate --set profile=demo

For each component, the directory gets the values of its chart, and a script by which helm takes over the
objects of an installation and upgrades them. Its README.md has the steps. Settings of `k8s` have no
counterpart in values: if they change objects, the directory has what helm and what sluicectl renders.

The command needs no cluster. Exit codes: 0 written, 2 invalid command line, file or value, or the
directory cannot be written.";

const UNINSTALL_EXAMPLES: &str = "\
Examples:
  sluicectl uninstall --revision canary        control plane, CNI agent and gateways of a revision
  sluicectl uninstall --purge                  everything that sluicectl or istioctl installed

CRDs stay, since all objects would disappear with them. So does what the control plane has written:
the Secret istio-ca-secret, the ConfigMaps istio-ca-root-cert, and Leases.

Exit codes: 0 all objects are gone, 1 it failed, 2 invalid command line.";

const VERIFY_EXAMPLES: &str = "\
Give the files and flags of the installation. Each object has to exist, to be as rendered, and to be
ready. Nothing is written.

Exit codes: 0 all is as it should be, 1 something is not, 2 invalid command line, file or value.";

const PRECHECK_EXAMPLES: &str = "\
Checks the version of Kubernetes, the rights of the current user, releases of helm, other control
planes and webhooks, and the versions of CRDs. Nothing is written. Findings that istioctl x precheck
also makes have its codes.

Exit codes: 0 no errors, 1 at least one error, 2 invalid command line, file or value.";

/// Subcommands that install.
#[derive(Debug, Subcommand)]
pub(crate) enum InstallCommand {
    /// Install the control plane, the CNI agent and gateways, or change an installation.
    #[command(after_help = EXAMPLES)]
    Install(InstallArgs),
    /// Change an installation. Fails if there is none.
    #[command(after_help = EXAMPLES)]
    Upgrade(InstallArgs),
    /// Remove an installation.
    #[command(after_help = UNINSTALL_EXAMPLES)]
    Uninstall(UninstallArgs),
    /// Print manifests, or translate them.
    Manifest {
        /// What to do with them.
        #[command(subcommand)]
        command: ManifestCommand,
    },
    /// Check whether an installation is possible.
    #[command(after_help = PRECHECK_EXAMPLES)]
    Precheck(PrecheckArgs),
    /// Check whether an installation is complete and ready.
    #[command(name = "verify-install", after_help = VERIFY_EXAMPLES)]
    VerifyInstall(CheckArgs),
}

/// Subcommands of `manifest`.
#[derive(Debug, Subcommand)]
pub(crate) enum ManifestCommand {
    /// Print the objects that an installation would apply.
    #[command(after_help = GENERATE_EXAMPLES)]
    Generate(GenerateArgs),
    /// Write the values of the charts, and scripts, by which helm takes over an installation.
    #[command(after_help = TRANSLATE_EXAMPLES)]
    Translate(TranslateArgs),
}

/// What is installed.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// IstioOperator file; `-` is standard input. Can be repeated.
    #[arg(short, long = "filename", value_name = "FILE|-")]
    pub(crate) filenames: Vec<PathBuf>,
    /// Value at a path below `spec` of the IstioOperator, over those of the files. Can be repeated.
    #[arg(short, long = "set", value_name = "PATH=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Revision of the control plane, over that of the files. Without any: default.
    #[arg(short, long)]
    pub(crate) revision: Option<String>,
    /// Namespace of the control plane, if no file states one. Without any: istio-system.
    #[arg(
        short = 'i',
        long = "istioNamespace",
        visible_short_alias = 'n',
        visible_alias = "namespace",
        value_name = "NAMESPACE"
    )]
    pub(crate) namespace: Option<String>,
    /// Directory with the charts base, sluice, gateway and cni, such as target/manifests/charts. Without it, the embedded
    /// charts are used.
    #[arg(short = 'd', long, value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,
}

/// Which cluster.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterArgs {
    /// Kubeconfig file. Without it, KUBECONFIG, ~/.kube/config or the service account of the pod is used.
    #[arg(short = 'c', long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Without it, the current one is used.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

/// Flags for a cluster, which commands have that need none.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct UnusedClusterArgs {
    /// Accepted as by the other commands. No cluster is read.
    #[arg(short = 'c', long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Accepted as by the other commands. No cluster is read.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// How changes are made.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Print what would change, as a diff, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask before the changes. Required if standard input is no terminal.
    #[arg(short = 'y', long)]
    pub(crate) skip_confirmation: bool,
    /// Longest time to wait for a component, such as 300s, 5m or 1h.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    pub(crate) readiness_timeout: Duration,
}

/// Flags of `install` and `upgrade`.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

/// Flags of `uninstall`.
#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    /// Remove the control plane, the CNI agent and the gateways of this revision.
    #[arg(short, long, required_unless_present = "purge", conflicts_with = "purge")]
    pub(crate) revision: Option<String>,
    /// Remove all revisions and the base.
    #[arg(long)]
    pub(crate) purge: bool,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

/// Flags of `manifest generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Version of Kubernetes that the manifests are for.
    #[arg(long, default_value = "1.29.0", value_name = "VERSION")]
    pub(crate) kube_version: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = ManifestOutput::Yaml)]
    pub(crate) output: ManifestOutput,
}

/// Flags of `manifest translate`.
#[derive(Debug, Args)]
pub(crate) struct TranslateArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Version of Kubernetes that the charts are rendered for.
    #[arg(long, default_value = "1.29.0", value_name = "VERSION")]
    pub(crate) kube_version: String,
    /// Directory for the files, which is created if it does not exist. Without it, a new one for temporary files.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// Flags of `precheck` and `verify-install`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = CheckOutput::Text)]
    pub(crate) output: CheckOutput,
}

/// Flags of `precheck`.
#[derive(Debug, Args)]
pub(crate) struct PrecheckArgs {
    #[command(flatten)]
    pub(crate) check: CheckArgs,
    /// Version of Istio before the upgrade, such as 1.30: check what changed after it.
    #[arg(long, value_name = "VERSION")]
    pub(crate) from_version: Option<FromVersion>,
}

/// An output format of manifests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ManifestOutput {
    /// YAML documents.
    Yaml,
    /// One JSON list.
    Json,
}

/// An output format of checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum CheckOutput {
    /// Lines of text.
    Text,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
}

/// A number with a unit: `ms`, `s`, `m` or `h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("a number with the unit ms, s, m or h is expected, such as 5m".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a number with a unit is expected, such as 5m".to_owned())?;
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(|| "the duration is too long".to_owned())
}
