//! What it costs that a server keeps what answers need, and that it is watched: three servers of one build, with each change applied to
//! one after the other. One keeps no history, the next is asked nothing, and the last is watched.

mod trace_sink;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use sluice_testkit::server::request;

use crate::arguments::{MeasureOptions, OverheadArguments};
use crate::change::ChangeKind;
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::process::Memory;
use crate::report::mebibytes;
use crate::result::{ChangeResult, Machine};
use crate::shape::Shape;
use crate::versus;
use trace_sink::TraceSink;

/// Interval at which a watched server is asked for its pages.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Pages that are asked for, each with a text that it contains.
const POLLED_PAGES: [(&str, &str); 3] =
    [("/console", "<html"), ("/debug/collections", "\"name\""), ("/debug/epochs", "\"epoch\"")];
/// Share of changes that a watched server traces.
const TRACED_SHARE: &str = "0.01";
/// An argument of the server without history.
const NO_HISTORY: &str = "--historyBytes=0";
/// Number of servers.
const SERVERS: usize = 3;

/// A figure of each server: without history, idle, watched.
type OfServers = [Option<f64>; SERVERS];

/// A change of each server.
#[derive(Clone, Debug, Serialize)]
struct OverheadRow {
    what: String,
    /// Median of the milliseconds until the last proxy holds the change.
    last_ms: OfServers,
    /// CPU time of the server: the median of the rounds, or of all changes the sum.
    cpu_seconds: OfServers,
}

/// The result of the command.
#[derive(Clone, Debug, Serialize)]
struct OverheadResult {
    machine: Machine,
    commit: String,
    date: String,
    shape: Shape,
    proxies: usize,
    rows: Vec<OverheadRow>,
    memory: [Option<Memory>; SERVERS],
    /// CPU time of all changes: idle to without history, watched to idle.
    ratios: [Option<f64>; 2],
}

/// Measures the servers. Returns whether both ratios are within their limits.
pub(crate) async fn run(arguments: &OverheadArguments) -> Result<bool> {
    let sink = TraceSink::start().await?;
    let setup = Setup::started(arguments.shape.shape()?, arguments.proxies, &arguments.sluiced);
    let watched_setup = Setup { environment: trace_environment(&sink), ..setup.clone() };
    let mut without_history: MeasureOptions = arguments.measure.clone();
    without_history.server_arguments.push(NO_HISTORY.to_owned());
    let mut meshes = [
        MeasuredMesh::open(&setup, &without_history).await?,
        MeasuredMesh::open(&setup, &arguments.measure).await?,
        MeasuredMesh::open(&watched_setup, &arguments.measure).await?,
    ];
    let rows = tokio::select! {
        rows = measure(&meshes, arguments) => rows?,
        polled = poll(meshes[SERVERS - 1].server.http()?) => {
            polled?;
            bail!("the watched server is no longer polled")
        }
    };
    eprintln!("{} requests with traces", sink.received());
    let measured = meshes[0].result(Vec::new(), Vec::new())?;
    let mut memory = [None; SERVERS];
    for (mesh, memory) in meshes.iter_mut().zip(&mut memory) {
        *memory = mesh.server.process.as_ref().and_then(|process| process.memory().ok());
        mesh.fleet.disconnect().await;
    }
    let [without, idle, watched] = rows.last().map(|row| row.cpu_seconds).unwrap_or_default();
    let result = OverheadResult {
        machine: measured.machine,
        commit: measured.commit,
        date: measured.date,
        shape: measured.shape,
        proxies: measured.proxies,
        rows,
        memory,
        ratios: [ratio(idle, without), ratio(watched, idle)],
    };
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&result)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    println!("{}", table(&result));
    let limits = [arguments.idle_limit, arguments.watched_limit];
    Ok(result.ratios.iter().zip(limits).all(|(ratio, limit)| ratio.is_none_or(|ratio| ratio <= limit)))
}

