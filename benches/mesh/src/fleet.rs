//! All proxies together.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http::HeaderValue;
use sluice_proto::envoy::config::core::v3::Node;
use sluice_tasks::DedicatedRuntime;
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::arguments::AdsProtocol;
use crate::change_tracker::{ChangeTracker, Expectation};
use crate::client::{self, Pace, SimulatedProxy};
use crate::messages::RecentRequests;
use crate::scan::Type;
use crate::shape::{Role, Shape};
use crate::shared::{Shared, Traffic};
use crate::socket::Clock;
use crate::{gateway, nodes};

/// The types that a proxy requests before it has received anything.
const ENVOY_TYPES: &[Type] = &[Type::Cds];
const ZTUNNEL_TYPES: &[Type] = &[Type::Address, Type::Authorization];

/// Proxies of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ProxyGroup {
    /// Sidecars by their numbers in the shape.
    pub(crate) sidecars: Range<usize>,
    /// Number of gateways after them.
    pub(crate) gateways: usize,
    /// Number of waypoints after the gateways.
    pub(crate) waypoints: usize,
    /// Number of ztunnels after the waypoints.
    pub(crate) ztunnels: usize,
    pub(crate) protocol: AdsProtocol,
    /// They subscribe to virtual hosts one by one (VHDS).
    pub(crate) by_virtual_host: bool,
    /// They subscribe to endpoints one by one (LEDS).
    pub(crate) by_locality: bool,
    /// Sidecars request the clusters of so many services on demand (ODCDS).
    pub(crate) on_demand_clusters: Option<usize>,
    /// Flow-control window of each, in bytes.
    pub(crate) window: u32,
    /// They keep digests of the content they hold. Hashing takes time.
    pub(crate) digests: bool,
    pub(crate) priority: ProxyPriority,
}

impl ProxyGroup {
    pub(crate) fn len(&self) -> usize {
        self.sidecars.len() + self.gateways + self.waypoints + self.ztunnels
    }

    /// The role of the proxy of that number.
    pub(crate) fn role(&self, proxy: usize) -> Role {
        let Some(gateway) = proxy.checked_sub(self.sidecars.len()) else {
            return Role::Sidecar(self.sidecars.start + proxy);
        };
        let Some(waypoint) = gateway.checked_sub(self.gateways) else { return Role::Gateway(gateway) };
        match waypoint.checked_sub(self.waypoints) {
            None => Role::Waypoint(waypoint),
            Some(ztunnel) => Role::Ztunnel(ztunnel),
        }
    }
}

/// The simulated proxies.
pub(crate) struct Fleet {
    pub(crate) shared: Arc<Shared>,
    shape: Shape,
    group: ProxyGroup,
    nodes: Vec<Arc<Node>>,
    connected: Vec<ConnectedProxy>,
    /// The runtime of their tasks.
    runtime: DedicatedRuntime,
}

/// A proxy with a task that keeps its stream open.
struct ConnectedProxy {
    number: usize,
    task: JoinHandle<SimulatedProxy>,
    stop: Arc<Notify>,
}

/// The outcome of one change.
pub(crate) struct ChangeOutcome {
    /// Milliseconds from the write, by proxy, sorted.
    pub(crate) latencies: Vec<f64>,
    /// Proxies that the change did not reach in time.
    pub(crate) missed: usize,
    pub(crate) traffic: Traffic,
}

