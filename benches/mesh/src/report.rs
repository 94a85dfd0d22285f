//! Results as text: progress lines, tables, a comparison of two results. `page` writes the HTML page.

pub(crate) mod page;
mod summary;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::budgets::{self, Verdict};
use crate::change::ChangeKind;
use crate::plot::short;
use crate::result::{ChangeResult, Round, RunResult, SHARES, StormResult};

const MIB: f64 = 1024.0;

fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "megabytes")]
    let value = bytes as f64 / 1e6;
    value
}

pub(crate) fn mebibytes(kib: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "mebibytes")]
    let value = kib as f64 / MIB;
    value
}

fn count(value: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a number on an axis")]
    let value = value as f64;
    value
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), short)
}

fn sent(round: &Round) -> f64 {
    megabytes(round.traffic.bytes)
}

/// The cells of a kind: name, affected, first, last p50, last worst, server CPU, simulator CPU, messages, resources, MB,
/// missed.
fn change_cells(change: &ChangeResult) -> Vec<String> {
    let worst = change
        .rounds
        .iter()
        .filter_map(|round| round.last_ms)
        .fold(None, |worst: Option<f64>, last| Some(worst.map_or(last, |worst| worst.max(last))));
    let resources =
        change.median(|round| Some(round.traffic.resources.iter().map(|count| megabytes(*count) * 1e6).sum()));
    vec![
        change.kind.name(),
        change.affected.to_string(),
        or_dash(change.median(|round| round.first_ms)),
        or_dash(change.median(|round| round.last_ms)),
        or_dash(worst),
        or_dash(change.median(|round| round.server_cpu_seconds)),
        or_dash(change.median(|round| Some(round.own_cpu_seconds))),
        or_dash(change.median(|round| Some(megabytes(round.traffic.messages) * 1e6))),
        or_dash(resources),
        or_dash(change.median(|round| Some(sent(round)))),
        or_dash(change.loopback_ms),
        change.rounds.iter().map(|round| round.missed).sum::<usize>().to_string(),
    ]
}

const CHANGE_HEAD: [&str; 12] = [
    "change",
    "affected",
    "first ms p50",
    "last ms p50",
    "last ms worst",
    "server CPU s",
    "simulator CPU s",
    "messages",
    "resources",
    "MB",
    "same bytes through bare sockets, ms",
    "missed",
];

fn storm_cells(storm: &StormResult) -> Vec<String> {
    let at = |share: f64| {
        let entry = SHARES.iter().zip(&storm.distribution_ms).find(|(of, _)| (**of - share).abs() < 1e-9);
        or_dash(entry.map(|(_, value)| *value))
    };
    vec![
        storm.name.clone(),
        at(0.5),
        at(0.99),
        at(1.0),
        or_dash(storm.server_cpu_seconds),
        short(storm.own_cpu_seconds),
        storm.traffic.messages.to_string(),
        storm.traffic.resources.iter().sum::<u64>().to_string(),
        short(megabytes(storm.traffic.bytes)),
        storm.traffic.ended.to_string(),
        or_dash(storm.memory.map(|memory| mebibytes(memory.resident_kib))),
        or_dash(storm.memory.map(|memory| mebibytes(memory.peak_kib))),
        or_dash(storm.loopback_ms),
        storm.beside.as_ref().map_or_else(
            || "–".to_owned(),
            |beside| {
                let (quiet, storm, ratio) = beside.medians();
                format!("{} {} → {} ({}×)", beside.kind.name(), short(quiet), short(storm), short(ratio))
            },
        ),
        storm.missed.to_string(),
    ]
}

const STORM_HEAD: [&str; 15] = [
    "storm",
    "p50 ms",
    "p99 ms",
    "last ms",
    "server CPU s",
    "simulator CPU s",
    "messages",
    "resources",
    "MB",
    "streams ended",
    "RSS MiB",
    "peak MiB",
    "same bytes through bare sockets, ms",
    "changes during it, last ms p50",
    "missed",
];

/// A line for the terminal.
pub(crate) fn change_line(change: &ChangeResult) -> String {
    line(&CHANGE_HEAD, &change_cells(change))
}

