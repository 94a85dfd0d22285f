//! Faults while proxies are connected and objects change, and the recovery from each.

mod clock;
mod hostile;
mod inject;
mod outcome;
mod panics;
mod token_callers;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::arguments::{Driver, FaultArguments, MeasureOptions};
use crate::change::{self, ChangeKind, Plan};
use crate::change_tracker::Expectation;
use crate::churn::Churn;
use crate::connect;
use crate::fault_kind::FaultKind;
use crate::fleet::ProxyPriority;
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::process::Process;
use crate::server::{ObjectSource, ServerOptions};
use crate::state_comparison::{StateComparison, compare_with_fresh_server};

use inject::{ActiveFault, Injected};

use outcome::{FaultOutcome, RecoveryLimits};

/// Changes that show that a server has recovered: one for each of the kinds of objects that concern all sidecars.
const RECOVERY_CHANGES: [ChangeKind; 6] = [
    ChangeKind::EndpointAddress,
    ChangeKind::ServiceAdd,
    ChangeKind::VirtualService,
    ChangeKind::DestinationRule,
    ChangeKind::AuthorizationPolicyRoot,
    ChangeKind::MeshConfig,
];
/// Rounds of recovery changes begin here, so that churn never writes their texts, nor removes the services that they add.
const FIRST_RECOVERY_ROUND: usize = 6000;
/// Longest silence that is waited for before states are compared.
const MAX_SETTLE: Duration = Duration::from_secs(5);
/// Time limit for the end of a server: `--shutdownDuration` and more.
const TERMINATION_LIMIT: Duration = Duration::from_secs(15);
/// A fault begins when no message has arrived for this time.
const QUIET: Duration = Duration::from_millis(300);

/// Injects each fault in turn. Returns whether all recoveries were as expected.
pub(crate) async fn run(arguments: &FaultArguments) -> Result<bool> {
    let setup = Setup::started(arguments.started.shape.shape()?, arguments.proxies, &arguments.started.sluiced);
    let setup = Setup { api_proxy: true, digests: true, priority: ProxyPriority::Normal, ..setup };
    let measure = MeasureOptions { driver: Driver::Kube, ..arguments.started.measure.clone() };
    let faults = if arguments.faults.is_empty() { FaultKind::of_all_builds() } else { arguments.faults.clone() };
    let mut faulty = FaultyMesh {
        mesh: MeasuredMesh::open(&setup, &measure).await?,
        churn: Churn::new(arguments.seed),
        round: FIRST_RECOVERY_ROUND,
        arguments,
    };
    let limits = RecoveryLimits { recovery: arguments.recovery, growth_mib: arguments.growth };
    let mut outcomes = Vec::new();
    for fault in faults {
        let observed = faulty.observe(fault).await;
        let outcome = observed.with_context(|| format!("fault {}: {}", fault.name(), faulty.mesh.server.last_log()))?;
        eprintln!("{}", outcome.line(&limits));
        outcomes.push(outcome);
    }
    faulty.mesh.fleet.disconnect().await;
    if let Some(path) = &arguments.started.json {
        std::fs::write(path, serde_json::to_vec_pretty(&outcomes)?)
            .with_context(|| format!("write {}", path.display()))?;
    }
    println!("{}", outcome::table(&outcomes, &limits));
    Ok(outcomes.iter().all(|outcome| outcome.problems(&limits).is_empty()))
}

/// A mesh that faults are injected into.
struct FaultyMesh<'a> {
    mesh: MeasuredMesh,
    churn: Churn,
    /// The next round of recovery changes.
    round: usize,
    arguments: &'a FaultArguments,
}