impl Fleet {
    pub(crate) fn new(shape: &Shape, group: ProxyGroup, address: SocketAddr) -> anyhow::Result<Self> {
        let (proxies, runtime) = (group.len(), proxy_runtime(group.priority)?);
        let nodes = (0..proxies).map(|proxy| {
            let role = group.role(proxy);
            let mut node = nodes::node(shape, role, group.by_virtual_host);
            if group.by_locality {
                node["metadata"]["LEDS"] = "true".into();
            }
            if group.on_demand_clusters.is_some() && matches!(role, Role::Sidecar(_)) {
                node["metadata"]["ON_DEMAND_CLUSTERS"] = "true".into();
            }
            Ok(Arc::new(sluice_proto::json::decode::<Node>(&node)?.message))
        });
        let shared = Shared {
            protocol: group.protocol,
            window: group.window,
            dictionaries: Default::default(),
            recent: RecentRequests::default(),
            address: RwLock::new(address),
            clock: Clock::new(),
            tracker: RwLock::default(),
            arrived: Notify::new(),
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            resources: std::array::from_fn(|_| AtomicU64::new(0)),
            ended: AtomicU64::new(0),
            last_arrival: AtomicU64::new(0),
            configured: (0..proxies).map(|_| AtomicU64::new(0)).collect(),
            live: (0..proxies).map(|_| AtomicBool::new(true)).collect(),
            disconnect_requests: (0..proxies).map(|_| Notify::new()).collect(),
            digests: group.digests,
            is_idle: group.priority == ProxyPriority::Idle,
        };
        Ok(Self {
            shared: Arc::new(shared),
            nodes: nodes.collect::<anyhow::Result<_>>()?,
            shape: *shape,
            group,
            connected: Vec::new(),
            runtime,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The role of the proxy of that number.
    pub(crate) fn role(&self, proxy: usize) -> Role {
        self.group.role(proxy)
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.shared.traffic()
    }

    /// Ends a proxy's stream; it reconnects at once with the versions it holds.
    pub(crate) fn request_disconnect(&self, proxy: usize) {
        self.shared.disconnect_requests[proxy].notify_one();
    }

    /// Connects all proxies at once, each with the versions it holds.
    pub(crate) fn connect(&mut self, clients: Vec<SimulatedProxy>) {
        for client in clients {
            let stop = Arc::new(Notify::new());
            let number = client.number;
            self.shared.set_configured(number, false);
            let task = self.runtime.handle().spawn(client::run(client, self.shared.clone(), stop.clone()));
            self.connected.push(ConnectedProxy { number, task, stop });
        }
    }

    /// Proxies that hold nothing.
    pub(crate) fn fresh(&self) -> Vec<SimulatedProxy> {
        let client = |(number, node): (usize, &Arc<Node>)| {
            let role = self.group.role(number);
            let is_gateway = matches!(role, Role::Gateway(_));
            let certificate = is_gateway.then(|| HeaderValue::from_static(gateway::CERTIFICATE));
            let first = if matches!(role, Role::Ztunnel(_)) { ZTUNNEL_TYPES } else { ENVOY_TYPES };
            let mut client = SimulatedProxy::new(number, node.clone(), certificate, first, &self.shared.dictionaries);
            if let (Role::Sidecar(sidecar), Some(services)) = (role, self.group.on_demand_clusters) {
                client.clusters_on_demand = self.needed_clusters(sidecar, services);
            }
            client
        };
        self.nodes.iter().enumerate().map(client).collect()
    }

    /// The clusters that a sidecar needs: those of so many services from its own on.
    fn needed_clusters(&self, sidecar: usize, services: usize) -> Vec<String> {
        let (own, _) = self.shape.proxy(sidecar);
        let numbers = (0..services).map(|next| (own.number + next) % self.shape.services);
        numbers.map(|number| self.shape.service(number).cluster()).collect()
    }

    /// Ends all streams; returns the proxies with the versions they hold.
    pub(crate) async fn disconnect(&mut self) -> Vec<SimulatedProxy> {
        self.disconnect_some(|_| true).await
    }

    /// Ends the streams of the proxies with these numbers; returns the proxies with the versions they hold.
    pub(crate) async fn disconnect_some(&mut self, selects: impl Fn(usize) -> bool) -> Vec<SimulatedProxy> {
        let ended: Vec<_> = self.connected.extract_if(.., |proxy| selects(proxy.number)).collect();
        for proxy in &ended {
            proxy.stop.notify_one();
        }
        let mut clients = Vec::new();
        for proxy in ended {
            if let Ok(client) = proxy.task.await {
                clients.push(client);
            }
        }
        clients
    }

    /// Sets the server's address for the next streams.
    pub(crate) fn move_to(&self, address: SocketAddr) {
        *self.shared.address.write().unwrap_or_else(std::sync::PoisonError::into_inner) = address;
    }

    /// Sets how a proxy reads, from its next stream on. Only one that reads promptly is expected to receive changes.
    pub(crate) fn set_pace(&self, client: &mut SimulatedProxy, pace: Pace) {
        client.pace = pace;
        self.shared.live[client.number].store(pace == Pace::Prompt, Relaxed);
    }

    /// Waits until the live proxies are configured. Returns milliseconds since `start` for each, sorted, and the number
    /// of those that are not.
    pub(crate) async fn configured(&self, start: Instant, timeout: Duration) -> (Vec<f64>, usize) {
        let live = || {
            let live = self.shared.live.iter().map(|live| live.load(Relaxed));
            live.zip(&self.shared.configured).filter(|(live, _)| *live).map(|(_, at)| at.load(Relaxed))
        };
        let mut last_report = Instant::now();
        while start.elapsed() < timeout && live().any(|at| at == 0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
            if last_report.elapsed() > Duration::from_secs(5) {
                last_report = Instant::now();
                eprintln!("  {} of {} configured", live().filter(|at| *at > 0).count(), live().count());
            }
        }
        let start_nanos = self.shared.at(start);
        let mut times: Vec<f64> =
            live().filter(|at| *at > 0).map(|at| milliseconds(at.saturating_sub(start_nanos))).collect();
        times.sort_by(f64::total_cmp);
        (times, live().filter(|at| *at == 0).count())
    }

    /// Makes a change and follows it to the last proxy, until no message has arrived for `quiet`.
    pub(crate) async fn follow(
        &self,
        expected: Vec<Expectation>,
        affected: impl Fn(Role) -> bool,
        (timeout, quiet): (Duration, Duration),
        write: impl FnOnce() -> anyhow::Result<Instant>,
    ) -> anyhow::Result<ChangeOutcome> {
        let live = self.shared.live.iter().map(|live| live.load(Relaxed)).enumerate();
        let affected: Vec<bool> = live.map(|(proxy, live)| live && affected(self.group.role(proxy))).collect();
        let tracker = Arc::new(ChangeTracker::new(expected, &affected));
        *self.shared.tracker.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(tracker.clone());
        let before = self.traffic();
        let written = write()?;
        let deadline = written + timeout;
        while tracker.left() > 0 && Instant::now() < deadline {
            // The notification may be of the previous change.
            let _ = tokio::time::timeout_at(deadline.into(), self.shared.arrived.notified()).await;
        }
        self.settle(written, quiet, deadline).await;
        *self.shared.tracker.write().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        let start_nanos = self.shared.at(written);
        let times = tracker.times();
        Ok(ChangeOutcome {
            latencies: times.iter().map(|at| milliseconds(at.saturating_sub(start_nanos))).collect(),
            missed: tracker.left(),
            traffic: self.traffic().since(&before),
        })
    }

    /// Waits until no message has arrived for `quiet`.
    pub(crate) async fn settle(&self, since: Instant, quiet: Duration, deadline: Instant) {
        loop {
            let now = self.shared.now();
            let last = self.shared.last_arrival.load(Relaxed).max(self.shared.at(since));
            let silent = Duration::from_nanos(now.saturating_sub(last));
            if silent >= quiet || Instant::now() > deadline {
                return;
            }
            tokio::time::sleep(quiet - silent).await;
        }
    }
}

/// Which threads go before those of the proxies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ProxyPriority {
    /// All: the proxies get a CPU only when no other thread needs it, as if they ran on other machines.
    Idle,
    /// None.
    Normal,
}

/// Threads for proxies.
///
/// # Errors
/// The threads cannot be started.
pub(crate) fn proxy_runtime(priority: ProxyPriority) -> anyhow::Result<DedicatedRuntime> {
    let on_start = move || {
        if priority == ProxyPriority::Idle {
            let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
            // If this fails, the measured latencies are higher, never lower.
            let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
        }
    };
    DedicatedRuntime::new("proxies", on_start).context("start the threads of proxies")
}

pub(crate) fn milliseconds(nanos: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds")]
    let value = nanos as f64 / 1e6;
    value
}
