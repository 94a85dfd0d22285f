//! The `waypoint` subcommand: waypoints, which are Gateways of the Gateway API (I12). Lines and columns are those of istioctl.

pub(crate) mod args;
mod changes;
mod cluster;
mod tables;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::answer_output::{fail, print, text};
use crate::columns::print_columns;
use crate::connect::QueryError;
use args::{ApplyArgs, DeleteArgs, GenerateArgs, ListArgs, NamespaceFlags, StatusArgs, WaypointCommand};
use changes::{check_name, gateway};
use cluster::WaypointCluster;
use tables::{is_programmed, list_table, status_table};

const EXIT_FAILED: u8 = 1;
const GAP: usize = 5;
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const DEFAULT_NAMESPACE: &str = "default";

/// Why a subcommand fails.
enum Failure {
    Io(io::Error),
    Query(QueryError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        Self::Query(error)
    }
}

type Done = Result<(), Failure>;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(command: &WaypointCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        match command {
            WaypointCommand::List(args) => list(args, out).await,
            WaypointCommand::Status(args) => status(args, out).await,
            WaypointCommand::Generate(args) => generate(args, out),
            WaypointCommand::Apply(args) => apply(args, out).await,
            WaypointCommand::Delete(args) => delete(args, out).await,
        }
    });
    match done {
        Ok(()) => Ok(0),
        Err(Failure::Io(error)) => Err(error),
        Err(Failure::Query(error)) => fail(&error, EXIT_FAILED, errors),
    }
}

/// The namespace, or the default one.
fn or_default(namespace: &str) -> &str {
    if namespace.is_empty() { DEFAULT_NAMESPACE } else { namespace }
}

/// The namespace whose waypoints are read; empty for all.
fn of(flags: &NamespaceFlags) -> &str {
    if flags.all_namespaces { "" } else { or_default(&flags.namespace) }
}

async fn list(args: &ListArgs, out: &mut dyn Write) -> Done {
    let cluster = WaypointCluster::connect(&args.cluster).await?;
    let waypoints = cluster.waypoints(of(&args.namespaces), None).await?;
    print_found(args.output, &waypoints.into(), out, |waypoints, out| {
        print_columns(&list_table(waypoints, args.namespaces.all_namespaces), GAP, out)
    })
}

fn print_found(
    output: crate::answer_output::AnswerOutput,
    waypoints: &Value,
    out: &mut dyn Write,
    table: impl FnOnce(&Value, &mut dyn Write) -> io::Result<()>,
) -> Done {
    let lines = |waypoints: &Value, out: &mut dyn Write| match waypoints.as_array().is_some_and(Vec::is_empty) {
        true => writeln!(out, "No waypoints found."),
        false => table(waypoints, out),
    };
    Ok(print(output, waypoints, out, lines)?)
}

async fn status(args: &StatusArgs, out: &mut dyn Write) -> Done {
    let cluster = WaypointCluster::connect(&args.cluster).await?;
    let begin = Instant::now();
    let (waypoints, missing) = loop {
        let waypoints = cluster.waypoints(of(&args.namespaces), None).await?;
        let missing = waypoints.iter().find(|waypoint| !is_programmed(waypoint)).map(name_of);
        if missing.is_none() || !args.wait || begin.elapsed() > args.waypoint_timeout {
            break (waypoints, missing);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    print_found(args.output, &waypoints.into(), out, |waypoints, out| {
        print_columns(&status_table(waypoints, args.namespaces.all_namespaces), GAP, out)
    })?;
    match missing.filter(|_| args.wait) {
        Some(name) => {
            Err(QueryError::NotFound(format!("timed out while retrieving status for waypoint\t{name}")).into())
        }
        None => Ok(()),
    }
}

fn generate(args: &GenerateArgs, out: &mut dyn Write) -> Done {
    check_name(&args.waypoint.name)?;
    let object = gateway(&args.waypoint, &args.namespace);
    serde_yaml_ng::to_writer(out, &object).map_err(io::Error::other)?;
    Ok(())
}

async fn apply(args: &ApplyArgs, out: &mut dyn Write) -> Done {
    check_name(&args.waypoint.name)?;
    let namespace = or_default(&args.namespace);
    let cluster = WaypointCluster::connect(&args.cluster).await?;
    if args.enroll_namespace {
        let labels = cluster.namespace_labels(namespace).await?;
        if !args.overwrite && !text(&labels, cluster::USE_WAYPOINT).is_empty() {
            let warning =
                "already has an enrolled Waypoint. Consider adding the `--overwrite` flag to your apply command.";
            writeln!(out, "⚠️ Warning: namespace ({namespace}) {warning}")?;
            return Ok(());
        }
        if text(&labels, "istio.io/dataplane-mode") != "ambient" {
            let command = format!("kubectl label namespace {namespace} istio.io/dataplane-mode=ambient");
            writeln!(out, "⚠️ Warning: namespace is not enrolled in ambient. Consider running\t`{command}`")?;
        }
    }
    let object = gateway(&args.waypoint, namespace);
    cluster.apply(namespace, &args.waypoint.name, &object).await?;
    let name = format!("{namespace}/{}", args.waypoint.name);
    writeln!(out, "✅ waypoint {name} applied")?;
    if args.wait {
        let begin = Instant::now();
        while !cluster.waypoint(namespace, &args.waypoint.name).await?.is_some_and(|it| is_programmed(&it)) {
            if begin.elapsed() > args.waypoint_timeout {
                return Err(QueryError::NotFound(format!("timed out while waiting for waypoint\t{name}")).into());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        writeln!(out, "✅ waypoint {name} is ready!")?;
    }
    if args.enroll_namespace {
        cluster.enroll(namespace, &args.waypoint.name).await?;
        let label = cluster::USE_WAYPOINT;
        writeln!(out, "✅ namespace {namespace} labeled with \"{label}: {}\"", args.waypoint.name)?;
    }
    Ok(())
}

async fn delete(args: &DeleteArgs, out: &mut dyn Write) -> Done {
    let namespace = or_default(&args.namespace);
    let cluster = WaypointCluster::connect(&args.cluster).await?;
    let known = cluster.waypoints(namespace, args.revision.as_deref()).await?;
    let known: Vec<String> = known.iter().map(|waypoint| text(&waypoint["metadata"], "name").to_owned()).collect();
    let names = if args.names.is_empty() { &known } else { &args.names };
    let mut missing = None;
    for name in names {
        if known.contains(name) && cluster.delete(namespace, name).await? {
            writeln!(out, "waypoint {namespace}/{name} deleted")?;
        } else {
            writeln!(out, "waypoint {namespace}/{name} not found")?;
            missing = missing.or(Some(name));
        }
    }
    match missing {
        None => Ok(()),
        Some(name) => {
            let similar = crate::similar_name::similar(name, known.iter().map(String::as_str));
            let hint = similar.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
            Err(QueryError::NotFound(format!("namespace {namespace:?} has no waypoint {name:?}{hint}")).into())
        }
    }
}

fn name_of(waypoint: &Value) -> String {
    format!("{}/{}", text(&waypoint["metadata"], "namespace"), text(&waypoint["metadata"], "name"))
}
