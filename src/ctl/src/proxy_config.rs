//! The `proxy-config` subcommand: the configuration of a proxy, from Envoy, from the control plane, or from a file.

pub(crate) mod args;
mod clusters;
pub(crate) mod dump;
mod endpoints;
mod envoy_stats;
mod listeners;
mod roots;
mod routes;
mod secrets;
#[cfg(test)]
mod tests;

use std::io::{self, Read as _, Write};
use std::path::Path;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::answer_output::{AnswerOutput, fail, print, text};
use crate::columns::{print_columns, table};
use crate::connect::kubernetes::ProxyName;
use crate::connect::{PodEndpoint, QueryError, connect, connect_to_proxy};
use crate::similar_proxy::with_similar_proxy;
use args::{DumpSource, Filter, LogArgs, ProxyConfigCommand, SourceArgs};
use dump::ConfigDump;

const EXIT_NOT_FOUND: u8 = 1;
/// Spaces between columns. Listeners have long cells.
const GAP: usize = 5;
const LISTENER_GAP: usize = 1;

/// A kind of configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Cluster,
    Listener { verbose: bool },
    Route { verbose: bool },
    Eds,
    Bootstrap,
    Secret,
    Ecds,
}

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(command: &ProxyConfigCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let none = Filter::default();
    match command {
        ProxyConfigCommand::Cluster(args) => {
            let filter = Filter {
                fqdn: args.fqdn.clone(),
                port: args.port,
                direction: args.direction,
                subset: args.subset.clone(),
                ..none
            };
            let plain = &args.plain;
            shown(&plain.source, |dump| show(dump, Kind::Cluster, &filter, plain.output, out), errors)
        }
        ProxyConfigCommand::Listener(args) => {
            let filter = Filter { address: args.address.clone(), port: args.port, kind: args.kind.clone(), ..none };
            let kind = Kind::Listener { verbose: args.verbose };
            shown(&args.plain.source, |dump| show(dump, kind, &filter, args.plain.output, out), errors)
        }
        ProxyConfigCommand::Route(args) => {
            let filter = Filter { name: args.name.clone(), ..none };
            let kind = Kind::Route { verbose: args.verbose };
            shown(&args.plain.source, |dump| show(dump, kind, &filter, args.plain.output, out), errors)
        }
        ProxyConfigCommand::Endpoint(args) | ProxyConfigCommand::Eds(args) => {
            let filter = Filter {
                address: args.address.clone(),
                port: args.port,
                cluster: args.cluster.clone(),
                status: args.status.clone(),
                ..none
            };
            let plain = &args.plain;
            let has_health = matches!(command, ProxyConfigCommand::Endpoint(_))
                && plain.source.file.is_none()
                && plain.source.from == DumpSource::Envoy;
            if has_health {
                return health(&plain.source, &filter, plain.output, out, errors);
            }
            shown(&plain.source, |dump| show(dump, Kind::Eds, &filter, plain.output, out), errors)
        }
        ProxyConfigCommand::Bootstrap(args) => {
            shown(&args.source, |dump| show(dump, Kind::Bootstrap, &none, args.output, out), errors)
        }
        ProxyConfigCommand::Secret(args) => {
            shown(&args.source, |dump| show(dump, Kind::Secret, &none, args.output, out), errors)
        }
        ProxyConfigCommand::Ecds(args) => {
            shown(&args.source, |dump| show(dump, Kind::Ecds, &none, args.output, out), errors)
        }
        ProxyConfigCommand::All(args) => shown(&args.source, |dump| all(dump, args.output, out), errors),
        ProxyConfigCommand::Log(args) => log(args, out, errors),
        ProxyConfigCommand::EnvoyStats(args) => envoy_stats::run(args, out, errors),
        ProxyConfigCommand::RootcaCompare(args) => roots::run(args, out, errors),
    }
}

