//! Cost of the engine: one change through each operator, idle operators, batches, memory, and composites of a mesh.
//!
//! `cargo bench -p sluice-engine`; `-- --quick` uses smaller shapes and shorter runs. Times are CPU time of the
//! dataflow thread (the engine's clock is set to it), so that other load on the machine matters less. Sizes are the
//! growth of resident memory under jemalloc, with inputs, arrangements and snapshots.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock, its arguments and its own memory")]
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use serde::Serialize;
use sluice_engine::{Clock, Collection, DataflowBuilder, Engine, EngineOptions, GraphBuilder, Input};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A record of typical size.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct BenchRecord {
    name: String,
    version: u64,
}

type BenchRecords<'s> = Collection<'s, u32, BenchRecord>;

fn record(key: u32, version: u64) -> BenchRecord {
    BenchRecord { name: format!("record-{key}.namespace-{}.svc", key % 20), version }
}

fn cpu_clock() -> Clock {
    Clock::new(|| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    })
}

fn start<H: Send + 'static>(build: impl FnOnce(&mut GraphBuilder) -> H + Send + 'static) -> (Engine, H) {
    Engine::start(EngineOptions { clock: cpu_clock(), ..EngineOptions::default() }, build)
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * 4096
}

/// Percentiles of a list of durations, in microseconds.
fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    format!("p50 {:.0} µs, p99 {:.0} µs, p99.9 {:.0} µs, max {:.0} µs", at(0.5), at(0.99), at(0.999), at(1.0))
}

/// Derives a collection from two collections with the same keys.
type Derivation = for<'s> fn(&DataflowBuilder<'s>, &BenchRecords<'s>, &BenchRecords<'s>);

/// Each operator, with a published output.
const OPERATORS: &[(&str, Derivation)] = &[
    ("input", |_, a, _| drop(a.publish())),
    ("map", |_, a, _| drop(a.map("out", |_, v| v.version).publish())),
    ("flat_map", |_, a, _| drop(a.flat_map("out", |k, v| [((*k, 0), v.version), ((*k, 1), v.version)]).publish())),
    ("join", |_, a, b| drop(a.join("out", b, |_, x, y| Some(x.version + y.version)).publish())),
    ("union", |_, a, b| drop(a.union("out", &[b]).publish())),
    ("group", |_, a, _| {
        let index = a.index("by-group", |k, v| [(k / 5, v.version)]);
        drop(index.group("out", |_, rows| Some(rows.iter().map(|(_, version)| **version).sum::<u64>())).publish());
    }),
    ("derive/get", |_, a, b| {
        let derived = a.derive("out", |d| {
            let b = d.on(b);
            move |cx, key, v: &BenchRecord| Some((v.version, cx.get(&b, key).map(|other| other.version)))
        });
        drop(derived.publish());
    }),
    ("derive/by", |_, a, b| {
        let index = b.index("by-group", |k, v| [(k / 5, v.version)]);
        let derived = a.derive("out", |d| {
            let rows = d.by(&index);
            move |cx, key, v: &BenchRecord| Some((v.version, cx.by(&rows, &(key / 5)).len()))
        });
        drop(derived.publish());
    }),
];

/// An engine with one operator and `size` records in both its inputs.
fn loaded(derivation: Derivation, size: u32) -> (Engine, Input<u32, BenchRecord>) {
    let (engine, (a, b)) = start(move |builder| {
        builder.dataflow("main", |g| {
            let (a_in, a) = g.input::<u32, BenchRecord>("a");
            let (b_in, b) = g.input::<u32, BenchRecord>("b");
            derivation(g, &a, &b);
            (a_in, b_in)
        })
    });
    b.replace_all((0..size).map(|key| (key, record(key, 0))));
    a.replace_all((0..size).map(|key| (key, record(key, 0))));
    engine.flush();
    (engine, a)
}

/// CPU time of the epoch of one change.
fn change(engine: &Engine, input: &Input<u32, BenchRecord>, key: u32, version: u64) -> Duration {
    input.set(key, record(key, version));
    black_box(engine.flush());
    engine.metrics().last_epoch
}

