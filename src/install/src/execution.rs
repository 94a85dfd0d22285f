//! Carries out a plan, and undoes it.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::cluster::{TargetCluster, Write};
use crate::error::InstallError;
use crate::object::{KubeObject, ObjectKey, WEBHOOK_STEP, step};
use crate::operator::Component;
use crate::plan::{Action, ChangePlan, ObjectChange};
use crate::readiness;

/// What a run has written, in order. [`Journal::undo`] reverts it.
#[derive(Debug, Default)]
pub struct Journal {
    entries: Vec<Entry>,
}

/// A write.
#[derive(Debug)]
enum Entry {
    Created(ObjectKey),
    /// The object before it was changed or deleted.
    Replaced(Box<KubeObject>),
}

/// What was undone.
#[derive(Debug, Default)]
pub struct Undone {
    /// Objects that are as they were before.
    pub restored: usize,
    /// Objects that did not exist before, and are removed.
    pub removed: usize,
    /// CRDs that did not exist before. They stay, since all their objects would disappear with them.
    pub kept: Vec<ObjectKey>,
    /// Objects that could not be reverted, with the reason.
    pub failures: Vec<InstallError>,
}

/// Carries out a plan: component by component, webhooks once the control plane is ready, and deletions last. Each write is
/// recorded before it is sent.
///
/// # Errors
/// The API server refuses a write, or objects are not ready in time.
pub async fn execute(
    plan: &ChangePlan,
    cluster: &TargetCluster,
    readiness_timeout: Duration,
    journal: &mut Journal,
    report: &mut dyn FnMut(&str),
) -> Result<(), InstallError> {
    for component in Component::ALL {
        let is_applied =
            |change: &&ObjectChange| change.component == component && !matches!(change.action, Action::Delete(_));
        let changes: Vec<&ObjectChange> = plan.changes.iter().filter(is_applied).collect();
        if changes.is_empty() {
            continue;
        }
        let title = component.title();
        let mut say = |text: &str| report(&format!("{title}: {text}"));
        let (webhooks, others): (Vec<&ObjectChange>, Vec<&ObjectChange>) =
            changes.iter().partition(|change| step(&change.object.key().kind) == WEBHOOK_STEP);
        let runs_here = others.iter().any(|change| change.object.key().kind == "Deployment");
        let mut written = apply(&others, cluster, journal).await?;
        say(&applied(written));
        readiness::wait(&keys(&others), cluster, readiness_timeout, &mut say).await?;
        written = apply(&webhooks, cluster, journal).await?;
        if !webhooks.is_empty() {
            say(&format!("webhooks: {}", applied(written)));
        }
        // Webhooks of a control plane in another cluster have their roots from it, or from the values.
        if runs_here {
            readiness::wait(&keys(&webhooks), cluster, readiness_timeout, &mut say).await?;
        }
        say("ready");
    }
    let mut deleted = 0;
    for change in &plan.changes {
        if let Action::Delete(before) = &change.action {
            journal.entries.push(Entry::Replaced(before.clone()));
            cluster.delete(before.key()).await?;
            report(&format!("deleted {}", before.key()));
            deleted += 1;
        }
    }
    if deleted > 0 {
        let keys: Vec<ObjectKey> = plan
            .changes
            .iter()
            .filter(|change| matches!(change.action, Action::Delete(_)))
            .map(|change| change.object.key().clone())
            .collect();
        readiness::wait_until_gone(&keys, cluster, readiness_timeout).await?;
    }
    Ok(())
}

fn keys(changes: &[&ObjectChange]) -> Vec<ObjectKey> {
    changes.iter().map(|change| change.object.key().clone()).collect()
}

fn applied(written: usize) -> String {
    match written {
        0 => "unchanged".to_owned(),
        1 => "1 object applied".to_owned(),
        number => format!("{number} objects applied"),
    }
}

/// Applies objects that change. Returns their number.
async fn apply(
    changes: &[&ObjectChange],
    cluster: &TargetCluster,
    journal: &mut Journal,
) -> Result<usize, InstallError> {
    let mut written = 0;
    for change in changes {
        let entry = match &change.action {
            Action::Create => Entry::Created(change.object.key().clone()),
            Action::Change { before, .. } => Entry::Replaced(before.clone()),
            Action::Keep | Action::Delete(_) => continue,
        };
        journal.entries.push(entry);
        cluster.apply(&change.object, Write::Stored).await?;
        written += 1;
    }
    Ok(written)
}

impl Journal {
    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reverts all writes, the last one first. A failure does not stop it.
    pub async fn undo(self, cluster: &TargetCluster, report: &mut dyn FnMut(&str)) -> Undone {
        let mut undone = Undone::default();
        for entry in self.entries.into_iter().rev() {
            match entry {
                Entry::Created(key) if key.kind == "CustomResourceDefinition" => undone.kept.push(key),
                Entry::Created(key) => match cluster.delete(&key).await {
                    Ok(true) => {
                        report(&format!("undo: removed {key}"));
                        undone.removed += 1;
                    }
                    // The API server refused it.
                    Ok(false) => {}
                    Err(error) => undone.failures.push(error),
                },
                Entry::Replaced(before) => match cluster.restore(&before).await {
                    Ok(()) => {
                        report(&format!("undo: restored {}", before.key()));
                        undone.restored += 1;
                    }
                    Err(error) => undone.failures.push(error),
                },
            }
        }
        undone
    }
}
