//! Questions to a running server about its own state.

mod questions;

use std::cell::Cell;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use sluice_testkit::server::request;

use crate::arguments::AnswersArguments;
use crate::change::ChangeKind;
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::process::Process;
use crate::result::Machine;
use crate::shape::{Role, Shape};
use crate::statistics::of;
use questions::{FollowedChange, Question};

/// A server is idle when it takes less than this CPU time in this time.
const IDLE_CPU_SECONDS: f64 = 0.02;
const IDLE_CHECK: Duration = Duration::from_millis(200);
const MAX_IDLE_WAIT: Duration = Duration::from_secs(10);
/// Longest time in which a change reaches the last proxy.
const MAX_ARRIVAL: Duration = Duration::from_mins(2);

/// The measurement of a question.
#[derive(Clone, Debug, Serialize)]
struct AnswerRow {
    question: String,
    /// From the request until the whole answer is read, in milliseconds.
    rounds_ms: Vec<f64>,
    p50_ms: f64,
    max_ms: f64,
    /// Of a wait: from the arrival of the change at the last proxy until the answer, in milliseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after_arrival_ms: Vec<f64>,
    /// Size of the last answer; 0 without a question.
    bytes: usize,
    /// CPU time of the server for each answer, the work of other requests and of proxies at the same time included.
    server_cpu_seconds: f64,
    /// Growth of the server's memory while it answered, at its peak; none if the system does not measure it.
    peak_growth_kib: Option<u64>,
}

/// The result of the command.
#[derive(Clone, Debug, Serialize)]
struct AnswersResult {
    machine: Machine,
    commit: String,
    date: String,
    shape: Shape,
    proxies: usize,
    answers: Vec<AnswerRow>,
}

/// Measures the answers of a server.
pub(crate) async fn run(arguments: &AnswersArguments) -> Result<()> {
    let setup = Setup::started(arguments.shape()?, arguments.proxies, &arguments.sluiced);
    let mut mesh = MeasuredMesh::open(&setup, &arguments.measure).await?;
    let answers = answers(&mesh, arguments.measure.repeat).await?;
    let measured = mesh.result(Vec::new(), Vec::new())?;
    mesh.fleet.disconnect().await;
    let result = AnswersResult {
        machine: measured.machine,
        commit: measured.commit,
        date: measured.date,
        shape: measured.shape,
        proxies: measured.proxies,
        answers,
    };
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&result)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    println!("{}", table(&result));
    Ok(())
}

async fn answers(mesh: &MeasuredMesh, repeat: usize) -> Result<Vec<AnswerRow>> {
    let process = mesh.server.process.as_ref().context("the server's process is known")?;
    let mut rows = Vec::new();
    for question in questions::all(&mesh.objects.shape) {
        let row = answer(mesh, process, &question, repeat).await?;
        eprintln!("{}: p50 {:.1} ms, max {:.1} ms", row.question, row.p50_ms, row.max_ms);
        rows.push(row);
    }
    // What the waits are compared with. An older object for the host would hide the changes.
    for file in [questions::ROUTE_FILE, questions::RULE_FILE] {
        mesh.objects.remove(file)?;
    }
    until_idle(process).await?;
    for (kind, name) in [
        (ChangeKind::VirtualService, "no question: a VirtualService changes, until all have it"),
        (ChangeKind::DestinationRule, "no question: a DestinationRule changes, until all have it"),
    ] {
        let row = change_without_question(mesh, process, (kind, name), repeat).await?;
        eprintln!("{}: p50 {:.1} ms, max {:.1} ms", row.question, row.p50_ms, row.max_ms);
        rows.push(row);
    }
    Ok(rows)
}

/// Makes a change several times that no question follows.
async fn change_without_question(
    mesh: &MeasuredMesh,
    process: &Process,
    (kind, name): (ChangeKind, &str),
    repeat: usize,
) -> Result<AnswerRow> {
    let measured = Measured::begin(process)?;
    let mut rounds_ms = Vec::new();
    for round in 0..repeat.max(1) {
        rounds_ms.push(mesh.brief_round(kind, round).await?.context("the change reaches a proxy")?);
        until_idle(process).await?;
    }
    measured.row(process, name, rounds_ms, 0)
}

/// What the server has used before a question.
struct Measured {
    has_peak: bool,
    cpu: f64,
    resident_kib: u64,
}

impl Measured {
    fn begin(process: &Process) -> Result<Self> {
        let has_peak = process.reset_peak();
        Ok(Self { has_peak, cpu: process.cpu()?, resident_kib: process.memory()?.resident_kib })
    }