fn one_change(criterion: &mut Criterion, sizes: &[u32]) {
    let mut group = criterion.benchmark_group("one change");
    for (name, derivation) in OPERATORS {
        for size in sizes {
            let (engine, input) = loaded(*derivation, *size);
            let mut version = 0;
            group.bench_function(BenchmarkId::new(*name, size), |bencher| {
                bencher.iter_custom(|rounds| {
                    let mut elapsed = Duration::ZERO;
                    for _ in 0..rounds {
                        version += 1;
                        let key = (version as u32).wrapping_mul(2_654_435_761) % size;
                        elapsed += change(&engine, &input, key, version);
                    }
                    elapsed
                });
            });
        }
    }
    group.finish();
}

/// Cost of operators that no update reaches.
fn idle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a change beside idle groups");
    for count in [0, 10, 100] {
        let (engine, input) = start(move |b| {
            b.dataflow("main", |g| {
                let (input, rows) = g.input::<u32, BenchRecord>("rows");
                drop(rows.map("out", |_, v| v.version).publish());
                let (_, other) = g.input::<u32, BenchRecord>("other");
                for _ in 0..count {
                    let index = other.index("idle-index", |k, v| [(*k, v.version)]);
                    index.group("idle", |_, rows| Some(rows.len()));
                }
                input
            })
        });
        let mut version = 0;
        group.bench_function(count.to_string(), |bencher| {
            bencher.iter_custom(|rounds| {
                (0..rounds)
                    .map(|_| {
                        version += 1;
                        change(&engine, &input, 1, version)
                    })
                    .sum()
            });
        });
    }
    group.finish();
}

fn batches(size: u32) {
    println!("\nbatches of 1000 changes, {size} records (dataflow CPU)");
    for (name, derivation) in OPERATORS {
        let (engine, input) = loaded(*derivation, size);
        let mut elapsed = Duration::ZERO;
        let rounds = 20;
        for round in 1..=rounds {
            engine.transaction(|tx| {
                for n in 0..1000u32 {
                    let key = (n * 7919 + round * 104_729) % size;
                    tx.set(&input, key, record(key, u64::from(round)));
                }
            });
            elapsed += engine.metrics().last_epoch;
        }
        let each = elapsed.as_secs_f64() / f64::from(rounds * 1000);
        println!("  {name:<12} {:>6.2} µs a change, {:>8.0} changes/s", each * 1e6, 1.0 / each);
    }
}

fn memory(size: u32) {
    println!("\nbytes a record, {size} records in each of two inputs (a record's own content is about 50 bytes)");
    for (name, _) in OPERATORS {
        in_fresh_process(&["memory-of", name, &size.to_string()]);
    }
}

fn memory_of(name: &str, derivation: Derivation, size: u32) {
    let before = resident_bytes();
    let (engine, _input) = loaded(derivation, size);
    let bytes = resident_bytes().saturating_sub(before);
    println!("  {name:<12} {:>6} bytes for each pair of input records", bytes / u64::from(size));
    drop(engine);
}

/// Runs a part of this bench in a process of its own, without memory that an earlier part has freed.
fn in_fresh_process(arguments: &[&str]) {
    let this = std::env::current_exe().expect("the path of this program");
    let status = std::process::Command::new(this).args(arguments).status().expect("start a process");
    assert!(status.success(), "{arguments:?}: {status}");
}

/// A pod. Its address is an endpoint of services.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Pod {
    address: String,
    node: u32,
    ready: bool,
}

/// An EndpointSlice: a service, and its pods by their keys.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct Slice {
    service: u32,
    pods: Vec<u32>,
}

/// The inputs of a composite.
#[derive(Clone)]
struct MeshInputs {
    pods: Input<u32, Pod>,
    slices: Input<u32, Slice>,
    services: Option<Input<u32, BenchRecord>>,
    routes: Option<Input<u32, BenchRecord>>,
}

fn pod(key: u32, ready: bool) -> Pod {
    Pod { address: format!("10.{}.{}.{}", key >> 16, key >> 8 & 255, key & 255), node: key % 500, ready }
}

/// Simulates the encoding of an endpoint assignment: a header, then each address.
fn encode<'a>(pods: impl Iterator<Item = &'a Pod>) -> Vec<u8> {
    let mut bytes = b"\x0a\x2aoutbound|80||service.namespace.svc.cluster.local".to_vec();
    for pod in pods {
        bytes.extend_from_slice(pod.address.as_bytes());
        bytes.push(u8::from(pod.ready));
    }
    bytes
}

