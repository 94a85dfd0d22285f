//! Many streams at once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::arguments::Storm;
use crate::client::{Client, Pace};
use crate::fleet::Fleet;
use crate::process::Process;
use crate::result::{SHARES, StormResult};
use crate::server::Server;
use crate::statistics::percentile;

/// How long a slow client takes for each message.
const SLOW: Duration = Duration::from_millis(500);

/// Connects `clients` at once and follows them until each has everything.
pub(crate) async fn connect(
    name: &str,
    fleet: &mut Fleet,
    clients: Vec<Client>,
    server: &Server,
    patience: Duration,
) -> Result<StormResult> {
    let own = Process::new(std::process::id())?;
    let cpu = |process: Option<&Process>| process.map(Process::cpu).transpose();
    let (server_before, own_before, traffic) = (cpu(server.process.as_ref())?, own.cpu()?, fleet.traffic());
    let start = Instant::now();
    fleet.connect(clients);
    let (times, missed) = fleet.configured(start, patience).await;
    // What comes late is part of it.
    fleet.settle(start, Duration::from_millis(200), start + patience).await;
    let server_after = cpu(server.process.as_ref())?;
    Ok(StormResult {
        name: name.to_owned(),
        distribution_ms: SHARES.iter().map(|share| percentile(&times, *share)).collect(),
        missed,
        traffic: fleet.traffic().since(&traffic),
        server_cpu_seconds: server_after.zip(server_before).map(|(after, before)| after - before),
        own_cpu_seconds: own.cpu()? - own_before,
        memory: server.process.as_ref().map(Process::memory).transpose()?,
    })
}

/// Makes a storm with the proxies that are connected.
pub(crate) async fn make(
    storm: Storm,
    fleet: &mut Fleet,
    server: &mut Server,
    patience: Duration,
) -> Result<StormResult> {
    let mut clients = fleet.disconnect().await;
    match storm {
        Storm::Reconnect => connect("reconnect", fleet, clients, server, patience).await,
        Storm::Restart => {
            server.restart().await.context("restart the server")?;
            fleet.move_to(server.address);
            connect("restart", fleet, clients, server, patience).await
        }
        Storm::Slow => {
            for client in &mut clients {
                let pace = match client.number % 100 {
                    7 => Pace::Dead,
                    number if number % 10 == 3 => Pace::Slow(SLOW),
                    _ => Pace::Prompt,
                };
                fleet.set_pace(client, pace);
            }
            connect("slow and dead clients among them", fleet, clients, server, patience).await
        }
    }
}
