//! The graph alone, without sockets: time and processed records of one epoch, and memory. `cargo bench -p sluice-graph`,
//! or `-- NAME` for the shapes whose name begins with NAME.
//!
//! Times are CPU time of the dataflow thread. Sizes are the growth of resident memory under jemalloc in a fresh process.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock, its arguments and its own memory")]
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

use std::ops::Range;
use std::time::Duration;

use serde_json::{Value as Json, json};
use sluice_engine::{Clock, Engine, EngineOptions, Origin};
use sluice_graph::{AddressPools, GraphOptions, Handles, build};
use sluice_model::{Locality, Proxy, ProxyKey};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A running graph.
struct BenchGraph {
    engine: Engine,
    handles: Handles,
    /// CPU time of the epoch with all objects.
    load: Duration,
    before: u64,
}

/// The costs of epochs.
#[derive(Default)]
struct Costs {
    epochs: Vec<Duration>,
    records_in: u64,
    records_out: u64,
}

fn cpu_clock() -> Clock {
    Clock::new(|| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    })
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * 4096
}

impl BenchGraph {
    fn new(objects: impl IntoIterator<Item = Json>) -> Self {
        let options = GraphOptions { address_pools: Some(AddressPools::default()), ..GraphOptions::default() };
        let start = EngineOptions { clock: cpu_clock(), ..EngineOptions::default() };
        let (engine, handles) = Engine::start(start, move |builder| build(builder, &options));
        let mut graph = Self { engine, handles, load: Duration::ZERO, before: resident_bytes() };
        graph.apply(objects);
        graph.load = graph.engine.metrics().last_epoch;
        graph.engine.transaction(|tx| graph.handles.inputs.mark_all_synced(tx));
        graph
    }

    /// Writes objects in one epoch.
    fn apply(&self, objects: impl IntoIterator<Item = Json>) {
        self.engine.transaction(|tx| {
            for object in objects {
                let parsed = sluice_parse::parse_object(&"Kubernetes".into(), "cluster.local", &object);
                let parsed = parsed.unwrap_or_else(|error| panic!("{object}: {error:?}"));
                self.handles.inputs.apply(tx, parsed, Origin::default());
            }
        });
    }

    /// Sidecars of a workload connect in one epoch.
    fn connect(&self, workload: &str, numbers: Range<usize>, place: impl Fn(usize) -> ClientPlace) {
        self.engine.transaction(|tx| {
            for number in numbers {
                let proxy = sidecar(workload, number, &place(number));
                tx.set(&self.handles.inputs.proxies, ProxyKey(proxy.id.clone()), proxy);
            }
        });
    }

    /// Adds the costs of the epoch that `write` makes.
    fn measure(&self, costs: &mut Costs, write: impl FnOnce(&Self)) {
        let count = || {
            let collections = self.engine.metrics().collections;
            let sums = collections.iter().map(|collection| (collection.records_in, collection.records_out));
            sums.fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
        };
        let before = count();
        write(self);
        let after = count();
        costs.epochs.push(self.engine.metrics().last_epoch);
        costs.records_in += after.0 - before.0;
        costs.records_out += after.1 - before.1;
    }

    fn show(&self, shape: &str, mut costs: Costs) {
        let quarter = costs.epochs.len().div_ceil(4);
        let sum_ms = |epochs: &[Duration]| ms(epochs.iter().sum());
        let [first, last] = [&costs.epochs[..quarter], &costs.epochs[costs.epochs.len() - quarter..]].map(sum_ms);
        costs.epochs.sort();
        let count = costs.epochs.len();
        let at = |share: f64| ms(costs.epochs[((count - 1) as f64 * share) as usize]);
        println!(
            "{shape}: load {:.2} s, {:.0} MiB; {count} epochs, {:.2} ms p50, {:.2} ms p99, {:.2} ms max, \
             {:.1} ms in all, {first:.1} ms the first quarter, {last:.1} ms the last; {} records in, {} out per epoch",
            self.load.as_secs_f64(),
            resident_bytes().saturating_sub(self.before) as f64 / f64::from(1 << 20),
            at(0.5),
            at(0.99),
            at(1.0),
            sum_ms(&costs.epochs),
            costs.records_in / count as u64,
            costs.records_out / count as u64,
        );
    }
}