/// From pods and slices to one assignment per service, with index, join, index and group.
fn composite(b: &mut GraphBuilder) -> MeshInputs {
    b.dataflow("endpoints", |g| {
        let (pods_in, pods) = g.priority_input::<u32, Pod>("pods");
        let (slices_in, slices) = g.priority_input::<u32, Slice>("slices");
        let endpoints = endpoints(&pods, &slices);
        let by_service = endpoints.index("endpoints/by-service", |(service, ..), pod| [(*service, pod.clone())]);
        drop(by_service.group("assignments", |_, rows| Some(encode(rows.iter().map(|(_, pod)| *pod)))).publish());
        MeshInputs { pods: pods_in, slices: slices_in, services: None, routes: None }
    })
}

fn endpoints<'s>(
    pods: &Collection<'s, u32, Pod>,
    slices: &Collection<'s, u32, Slice>,
) -> Collection<'s, (u32, u32, u32), Pod> {
    let by_pod =
        slices.index("slices/by-pod", |_, slice| slice.pods.iter().map(|p| (*p, slice.service)).collect::<Vec<_>>());
    by_pod.join("endpoints", pods, |pod, slice, service, value| Some(((*service, *slice, *pod), value.clone())))
}

/// The same with `derive`, which looks up the pods of a slice.
fn composite_derived(b: &mut GraphBuilder) -> MeshInputs {
    b.dataflow("endpoints", |g| {
        let (pods_in, pods) = g.priority_input::<u32, Pod>("pods");
        let (slices_in, slices) = g.priority_input::<u32, Slice>("slices");
        let assignments = slices.derive("assignments", |d| {
            let pods = d.on(&pods);
            move |cx, _, slice: &Slice| {
                let pods: Vec<_> = slice.pods.iter().filter_map(|pod| cx.get(&pods, pod)).collect();
                Some(encode(pods.iter().map(|pod| &**pod)))
            }
        });
        drop(assignments.publish());
        MeshInputs { pods: pods_in, slices: slices_in, services: None, routes: None }
    })
}

/// The collections of a small control plane: assignments for two ports, clusters, and routes for a fifth of the services.
fn everything(b: &mut GraphBuilder) -> MeshInputs {
    b.dataflow("mesh", |g| {
        let (services_in, services) = g.input::<u32, BenchRecord>("services");
        let (routes_in, routes) = g.input::<u32, BenchRecord>("routes");
        let (pods_in, pods) = g.priority_input::<u32, Pod>("pods");
        let (slices_in, slices) = g.priority_input::<u32, Slice>("slices");
        let clusters = services.flat_map("clusters", |service, v| {
            [80u16, 90].map(|port| ((*service, port), format!("outbound|{port}||{} {:200}", v.name, v.version)))
        });
        drop(clusters.publish());
        let hosts = services.derive("virtual_hosts", |d| {
            let routes = d.on(&routes);
            move |cx, key, v: &BenchRecord| {
                let route = cx.get(&routes, key);
                let version = route.as_ref().map_or(0, |route| route.version);
                Some(format!("{} {} {version:300}", v.name, usize::from(route.is_some())))
            }
        });
        drop(hosts.publish());
        let endpoints = endpoints(&pods, &slices);
        let by_service = endpoints.index("endpoints/by-service", |(service, ..), pod| [(*service, pod.clone())]);
        let assignments = services.derive("assignments", |d| {
            let by_service = d.by(&by_service);
            move |cx, key, _: &BenchRecord| {
                let rows = cx.by(&by_service, key);
                Some([80u16, 90].map(|port| (port, encode(rows.iter().map(|(_, pod)| &**pod)))).to_vec())
            }
        });
        let by_port = assignments.flat_map("assignments/by-port", |service, ports| {
            ports.iter().map(|(port, bytes)| ((*service, *port), bytes.clone())).collect::<Vec<_>>()
        });
        drop(by_port.publish());
        MeshInputs { pods: pods_in, slices: slices_in, services: Some(services_in), routes: Some(routes_in) }
    })
}

