//! Whether a cluster has an installation as its files describe it.

use crate::cluster::TargetCluster;
use crate::error::InstallError;
use crate::manifest::Manifest;
use crate::operator::Installation;
use crate::plan::{Action, ChangePlan, applied_keys};
use crate::readiness;

/// The result of a verification.
#[derive(Debug, Default)]
pub struct Verification {
    /// Number of rendered objects.
    pub objects: usize,
    /// What is not as it should be, a line for each object.
    pub problems: Vec<String>,
}

/// Compares rendered objects with those of a cluster, and checks that they are ready.
///
/// # Errors
/// The API server does not answer, or refuses an object.
pub async fn verify(
    installation: &Installation,
    manifests: &[Manifest],
    cluster: &TargetCluster,
) -> Result<Verification, InstallError> {
    let plan = ChangePlan::of_installation(installation, manifests, cluster).await?;
    let mut problems = Vec::new();
    for change in &plan.changes {
        let key = change.object.key();
        match &change.action {
            Action::Keep => {}
            Action::Create => problems.push(format!("{key}: it does not exist")),
            Action::Change { .. } => {
                let diff = change.diff().map_err(|reason| InstallError::refused(key, reason))?;
                problems.push(format!("{key}: it differs from what the charts render:\n{}", diff.trim_end()));
            }
            Action::Delete(_) => problems.push(format!("{key}: it is no longer a part of the installation")),
        }
    }
    let keys = applied_keys(&plan);
    for key in &keys {
        if cluster.get(key).await?.is_none() {
            continue;
        }
        match readiness::unready(std::slice::from_ref(key), cluster).await {
            Ok(waiting) => problems.extend(waiting),
            Err(error @ InstallError::Refused { .. }) => problems.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(Verification { objects: keys.len(), problems })
}
