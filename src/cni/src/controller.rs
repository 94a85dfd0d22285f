//! Keeps the pods of the node enrolled or withdrawn, as their labels and those of their namespaces say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_kube::Backoff;
use sluice_tasks::catch_panic;
use tracing::{debug, warn};

use crate::mesh::{AmbientMesh, MeshError, PodStart};
use crate::pod::{ENABLED, NodePod, PodName};
use crate::selectors::EnablementSelectors;
use crate::store::Store;

/// Waits after the first failure and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Which pods are enrolled.
pub(crate) struct Controller {
    pub(crate) mesh: AmbientMesh,
    pub(crate) store: Store,
    pub(crate) selectors: EnablementSelectors,
    /// Namespaces whose pods are never enrolled.
    pub(crate) excluded: BTreeSet<String>,
    /// The pods that this process enrols, by name and UID: a pod may begin before its predecessor of the same name is withdrawn.
    enrolments: Mutex<BTreeMap<PodName, BTreeMap<String, Enrolment>>>,
    /// Pods that are being handled, and whether they have to be looked at again afterwards.
    busy: Mutex<BTreeMap<PodName, bool>>,
}

/// A pod that this process has restored, or has begun to enrol.
#[derive(Clone, Debug)]
struct Enrolment {
    /// The pod as it was then.
    pod: NodePod,
    /// The last step has succeeded. Otherwise ztunnel may have the pod already.
    is_complete: bool,
}

/// What a pod needs.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Action {
    Enrol(NodePod),
    /// With whether the pod has ended.
    Withdraw(NodePod, bool),
    /// The addresses of an enrolled pod have changed.
    Probe(NodePod),
    Nothing,
}

impl Controller {
    pub(crate) fn new(
        mesh: AmbientMesh,
        store: Store,
        selectors: EnablementSelectors,
        excluded: BTreeSet<String>,
    ) -> Self {
        Self { mesh, store, selectors, excluded, enrolments: Mutex::default(), busy: Mutex::default() }
    }

    fn enrolments(&self) -> MutexGuard<'_, BTreeMap<PodName, BTreeMap<String, Enrolment>>> {
        self.enrolments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the last step for a pod has succeeded.
    fn complete(&self, pod: NodePod) {
        let enrolment = Enrolment { pod, is_complete: true };
        let (name, uid) = (enrolment.pod.name.clone(), enrolment.pod.uid.clone());
        self.enrolments().entry(name).or_default().insert(uid, enrolment);
    }

    /// Forgets a pod, and no other of its name.
    fn forget(&self, pod: &NodePod) {
        let mut enrolments = self.enrolments();
        let Some(of_name) = enrolments.get_mut(&pod.name) else { return };
        of_name.remove(&pod.uid);
        if of_name.is_empty() {
            enrolments.remove(&pod.name);
        }
    }

    fn busy(&self) -> MutexGuard<'_, BTreeMap<PodName, bool>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod that is to be enrolled. `Some(None)` if it is known and is not to be.
    pub(crate) fn eligible(&self, name: &PodName) -> Option<Option<NodePod>> {
        let (pod, labels) = self.store.get(name)?;
        let eligible = self.selectors.select(&pod, &labels) && !self.excluded.contains(&name.namespace);
        Some(eligible.then_some(pod))
    }

    /// Enrols a pod. If that fails, it is tried again or withdrawn, as its labels say then.
    ///
    /// # Errors
    /// As [`AmbientMesh::enrol`].
    pub(crate) async fn enrol(&self, pod: NodePod, start: PodStart) -> Result<(), MeshError> {
        let begun = Enrolment { pod: pod.clone(), is_complete: false };
        self.enrolments().entry(pod.name.clone()).or_default().entry(pod.uid.clone()).or_insert(begun);
        self.mesh.enrol(&pod, start).await?;
        self.store.set_redirection(&pod, Some(ENABLED));
        self.complete(pod);
        Ok(())
    }

