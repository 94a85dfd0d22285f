//! A run: server, proxies, changes, storms, results.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::arguments::{Protocol, RunArguments, Storm};
use crate::change::{self, Change, Kind};
use crate::fleet::Fleet;
use crate::process::Process;
use crate::report;
use crate::result::{ChangeResult, Machine, Round, RunResult, SHARES};
use crate::server::Server;
use crate::statistics::{of, percentile};
use crate::storm;
use crate::world::World;

/// Measures, tells how it goes, and writes the result.
pub(crate) async fn run(arguments: &RunArguments) -> Result<()> {
    let shape = arguments.shape.shape()?;
    ensure!(arguments.proxies <= shape.pods(), "--proxies may be at most the {} pods of the shape", shape.pods());
    let restarts = arguments.storms.contains(&Storm::Restart);
    ensure!(!restarts || arguments.sluiced.is_some(), "the storm `restart` needs --sluiced");
    let machine = Machine::this();
    let temporary = tempfile::tempdir().context("make a directory for the objects")?;
    let objects = arguments.config_dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    eprintln!("writing {} services × {} endpoints", shape.services, shape.endpoints);
    let world = World::lay(&objects, &shape)?;

    let (mut server, ready_seconds) = match (&arguments.sluiced, arguments.server) {
        (Some(binary), _) => {
            let (server, seconds) = Server::start(binary, &objects, &arguments.server_arguments).await?;
            (server, Some(seconds))
        }
        (None, Some(address)) => (Server::running(address, arguments.pid)?, None),
        (None, None) => anyhow::bail!("--sluiced or --server is needed"),
    };
    let ready_memory = server.process.as_ref().map(Process::memory).transpose()?;
    if let (Some(seconds), Some(memory)) = (ready_seconds, ready_memory) {
        eprintln!("ready after {seconds:.2} s with {} MiB", memory.resident_kib / 1024);
    }

    let patience = Duration::from_secs(arguments.patience);
    let mut fleet = Fleet::new(&shape, arguments.proxies, arguments.protocol, server.address)?;
    let fresh = fleet.fresh();
    let connect = storm::connect("connect", &mut fleet, fresh, &server, patience.max(Duration::from_secs(300))).await?;
    eprintln!("{}", report::storm_line(&connect));
    ensure!(connect.missed == 0, "{} proxies were not configured", connect.missed);

    let kinds = if arguments.changes.is_empty() { Kind::all() } else { arguments.changes.clone() };
    let mut changes = Vec::new();
    for kind in kinds.into_iter().filter(|kind| *kind != Kind::None) {
        let result = make_changes(kind, arguments, &world, &fleet, &server).await?;
        eprintln!("{}", report::change_line(&result));
        changes.push(result);
    }
    let mut storms = Vec::new();
    for storm in &arguments.storms {
        let result = storm::make(*storm, &mut fleet, &mut server, patience).await?;
        eprintln!("{}", report::storm_line(&result));
        storms.push(result);
        if *storm == Storm::Slow {
            // Whether those that read promptly notice.
            let result = make_changes(Kind::VirtualService, arguments, &world, &fleet, &server).await?;
            eprintln!("beside slow and dead clients: {}", report::change_line(&result));
            changes.push(result);
        }
    }
    let result = RunResult {
        machine,
        commit: commit(),
        shape,
        proxies: fleet.len(),
        protocol: match arguments.protocol {
            Protocol::Delta => "delta".into(),
            Protocol::Sotw => "sotw".into(),
        },
        ready_seconds,
        ready_memory,
        connect,
        changes,
        storms,
        end_memory: server.process.as_ref().map(Process::memory).transpose()?,
    };
    if let Some(path) = &arguments.json {
        let text = serde_json::to_vec_pretty(&result)?;
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(path) = &arguments.html {
        report::write(std::slice::from_ref(&result), path)?;
    }
    println!("{}", report::table(&result));
    fleet.disconnect().await;
    Ok(())
}

/// The changes of a kind, one before them that does not count.
async fn make_changes(
    kind: Kind,
    arguments: &RunArguments,
    world: &World,
    fleet: &Fleet,
    server: &Server,
) -> Result<ChangeResult> {
    let shape = world.shape;
    let limits = (Duration::from_secs(arguments.patience), Duration::from_millis(arguments.quiet));
    let own = Process::new(std::process::id())?;
    let mut affected = 0;
    let mut rounds = Vec::new();
    for round in 0..=arguments.repeat {
        let Change { before, write, expected, concerned } = change::plan(kind, &shape, round);
        if let Some(before) = before {
            fleet.follow(Vec::new(), |_| false, limits, || before(world)).await?;
        }
        affected = (0..fleet.len()).filter(|proxy| concerned.has(&shape, *proxy)).count();
        let cpu = || server.process.as_ref().map(Process::cpu).transpose();
        let (server_before, own_before) = (cpu()?, own.cpu()?);
        let followed = fleet.follow(expected, |proxy| concerned.has(&shape, proxy), limits, || write(world)).await?;
        let (server_after, own_after) = (cpu()?, own.cpu()?);
        if round == 0 {
            continue;
        }
        let latencies = &followed.latencies;
        rounds.push(Round {
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
        });
    }
    Ok(ChangeResult { kind, affected, rounds })
}

impl ChangeResult {
    /// The median over rounds of what `value` gives of each.
    pub(crate) fn median(&self, value: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.rounds.iter().filter_map(value).collect();
        (!values.is_empty()).then(|| of(values, 0.5))
    }
}

/// What is measured, as git names it.
fn commit() -> String {
    let output = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
    output
        .ok()
        .filter(|output| output.status.success())
        .map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
