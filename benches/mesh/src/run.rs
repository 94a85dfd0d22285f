//! A run: server, proxies, changes, storms, results.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::arguments::{RunArguments, Storm};
use crate::change::ChangeKind;
use crate::fleet::ProxyPriority;
use crate::measured_mesh::{MeasuredMesh, ServerChoice, Setup};
use crate::report;
use crate::result::RunResult;
use crate::storm;

/// Measures, prints progress, and writes the result.
pub(crate) async fn run(arguments: &RunArguments) -> Result<()> {
    let restarts = arguments.storms.contains(&Storm::Restart);
    ensure!(!restarts || arguments.sluiced.is_some(), "the storm `restart` needs --sluiced");
    let on_demand = arguments.measure.on_demand_clusters.is_some();
    let measures_changes = arguments.changes.iter().any(|kind| *kind != ChangeKind::None);
    ensure!(
        !on_demand || !measures_changes,
        "--on-demand-clusters needs --changes none: other changes do not concern all proxies"
    );
    let server = match (&arguments.sluiced, arguments.server) {
        (Some(binary), _) => ServerChoice::Start(binary.clone()),
        (None, Some(address)) => ServerChoice::Running(address, arguments.pid),
        (None, None) => anyhow::bail!("--sluiced or --server is needed"),
    };
    let setup = Setup {
        shape: arguments.shape.shape()?,
        proxies: arguments.proxies,
        server,
        config_dir: arguments.config_dir.clone(),
        kubeconfig: arguments.kubeconfig.clone(),
        api_proxy: false,
        starts: arguments.starts,
        digests: false,
        priority: ProxyPriority::Idle,
        webhooks: false,
        environment: Vec::new(),
    };
    let mut mesh = MeasuredMesh::open(&setup, &arguments.measure).await?;
    let mut changes = mesh.every_change(&arguments.changes).await?;
    let mut storms = Vec::new();
    let timeout = Duration::from_secs(arguments.measure.timeout);
    for storm in &arguments.storms {
        let result = storm::make(*storm, &mut mesh, arguments, timeout).await?;
        eprintln!("{}", report::storm_line(&result));
        storms.push(result);
        if *storm == Storm::Slow {
            // Measures the effect on clients that read promptly.
            let result = mesh.changes(ChangeKind::VirtualService).await?;
            eprintln!("with slow and dead clients: {}", report::change_line(&result));
            changes.push(result);
        }
    }
    let result = mesh.result(changes, storms)?;
    write(&result, arguments)?;
    println!("{}", report::table(&result));
    mesh.fleet.disconnect().await;
    Ok(())
}

fn write(result: &RunResult, arguments: &RunArguments) -> Result<()> {
    if let Some(path) = &arguments.json {
        result.write(path)?;
    }
    if let Some(path) = &arguments.html {
        report::page::write(std::slice::from_ref(result), path).context("write the page")?;
    }
    Ok(())
}
