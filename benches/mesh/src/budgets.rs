//! The budgets of shapes, and whether a result meets them.

use serde::Deserialize;

use crate::change::ChangeKind;
use crate::result::{Round, RunResult, StormResult};
use crate::shape::Layout;

/// The budgets, and the figures of istiod on a machine of the same kind.
const BUDGETS: &str = include_str!("../budgets.json");

/// The budgets of a shape.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapeBudget {
    name: String,
    services: usize,
    namespaces: Option<usize>,
    endpoints: usize,
    #[serde(default)]
    service_entries: usize,
    proxies: Option<usize>,
    rows: Vec<Row>,
}

/// The budget of one measurement.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    of: Measurement,
    /// If set, the row applies only to results with VHDS, or only to those without.
    virtual_hosts: Option<bool>,
    budget: Figures,
    #[serde(default)]
    reference: Figures,
}

/// A measurement.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Measurement {
    Change(ChangeKind),
    /// A storm, by its name in the result.
    Storm(String),
    Connect,
    Connected,
    Ready,
}

/// Upper limits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figures {
    /// Median over the changes of the milliseconds to the last proxy; of a storm, to the last proxy.
    last_ms: Option<f64>,
    /// 95th and 99th percentile over the changes of the same.
    last_p95_ms: Option<f64>,
    last_p99_ms: Option<f64>,
    server_cpu_s: Option<f64>,
    sent_mb: Option<f64>,
    /// Messages or resources that are sent at all.
    messages: Option<f64>,
    resources: Option<f64>,
    streams_refused: Option<f64>,
    resident_mb: Option<f64>,
    peak_mb: Option<f64>,
    /// Of a storm: the peak above the memory before it, in MiB.
    growth_mib: Option<f64>,
    ready_s: Option<f64>,
    /// Latency of changes during a storm, as a multiple of their latency before it.
    beside_ratio: Option<f64>,
}

/// Names of the times to the last proxy.
pub(crate) const LAST: [&str; 3] = ["last proxy, ms", "last proxy p95, ms", "last proxy p99, ms"];

/// Name of the CPU time of the server.
pub(crate) const SERVER_CPU: &str = "server CPU, s";

/// Name of the growth of the memory in a storm.
const PEAK_GROWTH: &str = "peak memory growth, MiB";

impl Figures {
    fn each(&self) -> [(&'static str, Option<f64>); 13] {
        [
            (LAST[0], self.last_ms),
            (LAST[1], self.last_p95_ms),
            (LAST[2], self.last_p99_ms),
            (SERVER_CPU, self.server_cpu_s),
            ("sent, MB", self.sent_mb),
            ("messages", self.messages),
            ("resources", self.resources),
            ("streams refused", self.streams_refused),
            ("memory, MB", self.resident_mb),
            ("peak memory, MB", self.peak_mb),
            (PEAK_GROWTH, self.growth_mib),
            ("start to ready, s", self.ready_s),
            ("latency of changes during it / before it", self.beside_ratio),
        ]
    }
}

/// A figure beside its budget.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// Name of the budget's shape.
    pub(crate) shape: String,
    pub(crate) what: String,
    pub(crate) figure: &'static str,
    pub(crate) measured: f64,
    pub(crate) budget: f64,
    pub(crate) reference: Option<f64>,
    /// For a time: the server's share of it, see [`ClientTime`].
    pub(crate) share: Option<f64>,
    /// For a time: how long the same bytes take through bare sockets, in milliseconds.
    pub(crate) sockets_ms: Option<f64>,
}

impl Verdict {
    /// Whether the figure itself meets the budget.
    pub(crate) fn is_met(&self) -> bool {
        self.measured <= self.budget
    }

    /// Whether the figure or the server's share of it meets the budget.
    pub(crate) fn is_share_within(&self) -> bool {
        self.is_met() || self.share.is_some_and(|share| share <= self.budget)
    }

    /// The time of the same bytes through bare sockets in milliseconds, if that alone exceeds the budget: no server can
    /// meet it on this machine.
    pub(crate) fn sockets_over_budget_ms(&self) -> Option<f64> {
        self.sockets_ms.filter(|sockets| *sockets > self.budget)
    }
}

