//! A server with its objects and its proxies, prepared for measurements.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sluice_testkit::fault_proxy::FaultProxy;

use crate::api::Api;
use crate::arguments::{AdsProtocol, Driver, MeasureOptions};
use crate::change::{self, ChangeKind, Plan, PlannedChange};
use crate::connect;
use crate::fleet::{Fleet, ProxyGroup, ProxyPriority};
use crate::loopback;
use crate::mesh_objects::{MeshObjects, ObjectTarget};
use crate::process::{Memory, Process};
use crate::report;
use crate::result::{ChangeResult, Machine, Round, RunResult, SHARES, StormResult};
use crate::server::{ObjectSource, Server, ServerOptions};
use crate::shape::Shape;
use crate::statistics::{of, percentile};

/// Number of the service that changes of one service are about; the first one with HTTP from there.
pub(crate) const CHANGED_SERVICE: usize = 0;

/// The mesh to set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) shape: Shape,
    pub(crate) proxies: usize,
    pub(crate) server: ServerChoice,
    /// Directory that objects are written to; a temporary one if none.
    pub(crate) config_dir: Option<PathBuf>,
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The server reads the API of this process through a proxy that can fail.
    pub(crate) api_proxy: bool,
    /// Number of starts of the server.
    pub(crate) starts: usize,
    /// Proxies keep digests of the content they hold.
    pub(crate) digests: bool,
    /// Which threads go before those of the proxies.
    pub(crate) priority: ProxyPriority,
    /// The server serves webhooks, with the default templates of the injector.
    pub(crate) webhooks: bool,
    /// Further variables of the server's environment.
    pub(crate) environment: Vec<(String, OsString)>,
}

impl Setup {
    /// A server of this binary, started once, without what is optional.
    pub(crate) fn started(shape: Shape, proxies: usize, binary: &Path) -> Self {
        Self {
            shape,
            proxies,
            server: ServerChoice::Start(binary.to_owned()),
            config_dir: None,
            kubeconfig: None,
            api_proxy: false,
            starts: 1,
            digests: false,
            priority: ProxyPriority::Idle,
            webhooks: false,
            environment: Vec::new(),
        }
    }
}

/// The server to measure.
#[derive(Clone, Debug)]
pub(crate) enum ServerChoice {
    /// A binary to start.
    Start(PathBuf),
    /// A running server.
    Running(std::net::SocketAddr, Option<u32>),
}

/// A server with its objects and its proxies.
pub(crate) struct MeasuredMesh {
    pub(crate) objects: MeshObjects,
    pub(crate) server: Server,
    pub(crate) fleet: Fleet,
    pub(crate) group: ProxyGroup,
    /// How the server was started, if it was.
    pub(crate) server_options: Option<ServerOptions>,
    /// The proxy between the server and the API, if one was requested.
    pub(crate) api_proxy: Option<FaultProxy>,
    measure: MeasureOptions,
    machine: Machine,
    starts: Vec<f64>,
    ready_memory: Option<Memory>,
    connect: StormResult,
    _directory: tempfile::TempDir,
}