/// The node and the zone of a client.
struct ClientPlace {
    node: usize,
    zone: usize,
}

fn own_node(number: usize) -> ClientPlace {
    ClientPlace { node: number, zone: number % 3 }
}

fn sidecar(workload: &str, number: usize, place: &ClientPlace) -> Proxy {
    let (name, ip) = (format!("{workload}-{number}"), address(1 << 20 | number));
    Proxy {
        id: format!("sidecar~{ip}~{name}.bench~bench.svc.cluster.local").into(),
        ips: vec![ip.into()],
        name: name.into(),
        namespace: "bench".into(),
        cluster: "Kubernetes".into(),
        node_name: format!("node-{}", place.node).into(),
        locality: Locality::parse(&format!("region/zone-{}", place.zone)),
        labels: [("app".into(), workload.into())].into(),
        ..Proxy::default()
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn address(number: usize) -> String {
    format!("10.{}.{}.{}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff)
}

fn kubernetes_service(name: &str, spec: &Json) -> Json {
    let mut spec = spec.clone();
    spec["ports"] = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
    spec["selector"] = json!({"app": name});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "bench"}, "spec": spec})
}

/// The endpoints of Services. Those of a Service are in slices of 100, as Kubernetes writes them.
#[derive(Clone, Copy)]
struct EndpointShape {
    services: usize,
    /// Of each Service.
    endpoints: usize,
    nodes: usize,
}

/// A change of an endpoint.
#[derive(Clone, Copy, Eq, PartialEq)]
enum EndpointChange {
    None,
    NotReady(usize),
    Removed(usize),
}

const SLICE: usize = 100;
/// No further changes of endpoints are made after this time.
const MAX_TIME: Duration = Duration::from_secs(10);

impl EndpointShape {
    fn slices(self) -> usize {
        self.endpoints.div_ceil(SLICE)
    }

    /// A slice of a Service, with its pods.
    fn slice(self, service: usize, number: usize, change: EndpointChange) -> Vec<Json> {
        let mut objects = Vec::new();
        let mut rows = Vec::new();
        for at in number * SLICE..self.endpoints.min((number + 1) * SLICE) {
            let pod = service * self.endpoints + at;
            let (name, ready) = (format!("service-{service}-{at}"), change != EndpointChange::NotReady(at));
            if change != EndpointChange::Removed(at) {
                rows.push(json!({"addresses": [address(pod)],
                    "conditions": {"ready": ready, "serving": ready, "terminating": false},
                    "targetRef": {"kind": "Pod", "name": name, "namespace": "bench"}}));
            }
            objects.push(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": "bench",
                    "labels": {"app": format!("service-{service}"), "version": "v1", "security.istio.io/tlsMode": "istio"}},
                "spec": {"nodeName": format!("node-{}", pod % self.nodes), "serviceAccountName": "server"},
                "status": {"phase": "Running", "podIP": address(pod)}}));
        }
        objects.push(json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("service-{service}-{number}"), "namespace": "bench",
                "labels": {"kubernetes.io/service-name": format!("service-{service}")}},
            "ports": [{"name": "http", "port": 8080}], "endpoints": rows}));
        objects
    }

    /// The Services with their slices and pods, the nodes in three zones, and `others`.
    fn start(self, spec: &Json, others: Vec<Json>) -> BenchGraph {
        let nodes = (0..self.nodes).map(|node| {
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{node}"), "labels":
                {"topology.kubernetes.io/region": "region", "topology.kubernetes.io/zone": format!("zone-{}", node % 3)}}})
        });
        let of_service = |service: usize| {
            let mut spec = spec.clone();
            spec["clusterIP"] = json!(format!("172.16.{}.{}", service >> 8, service & 0xff));
            let slices = (0..self.slices()).flat_map(move |number| self.slice(service, number, EndpointChange::None));
            slices.chain([kubernetes_service(&format!("service-{service}"), &spec)])
        };
        BenchGraph::new(nodes.chain((0..self.services).flat_map(of_service)).chain(others))
    }

    /// Endpoints become not ready and ready again, and are removed and added again, one in each epoch.
    fn change(self, graph: &BenchGraph) -> Costs {
        let mut costs = Costs::default();
        for turn in 0..100 {
            if costs.epochs.iter().sum::<Duration>() > MAX_TIME {
                break;
            }
            let service = turn * 7919 % self.services;
            let at = (turn * 7919 % self.slices() * SLICE + turn % SLICE) % self.endpoints;
            let number = at / SLICE;
            let change = if turn % 2 == 0 { EndpointChange::NotReady(at) } else { EndpointChange::Removed(at) };
            for change in [change, EndpointChange::None] {
                let changed = self.slice(service, number, change).pop();
                graph.measure(&mut costs, |graph| graph.apply(changed));
            }
        }
        costs
    }
}