/// Compares the figures of a result with their budgets.
pub(crate) fn evaluate(result: &RunResult) -> Vec<Verdict> {
    let shapes: Vec<ShapeBudget> = serde_json::from_str(BUDGETS).unwrap_or_default();
    let mut verdicts = Vec::new();
    for shape in shapes.iter().filter(|shape| shape.is_of(result)) {
        for row in &shape.rows {
            if row.virtual_hosts.is_some_and(|expected| expected != result.virtual_hosts) {
                continue;
            }
            let Some((what, measured, client_time)) = measure(&row.of, result) else { continue };
            let cpus = result.machine.cpus;
            let share = |measured: f64| Some((measured - client_time.as_ref()?.milliseconds(cpus)?).max(0.0));
            let figures = measured.each().into_iter().zip(row.budget.each()).zip(row.reference.each());
            for (((figure, measured), (_, budget)), (_, reference)) in figures {
                if let (Some(measured), Some(budget)) = (measured, budget) {
                    let vhds = if row.virtual_hosts == Some(true) { ", with VHDS" } else { "" };
                    let (shape, what) = (shape.name.clone(), format!("{what}{vhds}"));
                    let is_time = LAST.contains(&figure);
                    let share = if is_time { share(measured) } else { None };
                    let sockets_ms =
                        client_time.as_ref().filter(|_| is_time).and_then(|client_time| client_time.sockets_ms);
                    verdicts.push(Verdict { shape, what, figure, measured, budget, reference, share, sockets_ms });
                }
            }
        }
    }
    verdicts
}

impl ShapeBudget {
    fn is_of(&self, result: &RunResult) -> bool {
        let shape = &result.shape;
        shape.services == self.services
            && shape.endpoints == self.endpoints
            && shape.service_entries == self.service_entries
            && shape.layout == Layout::Flat
            && result.protocol == "delta"
            && self.namespaces.is_none_or(|namespaces| namespaces == shape.namespaces)
            && self.proxies.is_none_or(|proxies| proxies == result.proxies)
    }
}

/// The part of a time that no server can avoid: the longer of the time that the same bytes take through bare sockets,
/// and the simulator's CPU time divided by the number of CPUs. The two overlap, so they are not added.
struct ClientTime {
    sockets_ms: Option<f64>,
    own_cpu_seconds: f64,
}

impl ClientTime {
    fn of(storm: &StormResult) -> Self {
        Self { sockets_ms: storm.loopback_ms, own_cpu_seconds: storm.own_cpu_seconds }
    }

    /// None if sockets were not measured.
    fn milliseconds(&self, cpus: usize) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let cpus = cpus.max(1) as f64;
        Some(self.sockets_ms?.max(self.own_cpu_seconds * 1000.0 / cpus))
    }
}

/// The figures of a measurement, if the result has it, and the part of its times that is not the server's.
fn measure(of: &Measurement, result: &RunResult) -> Option<(String, Figures, Option<ClientTime>)> {
    let memory = |kib: Option<u64>| kib.map(|kib| number(kib) * 1024.0 / 1e6);
    match of {
        Measurement::Change(kind) => {
            let change = result.changes.iter().find(|change| change.kind == *kind)?;
            let last = |share: f64| {
                let values: Vec<f64> = change.rounds.iter().filter_map(|round| round.last_ms).collect();
                (!values.is_empty()).then(|| crate::statistics::of(values, share))
            };
            let median = |value: &dyn Fn(&Round) -> Option<f64>| change.median(value);
            let figures = Figures {
                last_ms: last(0.5),
                last_p95_ms: last(0.95),
                last_p99_ms: last(0.99),
                server_cpu_s: median(&|round| round.server_cpu_seconds),
                sent_mb: median(&|round| Some(number(round.traffic.bytes) / 1e6)),
                messages: median(&|round| Some(number(round.traffic.messages))),
                ..Figures::default()
            };
            // The time of an arrival is the kernel's: what the simulator does with it comes after.
            let client_time = ClientTime { sockets_ms: change.loopback_ms, own_cpu_seconds: 0.0 };
            Some((kind.name(), figures, Some(client_time)))
        }
        Measurement::Storm(name) => {
            let storms = || result.storms.iter().filter(|storm| storm.name == *name);
            let storm = storms().next()?;
            // Memory may grow more when the storm is repeated.
            let growth_kib = storms().filter_map(StormResult::growth_kib).max();
            let figures = Figures { growth_mib: growth_kib.map(|kib| number(kib) / 1024.0), ..storm_figures(storm) };
            Some((name.clone(), figures, Some(ClientTime::of(storm))))
        }
        Measurement::Connect => {
            let connect = &result.connect;
            Some(("all connect at once".to_owned(), storm_figures(connect), Some(ClientTime::of(connect))))
        }
        Measurement::Connected => {
            let memory = Figures {
                resident_mb: memory(result.connect.memory.map(|memory| memory.resident_kib)),
                peak_mb: memory(result.connect.memory.map(|memory| memory.peak_kib)),
                ..Figures::default()
            };
            Some(("with all connected".to_owned(), memory, None))
        }
        Measurement::Ready => {
            Some(("start".to_owned(), Figures { ready_s: result.ready_seconds, ..Figures::default() }, None))
        }
    }
}