impl MeasuredMesh {
    /// Writes the objects, starts the server, connects the proxies.
    pub(crate) async fn open(setup: &Setup, measure: &MeasureOptions) -> Result<Self> {
        let Setup { shape, proxies, .. } = setup;
        ensure!(*proxies <= shape.pods(), "--proxies may be at most the {} pods of the shape", shape.pods());
        ensure!(
            !measure.virtual_hosts || measure.protocol == AdsProtocol::Delta,
            "--virtual-hosts needs --protocol delta"
        );
        ensure!(
            !measure.endpoints_by_locality || measure.protocol == AdsProtocol::Delta,
            "--endpoints-by-locality needs --protocol delta"
        );
        ensure!(
            measure.on_demand_clusters.is_none() || measure.protocol == AdsProtocol::Delta,
            "--on-demand-clusters needs --protocol delta"
        );
        ensure!(shape.ztunnels == 0 || measure.protocol == AdsProtocol::Delta, "--ztunnels needs --protocol delta");
        let machine = Machine::this();
        let directory = tempfile::tempdir().context("make a directory")?;
        let (target, source) = target_and_source(setup, measure, directory.path()).await?;
        eprintln!("writing {shape}");
        let objects = MeshObjects::create(target, shape)?;
        let (api_proxy, source) = match setup.api_proxy {
            true => proxied(&objects, directory.path()).await.map(|(proxy, source)| (Some(proxy), source))?,
            false => (None, source),
        };
        let mut starts = Vec::new();
        let (server, server_options) = match &setup.server {
            ServerChoice::Running(address, pid) => (Server::running(*address, *pid)?, None),
            ServerChoice::Start(binary) => {
                let server_options = ServerOptions {
                    binary: binary.clone(),
                    source,
                    directory: directory.path().to_owned(),
                    arguments: measure.server_arguments.clone(),
                    virtual_hosts: measure.virtual_hosts,
                    endpoints_by_locality: measure.endpoints_by_locality,
                    on_demand_clusters: measure.on_demand_clusters.is_some(),
                    webhooks: setup.webhooks,
                    secure: false,
                    log: None,
                    environment: environment(setup),
                };
                for _ in 1..setup.starts {
                    starts.push(Server::start(&server_options).await?.1);
                }
                let (server, seconds) = Server::start(&server_options).await?;
                starts.push(seconds);
                (server, Some(server_options))
            }
        };
        let ready_memory = server.process.as_ref().map(Process::memory).transpose()?;
        if let (Some(seconds), Some(memory)) = (starts.last(), ready_memory) {
            eprintln!("ready after {seconds:.2} s with {} MiB", memory.resident_kib / 1024);
        }
        let group = ProxyGroup {
            sidecars: 0..*proxies,
            gateways: shape.gateways,
            waypoints: shape.waypoints,
            ztunnels: shape.ztunnels,
            protocol: measure.protocol,
            by_virtual_host: measure.virtual_hosts,
            by_locality: measure.endpoints_by_locality,
            on_demand_clusters: measure.on_demand_clusters,
            window: measure.window.saturating_mul(1024),
            digests: setup.digests,
            priority: setup.priority,
        };
        let mut fleet = Fleet::new(shape, group.clone(), server.address)?;
        let fresh = fleet.fresh();
        let timeout = Duration::from_secs(measure.timeout.max(300));
        let mut connect = connect::connect("connect", &mut fleet, fresh, &server, timeout, connect::QUIET).await?;
        if let Some(process) = &server.process {
            tokio::time::sleep(Duration::from_secs(measure.rest)).await;
            connect.memory = Some(process.memory()?);
        }
        #[expect(clippy::cast_precision_loss, reason = "some bytes")]
        let bytes = connect.traffic.bytes as f64;
        connect.loopback_ms = sockets(measure, bytes, group.len(), 1).await?;
        eprintln!("{}", report::storm_line(&connect));
        ensure!(connect.missed == 0, "{} proxies were not configured", connect.missed);
        let measure = measure.clone();
        let mesh = Self {
            objects,
            server,
            fleet,
            group,
            server_options,
            api_proxy,
            measure,
            machine,
            starts,
            ready_memory,
            connect,
            _directory: directory,
        };
        Ok(mesh)
    }

    /// The requested kinds, or all that apply to this mesh if none is requested.
    pub(crate) fn kinds(&self, requested: &[ChangeKind]) -> Result<Vec<ChangeKind>> {
        let shape = &self.objects.shape;
        for kind in requested {
            if let Some(what) = kind.needs(shape) {
                bail!("{} needs {what}", kind.name());
            }
        }
        let kinds = if requested.is_empty() { ChangeKind::all() } else { requested.to_vec() };
        Ok(kinds.into_iter().filter(|kind| *kind != ChangeKind::None && kind.needs(shape).is_none()).collect())
    }

    fn plan(&self, kind: ChangeKind, round: usize) -> Result<PlannedChange> {
        let plan = Plan {
            target: CHANGED_SERVICE,
            by_virtual_host: self.measure.virtual_hosts,
            by_locality: self.measure.endpoints_by_locality,
        };
        change::plan(kind, &self.objects.shape, round, plan)
    }