/// A line for the terminal.
pub(crate) fn storm_line(storm: &StormResult) -> String {
    line(&STORM_HEAD, &storm_cells(storm))
}

fn line(head: &[&str], cells: &[String]) -> String {
    let rest = head.iter().zip(cells).skip(1).map(|(name, value)| format!("{name} {value}"));
    format!("{}: {}", cells[0], rest.collect::<Vec<_>>().join(" · "))
}

fn title_of(result: &RunResult) -> String {
    let vhds = if result.virtual_hosts { ", with VHDS" } else { "" };
    let leds = if result.endpoints_by_locality { ", with LEDS" } else { "" };
    let driver = if result.driver == "kube" { ", through a Kubernetes API" } else { "" };
    format!("{}, {} {} proxies{vhds}{leds}{driver}", result.shape, result.proxies, result.protocol)
}

fn machine(result: &RunResult) -> String {
    let machine = &result.machine;
    format!(
        "{} CPUs ({}), {} MiB, load {} at the start; {}",
        machine.cpus, machine.model, machine.memory_mib, machine.load, result.commit
    )
}

fn memory(result: &RunResult) -> String {
    let show = |memory: Option<crate::process::Memory>| or_dash(memory.map(|memory| mebibytes(memory.resident_kib)));
    format!(
        "ready after {} s{} with {} MiB; {} MiB at the end, peak {} MiB",
        or_dash(result.ready_seconds),
        match result.starts_seconds.as_slice() {
            [] | [_] => String::new(),
            starts => format!(" ({})", starts.iter().map(|start| short(*start)).collect::<Vec<_>>().join(", ")),
        },
        show(result.ready_memory),
        show(result.end_memory),
        or_dash(result.end_memory.map(|memory| mebibytes(memory.peak_kib)))
    )
}

/// The result as Markdown.
pub(crate) fn table(result: &RunResult) -> String {
    let mut text = format!("{}\n{}\n{}\n\n", title_of(result), machine(result), memory(result));
    let storms: Vec<_> = std::iter::once(&result.connect).chain(&result.storms).map(storm_cells).collect();
    rows(&mut text, &STORM_HEAD, &storms);
    text.push('\n');
    rows(&mut text, &CHANGE_HEAD, &result.changes.iter().map(change_cells).collect::<Vec<_>>());
    let verdicts = verdicts(result);
    if !verdicts.is_empty() {
        text.push('\n');
        rows(&mut text, &BUDGET_HEAD, &verdicts);
    }
    text
}

const BUDGET_HEAD: [&str; 7] = ["measurement", "figure", "measured", "server's share", "budget", "istiod", "result"];

fn verdicts(result: &RunResult) -> Vec<Vec<String>> {
    let cells = |verdict: Verdict| {
        let outcome = match (verdict.is_met(), verdict.is_share_within(), verdict.sockets_over_budget_ms()) {
            (true, ..) => "met".to_owned(),
            (_, true, _) => "over budget; the server's share is within it".to_owned(),
            (.., Some(sockets)) => format!("over budget; bare sockets alone take {} ms", short(sockets)),
            _ => "over budget".to_owned(),
        };
        vec![
            format!("{}: {}", verdict.shape, verdict.what),
            verdict.figure.to_owned(),
            short(verdict.measured),
            or_dash(verdict.share),
            short(verdict.budget),
            or_dash(verdict.reference),
            outcome,
        ]
    };
    budgets::evaluate(result).into_iter().map(cells).collect()
}

/// Last proxy and server CPU of each kind over services and proxies, as Markdown.
pub(crate) fn scale_tables(results: &[RunResult]) -> String {
    let mut text = String::new();
    for (title, head, body) in grids(results) {
        let _ = writeln!(text, "\n{title}\n");
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        rows(&mut text, &head, &body);
    }
    text.push('\n');
    rows(&mut text, &SHAPE_HEAD, &results.iter().map(shape_cells).collect::<Vec<_>>());
    text
}

const SHAPE_HEAD: [&str; 7] =
    ["shape", "ready s", "ready MiB", "connected MiB", "end MiB", "connect last ms", "connect server CPU s"];

