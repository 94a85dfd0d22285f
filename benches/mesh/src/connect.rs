//! Many proxies connect at once: when each is configured, and the cost.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::client::SimulatedProxy;
use crate::fleet::Fleet;
use crate::process::Process;
use crate::result::{SHARES, StormResult};
use crate::server::Server;
use crate::shared::Traffic;
use crate::statistics::percentile;

/// A storm is over when no message has arrived for this time.
pub(crate) const QUIET: Duration = Duration::from_millis(200);

/// Connects `clients` at once. Waits until each is configured and no message has arrived for `quiet`.
pub(crate) async fn connect(
    name: &str,
    fleet: &mut Fleet,
    clients: Vec<SimulatedProxy>,
    server: &Server,
    timeout: Duration,
    quiet: Duration,
) -> Result<StormResult> {
    let storm = StormStart::open(fleet, server)?;
    let start = storm.start;
    fleet.connect(clients);
    let (times, missed) = fleet.configured(start, timeout).await;
    // Late messages are part of the storm.
    fleet.settle(start, quiet, start + timeout).await;
    storm.close(name, &times, missed, fleet, server)
}

/// The counters at the start of a storm.
pub(crate) struct StormStart {
    pub(crate) start: Instant,
    own: Process,
    own_cpu: f64,
    server_cpu: Option<f64>,
    traffic: Traffic,
}

impl StormStart {
    pub(crate) fn open(fleet: &Fleet, server: &Server) -> Result<Self> {
        let own = Process::new(std::process::id())?;
        let (own_cpu, server_cpu) = (own.cpu()?, server.process.as_ref().map(Process::cpu).transpose()?);
        Ok(Self { start: Instant::now(), own, own_cpu, server_cpu, traffic: fleet.traffic() })
    }

    /// The cost of a storm of that duration; `times` is sorted.
    pub(crate) fn close(
        self,
        name: &str,
        times: &[f64],
        missed: usize,
        fleet: &Fleet,
        server: &Server,
    ) -> Result<StormResult> {
        let server_cpu = server.process.as_ref().map(Process::cpu).transpose()?;
        Ok(StormResult {
            name: name.to_owned(),
            distribution_ms: SHARES.iter().map(|share| percentile(times, *share)).collect(),
            missed,
            traffic: fleet.traffic().since(&self.traffic),
            server_cpu_seconds: server_cpu.zip(self.server_cpu).map(|(after, before)| after - before),
            own_cpu_seconds: self.own.cpu()? - self.own_cpu,
            memory: server.process.as_ref().map(Process::memory).transpose()?,
            memory_before: None,
            loopback_ms: None,
            beside: None,
        })
    }
}