    /// Makes a change and follows it to the last proxy.
    pub(crate) async fn round(&self, kind: ChangeKind, round: usize) -> Result<(usize, Round)> {
        let shape = self.objects.shape;
        let limits = (Duration::from_secs(self.measure.timeout), Duration::from_millis(self.measure.quiet));
        let own = Process::new(std::process::id())?;
        let PlannedChange { prepare, write, expected, affected } = self.plan(kind, round)?;
        let is_affected = |role| affected.includes(&shape, role);
        if let Some((prepare, expected)) = prepare {
            let followed = self.fleet.follow(expected, is_affected, limits, || prepare(&self.objects)).await?;
            ensure!(followed.missed == 0, "{} proxies did not get the preparation in time", followed.missed);
        }
        let affected_count = (0..self.fleet.len()).filter(|proxy| is_affected(self.fleet.role(*proxy))).count();
        let cpu = || self.server.process.as_ref().map(Process::cpu).transpose();
        let (server_before, own_before) = (cpu()?, own.cpu()?);
        let followed = self.fleet.follow(expected, is_affected, limits, || write(&self.objects)).await?;
        let (server_after, own_after) = (cpu()?, own.cpu()?);
        let latencies = &followed.latencies;
        let measured = Round {
            first_ms: latencies.first().copied(),
            last_ms: latencies.last().copied(),
            distribution_ms: match latencies.is_empty() {
                true => Vec::new(),
                false => SHARES.iter().map(|share| percentile(latencies, *share)).collect(),
            },
            missed: followed.missed,
            traffic: followed.traffic,
            server_cpu_seconds: server_after.zip(server_before).map(|(after, before)| after - before),
            own_cpu_seconds: own_after - own_before,
        };
        Ok((affected_count, measured))
    }

    /// Makes a change without following it; returns when it was written.
    pub(crate) fn write(&self, kind: ChangeKind, round: usize) -> Result<Instant> {
        (self.plan(kind, round)?.write)(&self.objects)
    }

    /// Makes a change. Returns the milliseconds until it reaches the last proxy, without waiting until messages stop.
    pub(crate) async fn brief_round(&self, kind: ChangeKind, round: usize) -> Result<Option<f64>> {
        let shape = self.objects.shape;
        let PlannedChange { write, expected, affected, .. } = self.plan(kind, round)?;
        let limits = (Duration::from_secs(self.measure.timeout), Duration::ZERO);
        let is_affected = |role| affected.includes(&shape, role);
        let followed = self.fleet.follow(expected, is_affected, limits, || write(&self.objects)).await?;
        // A pause, because changes without pauses would be a storm themselves.
        tokio::time::sleep(Duration::from_millis(20)).await;
        ensure!(followed.missed == 0, "{} proxies did not get a change in time", followed.missed);
        Ok(followed.latencies.last().copied())
    }

    /// Makes the changes of every requested kind, and prints each.
    pub(crate) async fn every_change(&self, requested: &[ChangeKind]) -> Result<Vec<ChangeResult>> {
        let mut changes = Vec::new();
        for kind in self.kinds(requested)? {
            let result = self.changes(kind).await?;
            eprintln!("{}", crate::report::change_line(&result));
            changes.push(result);
        }
        Ok(changes)
    }

    /// Makes the changes of a kind, after one that is not counted.
    pub(crate) async fn changes(&self, kind: ChangeKind) -> Result<ChangeResult> {
        let mut result = ChangeResult { kind, affected: 0, rounds: Vec::new(), loopback_ms: None };
        for number in 0..=self.measure.repeat {
            let (affected, round) = self.round(kind, number).await?;
            result.affected = affected;
            if number > 0 {
                result.rounds.push(round);
            }
        }
        self.measure_loopback(&mut result).await?;
        Ok(result)
    }

    /// Measures how long the same bytes take through bare sockets.
    pub(crate) async fn measure_loopback(&self, result: &mut ChangeResult) -> Result<()> {
        #[expect(clippy::cast_precision_loss, reason = "some bytes")]
        let bytes = result.median(|round| Some(round.traffic.bytes as f64)).unwrap_or_default();
        result.loopback_ms = sockets(&self.measure, bytes, result.affected, 3).await?;
        Ok(())
    }

