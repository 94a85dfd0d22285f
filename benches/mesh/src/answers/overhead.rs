//! The cost of changes while a server is watched, and while it is not.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sluice_testkit::server::request;

use super::trace_sink::TraceSink;
use crate::arguments::AnswersArguments;
use crate::change::ChangeKind;
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::process::Memory;
use crate::result::ChangeResult;

/// Interval at which a watched server is asked for the overview of its console.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Share of changes that a watched server traces.
const TRACED_SHARE: &str = "0.01";

/// The changes of a server.
pub(super) struct Measured {
    changes: Vec<ChangeResult>,
    /// CPU time of the server while nothing changes, in seconds of each second.
    cpu_share: f64,
    pub(super) memory: Memory,
}

/// A change of an idle and of a watched server. Times are medians.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OverheadRow {
    what: String,
    idle_last_ms: Option<f64>,
    watched_last_ms: Option<f64>,
    idle_cpu_seconds: Option<f64>,
    watched_cpu_seconds: Option<f64>,
}

/// Measures nothing for a while, then the changes.
pub(super) async fn measure(mesh: &MeasuredMesh, arguments: &AnswersArguments) -> Result<Measured> {
    let process = mesh.server.process.as_ref().context("the server's process is known")?;
    let before = process.cpu()?;
    tokio::time::sleep(arguments.idle).await;
    let cpu_share = (process.cpu()? - before) / arguments.idle.as_secs_f64().max(0.001);
    let changes = mesh.every_change(&kinds(arguments)).await?;
    Ok(Measured { changes, cpu_share, memory: process.memory()? })
}

/// The same, of a new server that is watched.
pub(super) async fn measure_watched(setup: &Setup, arguments: &AnswersArguments) -> Result<Measured> {
    let sink = TraceSink::start().await?;
    let variables = [
        ("OTEL_TRACES_EXPORTER", "otlp".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", sink.address)),
        ("OTEL_TRACES_SAMPLER", "traceidratio".to_owned()),
        ("OTEL_TRACES_SAMPLER_ARG", TRACED_SHARE.to_owned()),
    ];
    let environment = variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let mut mesh = MeasuredMesh::open(&Setup { environment, ..setup.clone() }, &arguments.measure).await?;
    let address = mesh.server.http()?;
    let measured = tokio::select! {
        measured = measure(&mesh, arguments) => measured?,
        polled = poll(address) => {
            polled?;
            anyhow::bail!("the console is no longer polled")
        }
    };
    eprintln!("{} requests with traces", sink.received());
    mesh.fleet.disconnect().await;
    Ok(measured)
}

/// Asks for the overview of the console until that fails.
async fn poll(address: SocketAddr) -> Result<()> {
    let mut interval = tokio::time::interval(POLL_INTERVAL);
    loop {
        interval.tick().await;
        let page = request(address, "GET", "/console", &[], "").await?;
        ensure!(page.status == 200, "/console: {}", page.status);
    }
}

/// The requested kinds, or those of shape M1 in docs/benchmarks.md.
fn kinds(arguments: &AnswersArguments) -> Vec<ChangeKind> {
    if !arguments.changes.is_empty() {
        return arguments.changes.clone();
    }
    use ChangeKind::{
        AuthorizationPolicy, DestinationRule, EndpointAddress, ServiceAdd, ServiceRemove, VirtualService,
    };
    vec![EndpointAddress, DestinationRule, VirtualService, ServiceAdd, ServiceRemove, AuthorizationPolicy]
}

/// Both measurements side by side.
pub(super) fn rows(idle: &Measured, watched: &Measured) -> Vec<OverheadRow> {
    let of_changes = idle.changes.iter().zip(&watched.changes).map(|(idle, watched)| OverheadRow {
        what: idle.kind.name(),
        idle_last_ms: idle.median(|round| round.last_ms),
        watched_last_ms: watched.median(|round| round.last_ms),
        idle_cpu_seconds: idle.median(|round| round.server_cpu_seconds),
        watched_cpu_seconds: watched.median(|round| round.server_cpu_seconds),
    });
    let nothing = OverheadRow {
        what: "no change, CPU s in a second".to_owned(),
        idle_last_ms: None,
        watched_last_ms: None,
        idle_cpu_seconds: Some(idle.cpu_share),
        watched_cpu_seconds: Some(watched.cpu_share),
    };
    std::iter::once(nothing).chain(of_changes).collect()
}

pub(super) fn table(rows: &[OverheadRow]) -> String {
    let mut text =
        "\n| change | idle: last proxy ms | watched | idle: server CPU s | watched |\n|---|---|---|---|---|\n"
            .to_owned();
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    for row in rows {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.what,
            figure(row.idle_last_ms),
            figure(row.watched_last_ms),
            figure(row.idle_cpu_seconds),
            figure(row.watched_cpu_seconds),
        );
    }
    text
}