fn shape_cells(result: &RunResult) -> Vec<String> {
    let resident =
        |memory: Option<crate::process::Memory>| or_dash(memory.map(|memory| mebibytes(memory.resident_kib)));
    vec![
        title_of(result),
        or_dash(result.ready_seconds),
        resident(result.ready_memory),
        resident(result.connect.memory),
        resident(result.end_memory),
        or_dash(result.connect.distribution_ms.last().copied()),
        or_dash(result.connect.server_cpu_seconds),
    ]
}

/// For each kind: a title, the numbers of proxies, and a row for each number of services.
fn grids(results: &[RunResult]) -> Vec<(String, Vec<String>, Vec<Vec<String>>)> {
    let plain = |result: &&RunResult| result.shape.service_entries == 0;
    let results: Vec<&RunResult> = results.iter().filter(plain).collect();
    let proxies: BTreeSet<usize> = results.iter().map(|result| result.proxies).collect();
    let services: BTreeSet<usize> = results.iter().map(|result| result.shape.services).collect();
    let kinds: BTreeSet<ChangeKind> =
        results.iter().flat_map(|result| &result.changes).map(|change| change.kind).collect();
    let cell = |kind: ChangeKind, services: usize, proxies: usize| {
        let same = |result: &&&RunResult| result.shape.services == services && result.proxies == proxies;
        let result = results.iter().find(same)?;
        let change = result.changes.iter().find(|change| change.kind == kind)?;
        let cpu = change.median(|round| round.server_cpu_seconds.map(|seconds| seconds * 1000.0));
        Some(format!("{} · {}", or_dash(change.median(|round| round.last_ms)), or_dash(cpu)))
    };
    let table = |kind: ChangeKind| {
        let head = std::iter::once("services".to_owned());
        let head = head.chain(proxies.iter().map(|proxies| format!("{proxies} proxies"))).collect();
        let row = |services: &usize| {
            let cells = proxies.iter().map(|proxies| cell(kind, *services, *proxies).unwrap_or_else(|| "–".to_owned()));
            std::iter::once(services.to_string()).chain(cells).collect()
        };
        let title = format!("{}: last proxy in ms · server CPU in ms", kind.name());
        (title, head, services.iter().map(row).collect())
    };
    kinds.into_iter().map(table).collect()
}

fn rows(text: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let _ = writeln!(text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

/// Reads a figure of a round, if the round has it.
type Figure<'a> = &'a dyn Fn(&Round) -> Option<f64>;

/// Compares two results. Returns whether all ratios are within the limit.
pub(crate) fn compare(before: &RunResult, after: &RunResult, limit: f64) -> Result<bool> {
    ensure!(
        title_of(before) == title_of(after),
        "the results are of different shapes: {} and {}",
        title_of(before),
        title_of(after)
    );
    let mut rows = Vec::new();
    for new in &after.changes {
        let Some(old) = before.changes.iter().find(|old| old.kind == new.kind) else { continue };
        let pairs: [(&str, Figure<'_>); 3] = [
            ("last ms", &|round| round.last_ms),
            ("server CPU s", &|round| round.server_cpu_seconds),
            ("MB", &|round| Some(sent(round))),
        ];
        for (what, value) in pairs {
            rows.push((format!("{} {what}", new.kind.name()), old.median(value), new.median(value)));
        }
    }
    let resident = |result: &RunResult| result.connect.memory.map(|memory| mebibytes(memory.resident_kib));
    rows.push(("connect server CPU s".into(), before.connect.server_cpu_seconds, after.connect.server_cpu_seconds));
    rows.push(("connected RSS MiB".into(), resident(before), resident(after)));
    let mut within = true;
    println!("| what | before | after | ratio |\n|---|---|---|---|");
    for (what, old, new) in rows {
        let (Some(old), Some(new)) = (old, new) else { continue };
        let ratio = if old > 0.0 { new / old } else { f64::from(u8::from(new <= 0.0)) };
        let over = ratio > limit;
        within &= !over;
        let mark = if over { " **over**" } else { "" };
        println!("| {what} | {} | {} | {}{mark} |", short(old), short(new), short(ratio));
    }
    Ok(within)
}
