//! Flags of `create-remote-secret`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use sluice_install::{DEFAULT_NAMESPACE, READER_ACCOUNT};

use crate::install_args::{ClusterArgs, parse_duration};

pub(crate) const REMOTE_SECRET_EXAMPLES: &str = "\
Examples:
  # The control plane in cluster west reads cluster east:
  sluicectl create-remote-secret --context east --name east | kubectl --context west apply -f -
  sluicectl create-remote-secret --context east --name east | kubectl --context west delete -f -

  sluicectl create-remote-secret --name east --server https://10.0.0.5:6443
  sluicectl create-remote-secret --name east --token-duration 24h    a token that expires
  sluicectl create-remote-secret --name east --auth-type plugin --auth-plugin-name gcp

The token is that of a Secret of the service account, which is created where it is missing, or with
--token-duration one that the API server issues without a Secret. The Secret that is printed contains
the token: a caller that can read it can read the cluster.

A control plane refuses auth plugins unless PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS lists them.

Exit codes: 0 printed, 1 there is no such service account or Secret, 2 invalid command line, 3 the API
server cannot be reached or refuses the caller.";

/// Flags of `create-remote-secret`.
#[derive(Debug, Args)]
pub(crate) struct RemoteSecretArgs {
    /// Name of the cluster that is read. Without it, the UID of its namespace kube-system.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    /// What the Secret is for: a cluster that is read beside others, or the cluster whose configuration an external control
    /// plane reads.
    #[arg(long = "type", value_enum, default_value_t)]
    pub(crate) secret_type: RemoteSecretType,
    /// Namespace of the service account, and of the Secret.
    #[arg(
        short = 'i',
        long = "istioNamespace",
        visible_short_alias = 'n',
        visible_alias = "namespace",
        value_name = "NAMESPACE",
        default_value = DEFAULT_NAMESPACE
    )]
    pub(crate) namespace: String,
    /// Service account whose credentials are printed. Without it: istio-reader-service-account, or istiod with --type config.
    #[arg(long)]
    pub(crate) service_account: Option<String>,
    /// Create the service account istio-reader-service-account with its rights where it is missing.
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) create_service_account: bool,
    /// Secret with the token of the service account. Without it, it is found by its annotation, or created.
    #[arg(long, value_name = "NAME")]
    pub(crate) secret_name: Option<String>,
    /// Request a token of this duration in place of a Secret, such as 24h. The API server may shorten it.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "secret_name")]
    pub(crate) token_duration: Option<Duration>,
    /// URL of the API server, as the control plane reaches it. Without it, that of the kubeconfig.
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Name of the API server in its certificate, if it differs from that in the URL.
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// How the control plane authenticates.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) auth_type: RemoteAuthType,
    /// Name of the auth provider.
    #[arg(long, value_name = "NAME", required_if_eq("auth_type", "plugin"))]
    pub(crate) auth_plugin_name: Option<String>,
    /// Settings of the auth provider.
    #[arg(long, value_name = "NAME=VALUE,..", value_delimiter = ',')]
    pub(crate) auth_plugin_config: Vec<String>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// What a Secret is for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum RemoteSecretType {
    /// A cluster that is read beside others.
    #[default]
    Remote,
    /// The cluster whose configuration an external control plane reads.
    Config,
}

impl RemoteSecretType {
    /// The service account whose credentials are printed.
    pub(crate) fn service_account(self) -> &'static str {
        match self {
            Self::Remote => READER_ACCOUNT,
            Self::Config => "istiod",
        }
    }
}

/// How the control plane authenticates.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum RemoteAuthType {
    /// By a token.
    #[default]
    BearerToken,
    /// By an auth provider of the kubeconfig.
    Plugin,
}
