//! Releases of the chart whose pods run as their templates say: upgraded and rolled back while Envoys send requests. No request
//! fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sluice_testkit::binary::workspace_binary;
use sluice_testkit::cluster::Cluster;
use sluice_testkit::node::{Image, TestNode};
use sluice_testkit::pods::load::{Stream, under_load};
use sluice_testkit::pods::network::{PROXY_UID, pods_are_permitted};
use sluice_testkit::pods::pod_set::PodSet;
use sluice_testkit::pods::workload::Workload;

use crate::fixture::{ALL, CHART, SYSTEM, manifest, programs, until};
use crate::traffic::{DELTA, PAUSE, change_route, has_route, reaches_tea, tea_mesh};
use crate::webhooks::until_webhooks_are_called;

/// Time for which requests are sent after the last pod of the other version has ended.
const OBSERVED: Duration = Duration::from_secs(2);

/// The programs of the images of the charts.
pub(crate) fn images(pods: &PodSet) -> Result<Vec<Image>> {
    let program = |name, binary: &str, reads_cluster| {
        let program = pods.linked_path(&workspace_binary(binary)?)?;
        anyhow::Ok(Image { name, program, reads_cluster, user: PROXY_UID, root: None })
    };
    Ok(vec![program("sluice:", "sluiced", true)?, program("/proxyv2:", "sluice-agent", false)?])
}

/// Runs helm while the node works.
pub(crate) async fn helm(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let helm = cluster.helm();
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let run = move || helm.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.context("helm has no panic")?
}

/// A copy of the chart with another version.
fn older_chart(directory: &Path) -> Result<String> {
    let chart = directory.join("sluice");
    let status = std::process::Command::new("cp").arg("-r").arg(manifest(CHART)).arg(&chart).status()?;
    ensure!(status.success(), "copy the chart");
    let file = chart.join("Chart.yaml");
    let text = std::fs::read_to_string(&file)?;
    let own = format!("ersion: {}\n", env!("CARGO_PKG_VERSION"));
    ensure!(text.matches(&own).count() == 2, "the chart has the version of the binaries: {text}");
    std::fs::write(file, text.replace(&own, "ersion: 0.0.9\n"))?;
    Ok(chart.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_upgraded_and_rolled_back_without_a_failed_request() -> Result<()> {
    let Some(programs) = programs() else { return Ok(()) };
    if !pods_are_permitted() {
        return Ok(());
    }
    let cluster = Cluster::start(&programs).await?;
    cluster.install_crds("istio.yaml", ALL).await?;
    cluster.create_namespace(SYSTEM, json!({})).await?;
    let mut mesh = tea_mesh(&cluster, &["shop"]).await?;
    let programs = images(&mesh.pods)?;
    let mut node = TestNode::new(&cluster, &[SYSTEM], &mut mesh.pods, 8, programs).await?;
    let discovery = node.serve((SYSTEM, "istiod"), 15012, (mesh.pods.host_ip(), 0).into()).await?;
    let directory = tempfile::tempdir()?;
    let (older, newer) = (older_chart(directory.path())?, manifest(CHART).display().to_string());
    let release = ["istiod", "--namespace", SYSTEM, "--wait", "--timeout", "2m"];
    let with = |command: &[&'static str], chart: &[&str], values: &[&str]| -> Vec<String> {
        let values = values.iter().flat_map(|value| ["--set", value]);
        command.iter().chain(&release).chain(chart).copied().chain(values).map(str::to_owned).collect()
    };
    let workloads = [Workload::new("client", "client", DELTA), Workload::new("tea", "tea", DELTA)];
    let older_values = ["autoscaleEnabled=false", "env.PILOT_PUSH_THROTTLE=50"];
    let newer_values = [
        "autoscaleEnabled=false",
        "replicaCount=2",
        "image=registry.example/sluice:next",
        "global.logging.level=default:warn",
        "traceSampling=5",
    ];
    // What is done, the pods that run afterwards, and a variable that they have.
    let steps = [
        (with(&["upgrade"], &[&newer], &newer_values), 2, ("PILOT_TRACE_SAMPLING", "5")),
        (with(&["rollback"], &[], &[]), 1, ("PILOT_PUSH_THROTTLE", "50")),
    ];
    node.during(async {
        let install = with(&["install"], &[&older], &older_values);
        helm(&cluster, &install.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        until_webhooks_are_called(&cluster, "istio-sidecar-injector").await?;
        mesh.deploy(&workloads, discovery).await?;
        let mut number = 0;
        change_route(&cluster, number).await?;
        has_route(&mesh, number).await?;
        reaches_tea(&mesh, "client").await?;
        let call = mesh.get("shop", "tea").await?;
        for (command, replicas, (variable, value)) in &steps {
            let before = node.ready();
            let streams = [Stream::new(mesh.pods.shared("client"), call.clone(), "tea v1")];
            let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
            let change = async {
                let mut helm = std::pin::pin!(helm(&cluster, &arguments));
                // Objects change, and the control plane validates them, while its pods are replaced.
                loop {
                    number += 1;
                    change_route(&cluster, number).await.with_context(|| format!("during helm {}", arguments[0]))?;
                    tokio::select! {
                        done = &mut helm => break done.map(drop)?,
                        () = tokio::time::sleep(PAUSE) => {}
                    };
                }
                // The Deployment may also start a pod of the other version, since the number of replicas changes with it.
                until("the pods of the other version have ended", async || {
                    let ended = node.ended();
                    let has_ended = |name: &String| ended.iter().any(|pod| pod.name == *name);
                    Ok(before.keys().all(has_ended) && node.running() == *replicas)
                })
                .await?;
                change_route(&cluster, number + 1).await?;
                number += 1;
                has_route(&mesh, number).await?;
                tokio::time::sleep(OBSERVED).await;
                Ok(())
            };
            let ((), requests) = under_load(&streams, change).await?;
            eprintln!("{requests} requests and {number} changes until the end of helm {}", arguments[0]);
            for name in node.ready().keys() {
                ensure!(!before.contains_key(name), "{name} is a pod of the new version: {before:?}");
                let environment = node.environment(name);
                ensure!(environment.get(*variable).is_some_and(|it| it == value), "{name}: {environment:?}");
            }
        }
        for pod in node.ended() {
            ensure!(pod.code == Some(0), "{} ended with {:?}:\n{}", pod.name, pod.code, pod.log);
        }
        for (name, pod) in mesh.pods.iter() {
            let rejected = pod.envoy.as_ref().context("the pod has an Envoy")?.rejected().await?;
            ensure!(rejected.is_empty(), "{name} has rejected updates: {rejected:?}");
        }
        Ok(())
    })
    .await
}
