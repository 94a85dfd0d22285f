//! The command line as typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::environment::VARIABLES;

/// The program beside a proxy: starts Envoy, holds the workload's identity, connects both to the control plane.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice-agent", version, args_override_self = true)]
pub(crate) struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Lowest level that is logged, by scope: `[SCOPE:]LEVEL,..` with levels debug, info, warn, error, none.
    #[arg(long = "log_output_level", value_name = "LEVELS", default_value = "default:info", global = true)]
    pub(crate) log_output_level: String,
    /// Log in JSON, Envoy too.
    #[arg(long = "log_as_json", global = true)]
    pub(crate) log_as_json: bool,
}

/// Subcommands.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Run beside a proxy, until it ends or SIGTERM.
    Proxy(ProxyArgs),
    /// Wait until the proxy is ready, as a container's start hook does.
    Wait(WaitArgs),
    /// Send a request to Envoy's admin interface on this machine and print the answer.
    Request(RequestArgs),
    /// Print the version.
    Version,
}

/// What kind of proxy it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Role {
    /// Beside one workload.
    Sidecar,
    /// A gateway.
    Router,
    /// A waypoint of ambient mode.
    Waypoint,
}

impl Role {
    /// As in a node id.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Router => "router",
            Self::Waypoint => "waypoint",
        }
    }
}

/// Flags of `proxy`, named as `pilot-agent`'s.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProxyArgs {
    /// What kind of proxy it is.
    #[arg(value_enum, default_value = "sidecar")]
    pub(crate) role: Role,
    /// DNS suffix of the proxy; `$POD_NAMESPACE.svc.cluster.local` if not given.
    #[arg(long, value_name = "SUFFIX", default_value = "")]
    pub(crate) domain: String,
    /// File with the mesh config, whose `defaultConfig` counts below PROXY_CONFIG and the pod's annotation.
    #[arg(long = "meshConfig", value_name = "FILE", default_value = "./etc/istio/config/mesh")]
    pub(crate) mesh_config: PathBuf,
    /// Name of the proxy's service for tracing, if the ProxyConfig names none.
    #[arg(long = "serviceCluster", value_name = "NAME", default_value = "istio-proxy")]
    pub(crate) service_cluster: String,
    /// Envoy's log level: trace, debug, info, warning, error, critical or off; `COMPONENT:LEVEL` may follow, with commas.
    #[arg(long = "proxyLogLevel", value_name = "LEVELS", default_value = "warning,misc:error")]
    pub(crate) proxy_log_level: String,
    /// Envoy's log level by component, if --proxyLogLevel names none.
    #[arg(long = "proxyComponentLogLevel", value_name = "LEVELS", default_value = "")]
    pub(crate) proxy_component_log_level: String,
    /// Worker threads of Envoy; 0 leaves it to the ProxyConfig, then to ISTIO_CPU_LIMIT, then to Envoy (one a CPU).
    #[arg(long, value_name = "THREADS", default_value_t = 0)]
    pub(crate) concurrency: u32,
    /// File that Envoy writes an event to for each host it ejects.
    #[arg(long = "outlierLogPath", value_name = "FILE", default_value = "")]
    pub(crate) outlier_log_path: String,
}

/// Flags of `wait`.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    /// Most seconds to wait.
    #[arg(long = "timeoutSeconds", value_name = "SECONDS", default_value_t = 60)]
    pub(crate) timeout_seconds: u64,
    /// Milliseconds to wait for an answer.
    #[arg(long = "requestTimeoutMillis", value_name = "MILLISECONDS", default_value_t = 500)]
    pub(crate) request_timeout_millis: u64,
    /// Milliseconds between attempts.
    #[arg(long = "periodMillis", value_name = "MILLISECONDS", default_value_t = 500)]
    pub(crate) period_millis: u64,
    /// What to ask; plain HTTP only.
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
    /// Where the admin interface listens.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15000")]
    pub(crate) admin: SocketAddr,
}

impl CommandLine {
    /// Parses, leaving out flags nobody knows, whose names are returned: `pilot-agent` has some that mean nothing here.
    ///
    /// # Errors
    /// A known flag is wrong, or help or the version is asked for.
    pub(crate) fn parse_lenient(
        arguments: impl IntoIterator<Item = String>,
    ) -> Result<(Self, Vec<String>), clap::Error> {
        let command = Self::command().mut_subcommand("proxy", |proxy| proxy.after_help(variables_help()));
        let is_known = |name: &str| {
            let commands = std::iter::once(&command).chain(command.get_subcommands());
            matches!(name, "help" | "version")
                || commands.flat_map(clap::Command::get_arguments).any(|a| a.get_long() == Some(name))
        };
        let (mut kept, mut unknown) = (Vec::new(), Vec::new());
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let name = argument.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag));
            match name {
                Some(name) if !name.is_empty() && !is_known(name) => {
                    // As in cobra: what follows an unknown flag is its value unless it is a flag itself.
                    if !argument.contains('=') {
                        arguments.next_if(|next| !next.starts_with('-'));
                    }
                    unknown.push(format!("--{name}"));
                }
                _ => kept.push(argument),
            }
        }
        let matches = command.try_get_matches_from(kept)?;
        Ok((<Self as clap::FromArgMatches>::from_arg_matches(&matches)?, unknown))
    }
}

/// What `proxy --help` ends with.
fn variables_help() -> String {
    let mut text = "Environment (durations are written as in Go: 10s, 1h30m, 250ms):\n".to_owned();
    for (name, meaning) in VARIABLES {
        text.push_str(&format!("  {name}\n          {meaning}\n"));
    }
    text.push_str(
        "\nExit codes: 0 ended on request, 1 failed, 2 wrong flags; otherwise the code Envoy ended with.\nFlags of \
         pilot-agent that mean nothing here are accepted with a warning.",
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
    fn flags_of_an_injected_sidecar_are_taken() {
        let line = "sluice-agent proxy sidecar --domain a.svc.cluster.local --proxyLogLevel=warning \
                    --proxyComponentLogLevel=misc:error --log_output_level=default:info --stsPort 15463 --log_as_json";
        let (line, unknown) = parse(line).expect("a command line");
        let Command::Proxy(proxy) = line.command else { panic!("not proxy: {line:?}") };
        assert_eq!(proxy.role, Role::Sidecar);
        assert_eq!(proxy.domain, "a.svc.cluster.local");
        assert_eq!(proxy.proxy_component_log_level, "misc:error");
        assert!(line.log_as_json);
        assert_eq!(unknown, ["--stsPort"]);
    }

    #[test]
    fn another_role_is_refused() {
        assert!(parse("sluice-agent proxy ztunnel").is_err());
        let (line, _) = parse("sluice-agent proxy router").expect("a command line");
        assert!(matches!(line.command, Command::Proxy(ProxyArgs { role: Role::Router, .. })));
    }

    #[test]
    fn help_names_every_variable_with_its_meaning() {
        let help = parse("sluice-agent proxy --help").expect_err("help").to_string();
        for (name, meaning) in VARIABLES {
            assert!(help.contains(name), "{name} is missing");
            assert!(!meaning.is_empty());
        }
    }
}