/// Reads a dump and prints it.
fn shown(
    source: &SourceArgs,
    print: impl FnOnce(&ConfigDump) -> io::Result<()>,
    errors: &mut dyn Write,
) -> io::Result<u8> {
    match read(source) {
        Ok(dump) => print(&dump).map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// The dump that the flags name.
pub(crate) fn read(source: &SourceArgs) -> Result<ConfigDump, QueryError> {
    let proxy = source.proxy.as_deref().unwrap_or_default();
    match (&source.file, source.from) {
        (Some(path), _) => {
            let failed = |error: String| QueryError::Flags(format!("--file {}: {error}", path.display()));
            let text = read_file(path).map_err(|error| failed(error.to_string()))?;
            ConfigDump::parse(&text).map_err(failed)
        }
        (None, DumpSource::ControlPlane) => {
            let id = ProxyName::parse(proxy, &source.namespace)?.id();
            let server = connect(&source.control_plane())?;
            let text = server.bytes("/debug/config_dump", &[("proxyID", &id), ("include_eds", "true")]);
            text.and_then(of_control_plane).map_err(|error| with_similar_proxy(error, &server, &id))
        }
        (None, DumpSource::Envoy) => {
            let envoy = connect_to_proxy(&source.cluster, proxy, &source.namespace, source.proxy_admin_port)?;
            of_envoy(&envoy, &[("include_eds", "true")])
        }
    }
}

/// The dump of an Envoy.
pub(crate) fn of_envoy(envoy: &PodEndpoint, parameters: &[(&str, &str)]) -> Result<ConfigDump, QueryError> {
    let text = envoy.request(Method::GET, "/config_dump", parameters, String::new())?;
    ConfigDump::parse(&text).map_err(|error| QueryError::Response(format!("{}: {error}", envoy.name())))
}

/// A dump of the control plane, which answers with a text where it has none.
pub(crate) fn of_control_plane(text: Vec<u8>) -> Result<ConfigDump, QueryError> {
    ConfigDump::parse(&text).map_err(|error| match serde_json::from_slice::<Value>(&text) {
        Ok(_) => QueryError::Response(format!("the dump of the control plane {error}")),
        Err(_) => QueryError::NotFound(String::from_utf8_lossy(&text).trim().to_owned()),
    })
}

/// The content of a file, or of standard input.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut text = Vec::new();
        return io::stdin().read_to_end(&mut text).map(|_| text);
    }
    std::fs::read(path)
}

/// Prints one kind.
fn show(dump: &ConfigDump, kind: Kind, filter: &Filter, output: AnswerOutput, out: &mut dyn Write) -> io::Result<()> {
    if output != AnswerOutput::Table {
        return print(output, &selected(dump, kind, filter), out, |_, _| Ok(()));
    }
    table_of(dump, kind, filter, Names::Plain, out)
}

/// The resources of a kind, as JSON.
fn selected(dump: &ConfigDump, kind: Kind, filter: &Filter) -> Value {
    let all = |resources: Vec<&Value>| resources.into_iter().cloned().collect::<Value>();
    let section = |name: &str| dump.section(name).cloned().unwrap_or_else(|| json!({}));
    match kind {
        Kind::Cluster => all(clusters::select(dump.clusters(), filter)),
        Kind::Listener { .. } => all(listeners::select(dump.listeners(), filter)),
        Kind::Route { .. } => all(routes::select(dump.routes(), filter)),
        Kind::Eds => endpoints::select(&dump.load_assignments(), filter).into(),
        Kind::Bootstrap => section("BootstrapConfigDump"),
        Kind::Secret => section("SecretsConfigDump"),
        Kind::Ecds => section("EcdsConfigDump"),
    }
}

/// Whether names have the kind before them, as in the tables of `all`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Names {
    Plain,
    WithKind,
}

impl Names {
    fn of(self, kind: &str, name: &str) -> String {
        match self {
            Self::Plain => name.to_owned(),
            Self::WithKind => format!("{kind}/{name}"),
        }
    }
}

