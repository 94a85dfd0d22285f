//! Many streams at once.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::arguments::{RunArguments, Storm};
use crate::change::ChangeKind;
use crate::client::{Pace, SimulatedProxy};
use crate::connect::{QUIET, StormStart, connect};
use crate::fleet::{Fleet, ProxyGroup};
use crate::result::{ConcurrentChanges, StormResult};
use crate::side::MeasuredMesh;

/// Time that a slow client takes for each message.
const SLOW: Duration = Duration::from_millis(500);
/// Changes before a storm, for comparison.
const QUIET_ROUNDS: usize = 8;
/// Changes of mesh config in a backlog.
const BACKLOGS: usize = 5;
/// Poll interval for the begin of a backlog.
const POLL: Duration = Duration::from_millis(1);
/// The kind of change during a storm.
const CONCURRENT_CHANGE: ChangeKind = ChangeKind::EndpointAddress;

/// Makes a storm with the proxies that are connected.
pub(crate) async fn make(
    storm: Storm,
    side: &mut MeasuredMesh,
    arguments: &RunArguments,
    patience: Duration,
) -> Result<StormResult> {
    match storm {
        Storm::Reconnect => {
            let clients = side.fleet.disconnect().await;
            come_back("reconnect", side, clients, patience).await
        }
        Storm::Restart => {
            let clients = side.fleet.disconnect().await;
            side.server.restart().await.context("restart the server")?;
            side.fleet.move_to(side.server.address);
            come_back("restart", side, clients, patience).await
        }
        Storm::Slow => {
            let mut clients = side.fleet.disconnect().await;
            let (dead, slow) = (arguments.dead_share, arguments.dead_share + arguments.slow_share);
            let all = clients.len();
            for client in &mut clients {
                let share = spread(client.number, all);
                let pace = match share {
                    share if share < dead => Pace::Dead,
                    share if share < slow => Pace::Slow(SLOW),
                    _ => Pace::Prompt,
                };
                side.fleet.set_pace(client, pace);
            }
            come_back("slow and dead clients among them", side, clients, patience).await
        }
        Storm::Rush => rush(side, arguments, patience).await,
        Storm::Backlog => backlog(side, patience).await,
    }
}

/// Reconnects proxies, with the versions they hold.
async fn come_back(
    name: &str,
    side: &mut MeasuredMesh,
    clients: Vec<SimulatedProxy>,
    patience: Duration,
) -> Result<StormResult> {
    connect(name, &mut side.fleet, clients, &side.server, patience, QUIET).await
}

/// A number between 0 and 1 for each proxy, neighbours far from each other, each hundredth as often.
fn spread(number: usize, all: usize) -> f64 {
    // Coprime to 100 and to most numbers of proxies.
    let turn = number * 61 % all.clamp(1, 100);
    #[expect(clippy::cast_precision_loss, reason = "at most 100")]
    let share = turn as f64 / all.clamp(1, 100) as f64;
    share
}

/// Connects other proxies at once while changes go to those that are connected.
async fn rush(side: &mut MeasuredMesh, arguments: &RunArguments, patience: Duration) -> Result<StormResult> {
    let shape = side.world.shape;
    let wanted = arguments.rush_proxies.unwrap_or(side.group.sidecars.len());
    let first = side.group.sidecars.end;
    let sidecars = first..shape.pods().min(first + wanted);
    ensure!(!sidecars.is_empty(), "the storm `rush` needs pods beside the {first} whose proxies are connected");
    let group = ProxyGroup { sidecars, gateways: 0, ..side.group.clone() };
    let mut fleet = Fleet::new(&shape, group, side.server.address)?;
    // The work of connecting proxies must not delay the measurement of the others.
    fleet.run_in_background()?;
    let (mut beside, mut number) = (in_quiet(side).await?, QUIET_ROUNDS);
    let clients = fleet.fresh();
    let all = clients.len();
    let mut result = {
        let storm = connect("rush of other proxies", &mut fleet, clients, &side.server, patience, Duration::ZERO);
        tokio::pin!(storm);
        loop {
            let round = side.brief_round(CONCURRENT_CHANGE, number);
            number += 1;
            tokio::pin!(round);
            tokio::select! {
                biased;
                measured = &mut round => beside.storm_ms.extend(measured?),
                // A change that outlasts the storm is not counted, but followed to its end.
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

/// Changes before a storm, for comparison: as many as [`QUIET_ROUNDS`].
async fn in_quiet(side: &MeasuredMesh) -> Result<ConcurrentChanges> {
    let mut beside = ConcurrentChanges { kind: CONCURRENT_CHANGE, quiet_ms: Vec::new(), storm_ms: Vec::new() };
    for number in 0..QUIET_ROUNDS {
        beside.quiet_ms.extend(side.round(CONCURRENT_CHANGE, number).await?.1.last_ms);
    }
    Ok(beside)
}

/// Changes mesh config for all proxies a few times, and endpoints each time when the first of them has it. The times
/// are those until nothing came any more.
async fn backlog(side: &MeasuredMesh, patience: Duration) -> Result<StormResult> {
    let mut beside = in_quiet(side).await?;
    let account = StormStart::open(&side.fleet, &side.server)?;
    let mut times = Vec::new();
    for number in 0..BACKLOGS {
        let messages = || side.fleet.traffic().messages;
        let before = messages();
        let start = side.write(ChangeKind::MeshConfig, number)?;
        while messages() == before {
            ensure!(start.elapsed() < patience, "a change of the mesh config did not arrive anywhere");
            tokio::time::sleep(POLL).await;
        }
        beside.storm_ms.extend(side.brief_round(CONCURRENT_CHANGE, QUIET_ROUNDS + number).await?);
        side.fleet.settle(start, QUIET, start + patience).await;
        times.push(start.elapsed().saturating_sub(QUIET).as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let name = "endpoints while mesh config changes for all";
    let result = account.close(name, &times, 0, &side.fleet, &side.server)?;
    Ok(StormResult { beside: Some(beside), ..result })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_clients_is_slow() {
        let below = |share: f64, all: usize| (0..all).filter(|number| spread(*number, all) < share).count();
        assert_eq!((below(0.01, 1000), below(0.11, 1000), below(0.11, 100)), (10, 110, 11));
        assert_eq!(below(0.5, 12), 6);
    }
}
