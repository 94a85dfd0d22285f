//! Sends calls and waits for the expected answers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use sluice_testkit::pods::grpc_app::{GrpcAnswer, GrpcCall};
use sluice_testkit::pods::mesh::Mesh;

/// Longest wait until calls follow the objects.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends calls until `expected` answers them, an application or a code.
pub(crate) async fn eventually(mesh: &Mesh, from: &str, call: &GrpcCall, expected: &str) -> Result<GrpcAnswer> {
    let pod = mesh.pods.pod(from);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let outcome = pod.call_grpc(call).await?;
        match outcome.only(expected) {
            Ok(answer) => return Ok(answer.clone()),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("{from}: {call:?}\n{}", logs(mesh))));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Sends calls; `expected` must answer each.
pub(crate) async fn always(mesh: &Mesh, from: &str, call: &GrpcCall, expected: &str) -> Result<GrpcAnswer> {
    let outcome = mesh.pods.pod(from).call_grpc(call).await?;
    outcome.only(expected).cloned().with_context(|| format!("{from}: {call:?}\n{}", logs(mesh)))
}

/// The logs of all applications and of the control plane.
fn logs(mesh: &Mesh) -> String {
    let of_pods = mesh.pods.iter().filter_map(|(name, pod)| Some(format!("{name}:\n{}\n", pod.grpc.as_ref()?.log())));
    of_pods.chain([mesh.server_log()]).collect()
}