fn process_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Writes all records in one epoch. Returns the wall time and the CPU time of all threads, both with the time to
/// create the records.
fn load(engine: &Engine, mesh: &MeshInputs, services: u32, each: u32) -> (Duration, Duration) {
    let (start, cpu) = (Instant::now(), process_cpu());
    engine.transaction(|tx| {
        if let Some(input) = &mesh.services {
            tx.replace_all(input, (0..services).map(|key| (key, record(key, 0))));
        }
        if let Some(input) = &mesh.routes {
            tx.replace_all(input, (0..services).step_by(5).map(|key| (key, record(key, 0))));
        }
        tx.replace_all(&mesh.pods, (0..services * each).map(|key| (key, pod(key, true))));
        let slice = |key| Slice { service: key, pods: (key * each..(key + 1) * each).collect() };
        tx.replace_all(&mesh.slices, (0..services).map(|key| (key, slice(key))));
    });
    (start.elapsed(), process_cpu().saturating_sub(cpu))
}

fn mesh(name: &str, build: BuildMesh, services: u32, each: u32, changes: u32) {
    let before = resident_bytes();
    let (engine, mesh) = start(build);
    let (wall, cpu) = load(&engine, &mesh, services, each);
    let bytes = resident_bytes().saturating_sub(before);
    let mut times = Vec::new();
    for n in 0..changes {
        let key = n.wrapping_mul(2_654_435_761) % (services * each);
        mesh.pods.set(key, pod(key, n % 2 == 1));
        engine.flush();
        times.push(engine.metrics().last_epoch);
    }
    let mut batched = Duration::ZERO;
    for round in 0..10u32 {
        engine.transaction(|tx| {
            for n in 0..1000u32 {
                let key = (n * 7919 + round * 104_729) % (services * each);
                tx.set(&mesh.pods, key, Pod { node: 1000 + round, ..pod(key, true) });
            }
        });
        batched += engine.metrics().last_epoch;
    }
    println!(
        "  {name:<22} {services:>6} × {each}: load {:.2} s ({:.2} s CPU of all threads), {:.1} KB a service; one pod: {}; batch of 1000: {:.0}/s",
        wall.as_secs_f64(),
        cpu.as_secs_f64(),
        bytes as f64 / 1024.0 / f64::from(services),
        percentiles(times),
        10_000.0 / batched.as_secs_f64(),
    );
}

type BuildMesh = fn(&mut GraphBuilder) -> MeshInputs;

const MESHES: [(&str, BuildMesh); 3] =
    [("index+join+index+group", composite), ("derive", composite_derived), ("everything", everything)];

/// Runs the part that the arguments name, if this process was started by [`in_fresh_process`]. Returns whether it was.
fn run_part() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u32>().ok()).unwrap_or(1_000);
    match arguments.first().map(String::as_str) {
        Some("memory-of") => {
            for (name, derivation) in OPERATORS.iter().filter(|(name, _)| *name == arguments[1]) {
                memory_of(name, *derivation, number(2));
            }
        }
        Some("mesh-of") => {
            for (name, build) in MESHES.iter().filter(|(name, _)| *name == arguments[1]) {
                mesh(name, *build, number(2), 5, number(3));
            }
        }
        _ => return false,
    }
    true
}

fn main() {
    if run_part() {
        return;
    }
    let quick = std::env::args().any(|arg| arg == "--quick" || arg == "--test");
    let only_mesh = std::env::args().any(|arg| arg == "mesh");
    let (sizes, size, changes): (&[u32], u32, u32) =
        if quick { (&[1_000], 5_000, 500) } else { (&[1_000, 10_000, 50_000], 50_000, 10_000) };
    println!("composites: pods and slices to assignments (dataflow CPU)");
    let shapes: &[u32] = if quick { &[1_000] } else { &[1_000, 10_000, 50_000] };
    for services in shapes {
        for (name, _) in MESHES {
            in_fresh_process(&["mesh-of", name, &services.to_string(), &changes.to_string()]);
        }
    }
    if only_mesh {
        return;
    }
    memory(size);
    batches(size);
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(if quick { 200 } else { 700 }))
        .without_plots();
    one_change(&mut criterion, sizes);
    idle(&mut criterion);
    criterion.final_summary();
}