/// One endpoint changes, with `proxies` clients on as many nodes.
fn endpoints(name: &str, shape: EndpointShape, proxies: usize, spec: &Json, others: Vec<Json>) {
    let graph = shape.start(spec, others);
    graph.connect("client", 0..proxies, own_node);
    let costs = shape.change(&graph);
    graph.show(name, costs);
}

/// Nodes connect one after another, beside a Service with node-local traffic.
fn node_storm(nodes: usize) {
    let shape = EndpointShape { services: 1, endpoints: nodes, nodes };
    let graph = shape.start(&json!({"internalTrafficPolicy": "Local"}), Vec::new());
    let mut costs = Costs::default();
    for node in 0..nodes {
        graph.measure(&mut costs, |graph| graph.connect("client", node..node + 1, own_node));
    }
    graph.show(&format!("node-local/{nodes} nodes connect"), costs);
}

/// Replicas of one workload connect one after another.
fn storm(proxies: usize) {
    let sidecar = json!({"apiVersion": "networking.istio.io/v1", "kind": "Sidecar",
        "metadata": {"name": "default", "namespace": "bench"}, "spec": {"egress": [{"hosts": ["./*"]}]}});
    let graph = BenchGraph::new([kubernetes_service("web", &json!({"clusterIP": "10.0.0.1"})), sidecar]);
    let mut costs = Costs::default();
    for proxy in 0..proxies {
        graph.measure(&mut costs, |graph| graph.connect("web", proxy..proxy + 1, |_| ClientPlace { node: 0, zone: 0 }));
    }
    graph.show(&format!("storm/{proxies} replicas connect"), costs);
}

fn entry(namespace: &str, number: usize) -> Json {
    json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": {"name": format!("entry-{number}"), "namespace": namespace,
            "creationTimestamp": format!("2024-01-01T{:02}:{:02}:{:02}Z", number / 3600 % 24, number / 60 % 60, number % 60)},
        "spec": {"hosts": [format!("host-{number}.example")], "resolution": "DNS",
            "ports": [{"number": 443, "name": "tls", "protocol": "TLS"}]}})
}

/// ServiceEntries without addresses are added to `entries`.
fn allocation(entries: usize) {
    let graph = BenchGraph::new((0..entries).map(|number| entry("bench", number)));
    let mut costs = Costs::default();
    for number in entries..entries + 100 {
        graph.measure(&mut costs, |graph| graph.apply([entry("bench", number)]));
    }
    graph.show(&format!("allocation/beside {entries} ServiceEntries"), costs);
}

/// A namespace starts and stops to match `discoverySelectors`, beside `entries` in another one.
fn discovery(entries: usize, selectors: bool) {
    let mesh = if selectors { "discoverySelectors: [{matchLabels: {mesh: 'yes'}}]" } else { "{}" };
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"},
        "data": {"mesh": mesh}});
    let namespace = |name: &str, label: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"mesh": label}}});
    let all = (0..entries).map(|number| entry("bench", number));
    let graph = BenchGraph::new(all.chain([config, namespace("bench", "yes"), entry("small", entries)]));
    let mut costs = Costs::default();
    for turn in 0..20 {
        let label = if turn % 2 == 0 { "yes" } else { "no" };
        graph.measure(&mut costs, |graph| graph.apply([namespace("small", label)]));
    }
    let selectors = if selectors { "with" } else { "without" };
    graph.show(&format!("discovery/beside {entries} objects, {selectors} selectors"), costs);
}

