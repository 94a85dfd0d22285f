//! Sends calls and waits for the expected answers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sluice_testkit::pods::grpc_app::{GrpcAnswer, GrpcCall, GrpcOutcome};
use sluice_testkit::pods::mesh::Mesh;

/// Longest wait until calls follow the objects.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends calls until `expected` answers them, an application or a code.
pub(crate) async fn eventually(mesh: &Mesh, from: &str, call: &GrpcCall, expected: &str) -> Result<GrpcAnswer> {
    until(mesh, from, call, |outcome| outcome.only(expected).cloned()).await
}

/// Sends calls until `former` answers none of them.
pub(crate) async fn eventually_without(mesh: &Mesh, from: &str, call: &GrpcCall, former: &str) -> Result<()> {
    let check = |outcome: &GrpcOutcome| {
        ensure!(!outcome.counts.contains_key(former), "{former} still answers: {outcome:?}");
        Ok(())
    };
    until(mesh, from, call, check).await
}

/// Sends calls until their outcome passes the check.
async fn until<T>(mesh: &Mesh, from: &str, call: &GrpcCall, check: impl Fn(&GrpcOutcome) -> Result<T>) -> Result<T> {
    let pod = mesh.pods.pod(from);
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match check(&pod.call_grpc(call).await?) {
            Ok(passed) => return Ok(passed),
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
pub(crate) fn logs(mesh: &Mesh) -> String {
    let of_pods = mesh.pods.iter().filter_map(|(name, pod)| Some(format!("{name}:\n{}\n", pod.grpc.as_ref()?.log())));
    of_pods.chain([mesh.server_log()]).collect()
}
