//! Keeps the pods of the node enrolled or withdrawn, as their labels and those of their namespaces say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_kube::Backoff;
use sluice_tasks::catch_panic;
use tracing::{debug, warn};

use crate::mesh::{AmbientMesh, MeshError};
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
    /// The pods that this process has enrolled or restored, as they were then.
    enrolled: Mutex<BTreeMap<PodName, NodePod>>,
    /// Pods that are being handled, and whether they have to be looked at again afterwards.
    busy: Mutex<BTreeMap<PodName, bool>>,
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
        Self { mesh, store, selectors, excluded, enrolled: Mutex::default(), busy: Mutex::default() }
    }

    fn enrolled(&self) -> MutexGuard<'_, BTreeMap<PodName, NodePod>> {
        self.enrolled.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Remembers a pod that the plugin has enrolled.
    pub(crate) fn enrolled_by_plugin(&self, pod: NodePod) {
        self.enrolled().insert(pod.name.clone(), pod);
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
                Ok(()) => drop(self.enrolled().insert(name, pod)),
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
        let before = self.enrolled().get(name).cloned();
        if !self.store.has(name) {
            return before.map_or(Action::Nothing, |pod| Action::Withdraw(pod, true));
        }
        let Some((pod, labels)) = self.store.get(name) else { return Action::Nothing };
        if let Some(other) = before.as_ref().filter(|before| before.uid != pod.uid) {
            return Action::Withdraw(other.clone(), true);
        }
        let is_enrolled = before.is_some() || pod.redirection().is_some();
        if pod.is_terminal {
            return if is_enrolled { Action::Withdraw(pod, true) } else { Action::Nothing };
        }
        let wanted = self.selectors.select(&pod, &labels) && !self.excluded.contains(&name.namespace);
        match (wanted, &before) {
            (false, _) if is_enrolled => Action::Withdraw(pod, false),
            (false, _) => Action::Nothing,
            (true, Some(before)) if before.addresses != pod.addresses && !pod.addresses.is_empty() => {
                Action::Probe(pod)
            }
            (true, Some(_)) => Action::Nothing,
            // The plugin enrols a pod before its addresses are known here.
            (true, None) if pod.addresses.is_empty() => Action::Nothing,
            (true, None) => Action::Enrol(pod),
        }
    }

    async fn perform(&self, action: Action) -> Result<(), MeshError> {
        match action {
            Action::Enrol(pod) => {
                self.mesh.enrol(&pod, &pod.addresses, None).await?;
                self.enrolled().insert(pod.name.clone(), pod);
            }
            Action::Withdraw(pod, has_ended) => {
                self.mesh.withdraw(&pod, has_ended).await?;
                self.enrolled().remove(&pod.name);
                self.store.forget_annotation(&pod);
            }
            Action::Probe(pod) => {
                let (network, probed) = (Arc::clone(&self.mesh.network), pod.clone());
                let probe = move || network.probe(&probed.uid, &probed.addresses);
                tokio::task::spawn_blocking(probe).await.map_err(|_| MeshError::Interrupted)??;
                self.enrolled().insert(pod.name.clone(), pod);
            }
            Action::Nothing => {}
        }
        Ok(())
    }
}
