//! Many streams at once.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::arguments::{RunArguments, Storm};
use crate::change::ChangeKind;
use crate::client::{Pace, SimulatedProxy};
use crate::connect::{QUIET, StormStart, connect};
use crate::fleet::{Fleet, ProxyGroup};
use crate::measured_mesh::MeasuredMesh;
use crate::process::Process;
use crate::result::{ConcurrentChanges, StormResult};

/// Delay of a slow client before each message.
const SLOW_CLIENT_DELAY: Duration = Duration::from_millis(500);
/// Changes before a storm, for comparison.
const QUIET_ROUNDS: usize = 8;
/// Changes of mesh config in a backlog.
const BACKLOGS: usize = 5;
/// Poll interval while a backlog has not begun.
const POLL: Duration = Duration::from_millis(1);
/// The kind of change during a storm.
const CONCURRENT_CHANGE: ChangeKind = ChangeKind::EndpointAddress;

/// Makes a storm.
pub(crate) async fn make(
    storm: Storm,
    mesh: &mut MeasuredMesh,
    arguments: &RunArguments,
    timeout: Duration,
) -> Result<StormResult> {
    // A restart replaces the process.
    let process = mesh.server.process.as_ref().filter(|_| storm != Storm::Restart);
    let memory_before = process.map(Process::memory).transpose()?;
    let result = match storm {
        Storm::Reconnect => {
            let clients = mesh.fleet.disconnect().await;
            reconnect("reconnect", mesh, clients, timeout).await
        }
        Storm::Restart => {
            let clients = mesh.fleet.disconnect().await;
            mesh.server.restart().await.context("restart the server")?;
            mesh.fleet.move_to(mesh.server.address);
            reconnect("restart", mesh, clients, timeout).await
        }
        Storm::Slow => {
            let mut clients = mesh.fleet.disconnect().await;
            let (dead, slow) = (arguments.dead_share, arguments.dead_share + arguments.slow_share);
            let all = clients.len();
            for client in &mut clients {
                let share = spread(client.number, all);
                let pace = match share {
                    share if share < dead => Pace::Dead,
                    share if share < slow => Pace::Slow(SLOW_CLIENT_DELAY),
                    _ => Pace::Prompt,
                };
                mesh.fleet.set_pace(client, pace);
            }
            reconnect("slow and dead clients among them", mesh, clients, timeout).await
        }
        Storm::Rush => rush(mesh, arguments, timeout).await,
        Storm::Backlog => backlog(mesh, timeout).await,
    }?;
    Ok(StormResult { memory_before, ..result })
}

/// Reconnects proxies, with the versions they hold.
async fn reconnect(
    name: &str,
    mesh: &mut MeasuredMesh,
    clients: Vec<SimulatedProxy>,
    timeout: Duration,
) -> Result<StormResult> {
    connect(name, &mut mesh.fleet, clients, &mesh.server, timeout, QUIET).await
}

/// A number from 0 to 1 for each proxy. Consecutive proxies get distant numbers, and each hundredth is equally frequent.
fn spread(number: usize, all: usize) -> f64 {
    // Coprime to 100 and to most numbers of proxies.
    let position = number * 61 % all.clamp(1, 100);
    #[expect(clippy::cast_precision_loss, reason = "at most 100")]
    let share = position as f64 / all.clamp(1, 100) as f64;
    share
}

/// Connects other proxies at once, while changes are sent to those that are connected.
async fn rush(mesh: &mut MeasuredMesh, arguments: &RunArguments, timeout: Duration) -> Result<StormResult> {
    let shape = mesh.objects.shape;
    let requested = arguments.rush_proxies.unwrap_or(mesh.group.sidecars.len());
    let first = mesh.group.sidecars.end;
    let sidecars = first..shape.pods().min(first + requested);
    ensure!(!sidecars.is_empty(), "the storm `rush` needs pods beside the {first} whose proxies are connected");
    let group = ProxyGroup { sidecars, gateways: 0, waypoints: 0, ztunnels: 0, ..mesh.group.clone() };
    let mut fleet = Fleet::new(&shape, group, mesh.server.address)?;
    let (mut beside, mut number) = (changes_before_storm(mesh).await?, QUIET_ROUNDS);
    let clients = fleet.fresh();
    let all = clients.len();
    let mut result = {
        let storm = connect("rush of other proxies", &mut fleet, clients, &mesh.server, timeout, Duration::ZERO);
        tokio::pin!(storm);
        loop {
            let round = mesh.brief_round(CONCURRENT_CHANGE, number);
            number += 1;
            tokio::pin!(round);
            tokio::select! {
                biased;
                measured = &mut round => beside.storm_ms.extend(measured?),
                // A change that outlasts the storm is followed to its end, but not counted.
                ended = &mut storm => {
                    let ended = ended?;
                    round.await?;
                    break ended;
                }
            }
        }
    };
    ensure!(result.missed == 0, "{} of {all} proxies were not configured", result.missed);
    fleet.disconnect().await;
    result.beside = Some(beside);
    Ok(result)
}

/// Makes [`QUIET_ROUNDS`] changes before a storm, for comparison.
async fn changes_before_storm(mesh: &MeasuredMesh) -> Result<ConcurrentChanges> {
    let mut beside = ConcurrentChanges { kind: CONCURRENT_CHANGE, quiet_ms: Vec::new(), storm_ms: Vec::new() };
    for number in 0..QUIET_ROUNDS {
        beside.quiet_ms.extend(mesh.round(CONCURRENT_CHANGE, number).await?.1.last_ms);
    }
    Ok(beside)
}

/// Changes the mesh config for all proxies a few times, and an endpoint each time when the first proxy has received
/// the mesh config. The times run until no message arrives any more.
async fn backlog(mesh: &MeasuredMesh, timeout: Duration) -> Result<StormResult> {
    let mut beside = changes_before_storm(mesh).await?;
    let storm = StormStart::open(&mesh.fleet, &mesh.server)?;
    let mut times = Vec::new();
    for number in 0..BACKLOGS {
        let messages = || mesh.fleet.traffic().messages;
        let before = messages();
        let start = mesh.write(ChangeKind::MeshConfig, number)?;
        while messages() == before {
            ensure!(start.elapsed() < timeout, "a change of the mesh config did not arrive anywhere");
            tokio::time::sleep(POLL).await;
        }
        beside.storm_ms.extend(mesh.brief_round(CONCURRENT_CHANGE, QUIET_ROUNDS + number).await?);
        mesh.fleet.settle(start, QUIET, start + timeout).await;
        times.push(start.elapsed().saturating_sub(QUIET).as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let name = "endpoints while mesh config changes for all";
    let result = storm.close(name, &times, 0, &mesh.fleet, &mesh.server)?;
    Ok(StormResult { beside: Some(beside), ..result })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_clients_are_a_share_of_all() {
        let below = |share: f64, all: usize| (0..all).filter(|number| spread(*number, all) < share).count();
        assert_eq!((below(0.01, 1000), below(0.11, 1000), below(0.11, 100)), (10, 110, 11));
        assert_eq!(below(0.5, 12), 6);
    }
}