    /// The whole result.
    pub(crate) fn result(&self, changes: Vec<ChangeResult>, storms: Vec<StormResult>) -> Result<RunResult> {
        Ok(RunResult {
            machine: self.machine.clone(),
            commit: commit(self.server_options.as_ref().map(|server_options| server_options.binary.as_path())),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            shape: self.objects.shape,
            proxies: self.group.sidecars.len(),
            protocol: match self.measure.protocol {
                AdsProtocol::Delta => "delta".into(),
                AdsProtocol::Sotw => "sotw".into(),
            },
            driver: match self.measure.driver {
                Driver::Directory => "directory".into(),
                Driver::Kube => "kube".into(),
            },
            virtual_hosts: self.measure.virtual_hosts,
            endpoints_by_locality: self.measure.endpoints_by_locality,
            ready_seconds: (!self.starts.is_empty()).then(|| of(self.starts.iter().copied(), 0.5)),
            starts_seconds: self.starts.clone(),
            ready_memory: self.ready_memory,
            connect: self.connect.clone(),
            changes,
            storms,
            end_memory: self.server.process.as_ref().map(Process::memory).transpose()?,
        })
    }
}

/// The variables of a started server.
fn environment(setup: &Setup) -> Vec<(String, OsString)> {
    let ambient = setup.shape.is_ambient().then(|| ("PILOT_ENABLE_AMBIENT".to_owned(), "true".into()));
    setup.environment.iter().cloned().chain(ambient).collect()
}

async fn target_and_source(
    setup: &Setup,
    measure: &MeasureOptions,
    temporary: &Path,
) -> Result<(ObjectTarget, ObjectSource)> {
    match measure.driver {
        Driver::Directory => {
            ensure!(setup.kubeconfig.is_none(), "--kubeconfig needs --driver kube");
            let running = matches!(setup.server, ServerChoice::Running(..));
            ensure!(!running || setup.config_dir.is_some(), "--server needs --config-dir, which it watches");
            let objects = setup.config_dir.clone().unwrap_or_else(|| temporary.join("objects"));
            Ok((ObjectTarget::directory(&objects)?, ObjectSource::Directory(objects)))
        }
        Driver::Kube => {
            ensure!(setup.config_dir.is_none(), "--config-dir needs --driver directory");
            let api = match &setup.kubeconfig {
                Some(path) => Api::connect(path).await?,
                None => Api::start(temporary).await?,
            };
            let source = ObjectSource::Kubeconfig(api.kubeconfig().to_owned());
            Ok((ObjectTarget::Api(api), source))
        }
    }
}

/// A proxy before the API of this process, and the source of a server that reads through it.
async fn proxied(objects: &MeshObjects, directory: &Path) -> Result<(FaultProxy, ObjectSource)> {
    let api = objects.api().context("a proxy needs --driver kube")?;
    let address = api.address().context("a proxy needs an API server of this process")?;
    let proxy = FaultProxy::start(address).await?;
    let kubeconfig = directory.join("proxied-kubeconfig");
    let direct = std::fs::read_to_string(api.kubeconfig()).context("read the kubeconfig")?;
    let text = direct.replace(&address.to_string(), &proxy.address().to_string());
    std::fs::write(&kubeconfig, text).context("write the kubeconfig of the proxy")?;
    Ok((proxy, ObjectSource::Kubeconfig(kubeconfig)))
}

impl ChangeResult {
    /// The median over rounds of what `value` gives of each.
    pub(crate) fn median(&self, value: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.rounds.iter().filter_map(value).collect();
        (!values.is_empty()).then(|| of(values, 0.5))
    }
}

/// The measured commit: `git describe` in the directory of the binary, or else in the current one.
fn commit(binary: Option<&Path>) -> String {
    let describe = |directory: &Path| {
        let command = std::process::Command::new("git")
            .args(["describe", "--always", "--dirty"])
            .current_dir(directory)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&command.stdout).trim().to_owned())
    };
    let beside = binary.and_then(Path::parent).filter(|parent| !parent.as_os_str().is_empty());
    beside.and_then(describe).or_else(|| describe(Path::new("."))).unwrap_or_default()
}

/// Milliseconds that `bytes` in all take to `readers` through bare sockets: the median of `times` measurements.
async fn sockets(measure: &MeasureOptions, bytes: f64, readers: usize, times: usize) -> Result<Option<f64>> {
    if measure.no_loopback || bytes < 1.0 || readers == 0 {
        return Ok(None);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "bytes")]
    let each = (bytes / readers as f64) as usize;
    let mut durations_ms = Vec::new();
    for _ in 0..times {
        durations_ms.push(loopback::measure(each, readers).await?.last_ms);
    }
    Ok(Some(of(durations_ms, 0.5)))
}