    /// Restores the pods that have been enrolled before this process started.
    pub(crate) async fn restore(&self, reconcile: bool) {
        self.store.listed().await;
        for name in self.store.names() {
            let Some((pod, _)) = self.store.get(&name) else { continue };
            if pod.redirection() != Some(ENABLED) || pod.is_terminal {
                continue;
            }
            match self.mesh.restore(&pod, reconcile).await {
                Ok(()) => self.complete(pod),
                Err(error) => warn!(pod = %pod.name, %error, "cannot restore an enrolled pod"),
            }
        }
    }

    /// Follows the pods. Each pod is handled by a task of its own, one change at a time.
    pub(crate) async fn run(self: Arc<Self>) -> anyhow::Result<()> {
        loop {
            for name in self.store.dirty().await {
                if self.is_busy(&name) {
                    continue;
                }
                let controller = Arc::clone(&self);
                tokio::spawn(async move {
                    while let Err(panic) = catch_panic(controller.settle(&name)).await {
                        warn!(pod = %name, error = %panic, "will retry");
                        tokio::time::sleep(RETRY.1).await;
                    }
                });
            }
        }
    }

    /// Whether a task handles the pod, which looks at it again then. The caller has to start one otherwise.
    fn is_busy(&self, name: &PodName) -> bool {
        let mut busy = self.busy();
        match busy.get_mut(name) {
            Some(again) => {
                *again = true;
                true
            }
            None => {
                busy.insert(name.clone(), false);
                false
            }
        }
    }

    /// Handles a pod until it needs nothing.
    async fn settle(&self, name: &PodName) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut reported = String::new();
        loop {
            let action = self.action(name);
            if action == Action::Nothing {
                let mut busy = self.busy();
                if busy.insert(name.clone(), false) == Some(true) {
                    continue;
                }
                busy.remove(name);
                return;
            }
            debug!(pod = %name, ?action, "reconcile");
            match self.perform(action).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    // A pod may fail for as long as it exists.
                    let text = error.to_string();
                    if text != reported {
                        warn!(pod = %name, error = text, "will retry");
                        reported = text;
                    }
                    tokio::time::sleep(backoff.failed()).await;
                }
            }
        }
    }

    fn action(&self, name: &PodName) -> Action {
        let mut enrolments = self.enrolments().get(name).cloned().unwrap_or_default();
        if !self.store.has(name) {
            return enrolments.pop_first().map_or(Action::Nothing, |(_, before)| Action::Withdraw(before.pod, true));
        }
        let Some((pod, labels)) = self.store.get(name) else { return Action::Nothing };
        let before = enrolments.remove(&pod.uid);
        if let Some((_, other)) = enrolments.pop_first() {
            return Action::Withdraw(other.pod, true);
        }
        let is_enrolled = before.is_some() || pod.redirection().is_some();
        if pod.is_terminal {
            return if is_enrolled { Action::Withdraw(pod, true) } else { Action::Nothing };
        }
        let wanted = self.selectors.select(&pod, &labels) && !self.excluded.contains(&name.namespace);
        match (wanted, &before) {
            (false, _) if is_enrolled => Action::Withdraw(pod, false),
            (false, _) => Action::Nothing,
            // The plugin enrols a pod before its addresses are known here.
            (true, _) if pod.addresses.is_empty() => Action::Nothing,
            (true, Some(before)) if before.is_complete && before.pod.addresses != pod.addresses => Action::Probe(pod),
            (true, Some(before)) if before.is_complete => Action::Nothing,
            (true, _) => Action::Enrol(pod),
        }
    }

    async fn perform(&self, action: Action) -> Result<(), MeshError> {
        match action {
            Action::Enrol(pod) => self.enrol(pod, PodStart::Running).await?,
            Action::Withdraw(pod, has_ended) => {
                self.mesh.withdraw(&pod, has_ended).await?;
                self.forget(&pod);
                self.store.set_redirection(&pod, None);
            }
            Action::Probe(pod) => {
                self.mesh.probe(&pod).await?;
                self.complete(pod);
            }
            Action::Nothing => {}
        }
        Ok(())
    }
}
