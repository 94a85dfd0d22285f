//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use sluice_telemetry::LogArgs;
use sluice_variables::AGENT;

use crate::redirection::IptablesArgs;

/// The agent of a proxy: it starts Envoy, obtains the workload's certificate, and connects both to the control plane.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice-agent", version, args_override_self = true)]
pub(crate) struct CommandLine {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The log. `--log_as_json` is also for Envoy's.
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Subcommands.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Start Envoy and run until it exits, or until SIGTERM. With DISABLE_ENVOY, serve gRPC libraries of the application instead.
    Proxy(ProxyArgs),
    /// Wait until the proxy is ready, for the postStart hook of a container.
    Wait(WaitArgs),
    /// Send a request to Envoy's admin interface on this machine and print the response.
    Request(RequestArgs),
    /// Redirect the traffic of the pod to its sidecar, or check that it is redirected.
    IstioIptables(Box<IptablesArgs>),
    /// Print the version.
    Version,
}

/// The type of the proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Role {
    /// The proxy of one workload.
    Sidecar,
    /// A gateway.
    Router,
    /// A waypoint proxy of ambient mode.
    Waypoint,
}

impl Role {
    /// The name in node ids.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Router => "router",
            Self::Waypoint => "waypoint",
        }
    }
}

/// Flags of `proxy`, with the names of `pilot-agent`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Type of the proxy.
    #[arg(value_enum, default_value = "sidecar")]
    pub(crate) role: Role,
    /// DNS suffix of the proxy [default: $POD_NAMESPACE.svc.cluster.local].
    #[arg(long, value_name = "SUFFIX", default_value = "")]
    pub(crate) domain: String,
    /// File with the mesh config. PROXY_CONFIG and the pod's annotation take precedence over its `defaultConfig`.
    #[arg(long = "meshConfig", value_name = "FILE", default_value = "./etc/istio/config/mesh")]
    pub(crate) mesh_config: PathBuf,
    /// Service name in traces if `serviceCluster` of the ProxyConfig is set to an empty text.
    #[arg(long = "serviceCluster", value_name = "NAME", default_value = "istio-proxy")]
    pub(crate) service_cluster: String,
    /// Envoy's log level: trace, debug, info, warning, error, critical or off; `,COMPONENT:LEVEL` may follow.
    #[arg(long = "proxyLogLevel", value_name = "LEVELS", default_value = "warning,misc:error")]
    pub(crate) proxy_log_level: String,
    /// Envoy's log levels by component, as comma-separated `COMPONENT:LEVEL`, unless --proxyLogLevel has some.
    #[arg(long = "proxyComponentLogLevel", value_name = "LEVELS", default_value = "")]
    pub(crate) proxy_component_log_level: String,
    /// Number of Envoy's worker threads; 0 means the ProxyConfig's, else ISTIO_CPU_LIMIT, else one for each CPU.
    #[arg(long, value_name = "THREADS", default_value_t = 0)]
    pub(crate) concurrency: u32,
    /// File to which Envoy writes an event for each ejected host; empty for none.
    #[arg(long = "outlierLogPath", value_name = "FILE", default_value = "")]
    pub(crate) outlier_log_path: String,
}

/// Flags of `wait`.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    /// Seconds to wait at most.
    #[arg(long = "timeoutSeconds", value_name = "SECONDS", default_value_t = 60)]
    pub(crate) timeout_seconds: u64,
    /// Time limit of one request, in milliseconds.
    #[arg(long = "requestTimeoutMillis", value_name = "MILLISECONDS", default_value_t = 500)]
    pub(crate) request_timeout_millis: u64,
    /// Milliseconds between attempts.
    #[arg(long = "periodMillis", value_name = "MILLISECONDS", default_value_t = 500)]
    pub(crate) period_millis: u64,
    /// URL to request; http only.
    #[arg(long, value_name = "URL", default_value = "http://localhost:15021/healthz/ready")]
    pub(crate) url: String,
}