fn table_of(dump: &ConfigDump, kind: Kind, filter: &Filter, names: Names, out: &mut dyn Write) -> io::Result<()> {
    // In the tables of `all`, a first column has the name of the resource.
    let with_name = |titles: &[&'static str]| match names {
        Names::Plain => titles.to_vec(),
        Names::WithKind => [&["NAME"], titles].concat(),
    };
    let named = |kind: &str, resource: &Value, row: Vec<String>| match names {
        Names::Plain => row,
        Names::WithKind => std::iter::once(names.of(kind, text(resource, "name"))).chain(row).collect(),
    };
    match kind {
        Kind::Cluster => {
            let clusters = clusters::select(dump.clusters(), filter);
            let rows = clusters.into_iter().map(|cluster| named("cluster", cluster, clusters::row(cluster)));
            print_columns(&table(&with_name(&clusters::TITLES), rows), GAP, out)
        }
        Kind::Listener { verbose } => {
            let listeners = listeners::select(dump.listeners(), filter);
            let titles = if verbose { &listeners::TITLES[..] } else { &listeners::SHORT_TITLES };
            let rows = listeners.into_iter().flat_map(|listener| {
                let rows = if verbose { listeners::rows(listener) } else { vec![listeners::short_row(listener)] };
                rows.into_iter().map(|row| named("listener", listener, row)).collect::<Vec<_>>()
            });
            print_columns(&table(&with_name(titles), rows), LISTENER_GAP, out)
        }
        Kind::Route { verbose } => {
            let titles = if verbose { &routes::TITLES[..] } else { &routes::SHORT_TITLES };
            let rows = routes::select(dump.routes(), filter).into_iter().flat_map(|route| {
                let name = names.of("route", text(route, "name"));
                if verbose { routes::rows(route, &name) } else { vec![routes::short_row(route, &name)] }
            });
            print_columns(&table(titles, rows), GAP, out)
        }
        Kind::Eds => {
            let prefix = names.of("endpoint", "");
            let assignments = endpoints::select(&dump.load_assignments(), filter);
            let rows = assignments.iter().flat_map(|assignment| endpoints::locality_rows(assignment, &prefix));
            print_columns(&table(&endpoints::LOCALITY_TITLES, rows), GAP, out)
        }
        Kind::Bootstrap => versions(dump, out),
        Kind::Secret => {
            if dump.secrets().is_empty() {
                return writeln!(out, "No active or warming secrets found.");
            }
            let rows = secrets::rows(dump, &names.of("secret", ""), Timestamp::now());
            print_columns(&table(&secrets::TITLES, rows), GAP, out)
        }
        Kind::Ecds => {
            let mut rows: Vec<Vec<String>> = dump.extensions().into_iter().map(extension).collect();
            rows.sort_by(|a, b| (&a[1], &a[0]).cmp(&(&b[1], &b[0])));
            print_columns(&table(&["ECDS NAME", "TYPE"], rows), GAP, out)
        }
    }
}

fn extension(extension: &Value) -> Vec<String> {
    let type_url = text(&extension["typedConfig"], "@type");
    let name = type_url.strip_prefix("type.googleapis.com/").unwrap_or(type_url);
    vec![text(extension, "name").to_owned(), name.to_owned()]
}

/// The versions in the bootstrap.
fn versions(dump: &ConfigDump, out: &mut dyn Write) -> io::Result<()> {
    let node = dump.section("BootstrapConfigDump").map_or(&Value::Null, |section| &section["bootstrap"]["node"]);
    let of_proxy = |key: &str| text(&node["metadata"], key);
    let sha = of_proxy("ISTIO_PROXY_SHA");
    let sha = sha.split_once(':').map_or(sha, |(_, sha)| sha);
    for (title, value) in [("Istio Version", of_proxy("ISTIO_VERSION")), ("Istio Proxy Version", sha)] {
        if !value.is_empty() {
            writeln!(out, "{title}: {value}")?;
        }
    }
    let build = &node["userAgentBuildVersion"];
    let number = |part: &str| build["version"][part].as_u64().unwrap_or_default();
    let label = text(&build["metadata"], "build.label");
    let label = if label.is_empty() { String::new() } else { format!("-{label}") };
    let more = ["revision.status", "build.type", "ssl.version"].map(|key| text(&build["metadata"], key));
    let more: String = more.into_iter().filter(|it| !it.is_empty()).map(|it| format!("/{it}")).collect();
    writeln!(out, "Envoy Version: {}.{}.{}{label}{more}", number("majorNumber"), number("minorNumber"), number("patch"))
}