    /// The row of a question, with what the server has used since.
    fn row(self, process: &Process, question: &str, rounds_ms: Vec<f64>, bytes: usize) -> Result<AnswerRow> {
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let server_cpu_seconds = (process.cpu()? - self.cpu) / rounds_ms.len() as f64;
        let peak = process.memory()?.peak_kib;
        Ok(AnswerRow {
            question: question.to_owned(),
            p50_ms: of(rounds_ms.iter().copied(), 0.5),
            max_ms: of(rounds_ms.iter().copied(), 1.0),
            rounds_ms,
            after_arrival_ms: Vec::new(),
            bytes,
            server_cpu_seconds,
            peak_growth_kib: self.has_peak.then(|| peak.saturating_sub(self.resident_kib)),
        })
    }
}

/// Waits until the server is idle: memory that an answer took is returned, and a previewed change is taken back.
async fn until_idle(process: &Process) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < MAX_IDLE_WAIT {
        let before = process.cpu()?;
        tokio::time::sleep(IDLE_CHECK).await;
        if process.cpu()? - before < IDLE_CPU_SECONDS {
            return Ok(());
        }
    }
    bail!("the server is not idle after {} s", MAX_IDLE_WAIT.as_secs())
}

/// Asks a question several times, one time after the other.
async fn answer(mesh: &MeasuredMesh, process: &Process, question: &Question, repeat: usize) -> Result<AnswerRow> {
    let measured = Measured::begin(process)?;
    let (mut rounds_ms, mut after_arrival_ms, mut bytes) = (Vec::new(), Vec::new(), 0);
    for round in 0..repeat.max(1) {
        let response = match &question.change {
            None => {
                let start = Instant::now();
                let response = ask(mesh, question, round).await?;
                rounds_ms.push(milliseconds(start.elapsed()));
                response
            }
            Some(change) => {
                let (response, total_ms, arrival_ms) = ask_about_change(mesh, question, change, round).await?;
                rounds_ms.push(total_ms);
                after_arrival_ms.push(total_ms - arrival_ms);
                response
            }
        };
        bytes = response.len();
        until_idle(process).await?;
    }
    Ok(AnswerRow { after_arrival_ms, ..measured.row(process, question.name, rounds_ms, bytes)? })
}

/// The answer to a question, which contains the expected text.
async fn ask(mesh: &MeasuredMesh, question: &Question, round: usize) -> Result<String> {
    let (method, body) = question.body.as_deref().map_or(("GET", ""), |body| ("POST", body));
    let response = request(mesh.server.http()?, method, &(question.path)(round), &[], body).await?;
    let is_expected = response.status == 200 && response.body.contains(question.expect);
    let shown = || response.body.chars().take(500).collect::<String>();
    ensure!(is_expected, "{}: {} {}", question.name, response.status, shown());
    Ok(response.body)
}

/// Makes a change and asks about it at once. Returns the answer, and the milliseconds from the change until the answer
/// and until the change reaches the last proxy.
async fn ask_about_change(
    mesh: &MeasuredMesh,
    question: &Question,
    change: &FollowedChange,
    round: usize,
) -> Result<(String, f64, f64)> {
    let written = Cell::new(Instant::now());
    let write = || {
        let at = (change.write)(&mesh.objects, round)?;
        written.set(at);
        Ok(at)
    };
    let is_sidecar = |role| matches!(role, Role::Sidecar(_));
    let limits = (MAX_ARRIVAL, Duration::ZERO);
    let answer = async {
        let response = ask(mesh, question, round).await?;
        Ok((response, Instant::now()))
    };
    // The first future writes the change before the second one asks.
    let (followed, (response, answered)) =
        tokio::try_join!(biased; mesh.fleet.follow(vec![(change.expected)(round)], is_sidecar, limits, write), answer)?;
    ensure!(followed.missed == 0, "{}: {} proxies did not get the change", question.name, followed.missed);
    let arrival_ms = followed.latencies.last().copied().context("the change reaches a proxy")?;
    Ok((response, milliseconds(answered - written.get()), arrival_ms))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn table(result: &AnswersResult) -> String {
    let mut text = format!(
        "{}, {} proxies, {}\n\n\
         | question | p50 ms | max ms | max ms after the change has reached the last proxy | answer KB | server CPU s \
         | peak memory growth MiB |\n|---|---|---|---|---|---|---|\n",
        result.shape, result.proxies, result.commit
    );
    let mebibytes = |kib: u64| kib / 1024;
    for row in &result.answers {
        let AnswerRow { question, p50_ms, max_ms, bytes, server_cpu_seconds, .. } = row;
        let growth = row.peak_growth_kib.map_or_else(|| "-".to_owned(), |kib| mebibytes(kib).to_string());
        let kilobytes = bytes.div_ceil(1000);
        let waits = row.after_arrival_ms.iter().copied();
        let after = waits.reduce(f64::max).map_or_else(|| "-".to_owned(), |after| format!("{after:.1}"));
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| {question} | {p50_ms:.1} | {max_ms:.1} | {after} | {kilobytes} | {server_cpu_seconds:.3} | {growth} |"
        );
    }
    text
}