impl FaultyMesh<'_> {
    /// Injects a fault, ends it, and observes the recovery.
    async fn observe(&mut self, fault: FaultKind) -> Result<FaultOutcome> {
        let timeout = self.timeout();
        inject::prepare(fault, self).await?;
        self.mesh.fleet.configured(Instant::now(), timeout).await;
        self.mesh.fleet.settle(Instant::now(), QUIET, Instant::now() + timeout).await;
        let before = self.mesh.fleet.traffic();
        let memory_before_mib = self.memory_mib()?;
        let mut active = match inject::begin(fault, self).await? {
            Injected::Active(active) => active,
            Injected::Skipped(reason) => return Ok(FaultOutcome::skipped(fault, reason)),
        };
        let started = Instant::now();
        if fault.lasts() {
            self.change_for(self.arguments.hold).await?;
        }
        let held = started.elapsed();
        let during = self.mesh.fleet.traffic().since(&before);
        let (recovery_ms, missed) = self.recover(&active).await?;
        if let Some(clients) = active.clients.take() {
            clients.end(self).await?;
        }
        // Each kind of objects is watched by itself: kinds without a recovery change may arrive later, but within the same time.
        let limit = self.arguments.recovery.min(MAX_SETTLE);
        self.mesh.fleet.settle(Instant::now(), limit, Instant::now() + timeout).await;
        let ended = self.mesh.fleet.traffic().since(&before).ended;
        let server_options = self.direct_options()?;
        let (clients, StateComparison { compared, differences, missed: unconfigured }) =
            compare_with_fresh_server(&mut self.mesh, &server_options, timeout).await?;
        let memory_after_mib = self.memory_mib()?;
        ensure!(compared > 0, "no resource was compared");
        if active.has_other_server {
            self.replace_server(&self.options()?).await?;
        }
        connect::connect("reconnect", &mut self.mesh.fleet, clients, &self.mesh.server, timeout, connect::QUIET)
            .await?;
        Ok(FaultOutcome {
            fault: fault.name(),
            held_seconds: held.as_secs_f64(),
            messages_during: fault.is_invisible().then_some(during.messages),
            ended_streams: (!fault.ends_streams()).then_some(ended),
            recovery_ms,
            restart_ms: active.longest_restart.map(|restart| restart.as_secs_f64() * 1000.0),
            missed: missed + unconfigured,
            compared,
            different: differences.len(),
            differences: differences.into_iter().take(10).collect(),
            memory_before_mib,
            memory_after_mib,
            skipped: None,
        })
    }

    /// Makes the recovery changes, ends the fault, and waits until all proxies hold the changes. Returns the milliseconds
    /// since the end of the fault, and the number of proxies that do not hold them in time.
    async fn recover(&mut self, active: &ActiveFault) -> Result<(Option<f64>, usize)> {
        let shape = self.mesh.objects.shape;
        let mut expected: Vec<Expectation> = Vec::new();
        let mut writes = Vec::new();
        for kind in RECOVERY_CHANGES {
            let planned = change::plan(kind, &shape, self.round, Plan::default())?;
            self.round += 1;
            expected.extend(planned.expected);
            writes.push(planned.write);
        }
        let objects = &self.mesh.objects;
        let is_sidecar = |role| change::AffectedProxies::Sidecars.includes(&shape, role);
        let followed = self.mesh.fleet.follow(expected, is_sidecar, (self.timeout(), QUIET), || {
            for write in writes {
                write(objects)?;
            }
            active.end(&self.mesh)?;
            Ok(Instant::now())
        });
        let followed = followed.await?;
        Ok((followed.latencies.last().copied(), followed.missed))
    }

    /// Changes the mesh at random.
    async fn change_for(&mut self, duration: Duration) -> Result<()> {
        let mut kinds = self.mesh.kinds(&[])?;
        // The recovery changes would not concern proxies with a narrow scope.
        kinds.retain(|kind| *kind != ChangeKind::Sidecar);
        let pause = Duration::from_secs_f64(1.0 / self.arguments.rate.max(0.1));
        let start = Instant::now();
        while start.elapsed() < duration {
            self.churn.change(&self.mesh, &kinds)?;
            tokio::time::sleep(pause.min(duration)).await;
        }
        Ok(())
    }

    /// The longest time that is waited for anything.
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.arguments.started.measure.timeout.max(60))
    }

    fn memory_mib(&self) -> Result<f64> {
        let memory = self.mesh.server.process.as_ref().map(Process::memory).transpose()?.unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "mebibytes")]
        let mebibytes = memory.resident_kib as f64 / 1024.0;
        Ok(mebibytes)
    }

    /// How the server was started.
    fn options(&self) -> Result<ServerOptions> {
        self.mesh.server_options.clone().context("the server was started here")
    }

    /// Options of a server that reads the API without the proxy.
    fn direct_options(&self) -> Result<ServerOptions> {
        let api = self.mesh.objects.api().context("objects are written to an API")?;
        Ok(ServerOptions { source: ObjectSource::Kubeconfig(api.kubeconfig().to_owned()), ..self.options()? })
    }
}
