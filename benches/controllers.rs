//! The workload of krt's `BenchmarkControllers`: 1,000 pods and 50 services in two namespaces, a workload for each pod with
//! the services that select it, and a handler. A round changes the address of every pod, and ends when the handler has seen
//! the last change.
//!
//! `cargo bench -p sluice-engine --bench controllers`; `-- --quick` runs fewer rounds. As in krt's bench, each pod is written
//! on its own. Rates are of wall-clock time; CPU is that of all threads.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock, its arguments and its own memory")]
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_engine::{
    Engine, EngineOptions, HandlerRegistration, Input, LabelSelecting, NamespacedName, Published, RecordFilter,
};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PODS: u32 = 1000;
const SERVICES: u32 = 50;

type Labels = BTreeMap<String, String>;

/// The fields of a Pod that the graph reads.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Pod {
    labels: Labels,
    service_account: String,
    ip: String,
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Service {
    selector: Labels,
}

impl LabelSelecting for Service {
    fn selector(&self) -> impl Iterator<Item = (&str, &str)> {
        self.selector.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Workload {
    service_names: Vec<String>,
    ip: String,
}

struct Controller {
    engine: Engine,
    pods: Input<NamespacedName, Pod>,
    workloads: Published<NamespacedName, Workload>,
    events: Receiver<String>,
    _handler: HandlerRegistration,
}

fn name(number: u32) -> NamespacedName {
    NamespacedName::new(format!("ns-{}", number % 2), format!("pod-{number}"))
}

fn labels(number: u32) -> Labels {
    Labels::from([("app".to_owned(), format!("app-{}", number % 25))])
}

fn pod(number: u32, ip: u32) -> Pod {
    let [a, b, c, d] = ip.to_be_bytes();
    Pod { labels: labels(number), service_account: "fake-sa".to_owned(), ip: format!("{a}.{b}.{c}.{d}") }
}

fn start() -> Controller {
    let (engine, (pods, services, workloads)) = Engine::start(EngineOptions::default(), |builder| {
        builder.dataflow("workloads", |g| {
            let (pods_in, pods) = g.input::<NamespacedName, Pod>("pods");
            let (services_in, services) = g.input::<NamespacedName, Service>("services");
            let by_namespace = services.by_namespace("services/by-namespace");
            let workloads = pods.derive("workloads", |deps| {
                let services = deps.by(&by_namespace);
                move |cx, name: &NamespacedName, pod: &Pod| {
                    if pod.ip.is_empty() {
                        return None;
                    }
                    let selecting = RecordFilter::all().selects_non_empty(pod.labels.clone());
                    let services = cx.fetch_by(&services, &name.namespace, &selecting);
                    let service_names = services.iter().map(|(name, _)| name.name.clone()).collect();
                    Some(Workload { service_names, ip: pod.ip.clone() })
                }
            });
            (pods_in, services_in, workloads.publish())
        })
    });
    for number in 0..PODS {
        pods.set(name(number), pod(number, number));
    }
    for number in 0..SERVICES {
        services.set(name(number), Service { selector: labels(number) });
    }
    pods.mark_synced();
    services.mark_synced();
    engine.flush();
    let (sender, events) = channel();
    let handler = engine.register(&workloads, move |event| {
        // Fails only when the bench has ended.
        let _ = sender.send(format!("{} {:?}", event.key.name, event.kind()));
    });
    let controller = Controller { engine, pods, workloads, events, _handler: handler };
    controller.drain();
    controller
}

impl Controller {
    /// Receives an event of each pod.
    fn drain(&self) {
        for _ in 0..PODS {
            self.events.recv_timeout(Duration::from_secs(60)).expect("an event of each pod");
        }
    }

    fn round(&self, round: u32) {
        for number in 0..PODS {
            self.pods.set(name(number), pod(number, round * PODS + number));
        }
        self.drain();
    }
}

fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * 4096
}

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let rounds: u32 = if is_quick { 20 } else { 2000 };
    let before = resident_bytes();
    let controller = start();
    let loaded = resident_bytes();
    let (started, cpu_before) = (Instant::now(), cpu_time());
    for round in 1..=rounds {
        controller.round(round);
    }
    let (elapsed, cpu) = (started.elapsed(), cpu_time() - cpu_before);
    let events = f64::from(rounds * PODS);
    println!("{rounds} rounds of {PODS} changes: {:.3} ms a round", elapsed.as_secs_f64() * 1e3 / f64::from(rounds));
    println!(
        "  {:.0} events/s, {:.2} µs of CPU an event",
        events / elapsed.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / events
    );
    println!(
        "  memory: {} KiB after loading, {} KiB after the rounds",
        loaded.saturating_sub(before) / 1024,
        resident_bytes().saturating_sub(before) / 1024
    );
    assert_eq!(controller.engine.snapshot().len(&controller.workloads), PODS as usize);
}
