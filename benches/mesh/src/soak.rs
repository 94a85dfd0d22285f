//! Random changes for a long time, then a comparison with a fresh server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::arguments::SoakArguments;
use crate::churn::Churn;
use crate::fleet::ProxyPriority;
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::result::Machine;
use crate::shape::Shape;
use crate::state_comparison::{StateComparison, compare_with_fresh_server};
use crate::statistics::of;

/// Interval of memory samples.
const SAMPLE: Duration = Duration::from_secs(1);

/// The result of a soak.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SoakResult {
    machine: Machine,
    shape: Shape,
    proxies: usize,
    seconds: f64,
    changes: BTreeMap<String, usize>,
    reconnects: usize,
    messages: u64,
    /// Seconds since the start, and the server's memory in KiB then.
    samples: Vec<(f64, u64)>,
    /// Median memory of the second and of the last quarter, in MiB.
    second_quarter_mib: f64,
    last_quarter_mib: f64,
    /// Slope of the line through the samples after the first quarter, in MiB an hour.
    slope_mib_an_hour: f64,
    /// The first resources whose content at a proxy differs from what a fresh server sends.
    differences: Vec<String>,
    different: usize,
    compared: usize,
}

/// Runs a soak. Returns whether memory stayed flat and the state is that of a fresh server.
pub(crate) async fn run(arguments: &SoakArguments) -> Result<bool> {
    let setup = Setup::started(arguments.started.shape.shape()?, arguments.proxies, &arguments.started.sluiced);
    let setup = Setup { digests: true, priority: ProxyPriority::Normal, ..setup };
    let mut mesh = MeasuredMesh::open(&setup, &arguments.started.measure).await?;
    let kinds = mesh.kinds(&arguments.changes)?;
    let mut churn = Churn::new(arguments.seed);
    let process = mesh.server.process.clone().context("the server's process is known")?;
    let (start, mut samples, mut last_report) = (Instant::now(), Vec::new(), Instant::now());
    let mut next_sample = start;
    let (mut due_changes, mut due_reconnects, mut last) = (0.0, 0.0, start);
    while start.elapsed() < arguments.duration {
        let now = Instant::now();
        let passed = now.duration_since(last).as_secs_f64();
        last = now;
        // If changes are late by more than a second, the older ones are skipped.
        due_changes = (due_changes + passed * arguments.rate).min(arguments.rate.max(1.0));
        due_reconnects = (due_reconnects + passed * arguments.reconnects).min(arguments.reconnects.max(1.0));
        while due_changes >= 1.0 {
            due_changes -= 1.0;
            churn.change(&mesh, &kinds)?;
        }
        while due_reconnects >= 1.0 {
            due_reconnects -= 1.0;
            churn.reconnect(&mesh.fleet);
        }
        if now >= next_sample {
            next_sample = now + SAMPLE;
            samples.push((start.elapsed().as_secs_f64(), process.memory()?.resident_kib));
        }
        if last_report.elapsed() > Duration::from_secs(30) {
            last_report = Instant::now();
            let memory = samples.last().map_or(0, |(_, kib)| kib / 1024);
            eprintln!("  {:.0} s: {} changes, {memory} MiB", start.elapsed().as_secs_f64(), churn.changes());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let seconds = start.elapsed().as_secs_f64();
    let (second_quarter_mib, last_quarter_mib) = (quarter(&samples, seconds, 1), quarter(&samples, seconds, 3));

    let timeout = Duration::from_secs(arguments.started.measure.timeout.max(60));
    let server_options = mesh.server_options.clone().context("the server was started here")?;
    let (_, StateComparison { compared, differences, missed }) =
        compare_with_fresh_server(&mut mesh, &server_options, timeout).await?;
    let traffic = mesh.fleet.traffic();

    let result = SoakResult {
        machine: Machine::this(),
        shape: mesh.objects.shape,
        proxies: mesh.group.len(),
        seconds,
        changes: churn.rounds.iter().map(|(kind, rounds)| (kind.name(), *rounds)).collect(),
        reconnects: churn.reconnects,
        messages: traffic.messages,
        slope_mib_an_hour: slope(&samples, seconds / 4.0),
        samples,
        second_quarter_mib,
        last_quarter_mib,
        different: differences.len(),
        differences: differences.into_iter().take(20).collect(),
        compared,
    };
    if let Some(path) = &arguments.started.json {
        std::fs::write(path, serde_json::to_vec_pretty(&result)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    let flat = result.last_quarter_mib <= result.second_quarter_mib * (1.0 + arguments.growth);
    println!("{}", table(&result, flat, missed));
    Ok(flat && result.different == 0 && missed == 0)
}

/// The median memory of a quarter of the time, in MiB.
fn quarter(samples: &[(f64, u64)], seconds: f64, number: u32) -> f64 {
    let within = |at: f64| at >= seconds / 4.0 * f64::from(number) && at <= seconds / 4.0 * f64::from(number + 1);
    of(samples.iter().filter(|(at, _)| within(*at)).map(|(_, kib)| mebibytes(*kib)), 0.5)
}

/// The slope of the line through the samples after a time, in MiB an hour.
fn slope(samples: &[(f64, u64)], after: f64) -> f64 {
    let points: Vec<(f64, f64)> =
        samples.iter().filter(|(at, _)| *at >= after).map(|(at, kib)| (*at / 3600.0, mebibytes(*kib))).collect();
    #[expect(clippy::cast_precision_loss, reason = "some samples")]
    let count = points.len() as f64;
    let mean = |value: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    if spread > 0.0 { together / spread } else { 0.0 }
}

fn mebibytes(kib: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "mebibytes")]
    let value = kib as f64 / 1024.0;
    value
}

fn table(result: &SoakResult, flat: bool, missed: usize) -> String {
    let verdict = |passed: bool| if passed { "passed" } else { "**failed**" };
    let mut text = format!(
        "{}, {} proxies, {:.0} s: {} changes, {} reconnects, {} messages\n\n| check | result | |\n|---|---|---|\n",
        result.shape,
        result.proxies,
        result.seconds,
        result.changes.values().sum::<usize>(),
        result.reconnects,
        result.messages
    );
    text += &format!(
        "| memory, second and last quarter | {:.1} and {:.1} MiB; {:+.1} MiB an hour | {} |\n",
        result.second_quarter_mib,
        result.last_quarter_mib,
        result.slope_mib_an_hour,
        verdict(flat)
    );
    text += &format!(
        "| resources that differ from a fresh server's | {} of {} | {} |\n",
        result.different,
        result.compared,
        verdict(result.different == 0)
    );
    text += &format!("| proxies that a fresh server does not configure | {missed} | {} |\n", verdict(missed == 0));
    for difference in &result.differences {
        text += &format!("\n- {difference}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_is_per_hour() {
        let samples: Vec<(f64, u64)> =
            (0..100).map(|at| (f64::from(at), 1024 * (50 + u64::from(at.max(25u32))))).collect();
        let content = slope(&samples, 25.0);
        assert!((content - 3600.0).abs() < 1e-6, "{content}");
        assert!((quarter(&samples, 100.0, 1) - 87.0).abs() < 1.5 && (quarter(&samples, 100.0, 3) - 137.0).abs() < 1.5);
        assert_eq!(slope(&[(1.0, 5)], 0.0), 0.0);
    }
}
