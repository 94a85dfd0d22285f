//! Runs the scenarios of a family concurrently on one mesh, and reports each that failed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::{LocalBoxFuture, join_all};
use sluice_testkit::pods::mesh::Mesh;
use sluice_testkit::pods::pod_set::Pod;
use sluice_testkit::pods::served::compare_with_served;
use sluice_testkit::pods::workload::Workload;

/// A scenario: its name and what it does.
pub(crate) type Scenario<'m> = (&'static str, LocalBoxFuture<'m, Result<()>>);

/// A mesh of these pods and their namespaces.
pub(crate) async fn mesh_of(workloads: &[Workload]) -> Result<Mesh> {
    let mut mesh = Mesh::start(&[]).await?;
    mesh.deploy(workloads).await?;
    Ok(mesh)
}

/// Runs the scenarios, then checks every Envoy.
pub(crate) async fn run(mesh: &Mesh, scenarios: Vec<Scenario<'_>>) -> Result<()> {
    let all = scenarios.len();
    let run = scenarios.into_iter().map(|(name, scenario)| async move {
        let started = Instant::now();
        let outcome = scenario.await;
        eprintln!("{name}: {} after {:?}", if outcome.is_ok() { "ok" } else { "FAILED" }, started.elapsed());
        outcome.err().map(|error| format!("=== {name}: {error:#}"))
    });
    let mut failed: Vec<String> = join_all(run).await.into_iter().flatten().collect();
    if let Err(error) = every_envoy_holds_what_it_was_served(mesh).await {
        failed.push(format!("=== afterwards: {error:#}"));
    }
    ensure!(failed.is_empty(), "{} of {all} scenarios failed\n{}", failed.len(), failed.join("\n\n"));
    Ok(())
}

/// Checks that no Envoy has rejected an update, and that each holds exactly the resources that it was sent.
pub(crate) async fn every_envoy_holds_what_it_was_served(mesh: &Mesh) -> Result<()> {
    for (name, pod) in mesh.pods.iter().filter(|(_, pod)| pod.envoy.is_some()) {
        check_envoy(mesh, pod).await.with_context(|| format!("the Envoy of {name}"))?;
    }
    Ok(())
}

async fn check_envoy(mesh: &Mesh, pod: &Pod) -> Result<()> {
    let envoy = pod.envoy.as_ref().context("the pod has an Envoy")?;
    let deadline = Instant::now() + Duration::from_secs(30);
    // The last change may not have arrived, or the proxy may be reconnecting after a restart of the control plane.
    loop {
        let late = Instant::now() > deadline;
        match compare_with_served(mesh, pod).await {
            Ok((equal, differences)) if differences.is_empty() => {
                ensure!(equal > 5, "only {equal} resources to compare");
                break;
            }
            Ok((equal, differences)) if late => {
                bail!("{equal} resources are equal, but\n{}\n{}", differences.join("\n"), envoy.log_tail());
            }
            Err(error) if late => return Err(error),
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    let rejected = envoy.rejected().await?;
    ensure!(rejected.is_empty(), "rejected:\n{}\n{}", rejected.join("\n"), envoy.log_tail());
    Ok(())
}