/// The variables of a server that traces changes.
fn trace_environment(sink: &TraceSink) -> Vec<(String, OsString)> {
    let variables = [
        ("OTEL_TRACES_EXPORTER", "otlp".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", sink.address)),
        ("OTEL_TRACES_SAMPLER", "traceidratio".to_owned()),
        ("OTEL_TRACES_SAMPLER_ARG", TRACED_SHARE.to_owned()),
    ];
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// Measures nothing for a while, then the changes. The last row is of all changes.
async fn measure(meshes: &[MeasuredMesh; SERVERS], arguments: &OverheadArguments) -> Result<Vec<OverheadRow>> {
    let cpu = || -> Result<OfServers> {
        let mut seconds = OfServers::default();
        for (mesh, seconds) in meshes.iter().zip(&mut seconds) {
            *seconds = mesh.server.process.as_ref().map(|process| process.cpu()).transpose()?;
        }
        Ok(seconds)
    };
    let before = cpu()?;
    tokio::time::sleep(arguments.idle).await;
    let (after, duration) = (cpu()?, arguments.idle.as_secs_f64().max(0.001));
    let share = |at: usize| Some((after[at]? - before[at]?) / duration);
    let mut rows = vec![OverheadRow {
        what: "no change, in a second".to_owned(),
        last_ms: OfServers::default(),
        cpu_seconds: [0, 1, 2].map(share),
    }];
    let mut totals = [0.0; SERVERS];
    for kind in meshes[0].kinds(&kinds(arguments))? {
        let results = versus::changes(&meshes.iter().collect::<Vec<_>>(), kind, arguments.measure.repeat).await?;
        let of = |value: &dyn Fn(&ChangeResult) -> Option<f64>| -> OfServers {
            [0, 1, 2].map(|at| results.get(at).and_then(value))
        };
        let sum = |result: &ChangeResult| {
            result.rounds.iter().map(|round| round.server_cpu_seconds.unwrap_or_default()).sum::<f64>()
        };
        totals.iter_mut().zip(&results).for_each(|(total, result)| *total += sum(result));
        rows.push(OverheadRow {
            what: kind.name(),
            last_ms: of(&|result| result.median(|round| round.last_ms)),
            cpu_seconds: of(&|result| result.median(|round| round.server_cpu_seconds)),
        });
    }
    let what = "all changes".to_owned();
    rows.push(OverheadRow { what, last_ms: OfServers::default(), cpu_seconds: totals.map(Some) });
    Ok(rows)
}

/// Asks for the pages until that fails.
async fn poll(address: SocketAddr) -> Result<()> {
    let mut interval = tokio::time::interval(POLL_INTERVAL);
    loop {
        interval.tick().await;
        for (path, expected) in POLLED_PAGES {
            let page = request(address, "GET", path, &[], "").await?;
            ensure!(page.status == 200 && page.body.contains(expected), "{path}: {} {}", page.status, page.body);
        }
    }
}

/// The requested kinds, or those of shape M1 in docs/benchmarks.md.
fn kinds(arguments: &OverheadArguments) -> Vec<ChangeKind> {
    if !arguments.changes.is_empty() {
        return arguments.changes.clone();
    }
    use ChangeKind::{
        AuthorizationPolicy, DestinationRule, EndpointAddress, ServiceAdd, ServiceRemove, VirtualService,
    };
    vec![EndpointAddress, DestinationRule, VirtualService, ServiceAdd, ServiceRemove, AuthorizationPolicy]
}

/// A ratio, if both figures are known and there is something to compare with.
fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    let (of, to) = of.zip(to)?;
    (to > 0.0).then(|| of / to)
}

fn table(result: &OverheadResult) -> String {
    let mut text = format!(
        "{}, {} proxies, {}\n\n\
         | change | CPU s: without history | idle | watched | idle : without | watched : idle \
         | last proxy ms: without history | idle | watched |\n|---|---|---|---|---|---|---|---|---|\n",
        result.shape, result.proxies, result.commit
    );
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    for OverheadRow { what, last_ms, cpu_seconds } in &result.rows {
        let [without, idle, watched] = *cpu_seconds;
        let ratios = [ratio(idle, without), ratio(watched, idle)];
        let figures: Vec<String> =
            cpu_seconds.iter().chain(&ratios).chain(last_ms).map(|value| figure(*value)).collect();
        // Writing to a String does not fail.
        let _ = writeln!(text, "| {what} | {} |", figures.join(" | "));
    }
    let [without, idle, watched] =
        result.memory.map(|memory| figure(memory.map(|memory| mebibytes(memory.resident_kib))));
    let _ = writeln!(
        text,
        "\nMemory after the changes: {without} MiB without history, {idle} MiB idle, {watched} MiB watched."
    );
    text
}
