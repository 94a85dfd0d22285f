//! Random changes for a long time, then a comparison with a fresh server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Serialize;

use crate::arguments::SoakArguments;
use crate::change::{self, ChangeKind, Plan};
use crate::client::SimulatedProxy;
use crate::fleet::Fleet;
use crate::measured_mesh::{MeasuredMesh, ServerChoice, Setup};
use crate::result::Machine;
use crate::scan::Type;
use crate::server::Server;
use crate::shape::Shape;
use crate::statistics::of;

/// States are compared when no message has arrived for this time.
const QUIET: Duration = Duration::from_secs(1);
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
    let setup = Setup {
        shape: arguments.shape.shape()?,
        proxies: arguments.proxies,
        server: ServerChoice::Start(arguments.sluiced.clone()),
        config_dir: None,
        kubeconfig: None,
        starts: 1,
        digests: true,
    };
    let mut mesh = MeasuredMesh::open(&setup, &arguments.measure).await?;
    let kinds = mesh.kinds(&arguments.changes)?;
    let mut churn = Churn { random: StdRng::seed_from_u64(arguments.seed), rounds: BTreeMap::new(), reconnects: 0 };
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

    let timeout = Duration::from_secs(arguments.measure.timeout.max(60));
    mesh.fleet.configured(Instant::now(), timeout).await;
    mesh.fleet.settle(Instant::now(), QUIET, Instant::now() + timeout).await;
    let traffic = mesh.fleet.traffic();
    let old = mesh.fleet.disconnect().await;
    let server_options = mesh.server_options.clone().context("the server was started here")?;
    let (fresh_server, _) = Server::start(&server_options).await.context("start a fresh server")?;
    let mut fresh = Fleet::new(&mesh.objects.shape, mesh.group.clone(), fresh_server.address)?;
    let clients = fresh.fresh();
    fresh.connect(clients);
    let (_, missed) = fresh.configured(Instant::now(), timeout).await;
    fresh.settle(Instant::now(), QUIET, Instant::now() + timeout).await;
    let new = fresh.disconnect().await;
    let (compared, differences) = compare(old, new);

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
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&result)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    let flat = result.last_quarter_mib <= result.second_quarter_mib * (1.0 + arguments.growth);
    println!("{}", table(&result, flat, missed));
    Ok(flat && result.different == 0 && missed == 0)
}

/// Counts the changes, and chooses the next ones at random.
struct Churn {
    random: StdRng,
    rounds: BTreeMap<ChangeKind, usize>,
    reconnects: usize,
}

impl Churn {
    fn changes(&self) -> usize {
        self.rounds.values().sum()
    }

    /// Makes a change of a random kind to a random service or namespace.
    fn change(&mut self, mesh: &MeasuredMesh, kinds: &[ChangeKind]) -> Result<()> {
        let shape = mesh.objects.shape;
        let Some(kind) = kinds.get(self.random.random_range(0..kinds.len().max(1))).copied() else { return Ok(()) };
        let count = self.rounds.entry(kind).or_default();
        *count += 1;
        // Added services have few names, so that the mesh does not grow.
        let round = match kind {
            ChangeKind::ServiceAdd | ChangeKind::ServiceRemove => self.random.random_range(0..8),
            // A kind with two states alternates between them.
            ChangeKind::Sidecar | ChangeKind::EndpointReady | ChangeKind::ScaleUp | ChangeKind::PeerAuthentication => {
                *count - 1
            }
            // Addresses have few generations.
            _ => *count % 16,
        };
        let target = match kind {
            // One file that is added and removed.
            ChangeKind::Sidecar => 0,
            // Few services are large at the same time.
            ChangeKind::ScaleUp => self.random.random_range(0..shape.services.min(8)),
            _ => self.random.random_range(0..shape.services),
        };
        let change = change::plan(kind, &shape, round, Plan { target, by_virtual_host: false })?;
        if let Some(prepare) = change.prepare {
            prepare(&mesh.objects)?;
        }
        (change.write)(&mesh.objects)?;
        Ok(())
    }

    /// Ends a proxy's stream.
    fn reconnect(&mut self, fleet: &Fleet) {
        if fleet.len() > 0 {
            self.reconnects += 1;
            fleet.request_disconnect(self.random.random_range(0..fleet.len()));
        }
    }
}

/// The number of compared resources, and those that differ. Names that a proxy has subscribed to and that no resource
/// refers to any more are not compared: the proxy keeps them until it unsubscribes.
fn compare(old: Vec<SimulatedProxy>, new: Vec<SimulatedProxy>) -> (usize, Vec<String>) {
    let new: BTreeMap<usize, SimulatedProxy> = new.into_iter().map(|client| (client.number, client)).collect();
    let (mut compared, mut differences) = (0, Vec::new());
    for client in &old {
        let Some(fresh) = new.get(&client.number) else {
            differences.push(format!("proxy {} did not reconnect", client.number));
            continue;
        };
        for kind in Type::ALL {
            let (held, expected) = (client.held(kind).contents(), fresh.held(kind).contents());
            compared += expected.len();
            for (name, digest) in &expected {
                let content = held.get(name);
                if content != Some(digest) {
                    let problem = if content.is_some() { "differs" } else { "is missing" };
                    differences.push(format!("proxy {}: {kind:?} {name} {problem}", client.number));
                }
            }
            let extra = held.keys().filter(|name| kind.is_wildcard() && !expected.contains_key(*name));
            differences
                .extend(extra.map(|name| {
                    format!("proxy {}: {kind:?} {name} is not in the fresh server's state", client.number)
                }));
        }
    }
    (compared, differences)
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
