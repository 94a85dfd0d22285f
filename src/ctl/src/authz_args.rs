//! Flags of `experimental authz`.

use std::net::IpAddr;

use clap::{Args, Subcommand};

use crate::answer_output::AnswerOutput;
use crate::proxy_config::args::SourceArgs;

pub(crate) const AUTHZ_EXAMPLES: &str = "\
Examples:
  sluicectl x authz check cart-7f.shop                      policies in the configuration of Envoy
  sluicectl x authz check deploy/cart.shop --from control-plane
  sluicectl x authz check --file config_dump.json
  sluicectl x authz check cart-7f.shop --request 'GET /admin' --source-namespace bank --port 80
  sluicectl x authz check cart-7f.shop --request 'POST /orders' --host cart.shop --header x-id:7 \\
      --source-principal cluster.local/ns/bank/sa/till -o json
  sluicectl x authz check db-0.shop --request tcp --port 5432 --source-ip 10.1.2.3

Without --request, the table has the AuthorizationPolicies in the RBAC filters of the proxy, with the number of
their rules.

With --request, the control plane tells how its policies decide about a request: CUSTOM, then DENY, then ALLOW,
and the default if no rule matches. AUDIT and dry-run policies decide nothing and are listed. A request without
--source-principal and --source-namespace is one without mutual TLS. What is not stated, such as --source-ip, makes
the decision UNDECIDED if it matters. Tokens are not validated: --request-principal and --claim state their content.

Exit codes:
  0  the table was printed; with --request: the request is allowed
  1  there is no such pod or proxy
  2  invalid command line, or a file that cannot be read
  3  Envoy, the API server or the control plane cannot be reached, or refuses the caller
  4  with --request: it is denied
  5  with --request: it depends on what is not stated, or on an external authorizer";

/// Subcommands of `authz`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuthzCommand {
    /// Print the policies that apply at a proxy, or how they decide about a request.
    #[command(after_help = AUTHZ_EXAMPLES)]
    Check(Box<AuthzCheckArgs>),
}

/// Flags of `authz check`.
#[derive(Debug, Args)]
pub(crate) struct AuthzCheckArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: AnswerOutput,
    /// A request: `METHOD PATH`, or `tcp` for a connection whose protocol is not HTTP.
    #[arg(long, value_name = "REQUEST", conflicts_with_all = ["file", "from"], requires = "proxy", help_heading = "Request")]
    pub(crate) request: Option<String>,
    #[command(flatten)]
    pub(crate) attributes: RequestAttributes,
}

/// Attributes of a request.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Request")]
pub(crate) struct RequestAttributes {
    /// Host of the request, with the port if the client sends it.
    #[arg(long, value_name = "HOST", requires = "request")]
    pub(crate) host: Option<String>,
    /// A header. Can be repeated. Other headers are absent.
    #[arg(long = "header", value_name = "NAME:VALUE", requires = "request")]
    pub(crate) headers: Vec<String>,
    /// Port of the service or of the pod. Without it: the only port of the pod.
    #[arg(long, requires = "request")]
    pub(crate) port: Option<u16>,
    /// Identity of the client: TRUST_DOMAIN/ns/NAMESPACE/sa/ACCOUNT.
    #[arg(long, value_name = "PRINCIPAL", requires = "request")]
    pub(crate) source_principal: Option<String>,
    /// Namespace of the client, in place of the identity.
    #[arg(long, value_name = "NAMESPACE", requires = "request", conflicts_with = "source_principal")]
    pub(crate) source_namespace: Option<String>,
    /// Service account of the client in --source-namespace. Without it: default.
    #[arg(long, value_name = "ACCOUNT", requires = "source_namespace")]
    pub(crate) source_account: Option<String>,
    /// Address of the client.
    #[arg(long, value_name = "ADDRESS", requires = "request")]
    pub(crate) source_ip: Option<IpAddr>,
    /// Address of the original client, as trusted proxies report it. Without it: --source-ip.
    #[arg(long, value_name = "ADDRESS", requires = "request")]
    pub(crate) remote_ip: Option<IpAddr>,
    /// Server name in the TLS handshake.
    #[arg(long, value_name = "NAME", requires = "request")]
    pub(crate) server_name: Option<String>,
    /// Principal of a validated token: ISSUER/SUBJECT.
    #[arg(long, value_name = "PRINCIPAL", requires = "request")]
    pub(crate) request_principal: Option<String>,
    /// A claim of a validated token. Can be repeated; a claim with several values is a list. A nested one is named A][B.
    #[arg(long = "claim", value_name = "NAME:VALUE", requires = "request")]
    pub(crate) claims: Vec<String>,
}