/// Arguments of `request`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RequestArgs {
    /// GET or POST.
    pub(crate) method: http::Method,
    /// Path on the admin interface, such as `stats`.
    pub(crate) path: String,
    /// Address of the admin interface.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15000")]
    pub(crate) admin: SocketAddr,
}

/// Flags of `pilot-agent` that have no effect here: an injected container may have them.
const IGNORED_FLAGS: [&str; 5] = ["profiling", "stsPort", "templateFile", "tokenManagerPlugin", "vklog"];

impl CommandLine {
    /// Parses the command line without the flags of `pilot-agent` that have no effect here. Their names are returned.
    ///
    /// # Errors
    /// A flag is unknown or invalid, or help or the version is requested.
    pub(crate) fn parse_lenient(
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<(Self, Vec<String>), clap::Error> {
        let command = Self::command().mut_subcommand("proxy", |proxy| proxy.after_help(variables_help()));
        let (mut kept, mut ignored) = (Vec::new(), Vec::new());
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let name = argument.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag));
            match name {
                Some(name) if IGNORED_FLAGS.contains(&name) => {
                    // The next argument is the value of the flag, unless it is a flag itself.
                    if !argument.contains('=') {
                        arguments.next_if(|next| !next.starts_with('-'));
                    }
                    ignored.push(format!("--{name}"));
                }
                _ => kept.push(argument),
            }
        }
        let matches = command.try_get_matches_from(kept)?;
        Ok((<Self as clap::FromArgMatches>::from_arg_matches(&matches)?, ignored))
    }
}

/// The end of `proxy --help`.
fn variables_help() -> String {
    let mut text = "Environment variables. Durations have the form 10s, 1h30m or 250ms; flags are true or false; defaults are in brackets.\n".to_owned();
    text.push_str(&sluice_variables::help(AGENT));
    text.push_str(
        "\nExit codes: 0 terminated on request, 1 failed, 2 invalid flags; otherwise the exit code of Envoy.\nFlags of \
         pilot-agent that have no effect here are accepted with a warning.",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(CommandLine, Vec<String>), clap::Error> {
        CommandLine::parse_lenient(line.split(' ').map(ToOwned::to_owned))
    }

    #[test]
    fn flags_of_an_injected_sidecar_are_accepted() {
        let line = "sluice-agent proxy sidecar --domain a.svc.cluster.local --proxyLogLevel=warning \
                    --proxyComponentLogLevel=misc:error --log_output_level=default:info --stsPort 15463 --log_as_json";
        let (line, ignored) = parse(line).expect("a command line");
        let Command::Proxy(proxy) = line.command else { panic!("not proxy: {line:?}") };
        assert_eq!(proxy.role, Role::Sidecar);
        assert_eq!(proxy.domain, "a.svc.cluster.local");
        assert_eq!(proxy.proxy_component_log_level, "misc:error");
        assert!(line.log.log_as_json);
        assert_eq!(ignored, ["--stsPort"]);
    }

    #[test]
    fn mistyped_flag_is_an_error_with_a_suggestion() {
        let error = parse("sluice-agent proxy sidecar --proxyLogLevl=info").expect_err("unknown").to_string();
        assert!(error.contains("--proxyLogLevl") && error.contains("'--proxyLogLevel'"), "{error}");
    }

    #[test]
    fn unknown_role_is_rejected() {
        assert!(parse("sluice-agent proxy ztunnel").is_err());
        let (line, _) = parse("sluice-agent proxy router").expect("a command line");
        assert!(matches!(line.command, Command::Proxy(ProxyArgs { role: Role::Router, .. })));
    }

    #[test]
    fn help_lists_all_variables() {
        let help = parse("sluice-agent proxy --help").expect_err("help").to_string();
        for variable in sluice_variables::all(AGENT).filter(|variable| variable.is_read()) {
            assert!(help.contains(variable.name), "{} is missing", variable.name);
        }
    }
}