fn storm_figures(storm: &StormResult) -> Figures {
    Figures {
        last_ms: storm.distribution_ms.last().copied(),
        server_cpu_s: storm.server_cpu_seconds,
        resources: Some(number(storm.traffic.resources.iter().sum())),
        streams_refused: Some(number(storm.traffic.ended)),
        beside_ratio: storm.beside.as_ref().map(|beside| beside.medians().2),
        ..Figures::default()
    }
}

fn number(value: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a figure to compare")]
    let value = value as f64;
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn server_share_excludes_time_of_sockets_and_simulator() {
        let client_time = |sockets_ms, own_cpu_seconds| ClientTime { sockets_ms, own_cpu_seconds }.milliseconds(2);
        assert_eq!(client_time(Some(19.0), 0.010), Some(19.0));
        assert_eq!(client_time(Some(19.0), 0.060), Some(30.0));
        assert_eq!(client_time(None, 0.060), None);
    }

    #[test]
    fn budget_below_the_time_of_bare_sockets_is_marked() {
        let verdict = |sockets_ms| Verdict {
            shape: String::new(),
            what: String::new(),
            figure: LAST[0],
            measured: 580.0,
            budget: 50.0,
            reference: None,
            share: Some(315.0),
            sockets_ms,
        };
        assert_eq!(verdict(Some(228.0)).sockets_over_budget_ms(), Some(228.0));
        assert_eq!(verdict(Some(20.0)).sockets_over_budget_ms(), None);
        assert_eq!(verdict(None).sockets_over_budget_ms(), None);
        assert!(!verdict(Some(228.0)).is_share_within(), "the server's share is over the budget too");
    }

    /// A run whose proxies reconnect twice. A storm has the resident memory before it and the peak after it, in MiB.
    fn reconnected(services: usize, storms: [Option<(u64, u64)>; 2]) -> serde_json::Result<RunResult> {
        let memory = |mib: u64| json!({"resident_kib": mib * 1024, "peak_kib": mib * 1024});
        let storm = |name: &str, figures: Option<(u64, u64)>| {
            json!({
                "name": name, "distribution_ms": [], "missed": 0, "own_cpu_seconds": 0.0,
                "traffic": {"messages": 0, "bytes": 0, "resources": [], "ended": 0},
                "memory": figures.map(|(_, peak)| memory(peak)),
                "memory_before": figures.map(|(before, _)| memory(before)),
            })
        };
        serde_json::from_value(json!({
            "machine": {"cpus": 2, "model": "", "memory_mib": 0, "load": 0.0}, "commit": "", "protocol": "delta",
            "shape": {"services": services, "namespaces": 200, "endpoints": 2, "service_entries": 0}, "proxies": 1000,
            "connect": storm("connect", Some((100, 900))), "changes": [],
            "storms": storms.map(|figures| storm("reconnect", figures)),
        }))
    }

    #[test]
    fn memory_that_grows_too_much_when_clients_come_back_is_over_budget() -> serde_json::Result<()> {
        let growth = |services, storms| -> serde_json::Result<Option<(f64, bool)>> {
            let mut verdicts = evaluate(&reconnected(services, storms)?).into_iter();
            let growth = verdicts.find(|verdict| verdict.figure == PEAK_GROWTH);
            Ok(growth.map(|verdict| (verdict.measured, verdict.is_met())))
        };
        assert_eq!(growth(10_000, [Some((420, 720)), Some((450, 574))])?, Some((300.0, true)));
        assert_eq!(growth(10_000, [Some((420, 572)), Some((450, 751))])?, Some((301.0, false)), "the second storm");
        assert_eq!(growth(10_000, [None, None])?, None, "earlier results lack the memory before a storm");
        assert_eq!(growth(9_000, [Some((420, 900)), None])?, None, "another shape");
        Ok(())
    }

    #[test]
    fn every_budget_can_be_measured() -> serde_json::Result<()> {
        let shapes: Vec<ShapeBudget> = serde_json::from_str(BUDGETS)?;
        assert!(shapes.iter().any(|shape| shape.name == "M1" && shape.rows.len() >= 10));
        let some = |figures: &Figures| figures.each().iter().any(|(_, value)| value.is_some());
        assert!(shapes.iter().flat_map(|shape| &shape.rows).all(|row| some(&row.budget)));
        Ok(())
    }
}