/// An EnvoyFilter of the root namespace changes, whose patches match all resources of a kind that one client receives.
fn patches(services: usize, count: usize, apply_to: &str, value: &Json) {
    let services = (0..services).map(|number| {
        let ip = format!("172.16.{}.{}", number >> 8, number & 0xff);
        kubernetes_service(&format!("service-{number}"), &json!({"clusterIP": ip}))
    });
    let graph = BenchGraph::new(services);
    graph.connect("client", 0..1, own_node);
    let filter = |count: usize| {
        let patch = json!({"applyTo": apply_to, "patch": {"operation": "MERGE", "value": value}});
        json!({"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter",
            "metadata": {"name": "all", "namespace": "istio-system"}, "spec": {"configPatches": vec![patch; count]}})
    };
    let mut costs = Costs::default();
    for turn in 0..10 {
        graph.measure(&mut costs, |graph| graph.apply([filter(count - turn % 2)]));
    }
    graph.show(&format!("patches/{count} of all {apply_to}"), costs);
}

/// A shape, by its name.
type Shape = (&'static str, fn());

const SHAPES: [Shape; 16] = [
    ("small", || {
        let shape = EndpointShape { services: 1_000, endpoints: 5, nodes: 100 };
        endpoints("small/1,000 Services × 5 endpoints, 100 proxies", shape, 100, &json!({}), Vec::new());
    }),
    ("endpoints-250", || large(250)),
    ("endpoints-1000", || large(1_000)),
    ("endpoints-10000", || large(10_000)),
    ("endpoints-100000", || large(100_000)),
    ("zones-100000", || {
        let rule = json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": {"name": "service-0", "namespace": "bench"},
            "spec": {"host": "service-0.bench.svc.cluster.local",
                "trafficPolicy": {"outlierDetection": {"consecutive5xxErrors": 5}}}});
        let shape = EndpointShape { services: 1, endpoints: 100_000, nodes: 100 };
        endpoints("endpoints/100,000, 100 proxies in 3 zones with failover", shape, 100, &json!({}), vec![rule]);
    }),
    ("node-local", || {
        let shape = EndpointShape { services: 1, endpoints: 5_000, nodes: 5_000 };
        let spec = json!({"internalTrafficPolicy": "Local"});
        endpoints("node-local/5,000 endpoints on 5,000 nodes", shape, 5_000, &spec, Vec::new());
    }),
    ("node-storm", || node_storm(1_000)),
    ("storm-2000", || storm(2_000)),
    ("storm-4000", || storm(4_000)),
    ("allocation-1000", || allocation(1_000)),
    ("allocation-10000", || allocation(10_000)),
    ("discovery-none", || discovery(10_000, false)),
    ("discovery-selectors", || discovery(10_000, true)),
    ("patches-clusters", || {
        patches(1_000, 1_000, "CLUSTER", &json!({"metadata": {"filter_metadata": {"team": {"a": 1}}}}))
    }),
    ("patches-routes", || {
        patches(1_000, 1_000, "HTTP_ROUTE", &json!({"metadata": {"filter_metadata": {"team": {"a": 1}}}}))
    }),
];

/// A Service with this number of endpoints.
fn large(count: usize) {
    let shape = EndpointShape { services: 1, endpoints: count, nodes: 100 };
    endpoints(&format!("endpoints/{count}, 100 proxies"), shape, 100, &json!({}), Vec::new());
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let [mark, name] = arguments.as_slice()
        && mark == "shape"
    {
        SHAPES.iter().filter(|(known, _)| known == name).for_each(|(_, run)| run());
        return;
    }
    let only = arguments.first().map_or("", String::as_str);
    for (name, _) in SHAPES.iter().filter(|(name, _)| name.starts_with(only)) {
        // In a process of its own, without memory that an earlier shape has freed.
        let this = std::env::current_exe().expect("the path of this program");
        let status = std::process::Command::new(this).args(["shape", name]).status().expect("start a process");
        assert!(status.success(), "{name}: {status}");
    }
}