/// Prints all kinds.
fn all(dump: &ConfigDump, output: AnswerOutput, out: &mut dyn Write) -> io::Result<()> {
    if output != AnswerOutput::Table {
        return print(output, &json!({"configs": dump.sections}), out, |_, _| Ok(()));
    }
    let kinds = [
        Kind::Bootstrap,
        Kind::Cluster,
        Kind::Listener { verbose: true },
        Kind::Route { verbose: true },
        Kind::Secret,
        Kind::Eds,
    ];
    for (at, kind) in kinds.into_iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        table_of(dump, kind, &Filter::default(), Names::WithKind, out)?;
    }
    Ok(())
}

/// Prints endpoints with the health that Envoy found.
fn health(
    source: &SourceArgs,
    filter: &Filter,
    output: AnswerOutput,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> io::Result<u8> {
    let proxy = source.proxy.as_deref().unwrap_or_default();
    let asked =
        connect_to_proxy(&source.cluster, proxy, &source.namespace, source.proxy_admin_port).and_then(|envoy| {
            let text = envoy.request(Method::GET, "/clusters", &[("format", "json")], String::new())?;
            let answer = serde_json::from_slice::<Value>(&text);
            answer.map_err(|error| QueryError::Response(format!("{}: {error}", envoy.name())))
        });
    let clusters = match asked {
        Ok(clusters) => clusters,
        Err(error) => return fail(&error, EXIT_NOT_FOUND, errors),
    };
    if output != AnswerOutput::Table {
        return print(output, &endpoints::select_clusters(&clusters, filter), out, |_, _| Ok(())).map(|()| 0);
    }
    let rows = endpoints::health_rows(&clusters, filter);
    print_columns(&table(&endpoints::HEALTH_TITLES, rows), GAP, out).map(|()| 0)
}

/// Prints the log levels of Envoy, after changes.
fn log(args: &LogArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let changes = match log_changes(args) {
        Ok(changes) => changes,
        Err(error) => return fail(&error, EXIT_NOT_FOUND, errors),
    };
    let levels = args.envoy.connect().and_then(|envoy| {
        let mut levels = Vec::new();
        for (logger, level) in changes {
            levels = envoy.request(Method::POST, "/logging", &[(&logger, &level)], String::new())?;
        }
        Ok(levels)
    });
    match levels {
        Ok(levels) => out.write_all(&levels).map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// Parameters of the requests that change levels; one without a change if there is none.
fn log_changes(args: &LogArgs) -> Result<Vec<(String, String)>, QueryError> {
    const LEVELS: [&str; 7] = ["trace", "debug", "info", "warning", "error", "critical", "off"];
    if args.reset {
        return Ok(vec![("level".to_owned(), "warning".to_owned())]);
    }
    if args.level.is_empty() {
        return Ok(vec![(String::new(), String::new())]);
    }
    let change = |text: &String| {
        let (logger, level) = text.rsplit_once(':').unwrap_or(("level", text));
        let level = if level == "warn" { "warning" } else { level };
        match LEVELS.contains(&level) && !logger.is_empty() {
            true => Ok((logger.to_owned(), level.to_owned())),
            false => Err(QueryError::Flags(format!("--level {text:?}: a level is one of {}", LEVELS.join(", ")))),
        }
    };
    args.level.iter().map(change).collect()
}
